"""Single parts of a sum over two trees, recovered by colluding parties."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.attacks.base import WEIGHT_PER_COLUMN, Attack, AttackerRole, Score, fixed_remedy
from securevfl.audit.recording.party_recording import Recording
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.crypto.sum_trees import SumTree
from securevfl.protocols.number_spaces import Reals
from securevfl.protocols.sums.residues import to_residues
from securevfl.protocols.sums.tree_sum import MaskedPartial, MaskPartial, TreeSum
from securevfl.runtime.codec import Message

Words = NDArray[np.uint64]


class Collusion(Attack):
    name = "collusion"
    paper = "Gu et al. 2020, federated doubly stochastic kernel learning for vertically partitioned data, section 4"
    measures = "largest share of the others' parts that a single party recovers exactly"
    attacker_role = AttackerRole.ANY
    requirements = (
        (lambda job: isinstance(job.protocol.sum, TreeSum), "no sum over two trees is taken"),
        WEIGHT_PER_COLUMN,
    )
    remedy = fixed_remedy("a masked or encrypted sum among parties that do not pool what they hold")

    def score(self, pair: RealIdealPair) -> Score:
        sums = pair.job.protocol.sum
        assert isinstance(sums, TreeSum)
        names = [pair.active.name, *(party.name for party in pair.passives)]
        trees = sums.trees(len(names))
        shares = [len(recovered(pair.real_run[1], trees, names, {name})) for name in names]
        return Score(max(shares) / len(pair.passives), 0.0, 0.0)


def recovered(
    tape: Recording, trees: tuple[SumTree, SumTree], names: list[str], coalition: Collection[str]
) -> set[str]:
    """Passive parties outside the coalition whose part of the last training sum it recovers, to the last bit."""
    parties = names[1:]
    exchange = len(tape[parties[0]].totals) - 1
    columns = {(kind, name): j for j, (kind, name) in enumerate([(k, n) for k in "vr" for n in parties])}
    rows: list[NDArray[np.float64]] = []
    values: list[Words] = []
    for tree, message in zip(trees, (MaskedPartial, MaskPartial), strict=True):
        for sender, below in _subtrees(tree).items():
            to = tree.target(sender)
            assert to is not None
            held = {names[sender], names[to]} & set(coalition)
            if not held:
                continue
            row = np.zeros(len(columns))
            for party in below:
                for kind in "vr" if message is MaskedPartial else "r":
                    row[columns[kind, names[party]]] = 1
            rows.append(row)
            values.append(_sent(tape, next(iter(held)), names[sender], names[to], message, exchange))
    alone = set()
    for name in set(parties) - set(coalition):
        part = _combine(rows, values, columns["v", name])
        truth = tape[name].totals[exchange].values
        if part is not None and np.array_equal(part, to_residues(truth, Reals(), len(parties)).ravel()):
            alone.add(name)
    return alone


def _subtrees(tree: SumTree) -> dict[int, frozenset[int]]:
    """Map each sender to the parties whose values its message adds up; the root adds nothing of its own."""
    below = {party: frozenset({party}) - {tree.root} for party in tree.parties}
    sent = {}
    for level in tree.levels:
        for sender, to in level:
            sent[sender] = below[sender]
            below[to] |= below[sender]
    return sent


def _sent(tape: Recording, holder: str, sender: str, to: str, message: type[Message], exchange: int) -> Words:
    """Return the residues of the message of this exchange from `sender` to `to`, as `holder` saw it."""
    direction, peer = ("send", to) if holder == sender else ("recv", sender)
    seen = [
        event.message
        for event in tape[holder].events
        if event.direction == direction and event.peer == peer and type(event.message) is message
    ]
    return np.frombuffer(getattr(seen[exchange], "residues"), "<u8")  # noqa: B009


def _combine(rows: list[NDArray[np.float64]], values: list[Words], column: int) -> Words | None:
    """Express the unknown `column` as a combination of equations with integer weights; None if there is none."""
    if not rows:
        return None
    A, unit = np.array(rows), np.eye(len(rows[0]))[column]
    weights = np.rint(np.linalg.lstsq(A.T, unit)[0])
    if not np.allclose(weights @ A, unit):
        return None
    total = np.zeros_like(values[0])
    for weight, value in zip(weights, values, strict=True):
        total = total + np.uint64(int(weight) % 2**64) * value
    return total

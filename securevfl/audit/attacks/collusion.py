"""Summands of single parties, from messages that colluding parties pool in a sum over two trees (FDSKL, section 4).

In a sum over two trees, party j adds a mask r_j to its summand v_j. Every message of the tree T1 is a sum of v_j + r_j
over the sender's subtree; every message of T2 is a sum of r_j. A coalition, a set of parties that pool their knowledge,
knows the messages that its members sent and received. So it has linear equations over the integers about the v and r of
all parties. The attack looks for a combination with integer weights that leaves a single v_l, and evaluates it on the
residues in the messages. It does not use the theory of coalitions, so its score is a test of that theory.

In a job, each single party attacks the last sum of the training.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.attacks.base import WEIGHT_PER_COLUMN, Attack, AttackerRole, Score, fixed_remedy
from securevfl.audit.recording.party_recording import Recording
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.crypto.sum_trees import SumTree
from securevfl.protocols.number_spaces import Reals
from securevfl.protocols.sums.residue_sums import to_residues
from securevfl.protocols.sums.tree_sum import MaskedPartial, MaskPartial, TreeSum
from securevfl.runtime.codec import Message

Words = NDArray[np.uint64]


class Collusion(Attack):
    """Recovers the summands of single parties in the last sum over two trees."""

    name = "collusion"
    paper = "Gu et al. 2020, federated doubly stochastic kernel learning for vertically partitioned data, section 4"
    measures = "largest share of the others' parts that a single party recovers exactly"
    attacker_role = AttackerRole.ANY
    requirements = (
        (lambda job: isinstance(job.protocol.sum, TreeSum), "the job sums over no trees"),
        WEIGHT_PER_COLUMN,
    )
    remedy = fixed_remedy("a masked or encrypted sum among parties that do not collude")

    def score(self, pair: RealIdealPair) -> Score:
        """Return the largest share of the other parties' summands that a single party recovers."""
        sums = pair.job.protocol.sum
        assert isinstance(sums, TreeSum)
        names = [pair.active.name, *(party.name for party in pair.passives)]
        trees = sums.trees(len(names))
        counts = [len(recovered_parts(pair.real_run[1], trees, names, {name})) for name in names]
        return Score(max(counts) / len(pair.passives), 0.0, 0.0)


def recovered_parts(
    recording: Recording, trees: tuple[SumTree, SumTree], names: list[str], coalition: Collection[str]
) -> set[str]:
    """Return the passive parties outside a coalition whose summand in the last sum the coalition recovers exactly.

    Args:
        recording: the recording of the run.
        trees: the two trees of the sum.
        names: names of the parties, in the order of the trees; the first one is the active party.
        coalition: names of the colluding parties.

    Returns:
        Names of parties.
    """
    parties = names[1:]
    exchange = len(recording[parties[0]].sums) - 1
    columns = {(kind, name): j for j, (kind, name) in enumerate([(k, n) for k in "vr" for n in parties])}
    rows: list[NDArray[np.float64]] = []
    values: list[Words] = []
    for tree, message in zip(trees, (MaskedPartial, MaskPartial), strict=True):
        for sender, below in _subtrees(tree).items():
            receiver = tree.target(sender)
            assert receiver is not None
            observers = {names[sender], names[receiver]} & set(coalition)
            if not observers:
                continue
            row = np.zeros(len(columns))
            for party in below:
                for kind in "vr" if message is MaskedPartial else "r":
                    row[columns[kind, names[party]]] = 1
            rows.append(row)
            values.append(_residues(recording, min(observers), names[sender], names[receiver], message, exchange))
    recovered = set()
    for name in set(parties) - set(coalition):
        part = _combine(rows, values, columns["v", name])
        truth = recording[name].sums[exchange].values
        if part is not None and np.array_equal(part, to_residues(truth, Reals(), len(parties)).ravel()):
            recovered.add(name)
    return recovered


def _subtrees(tree: SumTree) -> dict[int, frozenset[int]]:
    """Return, for each sender, the parties whose summands or masks its message adds up; the root has neither."""
    below = {party: frozenset({party}) - {tree.root} for party in tree.parties}
    subtrees = {}
    for level in tree.levels:
        for sender, receiver in level:
            subtrees[sender] = below[sender]
            below[receiver] |= below[sender]
    return subtrees


def _residues(
    recording: Recording, observer: str, sender: str, receiver: str, message: type[Message], exchange: int
) -> Words:
    """Return the residues (numbers modulo 2^bits) of one message, as `observer` (its sender or receiver) saw it."""
    direction, peer = ("send", receiver) if observer == sender else ("recv", sender)
    messages = [
        event.message
        for event in recording[observer].events
        if event.direction == direction and event.peer == peer and type(event.message) is message
    ]
    return np.frombuffer(getattr(messages[exchange], "residues"), "<u8")  # noqa: B009


def _combine(rows: list[NDArray[np.float64]], values: list[Words], column: int) -> Words | None:
    """Compute one unknown as a combination of equations with integer weights.

    Args:
        rows: the coefficients of each equation.
        values: the right-hand side of each equation, modulo 2^64.
        column: index of the unknown.

    Returns:
        The values of the unknown; None if no such combination exists.
    """
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

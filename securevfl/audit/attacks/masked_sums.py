"""Single parts of a sum over two trees, from what colluding parties hold together (FDSKL, Gu et al. 2020, section 4).

Every message of T1 is a sum of v_j + r_j over the sender's subtree, every message of T2 a sum of r_j. A coalition knows
the messages that its members sent and got, so it has linear equations over the integers in the v and r of all parties.
It looks for a combination with integer weights that leaves one v_l alone, and carries it out on the residues. Nothing
is taken from the theory in `crypto.sum_trees`, which the score is compared with.

For a job, each single party attacks the last sum of the training.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.attacks.base import BY_COLUMN, HIDDEN_PARTS, OFF_SHARES, Attack, By, Score, always
from securevfl.audit.recording.views import Tape, Worlds, by_batch
from securevfl.base.arrays import Floats
from securevfl.crypto.sum_trees import SumTree
from securevfl.families.base import Known
from securevfl.job import Job
from securevfl.protocols.declared import Reals
from securevfl.protocols.sums.sum_masks import to_residues
from securevfl.protocols.sums.tree_sum import MaskedPartial, MaskPartial, TreeSum
from securevfl.runtime.codec import Message

Words = NDArray[np.uint64]

PARALLEL = "the parallel mode, in which all parts move at once"


class Collusion(Attack):
    name = "collusion"
    paper = "Gu et al. 2020, federated doubly stochastic kernel learning for vertically partitioned data, section 4"
    measures = "largest share of the others' parts that a single party recovers exactly"
    by = By.ANYONE
    needs = ((lambda job: isinstance(job.protocol.sum, TreeSum), "no sum over two trees is taken"), BY_COLUMN)
    remedy = always("a masked or encrypted sum among parties that do not pool what they hold")

    def score(self, worlds: Worlds) -> Score:
        sums = worlds.job.protocol.sum
        assert isinstance(sums, TreeSum)
        names = [worlds.active.name, *(party.name for party in worlds.passives)]
        trees = sums.trees(len(names))
        shares = [len(recovered(worlds.real_run[1], trees, names, {name})) for name in names]
        return Score(max(shares) / len(worlds.passives), 0.0, 0.0)


def recovered(tape: Tape, trees: tuple[SumTree, SumTree], names: list[str], coalition: Collection[str]) -> set[str]:
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


def _sent(tape: Tape, holder: str, sender: str, to: str, message: type[Message], exchange: int) -> Words:
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


# A single part from the difference of two sums (Dwork and Roth 2014, section 1.1, differencing).
#
# A sum over parties hides its parts, but two sums over the same rows between which one party alone has moved differ by
# that party's change X_k (theta_k' - theta_k). The sequential mode of FedBCD asks for just such sums: after each
# exchange one party takes its steps. The active party subtracts. The sums are its declared output, so the ideal
# attacker succeeds as well; the remedy is the parallel mode, where all parts move at once.


class Differencing(Attack):
    name = "differencing"
    paper = "Dwork and Roth 2014, the algorithmic foundations of differential privacy, section 1.1"
    measures = "mean |correlation| of the difference of two sums with the change of one party's part"
    needs = (
        OFF_SHARES,
        (lambda job: not job.method.stores, "differences of stored sums are attacked as columns received"),
        HIDDEN_PARTS,
        BY_COLUMN,
    )

    def remedy(self, job: Job, known: Known, attacker: str) -> str:
        if job.optimizer.exchanges([party.name for party in known.parties[1:]]) > 1:
            return PARALLEL
        return "more parties in the sum: it is in what the sum itself tells, and one part outweighs the others"

    def score(self, worlds: Worlds) -> Score:
        names = [party.name for party in worlds.passives]
        real, ideal = (
            _correlation(tape, worlds.active.name, names) for tape in (worlds.real_run[1], worlds.ideal_run[1])
        )
        rows = worlds.schedule.smallest_batch
        return Score(real, ideal, float(np.sqrt(2 / (np.pi * rows))))


def _correlation(tape: Tape, active: str, passives: list[str]) -> float:
    """Correlate the differences of consecutive sums on one batch with the changes of the single party that fits best.

    Only sums within one visit are taken, if there are any.
    """
    sums = by_batch(tape[active].totals)
    parts = [by_batch(tape[name].totals) for name in passives]
    within: list[float] = []
    between: list[float] = []
    for index, totals in sums.items():
        for i, (before, after) in enumerate(pairwise(totals)):
            seen = (after.values - before.values).ravel()
            moved = [(part[index][i + 1].values - part[index][i].values).ravel() for part in parts]
            if np.any(seen):
                cosines = within if before.visit == after.visit else between
                cosines.append(max((_cosine(seen, change) for change in moved), default=0.0))
    return float(np.mean(within or between)) if within or between else 0.0


def _cosine(a: Floats, b: Floats) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return abs(float(a @ b)) / size if size > 0 else 0.0


# A single part of a sum, to the last bit, where parties take their steps in turn (FedBCD 2019, sequential mode).
#
# In the first visit all passive parties start from zero weights. Between two exchanges one of them takes its steps, so
# the difference of two consecutive sums is that party's part, whatever hides the parts in each sum. In later visits the
# difference is that party's change, and a later difference adds to it; `differencing` measures those. The party that
# moves last in a visit is seen together with all that happens before the next one.


EXACT = 1e-6  # relative error from which a part counts as found


class FirstDifference(Attack):
    name = "first_difference"
    paper = "Liu et al. 2019, FedBCD, sequential mode; Dwork and Roth 2014, section 1.1, differencing"
    measures = "share of the passive parties whose first part is the difference of two sums"
    beyond = 0.0
    needs = (
        (lambda job: job.optimizer.exchanges(("one", "two")) > 1, "all parties move at once"),
        HIDDEN_PARTS,
        BY_COLUMN,
    )
    remedy = always(PARALLEL)

    def score(self, worlds: Worlds) -> Score:
        real, ideal = (_share_found(worlds, tape) for tape in (worlds.real_run[1], worlds.ideal_run[1]))
        return Score(real[0], ideal[0], 0.0, real[1])


def _share_found(worlds: Worlds, tape: Tape) -> tuple[float, str]:
    """Share of the passive parties, and in words whose part and how exactly."""
    names = [party.name for party in worlds.passives]
    first = [total.values for total in tape[worlds.active.name].totals if total.visit == 0]
    errors: dict[str, float] = {}
    for place, (before, after) in enumerate(pairwise(first)):
        name = names[place]
        part = [total.values for total in tape[name].totals if total.visit == 0][place + 1]
        size = float(np.linalg.norm(part))
        error = float(np.linalg.norm(after - before - part)) / size if size > 0 else np.inf
        if error < EXACT:
            errors[name] = error
    if not errors:
        return 0.0, ""
    return len(errors) / len(names), f"part of {', '.join(errors)}, off by {max(errors.values()):.0e} at most"

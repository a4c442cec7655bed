"""Joint prediction: the parties compute the model's outputs on m rows that all of them have.

Every party k computes its forward outputs H_k (m, c) from its columns; c is the number of model outputs per row. The
active party, which has the labels, learns f = sum_k H_k, or what its network computes from this sum. Passive parties,
which have only columns, learn nothing.

1. passive k -> active   H_k as its summand, by the job's sum protocol
   active                adds its H, or passes the sum to its network, and obtains f (m, c)

If a party requests scores of new rows, other parties may refuse some of them; `ScoreResult` has the state of each row.
A sum protocol may disclose more than the sum; its declarations state that. Rows are processed in blocks, so that a
table of any length fits in memory and in messages of limited size. Reason codes name the columns that affect a row's
score most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats, RowSlices
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums.base import SumRole

ROWS_PER_MESSAGE = 65_536


class ScoringPart(Protocol):
    """The interface of one party's part of the model that joint prediction needs."""

    def forward(self, X: Floats) -> Floats:
        """Return the party's forward outputs on the rows X."""

    def combine(self, X: Floats, others: Floats) -> Floats:
        """Return f (m, c) at the active party, from its columns X and the sum of all other parties' outputs."""


@dataclass(frozen=True)
class RowsToScore:
    """New rows for which scores are requested.

    Attributes:
        ids: digests of the rows' ids.
        raw: this party's columns (m, d) before scaling.
        barred: True for rows (m,) about which this party discloses nothing; None if there are no such rows.
    """

    ids: Sequence[bytes]
    raw: Floats
    barred: NDArray[np.bool_] | None = None


RowState = Literal["scored", "trained", "changed", "refused", "beyond", "unknown"]
"""State of a requested row.

scored: it has a score. trained: it was a training row. changed: it was requested before with other columns. refused:
another party refuses it. beyond: its score is outside the covered range. unknown: not all parties have its id.
"""


@dataclass(frozen=True)
class ScoreResult:
    """The result of one request for the scores of m rows, at any party and in any step of the request.

    Attributes:
        f: decision values (m, c), nan for rows without a score and infinite for scores beyond the covered range; None
            at a party that receives no scores.
        scored: whether the parties have agreed to score each row (m,); at the requesting party, whether it received a
            score.
        fresh: whether that score was computed now, not repeated from an earlier request (m,).
        trained: whether the model was trained on the row (m,), as far as the requesting party knows.
        changed: whether the requesting party has already requested the row with other columns (m,).
        known: whether all parties have the row (m,).
        reasons: reason codes of each row, empty for rows without codes, by name of the party that provides them.
    """

    f: Floats | None
    scored: NDArray[np.bool_]
    fresh: NDArray[np.bool_]
    trained: NDArray[np.bool_]
    changed: NDArray[np.bool_]
    known: NDArray[np.bool_]
    reasons: Mapping[str, list[list[str]]] = field(default_factory=dict)

    @classmethod
    def of(cls, f: Floats | None, scored: NDArray[np.bool_], fresh: NDArray[np.bool_] | None = None) -> ScoreResult:
        """Return the result of rows that all parties have, and that were neither trained on nor requested before."""
        nothing = np.zeros(len(scored), np.bool_)
        return cls(f, scored, scored if fresh is None else fresh, nothing, nothing, ~nothing)

    @classmethod
    def of_all(cls, rows: int, f: Floats | None) -> ScoreResult:
        """Return the result of a request in which all rows were scored."""
        return cls.of(f, np.ones(rows, np.bool_))

    @property
    def states(self) -> list[RowState]:
        """State of each row, as far as this party can tell."""
        states = np.full(len(self.scored), "refused", dtype=object)
        states[~self.known] = "unknown"
        if self.f is not None:
            states[np.isinf(self.f).any(axis=1)] = "beyond"
        states[self.scored] = "scored"
        states[self.changed] = "changed"
        states[self.trained] = "trained"
        return list(states)

    @classmethod
    def joined(cls, results: Sequence[ScoreResult]) -> ScoreResult:
        """Return the result of consecutive blocks of rows as one result, without reason codes."""
        values = [result.f for result in results if result.f is not None]
        masks: dict[str, Any] = {name: np.concatenate([getattr(result, name) for result in results]) for name in _MASKS}
        return cls(np.concatenate(values) if values else None, **masks)

    def updated(self, rows: NDArray[np.intp], other: ScoreResult) -> ScoreResult:
        """Return this result with the rows (k,) replaced by those of another result, which has k rows."""
        masks: dict[str, Any] = {name: getattr(self, name).copy() for name in _MASKS}
        for name, mask in masks.items():
            mask[rows] = getattr(other, name)
        f = None if self.f is None else self.f.copy()
        if f is not None and other.f is not None:
            f[rows] = other.f
        reasons = {name: list(codes) for name, codes in self.reasons.items()}
        for name, codes in other.reasons.items():
            party_codes = reasons.setdefault(name, [[] for _ in self.scored])
            for row, row_codes in zip(rows.tolist(), codes, strict=True):
                party_codes[row] = row_codes
        return ScoreResult(f, **masks, reasons=reasons)


_MASKS = ("scored", "fresh", "trained", "changed", "known")


def predict(
    context: PartyContext,
    sums: SumRole,
    part: ScoringPart,
    rows: RowSlices,
    outputs: int,
    sanitize: Callable[[Floats, slice], Floats] = lambda H, block: H,
) -> Floats | None:
    """Compute the model's outputs on m rows. All parties call this function at the same point of a run.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        sums: runs this party's side of the sum protocol, as collector or contributor.
        part: this party's part of the model, which computes H_k from its columns.
        rows: this party's columns of the m rows.
        outputs: number of final outputs per row.
        sanitize: returns this party's outputs on a block of rows as the party may send them, for example rounded.

    Returns:
        The outputs (m, outputs) at the active party, None at all others.
    """
    f = np.empty((len(rows), outputs))
    for start in range(0, len(rows), ROWS_PER_MESSAGE):
        block = slice(start, min(start + ROWS_PER_MESSAGE, len(rows)))
        if context.me == context.active:
            others = sums.collect((block.stop - start, context.outputs), context.reals)  # step 1
            f[block] = part.combine(rows[block], others)
        else:
            sums.contribute(sanitize(part.forward(rows[block]), block), context.reals)  # step 1
    return f if context.me == context.active else None

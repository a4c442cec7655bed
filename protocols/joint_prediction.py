"""Joint prediction: f = sum_k H_k on rows that all parties have; only the active party learns f.

1. passive k -> active   its part of the sum, by the job's sum protocol
   active                adds its H, or passes the sum to a model on top of it, and obtains f (m x c)

The declarations of the sum protocol state what the active party learns in addition to f. Rows are processed in blocks,
so that a table of any length fits in memory and in a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats, RowSlices
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums.base import SumRole

ROWS_PER_MESSAGE = 65_536


class ScoringPart(Protocol):
    """One party's part of the model, as joint prediction uses it."""

    def forward(self, X: Floats) -> Floats:
        """Return the party's forward outputs on the rows X."""

    def combine(self, X: Floats, others: Floats) -> Floats:
        """Return f from the rows X and the sum of all other parties' outputs; only at the active party."""


@dataclass(frozen=True)
class RowsToScore:
    """New rows for which scores are requested.

    Attributes:
        ids: digests of the rows' ids.
        raw: this party's columns (m x d) before scaling.
        barred: the rows (m,) about which this party discloses nothing; None if there are none.
    """

    ids: Sequence[bytes]
    raw: Floats
    barred: NDArray[np.bool_] | None = None


def predict(
    context: PartyContext,
    sums: SumRole,
    part: ScoringPart,
    rows: RowSlices,
    outputs: int,
    sanitize: Callable[[Floats, slice], Floats] = lambda H, block: H,
) -> Floats | None:
    """Compute f on m rows. All parties call this function at the same point of a run.

    Args:
        context: this party's context.
        sums: this party's role in the sum.
        part: this party's part of the model.
        rows: this party's columns of the rows.
        outputs: number of columns of f.
        sanitize: returns the outputs of a block of rows as they may be sent, for example rounded.

    Returns:
        f (m x outputs) at the active party, None at all others.
    """
    f = np.empty((len(rows), outputs))
    for start in range(0, len(rows), ROWS_PER_MESSAGE):
        block = slice(start, min(start + ROWS_PER_MESSAGE, len(rows)))
        if context.me == context.active:
            others = sums.collect((block.stop - start, context.outputs), context.reals)  # 1
            f[block] = part.combine(rows[block], others)
        else:
            sums.contribute(sanitize(part.forward(rows[block]), block), context.reals)  # 1
    return f if context.me == context.active else None

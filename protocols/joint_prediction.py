"""Joint prediction: f = sum_k H_k on rows that all parties have, told to the active party alone.

1. passive k -> active   its part of the sum, as the job's sum protocol sends it
   active                adds its own H, or feeds a model of its own with it, and sees f (m x c)

What the active party learns beyond f is what the sum protocol declares. Rows go in blocks, so that a table of any
length fits in memory and in a frame.
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

BLOCK = 65_536  # rows a message


class ScoringPart(Protocol):
    """One party's part of the model: its own numbers a row, and at the active party f from those of all others."""

    def forward(self, X: Floats) -> Floats: ...

    def combine(self, X: Floats, others: Floats) -> Floats: ...


@dataclass(frozen=True)
class RowsToScore:
    """New rows that are asked about: digests of their ids, and this party's columns (m x d) before any scaling. barred:
    those (m,) of which this party tells nothing."""

    ids: Sequence[bytes]
    raw: Floats
    barred: NDArray[np.bool_] | None = None


def predict(
    context: PartyContext,
    sums: SumRole,
    part: ScoringPart,
    rows: RowSlices,
    outputs: int,
    shown: Callable[[Floats, slice], Floats] = lambda H, block: H,
) -> Floats | None:
    """f (m x outputs) on m rows at the active party, None elsewhere. All parties call it at the same point.

    shown: this party's numbers of a block of these rows as they may be sent.
    """
    f = np.empty((len(rows), outputs))
    for start in range(0, len(rows), BLOCK):
        block = slice(start, min(start + BLOCK, len(rows)))
        if context.me == context.active:
            f[block] = part.combine(
                rows[block], sums.collect((block.stop - start, context.outputs), context.reals)
            )  # 1
        else:
            sums.contribute(shown(part.forward(rows[block]), block), context.reals)  # 1
    return f if context.me == context.active else None

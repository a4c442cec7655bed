"""Joint prediction: f = sum_k H_k on rows that all parties have, told to the active party alone.

1. passive k -> active   its part of the sum, as the job's sum protocol sends it
   active                adds its own H, or feeds a model of its own with it, and sees f (m x c)

What the active party learns beyond f is what the sum protocol declares. Rows go in blocks, so that a table of any
length fits in memory and in a frame.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from securevfl.crypto.scheme import Floats
from securevfl.protocols.base import Reals, SumRole

BLOCK = 65_536  # rows a message


def predict_active(
    sums: SumRole, joined: Callable[[slice, Floats], Floats], rows: int, outputs: int, *, collected: int
) -> Floats:
    """f (rows x outputs). `joined` gives it on a slice of the rows, of what was collected: so many numbers a row."""
    f = np.empty((rows, outputs))
    for block in _blocks(rows):
        f[block] = joined(block, sums.collect_all((block.stop - block.start, collected), Reals()))  # 1
    return f


def predict_passive(sums: SumRole, forward: Callable[[slice], Floats], rows: int) -> None:
    """A passive party's side of `predict_active`."""
    for block in _blocks(rows):
        sums.contribute(forward(block), Reals())  # 1


def _blocks(rows: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, rows)) for start in range(0, rows, BLOCK)]

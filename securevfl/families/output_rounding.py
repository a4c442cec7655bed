"""H as a party without labels sends it up where residuals come down sealed: rounded, by a dither that it keeps.

A key holder that deviates may move each value that it opens by as much as the checks let through (docs/proof.md).
Under a sealed g of zeros nothing else moves, so a change of H from one exchange to the next would be a raw column of
its choice, however small it is, and the changes of all exchanges of a run add up in the weights. So H goes up as a
multiple of s, rounded down after a number below s was added that is secret, uniform, and the same for one row in all
exchanges of a run: H shows by how many steps a row has moved and no more, whoever asks how often. A fresh dither each
time would be averaged away.

    s = the power of two at or below min(1/8, 1.26 n^(-1/4)), n the training rows

The mean of what is sent is H. Rounding acts as noise of deviation s / sqrt(6) in f at most: for logistic loss it
moves weights by 0.03 standard errors at n <= 10,000 and less beyond, and shrinks them by 0.15 s^2 / 6. Labels that
follow f closely show more of it: at 3,000 rows it moves weights of counts of 2 in the mean by 0.5 standard errors,
and of counts of 100,000 by 150, whose standard errors are 1e-4 of a deviation (`tests/models/test_right_numbers.py`).
"""

from __future__ import annotations

import math

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.key_derivation import derive_key
from securevfl.crypto.prg import Prg
from securevfl.crypto.secret import Secret
from securevfl.data.schedule import Rows

MAX_OUTPUT_STEP = 0.125

STEP_FOR_ONE_ROW = 1.26  # what s would be at one row


def output_step(rows: int) -> float:
    """Return s for a training of so many rows."""
    return float(2.0 ** math.floor(math.log2(min(MAX_OUTPUT_STEP, STEP_FOR_ONE_ROW * rows**-0.25))))


class RoundedOutputs(Secret):
    """The rounding of one party's H in one run, by row of its table."""

    __slots__ = ("_below", "_step")

    def __init__(self, key: bytes, rows: int, outputs: int, step: float) -> None:
        """key: of the run, kept with this party's states. rows: of the whole table. step: s."""
        words = Prg(derive_key(key, "dither of outputs"), "outputs").array((rows, outputs), np.uint16)
        self._below, self._step = words, step

    def __call__(self, H: Floats, rows: Rows) -> Floats:
        """H (n x c) of these rows, rounded."""
        below = (self._below[rows] + 0.5) * 2.0**-16
        return np.floor(H / self._step + below) * self._step

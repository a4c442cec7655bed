"""Random rounding of the outputs H that a party without labels sends if residuals are encrypted.

A malicious key holder, the party that decrypts, can shift each value that it decrypts by as much as the checks allow
(docs/proof.md), and thereby change another party's weights. If it sends residuals of zero, nothing else changes them.
The change of H between two exchanges would then equal a linear map of that party's columns that the key holder chose,
however small the shift; shifts of all exchanges add up. Therefore a party sends H as a multiple of a step s: it adds a
secret dither below s and rounds down. The dither of a row is uniform and is the same in all exchanges of a run, so H
reveals only by how many steps a row has moved, no matter how often the row is requested. A fresh dither for each
exchange could be averaged out.

    s = the largest power of two that is at most min(1/8, 1.26 * n^(-1/4)), with n training rows

The rounded H has the mean H. Rounding acts as noise in the sum f of all parties' outputs, with a standard deviation of
at most s / sqrt(6). For logistic loss it moves weights by 0.03 standard errors at n <= 10,000 and by less for larger n,
and it shrinks them by a factor of 0.15 * s^2 / 6. The more closely labels follow f, the larger the effect: at 3,000
rows, weights move by 0.5 standard errors for counts with a mean of 2, and by 150 standard errors (1e-4 standard
deviations each) for counts with a mean of 100,000 (`tests/models/test_right_numbers.py`).
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
STEP_FOR_ONE_ROW = 1.26


def output_step(rows: int) -> float:
    """Return the rounding step s of a training on `rows` rows."""
    return float(2.0 ** math.floor(math.log2(min(MAX_OUTPUT_STEP, STEP_FOR_ONE_ROW * rows**-0.25))))


class RoundedOutputs(Secret):
    """Rounds the outputs of one party in one run, with one secret random number (dither) for each row and output.

    Args:
        key: the party's secret key of the run, which determines the dithers; it is stored in its checkpoints.
        rows: number of rows of the table.
        outputs: c, number of outputs of a row.
        step: s, the rounding step.
    """

    __slots__ = ("_dither", "_step")

    def __init__(self, key: bytes, rows: int, outputs: int, step: float) -> None:
        self._dither = Prg(derive_key(key, "dither of outputs"), "outputs").array((rows, outputs), np.uint16)
        self._step = step

    def __call__(self, H: Floats, rows: Rows) -> Floats:
        """Round the outputs H (n, c) of these rows of the table."""
        dither = (self._dither[rows] + 0.5) * 2.0**-16
        return np.floor(H / self._step + dither) * self._step

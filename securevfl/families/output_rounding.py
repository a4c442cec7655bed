"""Random rounding of the outputs H that a party without labels sends if residuals are encrypted.

A malicious *key holder*, the party that decrypts, can shift decrypted values a little (docs/proof.md) and thereby
change another party's weights by a known amount. The change of that party's H between two exchanges would then be a
linear map of its columns that the key holder chose. So a party sends H as a multiple of a step s: it adds a secret
*dither*, a number below s that is the same for a row in all exchanges, and rounds down. H then reveals only by how many
steps a row has moved. A fresh dither in each exchange could be averaged out.

    s = the largest power of two that is at most min(1/8, 1.26 * n^(-1/4)), with n training rows

The rounded H has the mean H. It acts as noise in the sum f of all outputs, of standard deviation s / sqrt(6) at most.
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

"""The look-up tables of residuals of one batch, at the party with labels: one table for each distinct label.

A residual g is the derivative of a row's loss by its forward sum f, the model's output. A table lists g at 2^b equally
spaced values of f, for one label ("target"). The protocol reads an entry for every row, at an index that no party
knows; the mean over its random index equals linear interpolation between the entries. f_g is the number of fractional
bits of a residual.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import Integers
from securevfl.errors import RangeError
from securevfl.protocols.shares.fixed_point import FixedPointEncoding, table_distances
from securevfl.protocols.shares.projection import projected

_DITHER_BITS = 16  # additional fractional bits of stored entries, which random rounding removes
_MAX_TARGETS_PER_CHUNK = 4096
_MAX_ENTRIES_PER_CHUNK = 2**18
_UNCLIPPED_RANGE = 1.0  # residuals at forward sums from -1 to 1 must fit into an entry without clipping


class ResidualTables:
    """The tables of one batch. Rows with the same target use the same table.

    Args:
        encoding: the agreed fixed-point encoding.
        residual: computes residuals (n, 1) from forward sums (n, 1) and targets (n, k).
        y: the targets (n, k) of the rows of the batch.
        minimizer: computes the forward sums of least loss (n, 1) from targets (n, k); each table is centred between 0
            and this sum. By default it returns 0.
        smooth: whether the residual has a continuous derivative and is not linear in f. Entries are then the
            coefficients of its projection on linear splines (`projection`), so that interpolation has no bias.
            Otherwise they are values of the residual.
    """

    def __init__(
        self,
        encoding: FixedPointEncoding,
        residual: Callable[[Floats, Floats], Floats],
        y: Floats,
        minimizer: Callable[[Floats], Floats] = np.zeros_like,
        *,
        smooth: bool = False,
    ) -> None:
        targets, table_of_row = np.unique(y, axis=0, return_inverse=True)
        size = max(1, min(_MAX_TARGETS_PER_CHUNK, _MAX_ENTRIES_PER_CHUNK // encoding.entries))
        chunks = (targets[start : start + size] for start in range(0, len(targets), size))
        self._tables = np.concatenate(
            [
                self._compute(encoding, residual, chunk, encoding.table_centres(minimizer(chunk)), smooth)
                for chunk in chunks
            ]
        )
        self._start = table_of_row.astype(np.int32) << encoding.table_bits
        self._encoding = encoding

    @staticmethod
    def _compute(
        encoding: FixedPointEncoding,
        residual: Callable[[Floats, Floats], Floats],
        targets: Floats,
        centres: Floats,
        smooth: bool,
    ) -> NDArray[np.int32]:
        """Return the concatenated tables of m targets (m, k), centred at the forward sums `centres` (m,)."""
        knots = (table_distances(encoding.knots, centres) + centres).T
        f = knots.reshape(-1, 1)
        if smooth:
            spacing, first = 2.0**encoding.step, knots.min(axis=1)
            coefficients = projected(residual, targets, first, encoding.entries, spacing)
            positions = np.rint((knots - first[:, None]) / spacing).astype(np.intp)
            g = np.take_along_axis(coefficients, positions, axis=1).reshape(-1)
        else:
            g = residual(f, np.repeat(targets, encoding.entries, axis=0))[:, 0]
        limit = (2**31 - 2**_DITHER_BITS - 1) * 2.0 ** -(encoding.f_g + _DITHER_BITS)
        if np.abs(g[np.abs(f[:, 0]) <= _UNCLIPPED_RANGE]).max() > limit:  # all other entries may be clipped
            raise RangeError(
                "shares: some labels are too far from their mean; the derivative of their loss exceeds "
                f"{2.0 ** (15 - encoding.f_g):g}",
                "trim the labels, or train on their logarithm",
                code="SVFL-LABEL-RANGE",
            )
        return np.rint(np.ldexp(np.clip(g, -limit, limit), encoding.f_g + _DITHER_BITS)).astype(np.int32)

    def entries(self, indices: NDArray[np.uint8], prg: Prg, first: int = 0) -> Integers:
        """Return the tables of n consecutive rows, each rotated to start at an index, and rounded at random.

        Args:
            indices: for each row (n,), the index of the entry that comes first.
            prg: the generator of the random rounding.
            first: the number of the first row in the batch.

        Returns:
            The entries (2^b, n). Entry [j, i] is the table of row `first + i` at `indices[i] + j`, modulo 2^b.
        """
        encoding = self._encoding
        dither = prg.array(len(indices), np.uint16).astype(np.int32)
        rotated = np.arange(encoding.entries, dtype=np.uint8)[:, None] + indices
        rotated &= np.uint8(encoding.entries - 1)
        values = np.take(self._tables, rotated + self._start[first : first + len(indices)])
        values += dither
        values >>= _DITHER_BITS
        return values.astype(np.int64)

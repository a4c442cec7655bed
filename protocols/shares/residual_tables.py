"""The look-up tables of residuals of one batch, at the party with labels: one table for each distinct label."""

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

_DITHER_BITS = 16  # bits below f_g that random rounding uses
_MAX_TARGETS_PER_CHUNK = 4096
_MAX_ENTRIES_PER_CHUNK = 2**18
_UNCLIPPED_RANGE = 1.0  # no residual of a sum within this range may be clipped


class ResidualTables:
    """The tables of one batch: the residual g at each entry, for the label of each row.

    There is one table for every distinct target.

    Args:
        encoding: the agreed fixed-point encoding.
        residual: g (n, 1) of outputs f (n, 1) and targets y (n, k), elementwise.
        y: the targets of the rows of the batch (n, k).
        minimizer: the output of least loss (n, 1) of targets (n, k), at which their tables are centred; 0 by
            default.
        smooth: True if g has a continuous derivative and is not linear. Entries are then the coefficients of its
            projection on linear splines (`projection`), so that interpolation has no bias. Otherwise they are
            values of g.
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
        """Return the concatenated tables of targets (m, k), centred at m outputs."""
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
        if np.abs(g[np.abs(f[:, 0]) <= _UNCLIPPED_RANGE]).max() > limit:  # entries further out are clipped
            raise RangeError(
                f"shares: labels are too far from their mean; residuals exceed {2.0 ** (15 - encoding.f_g):g}",
                "trim the labels, or train on their logarithm",
                code="SVFL-LABEL-RANGE",
            )
        return np.rint(np.ldexp(np.clip(g, -limit, limit), encoding.f_g + _DITHER_BITS)).astype(np.int32)

    def entries(self, indices: NDArray[np.uint8], prg: Prg, first: int = 0) -> Integers:
        """Return table entries, rounded at random by the next stream of `prg`.

        Args:
            indices: an index (n,) for each of the rows `first` to `first + n`.
            prg: the generator of the rounding.
            first: the first row.

        Returns:
            The entries (2^b, n): entry j belongs to the index plus j, modulo 2^b.
        """
        encoding = self._encoding
        dither = prg.array(len(indices), np.uint16).astype(np.int32)
        rotated = np.arange(encoding.entries, dtype=np.uint8)[:, None] + indices
        rotated &= np.uint8(encoding.entries - 1)
        values = np.take(self._tables, rotated + self._start[first : first + len(indices)])
        values += dither
        values >>= _DITHER_BITS
        return values.astype(np.int64)

"""Tables of residuals by the label of each row, at the party with the labels."""

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

_DITHER = 16  # bits below f_g that random rounding looks at

_AT_ONCE = 4096  # targets whose tables are made at a time

_ENTRIES_AT_ONCE = 2**18  # entries of these tables

_NEAR = 1.0  # sums at which no residual is cut off


class ResidualTables:
    """The tables of one batch: what g is at each entry, for the label of each row. At the party with the labels."""

    def __init__(
        self,
        numbers: FixedPointEncoding,
        residual: Callable[[Floats, Floats], Floats],
        y: Floats,
        least: Callable[[Floats], Floats] = np.zeros_like,
        *,
        smooth: bool = False,
    ) -> None:
        """Compute the table of every distinct target.

        Args:
            numbers: the agreed sizes.
            residual: g (n, 1) of outputs f (n, 1) and targets y (n, k), elementwise.
            y: the targets of the rows of the batch (n, k).
            least: the output of least loss (n, 1) of targets (n, k), by which their tables are centred; 0 by default.
            smooth: True if g has a continuous derivative and is not linear. Entries are then the coefficients of its
                projection on linear splines (`projection`), so that what is read has no bias. Otherwise they are
                values of g.
        """
        targets, which = np.unique(y, axis=0, return_inverse=True)
        size = max(1, min(_AT_ONCE, _ENTRIES_AT_ONCE // numbers.entries))
        blocks = (targets[start : start + size] for start in range(0, len(targets), size))
        self._tables = np.concatenate(
            [self._made(numbers, residual, block, numbers.table_centres(least(block)), smooth) for block in blocks]
        )
        self._start = which.astype(np.int32) << numbers.table_bits
        self._numbers = numbers

    @staticmethod
    def _made(
        numbers: FixedPointEncoding,
        residual: Callable[[Floats, Floats], Floats],
        targets: Floats,
        centres: Floats,
        smooth: bool,
    ) -> NDArray[np.int32]:
        """Compute the look-up tables of these targets (m, k), centred at m sums, one behind the other."""
        knots = (table_distances(numbers.knots, centres) + centres).T
        f = knots.reshape(-1, 1)
        if smooth:
            spacing, first = 2.0**numbers.step, knots.min(axis=1)
            coefficients = projected(residual, targets, first, numbers.entries, spacing)
            positions = np.rint((knots - first[:, None]) / spacing).astype(np.intp)
            g = np.take_along_axis(coefficients, positions, axis=1).reshape(-1)
        else:
            g = residual(f, np.repeat(targets, numbers.entries, axis=0))[:, 0]
        most = (2**31 - 2**_DITHER - 1) * 2.0 ** -(numbers.f_g + _DITHER)
        if np.abs(g[np.abs(f[:, 0]) <= _NEAR]).max() > most:  # further out entries end there
            raise RangeError(
                f"shares: a table of residuals below {2.0 ** (15 - numbers.f_g):g} was expected, larger ones came, as "
                "labels are too far from their mean; trim them, or train on their logarithm"
            )
        return np.rint(np.ldexp(np.clip(g, -most, most), numbers.f_g + _DITHER)).astype(np.int32)

    def entries(self, at: NDArray[np.uint8], prg: Prg, first: int = 0) -> Integers:
        """g (2^b x n) for j = 0, 1, ..: of row first + r at place at[r] + j, rounded at random by the next stream of
        `prg`."""
        numbers = self._numbers
        dither = prg.array(len(at), np.uint16).astype(np.int32)
        places = np.arange(numbers.entries, dtype=np.uint8)[:, None] + at
        places &= np.uint8(numbers.entries - 1)
        values = np.take(self._tables, places + self._start[first : first + len(at)])
        values += dither
        values >>= _DITHER
        return values.astype(np.int64)

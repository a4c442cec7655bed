"""Look-up tables of the loss's derivative, which the party with labels computes: one table for each distinct label.

In a training on secret shares no party knows a model output f. The gradient needs the *residual* g of each row: the
derivative of the row's loss by f. A table lists g at 2^b equally spaced values of f, for one label ("target"). The
parties read one entry for every row, at an index that no party knows (iteration.py). The entry just below or just above
f is read at random, so that the mean is the linear interpolation between the two. Entries are fixed-point integers with
f_g fractional bits.

Entries are integers modulo 2^L, or shorter numbers of k bits that the parties *lift* to L bits after one was read
(carry_lift.py), which saves traffic. With a lift, an entry is the residual minus the *base*, the least residual of its
table, so that it is between 0 and 2^(k-1) - 1. If the residuals of a table cover a wider range (those of the square
loss can), residuals far from 0 are clipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.batch_cache import BatchCache
from securevfl.crypto.prg import Prg
from securevfl.errors import RangeError
from securevfl.protocols.shares.fixed_point import FixedPointEncoding, table_distances
from securevfl.protocols.shares.projection import projected
from securevfl.protocols.shares.rotated_tables import rotated_tables
from securevfl.protocols.shares.shares_params import RowBlock

_DITHER_BITS = 16  # fractional bits of stored entries beyond those that are sent; random rounding removes them
_MAX_TARGETS_PER_CHUNK = 4096
_MAX_ENTRIES_PER_CHUNK = 2**18
# coefficients of a projection may exceed the bound of residuals by this share of an entry's last bit
_ROUNDING_SLACK = 0.01
_UNCLIPPED_RANGE = 1.0  # residuals at forward sums between -1 and 1 must not be clipped to fit into an entry


class ResidualTables:
    """The tables of one batch. Rows with the same target use the same table.

    Args:
        encoding: the fixed-point encoding of the training (fixed_point.py).
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
        if y.shape[1] == 1:  # sorting numbers takes about a twentieth of the time of sorting rows
            values, table_of_row = np.unique(y[:, 0], return_inverse=True)
            targets = values[:, None]
        else:
            targets, table_of_row = np.unique(y, axis=0, return_inverse=True)
        size = max(1, min(_MAX_TARGETS_PER_CHUNK, _MAX_ENTRIES_PER_CHUNK // encoding.entries))
        chunks = (targets[start : start + size] for start in range(0, len(targets), size))
        computed = [
            self._compute(encoding, residual, chunk, encoding.table_centres(minimizer(chunk)), smooth)
            for chunk in chunks
        ]
        self._tables = np.concatenate([tables for tables, _ in computed])
        self._bases = np.concatenate([bases for _, bases in computed])
        self._table_of_row = table_of_row.astype(np.int32)
        self._encoding = encoding
        self._dtype = {0: np.int64, 8: np.uint8, 16: np.uint16}[encoding.lift_bits]

    @staticmethod
    def _compute(
        encoding: FixedPointEncoding,
        residual: Callable[[Floats, Floats], Floats],
        targets: Floats,
        centres: Floats,
        smooth: bool,
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Compute the tables of m targets, centred at the forward sums `centres`.

        Args:
            encoding: the fixed-point encoding of the training.
            residual: returns the residuals of a loss, from outputs and targets.
            targets: the labels in the encoding of the loss, one for each table (m, k).
            centres: the centre of each table (m,).
            smooth: whether the residual has a continuous derivative and is not linear in the forward sum.

        Returns:
            The m tables, one after the other (m * 2^b,), and the base of each (m,).
        """
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
        # residuals at other forward sums may be clipped
        if np.abs(g[np.abs(f[:, 0]) <= _UNCLIPPED_RANGE]).max() > limit:
            raise _far_labels(encoding)
        if encoding.lift_bits:
            near = (np.abs(f[:, 0]) <= _UNCLIPPED_RANGE).reshape(knots.shape)
            return _above_base(encoding, g.reshape(knots.shape) * encoding.residual_unit, near)
        tables = np.rint(np.ldexp(np.clip(g, -limit, limit), encoding.f_g + _DITHER_BITS)).astype(np.int32)
        return tables, np.zeros(len(targets), np.int64)

    @property
    def nbytes(self) -> int:
        """Memory of the tables, in bytes."""
        return int(self._tables.nbytes + self._bases.nbytes + self._table_of_row.nbytes)

    def bases(self) -> NDArray[np.int64]:
        """Return the base of each row's table (n,): the residual that entry 0 represents; 0 without a lift."""
        return self._bases[self._table_of_row]

    def entries(self, indices: NDArray[np.uint8], prg: Prg, first: int = 0) -> NDArray[Any]:
        """Return the tables of n consecutive rows, each rotated to start at an index, and rounded at random.

        Args:
            indices: for each row (n,), the index of the entry that comes first.
            prg: the pseudorandom generator that rounds entries up or down at random.
            first: the position of the first of the n rows in the batch.

        Returns:
            The entries (n, 2^b), as unsigned integers of k bits if they are lifted. Entry [i, j] is the table of row
            `first + i` at `indices[i] + j`, modulo 2^b.
        """
        entries, table_of_row = self._encoding.entries, self._table_of_row[first : first + len(indices)]
        dither = prg.array(len(indices), np.uint16).astype(np.int32)
        values = rotated_tables(self._tables.reshape(-1, entries), table_of_row, indices & np.uint8(entries - 1))
        values += dither[:, None]
        values >>= _DITHER_BITS
        return values.astype(self._dtype)


class CachedTables:
    """The tables of each block of rows, which are computed when they are first needed.

    Blocks that fit into `max_bytes` stay in memory. The tables of others are computed for each use.

    Args:
        compute: computes the tables of a block.
        max_bytes: the maximum memory of all cached tables, in bytes.
    """

    def __init__(self, compute: Callable[[RowBlock], ResidualTables], max_bytes: int = 1 << 27) -> None:
        self._compute, self._cache = compute, BatchCache(max_bytes)

    def __call__(self, block: RowBlock) -> ResidualTables:
        """Return the tables of a block."""
        cached: ResidualTables | None = self._cache.get(block)
        if cached is not None:
            return cached
        tables = self._compute(block)
        self._cache.put(block, tables)
        return tables


def _above_base(
    encoding: FixedPointEncoding, g: Floats, near: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Subtract the base from each table, so that all entries lie from 0 to 2^(k-1) - 1.

    Args:
        encoding: the fixed-point encoding of the training (fixed_point.py).
        g: the residuals of m tables (m, 2^b), as multiples of the last bit of an entry.
        near: True for the residuals that must not be clipped (m, 2^b).

    Returns:
        The m tables, one after the other (m * 2^b,), and the base of each (m,).

    Raises:
        RangeError: the residuals that must not be clipped do not fit.
    """
    width = 2.0 ** (encoding.lift_bits - 1) - 1
    least, most = g.min(axis=1), g.max(axis=1)
    near_least, near_most = g.min(axis=1, where=near, initial=np.inf), g.max(axis=1, where=near, initial=-np.inf)
    if (np.rint(near_most - near_least) > width).any():
        raise _far_labels(encoding)
    # if a table is too wide, clip the residuals that are farthest from 0, but none that must not be clipped
    window = np.clip(np.clip(-width / 2, least, most - width), near_most - width, near_least)
    bases = np.floor(least + _ROUNDING_SLACK)
    bases = np.where(most - bases <= width + 0.5, bases, np.floor(window))
    entries = np.clip(g - bases[:, None], 0, width)
    return np.rint(np.ldexp(entries, _DITHER_BITS)).astype(np.int32).reshape(-1), bases.astype(np.int64)


def _far_labels(encoding: FixedPointEncoding) -> RangeError:
    return RangeError(
        "shares: some labels are too far from their mean; the derivative of their loss exceeds "
        f"{2.0 ** (15 - encoding.f_g):g}",
        "trim the labels, or train on their logarithm",
        code="SVFL-LABEL-RANGE",
    )

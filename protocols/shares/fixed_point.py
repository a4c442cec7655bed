"""Fixed-point encoding of a training on shares: the public number of bits of every value, and the index of a table.

All values are integers modulo 2^L at public scales, and no scale ever changes:

    columns X                        f_x fractional bits
    steps   W = eta/n X P            f_W = w + ceil(log2(n / eta))
    residuals g                      f_g
    weights theta (sums of W^T g)    f_W + f_g + m     m: fractional bits of an update rule's coefficients
    sums    H = X theta              f_x + f_W + f_g + m

f_W follows from n, eta and public bounds, never from data. Columns arrive clipped and rounded
(`securevfl.data.scaling`); encoding clips and rounds again, which changes nothing of a table's columns. L is rounded up
to whole bytes, and w uses some of the bits gained. If P is about 1 / c, for a loss of curvature c, w starts log2(c)
bits higher. If L would exceed the limit, w shrinks down to three bits and then f_g to seven
(`FixedPointEncoding.finest`). An entry of W has an error of at most 2^-w / sqrt(12) of a column's standard deviation,
independent between rows. The error of W^T g therefore falls with n like the sampling error of n rows, and stays far
below it.

A batch with fewer rows than the largest batch has W at k fewer bits, where 2^k is the ratio of the sizes rounded down,
and its changes are multiplied by 2^k afterwards (`FixedPointEncoding.lift`). Entries of W thus have similar sizes in
all batches.

A table of 2^b entries, spaced 2^step apart, is indexed by the top bits of H modulo 2^b. Of the shares h_A + h_B = H it
uses i_k = floor(h_k / 2^s) modulo 2^b, with s = f_x + f_W + f_g + m + step. A carry out of 2^L vanishes, so nothing
wraps while H is within the table. The label selects the table of a row, so the party with labels centres it where sums
of rows with this label are expected: half way to the sum of least loss, moved by at most a quarter of the table
(`FixedPointEncoding.table_centres`). With 64 entries spaced 1 apart, a class table covers margins y H from -15 to 48. A
larger margin would wrap to a very wrong one, whose step would increase it further; rows with such large correct margins
are common, and rows with such large wrong margins are not.

The ring itself holds sums of four times the size of the table, and at least 64 (`integer_bits`). The highest bits of a
sum therefore show whether it is beyond a table or a quantizer. Batches with very many rows use rings that cover the
table only.

i_A + i_B + 1 is the index of the entry below or above H / 2^s, each with the probability given by the distance to the
other one, because the fractional part of h_A is uniform. This is linear interpolation between the entries, without
bias. Entries are rounded to f_g bits at random in the same way.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.share_ring import Integers, ShareRing, Words
from securevfl.data.scaling import GRID_BITS
from securevfl.errors import ConfigError, RangeError

_MAX_RING_BITS = 56
_MIN_W = 3
_MIN_INTEGER_BITS = 7  # sums up to 64 on either side
_MIN_TOP_BITS = 6
_MIN_RESIDUAL_BITS = 7


@dataclass(frozen=True)
class FixedPointEncoding:
    """The agreed numbers of bits.

    Attributes:
        rows: n of the largest batch.
        rate: the largest step size eta.
        f_x: fractional bits of columns.
        w: bits of W beyond log2(n / eta).
        f_g: fractional bits of residuals.
        m: fractional bits of the update rule's coefficients.
        table_bits: b; a table has 2^b entries.
        step: log2 of the spacing of entries.
        clip: bound of the columns.
        spare: the largest number of bits by which filling L up to whole bytes extends W.
        step_bits: entries of W are clipped to 2^step_bits; None does not clip.
        has_headroom: True if the ring holds larger sums than the table.

    Raises:
        ConfigError: L would exceed 56 bits.
    """

    rows: int
    rate: float
    f_x: int = GRID_BITS
    w: int = 7
    f_g: int = 8
    m: int = 0
    table_bits: int = 6
    step: int = 0
    clip: float = 8.0
    spare: int = 3
    step_bits: int | None = None
    has_headroom: bool = True

    def __post_init__(self) -> None:
        """Check the number of bits."""
        if self.min_bits > _MAX_RING_BITS:
            raise ConfigError(
                f"shares: batches of {self.rows:,} rows need {self.min_bits} bits at this step size, and "
                f"{_MAX_RING_BITS} are available",
                f"set batch_size to at most {self.rows >> self.min_bits - _MAX_RING_BITS:,} rows, raise optimizer.lr, "
                "or reduce protocol.shares.table_bits",
                code="SVFL-JOB-TOO-LARGE",
                rows=self.rows,
                bits=self.min_bits,
            )

    @classmethod
    def finest(cls, rows: int, rate: float, *, curvature: float = 1.0, **sizes: Any) -> FixedPointEncoding:
        """Return the most precise encoding for batches of up to `rows` rows that the ring has bits for.

        Args:
            rows: n of the largest batch.
            rate: the largest step size.
            curvature: a curvature that steps are divided by (`block_descent`). If it is above 1, W is smaller by this
                factor and receives the corresponding bits, as far as there are any.
            **sizes: further attributes of the encoding.

        Returns:
            The encoding.

        Raises:
            ConfigError: even the coarsest encoding has too many bits.
        """
        f_g = sizes.pop("f_g", cls.f_g)
        for w in range(cls.w + math.ceil(math.log2(max(1.0, curvature))), _MIN_W - 1, -1):
            with suppress(ConfigError):
                return cls(rows, rate, w=w, f_g=f_g, **sizes)
        f_g = min(f_g, _MIN_RESIDUAL_BITS)
        with suppress(ConfigError):
            return cls(rows, rate, w=_MIN_W, f_g=f_g, **sizes)
        return cls(rows, rate, w=_MIN_W, f_g=f_g, has_headroom=False, **sizes)

    @property
    def f_w(self) -> int:
        """The number of fractional bits of W."""
        return self._min_f_w + min(self.spare, self.bits - self.min_bits)

    @property
    def _min_f_w(self) -> int:
        return max(0, self.w + math.ceil(math.log2(self.rows / self.rate)))

    @property
    def f_theta(self) -> int:
        """The number of fractional bits of the weights theta."""
        return self.f_w + self.f_g + self.m

    @property
    def shift(self) -> int:
        """s: the number of bits of H below the table's index."""
        return self.f_x + self.f_theta + self.step

    @property
    def integer_bits(self) -> int:
        """The number of bits of a sum above its fraction, including the sign."""
        covered = self.step + self.table_bits
        return max(covered + 2, _MIN_INTEGER_BITS) if self.has_headroom else covered

    @property
    def min_bits(self) -> int:
        """The smallest possible L."""
        return self.f_x + self._min_f_w + self.f_g + self.m + self.integer_bits

    @property
    def bits(self) -> int:
        """L, rounded up to whole bytes."""
        return -(-self.min_bits // 8) * 8

    @property
    def entries(self) -> int:
        """The number of entries of a table."""
        return int(2**self.table_bits)

    @property
    def reach(self) -> float:
        """The largest distance of H from the centre of its table that the table covers on either side."""
        return float((self.entries // 2 - 1) * 2.0**self.step)

    @property
    def knots(self) -> Floats:
        """The model output f at each index of a table (2^b,).

        An index modulo 2^b represents one step more than its value, because the indices of both shares are rounded
        down.
        """
        return _knots(self.table_bits, self.step)

    @property
    def top_bits(self) -> int:
        """The number of the highest bits of a sum that index a table over the whole ring."""
        return max(self.table_bits, _MIN_TOP_BITS)

    @property
    def top_knots(self) -> Floats:
        """The model output f at each index of a table over the whole ring (2^top_bits,)."""
        return _knots(self.top_bits, self.integer_bits - self.top_bits)

    def table_centres(self, minimizers: Floats) -> Floats:
        """Return the outputs f (n,) at which the tables of rows are centred.

        Args:
            minimizers: the outputs of least loss (n, 1), which may be infinite.

        Returns:
            The centres (n,).
        """
        limit = float(self.entries // 4)
        centres: Floats = np.rint(np.clip(np.ldexp(minimizers[:, 0] / 2, -self.step), -limit, limit))
        return np.ldexp(centres, self.step)

    def encode_columns(self, X: Floats) -> Integers:
        """Return X (n, d), clipped, with f_x fractional bits."""
        clipped = self._clipped(X)
        clipped *= 2.0**self.f_x
        return np.rint(clipped, out=clipped).astype(np.int64)  # columns of a table are multiples already

    def lift(self, rows: int) -> int:
        """Return k: W has k fewer bits in a batch of this number of rows, and its changes are multiplied by 2^k."""
        return (self.rows // rows).bit_length() - 1

    def encode_steps(self, X: Floats, rate: float, P: Floats | None = None, *, rows: int | None = None) -> Integers:
        """Return W = eta/n X P (n, d) with f_W - k fractional bits (`lift`).

        Args:
            X: columns of a batch, or of a part of it.
            rate: the step size eta.
            P: a matrix (d, d) of the party; the identity if omitted.
            rows: n of the whole batch; the number of rows of X if omitted.

        Returns:
            The steps.
        """
        clipped = self._clipped(X)
        steps = clipped if P is None else clipped @ P
        n = rows or len(X)
        steps *= rate / n
        steps *= 2.0 ** (self.f_w - self.lift(n))
        np.rint(steps, out=steps)
        if self.step_bits is not None:
            np.clip(steps, -(2.0**self.step_bits), 2.0**self.step_bits, out=steps)
        return steps.astype(np.int64)

    def _clipped(self, X: Floats) -> Floats:
        """Return a clipped copy of X. Raises RangeError if X is not finite."""
        if not np.isfinite(X).all():
            raise RangeError(
                "shares: a column has values that are not finite",
                "drop or impute them first",
                code="SVFL-TABLE-MISSING-VALUES",
            )
        return np.clip(X, -self.clip, self.clip)

    def encode_weights(self, theta: Floats) -> Words:
        """Return weights as words."""
        return ShareRing(self.bits).of(np.rint(np.ldexp(theta, self.f_theta)).astype(np.int64))

    def decode_weights(self, theta: Words) -> Floats:
        """Return the weights as floats, from the sum of all shares."""
        return np.ldexp(ShareRing(self.bits).signed(theta).astype(np.float64), -self.f_theta)

    def index(self, h: Words) -> NDArray[np.uint8]:
        """Return the table index of a share h (any shape) of H."""
        return ((h >> np.uint64(self.shift)) & np.uint64(self.entries - 1)).astype(np.uint8)

    def top_index(self, h: Words) -> NDArray[np.uint8]:
        """Return the index of a share h (any shape) of H in a table over the whole ring."""
        shift = self.f_x + self.f_theta + self.integer_bits - self.top_bits
        return ((h >> np.uint64(shift)) & np.uint64(2**self.top_bits - 1)).astype(np.uint8)


def _knots(bits: int, step: int) -> Floats:
    """Return f at each index of a table of 2^bits entries, spaced 2^step apart."""
    entries = 2**bits
    signed = (np.arange(entries) + entries // 2) % entries - entries // 2
    knots: Floats = np.ldexp((signed + 1).astype(np.float64), step)
    return knots


def table_distances(knots: Floats, centres: Floats) -> Floats:
    """Return the signed distance (2^b, n) of each table index from each centre.

    An index represents all sums that differ by the width of the table; the one nearest to the centre is used.

    Args:
        knots: f at each index (2^b,).
        centres: the centres (n,).

    Returns:
        The distances.
    """
    smallest, width = float(knots.min()), float(np.ptp(knots)) * len(knots) / (len(knots) - 1)
    distances: Floats = (knots[:, None] - centres - smallest) % width + smallest
    return distances

"""Fixed-point encoding of a training on secret shares: the number of bits of every value, and how sums index a table.

Every number is an integer modulo 2^L (the "ring"). Dividing it by 2^f gives the real number; f, its number of
fractional bits, is public. n is the number of rows of a batch, eta the step size, and P an optional preconditioner, a
matrix by which a party multiplies its gradients. The values and their fractional bits are:

    X                   columns                                       f_x
    W = eta / n * X @ P steps                                         f_W = w + ceil(log2(n / eta))
    g                   residuals, the derivatives of the loss        f_g
    theta               weights, weighted sums of W^T g               f_W + f_g + m
    H = X @ theta       forward sums, the outputs of the model        f_x + f_W + f_g + m

m is the number of fractional bits of the coefficients in the update rule. The last bit of an entry of W is worth about
2^-w * eta / n. Terms:
- *table*: residuals are read from a table of 2^b entries (`table_bits`), at forward sums spaced 2^step apart. Party k
  computes its index floor(h_k / 2^s) modulo 2^b from its share h_k, with s = f_x + f_W + f_g + m + step. The *knots*
  of a table are the forward sums of its entries. A *fine* table has 256 entries; a *coarse* one covers the whole ring.
- *lift*: short table entries of `lift_bits` bits, of which only the one that is read gets L bits (carry_lift.py).
`FixedPointEncoding` documents how L and the bits are chosen.
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
_MIN_W = 3  # smallest w: f_W, the fractional bits of an entry of W, are this many more than log2(n / eta)
_MIN_INTEGER_BITS = 7  # if the ring has headroom, it represents at least forward sums from -64 to 64
_MIN_TOP_BITS, _MAX_TOP_BITS = 6, 8  # limits of `FixedPointEncoding.top_bits`
_TOP_KNOTS_IN_REACH = 3.5  # half of a residual table must span this number of entries of the coarse table
_SUM_ERROR_BITS = 10  # the noise of a forward sum has a standard deviation of at most 2^-10
_MIN_RESIDUAL_BITS = 7  # smallest f_g, the number of fractional bits of residuals

FINE_BITS = 8
"""The number of bits that index a fine table, which covers the same sums as a residual table with more entries."""

FINE_ENTRY_BITS = 16
"""The maximum number of bits of an entry of a fine table."""


@dataclass(frozen=True)
class FixedPointEncoding:
    """The numbers of bits of all values, on which the parties have agreed.

    m is the number of fractional bits of the coefficients in the update rule that turns W^T g into weights. f_W depends
    on n, eta and public bounds, never on data. Columns arrive clipped and rounded (`securevfl.data.scaling`), so
    clipping and rounding them again here changes nothing. L is rounded up to whole bytes, and W gets up to `spare` of
    the additional bits as fractional bits. `FixedPointEncoding.finest` begins with w = 7, or with log2(curvature) bits
    more if P divides by a curvature of the loss. While L exceeds 56 bits, it reduces w down to 3, and then f_g to 7.
    The rounding error of an entry of W has a standard deviation of at most 2^-w / sqrt(12), in units of eta / n times
    the standard deviation of its column, and is independent between rows. The error of W^T g therefore falls with n
    like the sampling error of n rows, and remains far below it.

    In a batch that is smaller than the largest one, W has j fewer fractional bits; 2^j is the ratio of the two sizes,
    rounded down to a power of two. The products W^T g of that batch are multiplied by 2^j afterwards
    (`FixedPointEncoding.lift`). Entries of W thus have similar sizes in all batches.

    Residuals are read from a table of 2^b entries, whose forward sums are spaced 2^step apart. Two parties A and B have
    shares h_A + h_B = H. Each computes its table index i_k = floor(h_k / 2^s) modulo 2^b, with s = f_x + f_W + f_g + m
    + step. A carry out of 2^L vanishes, so the index is correct while H is in the range of the table. The label of a
    row selects its table. The party with labels, A, centres the table at the sums that it expects for rows with this
    label: half way to the sum of least loss, moved by at most a quarter of the table
    (`FixedPointEncoding.table_centres`). With 64 entries spaced 1 apart and classes y of -1 and +1, a table covers
    values of y * H from -15 to 48. Larger values would wrap to very wrong ones, and training would increase them
    further. Large positive values (correct predictions) are common and large negative ones are not, so the table is
    centred at positive ones.

    The ring represents sums up to four times the range of the table, and at least up to 64 (`integer_bits`). The
    highest bits of a sum therefore show whether it is out of the range of a table or of a quantizer, which rounds
    disclosed sums. If batches have very many rows, the ring covers only the range of the table.

    If iterations have many rows, table entries are sent as shares of k = `lift_bits` bits instead of L. Only the entry
    that is read of each table is *lifted*: its shares modulo 2^k are turned into shares modulo 2^L (carry_lift.py). An
    entry is then the residual minus the least residual of its table, and it must be below 2^(k-1). If k = f_g + 1, the
    residuals of a table lie in an interval of length 1, and a residual of 1 is represented by M = 2^f_g - 1 instead of
    2^f_g, so that entries from 0 to M fit. W is multiplied by (M + 1) / M, so weights keep their scale.

    i_A + i_B + 1 is the index of the table entry just below or just above H / 2^s. The nearer entry has the higher
    probability, because the fractional part of h_A is uniform. On average this is linear interpolation between the
    entries, without bias. Entries are rounded to f_g bits at random in the same way. A forward sum only selects an
    entry, so the products of which it consists may have a random error with a standard deviation of up to 2^-10
    (`sum_tolerance`), which makes their ciphertexts shorter.

    Attributes:
        rows: the number of rows n of the largest batch.
        rate: the largest step size eta.
        f_x: fractional bits of columns.
        w: fractional bits of W in addition to log2(n / eta).
        f_g: fractional bits of residuals.
        m: fractional bits of the update rule's coefficients.
        table_bits: b; a table of residuals has 2^b entries.
        step: log2 of the spacing of table entries.
        clip: largest absolute value of a column's entry.
        spare: the largest number of bits that W gets of those that rounding L up to whole bytes adds.
        step_bits: entries of W are clipped to [-2^step_bits, 2^step_bits]; None does not clip them.
        has_headroom: whether the ring can represent larger sums than the table.
        lift_bits: k, 8 or 16, if table entries are sent with k bits and lifted to L bits later; 0 if they have L bits.

    Raises:
        ConfigError: L would exceed 56 bits, or `lift_bits` is invalid.
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
    lift_bits: int = 0

    def __post_init__(self) -> None:
        """Reject an encoding that needs more bits than the ring has."""
        if self.min_bits > _MAX_RING_BITS:
            raise ConfigError(
                f"shares: batches of {self.rows:,} rows need numbers of {self.min_bits} bits at this step size, but "
                f"only {_MAX_RING_BITS} are available",
                f"set batch_size to at most {self.rows >> self.min_bits - _MAX_RING_BITS:,} rows, raise optimizer.lr, "
                "or reduce protocol.shares.table_bits",
                code="SVFL-JOB-TOO-LARGE",
                rows=self.rows,
                bits=self.min_bits,
            )
        if self.lift_bits not in (0, 8, 16) or self.lift_bits >= self.bits:
            raise ConfigError(
                f"shares: entries of the lookup table with {self.lift_bits} bits cannot be extended to shares of "
                f"{self.bits} bits",
                "use entries of 8 or 16 bits, or 0 for entries as long as shares",
                code="SVFL-CRYPTO-PARAMETERS",
            )

    @classmethod
    def finest(cls, rows: int, rate: float, *, curvature: float = 1.0, **sizes: Any) -> FixedPointEncoding:
        """Return the most precise encoding for batches of up to `rows` rows that fits into the ring.

        Args:
            rows: the number of rows of the largest batch.
            rate: the largest step size eta.
            curvature: the curvature by which the preconditioner divides steps. If it is above 1, entries of W are
                smaller by this factor, and W receives log2(curvature) more fractional bits if the ring has them.
            **sizes: further attributes of the encoding.

        Returns:
            The encoding.

        Raises:
            ConfigError: even the coarsest encoding needs too many bits.
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
    def residual_unit(self) -> int:
        """The integer that represents a residual of 1: 2^f_g, or 2^f_g - 1 if entries of f_g + 1 bits are lifted."""
        return int(2**self.f_g) - (self.lift_bits == self.f_g + 1)

    @property
    def shift(self) -> int:
        """The number s of bits of a forward sum below those that index a table."""
        return self.f_x + self.f_theta + self.step

    @property
    def largest_entry(self) -> int:
        """The largest absolute value of an integer that represents an entry of a column."""
        return int(self.clip * 2**self.f_x)

    def sum_tolerance(self, products: int) -> float:
        """Return the largest random error of each product that is part of a forward sum.

        Args:
            products: the number of encrypted products that are added to a forward sum: one for each pair of a share
                holder and another party.

        Returns:
            The largest standard deviation of a product's error, in units of the last bit of a forward sum, 2^-f.
        """
        return math.ldexp(1.0, self.f_x + self.f_theta - _SUM_ERROR_BITS) / math.sqrt(products)

    @property
    def integer_bits(self) -> int:
        """The number of bits of a forward sum before its fractional bits, including the sign."""
        covered = self.step + self.table_bits
        return max(covered + 2, _MIN_INTEGER_BITS) if self.has_headroom else covered

    @property
    def min_bits(self) -> int:
        """The smallest number of bits L that the ring needs."""
        return self.f_x + self._min_f_w + self.f_g + self.m + self.integer_bits

    @property
    def bits(self) -> int:
        """The number of bits L of the ring, which is a multiple of 8."""
        return -(-self.min_bits // 8) * 8

    @property
    def entries(self) -> int:
        """The number of entries of a table of residuals."""
        return int(2**self.table_bits)

    @property
    def reach(self) -> float:
        """The largest distance between a forward sum and the centre of its table that the table covers."""
        return float((self.entries // 2 - 1) * 2.0**self.step)

    @property
    def knots(self) -> Floats:
        """The forward sum at each index of a table (2^b,).

        An index i, as the sum of two shares' indices, represents the sum (i + 1) * 2^step, because both shares' indices
        are rounded down.
        """
        return _knots(self.table_bits, self.step)

    @property
    def fine_step(self) -> int:
        """Log2 of the spacing of a fine table: 2^FINE_BITS entries over the width of a residual table."""
        return self.step + self.table_bits - FINE_BITS

    @property
    def fine_knots(self) -> Floats:
        """The forward sum at each index of a fine table (2^FINE_BITS,)."""
        return _knots(FINE_BITS, self.fine_step)

    @property
    def top_bits(self) -> int:
        """The number of highest bits of a sum that are the index into a coarse table over the whole ring.

        This table shows which sums are outside the range of the table of residuals.
        """
        bits = max(self.table_bits, _MIN_TOP_BITS)
        while bits < _MAX_TOP_BITS and 2.0 ** (self.integer_bits - bits) > self.reach / _TOP_KNOTS_IN_REACH:
            bits += 1
        return bits

    @property
    def top_knots(self) -> Floats:
        """The forward sum at each index of a table over the whole range of the ring (2^top_bits,)."""
        return _knots(self.top_bits, self.integer_bits - self.top_bits)

    def table_centres(self, minimizers: Floats) -> Floats:
        """Return the forward sum at which each row's table is centred.

        Args:
            minimizers: for each row, the forward sum of least loss (n, 1), which may be infinite.

        Returns:
            The centres (n,).
        """
        limit = float(self.entries // 4)
        centres: Floats = np.rint(np.clip(np.ldexp(minimizers[:, 0] / 2, -self.step), -limit, limit))
        return np.ldexp(centres, self.step)

    def encode_columns(self, X: Floats) -> Integers:
        """Return columns X (n, d) as integers with f_x fractional bits, after clipping."""
        clipped = self._clipped(X)
        clipped *= 2.0**self.f_x
        # changes nothing in prepared columns, which are rounded already
        return np.rint(clipped, out=clipped).astype(np.int64)

    def lift(self, rows: int) -> int:
        """Return how many fractional bits fewer W has in a batch of this size than in the largest batch.

        It does not concern the lift of table entries.
        """
        return (self.rows // rows).bit_length() - 1

    def encode_steps(self, X: Floats, rate: float, P: Floats | None = None, *, rows: int | None = None) -> Integers:
        """Return the steps W = eta / n * X @ P as integers with f_W - lift(n) fractional bits.

        Args:
            X: the columns (m, d) of m rows of a batch.
            rate: the step size eta.
            P: the party's preconditioner (d, d); the identity if omitted.
            rows: n, the number of rows of the batch to which X belongs; the number of rows of X if omitted.

        Returns:
            The steps (m, d).
        """
        clipped = self._clipped(X)
        steps = clipped if P is None else clipped @ P
        n = rows or len(X)
        steps *= rate / n * (2.0**self.f_g / self.residual_unit)
        steps *= 2.0 ** (self.f_w - self.lift(n))
        np.rint(steps, out=steps)
        if self.step_bits is not None:
            np.clip(steps, -(2.0**self.step_bits), 2.0**self.step_bits, out=steps)
        return steps.astype(np.int64)

    def _clipped(self, X: Floats) -> Floats:
        """Return a copy of X, clipped to [-clip, clip]. Raises RangeError if X has infinite or missing values."""
        if not np.isfinite(X).all():
            raise RangeError(
                "shares: a column has values that are not finite",
                "drop or impute them first",
                code="SVFL-TABLE-MISSING-VALUES",
            )
        return np.clip(X, -self.clip, self.clip)

    def encode_weights(self, theta: Floats) -> Words:
        """Return weights as integers modulo 2^L with f_W + f_g + m fractional bits."""
        return ShareRing(self.bits).of(np.rint(np.ldexp(theta, self.f_theta)).astype(np.int64))

    def decode_weights(self, theta: Words) -> Floats:
        """Return weights as floats, given the sum modulo 2^L of all parties' shares."""
        return np.ldexp(ShareRing(self.bits).signed(theta).astype(np.float64), -self.f_theta)

    def index(self, h: Words) -> NDArray[np.uint8]:
        """Return the table index of each share h (any shape) of a forward sum."""
        return ((h >> np.uint64(self.shift)) & np.uint64(self.entries - 1)).astype(np.uint8)

    def fine_index(self, h: Words) -> NDArray[np.uint8]:
        """Return the index of each share h (any shape) of a forward sum, for a fine table."""
        shift = self.f_x + self.f_theta + self.fine_step
        return ((h >> np.uint64(shift)) & np.uint64(2**FINE_BITS - 1)).astype(np.uint8)

    def top_index(self, h: Words) -> NDArray[np.uint8]:
        """Return the index of each share h (any shape) of a forward sum, for a table over the ring's whole range."""
        shift = self.f_x + self.f_theta + self.integer_bits - self.top_bits
        return ((h >> np.uint64(shift)) & np.uint64(2**self.top_bits - 1)).astype(np.uint8)


def _knots(bits: int, step: int) -> Floats:
    """Return the forward sum at each index of a table of 2^bits entries, spaced 2^step apart."""
    entries = 2**bits
    signed = (np.arange(entries) + entries // 2) % entries - entries // 2
    knots: Floats = np.ldexp((signed + 1).astype(np.float64), step)
    return knots


def table_distances(knots: Floats, centres: Floats) -> Floats:
    """Return the signed distance between the forward sum of each table index and each centre.

    An index represents many forward sums, which differ by multiples of the table's width. The distance is that of the
    one nearest to the centre.

    Args:
        knots: a forward sum for each index (2^b,).
        centres: the forward sum at the centre of each table (n,).

    Returns:
        The distances (2^b, n).
    """
    smallest, width = float(knots.min()), float(np.ptp(knots)) * len(knots) / (len(knots) - 1)
    distances: Floats = (knots[:, None] - centres - smallest) % width + smallest
    return distances

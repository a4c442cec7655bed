"""How many bits each number of a shared training has, and how a table reads a shared sum. Known to all parties.

Everything is an integer modulo 2^L, at a public scale of so many fractional bits, and no scale is ever changed:

    columns X                        f_x
    steps   W = eta/n X P            f_W = w + ceil(log2(n / eta))
    residuals g                      f_g
    weights theta (sums of W^T g)    f_W + f_g + m     m: bits of fixed coefficients, where an update rule has some
    sums    H = X theta              f_x + f_W + f_g + m

f_W comes from n, eta and public bounds, never from the data; columns come clipped and rounded
(`securevfl.data.scaling`), and are so here once more, which changes none of a table. L is filled up to whole
bytes, and w takes some of the bits that this adds; where P is about 1 / c, of a loss of curvature c, w begins log2(c)
higher. Where L would be more than there are, w gives up bits down to three and then f_g one
(`FixedPointEncoding.fitting`): an
entry of W is off by 2^-w / sqrt(12) of a column's spread at most, row by row another way, so what W^T g is off by falls
with n as what a sample of n rows is off by does, and stays far below it.

A batch of fewer rows than the largest has W at k bits less, 2^k the rows of the largest for one of its own rounded
down, and changes are multiplied by 2^k afterwards (`FixedPointEncoding.lift`): entries of W are of one size in all
batches.

A table of 2^b entries, 2^step apart, reads the top bits of H modulo 2^b: of the shares h_A + h_B = H it takes i_k =
floor(h_k / 2^s) modulo 2^b, s = f_x + f_W + f_g + m + step. A carry out of 2^L vanishes, so nothing can wrap as long as
H is within the table. As the label picks a row's table, the party with labels centres it where sums of such rows lie:
half way to the sum of least loss, and by a quarter of the table at most (`FixedPointEncoding.centres`). So of 64
entries 1 apart
those of a class cover margins y H from -15 to 48. A margin that wraps there would be taken for a very wrong one, whose
step makes it larger still; rows that a model is so sure of are common, and those it is so wrong about are not. The ring
itself holds sums of four times that size, and of 64 at least (`whole` bits), so that
a sum beyond what a table or levels cover can be told from others by its highest bits; batches of too many rows for that
have rings that hold the table alone. i_A + i_B + 1 is the entry below H / 2^s with the probability of its distance to
the one above, and else the one above (the fractional part of h_A is uniform): linear interpolation between the entries,
without bias. An entry is rounded to f_g bits at random in the same way.
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

_MOST_BITS = 56
_LEAST_W = 3
_LEAST_WHOLE = 7  # sums of 64 on either side
_LEAST_TOP = 6
_LEAST_RESIDUAL_BITS = 7  # of residuals that come from tables of classes; others keep what they have


@dataclass(frozen=True)
class FixedPointEncoding:
    """The agreed sizes. `rows` is n of the largest batch, `rate` the largest eta.

    spare: how many of the bits that filling up adds w takes at most. step_bits: an entry of W of more bits is cut off.
    has_headroom: whether the ring holds larger sums than the table.

    ConfigError if L would be more than 56 bits.
    """

    rows: int
    rate: float
    f_x: int = GRID_BITS
    w: int = 7
    f_g: int = 8
    m: int = 0
    table_bits: int = 6
    step: int = 0  # log2 of the distance between entries
    clip: float = 8.0
    spare: int = 3
    step_bits: int | None = None
    has_headroom: bool = True

    def __post_init__(self) -> None:
        if self.min_bits > _MOST_BITS:
            raise ConfigError(
                f"shares: {self.min_bits} bits are needed for batches of {self.rows:,} rows at this step size, there "
                f"are {_MOST_BITS}; set batch_size to at most {self.rows >> self.min_bits - _MOST_BITS:,} rows, raise "
                "optimizer.lr, or lower protocol.shares.table_bits"
            )

    @classmethod
    def finest(cls, rows: int, rate: float, *, steep: float = 1.0, **sizes: Any) -> FixedPointEncoding:
        """Return the finest numbers for batches of up to `rows` rows that there are bits for; sizes: as of
        `FixedPointEncoding`.

        steep: a curvature that steps are divided by (`block_descent`): W is so many times smaller, and has as many
        bits more, where there are any, if this is above 1. ConfigError if the coarsest need more bits than there are.
        """
        f_g = sizes.pop("f_g", cls.f_g)
        for w in range(cls.w + math.ceil(math.log2(max(1.0, steep))), _LEAST_W - 1, -1):
            with suppress(ConfigError):
                return cls(rows, rate, w=w, f_g=f_g, **sizes)
        f_g = min(f_g, _LEAST_RESIDUAL_BITS)
        with suppress(ConfigError):
            return cls(rows, rate, w=_LEAST_W, f_g=f_g, **sizes)
        return cls(rows, rate, w=_LEAST_W, f_g=f_g, has_headroom=False, **sizes)

    @property
    def f_w(self) -> int:
        """The number of fractional bits that the matrix W is encoded with."""
        return self._least + min(self.spare, self.bits - self.min_bits)

    @property
    def _least(self) -> int:
        return max(0, self.w + math.ceil(math.log2(self.rows / self.rate)))

    @property
    def f_theta(self) -> int:
        """The number of fractional bits that the weights theta are encoded with."""
        return self.f_w + self.f_g + self.m

    @property
    def shift(self) -> int:
        """s: how far up in H the table's index starts."""
        return self.f_x + self.f_theta + self.step

    @property
    def integer_bits(self) -> int:
        """How many bits a sum needs above its fraction, with its sign."""
        covered = self.step + self.table_bits
        return max(covered + 2, _LEAST_WHOLE) if self.has_headroom else covered

    @property
    def min_bits(self) -> int:
        """The fewest bits that L could have."""
        return self.f_x + self._least + self.f_g + self.m + self.integer_bits

    @property
    def bits(self) -> int:
        """L, filled up to whole bytes."""
        return -(-self.min_bits // 8) * 8

    @property
    def entries(self) -> int:
        """How many entries a table has."""
        return int(2**self.table_bits)

    @property
    def reach(self) -> float:
        """The largest distance of H from its table's centre that the table covers on either side."""
        return float((self.entries // 2 - 1) * 2.0**self.step)

    @property
    def knots(self) -> Floats:
        """f at each place of a table (2^b,): a place is an index modulo 2^b, and stands for one step more, as the
        indices of two shares are both rounded down.
        """
        return _knots(self.table_bits, self.step)

    @property
    def top_bits(self) -> int:
        """How many of the highest bits of a sum a table of all that the ring holds is read by."""
        return max(self.table_bits, _LEAST_TOP)

    @property
    def top_knots(self) -> Floats:
        """f at each place of a table of all that the ring holds (2^top_bits,)."""
        return _knots(self.top_bits, self.integer_bits - self.top_bits)

    def table_centres(self, least: Floats) -> Floats:
        """Return the f that the tables of rows are centred at (n,), from the f of their least losses (n x 1), which may
        be infinite."""
        most = float(self.entries // 4)
        centres: Floats = np.rint(np.clip(np.ldexp(least[:, 0] / 2, -self.step), -most, most))
        return np.ldexp(centres, self.step)

    def encode_columns(self, X: Floats) -> Integers:
        """X (n x d), clipped, at f_x bits. RangeError if it is not finite."""
        clipped = self._clipped(X)
        clipped *= 2.0**self.f_x
        return np.rint(clipped, out=clipped).astype(np.int64)  # of columns that come from a table these are whole

    def lift(self, rows: int) -> int:
        """k: how many bits less W has in a batch of so many rows, by which its changes are then multiplied."""
        return (self.rows // rows).bit_length() - 1

    def encode_steps(self, X: Floats, rate: float, P: Floats | None = None, *, rows: int | None = None) -> Integers:
        """W (n x d) for a batch X: eta/n X P at f_W - k bits (`lift`); P (d x d) is any matrix of the party's own.

        rows: n of the batch, of which X is a part.
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
        """Return a copy of X, clipped."""
        if not np.isfinite(X).all():
            raise RangeError("shares: columns have values that are not finite; drop or impute them first")
        return np.clip(X, -self.clip, self.clip)

    def decode_weights(self, theta: Words) -> Floats:
        """Weights as floats, from both shares added up."""
        return np.ldexp(ShareRing(self.bits).signed(theta).astype(np.float64), -self.f_theta)

    def index(self, h: Words) -> NDArray[np.uint8]:
        """i (n,) of a share h (n,) of H."""
        return ((h >> np.uint64(self.shift)) & np.uint64(self.entries - 1)).astype(np.uint8)

    def top_index(self, h: Words) -> NDArray[np.uint8]:
        """Return i (n,) of a share h (n,) of H in a table of all that the ring holds."""
        shift = self.f_x + self.f_theta + self.integer_bits - self.top_bits
        return ((h >> np.uint64(shift)) & np.uint64(2**self.top_bits - 1)).astype(np.uint8)


def _knots(bits: int, step: int) -> Floats:
    """Return f at each place of a table of 2^bits entries, 2^step apart."""
    entries = 2**bits
    signed = (np.arange(entries) + entries // 2) % entries - entries // 2
    found: Floats = np.ldexp((signed + 1).astype(np.float64), step)
    return found


def table_distances(knots: Floats, centres: Floats) -> Floats:
    """Return how far the places of a table with these knots (2^b,) lie from each centre (n,), (2^b x n): a place stands
    for all sums that are a whole table apart, of which the nearest is taken."""
    least, apart = float(knots.min()), float(np.ptp(knots)) * len(knots) / (len(knots) - 1)
    distances: Floats = (knots[:, None] - centres - least) % apart + least
    return distances

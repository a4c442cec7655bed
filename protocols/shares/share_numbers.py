"""How many bits each number of a shared training has, and how a table reads a shared sum. Known to all parties.

Everything is an integer modulo 2^L, at a public scale of so many fractional bits, and no scale is ever changed:

    columns X                        f_x
    steps   W = eta/n X P            f_W = w + ceil(log2(n / eta))
    residuals g                      f_g
    weights theta (sums of W^T g)    f_W + f_g + m     m: bits of fixed coefficients, where an update rule has some
    sums    H = X theta              f_x + f_W + f_g + m

f_W comes from n, eta and public bounds, never from the data; columns come clipped and rounded
(`securevfl.data.scaled_columns`), and are so here once more, which changes none of a table. L is filled up to whole
bytes, and w takes some of the bits that this adds. Where L would be more than there are, w gives up to four
bits and then f_g one (`Numbers.fitting`): an entry of W is off by 2^-w / sqrt(12) of a column's spread at most, row by
row another way, so what W^T g is off by falls with n as what a sample of n rows is off by does, and stays far below it.

A batch of fewer rows than the largest has W at k bits less, 2^k the rows of the largest for one of its own rounded
down, and changes are multiplied by 2^k afterwards (`Numbers.lift`): entries of W are of one size in all batches.

A table of 2^b entries, 2^step apart, reads the top bits of H modulo 2^b: of the shares h_A + h_B = H it takes
i_k = floor(h_k / 2^s) modulo 2^b, s = f_x + f_W + f_g + m + step. A carry out of 2^L vanishes, so nothing can wrap as
long as |H| is within the table. i_A + i_B + 1 is the entry below H / 2^s with the probability of its distance to the
one above, and else the one above (the fractional part of h_A is uniform): linear interpolation between the entries,
without bias. An entry is rounded to f_g bits at random in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import Integers, ShareRing, Words
from securevfl.data.scaled_columns import GRID_BITS
from securevfl.errors import ConfigError, RangeError

__all__ = ["LookUp", "Numbers"]

_DITHER = 16  # bits below f_g that random rounding looks at
_AT_ONCE = 4096  # targets whose tables are made at a time
_NEAR = 1.0  # sums at which no residual is cut off
_MOST_BITS = 56
_LEAST_W = 3
_LEAST_RESIDUAL_BITS = 7  # of residuals that come from tables of classes; others keep what they have


@dataclass(frozen=True)
class Numbers:
    """The agreed sizes. `rows` is n of the largest batch, `rate` the largest eta.

    spare: how many of the bits that filling up adds w takes at most. step_bits: an entry of W of more bits is cut off.

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

    def __post_init__(self) -> None:
        if self.needed > _MOST_BITS:
            raise ConfigError(
                f"shares: {self.needed} bits are needed for batches of {self.rows:,} rows at this step size, there are "
                f"{_MOST_BITS}; set batch_size to at most {self.rows >> self.needed - _MOST_BITS:,} rows, raise "
                "optimizer.lr, or lower protocol.shares.table_bits"
            )

    @classmethod
    def fitting(cls, rows: int, rate: float, **sizes: Any) -> Numbers:
        """Return the finest numbers for batches of up to `rows` rows that there are bits for; sizes: as of `Numbers`.

        ConfigError if the coarsest need more bits than there are.
        """
        f_g = sizes.pop("f_g", cls.f_g)
        for w in range(cls.w, _LEAST_W - 1, -1):
            with suppress(ConfigError):
                return cls(rows, rate, w=w, f_g=f_g, **sizes)
        return cls(rows, rate, w=_LEAST_W, f_g=min(f_g, _LEAST_RESIDUAL_BITS), **sizes)

    @property
    def f_w(self) -> int:
        """The number of fractional bits that the matrix W is encoded with."""
        return self._least + min(self.spare, self.bits - self.needed)

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
    def needed(self) -> int:
        """The fewest bits that L could have."""
        return self.f_x + self._least + self.f_g + self.m + self.step + self.table_bits

    @property
    def bits(self) -> int:
        """L, filled up to whole bytes."""
        return -(-self.needed // 8) * 8

    @property
    def entries(self) -> int:
        """How many entries a table has."""
        return int(2**self.table_bits)

    @property
    def reach(self) -> float:
        """The largest |H| that the table covers on either side."""
        return float((self.entries // 2 - 1) * 2.0**self.step)

    @property
    def knots(self) -> Floats:
        """f at each place of a table (2^b,): a place is an index modulo 2^b, and stands for one step more, as the
        indices of two shares are both rounded down.
        """
        signed = (np.arange(self.entries) + self.entries // 2) % self.entries - self.entries // 2
        return np.ldexp((signed + 1).astype(np.float64), self.step)

    def columns(self, X: Floats) -> Integers:
        """X (n x d), clipped, at f_x bits. RangeError if it is not finite."""
        clipped = self._clipped(X)
        clipped *= 2.0**self.f_x
        return np.rint(clipped, out=clipped).astype(np.int64)  # of columns that come from a table these are whole

    def lift(self, rows: int) -> int:
        """k: how many bits less W has in a batch of so many rows, by which its changes are then multiplied."""
        return (self.rows // rows).bit_length() - 1

    def steps(self, X: Floats, rate: float, P: Floats | None = None, *, rows: int | None = None) -> Integers:
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

    def weights(self, theta: Words) -> Floats:
        """Weights as floats, from both shares added up."""
        return np.ldexp(ShareRing(self.bits).signed(theta).astype(np.float64), -self.f_theta)

    def index(self, h: Words) -> NDArray[np.uint8]:
        """i (n,) of a share h (n,) of H."""
        return ((h >> np.uint64(self.shift)) & np.uint64(self.entries - 1)).astype(np.uint8)


class LookUp:
    """The tables of one batch: what g is at each entry, for the label of each row. At the party with the labels."""

    def __init__(self, numbers: Numbers, residual: Callable[[Floats, Floats], Floats], y: Floats) -> None:
        """residual: g (n x 1) of f and targets y, elementwise; y (n x k), what a row's g goes by beside f."""
        targets, which = np.unique(y, axis=0, return_inverse=True)
        blocks = (targets[start : start + _AT_ONCE] for start in range(0, len(targets), _AT_ONCE))
        self._tables = np.concatenate([self._made(numbers, residual, block) for block in blocks])
        self._start = which.astype(np.int32) << numbers.table_bits
        self._numbers = numbers

    @staticmethod
    def _made(numbers: Numbers, residual: Callable[[Floats, Floats], Floats], targets: Floats) -> NDArray[np.int32]:
        """Make the look-up tables of these targets (m x k), one behind the other."""
        f = np.tile(numbers.knots, len(targets))[:, None]
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

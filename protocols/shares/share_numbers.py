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
higher. Where L would be more than there are, w gives up bits down to three and then f_g one (`Numbers.fitting`): an
entry of W is off by 2^-w / sqrt(12) of a column's spread at most, row by row another way, so what W^T g is off by falls
with n as what a sample of n rows is off by does, and stays far below it.

A batch of fewer rows than the largest has W at k bits less, 2^k the rows of the largest for one of its own rounded
down, and changes are multiplied by 2^k afterwards (`Numbers.lift`): entries of W are of one size in all batches.

A table of 2^b entries, 2^step apart, reads the top bits of H modulo 2^b: of the shares h_A + h_B = H it takes i_k =
floor(h_k / 2^s) modulo 2^b, s = f_x + f_W + f_g + m + step. A carry out of 2^L vanishes, so nothing can wrap as long as
H is within the table. As the label picks a row's table, the party with labels centres it where sums of such rows lie:
half way to the sum of least loss, and by a quarter of the table at most (`Numbers.centres`). So of 64 entries 1 apart
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
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import Integers, ShareRing, Words
from securevfl.data.scaling import GRID_BITS
from securevfl.errors import ConfigError, RangeError
from securevfl.protocols.shares.projection import projected

_DITHER = 16  # bits below f_g that random rounding looks at
_AT_ONCE = 4096  # targets whose tables are made at a time
_ENTRIES_AT_ONCE = 2**18  # entries of these tables
_NEAR = 1.0  # sums at which no residual is cut off
_MOST_BITS = 56
_LEAST_W = 3
_LEAST_WHOLE = 7  # sums of 64 on either side
_LEAST_TOP = 6
_LEAST_RESIDUAL_BITS = 7  # of residuals that come from tables of classes; others keep what they have


@dataclass(frozen=True)
class Numbers:
    """The agreed sizes. `rows` is n of the largest batch, `rate` the largest eta.

    spare: how many of the bits that filling up adds w takes at most. step_bits: an entry of W of more bits is cut off.
    roomy: whether the ring holds larger sums than the table.

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
    roomy: bool = True

    def __post_init__(self) -> None:
        if self.needed > _MOST_BITS:
            raise ConfigError(
                f"shares: {self.needed} bits are needed for batches of {self.rows:,} rows at this step size, there are "
                f"{_MOST_BITS}; set batch_size to at most {self.rows >> self.needed - _MOST_BITS:,} rows, raise "
                "optimizer.lr, or lower protocol.shares.table_bits"
            )

    @classmethod
    def fitting(cls, rows: int, rate: float, *, steep: float = 1.0, **sizes: Any) -> Numbers:
        """Return the finest numbers for batches of up to `rows` rows that there are bits for; sizes: as of `Numbers`.

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
        return cls(rows, rate, w=_LEAST_W, f_g=f_g, roomy=False, **sizes)

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
    def whole(self) -> int:
        """How many bits a sum needs above its fraction, with its sign."""
        covered = self.step + self.table_bits
        return max(covered + 2, _LEAST_WHOLE) if self.roomy else covered

    @property
    def needed(self) -> int:
        """The fewest bits that L could have."""
        return self.f_x + self._least + self.f_g + self.m + self.whole

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
        return _knots(self.top_bits, self.whole - self.top_bits)

    def centres(self, least: Floats) -> Floats:
        """Return the f that the tables of rows are centred at (n,), from the f of their least losses (n x 1), which may
        be infinite."""
        most = float(self.entries // 4)
        centres: Floats = np.rint(np.clip(np.ldexp(least[:, 0] / 2, -self.step), -most, most))
        return np.ldexp(centres, self.step)

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

    def top_index(self, h: Words) -> NDArray[np.uint8]:
        """Return i (n,) of a share h (n,) of H in a table of all that the ring holds."""
        shift = self.f_x + self.f_theta + self.whole - self.top_bits
        return ((h >> np.uint64(shift)) & np.uint64(2**self.top_bits - 1)).astype(np.uint8)


def _knots(bits: int, step: int) -> Floats:
    """Return f at each place of a table of 2^bits entries, 2^step apart."""
    entries = 2**bits
    signed = (np.arange(entries) + entries // 2) % entries - entries // 2
    found: Floats = np.ldexp((signed + 1).astype(np.float64), step)
    return found


def away(knots: Floats, centres: Floats) -> Floats:
    """Return how far the places of a table with these knots (2^b,) lie from each centre (n,), (2^b x n): a place stands
    for all sums that are a whole table apart, of which the nearest is taken."""
    least, apart = float(knots.min()), float(np.ptp(knots)) * len(knots) / (len(knots) - 1)
    distances: Floats = (knots[:, None] - centres - least) % apart + least
    return distances


class LookUp:
    """The tables of one batch: what g is at each entry, for the label of each row. At the party with the labels."""

    def __init__(
        self,
        numbers: Numbers,
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
            smooth: True if g has a continuous derivative and is not linear: entries are then the coefficients of its
                projection on linear splines (`projection`), so that what is read has no bias, and values of g
                otherwise.
        """
        targets, which = np.unique(y, axis=0, return_inverse=True)
        size = max(1, min(_AT_ONCE, _ENTRIES_AT_ONCE // numbers.entries))
        blocks = (targets[start : start + size] for start in range(0, len(targets), size))
        self._tables = np.concatenate(
            [self._made(numbers, residual, block, numbers.centres(least(block)), smooth) for block in blocks]
        )
        self._start = which.astype(np.int32) << numbers.table_bits
        self._numbers = numbers

    @staticmethod
    def _made(
        numbers: Numbers,
        residual: Callable[[Floats, Floats], Floats],
        targets: Floats,
        centres: Floats,
        smooth: bool,
    ) -> NDArray[np.int32]:
        """Compute the look-up tables of these targets (m, k), centred at m sums, one behind the other."""
        knots = (away(numbers.knots, centres) + centres).T
        f = knots.reshape(-1, 1)
        if smooth:
            spacing, first = 2.0**numbers.step, knots.min(axis=1)
            coefficients = projected(residual, targets, first, numbers.entries, spacing)
            places = np.rint((knots - first[:, None]) / spacing).astype(np.intp)
            g = np.take_along_axis(coefficients, places, axis=1).reshape(-1)
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


# Levels of shared sums: which of 2^k steps a sum is at, read from the top of its shares. What outputs are made of.
#
# A level takes the k bits of a share from s = 2^step on, so that of h_A + h_B = H the two cut shares say H / s, each
# rounded down. As the fraction of a share is uniform, their sum and one is H / s rounded up or down at random, without
# bias. A carry out of the highest bit vanishes: sums that are not within 2^(k - 1) s wrap.
#
# So a score is told only where |H| is at most 5/8 of that, or less where levels are few (`covered`). By a look-up of
# its highest bits a sum that is farther is moved to where levels begin anew, 2^(k - 1) s, which no other sum comes near
# (`moves`): it is known to be beyond and no more.


COVERED = 0.625  # of what levels reach: sums that are told
MOVED = 0.875  # of it: sums that are moved lie at least so far out, and are read no more than 1.5 levels off
END, LAST = 0.75, 0.8125  # of it: from where on sums of metrics count as at the end, and where that is
_FRACTION = 16  # bits of an exact sum below one


@dataclass(frozen=True)
class Levels:
    """The 2^bits levels, each 2^step apart, to which sums are rounded before they are told."""

    step: int
    bits: int

    @classmethod
    def over(cls, numbers: Numbers, step: float, reach: float) -> Levels:
        """Levels `step` apart (a power of two) over sums up to `reach` on either side, as far as shares have bits."""
        log = int(np.log2(step))
        return cls(log, 1 + int(np.ceil(np.log2(reach))) - log).within(numbers)

    def within(self, numbers: Numbers) -> Levels:
        """Return as many of the levels, from the lowest bit on, as shares of these numbers have bits for."""
        return replace(self, bits=min(self.bits, numbers.bits - numbers.f_x - numbers.f_theta - self.step))

    @property
    def size(self) -> float:
        """The distance of one level from the next."""
        return float(2.0**self.step)

    @property
    def reach(self) -> float:
        """The largest sum that has a level of its own, on either side."""
        return float(2.0 ** (self.bits - 1 + self.step))

    @property
    def covered(self) -> float:
        """The largest sum that is told, on either side."""
        return min(COVERED * self.reach, MOVED * self.reach - 1.5 * self.size)

    def moves(self, knots: Floats) -> Words:
        """Return by how many levels, modulo 2^bits, a sum is moved that falls to each entry of a table."""
        moved = np.where(np.abs(knots) < self.covered, 0.0, np.rint((self.reach - knots) / self.size))
        return ShareRing(self.bits).of(moved.astype(np.int64))

    def told(self, sums: Floats) -> Floats:
        """Return sums that were read from levels (any shape), infinite where they are beyond what is told."""
        return np.where(np.abs(sums) > self.covered, np.inf, sums)

    def has_ends(self, numbers: Numbers) -> bool:
        """Whether the highest bits say finely enough which sums are near the end of the levels."""
        return bool(2.0 ** (numbers.whole - numbers.top_bits) <= self.reach / 8)

    def ends(self, knots: Floats) -> Words:
        """Return by how many levels, modulo 2^bits, a sum is moved so that one beyond the levels is at their end."""
        moved = np.where(
            np.abs(knots) <= END * self.reach, 0.0, np.rint((np.copysign(LAST * self.reach, knots) - knots) / self.size)
        )
        return ShareRing(self.bits).of(moved.astype(np.int64))

    @classmethod
    def exact(cls, numbers: Numbers) -> Levels:
        """Return the levels that keep sums to 16 fractional bits, as large as shares hold them."""
        return cls(-_FRACTION, numbers.bits - numbers.f_x - numbers.f_theta + _FRACTION)

    def shift(self, numbers: Numbers) -> int:
        """How many bits of a share are below s."""
        return numbers.f_x + numbers.f_theta + self.step

    def cut(self, numbers: Numbers, h: Words) -> Words:
        """Cut out the bits of a share h (any shape) that say which level, as words below 2^bits."""
        return (h >> np.uint64(self.shift(numbers))) & np.uint64(2**self.bits - 1)

    def sums(self, total: Words, *, rounded_down: int = 2) -> Floats:
        """Return the sums (any shape) that two cut shares, added up, stand for in the mean.

        rounded_down: how many of the two were cut without a dither below s.
        """
        signed = ShareRing(self.bits).signed(total & np.uint64(2**self.bits - 1))
        return (signed.astype(np.float64) + rounded_down / 2) * self.size


# How weights come of the changes u_s = W^T g_s of the visits so far, in integers: the same rule runs on any share.
#
# A rule is linear with coefficients that are known before the training starts, so that parties apply it each to its own
# shares, of weights as of masks, without a message and without ever dividing:
#
#     theta_t = theta_0 - sum_{s < t} c_ts u_s,      c_ts integers at the scale 2^m
#
# A method with momentum has that form once its coefficients are fixed, weight decay and step sizes that fall have it by
# themselves. Coefficients are rounded to m bits and what they multiply is kept, so that no rounding adds up. A state is
# an array of words (k x d x c), theta_0 first.


Coefficients = Callable[[int], Sequence[float]]  # by visits so far


class LinearRule(ABC):
    """A linear rule. Words wrap modulo 2^64; callers reduce them to their ring. `visit` counts the visits so far."""

    m: int  # bits of the coefficients

    def start(self, theta: Words) -> Words:
        """Return the state (k x d x c) before the first visit, from a share of theta_0 (d x c)."""
        return theta[None]

    @abstractmethod
    def step(self, state: Words, change: Words, visit: int) -> Words:
        """Return the state after one more visit, given a share (d x c) of its change."""

    @abstractmethod
    def theta(self, state: Words, visit: int) -> Words:
        """Return the share (d x c) of the weights."""

    def sparing(self) -> LinearRule:
        """Return the same rule for a party whose last weight is an intercept, which does not decay."""
        return self


class Descent(LinearRule):
    """theta -= u: gradient descent with a step size that is in W."""

    m = 0

    def step(self, state: Words, change: Words, visit: int) -> Words:
        after: Words = state - change
        return after

    def theta(self, state: Words, visit: int) -> Words:
        theta: Words = state[0]
        return theta


@dataclass(frozen=True)
class Paced(LinearRule):
    """theta -= r_t u with step sizes that are fixed ahead, and a decay of all weights at the end of every epoch.

    rates: r_t, of the step size in W, by visit; all 1 if empty. decays: what an epoch leaves of the weights, by epoch;
    1 throughout if empty. batches: visits an epoch.
    """

    rates: tuple[float, ...] = ()
    decays: tuple[float, ...] = ()
    batches: int = 1
    rate_bits: int = 8
    decay_bits: int = 8
    spares_last: bool = False

    @property
    def m(self) -> int:  # type: ignore[override]
        return (self.rate_bits if self.rates else 0) + (self.decay_bits if self.decays else 0)

    def start(self, theta: Words) -> Words:
        return np.concatenate([theta[None], np.zeros((max(1, len(self.decays)), *theta.shape), np.uint64)])

    def step(self, state: Words, change: Words, visit: int) -> Words:
        after = state.copy()
        factor = np.uint64(_whole([self.rates[visit]], self.rate_bits)[0]) if self.rates else np.uint64(1)
        after[1 + (visit // self.batches if self.decays else 0)] -= change * factor
        return after

    def theta(self, state: Words, visit: int) -> Words:
        if not self.decays:
            plain: Words = state[0] + state[1]
            return plain
        epoch = min(visit // self.batches, len(self.decays))
        left = np.cumprod([1.0, *self.decays])
        factors = [left[epoch] / left[own] for own in range(min(epoch + 1, len(self.decays)))]
        even = [1.0] * len(factors) if self.spares_last else None
        theta: Words = state[0] + _combined(state[1 : 1 + len(factors)], factors, even, self.decay_bits)
        return theta

    def sparing(self) -> LinearRule:
        return replace(self, spares_last=True)


class FixedCoefficients(LinearRule):
    """Any first-order method with coefficients c_ts, in floats, that are known ahead: row(t) is c_t0 .. c_t,t-1.

    last: the same for a weight that does not decay, if that is another one.
    """

    def __init__(
        self, row: Coefficients, m: int = 8, last: Coefficients | None = None, *, spares_last: bool = False
    ) -> None:
        self.m = m
        self._row, self._last, self._spares = row, last, spares_last

    def step(self, state: Words, change: Words, visit: int) -> Words:
        return np.concatenate([state, change[None]])

    def theta(self, state: Words, visit: int) -> Words:
        t = len(state) - 1
        last = self._last(t) if self._spares and self._last is not None else None
        theta: Words = state[0] - _combined(state[1:], self._row(t), last, self.m)
        return theta

    def sparing(self) -> LinearRule:
        return FixedCoefficients(self._row, self.m, self._last, spares_last=True)


def _whole(factors: Sequence[float], bits: int) -> NDArray[np.uint64]:
    """Factors at `bits` bits, as words."""
    return np.rint(np.ldexp(np.asarray(factors, np.float64), bits)).astype(np.int64).view(np.uint64)


def _combined(parts: Words, factors: Sequence[float], last: Sequence[float] | None, bits: int) -> Words:
    """Sum parts (k x d x c), each times its factor, to (d x c); the last of the d rows takes the factors of `last`."""
    total: Words = (parts * _whole(factors, bits).reshape(-1, 1, 1)).sum(axis=0, dtype=np.uint64)
    if last is not None:
        total[-1] = (parts[:, -1] * _whole(last, bits).reshape(-1, 1)).sum(axis=0, dtype=np.uint64)
    return total

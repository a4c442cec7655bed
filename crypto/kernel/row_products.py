"""J^T [[g]] on a ring, whichever library multiplies: the protocol, fixed point, checks, rows of J wherever they lie.

    1. key holder   g in coefficients, encrypted symmetrically with fresh seeds         `encrypt`
    2. evaluator    products with the plaintexts of J, summed over sample blocks,
                    group after group as they come, wherever the rows of J lie          `transpose_product`
    3. evaluator    adds a fresh public-key encryption of zero, masks, sends            `blind`
    4. key holder   decrypts noise, adds a secret dither, drops low bits, returns       `open`
    5. evaluator    subtracts its mask, compares the checks                             `unblind`

The kernel (gradient.py) and SEAL (crypto/lattice/lattice_product.py) add how they make keys, encrypt, multiply, hide
and decrypt. Pieces of g go to the parts of J whose rows they meet, and what comes back is summed.

Who learns what, and why not more:

- The product's second polynomial c1 is c1(g) J, from which the holder of g would divide J out. The encryption of zero
  of step 3 makes it uniform (RLWE, even to the owner of the secret key), so the reply says nothing about J.
- Of the first polynomial only the wanted coefficients leave, each with a mask uniform modulo q: value and noise e J
  are hidden perfectly. The unwanted coefficients, cross terms between columns, never leave.
- An exact decryption would show the evaluator, which knows its mask, the noise, which is linear in the secret key (Li
  and Micciancio 2021). The holder adds a secret dither D to w and returns the top bits alone; how far that is from an
  opening without noise, by value and by run, is derived below.
- The dither is added modulo q, before anything is rounded, and each coefficient is rounded by itself: what is returned
  is a function of dithered values alone.
- Zeros in J change no step.

A key that the holder chose. What the holder sends is b and the seed from which a is expanded; the evaluator does so
itself, so a cannot be chosen (from a = 0, or any structured a, J would come out by division, as without step 3). With
the expansion (ChaCha20 and rejection) as a random oracle a is uniform. Then:

- An encryption of zero is (b u + e0, a u + e1), u, e0, e1 fresh and known to the evaluator alone. b does not enter the
  second half, which is an RLWE sample under u: c1 of the reply, c1(g) J + a u + e1, is pseudorandom whatever b and
  c1(g) are, to everyone, the holder included. The first half leaves under the mask. So a reply is as good as uniform
  for any b and any [[g]]: nothing else is asked of the holder's key or of its ciphertexts.
- A wrong b makes the opened values wrong: they hold b u at the wanted positions. That is found by the checks beside
  them, as any value is that the holder does not open as it decrypts.
- A holder may try Q seeds and take the best: its advantage is at most Q times that against one uniform a, as for any
  scheme that expands its key. A nonce from the evaluator would take the factor away. It costs a message before every
  key and a key for each evaluator, so it is left out.

Crafted replies. The holder cannot tell a reply from any other ring element: an evaluator that sends c1 of its choosing
has linear functions of the secret key opened, and may collect the key of that epoch, which opens each [[g]] of the
epoch. What is checked is the shape: no more values are opened than J has columns and checks for. New keys every epoch
are the limit. Paillier's windows do not lead to its key, and where a holder keeps what it decrypts there is no such
door.

Fixed point. For a layout of f columns and a public cap T, columns are scaled to integers x with ||x||_2 <= T / sqrt(f)
and ||x||_1 <= L = T sqrt(n / f); g is scaled to integers below G = 0.98 (q/2) / L. So |sum g x| < q/2 for every g
within its bound, the noise of a product has standard deviation at most sqrt(10.5) T, and the scale of g depends on n,
the layout and the bound alone. The scales of J's columns never leave the evaluator. Entry j of J^T g errs by at most
||J_j||_2 (1.6e-6 sqrt(n) bound + 2^-22 sqrt(f) sum |g|), typically by a third of the first term and far less of the
second: on data of unit scale a mean gradient J^T g / n is good to some 1e-6.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.tall import Here, Sparse, Stretch, Tall, TallPart
from securevfl.crypto.kernel.ciphertexts import NOISE_STD, RingLayout, named
from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.prg import KEY_BYTES as SEED_BYTES
from securevfl.crypto.prg import Prg, random_words
from securevfl.crypto.scheme import ROOM, Evaluator, KeyHolder, LinearScheme, Secret, Shape, header, sized
from securevfl.errors import ConfigError, CryptoError, OpeningMismatch, RangeError

# What both sides agree on: sizes, fixed-point scale, headers of messages.
#
# How far openings are from noise-free ones. An opened value is w + D with the low `drop` bits cut off, D the sum of
# three secret integers uniform below M = 2^k, less its mean; the noise e moves it to w + e + D. Take squared Hellinger
# distances, H^2 = 1 - sum sqrt(P Q). A density moved by e is within I e^2 / 8 of itself, I its Fisher information,
# since its square root moves by at most e times the norm of its derivative; for three uniform summands I = 4.563 / M^2.
# Given all noises of a run, the openings are drawn one after the other, each within .571 e^2 / M^2 whatever came before
# it and however its mask was chosen. So their squared distances add up, and so do their means over the noises, whose
# variance is at most `noise`^2. With total variation <= sqrt(2) H, a run that opens R values is within
#
#     sqrt(2 R .571) noise / M
#
# of one whose openings are made from J^T g and the mask alone. (J must not follow the noise; ciphertexts are RLWE's
# affair.) One uniform summand, of the same error, would cost 2 bits more here, and R in place of sqrt(R) with masks
# that aim at its edges.
#
# The last character of a message's magic is the version of its format.


LEAST, MOST = 3, 20  # check columns beside those of J (`checked`)
PIECE = 16  # sample blocks that are sealed together, and in a message where g goes in several
TILE = 1 << 18  # coefficients of plaintexts that are made at a time
SLOT = "plaintexts of rows"  # where a stretch keeps them
SEALED = struct.Struct("<4s16sIIIId")  # magic, key, n, c, r, s, bound
BLINDED = struct.Struct("<4s16sIIIII")  # magic, key, n, c, r, s, d
OPENED = struct.Struct("<4s16sII")  # magic, key, values of J^T g, and of checks

FISHER = 0.571  # an eighth of the Fisher information of three uniform summands, rounded up
OPENINGS = 2**18  # values that a run may open within 2^-40 of noise-free ones


@dataclass(frozen=True)
class Profile:
    """Sizes of a scheme that are chosen to go together.

    `bits` are the primes; `k` bits has each of the three summands of the dither, `drop` bits are cut off after it; `T`
    bounds the norm of an encoded column block, `zero` the standard deviation of the noise of an encryption of zero.
    """

    bits: tuple[int, ...]
    k: int
    drop: int
    T: float
    zero: float

    @property
    def noise(self) -> float:
        """The standard deviation of the noise in a reply, at most: products, then the encryption of zero."""
        return math.hypot(NOISE_STD * self.T, self.zero)

    def distance_bits(self, values: int) -> float:
        """-log2 of the statistical distance of a run that opens so many values to one without noise, at least."""
        return self.k - math.log2(self.noise * math.sqrt(2 * FISHER * values))


class RowParameters(ABC):
    """A profile, the numbers that follow from it, and how an engine reads and multiplies ciphertexts.

    Plaintexts are arrays whose last axes are sample blocks and column blocks, queries arrays whose last is the former.
    """

    engine: ClassVar[str]  # in errors
    magic: ClassVar[tuple[bytes, bytes, bytes, bytes]]  # of keys, what is sealed, blinded and opened
    key_size: int  # bytes of the first polynomial of a public key
    key_bits: int  # of the largest modulus of a key

    def __init__(self, profile: Profile, modulus: int) -> None:
        self.profile = profile
        self.modulus = modulus
        self.levels = modulus / 2.0**profile.drop  # distinct values of an opened number

    def __reduce__(self) -> tuple[Any, ...]:
        return _shared, (type(self), self.profile)

    @abstractmethod
    def choose(self, n: int, c: int, d: int, openings: int) -> RingLayout:
        """Return the cheapest layout for g of n x c when d columns are multiplied and so many products asked."""

    @abstractmethod
    def sealed_size(self, layout: RingLayout, width: int, blocks: int) -> int:
        """Return the bytes of so many sample blocks of so many outputs, sealed together."""

    @abstractmethod
    def answer_size(self, layout: RingLayout, d: int) -> int:
        """Return the bytes of a blinded product of d columns behind its header."""

    @abstractmethod
    def query(self, layout: RingLayout, width: int, sealed: bytes, blocks: int, F: int) -> NDArray[Any]:
        """Read what `sealed_size` measures, for products with F column blocks."""

    @abstractmethod
    def room(self, layout: RingLayout, blocks: int, F: int) -> tuple[NDArray[Any], int]:
        """Return an array for the plaintexts of so many blocks, and the bytes that they will take."""

    @abstractmethod
    def plaintexts(self, layout: RingLayout, plain: Floats) -> NDArray[Any]:
        """Turn integers in coefficients (M, blocks, F) into plaintexts."""

    @abstractmethod
    def sums(self, layout: RingLayout) -> Any:
        """Begin sums of products, by output block."""


@functools.lru_cache(maxsize=4)
def _shared(kind: Any, profile: Profile) -> RowParameters:
    """Return this process's own copy of these parameters when they came from another process."""
    parameters: RowParameters = kind(profile)
    return parameters


# How rows of J become integers, with check columns beside them.
#
# Columns are measured one by one and scaled to fixed point. Norms add up over stretches of rows, so that every process
# measures what it holds. Columns become integers x of ||x||_2 <= T / sqrt(f) and ||x||_1 <= L, f the columns in a
# block, so that no sum leaves the modulus; the scales stay with the owner of J.
#
# *Checks* tell a passive party whether what was opened is what was decrypted. A check column is a random combination of
# the columns of J as they are encoded, integers x_j:
#
#     rho_j    uniform in [-1, 1) / m, m = max(1, sqrt(d / 3)), drawn by the owner of J
#     check    sum_j rho_j x_j, each entry rounded up or down at random
#
# It is encoded, multiplied, blinded and opened as the columns are, so to the key holder it is uniform like them. With
# v_j what the columns open to and v what the check does, in levels,
#
#     v - sum_j rho_j v_j  modulo q / 2^drop
#
# is the dither of the one less that of the others, and what rounding the check's entries adds: random, bounded, and
# known in its deviation (`tolerance`). A value that was changed by Delta moves it by rho_j Delta, which nobody but the
# owner knows. Each check and each output of g is a test of its own. docs/proof.md has the probabilities.
#
# How many there are follows from the layout and d alone: those that fit in blocks that are there anyway (`checked`).


READ = 512  # rows with known zeros that are measured at a time


@dataclass(frozen=True)
class Norms:
    """Sizes of each column (d,): its largest |x|, and the sums of squares and of |x| relative to that."""

    largest: Floats
    squares: Floats
    absolute: Floats


def norms(stretch: Stretch) -> Norms:
    """Compute the norms of a stretch's columns. RangeError if one is not finite."""
    if isinstance(stretch.rows, Sparse):
        return _sparse_norms(stretch.rows)
    return merged(_norms(X) for _, X in stretch.blocks())


def _sparse_norms(rows: Sparse) -> Norms:
    """Compute the norms of rows that are read without their zeros, `READ` rows at a time.

    In more rows at a time, more columns would have entries.
    """
    n, d = rows.shape
    found = []
    for start in range(0, n, READ):
        columns, part = rows.part(start, min(n, start + READ))
        one, whole = _norms(part), np.zeros((3, d))
        whole[:, columns] = one.largest, one.squares, one.absolute
        found.append(Norms(*whole))
    return merged(found)


def _norms(X: Floats) -> Norms:
    largest = np.abs(X).max(axis=0)
    if not np.isfinite(largest).all():
        raise RangeError("lattice: J has values that are not finite; drop or impute them first")
    unit = np.abs(X) / np.where(largest > 0, largest, 1.0)
    return Norms(largest, (unit**2).sum(axis=0), unit.sum(axis=0))


def merged(found: Iterable[Norms]) -> Norms:
    """Norms of all rows together."""
    each = list(found)
    largest = np.max([one.largest for one in each], axis=0)
    unit = np.where(largest > 0, largest, 1.0)
    shares = [one.largest / unit for one in each]
    squares = sum(share**2 * one.squares for share, one in zip(shares, each, strict=True))
    absolute = sum(share * one.absolute for share, one in zip(shares, each, strict=True))
    return Norms(largest, np.asarray(squares), np.asarray(absolute))


@dataclass(frozen=True)
class Encoding:
    """How J becomes integers in coefficients: the layout, each column's largest |x|, and the integers to that (d,).

    rho: the secret share of each column in each check (d x checks).
    """

    layout: RingLayout
    largest: Floats
    scale: Floats
    rho: Floats = field(repr=False)

    @classmethod
    def of(cls, layout: RingLayout, parameters: RowParameters, found: Norms, rho: Floats) -> Encoding:
        """Columns scaled to integers of norm T / sqrt(f) and sum L at most; a column of 0/1 without any rounding."""
        zero = found.largest == 0
        T, d = parameters.profile.T, sum(rho.shape)
        euclid, absolute = np.sqrt(found.squares) + zero, found.absolute + zero
        scale = np.minimum(T / math.sqrt(min(layout.columns, d)) / euclid, column_cap(parameters, layout) / absolute)
        return cls(layout, found.largest, np.where(scale > 1, np.floor(scale), scale), rho)

    @property
    def width(self) -> int:
        """Columns that are encoded: those of J, and the checks."""
        return sum(self.rho.shape)

    @property
    def worth(self) -> Floats:
        """(d,): worth of one integer in each column."""
        return self.largest / self.scale

    def same(self, other: Encoding) -> bool:
        """Whether plaintexts of the one are those of the other, for the same J."""
        sizes = (self.layout.r, self.layout.s) == (other.layout.r, other.layout.s)
        return sizes and np.array_equal(self.rho, other.rho)


def column_cap(parameters: RowParameters, layout: RingLayout) -> float:
    """Compute L, the greatest sum of |x| over an encoded column."""
    return parameters.profile.T * math.sqrt(layout.n / layout.columns)


def g_scale(parameters: RowParameters, layout: RingLayout, bound: float) -> float:
    """Compute how many integers a unit of g is. RangeError if the bound on |g| is too small for that."""
    scale: float = 0.49 * parameters.modulus / column_cap(parameters, layout) / bound
    if not math.isfinite(scale):
        raise RangeError("lattice: the bound on g is too small for a fixed-point scale; scale g up")
    return scale


def span(layout: RingLayout, start: int, rows: int, block: int) -> tuple[int, int]:
    """Return the rows of the matrix, from and to, that a sample block spans in a stretch that begins at `start`."""
    return max(start, block * layout.s), min(start + rows, (block + 1) * layout.s)


def scaled(stretch: Stretch, encoding: Encoding, start: int, blocks: Sequence[int]) -> Floats:
    """Rows of these sample blocks as integers, checks beside (len(blocks) * s, width), with zeros for rows of other
    stretches.

    start: the stretch's first row.
    """
    layout, d = encoding.layout, encoding.width
    unit = np.where(encoding.largest > 0, encoding.largest, 1.0)
    rows = np.zeros((len(blocks), layout.s, d))
    for place, block in enumerate(blocks):
        begin, end = span(layout, start, len(stretch), block)
        own = np.rint(stretch.rows[slice(begin - start, end - start)] / unit * encoding.scale)
        rows[place, begin - block * layout.s : end - block * layout.s] = with_checks(own, encoding.rho)
    return rows.reshape(-1, d)


DEVIATIONS = 9.0  # a test fails by chance with probability 2 exp(-81 / 2) = 2^-57.4 at most
ROUNDED = 0.25  # variance of a rounding to a whole level or entry, at most, as a sub-Gaussian one


def checked(layout: RingLayout, d: int) -> int:
    """How many columns are multiplied for d of J: these, and as many checks as fit in blocks that are there anyway."""
    return min(layout.column_blocks(d + LEAST) * layout.columns, d + MOST)


def combinations(d: int, checks: int) -> Floats:
    """rho (d x checks), drawn afresh."""
    words = random_words(d * checks).reshape(d, checks)
    uniform = np.asarray((words >> np.uint64(11)) * 2.0**-52 - 1.0, np.float64)
    return uniform / max(1.0, math.sqrt(d / 3))


def with_checks(ints: Floats, rho: Floats) -> Floats:
    """Rows of whole numbers (m x d), and their check columns beside them (m x (d + checks))."""
    exact = ints @ rho
    parts = (random_words(exact.size) >> np.uint64(11)) * 2.0**-53
    return np.concatenate([ints, np.floor(exact + parts.reshape(exact.shape))], axis=1)


def tolerance(rho: Floats, layout: RingLayout, profile: Profile, unit: float) -> Floats:
    """Return (checks,): how far a test may be from zero, in levels. unit: levels that 1 in an entry moves a value by, g
    at its bound."""
    dither = 4.0 ** (profile.k - profile.drop - 1) + ROUNDED
    spread = np.sqrt(dither * (1 + (rho**2).sum(axis=0)) + ROUNDED * layout.n * unit**2)
    ones = layout.sample_blocks + layout.column_blocks(len(rho)) * np.abs(rho).max()  # of an entry
    return np.asarray(DEVIATIONS * spread + unit * ones)


def fits(opened: Floats, rho: Floats, levels: float, within: Floats) -> bool:
    """Whether opened levels ((d + checks) x c), about zero, pass all tests."""
    rest = opened[len(rho) :] - rho.T @ opened[: len(rho)]
    rest -= levels * np.rint(rest / levels)
    return bool((np.abs(rest) <= within[:, None]).all())


# Opened values as words of few bits: a count among n rows needs few, and a word of k bits tells k bits at most.
#
# All levels that a value may open to, q / 2^drop of them, are parted into 2^k stretches of one length, and only the
# number of the stretch that a value lies in is sent. It is a function of the value that would be opened otherwise, so
# whatever is said of that value's distance from one without noise holds of its word. What the evaluator asked for has
# no part in it: one that multiplies by other numbers than it should gets k bits of these. Masks are uniform, so the
# place of a value in its stretch is uniform too, and the error of a word is that of a rounding to whole words
# (`error`).
#
# Beside the columns the first LEAST checks are opened, as words too, and no others.


MOST_BITS = 32  # of a word


def size(word: int) -> int:
    """Return the bytes that a word of so many bits takes."""
    return -(-word // 8)


def cut(values: Floats, levels: float, word: int) -> bytes:
    """Return the words of these values (m,), each within half of the levels either way."""
    check(word)
    words = np.floor(values * (2.0**word / levels)).astype(np.int64) % (1 << word)
    return words.astype("<u4").view(np.uint8).reshape(-1, 4)[:, : size(word)].tobytes()


def read(body: bytes, levels: float, word: int) -> Floats:
    """Return the middle of the stretch that each word names, in levels."""
    whole = np.zeros((len(body) // size(word), 4), np.uint8)
    whole[:, : size(word)] = np.frombuffer(body, np.uint8).reshape(-1, size(word))
    words = whole.view("<u4")[:, 0].astype(np.float64)
    return np.asarray((words + 0.5) * (levels / 2.0**word))


def error(rho: Floats, levels: float, word: int) -> Floats:
    """Return (checks,): how far words may move each test of a check (d x checks), in levels."""
    step = levels / 2.0**word
    return np.asarray(DEVIATIONS * step * np.sqrt((1 + (rho**2).sum(axis=0)) / 12))


def check(word: int) -> None:
    """ConfigError for a word of an impossible number of bits."""
    if not 1 <= word <= MOST_BITS:
        raise ConfigError(f"a word of 1 to {MOST_BITS} bits was expected, got {word} bits; take fewer rows")


# What an evaluator does with rows of J, in whichever process holds them: encode and multiply.
#
# Sample blocks are taken in groups of `PIECE`, as they travel. The plaintexts of a group are kept, as there is room;
# what finds none is made anew whenever it is multiplied, some `TILE` coefficients at a time. A group that lies in two
# stretches has plaintexts in each, with zeros for the rows of the other.


def group_range(layout: RingLayout, group: int) -> range:
    """Return the sample blocks of a group."""
    return range(group * PIECE, min(layout.sample_blocks, (group + 1) * PIECE))


@dataclass(frozen=True)
class Groups:
    """Consecutive sample blocks of a message, in the groups that hold them: of each group what is sealed by output
    block, a seed and c0."""

    own: range
    sealed: dict[int, list[bytes]]

    @property
    def first(self) -> int:
        """The number of the first sample block."""
        return self.own.start

    @property
    def count(self) -> int:
        """The number of sample blocks of g that are held here."""
        return len(self.own)

    def some(self, blocks: range) -> Groups:
        """Return the part of these blocks that lies in the range `blocks`."""
        groups = range(blocks.start // PIECE, -(-blocks.stop // PIECE))
        return Groups(blocks, {group: sealed for group, sealed in self.sealed.items() if group in groups})

    def then(self, other: Groups) -> Groups:
        """Return these blocks and `other`, which follow them, as one."""
        return Groups(range(self.own.start, other.own.stop), self.sealed | other.sealed)


class Kept:
    """A stretch's plaintexts by group, as many as there is room for."""

    def __init__(self, encoding: Encoding, room: int) -> None:
        self.encoding = encoding
        self.nbytes = 0
        self.room = room
        self.groups: dict[int, NDArray[Any]] = {}


@dataclass(frozen=True)
class EncodedRows:
    """A stretch that begins at row `start`, and how it is encoded."""

    stretch: Stretch
    parameters: RowParameters
    encoding: Encoding
    start: int
    kept: Kept

    @classmethod
    def of(cls, stretch: Stretch, parameters: RowParameters, encoding: Encoding, start: int, room: int) -> EncodedRows:
        """Return the rows with what the stretch keeps of this encoding; plaintexts of another one go."""
        kept: Kept | None = stretch.kept.get(SLOT)
        if kept is None or not kept.encoding.same(encoding):
            kept = stretch.kept[SLOT] = Kept(encoding, room)
        return cls(stretch, parameters, encoding, start, kept)

    @property
    def layout(self) -> RingLayout:
        return self.encoding.layout

    @property
    def column_blocks(self) -> int:
        """F, the number of column blocks."""
        return self.layout.column_blocks(self.encoding.width)

    def blocks_of(self, group: int) -> range:
        """Return the sample blocks of a group that have rows here."""
        blocks, s = group_range(self.layout, group), self.layout.s
        stop = -(-(self.start + len(self.stretch)) // s)
        return range(max(blocks.start, self.start // s), min(blocks.stop, stop))

    def tiles(self, blocks: range) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield which of these sample blocks, a tile at a time, and their plaintexts."""
        step = max(1, TILE // (self.layout.points * self.column_blocks))
        for at in range(0, len(blocks), step):
            some = blocks[at : at + step]
            whole = scaled(self.stretch, self.encoding, self.start, some)
            plain = self.layout.plaintexts(whole, slice(0, len(some)))
            yield slice(at, at + len(some)), self.parameters.plaintexts(self.layout, plain)

    def group(self, group: int) -> NDArray[Any] | None:
        """Return the plaintexts of what the stretch has of a group, now kept if there is room; else None."""
        if group in self.kept.groups:
            return self.kept.groups[group]
        blocks = self.blocks_of(group)
        out, size = self.parameters.room(self.layout, len(blocks), self.column_blocks)
        if self.kept.nbytes + size > self.kept.room:
            return None
        for some, plaintexts in self.tiles(blocks):
            out[..., some, :] = plaintexts
        self.kept.groups[group] = out
        self.kept.nbytes += size
        return out

    def sparse(self, rows: Sparse, block: int) -> tuple[NDArray[np.intp], NDArray[Any]]:
        """Return the column blocks in which everyone knows that a sample block may have entries, and its plaintexts
        there."""
        layout, encoding = self.layout, self.encoding
        begin, end = span(layout, self.start, len(rows), block)
        present, part = rows.part(begin - self.start, end - self.start)
        columns = np.concatenate([present, np.arange(len(encoding.scale), encoding.width)])
        touched = np.unique(columns // layout.columns)
        plain = np.zeros((layout.points, 1, len(touched)))
        sample = np.arange(begin, end) - block * layout.s
        at = columns % layout.columns * layout.s + layout.s - 1 - sample[:, None]
        unit = np.where(encoding.largest > 0, encoding.largest, 1.0)
        where = np.broadcast_to(np.searchsorted(touched, columns // layout.columns), at.shape)
        ints = np.rint(part / unit[present] * encoding.scale[present])
        plain[at, 0, where] = with_checks(ints, encoding.rho[present])
        return touched, self.parameters.plaintexts(layout, plain)


def encode(
    stretch: Stretch, parameters: RowParameters, encoding: Encoding, start: int, blocks: range, room: int
) -> None:
    """Make the plaintexts of these sample blocks ready, as far as there is room. `start`: the stretch's first row."""
    rows = EncodedRows.of(stretch, parameters, encoding, start, room)
    if not isinstance(stretch.rows, Sparse):
        for group in range(blocks.start // PIECE, -(-blocks.stop // PIECE)):
            rows.group(group)


def multiply(
    stretch: Stretch, parameters: RowParameters, encoding: Encoding, start: int, blocks: Groups, room: int
) -> Any:
    """Return the products of these sample blocks of g with the stretch's rows, summed."""
    layout, rows = encoding.layout, EncodedRows.of(stretch, parameters, encoding, start, room)
    sums, F = parameters.sums(layout), rows.column_blocks
    for group, sealed in blocks.sealed.items():
        whole, mine = group_range(layout, group), rows.blocks_of(group)
        taken = range(max(mine.start, blocks.own.start), min(mine.stop, blocks.own.stop))
        queries = [
            parameters.query(layout, outputs.stop - outputs.start, part, len(whole), F)[..., _within(taken, whole)]
            for outputs, part in zip(layout.outputs, sealed, strict=True)
        ]
        if isinstance(stretch.rows, Sparse):
            for place, block in enumerate(taken):
                columns, plaintexts = rows.sparse(stretch.rows, block)
                for output_block, query in enumerate(queries):
                    sums.add_columns(output_block, query[..., place, None], plaintexts, columns, F)
            continue
        ready = rows.group(group)
        tiles = rows.tiles(taken) if ready is None else [(slice(0, len(taken)), ready[..., _within(taken, mine), :])]
        for some, plaintexts in tiles:
            for output_block, query in enumerate(queries):
                sums.add_product(output_block, query[..., some], plaintexts)
    return sums


def _within(some: range, blocks: range) -> slice:
    return slice(some.start - blocks.start, some.stop - blocks.start)


class RowScheme(LinearScheme):
    """J^T [[g]] on a ring, under 128-bit RLWE alone.

    `columns` is the width of J that a holder's first layout is tuned for; any width works, and a holder tunes itself to
    the widths it has opened. Executors are not used. ConfigError for an impossible width.
    """

    holders: ClassVar[type[RowHolder]]
    evaluators: ClassVar[type[RowEvaluator]]

    def __init__(self, parameters: RowParameters, columns: int) -> None:
        if columns < 1:
            raise ConfigError(f"{parameters.engine}: columns is the expected width of J, at least 1, got {columns}")
        self._columns = columns
        self._parameters: Any = parameters

    @property
    def strength(self) -> str:
        return f"RLWE ring N={DEGREE}, {self._parameters.key_bits}-bit modulus (HomomorphicEncryption.org: 128 bits)"

    def distance_bits(self, values: int) -> float:
        return float(self._parameters.profile.distance_bits(values))

    @property
    def checks(self) -> int:
        return MOST

    def opened_bits(self, rows: int, columns: int, word: int) -> int:
        return (columns + LEAST) * word

    def opened_size(self, shape: Shape) -> int:
        if shape.word is not None:
            return OPENED.size + (shape.columns + LEAST) * size(shape.word)
        return OPENED.size + 4 * shape.outputs * (shape.columns + MOST)

    @property
    def rotates(self) -> bool:
        return True

    def keygen(self, executor: Executor | None = None, *, columns: int = 0, openings: int = 1) -> KeyHolder:
        return self.holders(self._parameters, columns or self._columns, openings)

    def evaluator(self, public: bytes, executor: Executor | None = None) -> Evaluator:
        return self.evaluators(self._parameters, public)


def _fingerprint(public: bytes) -> bytes:
    return hashlib.sha256(public).digest()[:16]


class RowHolder(KeyHolder):
    """Owns the secret key, which is never written anywhere."""

    def __init__(self, parameters: Any, columns: int, openings: int = 1) -> None:
        seed = os.urandom(SEED_BYTES)
        self._parameters = parameters
        self._columns, self._openings, self._widest = columns, openings, 0
        self.public = parameters.magic[0] + seed + self._new_key(seed)
        self._fingerprint = _fingerprint(self.public)

    @abstractmethod
    def _new_key(self, seed: bytes) -> bytes:
        """Make a secret key; return the first polynomial of its public key as it travels."""

    @abstractmethod
    def _sealed(self, layout: RingLayout, g: Floats, blocks: slice, prg: Prg) -> bytes:
        """Encrypt g (rows x outputs of a block), in whole numbers, the rows of these sample blocks."""

    @abstractmethod
    def _levels(
        self, layout: RingLayout, width: int, d: int, view: memoryview, prg: Prg
    ) -> Iterator[tuple[slice, Floats]]:
        """Yield columns, and (w + D) / 2^drop, rounded, of each (columns, outputs), of an output block of an answer."""

    def encrypt(self, g: Floats, *, bound: float) -> bytes:
        pieces = [piece for piece, _ in self.encrypt_pieces(g, bound=bound)]
        return pieces[0] + b"".join(piece[SEALED.size :] for piece in pieces[1:])

    def encrypt_pieces(self, g: Floats, *, bound: float) -> Iterator[tuple[bytes, bool]]:
        g, engine = np.asarray(g, np.float64), self._parameters.engine
        if g.ndim != 2 or 0 in g.shape:
            raise RangeError(f"{engine}: g is n x c with n, c >= 1, got shape {g.shape}")
        if not (math.isfinite(bound) and bound > 0):
            raise RangeError(f"{engine}: the bound on g must be a positive finite number")
        if not np.all(np.abs(g) <= bound):
            raise RangeError(
                f"{engine}: g has values that are not finite or above its bound {bound}; pass values within it"
            )
        layout = self._parameters.choose(*g.shape, (self._widest or self._columns) + LEAST, self._openings)
        return self._pieces(layout, g * g_scale(self._parameters, layout, bound), bound)

    def _pieces(self, layout: RingLayout, g: Floats, bound: float) -> Iterator[tuple[bytes, bool]]:
        prg = Prg.fresh("errors of a sealed residual")
        magic = self._parameters.magic[1]
        head = SEALED.pack(magic, self._fingerprint, layout.n, layout.c, layout.r, layout.s, bound)
        for start in range(0, layout.sample_blocks, PIECE):
            blocks = group_range(layout, start // PIECE)
            some = slice(blocks.start, blocks.stop)
            rows = np.rint(g[layout.rows(some)])
            parts = [self._sealed(layout, rows[:, outputs], some, prg) for outputs in layout.outputs]
            yield b"".join([head, *parts]), blocks.stop == layout.sample_blocks

    def open(self, blinded: bytes, shape: Shape) -> bytes:
        parameters = self._parameters
        n, c, r, s, d = header(parameters.engine, BLINDED, parameters.magic[2], blinded, self._fingerprint)
        shape.check(n, c, d)
        layout = named(parameters.engine, n, c, r, s)
        wide = checked(layout, d)
        sized(parameters.engine, parameters.magic[2], blinded, BLINDED.size + parameters.answer_size(layout, wide))
        view, prg, opened = memoryview(blinded)[BLINDED.size :], Prg.fresh("dither of an opening"), []
        for outputs in layout.outputs:
            width = outputs.stop - outputs.start
            whole = np.empty((wide, width))
            for columns, levels in self._levels(layout, width, wide, view, prg):
                whole[columns] = levels
            opened.append(whole.T.ravel())
            view = view[parameters.answer_size(replace(layout, c=width), wide) :]
        self._widest = max(self._widest, d)
        agreed = shape._replace(columns=d)
        return answer(parameters.magic[3], self._fingerprint, np.concatenate(opened), agreed, parameters.levels)


def answer(magic: bytes, key: bytes, values: Floats, shape: Shape, levels: float) -> bytes:
    """Return what a key holder opens of its values, columns and then checks of each output, as the shape agreed says.

    Of values that are not agreed to be whole no more leaves than the words of the columns and LEAST checks.
    """
    outputs, columns, word = shape.outputs, shape.columns, shape.word
    if word is None:
        body = values.astype("<i4").tobytes()
        return OPENED.pack(magic, key, outputs * columns, len(values) - outputs * columns) + body
    if outputs != 1:
        raise RangeError(f"words are opened of one output, {outputs} were agreed; open whole values")
    return OPENED.pack(magic, key, columns, LEAST) + cut(values[: columns + LEAST], levels, word)


class PreparedRows:
    """J, here or in parts elsewhere, what its scale follows from, and the bytes of plaintexts each part may keep."""

    def __init__(self, J: Tall, found: Norms, room: int) -> None:
        self.J = J
        self.norms = found
        self.room = room
        self._rho: dict[int, Floats] = {}

    def rho(self, layout: RingLayout) -> Floats:
        """Return the combinations of columns in the checks, the same whenever J is multiplied in this layout."""
        d = self.J.shape[1]
        checks = checked(layout, d) - d
        if checks not in self._rho:
            self._rho[checks] = combinations(d, checks)
        return self._rho[checks]

    @property
    def nbytes(self) -> int:
        """Bytes of J and its plaintexts, of what is in this process."""
        here = [part.stretch for part in self.J.parts if isinstance(part, Here)]
        return sum(stretch.nbytes + kept_bytes(stretch) for stretch in here)


def kept_bytes(stretch: Stretch) -> int:
    """Return how many bytes the kept plaintexts of a stretch take."""
    return stretch.kept[SLOT].nbytes if SLOT in stretch.kept else 0


@dataclass(frozen=True)
class Scale:
    """How opened integers read as J^T g, and what the checks beside it should be."""

    layout: RingLayout
    columns: Floats  # (d,): worth of one integer step in each column of J
    g: float  # worth of one integer step of g
    rho: Floats  # (d x checks): the share of each column in each check
    within: Floats  # (checks,): how far off a check may be, in levels

    @property
    def width(self) -> int:
        """Columns that are opened, checks included."""
        return sum(self.rho.shape)


class Product:
    """[[J^T g]]; not fit to leave before it is blinded.

    `taken` sample blocks of g are in it, or on their way to the parts of J, which work on their own.
    """

    def __init__(self, parameters: RowParameters, encoding: Encoding, scale: Scale, bound: float) -> None:
        self.scale = scale
        self.encoding = encoding
        self.bound = bound
        self.taken = 0
        self._parameters = parameters
        self._held: dict[int, Groups] = {}  # by part of J: too few for a call
        self._coming: list[Future[Any]] = []

    @property
    def left(self) -> int:
        """Sample blocks of g that have not come yet."""
        return self.scale.layout.sample_blocks - self.taken

    def take(self, blocks: Groups, prepared: PreparedRows) -> None:
        """Send the next blocks to the rows that they belong to."""
        for place, part in enumerate(prepared.J.parts):
            if not (own := self.of(part, blocks)):
                continue
            mine = blocks.some(own)
            if place in self._held:
                mine = self._held.pop(place).then(mine)
            if mine.count < part.least and own.stop * self.scale.layout.s < part.stop:
                self._held[place] = mine
                continue
            args = self._parameters, self.encoding, part.start, mine, prepared.room
            self._coming.append(part.run(multiply, *args))
            while len(self._coming) > 1 and self._coming[0].done() and self._coming[1].done():
                self._add_up()
        self.taken += blocks.count

    def of(self, part: TallPart, blocks: Groups) -> range:
        """Which of these blocks hold rows of this part of J."""
        s, stop = self.scale.layout.s, blocks.first + blocks.count
        return range(max(blocks.first, part.start // s), min(stop, -(-part.stop // s)))

    def sums(self) -> Any:
        """Return the ciphertexts of the product. CryptoError if blocks of g are missing."""
        if self.left:
            raise CryptoError(
                f"{self._parameters.engine}: {self.left + self.taken} blocks of g were expected, {self.taken} came; "
                "it was cut, ask for it again"
            )
        while len(self._coming) > 1:
            self._add_up()
        return self._coming[0].result()

    def _add_up(self) -> None:
        self._coming[0].result().add(self._coming.pop(1).result())


class Mask(Secret):
    """What `blind` added, as fractions of the modulus, and how to read the rest. Serves once."""

    __slots__ = ("masks", "scale", "spent")

    def __init__(self, scale: Scale, masks: list[Floats]) -> None:
        self.scale = scale
        self.masks = masks
        self.spent = False


class RowEvaluator(Evaluator):
    """Owns J, here or in parts elsewhere. Needs of the holder its public key and, per message, n, c, the layout and the
    bound."""

    def __init__(self, parameters: Any, public: bytes) -> None:
        magic = parameters.magic[0]
        start = len(magic) + SEED_BYTES
        if public[: len(magic)] != magic:
            raise CryptoError(
                f"{parameters.engine}: not a public key of this version; both sides must run the same release"
            )
        sized(parameters.engine, magic, public, start + parameters.key_size)
        self._parameters, self._fingerprint, self._engine = parameters, _fingerprint(public), parameters.engine
        self._has_public(memoryview(public)[start:], public[len(magic) : start])

    @abstractmethod
    def _has_public(self, first: memoryview, seed: bytes) -> None:
        """Take the public key. CryptoError if a residue is not below its prime."""

    @abstractmethod
    def _answer(
        self, layout: RingLayout, total: Any, d: int, width: int, prg: Prg
    ) -> Iterator[tuple[bytes, slice, Any]]:
        """Hide the products of an output block, so many columns and outputs; yield what is sent, columns, and their
        mask as a fraction of q (columns, outputs)."""

    def prepare(self, J: Floats | Tall, *, room: int = ROOM) -> PreparedRows:
        if J.ndim != 2 or 0 in J.shape:
            raise RangeError(f"{self._engine}: J is n x d with n, d >= 1, got shape {J.shape}")
        tall = J if isinstance(J, Tall) else Tall.here(np.asarray(J, np.float64))
        found = [part.run(norms) for part in tall.parts]
        rows = sum(part.stretch.nbytes for part in tall.parts if isinstance(part, Here))
        return PreparedRows(tall, merged(each.result() for each in found), max(0, room - rows))

    def encode(self, prepared: PreparedRows, sealed: bytes, onto: Product | None = None) -> None:
        product, blocks = self._begun(prepared, sealed, onto)
        for part in prepared.J.parts:
            if isinstance(part, Here):  # elsewhere plaintexts are made when they are multiplied
                own = product.of(part, blocks)
                part.run(encode, self._parameters, product.encoding, part.start, own, prepared.room)

    def transpose_product(self, prepared: PreparedRows, sealed: bytes, onto: Product | None = None) -> Product:
        product, blocks = self._begun(prepared, sealed, onto)
        product.take(blocks, prepared)
        return product

    def _blocks(self, product: Product, sealed: bytes) -> Groups:
        """Return the blocks in a message, the next ones of the product. CryptoError if it is of another length."""
        layout, parameters = product.scale.layout, self._parameters
        if product.taken % PIECE:
            raise CryptoError(f"{self._engine}: a message of g begins within a group; it is malformed")
        if layout.output_blocks * SEED_BYTES > len(sealed):  # before a list of so many is made
            raise CryptoError(f"{self._engine}: a message of g has fewer bytes than outputs; it is cut")
        groups: dict[int, list[bytes]] = {}
        at, taken = SEALED.size, product.taken
        while taken < layout.sample_blocks and (at < len(sealed) or not groups):
            blocks, parts = group_range(layout, taken // PIECE), []
            for outputs in layout.outputs:
                size = parameters.sealed_size(layout, outputs.stop - outputs.start, len(blocks))
                parts.append(sealed[at : at + size])
                at += size
            groups[taken // PIECE], taken = parts, blocks.stop
        sized(parameters.engine, parameters.magic[1], sealed, at)
        return Groups(range(product.taken, taken), groups)

    def blind(self, product: Product) -> tuple[bytes, Mask]:
        layout, wide, parameters = product.scale.layout, product.scale.width, self._parameters
        sizes = layout.n, layout.c, layout.r, layout.s, len(product.scale.columns)
        parts = [BLINDED.pack(parameters.magic[2], self._fingerprint, *sizes)]
        masks, prg = [], Prg.fresh("what hides a product")
        for outputs, total in zip(layout.outputs, product.sums().reduced(), strict=True):
            width = outputs.stop - outputs.start
            fractions = np.empty((wide, width))
            for part, columns, mask in self._answer(layout, total, wide, width, prg):
                parts.append(part)
                fractions[columns] = mask
            masks.append(fractions.T.ravel())
        return b"".join(parts), Mask(product.scale, masks)

    def _begun(self, prepared: PreparedRows, sealed: bytes, onto: Product | None) -> tuple[Product, Groups]:
        """Return the product that this message continues or begins, and the blocks of g in it."""
        parameters = self._parameters
        n, c, r, s, bound = header(parameters.engine, SEALED, parameters.magic[1], sealed, self._fingerprint)
        layout = named(parameters.engine, n, c, r, s)
        if not (math.isfinite(bound) and bound > 0):
            raise CryptoError(f"{self._engine}: a message of g has no positive finite bound; it is malformed")
        if layout.n != len(prepared.J):
            raise CryptoError(
                f"{self._engine}: g has {layout.n} rows, J has {len(prepared.J)}; both sides must use the same batch"
            )
        if onto is None:
            encoding = Encoding.of(layout, self._parameters, prepared.norms, prepared.rho(layout))
            unit, profile = g_scale(self._parameters, layout, bound), self._parameters.profile
            within = tolerance(encoding.rho, layout, profile, unit * bound / 2.0**profile.drop)
            scale = Scale(layout, encoding.worth, 1 / unit, encoding.rho, within)
            onto = Product(self._parameters, encoding, scale, bound)
        if (layout, bound) != (onto.scale.layout, onto.bound):
            raise CryptoError(f"{self._engine}: messages of one g have different headers; they are malformed")
        if not onto.left:
            raise CryptoError(f"{self._engine}: messages hold more blocks than g has; they are malformed")
        return onto, self._blocks(onto, sealed)

    def unblind(self, opened: bytes, mask: Mask, word: int | None = None) -> Floats:
        layout, levels, rho, within = mask.scale.layout, self._parameters.levels, mask.scale.rho, mask.scale.within
        if word is not None:
            rho = rho[:, :LEAST]
            within = within[:LEAST] + error(rho, levels, word)
        width, per = sum(rho.shape), 4 if word is None else size(word)
        count, checks = header(self._parameters.engine, OPENED, self._parameters.magic[3], opened, self._fingerprint)
        sent = tuple(layout.c * each for each in rho.shape)
        if (count, checks) != sent:
            raise CryptoError(
                f"{self._engine}: {count} opened values and {checks} checks came, {sent[0]} and {sent[1]} were sent; "
                "it is not the answer"
            )
        sized(self._parameters.engine, self._parameters.magic[3], opened, OPENED.size + per * (count + checks))
        if mask.spent:
            raise CryptoError(f"{self._engine}: this mask has been used; a mask serves for one opening")
        mask.spent = True
        body = opened[OPENED.size :]
        values = np.frombuffer(body, "<i4") if word is None else read(body, levels, word)
        rest = values - np.concatenate(mask.masks)[: len(values)] * levels
        rest -= levels * np.rint(rest / levels)
        result = rest.reshape(layout.c, width).T
        if not fits(result, rho, levels, within):
            raise OpeningMismatch(
                f"{self._engine}: what was opened does not fit the checks beside it: it is not what was decrypted, "
                "or g is no residual; nothing of it is used"
            )
        worth = mask.scale.g * 2.0**self._parameters.profile.drop * mask.scale.columns
        return result[: len(worth)] * worth[:, None]

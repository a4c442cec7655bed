"""[[J^T g]] from rows of J wherever they lie and g in pieces, whichever engine multiplies.

An engine gives a piece's blocks of g as bytes (`BlocksOf`), the work on the rows that a process holds (`RowWork`) and
sums that add up (`SumsOf`); here pieces go to the parts of J whose rows they meet, and what comes back is summed.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.tall import Here, Sparse, Stretch, Tall, TallPart
from securevfl.crypto.lattice.layout import LEAST, MOST, OPENED, Blocked, FixedPoint, Profile
from securevfl.crypto.prg import random_words
from securevfl.crypto.scheme import ROOM, Evaluator, LinearScheme, Secret, Shape, header, sized
from securevfl.errors import ConfigError, CryptoError, OpeningMismatch, RangeError

# How rows of J become integers, whichever engine multiplies them, with check columns beside them.
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


L = TypeVar("L", bound=Blocked)


@dataclass(frozen=True)
class Encoding(Generic[L]):
    """How J becomes integers in coefficients: the layout, each column's largest |x|, and the integers to that (d,).

    rho: the secret share of each column in each check (d x checks).
    """

    layout: L
    largest: Floats
    scale: Floats
    rho: Floats = field(repr=False)

    @classmethod
    def of(cls, layout: L, parameters: FixedPoint, found: Norms, rho: Floats) -> Encoding[L]:
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

    def same(self, other: Encoding[L]) -> bool:
        """Whether plaintexts of the one are those of the other, for the same J."""
        sizes = (self.layout.s, self.layout.columns) == (other.layout.s, other.layout.columns)
        return sizes and np.array_equal(self.rho, other.rho)


def column_cap(parameters: FixedPoint, layout: Blocked) -> float:
    """Compute L, the greatest sum of |x| over an encoded column."""
    return parameters.profile.T * math.sqrt(layout.n / layout.columns)


def g_scale(parameters: FixedPoint, layout: Blocked, bound: float) -> float:
    """Compute how many integers a unit of g is. RangeError if the bound on |g| is too small for that."""
    scale: float = 0.49 * parameters.modulus / column_cap(parameters, layout) / bound
    if not math.isfinite(scale):
        raise RangeError("lattice: the bound on g is too small for a fixed-point scale; scale g up")
    return scale


def span(layout: Blocked, start: int, rows: int, block: int) -> tuple[int, int]:
    """Return the rows of the matrix, from and to, that a sample block spans in a stretch that begins at `start`."""
    return max(start, block * layout.s), min(start + rows, (block + 1) * layout.s)


def scaled(stretch: Stretch, encoding: Encoding[L], start: int, blocks: Sequence[int]) -> Floats:
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


def checked(layout: Blocked, d: int) -> int:
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


def tolerance(rho: Floats, layout: Blocked, profile: Profile, unit: float) -> Floats:
    """Return (checks,): how far a test may be from zero, in levels. unit: levels that 1 in an entry moves a value by, g
    at its bound."""
    dither = 4.0 ** (profile.k - profile.drop - 1) + ROUNDED
    spread = np.sqrt(dither * (1 + (rho**2).sum(axis=0)) + ROUNDED * layout.n * unit**2)
    ones = layout.sample_blocks + layout.column_blocks(len(rho)) * np.abs(rho).max()  # in place of zero polynomials
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


class RowScheme(LinearScheme):
    """What schemes on rings of rows have in common: what opens, and keys of one epoch."""

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


class BlocksOf(Protocol):
    """Consecutive sample blocks of g in a message, sealed."""

    @property
    def first(self) -> int: ...

    @property
    def count(self) -> int: ...

    def some(self, blocks: range) -> Self:
        """Return the part of these blocks that lies in the range `blocks`."""

    def then(self, other: Self) -> Self:
        """Return these blocks and `other`, which follow them, as one."""


class SumsOf(Protocol):
    """The sums that products of rows end in."""

    def add(self, other: Self) -> None:
        """Add another sum to this one."""


class RowWork(NamedTuple):
    """What an engine does with the rows that a process holds; functions of a module, which travel by name.

    encode     (stretch, parameters, encoding, its first row, sample blocks, room): keeps plaintexts, with room for them
    multiply   (stretch, parameters, encoding, its first row, blocks of g, room): sums of products
    slot       where a stretch keeps plaintexts, which tell their `nbytes`
    """

    encode: Callable[..., None]
    multiply: Callable[..., Any]
    slot: str


def kept_bytes(stretch: Stretch, slot: str) -> int:
    """Return how many bytes the kept plaintexts of a stretch take."""
    kept = stretch.kept.get(slot)
    return 0 if kept is None else int(kept.nbytes)


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


B = TypeVar("B", bound=BlocksOf)
S = TypeVar("S", bound=SumsOf)


class PreparedRows:
    """J, here or in parts elsewhere, what its scale follows from, and the bytes of plaintexts each part may keep."""

    def __init__(self, J: Tall, found: Norms, room: int, slot: str) -> None:
        self._slot = slot
        self.J = J
        self.norms = found
        self.room = room
        self._rho: dict[int, Floats] = {}

    def rho(self, layout: Blocked) -> Floats:
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
        return sum(stretch.nbytes + kept_bytes(stretch, self._slot) for stretch in here)


@dataclass(frozen=True)
class Scale(Generic[L]):
    """How opened integers read as J^T g, and what the checks beside it should be."""

    layout: L
    columns: Floats  # (d,): worth of one integer step in each column of J
    g: float  # worth of one integer step of g
    rho: Floats  # (d x checks): the share of each column in each check
    within: Floats  # (checks,): how far off a check may be, in levels

    @property
    def width(self) -> int:
        """Columns that are opened, checks included."""
        return sum(self.rho.shape)


class Product(Generic[L, B, S]):
    """[[J^T g]]; not fit to leave before it is blinded.

    `taken` sample blocks of g are in it, or on their way to the parts of J, which work on their own.
    """

    def __init__(
        self, parameters: FixedPoint, encoding: Encoding[L], scale: Scale[L], bound: float, work: Callable[..., S]
    ) -> None:
        self.scale = scale
        self.encoding = encoding
        self.bound = bound
        self.taken = 0
        self._parameters = parameters
        self._work = work
        self._held: dict[int, B] = {}  # by part of J: too few for a call
        self._coming: list[Future[S]] = []

    @property
    def left(self) -> int:
        """Sample blocks of g that have not come yet."""
        return self.scale.layout.sample_blocks - self.taken

    def take(self, blocks: B, prepared: PreparedRows) -> None:
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
            self._coming.append(part.run(self._work, *args))
            while len(self._coming) > 1 and self._coming[0].done() and self._coming[1].done():
                self._add_up()
        self.taken += blocks.count

    def of(self, part: TallPart, blocks: B) -> range:
        """Which of these blocks hold rows of this part of J."""
        s, stop = self.scale.layout.s, blocks.first + blocks.count
        return range(max(blocks.first, part.start // s), min(stop, -(-part.stop // s)))

    def sums(self) -> S:
        """Return the ciphertexts of the product. CryptoError if blocks of g are missing."""
        if self.left:
            raise CryptoError(
                f"lattice: {self.scale.layout.sample_blocks} blocks of g were expected, {self.taken} came; "
                "it was cut, ask for it again"
            )
        while len(self._coming) > 1:
            self._add_up()
        return self._coming[0].result()

    def _add_up(self) -> None:
        self._coming[0].result().add(self._coming.pop(1).result())


class Mask(Secret, Generic[L]):
    """What `blind` added, as fractions of the modulus, and how to read the rest. Serves once."""

    __slots__ = ("masks", "scale", "spent")

    def __init__(self, scale: Scale[L], masks: list[Floats]) -> None:
        self.scale = scale
        self.masks = masks
        self.spent = False


class RowEvaluator(Evaluator, Generic[L, B, S]):
    """Owns J, here or in parts elsewhere. An engine adds how messages are read, and how products are blinded."""

    name: ClassVar[str]  # in errors
    opened: ClassVar[bytes]  # magic of what the holder opens
    work: ClassVar[RowWork]
    _parameters: FixedPoint
    _fingerprint: bytes

    def prepare(self, J: Floats | Tall, *, room: int = ROOM) -> PreparedRows:
        if J.ndim != 2 or 0 in J.shape:
            raise RangeError(f"{self.name}: J is n x d with n, d >= 1, got shape {J.shape}")
        tall = J if isinstance(J, Tall) else Tall.here(np.asarray(J, np.float64))
        found = [part.run(norms) for part in tall.parts]
        rows = sum(part.stretch.nbytes for part in tall.parts if isinstance(part, Here))
        return PreparedRows(tall, merged(each.result() for each in found), max(0, room - rows), self.work.slot)

    def encode(self, prepared: PreparedRows, sealed: bytes, onto: Product[L, B, S] | None = None) -> None:
        product, blocks = self._begun(prepared, sealed, onto)
        for part in prepared.J.parts:
            if isinstance(part, Here):  # elsewhere plaintexts are made when they are multiplied
                own = product.of(part, blocks)
                part.run(self.work.encode, self._parameters, product.encoding, part.start, own, prepared.room)

    def transpose_product(
        self, prepared: PreparedRows, sealed: bytes, onto: Product[L, B, S] | None = None
    ) -> Product[L, B, S]:
        product, blocks = self._begun(prepared, sealed, onto)
        product.take(blocks, prepared)
        return product

    @abstractmethod
    def _header(self, sealed: bytes) -> tuple[L, float]:
        """Return the layout and the bound that a message names, once they are what they should be."""

    @abstractmethod
    def _blocks(self, product: Product[L, B, S], sealed: bytes) -> B:
        """Return the blocks in a message, the next ones of the product. CryptoError if it is of another length."""

    def _begun(
        self, prepared: PreparedRows, sealed: bytes, onto: Product[L, B, S] | None
    ) -> tuple[Product[L, B, S], B]:
        """Return the product that this message continues or begins, and the blocks of g in it."""
        layout, bound = self._header(sealed)
        if not (math.isfinite(bound) and bound > 0):
            raise CryptoError(f"{self.name}: a message of g has no positive finite bound; it is malformed")
        if layout.n != len(prepared.J):
            raise CryptoError(
                f"{self.name}: g has {layout.n} rows, J has {len(prepared.J)}; both sides must use the same batch"
            )
        if onto is None:
            encoding = Encoding.of(layout, self._parameters, prepared.norms, prepared.rho(layout))
            unit, profile = g_scale(self._parameters, layout, bound), self._parameters.profile
            within = tolerance(encoding.rho, layout, profile, unit * bound / 2.0**profile.drop)
            scale = Scale(layout, encoding.worth, 1 / unit, encoding.rho, within)
            onto = Product(self._parameters, encoding, scale, bound, self.work.multiply)
        if (layout, bound) != (onto.scale.layout, onto.bound):
            raise CryptoError(f"{self.name}: messages of one g have different headers; they are malformed")
        if not onto.left:
            raise CryptoError(f"{self.name}: messages hold more blocks than g has; they are malformed")
        return onto, self._blocks(onto, sealed)

    @abstractmethod
    def _places(self, layout: L, d: int) -> Iterable[tuple[slice, slice]]:
        """Return the columns and outputs of opened values, in their order: of each pair all columns of one output
        first."""

    def unblind(self, opened: bytes, mask: Mask[L], word: int | None = None) -> Floats:
        layout, levels, rho, within = mask.scale.layout, self._parameters.levels, mask.scale.rho, mask.scale.within
        if word is not None:
            rho = rho[:, :LEAST]
            within = within[:LEAST] + error(rho, levels, word)
        width, per = sum(rho.shape), 4 if word is None else size(word)
        count, checks = header(self.name, OPENED, self.opened, opened, self._fingerprint)
        sent = tuple(layout.c * each for each in rho.shape)
        if (count, checks) != sent:
            raise CryptoError(
                f"{self.name}: {count} opened values and {checks} checks came, {sent[0]} and {sent[1]} were sent; "
                "it is not the answer"
            )
        sized(self.name, self.opened, opened, OPENED.size + per * (count + checks))
        if mask.spent:
            raise CryptoError(f"{self.name}: this mask has been used; a mask serves for one opening")
        mask.spent = True
        body = opened[OPENED.size :]
        values = np.frombuffer(body, "<i4") if word is None else read(body, levels, word)
        rest = values - np.concatenate(mask.masks)[: len(values)] * levels
        rest -= levels * np.rint(rest / levels)
        result, start = np.empty((width, layout.c)), 0
        for columns, outputs in self._places(layout, width):
            shape = outputs.stop - outputs.start, columns.stop - columns.start
            stop = start + shape[0] * shape[1]
            result[columns, outputs] = rest[start:stop].reshape(shape).T
            start = stop
        if not fits(result, rho, levels, within):
            raise OpeningMismatch(
                f"{self.name}: what was opened does not fit the checks beside it: it is not what was decrypted, "
                "or g is no residual; nothing of it is used"
            )
        worth = mask.scale.g * 2.0**self._parameters.profile.drop * mask.scale.columns
        return result[: len(worth)] * worth[:, None]

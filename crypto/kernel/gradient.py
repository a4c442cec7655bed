"""J^T [[g]] as products of matrices under RLWE encryption (crypto/kernel, N = 4096).

    1. key holder   g in coefficients, encrypted symmetrically with fresh seeds         `encrypt`
    2. evaluator    at each point the ciphertexts times the values of J, summed over
                    sample blocks, group after group as they come                       `transpose_product`
    3. evaluator    adds a fresh public-key encryption of zero, masks, sends            `blind`
    4. key holder   decrypts noise, adds a secret dither, drops low bits, returns       `open`
    5. evaluator    subtracts its mask                                                  `unblind`

The same as lattice_product.py in other arithmetic: who learns what, and why not more, is said there and holds here word
for word, but that there is no special prime (gradient.py) and that decryption is exact. Only wanted coefficients
are decrypted, modulo q; the dither is added modulo q; what is returned is the rounded fraction of q, a function of the
dithered value alone. a is expanded from the holder's seed, so it is uniform for any seed (the expansion taken as a
random oracle), and c1 of a reply, c1(g) J + a u + e1, is pseudorandom for any b and any [[g]].

Nothing branches on a secret: products take the same steps for zeros, and rejection depends on discarded words alone.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.tall import Sparse, Stretch
from securevfl.crypto.kernel import residues
from securevfl.crypto.kernel.ciphertexts import (
    Answering,
    Opener,
    RingLayout,
    answer_size,
    choose,
    column_groups,
    dither,
    keypair,
    named,
    pack,
    packed_size,
    uniform,
    unpack,
)
from securevfl.crypto.kernel.residues import DEGREE, Primes, joined, summed, transform
from securevfl.crypto.lattice.layout import BLINDED, LEAST, SEALED, FixedPoint, Profile
from securevfl.crypto.lattice.polynomial_ring import NOISE_STD
from securevfl.crypto.lattice.row_products import (
    Encoding,
    Mask,
    Product,
    RowEvaluator,
    RowScheme,
    RowWork,
    answer,
    checked,
    g_scale,
    scaled,
    span,
    with_checks,
)
from securevfl.crypto.prg import KEY_BYTES as SEED_BYTES
from securevfl.crypto.prg import Prg
from securevfl.crypto.scheme import Evaluator, KeyHolder, Shape, header, sized
from securevfl.errors import ConfigError, CryptoError, RangeError

# What both sides of the gradient on the kernel agree on: primes, scales, limits, and the layouts that there are.
#
# q is the product of four primes of 24 bits, of 96 bits in all: three more than SEAL's, so that opened values are as
# much finer. The dither has the same size, and what it hides is the same noise e J of standard deviation sqrt(10.5) T
# at most, and that of an encryption of zero, which no special prime divides away: some 240, beside 2^22.


ENGINE = "gradient on the kernel"  # in errors
MOST_MODULUS = 109  # bits of q: HomomorphicEncryption.org (2018), table 1, N = 4096, 128 bits, ternary secret
PIECE = 16  # sample blocks that are sealed together, and in a message where g goes in several
SECONDS = "public second polynomials of a sealed residual"  # whoever has the seed in it expands them


@dataclass(frozen=True)
class KernelProfile(Profile):
    """A profile whose modulus has no special prime."""

    def noise(self, degree: int) -> float:
        """Return the standard deviation of the noise in a reply, at most: products, then the encryption of zero."""
        return math.hypot(NOISE_STD * self.T, NOISE_STD * math.sqrt(1 + 2 * degree * 2 / 3))


PROFILE = KernelProfile((24, 24, 24, 24), 72, 68, 2.0**21)


class GradientParameters(FixedPoint):
    """A profile's primes and the numbers that follow from both."""

    def __init__(self, profile: Profile = PROFILE) -> None:
        self.primes = Primes(profile.bits[0], len(profile.bits))
        super().__init__(profile, self.primes.q)
        assert math.log2(self.primes.q) <= MOST_MODULUS, "more than the standard allows"

    def __reduce__(self) -> tuple[Any, ...]:
        return shared, (self.profile,)

    def distance_bits(self, values: int) -> float:
        """-log2 of the statistical distance of a run that opens so many values to one without noise, at least."""
        return self.profile.distance_bits(DEGREE, values)


@functools.lru_cache(maxsize=4)
def shared(profile: Profile) -> GradientParameters:
    """Return this process's own copy of these parameters when they came from another process."""
    return GradientParameters(profile)


# What the gradient on the kernel does with rows of J, in whichever process holds them: encode and multiply.
#
# Sample blocks are taken in groups of `PIECE`, as they travel. The values of a group's plaintexts are kept, as there is
# room, in single precision, which holds residues of 24 bits about zero; what finds no room is made anew whenever it is
# multiplied, some `TILE` coefficients at a time. A group that lies in two stretches has values in each, with zeros for
# the rows of the other.


TILE = 1 << 18  # coefficients of plaintexts that are transformed at a time
SLOT = "values of plaintexts on the kernel"  # where a stretch keeps them

Values = NDArray[np.float32]


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


class KernelSums:
    """Sums of products by output block, (P, M, outputs + r, F) each, c0 over c1; None where nothing was multiplied.

    They are reduced when so many products are in them that one more might not be exact.
    """

    def __init__(self, primes: Primes, totals: list[Floats | None]) -> None:
        self._primes, self._totals = primes, totals
        self._terms = [0 if total is None else 1 for total in totals]

    def add(self, other: KernelSums) -> None:
        """Add another one, entry by entry."""
        for place, more in enumerate(other.reduced()):
            own = self._totals[place]
            if more is None:
                continue
            self._totals[place] = more if own is None else self._primes.reduce(own) + more
            self._terms[place] = 2

    def add_product(self, output_block: int, query: Floats, values: Values) -> None:
        """Add query (P, M, outputs + r, blocks) times values (P, M, blocks, F)."""
        total, terms = self._totals[output_block], self._terms[output_block]
        self._totals[output_block], self._terms[output_block] = summed(self._primes, total, terms, query, values)

    def add_columns(self, output_block: int, query: Floats, values: Values, columns: NDArray[np.intp], F: int) -> None:
        """Add a product as `add_product` does, where values are of these column blocks of F alone."""
        total = self._totals[output_block]
        if total is None:
            total = self._totals[output_block] = np.zeros((*query.shape[:3], F))
        part, _ = summed(self._primes, None, 0, query, values)
        total[..., columns] = self._primes.reduce(np.ascontiguousarray(total[..., columns] + self._primes.reduce(part)))

    def reduced(self) -> list[Floats | None]:
        """Return the sums, each entry a residue about zero."""
        for total in self._totals:
            if total is not None:
                self._primes.reduce(total)
        return self._totals

    def __reduce__(self) -> tuple[Any, ...]:
        small = [None if total is None else total.astype(np.float32) for total in self.reduced()]
        return _sums, (self._primes.bits, len(self._primes), small)


def _sums(bits: int, count: int, totals: list[Values | None]) -> KernelSums:
    return KernelSums(Primes(bits, count), [None if total is None else total.astype(np.float64) for total in totals])


class Kept:
    """A stretch's values by group, as many as there is room for."""

    def __init__(self, encoding: Encoding[RingLayout], room: int) -> None:
        self.encoding = encoding
        self.nbytes = 0
        self._room = room
        self._groups: dict[int, Values] = {}

    def get(self, group: int) -> Values | None:
        return self._groups.get(group)

    def fits(self, nbytes: int) -> bool:
        """Whether there is room for so many bytes more."""
        return self.nbytes + nbytes <= self._room

    def put(self, group: int, values: Values) -> None:
        self._groups[group] = values
        self.nbytes += values.nbytes


@dataclass(frozen=True)
class EncodedRows:
    """A stretch that begins at row `start`, and how it is encoded."""

    stretch: Stretch
    primes: Primes
    encoding: Encoding[RingLayout]
    start: int

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

    def tiles(self, blocks: range) -> Iterator[tuple[slice, Values]]:
        """Return the values (P, M, some, F) of these sample blocks, and which of them, a tile at a time."""
        layout, ahead = self.layout, transform(self.primes, self.layout.points)
        step = max(1, TILE // (layout.points * self.column_blocks))
        for at in range(0, len(blocks), step):
            some = blocks[at : at + step]
            whole = scaled(self.stretch, self.encoding, self.start, some)
            plain = layout.plaintexts(whole, slice(0, len(some)))
            yield slice(at, at + len(some)), ahead.forward(plain).astype(np.float32)

    def plaintexts(self, blocks: range) -> Values:
        """Return all values (P, M, blocks, F) of these sample blocks."""
        shape = len(self.primes), self.layout.points, len(blocks), self.column_blocks
        out: Values = np.empty(shape, np.float32)
        for some, values in self.tiles(blocks):
            out[:, :, some] = values
        return out

    def nbytes(self, blocks: range) -> int:
        """Bytes of the values of these sample blocks."""
        return 4 * len(self.primes) * self.layout.points * len(blocks) * self.column_blocks

    def sparse(self, rows: Sparse, block: int) -> tuple[NDArray[np.intp], Values]:
        """Return the column blocks in which everyone knows that a sample block may have entries, and its values
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
        return touched, transform(self.primes, layout.points).forward(plain).astype(np.float32)


def encode(
    stretch: Stretch,
    parameters: GradientParameters,
    encoding: Encoding[RingLayout],
    start: int,
    blocks: range,
    room: int,
) -> None:
    """Make the values of these sample blocks ready, as far as there is room. `start`: the stretch's first row."""
    rows, kept = EncodedRows(stretch, parameters.primes, encoding, start), _values_kept(stretch, encoding, room)
    if isinstance(stretch.rows, Sparse):
        return
    for group in range(blocks.start // PIECE, -(-blocks.stop // PIECE)):
        _keep(rows, kept, group)


def multiply(
    stretch: Stretch,
    parameters: GradientParameters,
    encoding: Encoding[RingLayout],
    start: int,
    blocks: Groups,
    room: int,
) -> KernelSums:
    """Return the products of these sample blocks of g with the stretch's rows, summed."""
    primes, layout = parameters.primes, encoding.layout
    rows, kept = EncodedRows(stretch, primes, encoding, start), _values_kept(stretch, encoding, room)
    sums = KernelSums(primes, [None] * layout.output_blocks)
    for group, sealed in blocks.sealed.items():
        whole, mine = group_range(layout, group), rows.blocks_of(group)
        taken = range(max(mine.start, blocks.own.start), min(mine.stop, blocks.own.stop))
        queries = [
            _query(primes, layout, outputs, part, len(whole), rows.column_blocks)[
                ..., taken.start - whole.start : taken.stop - whole.start
            ]
            for outputs, part in zip(layout.outputs, sealed, strict=True)
        ]
        if isinstance(stretch.rows, Sparse):
            for place, block in enumerate(taken):
                columns, values = rows.sparse(stretch.rows, block)
                for output_block, query in enumerate(queries):
                    sums.add_columns(output_block, query[..., place, None], values, columns, rows.column_blocks)
            continue
        ready = _keep(rows, kept, group)
        tiles = rows.tiles(taken) if ready is None else [(slice(0, len(taken)), ready[:, :, _within(taken, mine)])]
        for some, values in tiles:
            for output_block, query in enumerate(queries):
                sums.add_product(output_block, query[..., some], values)
    return sums


def _within(some: range, blocks: range) -> slice:
    return slice(some.start - blocks.start, some.stop - blocks.start)


def _query(primes: Primes, layout: RingLayout, outputs: slice, sealed: bytes, count: int, F: int) -> Floats:
    """(P, M, outputs + r, blocks): the ciphertexts of a group of so many sample blocks at each point, c0 over c1, for
    products with F column blocks."""
    width = outputs.stop - outputs.start
    first = unpack(primes, memoryview(sealed)[SEED_BYTES:], (layout.points, width, count))
    second = uniform(Prg(sealed[:SEED_BYTES], SECONDS), primes, (layout.points, layout.r, count))
    return joined(first, second, F)


def _keep(rows: EncodedRows, kept: Kept, group: int) -> Values | None:
    """Return the values of what the stretch has of a group, now kept if there is room; else None."""
    values = kept.get(group)
    blocks = rows.blocks_of(group)
    if values is None and kept.fits(rows.nbytes(blocks)):
        values = rows.plaintexts(blocks)
        kept.put(group, values)
    return values


def _values_kept(stretch: Stretch, encoding: Encoding[RingLayout], room: int) -> Kept:
    """Return the stretch's values of this encoding; those of another one go."""
    kept: Kept | None = stretch.kept.get(SLOT)
    if kept is None or not kept.encoding.same(encoding):
        kept = stretch.kept[SLOT] = Kept(encoding, room)
    return kept


_MAGIC = b"SGK2"
_USES = 8  # products that the plaintexts of a batch serve for, about


class KernelGradient(RowScheme):
    """J^T [[g]] on small residues in doubles, under 128-bit RLWE alone.

    `columns` is the width of J that a holder's first layout is tuned for; any width works, and a holder tunes itself to
    the widths it has opened. Executors are not used. ConfigError for an impossible width, or a BLAS that is not exact.
    """

    name: ClassVar[str] = "kernel"

    def __init__(self, *, columns: int = 32) -> None:
        if columns < 1:
            raise ConfigError(f"{ENGINE}: columns is the expected width of J, at least 1, got {columns}")
        if why := residues.fault():
            raise ConfigError(f"{ENGINE}: {why}, or name the other library: {residues.OTHER}")
        self._columns = columns
        self._parameters = GradientParameters()

    @property
    def strength(self) -> str:
        bits = math.ceil(math.log2(self._parameters.modulus))
        return f"RLWE ring N={DEGREE}, {bits}-bit modulus (HomomorphicEncryption.org: 128 bits)"

    def distance_bits(self, values: int) -> float:
        return self._parameters.distance_bits(values)

    def keygen(self, executor: Executor | None = None, *, columns: int = 0, openings: int = 1) -> KeyHolder:
        return KernelGradientHolder(self._parameters, columns or self._columns, openings)

    def evaluator(self, public: bytes, executor: Executor | None = None) -> Evaluator:
        return KernelGradientEvaluator(self._parameters, public)


def _second(parameters: GradientParameters, seed: bytes) -> Floats:
    """Expand a (P, N) of a key from the seed in it."""
    return uniform(Prg(seed, "public second polynomial of a key"), parameters.primes, (DEGREE,))


def _fingerprint(public: bytes) -> bytes:
    return hashlib.sha256(public).digest()[:16]


class KernelGradientHolder(KeyHolder):
    """Owns the secret key, which is never written anywhere."""

    def __init__(self, parameters: GradientParameters, columns: int, openings: int = 1) -> None:
        primes, seed = parameters.primes, os.urandom(SEED_BYTES)
        secret, first = keypair(primes, _second(parameters, seed))
        self._parameters, self._opener = parameters, Opener(primes, secret)
        self._columns, self._openings, self._widest = columns, openings, 0
        self.public = _MAGIC + seed + pack(primes, first)
        self._fingerprint = _fingerprint(self.public)

    def encrypt(self, g: Floats, *, bound: float) -> bytes:
        pieces = [piece for piece, _ in self.encrypt_pieces(g, bound=bound)]
        return pieces[0] + b"".join(piece[SEALED.size :] for piece in pieces[1:])

    def encrypt_pieces(self, g: Floats, *, bound: float) -> Iterator[tuple[bytes, bool]]:
        g = np.asarray(g, np.float64)
        if g.ndim != 2 or 0 in g.shape:
            raise RangeError(f"{ENGINE}: g is n x c with n, c >= 1, got shape {g.shape}")
        if not (math.isfinite(bound) and bound > 0):
            raise RangeError(f"{ENGINE}: the bound on g must be a positive finite number")
        if not np.all(np.abs(g) <= bound):
            raise RangeError(
                f"{ENGINE}: g has values that are not finite or above its bound {bound}; pass values within it"
            )
        width = self._widest or self._columns
        layout = choose(*g.shape, width + LEAST, _USES, self._openings)
        return self._pieces(layout, g * g_scale(self._parameters, layout, bound), bound)

    def _pieces(self, layout: RingLayout, g: Floats, bound: float) -> Iterator[tuple[bytes, bool]]:
        primes, prg = self._parameters.primes, Prg.fresh("errors of a sealed residual")
        head = SEALED.pack(b"SGG2", self._fingerprint, layout.n, layout.c, layout.r, layout.s, bound)
        for start in range(0, layout.sample_blocks, PIECE):
            blocks = group_range(layout, start // PIECE)
            parts = [head]
            for outputs in layout.outputs:
                seed = os.urandom(SEED_BYTES)
                some = slice(blocks.start, blocks.stop)
                message = layout.messages(primes.whole(np.rint(g[layout.rows(some), outputs])), some)
                second = uniform(Prg(seed, SECONDS), primes, (layout.points, layout.r, len(blocks)))
                parts += [seed, self._opener.seal(layout, message, second, prg)]
            yield b"".join(parts), blocks.stop == layout.sample_blocks

    def open(self, blinded: bytes, shape: Shape) -> bytes:
        parameters, primes = self._parameters, self._parameters.primes
        n, c, r, s, d = header(ENGINE, BLINDED, b"SGB2", blinded, self._fingerprint)
        shape.check(n, c, d)
        layout = named(ENGINE, n, c, r, s)
        wide = checked(layout, d)
        sized(ENGINE, b"SGB2", blinded, BLINDED.size + answer_size(primes, layout, wide))
        view, prg, opened = memoryview(blinded)[BLINDED.size :], Prg.fresh("dither of an opening"), []
        for outputs in layout.outputs:
            width, levels = outputs.stop - outputs.start, np.empty((wide, outputs.stop - outputs.start))
            for columns, values in self._opener.reveal(layout, width, wide, view):
                levels[columns] = self._rounded(prg, values)
            opened.append(levels.T.ravel())
            view = view[answer_size(primes, replace(layout, c=width), wide) :]
        self._widest = max(self._widest, d)
        return answer(b"SGO1", self._fingerprint, np.concatenate(opened), shape._replace(columns=d), parameters.levels)

    def _rounded(self, prg: Prg, values: Floats) -> Floats:
        """(w + D) / 2^drop, rounded, of residues of w (P, *shape): exact dither first, floats after."""
        parameters, primes = self._parameters, self._parameters.primes
        dithered = primes.reduce(values + self._dither(prg, values.shape[1:]))
        return np.rint(primes.fraction(dithered) * parameters.levels)

    def _dither(self, prg: Prg, shape: tuple[int, ...]) -> Floats:
        """Residues (P, *shape) of D: three integers uniform below 2^k, less their mean."""
        return dither(prg, self._parameters.primes, self._parameters.profile.k, shape)


class KernelGradientEvaluator(Answering, RowEvaluator[RingLayout, Groups, KernelSums]):
    """Owns J. Needs of the holder its public key and, per message, n, c, the layout and the bound."""

    name: ClassVar[str] = ENGINE
    opened: ClassVar[bytes] = b"SGO1"
    work: ClassVar[RowWork] = RowWork(encode, multiply, SLOT)
    _parameters: GradientParameters

    def __init__(self, parameters: GradientParameters, public: bytes) -> None:
        primes, start = parameters.primes, len(_MAGIC) + SEED_BYTES
        if public[: len(_MAGIC)] != _MAGIC:
            raise CryptoError(f"{ENGINE}: not a public key of this version; both sides must run the same release")
        sized(ENGINE, _MAGIC, public, start + packed_size(primes, DEGREE))
        first = unpack(primes, memoryview(public)[start:], (DEGREE,))
        self._has_key(primes, first, _second(parameters, public[len(_MAGIC) : start]))
        self._parameters, self._fingerprint = parameters, _fingerprint(public)

    def _header(self, sealed: bytes) -> tuple[RingLayout, float]:
        n, c, r, s, bound = header(ENGINE, SEALED, b"SGG2", sealed, self._fingerprint)
        return named(ENGINE, n, c, r, s), bound

    def _blocks(self, product: Product[RingLayout, Groups, KernelSums], sealed: bytes) -> Groups:
        layout, primes = product.scale.layout, self._parameters.primes
        if product.taken % PIECE:
            raise CryptoError(f"{ENGINE}: a message of g begins within a group; it is malformed")
        found: dict[int, list[bytes]] = {}
        at, taken = SEALED.size, product.taken
        while taken < layout.sample_blocks and (at < len(sealed) or not found):
            blocks, parts = group_range(layout, taken // PIECE), []
            for outputs in layout.outputs:
                size = SEED_BYTES + packed_size(primes, layout.points * (outputs.stop - outputs.start) * len(blocks))
                parts.append(sealed[at : at + size])
                at += size
            found[taken // PIECE], taken = parts, blocks.stop
        sized(ENGINE, b"SGG2", sealed, at)
        return Groups(range(product.taken, taken), found)

    def blind(self, product: Product[RingLayout, Groups, KernelSums]) -> tuple[bytes, Mask[RingLayout]]:
        layout, wide, primes = product.scale.layout, product.scale.width, self._parameters.primes
        sizes = layout.n, layout.c, layout.r, layout.s, len(product.scale.columns)
        parts = [BLINDED.pack(b"SGB2", self._fingerprint, *sizes)]
        masks, prg = [], Prg.fresh("what hides a product")
        for total in product.sums().reduced():
            assert total is not None, "J has rows, so something was multiplied"
            fractions = np.empty((wide, total.shape[2] - layout.r))
            for blocks, columns in column_groups(layout, wide):
                part, mask = self._hidden(layout, total[..., blocks], columns.stop - columns.start, prg)
                parts.append(part)
                fractions[columns] = primes.fraction(mask)
            masks.append(fractions.T.ravel())
        return b"".join(parts), Mask(product.scale, masks)

    def _places(self, layout: RingLayout, d: int) -> Iterator[tuple[slice, slice]]:
        return ((slice(0, d), outputs) for outputs in layout.outputs)

"""J^T [[g]] as products of polynomials under RLWE encryption (SEAL, N = 4096).

    1. key holder   g in coefficients, encrypted symmetrically with a fresh seed        `encrypt`
    2. evaluator    products with the plaintexts of J, summed over sample blocks        `transpose_product`
                    block after block as they come, wherever the rows of J lie          `lattice_rows`
    3. evaluator    adds a fresh public-key encryption of zero, masks, sends            `blind`
    4. key holder   decrypts noise, adds a secret dither, drops low bits, returns       `open`
    5. evaluator    subtracts its mask, compares the checks                             `unblind`

Who learns what, and why not more:

- The product's second polynomial c1 is c1(g) J, from which the holder of g would divide J out. The encryption of zero
  of step 3 makes it uniform (RLWE, even to the owner of the secret key), so the reply says nothing about J.
- Of the first polynomial only the wanted coefficients leave, each with a mask uniform modulo q: value and noise e J
  are hidden perfectly. The unwanted coefficients, cross terms between columns, never leave.
- An exact decryption would show the evaluator, which knows its mask, the noise, which is linear in the secret key (Li
  and Micciancio 2021). The holder adds a secret dither D to w and returns the top bits alone; how far that is from an
  opening without noise, by value and by run, is derived in `lattice_profile`.
- Decoding works in floats whose rounding depends on every coefficient, so the dither enters before it, modulo q, and
  coefficients that were not sent are filled with uniform ones: what is decoded is a function of dithered values alone.
- Zeros in J change no step: a block without any entry carries one unit in one coefficient.

A key that the holder chose. What the holder sends is b and the seed from which SEAL expands a; the evaluator does so
itself, so a cannot be chosen (from a = 0, or any structured a, J would come out by division, as without step 3). With
the expansion (Blake2xb) as a random oracle a is uniform. Then:

- An encryption of zero is (b u + e0, a u + e1), u, e0, e1 fresh and known to the evaluator alone. b does not enter the
  second half, which is an RLWE sample under u: c1 of the reply, c1(g) J + a u + e1, is pseudorandom whatever b and
  c1(g) are, to everyone, the holder included. The first half leaves under the mask. So a reply is as good as uniform
  for any b and any [[g]]: nothing else is asked of the holder's key or of its ciphertexts.
- A wrong b makes the opened values wrong: they hold b u at the wanted positions. That is found by the checks beside
  them (`row_products`), as any value is that the holder does not open as it decrypts.
- A holder may try Q seeds and take the best: its advantage is at most Q times that against one uniform a, as for any
  scheme that expands its key. A nonce from the evaluator would take the factor away. It costs a message before every
  key and a key for each evaluator, and SEAL encrypts under no given a, so it is left out.

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

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tenseal.sealapi as seal

from securevfl.base.arrays import Floats
from securevfl.base.tall import Sparse, Stretch
from securevfl.crypto.lattice import polynomial_ring
from securevfl.crypto.lattice.layout import (
    BLINDED,
    ENGINE,
    PUBLIC,
    SEALED,
    Layout,
    Parameters,
    choose,
    fingerprint,
)
from securevfl.crypto.lattice.polynomial_ring import dither_residues, fraction_of_modulus, uniform_residues
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
from securevfl.crypto.scheme import Evaluator, KeyHolder, Shape, header, sized
from securevfl.errors import ConfigError, CryptoError, RangeError

# What the lattice engine does with rows of J, in whichever process holds them: encode and multiply.
#
#     encode     the plaintexts of some sample blocks, kept as far as there is room for them
#     multiply   their products with ciphertexts of g, summed over the blocks
#
# Sums over blocks are ciphertexts that add up over stretches. A sample block that lies in two stretches has a plaintext
# in each, with zeros for the rows of the other. What finds no room is encoded anew whenever it is multiplied: memory is
# `room`, and some `CHUNK` plaintexts on their way.


CHUNK = 256  # plaintexts encoded at a time
SLOT = "lattice plaintexts"  # where a stretch keeps them


@dataclass(frozen=True)
class Blocks:
    """Consecutive sample blocks of a message: the first one, and [output block][sample block] sealed parts as bytes."""

    first: int
    sealed: list[list[bytes]]

    @property
    def count(self) -> int:
        """The number of sample blocks of g that are held here."""
        return len(self.sealed[0])

    def some(self, blocks: range) -> Blocks:
        """Return the part of these blocks that lies in the range `blocks`."""
        return Blocks(blocks.start, [row[blocks.start - self.first : blocks.stop - self.first] for row in self.sealed])

    def then(self, other: Blocks) -> Blocks:
        """Return these blocks and `other`, which follow them, as one."""
        return Blocks(self.first, [row + more for row, more in zip(self.sealed, other.sealed, strict=True)])


class Sums:
    """Ciphertexts [output block][column block], None where nothing was multiplied; they travel between processes as
    residues."""

    def __init__(self, parameters: Parameters, ciphertexts: list[list[Any]]) -> None:
        self.ciphertexts = ciphertexts
        self._parameters = parameters

    def add(self, other: Sums) -> None:
        """Add another one, entry by entry."""
        evaluator = self._parameters.ring.evaluator
        for row, more in zip(self.ciphertexts, other.ciphertexts, strict=True):
            for column, term in enumerate(more):
                if row[column] is None:
                    row[column] = term
                elif term is not None:
                    evaluator.add_inplace(row[column], term)

    def __reduce__(self) -> tuple[Any, ...]:
        ring = self._parameters.ring
        shape = (2, len(ring.primes), ring.degree)
        residues = [
            [None if cipher is None else ring.io.residues(cipher, shape) for cipher in row] for row in self.ciphertexts
        ]
        return _sums, (self._parameters, residues)


def _sums(parameters: Parameters, residues: list[list[polynomial_ring.Residues | None]]) -> Sums:
    ring = parameters.ring
    found = [
        [None if each is None else ring.io.ciphertext(ring.level, each, ntt=True) for each in row] for row in residues
    ]
    return Sums(parameters, found)


class Plaintexts:
    """A stretch's plaintexts by sample block, [column block] each, as many blocks as there is room for."""

    def __init__(self, encoding: Encoding[Layout], room: int, size: int) -> None:
        self.encoding = encoding
        self._size = size * encoding.layout.column_blocks(encoding.width)  # bytes of a block's plaintexts
        self._blocks: dict[int, list[Any]] = {}
        self._room = room

    @property
    def nbytes(self) -> int:
        """The bytes that the kept plaintexts take in memory."""
        return len(self._blocks) * self._size

    def get(self, block: int) -> list[Any] | None:
        return self._blocks.get(block)

    def full(self) -> bool:
        """Whether there is no room for one more block."""
        return self.nbytes + self._size > self._room

    def put(self, block: int, plains: list[Any]) -> None:
        """Keep the plaintexts of a block if there is room."""
        if not self.full():
            self._blocks[block] = plains


def encode(
    stretch: Stretch, parameters: Parameters, encoding: Encoding[Layout], start: int, blocks: range, room: int
) -> None:
    """Make the plaintexts of these sample blocks ready, as far as there is room. `start`: the stretch's first row."""
    kept = _plaintexts_kept(stretch, parameters, encoding, room)
    missing = [block for block in blocks if kept.get(block) is None]
    step = _step(encoding)
    for at in range(0, len(missing), step):
        if kept.full():
            return
        some = missing[at : at + step]
        for block, plains in zip(some, _encoded(stretch, parameters, encoding, start, some), strict=True):
            kept.put(block, plains)


def multiply(
    stretch: Stretch, parameters: Parameters, encoding: Encoding[Layout], start: int, blocks: Blocks, room: int
) -> Sums:
    """Sum the products of these sample blocks of g with the stretch's rows: a ciphertext an output and column block."""
    kept = _plaintexts_kept(stretch, parameters, encoding, room)
    evaluator, term = parameters.ring.evaluator, seal.Ciphertext()
    sums: list[list[Any]] = [[] for _ in blocks.sealed]
    step = _step(encoding)
    for at in range(0, blocks.count, step):
        places = range(at, min(blocks.count, at + step))
        missing = [blocks.first + place for place in places if kept.get(blocks.first + place) is None]
        fresh = dict(zip(missing, _encoded(stretch, parameters, encoding, start, missing), strict=True))
        for place in places:
            block = blocks.first + place
            plains = fresh[block] if block in fresh else kept.get(block) or []
            for row, sealed in zip(sums, blocks.sealed, strict=True):
                up = unsealed(parameters, sealed[place])
                row.extend([None] * (len(plains) - len(row)))
                for column, plain in enumerate(plains):
                    if plain is None:
                        continue
                    if row[column] is None:
                        row[column] = _product(evaluator, up, plain)
                        continue
                    evaluator.multiply_plain(up, plain, term)
                    evaluator.add_inplace(row[column], term)
        for block, plains in fresh.items():
            kept.put(block, plains)
    return Sums(parameters, sums)


def unsealed(parameters: Parameters, part: bytes) -> Any:
    """Read the ciphertext of one sealed part of a message."""
    ring = parameters.ring
    residues = polynomial_ring.unpack(part, ring.primes, ring.degree)
    return ring.io.seeded_ciphertext(ring.level, residues, part[-polynomial_ring.SEED_BYTES :])


def _product(evaluator: Any, up: Any, plain: Any) -> Any:
    total = seal.Ciphertext()
    evaluator.multiply_plain(up, plain, total)
    return total


def _plaintexts_kept(stretch: Stretch, parameters: Parameters, encoding: Encoding[Layout], room: int) -> Plaintexts:
    """Return the stretch's plaintexts of this encoding; those of another encoding are dropped."""
    kept: Plaintexts | None = stretch.kept.get(SLOT)
    if kept is None or not kept.encoding.same(encoding):
        ring = parameters.ring
        kept = stretch.kept[SLOT] = Plaintexts(encoding, room, ring.degree * len(ring.primes) * 8)
    return kept


def _step(encoding: Encoding[Layout]) -> int:
    """How many sample blocks are encoded at a time."""
    return max(1, CHUNK // encoding.layout.column_blocks(encoding.width))


def _encoded(
    stretch: Stretch, parameters: Parameters, encoding: Encoding[Layout], start: int, blocks: Sequence[int]
) -> list[list[Any]]:
    """Plaintexts [sample block][column block] of the stretch's rows."""
    if not blocks:
        return []
    layout = encoding.layout
    if isinstance(stretch.rows, Sparse):
        return _encoded_sparse(stretch.rows, parameters, encoding, start, blocks)
    found = layout.plaintexts(scaled(stretch, encoding, start, blocks))
    plains = parameters.ring.encode(_integers(layout, found.reshape(-1, layout.degree)))
    return [plains[place :: len(blocks)] for place in range(len(blocks))]


def _encoded_sparse(
    rows: Sparse, parameters: Parameters, encoding: Encoding[Layout], start: int, blocks: Sequence[int]
) -> list[list[Any]]:
    """Encode, as `_encoded` does, rows whose zeros everyone knows: a polynomial of zeros alone is None, not multiplied.

    The first block has all of its polynomials, so that every reply is a ciphertext.
    """
    layout, unit = encoding.layout, np.where(encoding.largest > 0, encoding.largest, 1.0)
    every, d = layout.column_blocks(encoding.width), len(encoding.scale)
    found: list[list[Any]] = [[None] * every for _ in blocks]
    polynomials = []
    for block in blocks:
        begin, end = span(layout, start, len(rows), block)
        present, part = rows.part(begin - start, end - start)
        columns = np.concatenate([present, np.arange(d, encoding.width)])
        ints = with_checks(np.rint(part / unit[present] * encoding.scale[present]), encoding.rho[present])
        touched = np.arange(every) if block == 0 else np.unique(columns // layout.columns)
        coefficients = np.zeros((len(touched), layout.degree))
        sample = np.arange(begin, end) - block * layout.s
        at = columns % layout.columns * layout.s + layout.s - 1 - sample[:, None]
        coefficients[np.searchsorted(touched, columns // layout.columns), at] = ints
        polynomials.append((touched, coefficients))
    plains = iter(parameters.ring.encode(_integers(layout, np.concatenate([each for _, each in polynomials]))))
    for own, (touched, _) in zip(found, polynomials, strict=True):
        for column in touched:
            own[column] = next(plains)
    return found


def _integers(layout: Layout, polynomials: Floats) -> Floats:
    """Return these (m x N), none of them zero: SEAL raises on a product with a zero polynomial, which would show where
    J is zero."""
    polynomials[:, layout.s - 1] += ~polynomials.any(axis=1)
    return polynomials


PIECE = 16  # sample blocks in a message, where g goes in several


class LatticeScheme(RowScheme):
    """J^T [[g]] in the ring of a CKKS context, under 128-bit RLWE alone.

    `columns` is the width of J that a holder's first layout is tuned for; any width works, and a holder tunes itself to
    the widths it has opened. Executors are not used: a call takes milliseconds, less than moving its objects to another
    process. ConfigError for an impossible width.
    """

    name: ClassVar[str] = "lattice"

    def __init__(self, *, columns: int = 32) -> None:
        if columns < 1:
            raise ConfigError(f"lattice: columns is the expected width of J, at least 1, got {columns}")
        self._columns = columns
        self._parameters = Parameters()

    @property
    def strength(self) -> str:
        profile, degree = self._parameters.profile, self._parameters.ring.degree
        return f"RLWE ring N={degree}, {sum(profile.bits)}-bit modulus (HomomorphicEncryption.org: 128 bits)"

    def distance_bits(self, values: int) -> float:
        return self._parameters.profile.distance_bits(self._parameters.ring.degree, values)

    def keygen(self, executor: Executor | None = None, *, columns: int = 0, openings: int = 1) -> KeyHolder:
        return LatticeHolder(self._parameters, columns or self._columns, openings)

    def evaluator(self, public: bytes, executor: Executor | None = None) -> Evaluator:
        return LatticeEvaluator(self._parameters, public)


class LatticeHolder(KeyHolder):
    """Owns the secret key, which lives inside SEAL's objects and is never written anywhere."""

    def __init__(self, parameters: Parameters, columns: int, openings: int = 1) -> None:
        ring = parameters.ring
        self._parameters = parameters
        self._columns = columns
        self._openings = openings
        self._widest = 0
        secret = seal.KeyGenerator(ring.context).secret_key()
        self._encryptor = seal.Encryptor(ring.context, secret)
        self._decryptor = seal.Decryptor(ring.context, secret)
        self.public = PUBLIC.pack(b"SLK2") + ring.public_bytes(self._encryptor)
        self._fingerprint = fingerprint(self.public)

    def encrypt(self, g: Floats, *, bound: float) -> bytes:
        return next(self._sealed(g, bound, len(g)))[0]

    def encrypt_pieces(self, g: Floats, *, bound: float) -> Iterator[tuple[bytes, bool]]:
        return self._sealed(g, bound, PIECE)

    def _sealed(self, g: Floats, bound: float, most: int) -> Iterator[tuple[bytes, bool]]:
        """Messages of so many sample blocks at most, and whether each is the last."""
        g = np.asarray(g, np.float64)
        if g.ndim != 2 or 0 in g.shape:
            raise RangeError(f"lattice: g is n x c with n, c >= 1, got shape {g.shape}")
        if not (math.isfinite(bound) and bound > 0):
            raise RangeError("lattice: the bound on g must be a positive finite number")
        if not np.all(np.abs(g) <= bound):
            raise RangeError(
                f"lattice: g has values that are not finite or above its bound {bound}; pass values within it"
            )
        parameters, ring = self._parameters, self._parameters.ring
        n, c = g.shape
        layout = choose(ring.degree, n, c, self._widest or self._columns, self._openings)
        header = SEALED.pack(b"SLG2", self._fingerprint, n, c, layout.s, layout.p, bound)
        scale = g_scale(parameters, layout, bound)
        for first in range(0, layout.sample_blocks, most):
            rows = g[first * layout.s : (first + most) * layout.s]
            messages = np.rint(layout.messages(rows * scale))
            parts = [header]
            for plain in ring.encode(messages.reshape(-1, ring.degree)):
                seeded = self._encryptor.encrypt_symmetric(plain)
                residues, seed = ring.io.seeded_residues(seeded, (len(ring.primes), ring.degree))
                parts += [polynomial_ring.pack(residues, ring.primes), seed]
            yield b"".join(parts), first + most >= layout.sample_blocks

    def open(self, blinded: bytes, shape: Shape) -> bytes:
        parameters, ring = self._parameters, self._parameters.ring
        n, c, s, p, d = header(ENGINE, BLINDED, b"SLB3", blinded, self._fingerprint)
        shape.check(n, c, d)
        layout, primes = parameters.layout(n, c, s, p), ring.primes
        width = checked(layout, d)
        replies = layout.output_blocks * layout.column_blocks(width)
        body = replies * polynomial_ring.packed_size(primes, ring.degree) + polynomial_ring.packed_size(
            primes, c * width
        )
        sized(ENGINE, b"SLB3", blinded, BLINDED.size + body)
        view = memoryview(blinded)[BLINDED.size :]
        opened = []
        for output_block in range(layout.output_blocks):
            for column_block in range(layout.column_blocks(width)):
                where = layout.wanted(width, column_block, output_block)
                second = polynomial_ring.unpack(view, primes, ring.degree)
                view = view[polynomial_ring.packed_size(primes, ring.degree) :]
                first = polynomial_ring.unpack(view, primes, len(where))
                view = view[polynomial_ring.packed_size(primes, len(where)) :]
                opened.append(self._open_one(first, second, where))
        self._widest = max(self._widest, d)
        return answer(b"SLO3", self._fingerprint, np.concatenate(opened), shape._replace(columns=d), parameters.levels)

    def _open_one(
        self, first: polynomial_ring.Residues, second: polynomial_ring.Residues, where: np.ndarray[Any, Any]
    ) -> Floats:
        """(w + D) / 2^drop, rounded, at the wanted positions: exact dither first, floats after."""
        parameters, ring = self._parameters, self._parameters.ring
        primes = ring.primes
        column = np.array(primes, np.uint64)[:, None]
        if (first >= column).any() or not second.any():
            raise CryptoError("lattice: SLB3 message holds values outside its modulus; it is malformed")
        full = uniform_residues(primes, ring.degree)
        full[:, where] = (first + self._dither(len(where))) % column
        plain = seal.Plaintext()
        self._decryptor.decrypt(ring.ciphertext(ring.level, full, second), plain)
        return np.rint(ring.decode(plain)[where] / 2.0**parameters.profile.drop)

    def _dither(self, count: int) -> polynomial_ring.Residues:
        """(primes, count) residues of D: three integers uniform below 2^k, less their mean."""
        primes, k = self._parameters.ring.primes, self._parameters.profile.k
        column = np.array(primes, np.uint64)[:, None]
        total = np.array([-3 * 2 ** (k - 1) % p for p in primes], np.uint64)[:, None]
        for _ in range(3):
            total = (total + dither_residues(primes, k, count)) % column
        return total


class LatticeEvaluator(RowEvaluator[Layout, Blocks, Sums]):
    """Owns J. Needs of the holder its public key and, per message, n, c, the layout and the bound."""

    name: ClassVar[str] = ENGINE
    opened: ClassVar[bytes] = b"SLO3"
    work: ClassVar[RowWork] = RowWork(encode, multiply, SLOT)
    _parameters: Parameters

    def __init__(self, parameters: Parameters, public: bytes) -> None:
        ring = parameters.ring
        if len(public) < PUBLIC.size or PUBLIC.unpack_from(public) != (b"SLK2",):
            raise CryptoError("lattice: not a public key of this version; both sides must run the same release")
        sized(ENGINE, b"SLK2", public, PUBLIC.size + ring.public_size)
        self._parameters = parameters
        self._encryptor = seal.Encryptor(ring.context, ring.public_key(public[PUBLIC.size :]))
        self._fingerprint = fingerprint(public)

    def _header(self, sealed: bytes) -> tuple[Layout, float]:
        n, c, s, p, bound = header(ENGINE, SEALED, b"SLG2", sealed, self._fingerprint)
        return self._parameters.layout(n, c, s, p), bound

    def _blocks(self, product: Product[Layout, Blocks, Sums], sealed: bytes) -> Blocks:
        size, outputs = self._parameters.sealed_size, product.scale.layout.output_blocks
        count = max(1, min(product.left, (len(sealed) - SEALED.size) // (size * outputs)))
        sized(ENGINE, b"SLG2", sealed, SEALED.size + outputs * count * size)
        starts = [[SEALED.size + (output * count + b) * size for b in range(count)] for output in range(outputs)]
        return Blocks(product.taken, [[sealed[at : at + size] for at in row] for row in starts])

    def blind(self, product: Product[Layout, Blocks, Sums]) -> tuple[bytes, Mask[Layout]]:
        parameters, layout, width = self._parameters, product.scale.layout, product.scale.width
        ring, primes = parameters.ring, parameters.ring.primes
        sizes = layout.n, layout.c, layout.s, layout.p, len(product.scale.columns)
        parts = [BLINDED.pack(b"SLB3", self._fingerprint, *sizes)]
        masks = []
        for output_block, row in enumerate(product.sums().ciphertexts):
            for column_block, cipher in enumerate(row):
                where = layout.wanted(width, column_block, output_block)
                reply = self._rerandomised(cipher)
                mask = self._uniform(len(where))
                first = (ring.first_coefficients(reply, where) + mask) % np.array(primes, np.uint64)[:, None]
                parts += [
                    polynomial_ring.pack(ring.second_polynomial(reply), primes),
                    polynomial_ring.pack(first, primes),
                ]
                masks.append(fraction_of_modulus(mask, primes))
        return b"".join(parts), Mask(product.scale, masks)

    def _rerandomised(self, cipher: Any) -> Any:
        """Add a fresh public-key encryption of zero to the product, so that it is re-randomised."""
        ring, total, zero = self._parameters.ring, seal.Ciphertext(), seal.Ciphertext()
        self._encryptor.encrypt_zero(ring.level, zero)
        zero.scale = 1.0
        ring.evaluator.add(cipher, zero, total)
        return total

    def _uniform(self, count: int) -> polynomial_ring.Residues:
        return uniform_residues(self._parameters.ring.primes, count)

    def _places(self, layout: Layout, d: int) -> Iterator[tuple[slice, slice]]:
        for output_block in range(layout.output_blocks):
            outputs = slice(output_block * layout.p, min(layout.c, (output_block + 1) * layout.p))
            for column_block in range(layout.column_blocks(d)):
                yield slice(column_block * layout.columns, min(d, (column_block + 1) * layout.columns)), outputs

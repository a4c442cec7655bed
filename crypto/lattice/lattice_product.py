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
  them (`row_encoding`), as any value is that the holder does not open as it decrypts.
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
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any, ClassVar

import numpy as np
import tenseal.sealapi as seal

from securevfl.base.arrays import Floats
from securevfl.crypto.lattice import opened_words, sealio
from securevfl.crypto.lattice.lattice_rows import SLOT, Blocks, Sums, encode, multiply
from securevfl.crypto.lattice.layout import MOST, Layout, choose
from securevfl.crypto.lattice.polynomial_ring import dither_residues, fraction_of_modulus, uniform_residues
from securevfl.crypto.lattice.profile import BLINDED, ENGINE, PUBLIC, SEALED, Parameters, fingerprint
from securevfl.crypto.lattice.row_encoding import checked, g_scale
from securevfl.crypto.lattice.row_products import Mask, Product, RowEvaluator, RowWork, answer
from securevfl.crypto.scheme import Evaluator, KeyHolder, LinearScheme, Shape, header, sized
from securevfl.errors import ConfigError, CryptoError, RangeError

PIECE = 16  # sample blocks in a message, where g goes in several


class LatticeScheme(LinearScheme):
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

    @property
    def checks(self) -> int:
        return MOST

    def opened_bits(self, rows: int, columns: int, word: int) -> int:
        return opened_words.opened_bits(columns, word)

    @property
    def rotates(self) -> bool:
        return True

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
                parts += [sealio.pack(residues, ring.primes), seed]
            yield b"".join(parts), first + most >= layout.sample_blocks

    def open(self, blinded: bytes, shape: Shape) -> bytes:
        parameters, ring = self._parameters, self._parameters.ring
        n, c, s, p, d = header(ENGINE, BLINDED, b"SLB3", blinded, self._fingerprint)
        shape.check(n, c, d)
        layout, primes = parameters.layout(n, c, s, p), ring.primes
        width = checked(layout, d)
        replies = layout.output_blocks * layout.column_blocks(width)
        body = replies * sealio.packed_size(primes, ring.degree) + sealio.packed_size(primes, c * width)
        sized(ENGINE, b"SLB3", blinded, BLINDED.size + body)
        view = memoryview(blinded)[BLINDED.size :]
        opened = []
        for output_block in range(layout.output_blocks):
            for column_block in range(layout.column_blocks(width)):
                where = layout.wanted(width, column_block, output_block)
                second = sealio.unpack(view, primes, ring.degree)
                view = view[sealio.packed_size(primes, ring.degree) :]
                first = sealio.unpack(view, primes, len(where))
                view = view[sealio.packed_size(primes, len(where)) :]
                opened.append(self._open_one(first, second, where))
        self._widest = max(self._widest, d)
        return answer(b"SLO3", self._fingerprint, np.concatenate(opened), shape._replace(columns=d), parameters.levels)

    def _open_one(self, first: sealio.Residues, second: sealio.Residues, where: np.ndarray[Any, Any]) -> Floats:
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
        levels: Floats = np.rint(ring.decode(plain)[where] / 2.0**parameters.profile.drop)
        return levels

    def _dither(self, count: int) -> sealio.Residues:
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
                parts += [sealio.pack(ring.second_polynomial(reply), primes), sealio.pack(first, primes)]
                masks.append(fraction_of_modulus(mask, primes))
        return b"".join(parts), Mask(product.scale, masks)

    def _rerandomised(self, cipher: Any) -> Any:
        """Add a fresh public-key encryption of zero to the product, so that it is re-randomised."""
        ring, total, zero = self._parameters.ring, seal.Ciphertext(), seal.Ciphertext()
        self._encryptor.encrypt_zero(ring.level, zero)
        zero.scale = 1.0
        ring.evaluator.add(cipher, zero, total)
        return total

    def _uniform(self, count: int) -> sealio.Residues:
        return uniform_residues(self._parameters.ring.primes, count)

    def _places(self, layout: Layout, d: int) -> Iterator[tuple[slice, slice]]:
        for output_block in range(layout.output_blocks):
            outputs = slice(output_block * layout.p, min(layout.c, (output_block + 1) * layout.p))
            for column_block in range(layout.column_blocks(d)):
                yield slice(column_block * layout.columns, min(d, (column_block + 1) * layout.columns)), outputs

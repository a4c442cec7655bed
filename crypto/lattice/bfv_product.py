"""Shares of W^T V modulo 2^L as products of polynomials under RLWE encryption (BFV in SEAL, N = 4096, L <= 56).

    0. holder      a key (b, a), a expanded from the coin; b alone is sent             `public`
    1. holder      V in coefficients modulo t = 2^L, encrypted with a fresh seed       `encrypt`
    2. evaluator   products with the plaintexts of W, summed over sample blocks        `product`
    3. evaluator   adds a fresh public-key encryption of zero and a mask r uniform
                   modulo q on each wanted coefficient, sends; keeps -round(t r / q)    `product`
    4. holder      decrypts, keeps round(t (r + q/t W^T V + e) / q)                    `open`

The mask is uniform over the whole modulus, so what the holder decrypts is uniform, noise included, and the unwanted
coefficients never leave: a masked product is a share already (as in the offline phase of Delphi, Mishra et al. 2020).
c1 of the reply has a u + e1 added, u and e1 fresh, which is uniform under RLWE for any key and any query that the
holder made, since a is uniform whoever the holder is (bfv.py); of c0 nothing is seen but what the mask covers.
The holder gives nothing back, so nothing is opened that could tell its key (Li and Micciancio 2021 does not apply).

The two shares sum to W^T V, or to one beside it where r comes close to a multiple of q/t: for a part E|e| t / q of the
values, e the noise. q is as large as L asks for, two primes of whole bytes with at least 32 bits between q and t (36 at
L = 56), so that this is some 2^-16 to 2^-20: `error_rate`.

Zeros in W change no step: SEAL refuses a product that is zero, so a block without any entry is multiplied as a block of
one entry, and the result thrown away.
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import tenseal.sealapi as seal

from securevfl.crypto.lattice import polynomial_ring
from securevfl.crypto.lattice.bfv import Bfv, expanded, nearest
from securevfl.crypto.lattice.layout import Layout
from securevfl.crypto.lattice.polynomial_ring import NOISE_STD, Residues, uniform_residues
from securevfl.crypto.prg import Prg
from securevfl.crypto.scheme import header, sized
from securevfl.crypto.share_ring import COIN_BYTES, Integers, ShareEvaluator, ShareHolder, ShareRing, ShareScheme, Words
from securevfl.errors import ConfigError, CryptoError, RangeError

# The layout of layout.py for integers modulo 2^L, and its choice where plaintexts must be made first.
#
# The E visits of one batch are the outputs c = E of a layout: they share the plaintexts of W. A plaintext costs more
# than the product it is for, and with many outputs in a block it holds few entries of W, so what it costs to prepare
# weighs as much as the ciphertexts saved: a plaintext used once and one used many times want different layouts.


# Milliseconds of one core, both ends: a ciphertext up (encrypt, save, load, transform), one down (transform back,
# encryption of zero, save, load, decrypt), a product with its sum, a plaintext made; and of a line of 150 Mbps for the
# 45 kB of either ciphertext. Only their ratios matter.
LINE = 2.4
UP, DOWN, PRODUCT, PREPARE = 1.3 + LINE, 2.5 + LINE, 0.07, 0.14


@functools.lru_cache(maxsize=256)
def choose(degree: int, n: int, c: int, d: int, uses: int = 1) -> Layout:
    """Choose the cheapest layout for V of n x c and W of n x d whose plaintexts serve for `uses` such V."""
    best = None
    for p in _shares(c):
        P, window = -(-c // p), degree // p
        for f in _shares(d):
            if f > window:
                continue
            F, B = -(-d // f), -(-n // min(window // f, n))
            s = -(-n // B)
            B = -(-n // s)
            cost = _cost(B, P, F, uses)
            if best is None or cost < best[0]:
                best = (cost, s, p)
    if best is None:  # one output and one column always fit
        raise AssertionError(f"no layout for n={n}, c={c}, d={d}")
    return Layout(degree, n, c, best[1], best[2])


def milliseconds(layout: Layout, d: int, uses: int = 1) -> float:
    """About what a product takes of one core, both ends, and of a line."""
    return _cost(layout.sample_blocks, layout.output_blocks, layout.column_blocks(d), uses)


def _cost(B: int, P: int, F: int, uses: int) -> float:
    return P * (B * UP + F * DOWN + B * F * PRODUCT) + B * F * PREPARE / uses


def _shares(count: int) -> list[int]:
    """List the sizes ceil(count / parts) of equal parts, without repetition."""
    sizes, size = [], count
    while size > 1:
        sizes.append(size)
        parts = -(-count // size)
        size = min(size - 1, -(-count // (parts + 1)))
    return [*sizes, 1]


def messages(layout: Layout, V: Words) -> Words:
    """V (n x c) as coefficients (P, B, N), as `Layout.messages` for floats."""
    B, P, s, p = layout.sample_blocks, layout.output_blocks, layout.s, layout.p
    padded = np.zeros((B * s, P * p), np.uint64)
    padded[: layout.n, : layout.c] = V
    out = np.zeros((P, B, layout.degree), np.uint64)
    windows = out[..., : p * layout.window].reshape(P, B, p, layout.window)
    windows[..., :s] = padded.reshape(B, s, P, p).transpose(2, 0, 3, 1)
    out[..., : p * layout.window] = windows.reshape(P, B, -1)
    return out


def plaintexts(layout: Layout, W: Integers) -> Integers:
    """W (n x d) as coefficients (F, B, f s), as `Layout.plaintexts` for floats; the rest of each polynomial is zero."""
    d = W.shape[1]
    B, F, s, f = layout.sample_blocks, layout.column_blocks(d), layout.s, layout.columns
    padded = np.zeros((B * s, F * f), np.int64)
    padded[: layout.n, :d] = W
    return np.ascontiguousarray(padded.reshape(B, s, F, f).transpose(2, 0, 3, 1)[..., ::-1]).reshape(F, B, f * s)


DEGREE = 4096
MOST_BITS = 56  # L
_ROOM = 32  # bits of q / t that are left for the noise, at least
_MOST_PRIME, _SPECIAL = 46, 17  # bits; 46 + 46 + 17 is the most for 128-bit security

_ENGINE = "lattice shares"  # in errors
KEY_BYTES = 16  # of a key's fingerprint
_PUBLIC = struct.Struct("<4sB")  # magic, L
SEALED = struct.Struct("<4s16sIIII")  # magic, key, n, c, s, p
REPLY = struct.Struct("<4s16sIIII")  # magic, key, c, s, p, d


class LatticeShares(ShareScheme):
    """Shares modulo 2^bits, 128-bit RLWE. ConfigError unless 8 <= bits <= 56."""

    name: ClassVar[str] = "lattice"

    def __init__(self, bits: int = MOST_BITS) -> None:
        if not 8 <= bits <= MOST_BITS:
            raise ConfigError(f"lattice shares: L is 8 to {MOST_BITS}, got {bits}; use fewer bits of fixed point")
        self.bits = bits
        self._parameters = _parameters(bits)

    def __reduce__(self) -> tuple[type[LatticeShares], tuple[int]]:
        return LatticeShares, (self.bits,)

    @property
    def strength(self) -> str:
        return (
            f"RLWE ring N={DEGREE}, {sum(primes(self.bits))}-bit modulus (HomomorphicEncryption.org: 128 bits), "
            f"shares modulo 2^{self.bits} masked over the whole modulus"
        )

    def error_rate(self, n: int, c: int, d: int, largest: int) -> float:
        layout = choose(DEGREE, n, c, d)
        return self._parameters.noise(layout.n * layout.columns, largest)

    def keygen(self, coin: bytes) -> ShareHolder:
        return LatticeShareHolder(self._parameters, coin)

    def holder(self, exported: bytes) -> ShareHolder:
        return LatticeShareHolder.imported(self._parameters, exported)

    def evaluator(self, public: bytes, coin: bytes) -> ShareEvaluator:
        return LatticeShareEvaluator(self._parameters, public, coin)

    def seconds(self, n: int, c: int, d: int) -> float:
        return milliseconds(choose(DEGREE, n, c, d), d) / 1e3


@functools.lru_cache(maxsize=8)
def _parameters(bits: int) -> BfvParameters:
    """They are public, and take as long to make as some products."""
    return BfvParameters(bits)


def primes(bits: int) -> tuple[int, int, int]:
    """Sizes of the primes for L, the special one last."""
    size = min(_MOST_PRIME, -(-(bits + _ROOM) // 16) * 8)
    return size, size, _SPECIAL


class BfvParameters:
    """The context and what both sides derive from it."""

    def __init__(self, bits: int) -> None:
        self.ring = ShareRing(bits)
        self.bfv = Bfv(DEGREE, primes(bits), bits)
        self.column = np.array(self.bfv.primes, np.uint64)[:, None]
        self.polynomial = polynomial_ring.packed_size(self.bfv.primes, DEGREE)  # bytes
        self.sealed_size = self.polynomial + polynomial_ring.SEED_BYTES

    def noise(self, entries: int, largest: int) -> float:
        """Bound the standard deviation of the noise in a product of so many entries, in units of a share."""
        return float(NOISE_STD * largest * math.sqrt(entries) * 2.0**self.ring.bits / math.prod(self.bfv.primes))

    def second(self, coin: bytes) -> Residues:
        """Return the second polynomial a of the public key that this coin gives."""
        if len(coin) != COIN_BYTES:
            raise CryptoError(
                f"lattice shares: a coin has {COIN_BYTES} bytes, got {len(coin)}; make it with common_coin"
            )
        return expanded(Prg(coin, "public second polynomial of a key"), self.bfv.key_primes, DEGREE)

    def layout(self, n: int, c: int, s: int, p: int) -> Layout:
        """Check the layout that a peer names, and return it. CryptoError if there is no such layout."""
        if not (1 <= s <= n and 1 <= p <= c and p <= DEGREE and s <= DEGREE // p and -(-n // s) * -(-c // p) < 2**32):
            raise CryptoError(f"lattice shares: a peer names a layout that does not exist (n={n}, c={c}, s={s}, p={p})")
        return Layout(DEGREE, n, c, s, p)


def _fingerprint(coin: bytes, public: bytes) -> bytes:
    return hashlib.sha256(coin + public).digest()[:KEY_BYTES]


class LatticeShareHolder(ShareHolder):
    """Owns V and the secret key."""

    def __init__(self, parameters: BfvParameters, coin: bytes) -> None:
        secret, first = parameters.bfv.keypair(parameters.second(coin))
        public = _PUBLIC.pack(b"SSK1", parameters.ring.bits) + polynomial_ring.pack(first, parameters.bfv.key_primes)
        self._have(parameters, public, _fingerprint(coin, public), secret)

    def _have(self, parameters: BfvParameters, public: bytes, key: bytes, secret: Residues) -> None:
        """secret: residues (key primes, N) of the secret key, in NTT form."""
        bfv, self._parameters = parameters.bfv, parameters
        self.public, self._key, self._secret = public, key, secret
        own = bfv.holding.io.secret_key(secret)
        self._encryptor = seal.Encryptor(bfv.holding.seal, own)
        self._decryptor = seal.Decryptor(bfv.holding.seal, own)

    def exported(self) -> bytes:
        return self._key + self.public + polynomial_ring.pack(self._secret, self._parameters.bfv.key_primes)

    @classmethod
    def imported(cls, parameters: BfvParameters, exported: bytes) -> LatticeShareHolder:
        """Restore a holder from what `exported` gave. CryptoError if it is of another length, or no key."""
        size = polynomial_ring.packed_size(parameters.bfv.key_primes, DEGREE)
        sized(_ENGINE, b"SSK1", exported, KEY_BYTES + _PUBLIC.size + 2 * size)
        holder = cls.__new__(cls)
        secret = polynomial_ring.unpack(exported[-size:], parameters.bfv.key_primes, DEGREE)
        holder._have(parameters, exported[KEY_BYTES:-size], exported[:KEY_BYTES], secret)
        return holder

    def encrypt(self, V: Words, *, columns: int, uses: int = 1) -> bytes:
        parameters, bfv = self._parameters, self._parameters.bfv
        if V.ndim != 2 or 0 in V.shape or V.dtype != np.uint64 or columns < 1 or uses < 1:
            raise RangeError(f"lattice shares: V is n x c words, n, c >= 1, got shape {V.shape} of {V.dtype}")
        if (parameters.ring.mask < V).any():
            raise RangeError(f"lattice shares: V has words of 2^{parameters.ring.bits} or more; reduce them first")
        n, c = V.shape
        layout = choose(DEGREE, n, c, columns, uses)
        parts = [SEALED.pack(b"SSV1", self._key, n, c, layout.s, layout.p)]
        for message in messages(layout, V).reshape(-1, DEGREE):
            seeded = self._encryptor.encrypt_symmetric(bfv.holding.io.plaintext(message))
            residues, seed = bfv.holding.io.seeded_residues(seeded, (len(bfv.primes), DEGREE))
            parts += [polynomial_ring.pack(residues, bfv.primes), seed]
        return b"".join(parts)

    def open(self, reply: bytes) -> Words:
        parameters, holding = self._parameters, self._parameters.bfv.holding
        primes = parameters.bfv.primes
        c, s, p, d = header(_ENGINE, REPLY, b"SSR1", reply, self._key)
        layout = parameters.layout(s, c, s, p)  # how many sample blocks there were makes no difference here
        blocks = layout.output_blocks * layout.column_blocks(max(d, 1))
        if d < 1:
            raise CryptoError("lattice shares: a reply names no column; it is malformed")
        sized(
            _ENGINE,
            b"SSR1",
            reply,
            REPLY.size + blocks * parameters.polynomial + polynomial_ring.packed_size(primes, c * d),
        )
        view = memoryview(reply)[REPLY.size :]
        shares = np.empty((d, c), np.uint64)
        plain = seal.Plaintext()
        for outputs, columns, where in _blocks(layout, d):
            residues = np.zeros((2, len(primes), DEGREE), np.uint64)
            residues[1] = polynomial_ring.unpack(view, primes, DEGREE)
            view = view[parameters.polynomial :]
            residues[0][:, where] = polynomial_ring.unpack(view, primes, len(where))
            view = view[polynomial_ring.packed_size(primes, len(where)) :]
            self._decryptor.decrypt(holding.io.ciphertext(holding.level, residues, ntt=False), plain)
            values = holding.io.coefficients(plain, DEGREE)[where]
            shares[columns, outputs] = values.reshape(outputs.stop - outputs.start, -1).T
        return shares


def _blocks(layout: Layout, d: int) -> Iterator[tuple[slice, slice, Any]]:
    """Yield outputs, columns and wanted coefficients of each ciphertext of a reply, in the order they travel."""
    for output_block in range(layout.output_blocks):
        outputs = slice(output_block * layout.p, min(layout.c, (output_block + 1) * layout.p))
        for column_block in range(layout.column_blocks(d)):
            columns = slice(column_block * layout.columns, min(d, (column_block + 1) * layout.columns))
            yield outputs, columns, layout.wanted(d, column_block, output_block)


class PreparedPlaintexts:
    """The plaintexts of one W, by layout: that of the layout used last is kept. Secret: it is the evaluator's data."""

    def __init__(self, parameters: BfvParameters, W: Integers) -> None:
        self.shape = W.shape
        self._parameters = parameters
        self._W = W
        self._largest = max(int(W.max()), -int(W.min()))
        self._slot = (0, 0)
        self._plains: list[list[tuple[Any, bool]]] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shape}, secret>"

    @property
    def nbytes(self) -> int:
        """Bytes of W and its plaintexts."""
        count = sum(len(row) for row in self._plains)
        return int(self._W.nbytes) + count * DEGREE * len(self._parameters.bfv.primes) * 8

    def check(self, columns: int) -> None:
        """RangeError if so many columns in a block make noise of a tenth of a unit, or an entry fits no plaintext."""
        widest = self._largest >> (self._parameters.bfv.factor_bits - 1)
        if widest or self._parameters.noise(self.shape[0] * columns, self._largest) > 0.1:
            raise RangeError("lattice shares: W has entries too large for this L; use fewer bits of fixed point")

    def encoded(self, layout: Layout) -> list[list[tuple[Any, bool]]]:
        """Plaintexts [column block][sample block], and whether there is an entry in each."""
        if self._slot != (layout.s, layout.columns):
            self.check(min(layout.columns, self.shape[1]))
            self._plains = []  # the memory of the last ones goes before the new ones come
            parameters, rows = self._parameters, []
            for blocks in plaintexts(layout, self._W):
                filled = blocks.any(axis=1)
                blocks[~filled, 0] = 1
                rows.append(
                    [(parameters.bfv.transformed(each), bool(full)) for each, full in zip(blocks, filled, strict=True)]
                )
            self._plains = rows
            self._slot = (layout.s, layout.columns)
        return self._plains


class LatticeShareEvaluator(ShareEvaluator):
    """Owns W. Has of the holder b, and per message n, c and the layout."""

    def __init__(self, parameters: BfvParameters, public: bytes, coin: bytes) -> None:
        bfv = parameters.bfv
        if public[: _PUBLIC.size] != _PUBLIC.pack(b"SSK1", parameters.ring.bits):
            raise CryptoError(f"lattice shares: not a public key for L = {parameters.ring.bits}; both sides need one L")
        sized(_ENGINE, b"SSK1", public, _PUBLIC.size + polynomial_ring.packed_size(bfv.key_primes, DEGREE))
        first = polynomial_ring.unpack(memoryview(public)[_PUBLIC.size :], bfv.key_primes, DEGREE)
        self._parameters, self.public, self.coin = parameters, public, coin
        self._encryptor = seal.Encryptor(bfv.products.seal, bfv.public_key(first, parameters.second(coin)))
        self._key = _fingerprint(coin, public)

    def prepare(self, W: Integers, *, once: bool = False) -> PreparedPlaintexts:
        if W.ndim != 2 or 0 in W.shape or W.dtype.kind != "i":
            raise RangeError(f"lattice shares: W is n x d signed integers, got shape {W.shape} of {W.dtype}")
        prepared = PreparedPlaintexts(self._parameters, np.ascontiguousarray(W, np.int64))
        prepared.check(1)
        return prepared

    def product(self, prepared: PreparedPlaintexts, sealed: bytes) -> tuple[bytes, Words]:
        parameters, moduli = self._parameters, self._parameters.bfv.primes
        n, c, s, p = header(_ENGINE, SEALED, b"SSV1", sealed, self._key)
        layout, d = parameters.layout(n, c, s, p), prepared.shape[1]
        if n != prepared.shape[0]:
            raise CryptoError(
                f"lattice shares: V has {n} rows, W has {prepared.shape[0]}; both sides must use the same batch"
            )
        sized(
            _ENGINE, b"SSV1", sealed, SEALED.size + layout.output_blocks * layout.sample_blocks * parameters.sealed_size
        )
        plains = prepared.encoded(layout)
        parts = [REPLY.pack(b"SSR1", self._key, c, s, p, d)]
        own = np.empty((d, c), np.uint64)
        ups: list[Any] = []
        for outputs, columns, where in _blocks(layout, d):
            if columns.start == 0:
                ups = self._ups(layout, sealed, outputs.start // layout.p)
            residues = self._masked(self._inner(ups, plains[columns.start // layout.columns]))
            mask = self._uniform(len(where))
            first = (residues[0][:, where] + mask) % parameters.column
            parts += [polynomial_ring.pack(residues[1], moduli), polynomial_ring.pack(first, moduli)]
            share = parameters.ring.reduce(-nearest(mask, moduli, parameters.ring.bits))
            own[columns, outputs] = share.reshape(outputs.stop - outputs.start, -1).T
        return b"".join(parts), own

    def _ups(self, layout: Layout, sealed: bytes, output_block: int) -> list[Any]:
        """Read the holder's ciphertexts of one output block, in NTT form, in which they are multiplied."""
        bfv, size = self._parameters.bfv, self._parameters.sealed_size
        start, ups = SEALED.size + output_block * layout.sample_blocks * size, []
        for at in range(start, start + layout.sample_blocks * size, size):
            part = sealed[at : at + size]
            ups.append(
                bfv.sealed(polynomial_ring.unpack(part, bfv.primes, DEGREE), part[-polynomial_ring.SEED_BYTES :])
            )
        return ups

    def _inner(self, ups: list[Any], plains: list[tuple[Any, bool]]) -> Any | None:
        """Sum the products; return None if there is no entry. It takes the same steps in any case."""
        evaluator = self._parameters.bfv.evaluator
        sums: dict[bool, Any] = {}
        for up, (plain, filled) in zip(ups, plains, strict=True):
            term = seal.Ciphertext()
            evaluator.multiply_plain(up, plain, term)
            if filled in sums:
                evaluator.add_inplace(sums[filled], term)
            else:
                sums[filled] = term
        return sums.get(True)

    def _masked(self, total: Any | None) -> Residues:
        """Residues (2, primes, N), in coefficients, of the total plus a fresh public-key encryption of zero."""
        bfv = self._parameters.bfv
        zero = self._zero()
        if total is not None:
            bfv.evaluator.transform_from_ntt_inplace(total)
            bfv.evaluator.add_inplace(zero, total)
        return bfv.products.io.residues(zero, (2, len(bfv.primes), DEGREE))

    def _zero(self) -> Any:
        zero = seal.Ciphertext()
        self._encryptor.encrypt_zero(self._parameters.bfv.products.level, zero)
        return zero

    def _uniform(self, count: int) -> Residues:
        return uniform_residues(self._parameters.bfv.primes, count)

"""Shares of W^T V modulo 2^L as products of matrices under RLWE encryption (BFV on crypto/kernel, N = 4096, L <= 56).

    0. holder      a key (b, a), a expanded from the coin; b alone is sent              `public`
    1. holder      V in coefficients modulo t = 2^L, c0 = round(q/t V) + e - a' s, with
                   a' expanded from a fresh seed, at the points of the layout           `encrypt`
    2. evaluator   at each point the ciphertexts times the values of W                  `product`
    3. evaluator   plus (b u + e0, a u + e1), u, e0, e1 fresh, and a mask r uniform
                   modulo q on each wanted coefficient, sends; keeps -round(t r / q)     `product`
    4. holder      c0 + c1 s, keeps round(t (r + q/t W^T V + e) / q)                     `open`

The same as bfv_product.py in other arithmetic, and why nothing more is learnt is said there: c1 of a reply is
uniform under RLWE for any key and any query, since a is uniform whoever the holder is; of c0 only wanted coefficients
leave, under a mask that is uniform over the whole modulus, so what the holder decrypts is uniform, noise included. All
of q is in ciphertexts, there is no special prime: the encryption of zero adds noise of some 240, beside that of the
products. docs/proof.md has the parameters and what they rest on.

Nothing branches on a secret: products take the same steps for zeros, and rejection depends on discarded words alone.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel import residues
from securevfl.crypto.kernel.ciphertexts import (
    NOISE_STD,
    Answering,
    Opener,
    RingLayout,
    answer_size,
    choose,
    column_groups,
    keypair,
    milliseconds,
    named,
    pack,
    packed_size,
    second_polynomial,
    uniform,
    unpack,
)
from securevfl.crypto.kernel.residues import DEGREE, Primes, Residues, summed, transform
from securevfl.crypto.prg import KEY_BYTES as SEED_BYTES
from securevfl.crypto.prg import Prg
from securevfl.crypto.scheme import header, sized
from securevfl.crypto.share_ring import COIN_BYTES, Integers, ShareEvaluator, ShareHolder, ShareRing, ShareScheme, Words
from securevfl.errors import ConfigError, CryptoError, RangeError

MOST_BITS = 56  # L
MOST_MODULUS = 109  # bits of q: HomomorphicEncryption.org (2018), table 1, N = 4096, 128 bits, ternary secret

KEY_BYTES = 16  # of a key's fingerprint
_PUBLIC = struct.Struct("<4sB")  # magic, L
SEALED = struct.Struct("<4s16sIIII")  # magic, key, n, c, r, s
REPLY = struct.Struct("<4s16sIIII")  # magic, key, c, r, s, d
SECONDS = "public second polynomials of a query"  # whoever has the seed in it expands them
_ENGINE = "shares on the kernel"  # in errors
_MOST_ENTRY = 1 << 44  # of W
_TILE = 1 << 18  # coefficients of plaintexts that are transformed at a time


class KernelShares(ShareScheme):
    """Shares modulo 2^bits, 128-bit RLWE. ConfigError unless 8 <= bits <= 56 and the BLAS at hand is exact."""

    name: ClassVar[str] = "kernel"
    unlocked: ClassVar[bool] = True

    def __init__(self, bits: int = MOST_BITS) -> None:
        if not 8 <= bits <= MOST_BITS:
            raise ConfigError(f"shares on the kernel: L is 8 to {MOST_BITS}, got {bits}; use fewer bits of fixed point")
        if why := residues.fault():
            raise ConfigError(f"shares on the kernel: {why}, or name the other library: {residues.OTHER}")
        self.bits = bits
        self._parameters = _parameters(bits)

    def __reduce__(self) -> tuple[type[KernelShares], tuple[int]]:
        return KernelShares, (self.bits,)

    @property
    def strength(self) -> str:
        return (
            f"RLWE ring N={DEGREE}, {math.ceil(math.log2(self._parameters.primes.q))}-bit modulus "
            f"(HomomorphicEncryption.org: 128 bits), shares modulo 2^{self.bits} masked over the whole modulus"
        )

    def error_rate(self, n: int, c: int, d: int, largest: int) -> float:
        return self._parameters.noise(n * min(d, choose(n, c, d).columns), largest)

    def keygen(self, coin: bytes) -> ShareHolder:
        return KernelHolder(self._parameters, coin)

    def holder(self, exported: bytes) -> ShareHolder:
        return KernelHolder.imported(self._parameters, exported)

    def evaluator(self, public: bytes, coin: bytes) -> ShareEvaluator:
        return KernelEvaluator(self._parameters, public, coin)

    def multiply(self, W: Integers, sealed: bytes) -> bytes:
        parameters = self._parameters
        layout = _asked(parameters, sealed, sealed[4 : 4 + KEY_BYTES])  # whoever hides the products checks the key
        totals = _totals(parameters, PreparedWords(parameters, np.ascontiguousarray(W), once=True), layout, sealed)
        return b"".join(pack(parameters.primes, total) for total in totals)

    def seconds(self, n: int, c: int, d: int) -> float:
        return milliseconds(choose(n, c, d), d, line=0.0) / 1e3


@functools.lru_cache(maxsize=8)
def _parameters(bits: int) -> ShareParameters:
    """They are public, and take as long to make as some products."""
    return ShareParameters(bits)


def primes_for(bits: int) -> Primes:
    """Choose the primes for shares of L bits: 3 of 24 bits to L = 40, 4 of 20 to 48, 4 of 23 above.

    31 to 36 bits are left for noise.
    """
    return Primes(24, 3) if bits <= 40 else Primes(20, 4) if bits <= 48 else Primes(23, 4)


class ShareParameters:
    """The primes for one L, and what both sides derive from them."""

    def __init__(self, bits: int) -> None:
        self.ring = ShareRing(bits)
        self.primes = primes_for(bits)
        assert math.log2(self.primes.q) <= MOST_MODULUS, "more than the standard allows"

    def noise(self, entries: int, largest: int) -> float:
        """Bound the standard deviation of the noise in a product of so many entries, in units of a share.

        The noise comes from the errors of the query and the rounding of its message, both times W, and from the
        encryption of zero.
        """
        products = (NOISE_STD**2 + 1 / 12) * entries * largest**2
        zero = NOISE_STD**2 * (1 + 2 * DEGREE * 2 / 3)
        return math.sqrt(products + zero) * 2.0**self.ring.bits / self.primes.q

    def second(self, coin: bytes) -> Floats:
        """Return the second polynomial a (P, N) that this coin gives. CryptoError if the coin is of another length."""
        if len(coin) != COIN_BYTES:
            raise CryptoError(
                f"shares on the kernel: a coin has {COIN_BYTES} bytes, got {len(coin)}; make it with common_coin"
            )
        return second_polynomial(self.primes, coin)

    def layout(self, n: int, c: int, r: int, s: int) -> RingLayout:
        """Check the layout that a peer names, and return it. CryptoError if there is no such layout."""
        return named(_ENGINE, n, c, r, s)


def _fingerprint(coin: bytes, public: bytes) -> bytes:
    return hashlib.sha256(coin + public).digest()[:KEY_BYTES]


class KernelHolder(ShareHolder):
    """The party that owns V and a secret key on the kernel."""

    def __init__(self, parameters: ShareParameters, coin: bytes) -> None:
        secret, first = keypair(parameters.primes, parameters.second(coin))
        public = _PUBLIC.pack(b"SKK2", parameters.ring.bits) + pack(parameters.primes, first)
        self._have(parameters, public, _fingerprint(coin, public), secret)

    def _have(self, parameters: ShareParameters, public: bytes, key: bytes, secret: Floats) -> None:
        self._parameters, self.public, self._key = parameters, public, key
        self._opener = Opener(parameters.primes, secret)

    def exported(self) -> bytes:
        return self._key + self.public + self._opener.secret.astype(np.int8).tobytes()

    @classmethod
    def imported(cls, parameters: ShareParameters, exported: bytes) -> KernelHolder:
        """Restore a holder from what `exported` gave. CryptoError if it is of another length, or no key."""
        public = _PUBLIC.size + packed_size(parameters.primes, DEGREE)
        sized(_ENGINE, b"SKK2", exported, KEY_BYTES + public + DEGREE)
        holder = cls.__new__(cls)
        secret = np.frombuffer(exported, np.int8, offset=KEY_BYTES + public).astype(np.float64)
        if np.abs(secret).max() > 1 or exported[KEY_BYTES:][:4] != b"SKK2":
            raise CryptoError("shares on the kernel: an exported key was expected, other bytes came; export it again")
        holder._have(parameters, exported[KEY_BYTES:-DEGREE], exported[:KEY_BYTES], secret)
        return holder

    def encrypt(self, V: Words, *, columns: int, uses: int = 1) -> bytes:
        parameters, primes = self._parameters, self._parameters.primes
        if V.ndim != 2 or 0 in V.shape or V.dtype != np.uint64 or columns < 1 or uses < 1:
            raise RangeError(f"shares on the kernel: V is n x c words, n, c >= 1, got shape {V.shape} of {V.dtype}")
        if (parameters.ring.mask < V).any():
            raise RangeError(
                f"shares on the kernel: V has words of 2^{parameters.ring.bits} or more; reduce them first"
            )
        layout, seed, prg = choose(*V.shape, columns, uses), os.urandom(SEED_BYTES), Prg.fresh("errors of a query")
        seconds = Prg(seed, SECONDS)
        parts = [SEALED.pack(b"SKV2", self._key, *V.shape, layout.r, layout.s), seed]
        for outputs in layout.outputs:
            for blocks in layout.groups:
                words = primes.scaled(V[layout.rows(blocks), outputs], parameters.ring.bits)
                message = layout.messages(words, blocks)
                second = uniform(seconds, primes, (layout.points, layout.r, blocks.stop - blocks.start))
                parts.append(self._opener.seal(layout, message, second, prg))
        return b"".join(parts)

    def open(self, reply: bytes) -> Words:
        parameters, primes = self._parameters, self._parameters.primes
        c, r, s, d = header(_ENGINE, REPLY, b"SKR2", reply, self._key)
        layout = parameters.layout(s, c, r, s)  # how many sample blocks there were makes no difference here
        if d < 1:
            raise CryptoError("shares on the kernel: a reply names no column; it is malformed")
        sized(_ENGINE, b"SKR2", reply, REPLY.size + answer_size(primes, layout, d))
        view, shares = memoryview(reply)[REPLY.size :], np.empty((d, c), np.uint64)
        for outputs in layout.outputs:
            width = outputs.stop - outputs.start
            for columns, values in self._opener.reveal(layout, width, d, view):
                shares[columns, outputs] = primes.nearest(values, parameters.ring.bits)
            view = view[answer_size(primes, replace(layout, c=width), d) :]
        return shares


class PreparedWords:
    """The values of one W, for the layout used last. Secret: it is the evaluator's data."""

    def __init__(self, parameters: ShareParameters, W: Integers, once: bool = False) -> None:
        """once: whether it serves for one product, so that values are made as they are multiplied, and none is
        kept."""
        self.shape = W.shape
        self._once = once
        self._parameters = parameters
        self._W = W
        self._largest = max(int(W.max()), -int(W.min()))
        self._slot = (0, 0)
        self._values = np.zeros((0, 0, 0, 0), np.float32)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shape}, secret>"

    @property
    def nbytes(self) -> int:
        """Bytes of W and its values."""
        return int(self._W.nbytes + self._values.nbytes)

    def check(self, columns: int) -> None:
        """RangeError if so many columns in a block make noise of a tenth of a unit, or floats may not hold an entry."""
        if self._largest > _MOST_ENTRY or self._parameters.noise(self.shape[0] * columns, self._largest) > 0.1:
            raise RangeError("shares on the kernel: W has entries too large for this L; use fewer bits of fixed point")

    def values(self, layout: RingLayout) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Residues (P, M, B, F) at the points of this layout."""
        if self._slot != (layout.r, layout.s):
            self.check(min(layout.columns, self.shape[1]))
            self._values = np.zeros((0, 0, 0, 0), np.float32)  # the memory of the last ones goes before new ones come
            shape = layout.points, layout.sample_blocks, layout.column_blocks(self.shape[1])
            out = np.empty((len(self._parameters.primes), *shape), np.float32)
            for blocks, values in self._residues_by_blocks(layout, self._W):
                out[:, :, blocks] = values
            self._values = out
            self._slot = (layout.r, layout.s)
        return self._values

    def tiles(self, layout: RingLayout, blocks: slice, columns: slice) -> Iterator[tuple[slice, Residues]]:
        """Yield some sample blocks at a time, and their residues (P, M, some, F) for these column blocks, which hold
        these columns."""
        if self._once and layout.output_blocks == 1:
            self.check(min(layout.columns, self.shape[1]))
            yield from self._residues_by_blocks(layout, self._W[:, columns])
        else:
            yield slice(None), self.values(layout)[..., blocks]

    def _residues_by_blocks(self, layout: RingLayout, W: Integers) -> Iterator[tuple[slice, Floats]]:
        """Yield some sample blocks of W at a time, and their residues (P, M, some, F)."""
        primes, B, F = self._parameters.primes, layout.sample_blocks, layout.column_blocks(W.shape[1])
        ahead, wide = transform(primes, layout.points), self._largest >= min(primes.values) // 2
        step = max(1, _TILE // (layout.points * F))
        for start in range(0, B, step):
            blocks = slice(start, min(B, start + step))
            plain = layout.plaintexts(W, blocks)
            yield blocks, ahead.forward(primes.centred(plain) if wide else plain)


class KernelEvaluator(Answering, ShareEvaluator):
    """The party that owns W. Has of the holder b, and per message n, c and the layout."""

    def __init__(self, parameters: ShareParameters, public: bytes, coin: bytes) -> None:
        primes = parameters.primes
        if public[: _PUBLIC.size] != _PUBLIC.pack(b"SKK2", parameters.ring.bits):
            raise CryptoError(
                f"shares on the kernel: not a public key for L = {parameters.ring.bits}; both sides need one L"
            )
        sized(_ENGINE, b"SKK2", public, _PUBLIC.size + packed_size(primes, DEGREE))
        first = unpack(primes, memoryview(public)[_PUBLIC.size :], (DEGREE,))
        self._parameters, self.public, self.coin = parameters, public, coin
        self._has_key(primes, first, parameters.second(coin))
        self._key = _fingerprint(coin, public)

    def prepare(self, W: Integers, *, once: bool = False) -> PreparedWords:
        if W.ndim != 2 or 0 in W.shape or W.dtype.kind != "i":
            raise RangeError(f"shares on the kernel: W is n x d signed integers, got shape {W.shape} of {W.dtype}")
        prepared = PreparedWords(self._parameters, np.ascontiguousarray(W), once)
        prepared.check(1)
        return prepared

    def product(self, prepared: PreparedWords, sealed: bytes) -> tuple[bytes, Words]:
        layout = _asked(self._parameters, sealed, self._key)
        return self._answer(layout, prepared.shape[1], _totals(self._parameters, prepared, layout, sealed))

    def hide(self, sealed: bytes, d: int, parts: Sequence[bytes]) -> tuple[bytes, Words]:
        primes, layout = self._parameters.primes, _asked(self._parameters, sealed, self._key)
        shapes = [
            (layout.points, outputs.stop - outputs.start + layout.r, blocks.stop - blocks.start)
            for outputs in layout.outputs
            for blocks, _ in column_groups(layout, d)
        ]
        sizes = [packed_size(primes, math.prod(shape)) for shape in shapes]
        for part in parts:
            sized(_ENGINE, b"SKT2", part, sum(sizes))

        def totals() -> Iterator[Floats]:
            for at, size, shape in zip(np.cumsum([0, *sizes]).tolist(), sizes, shapes, strict=False):
                yield np.sum([unpack(primes, memoryview(part)[at : at + size], shape) for part in parts], axis=0)

        return self._answer(layout, d, map(primes.reduce, totals()))

    def _answer(self, layout: RingLayout, d: int, totals: Iterable[Floats]) -> tuple[bytes, Words]:
        """Hide products, group by group, in what is sent; return this and the own share."""
        parameters, primes, prg = self._parameters, self._parameters.primes, Prg.fresh("what hides a reply")
        own = np.empty((d, layout.c), np.uint64)
        parts = [REPLY.pack(b"SKR2", self._key, layout.c, layout.r, layout.s, d)]
        wanted = ((outputs, columns) for outputs in layout.outputs for _, columns in column_groups(layout, d))
        for (outputs, columns), total in zip(wanted, totals, strict=True):
            part, mask = self._hidden(layout, total, columns.stop - columns.start, prg)
            parts.append(part)
            own[columns, outputs] = parameters.ring.reduce(-primes.nearest(mask, parameters.ring.bits))
        return b"".join(parts), own


def _asked(parameters: ShareParameters, sealed: bytes, key: bytes) -> RingLayout:
    """Check a query under this key, and return its layout."""
    layout = parameters.layout(*header(_ENGINE, SEALED, b"SKV2", sealed, key))
    size = packed_size(parameters.primes, layout.points * layout.sample_blocks)  # of one output
    sized(_ENGINE, b"SKV2", sealed, SEALED.size + SEED_BYTES + layout.c * size)
    return layout


def _totals(
    parameters: ShareParameters, prepared: PreparedWords, layout: RingLayout, sealed: bytes
) -> Iterator[Floats]:
    """Yield the products (P, M, outputs + r, blocks) of a query, by groups of outputs and then of columns: residues
    about zero, nothing drawn."""
    primes, (n, d), start = parameters.primes, prepared.shape, SEALED.size + SEED_BYTES
    if n != layout.n:
        raise CryptoError(f"shares on the kernel: V has {layout.n} rows, W has {n}; both sides must use the same batch")
    size, seconds = packed_size(primes, layout.points * layout.sample_blocks), Prg(sealed[SEALED.size : start], SECONDS)
    for outputs in layout.outputs:
        view = memoryview(sealed)[start + outputs.start * size :]
        query = _query(primes, layout, outputs.stop - outputs.start, view, seconds)
        for blocks, columns in column_groups(layout, d):
            total, terms = None, 0
            for some, values in prepared.tiles(layout, blocks, columns):
                total, terms = summed(primes, total, terms, query[..., some], values)
            assert total is not None, "W has rows, so something was multiplied"
            yield primes.reduce(total)


def _query(
    primes: Primes, layout: RingLayout, width: int, view: memoryview, seconds: Prg
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """(P, M, width + r, B): the ciphertexts of so many outputs at each point, c0 over c1."""
    r = layout.r
    out = np.empty((len(primes), layout.points, width + r, layout.sample_blocks), np.float32)
    for blocks in layout.groups:
        count = blocks.stop - blocks.start
        out[:, :, :width, blocks] = unpack(primes, view, (layout.points, width, count))
        out[:, :, width:, blocks] = uniform(seconds, primes, (layout.points, r, count))
        view = view[packed_size(primes, layout.points * width * count) :]
    return out

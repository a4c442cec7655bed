"""Shares of W^T V modulo 2^L as products of matrices under RLWE encryption (BFV on crypto/kernel, N = 4096, L <= 56).

    0. holder      a key (b, a), a expanded from the coin; b alone is sent              `public`
    1. holder      V in coefficients modulo t = 2^L, c0 = round(q/t V) + e - a' s, with
                   a' expanded from a fresh seed, at the points of the layout           `encrypt`
    2. evaluator   at each point the ciphertexts times the values of W                  `product`
    3. evaluator   plus (b u + e0, a u + e1), u, e0, e1 fresh, and a mask r uniform
                   modulo q on each wanted coefficient, sends; keeps -round(t r / q)     `product`
    4. holder      c0 + c1 s, keeps round(t (r + q/t W^T V + e) / q)                     `open`

The mask is uniform over the whole modulus, so what the holder decrypts is uniform, noise included, and the unwanted
coefficients never leave: a masked product is a share already (as in the offline phase of Delphi, Mishra et al. 2020).
c1 of the reply has a u + e1 added, u and e1 fresh, which is uniform under RLWE for any key and any query that the
holder made, since a is uniform whoever the holder is; of c0 nothing is seen but what the mask covers. The holder gives
nothing back, so nothing is opened that could tell its key (Li and Micciancio 2021 does not apply).

The two shares sum to W^T V, or to one beside it where r comes close to a multiple of q/t: for a part E|e| t / q of the
values, e the noise: `error_rate`. All of q is in ciphertexts, there is no special prime: the encryption of zero adds
noise of some 240, beside that of the products. docs/proof.md has the parameters and what they rest on.

The protocol is one for every library that multiplies: `RingShares`, `RingHolder` and `RingEvaluator` say it, the kernel
and SEAL (bfv_product.py) encrypt, multiply, hide and decrypt.

Nothing branches on a secret: products take the same steps for zeros, and rejection depends on discarded words alone.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
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
PUBLIC = struct.Struct("<4sB")  # magic, L
SEALED = struct.Struct("<4s16sIIII")  # magic, key, n, c, r, s
REPLY = struct.Struct("<4s16sIIII")  # magic, key, c, r, s, d
SECONDS = "public second polynomials of a query"  # whoever has the seed in it expands them
_MOST_ENTRY = 1 << 44  # of W
_TILE = 1 << 18  # coefficients of plaintexts that are transformed at a time


class RingParameters(ABC):
    """What both sides of an engine derive from L. They are public, and take as long to make as some products."""

    engine: ClassVar[str]  # in errors
    magic: ClassVar[tuple[bytes, bytes, bytes]]  # of public keys, queries and replies
    zero: ClassVar[float]  # standard deviation of the noise that an encryption of zero brings
    modulus: int  # q
    key_bits: int  # of the largest modulus of a key
    key_size: int  # bytes of the first polynomial of a public key
    secret_size: int  # bytes of an exported secret

    def __init__(self, bits: int) -> None:
        self.ring = ShareRing(bits)

    def noise(self, entries: int, largest: int) -> float:
        """Bound the standard deviation of the noise in a product of so many entries, in units of a share.

        The noise comes from the errors of the query and the rounding of its message, both times W, and from the
        encryption of zero.
        """
        products = (NOISE_STD**2 + 1 / 12) * entries * largest**2
        return math.sqrt(products + self.zero**2) * 2.0**self.ring.bits / self.modulus

    def coined(self, coin: bytes) -> bytes:
        """Check the coin of a key, and return it."""
        if len(coin) != COIN_BYTES:
            raise CryptoError(
                f"{self.engine}: a coin has {COIN_BYTES} bytes, got {len(coin)}; make it with common_coin"
            )
        return coin

    def layout(self, n: int, c: int, r: int, s: int) -> RingLayout:
        """Check the layout that a peer names, and return it. CryptoError if there is no such layout."""
        return named(self.engine, n, c, r, s)

    def asked(self, sealed: bytes, key: bytes) -> RingLayout:
        """Check a query under this key, and return its layout."""
        layout = self.layout(*header(self.engine, SEALED, self.magic[1], sealed, key))
        sized(self.engine, self.magic[1], sealed, SEALED.size + self.query_size(layout))
        return layout

    @abstractmethod
    def choose(self, n: int, c: int, d: int, uses: int = 1) -> RingLayout:
        """Return the cheapest layout for V of n x c and W of n x d whose plaintexts serve for `uses` such V."""

    @abstractmethod
    def query_size(self, layout: RingLayout) -> int:
        """Return the bytes of a query behind its header."""

    @abstractmethod
    def reply_size(self, layout: RingLayout, d: int) -> int:
        """Return the bytes of a reply about d columns behind its header."""


class RingShares(ShareScheme):
    """Shares modulo 2^bits under 128-bit RLWE, whichever library multiplies."""

    holders: ClassVar[type[RingHolder]]
    evaluators: ClassVar[type[RingEvaluator]]

    def __init__(self, bits: int, parameters: Callable[[int], RingParameters]) -> None:
        if not 8 <= bits <= MOST_BITS:
            raise ConfigError(f"shares: L is 8 to {MOST_BITS}, got {bits}; use fewer bits of fixed point")
        self.bits = bits
        self._parameters: Any = parameters(bits)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.bits,)

    @property
    def strength(self) -> str:
        return (
            f"RLWE ring N={DEGREE}, {self._parameters.key_bits}-bit modulus (HomomorphicEncryption.org: 128 bits), "
            f"shares modulo 2^{self.bits} masked over the whole modulus"
        )

    def error_rate(self, n: int, c: int, d: int, largest: int) -> float:
        return float(self._parameters.noise(n * min(d, self._parameters.choose(n, c, d).columns), largest))

    def keygen(self, coin: bytes) -> ShareHolder:
        return self.holders(self._parameters, coin)

    def holder(self, exported: bytes) -> ShareHolder:
        return self.holders.imported(self._parameters, exported)

    def evaluator(self, public: bytes, coin: bytes) -> ShareEvaluator:
        return self.evaluators(self._parameters, public, coin)


def _fingerprint(coin: bytes, public: bytes) -> bytes:
    return hashlib.sha256(coin + public).digest()[:KEY_BYTES]


class RingHolder(ShareHolder):
    """The party that owns V and a secret key. An engine adds how it makes keys, encrypts and decrypts."""

    def __init__(self, parameters: Any, coin: bytes) -> None:
        self._parameters = parameters
        first = self._new_key(parameters.coined(coin))
        self.public = PUBLIC.pack(parameters.magic[0], parameters.ring.bits) + first
        self._key = _fingerprint(coin, self.public)

    @abstractmethod
    def _new_key(self, coin: bytes) -> bytes:
        """Make a secret key; return the first polynomial of its public key as it travels."""

    @abstractmethod
    def _secret(self) -> bytes:
        """Return the secret key, for processes of this party alone."""

    @abstractmethod
    def _has_secret(self, secret: bytes) -> None:
        """Take the secret key that `_secret` gave. CryptoError if it is none."""

    @abstractmethod
    def _sealed(self, layout: RingLayout, V: Words) -> Iterator[bytes]:
        """Yield the ciphertexts of a query, in the order that they travel."""

    @abstractmethod
    def _opened(self, layout: RingLayout, d: int, view: memoryview) -> Iterator[tuple[slice, slice, Words]]:
        """Yield columns, outputs, and their shares (columns, outputs), of the ciphertexts of a reply."""

    def exported(self) -> bytes:
        return self._key + self.public + self._secret()

    @classmethod
    def imported(cls, parameters: RingParameters, exported: bytes) -> RingHolder:
        """Restore a holder from what `exported` gave. CryptoError if it is of another length, or no key."""
        public, magic = PUBLIC.size + parameters.key_size, parameters.magic[0]
        sized(parameters.engine, magic, exported, KEY_BYTES + public + parameters.secret_size)
        if exported[KEY_BYTES:][:4] != magic:
            raise CryptoError(f"{parameters.engine}: an exported key was expected, other bytes came; export it again")
        holder = cls.__new__(cls)
        holder._parameters, holder._key = parameters, exported[:KEY_BYTES]
        holder.public = exported[KEY_BYTES:][:public]
        holder._has_secret(exported[KEY_BYTES + public :])
        return holder

    def encrypt(self, V: Words, *, columns: int, uses: int = 1) -> bytes:
        parameters = self._parameters
        if V.ndim != 2 or 0 in V.shape or V.dtype != np.uint64 or columns < 1 or uses < 1:
            raise RangeError(f"{parameters.engine}: V is n x c words, n, c >= 1, got shape {V.shape} of {V.dtype}")
        if (parameters.ring.mask < V).any():
            raise RangeError(f"{parameters.engine}: V has words of 2^{parameters.ring.bits} or more; reduce them first")
        layout = parameters.choose(*V.shape, columns, uses)
        head = SEALED.pack(parameters.magic[1], self._key, *V.shape, layout.r, layout.s)
        return b"".join([head, *self._sealed(layout, V)])

    def open(self, reply: bytes) -> Words:
        parameters = self._parameters
        c, r, s, d = header(parameters.engine, REPLY, parameters.magic[2], reply, self._key)
        layout = parameters.layout(s, c, r, s)  # how many sample blocks there were makes no difference here
        if d < 1:
            raise CryptoError(f"{parameters.engine}: a reply names no column; it is malformed")
        sized(parameters.engine, parameters.magic[2], reply, REPLY.size + parameters.reply_size(layout, d))
        shares = np.empty((d, c), np.uint64)
        for columns, outputs, words in self._opened(layout, d, memoryview(reply)[REPLY.size :]):
            shares[columns, outputs] = words
        return shares


class PreparedFactor:
    """W, and its plaintexts for the layout used last. Secret: it is the evaluator's data."""

    def __init__(self, parameters: Any, W: Integers) -> None:
        self.shape = W.shape
        self._parameters = parameters
        self._W = W
        self._largest = max(int(W.max()), -int(W.min()))
        self._slot = (0, 0)
        self._values: Any = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shape}, secret>"

    def check(self, columns: int) -> None:
        """RangeError if so many columns in a block make noise of a tenth of a unit, or floats may not hold an entry."""
        if self._largest > _MOST_ENTRY or self._parameters.noise(self.shape[0] * columns, self._largest) > 0.1:
            raise RangeError(
                f"{self._parameters.engine}: W has entries too large for this L; use fewer bits of fixed point"
            )

    def values(self, layout: RingLayout) -> Any:
        """Return all plaintexts of this layout."""
        if self._slot != (layout.r, layout.s):
            self.check(min(layout.columns, self.shape[1]))
            self._values = None  # the memory of the last ones goes before new ones come
            self._values, self._slot = self._made(layout), (layout.r, layout.s)
        return self._values

    def _made(self, layout: RingLayout) -> Any:
        """Make all plaintexts of this layout."""
        raise NotImplementedError


class RingEvaluator(ShareEvaluator):
    """The party that owns W. Has of the holder b, and per message n, c and the layout.

    An engine adds how it takes a key, multiplies and hides.
    """

    def __init__(self, parameters: Any, public: bytes, coin: bytes) -> None:
        magic = parameters.magic[0]
        if public[: PUBLIC.size] != PUBLIC.pack(magic, parameters.ring.bits):
            raise CryptoError(
                f"{parameters.engine}: not a public key for L = {parameters.ring.bits}; both sides need one L"
            )
        sized(parameters.engine, magic, public, PUBLIC.size + parameters.key_size)
        self._parameters, self.public, self.coin = parameters, public, coin
        self._has_public(memoryview(public)[PUBLIC.size :], parameters.coined(coin))
        self._key = _fingerprint(coin, public)

    @abstractmethod
    def _has_public(self, first: memoryview, coin: bytes) -> None:
        """Take the public key. CryptoError if a residue is not below its prime."""

    def _prepared(self, W: Integers, once: bool) -> PreparedFactor:
        """Return W as the engine takes it."""
        raise NotImplementedError

    @abstractmethod
    def _totals(self, prepared: Any, layout: RingLayout, sealed: bytes) -> Iterable[Any]:
        """Yield the products of a query, in the order of `_places`: nothing drawn."""

    @abstractmethod
    def _places(self, layout: RingLayout, d: int) -> Iterator[tuple[slice, slice]]:
        """Yield the outputs and columns of each product."""

    @abstractmethod
    def _hidden(self, layout: RingLayout, total: Any, shape: tuple[int, int], prg: Prg) -> tuple[bytes, Any]:
        """Return the answer to products, of so many columns and outputs, and its mask (P, *shape)."""

    @abstractmethod
    def _share(self, mask: Any) -> Words:
        """round(t r / q) of a mask r."""

    def prepare(self, W: Integers, *, once: bool = False) -> Any:
        if W.ndim != 2 or 0 in W.shape or W.dtype.kind != "i":
            raise RangeError(f"{self._parameters.engine}: W is n x d signed integers, got shape {W.shape} of {W.dtype}")
        prepared = self._prepared(np.ascontiguousarray(W), once)
        prepared.check(1)
        return prepared

    def product(self, prepared: Any, sealed: bytes) -> tuple[bytes, Words]:
        layout, (n, d) = self._parameters.asked(sealed, self._key), prepared.shape
        same_rows(self._parameters, layout, n)
        return self._answer(layout, d, self._totals(prepared, layout, sealed))

    def _answer(self, layout: RingLayout, d: int, totals: Iterable[Any]) -> tuple[bytes, Words]:
        """Hide products, one after the other, in what is sent; return this and the own share."""
        parameters, prg, own = self._parameters, Prg.fresh("what hides a reply"), np.empty((d, layout.c), np.uint64)
        parts = [REPLY.pack(parameters.magic[2], self._key, layout.c, layout.r, layout.s, d)]
        for (outputs, columns), total in zip(self._places(layout, d), totals, strict=True):
            shape = columns.stop - columns.start, outputs.stop - outputs.start
            part, mask = self._hidden(layout, total, shape, prg)
            parts.append(part)
            own[columns, outputs] = parameters.ring.reduce(-self._share(mask))
        return b"".join(parts), own


def same_rows(parameters: RingParameters, layout: RingLayout, n: int) -> None:
    """CryptoError unless a query is of as many rows as W."""
    if n != layout.n:
        raise CryptoError(f"{parameters.engine}: V has {layout.n} rows, W has {n}; both sides must use the same batch")


# The engine on small residues.


def primes_for(bits: int) -> Primes:
    """Choose the primes for shares of L bits: 3 of 24 bits to L = 40, 4 of 20 to 48, 4 of 23 above.

    31 to 36 bits are left for noise.
    """
    return Primes(24, 3) if bits <= 40 else Primes(20, 4) if bits <= 48 else Primes(23, 4)


class ShareParameters(RingParameters):
    """The primes for one L, and what both sides derive from them."""

    engine: ClassVar[str] = "shares on the kernel"
    magic: ClassVar[tuple[bytes, bytes, bytes]] = b"SKK2", b"SKV2", b"SKR2"
    zero: ClassVar[float] = NOISE_STD * math.sqrt(1 + 2 * DEGREE * 2 / 3)

    def __init__(self, bits: int) -> None:
        super().__init__(bits)
        self.primes = primes_for(bits)
        self.modulus, self.key_bits = self.primes.q, math.ceil(math.log2(self.primes.q))
        self.key_size, self.secret_size = packed_size(self.primes, DEGREE), DEGREE
        assert math.log2(self.primes.q) <= MOST_MODULUS, "more than the standard allows"

    def second(self, coin: bytes) -> Floats:
        """Return the second polynomial a (P, N) that this coin gives. CryptoError if the coin is of another length."""
        return second_polynomial(self.primes, self.coined(coin))

    def choose(self, n: int, c: int, d: int, uses: int = 1) -> RingLayout:
        return choose(n, c, d, uses)

    def query_size(self, layout: RingLayout) -> int:
        return SEED_BYTES + layout.c * packed_size(self.primes, layout.points * layout.sample_blocks)

    def reply_size(self, layout: RingLayout, d: int) -> int:
        return answer_size(self.primes, layout, d)


_parameters = functools.lru_cache(maxsize=8)(ShareParameters)


class KernelHolder(RingHolder):
    """The party that owns V and a secret key on the kernel."""

    _parameters: ShareParameters

    def _new_key(self, coin: bytes) -> bytes:
        primes = self._parameters.primes
        secret, first = keypair(primes, self._parameters.second(coin))
        self._opener = Opener(primes, secret)
        return pack(primes, first)

    def _secret(self) -> bytes:
        return self._opener.secret.astype(np.int8).tobytes()

    def _has_secret(self, secret: bytes) -> None:
        values = np.frombuffer(secret, np.int8).astype(np.float64)
        if np.abs(values).max() > 1:
            raise CryptoError("shares on the kernel: an exported key was expected, other bytes came; export it again")
        self._opener = Opener(self._parameters.primes, values)

    def _sealed(self, layout: RingLayout, V: Words) -> Iterator[bytes]:
        parameters, primes = self._parameters, self._parameters.primes
        seed, prg = os.urandom(SEED_BYTES), Prg.fresh("errors of a query")
        seconds = Prg(seed, SECONDS)
        yield seed
        for outputs in layout.outputs:
            for blocks in layout.groups:
                words = primes.scaled(V[layout.rows(blocks), outputs], parameters.ring.bits)
                message = layout.messages(words, blocks)
                second = uniform(seconds, primes, (layout.points, layout.r, blocks.stop - blocks.start))
                yield self._opener.seal(layout, message, second, prg)

    def _opened(self, layout: RingLayout, d: int, view: memoryview) -> Iterator[tuple[slice, slice, Words]]:
        primes = self._parameters.primes
        for outputs in layout.outputs:
            width = outputs.stop - outputs.start
            for columns, values in self._opener.reveal(layout, width, d, view):
                yield columns, outputs, primes.nearest(values, self._parameters.ring.bits)
            view = view[answer_size(primes, replace(layout, c=width), d) :]


class PreparedWords(PreparedFactor):
    """Values of W at the points of a layout, residues (P, M, B, F)."""

    def __init__(self, parameters: ShareParameters, W: Integers, once: bool = False) -> None:
        """once: whether it serves for one product, so that values are made as they are multiplied, and none is
        kept."""
        super().__init__(parameters, W)
        self._once = once

    @property
    def nbytes(self) -> int:
        """Bytes of W and its values."""
        return int(self._W.nbytes + (0 if self._values is None else self._values.nbytes))

    def _made(self, layout: RingLayout) -> np.ndarray[Any, np.dtype[np.float32]]:
        shape = layout.points, layout.sample_blocks, layout.column_blocks(self.shape[1])
        out = np.empty((len(self._parameters.primes), *shape), np.float32)
        for blocks, values in self._residues_by_blocks(layout, self._W):
            out[:, :, blocks] = values
        return out

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


class KernelEvaluator(Answering, RingEvaluator):
    """The party that owns W, on the kernel."""

    _parameters: ShareParameters

    def _has_public(self, first: memoryview, coin: bytes) -> None:
        primes = self._parameters.primes
        self._has_key(primes, unpack(primes, first, (DEGREE,)), self._parameters.second(coin))

    def _prepared(self, W: Integers, once: bool) -> PreparedWords:
        return PreparedWords(self._parameters, W, once)

    def _places(self, layout: RingLayout, d: int) -> Iterator[tuple[slice, slice]]:
        return ((outputs, columns) for outputs in layout.outputs for _, columns in column_groups(layout, d))

    def _share(self, mask: Floats) -> Words:
        return self._primes.nearest(mask, self._parameters.ring.bits)

    def _totals(self, prepared: PreparedWords, layout: RingLayout, sealed: bytes) -> Iterator[Floats]:
        return _totals(self._parameters, prepared, layout, sealed)

    def hide(self, sealed: bytes, d: int, parts: Sequence[bytes]) -> tuple[bytes, Words]:
        primes, layout = self._parameters.primes, self._parameters.asked(sealed, self._key)
        shapes = [
            (layout.points, outputs.stop - outputs.start + layout.r, blocks.stop - blocks.start)
            for outputs in layout.outputs
            for blocks, _ in column_groups(layout, d)
        ]
        sizes = [packed_size(primes, math.prod(shape)) for shape in shapes]
        for part in parts:
            sized(self._parameters.engine, b"SKT2", part, sum(sizes))

        def totals() -> Iterator[Floats]:
            for at, size, shape in zip(np.cumsum([0, *sizes]).tolist(), sizes, shapes, strict=False):
                yield np.sum([unpack(primes, memoryview(part)[at : at + size], shape) for part in parts], axis=0)

        return self._answer(layout, d, map(primes.reduce, totals()))


class KernelShares(RingShares):
    """Shares modulo 2^bits, 128-bit RLWE. ConfigError unless 8 <= bits <= 56 and the BLAS at hand is exact."""

    name: ClassVar[str] = "kernel"
    unlocked: ClassVar[bool] = True
    holders: ClassVar[type[RingHolder]] = KernelHolder
    evaluators: ClassVar[type[RingEvaluator]] = KernelEvaluator

    def __init__(self, bits: int = MOST_BITS) -> None:
        if why := residues.fault():
            raise ConfigError(f"shares on the kernel: {why}, or name the other library: {residues.OTHER}")
        super().__init__(bits, _parameters)

    def multiply(self, W: Integers, sealed: bytes) -> bytes:
        parameters = self._parameters
        layout = parameters.asked(sealed, sealed[4 : 4 + KEY_BYTES])  # whoever hides the products checks the key
        same_rows(parameters, layout, len(W))
        totals = _totals(parameters, PreparedWords(parameters, np.ascontiguousarray(W), once=True), layout, sealed)
        return b"".join(pack(parameters.primes, total) for total in totals)

    def seconds(self, n: int, c: int, d: int) -> float:
        return milliseconds(choose(n, c, d), d, line=0.0) / 1e3


def _totals(
    parameters: ShareParameters, prepared: PreparedWords, layout: RingLayout, sealed: bytes
) -> Iterator[Floats]:
    """Yield the products (P, M, outputs + r, blocks) of a query, by groups of outputs and then of columns: residues
    about zero, nothing drawn."""
    primes, d, start = parameters.primes, prepared.shape[1], SEALED.size + SEED_BYTES
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

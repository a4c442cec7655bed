"""The protocol of shared products W^T V modulo 2^L, for every library that multiplies."""

from __future__ import annotations

import hashlib
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import numpy as np

from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.kernel.ring_layout import RingLayout, checked_layout
from securevfl.crypto.kernel.ring_sampling import NOISE_STD
from securevfl.crypto.message_headers import check_length, read_header
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import Integers, ShareRing, Words
from securevfl.crypto.share_scheme import COIN_BYTES, ShareEvaluator, ShareHolder, ShareScheme
from securevfl.errors import ConfigError, CryptoError, RangeError

MAX_SHARE_BITS = 56  # L

FINGERPRINT_BYTES = 16  # of a key's fingerprint

PUBLIC_KEY_HEADER = struct.Struct("<4sB")  # magic, L

QUERY_HEADER = struct.Struct("<4s16sIIII")  # magic, key, n, c, r, s

REPLY_HEADER = struct.Struct("<4s16sIIII")  # magic, key, c, r, s, d

_MOST_ENTRY = 1 << 44  # of W


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
        return checked_layout(self.engine, n, c, r, s)

    def asked(self, sealed: bytes, key: bytes) -> RingLayout:
        """Check a query under this key, and return its layout."""
        layout = self.layout(*read_header(self.engine, QUERY_HEADER, self.magic[1], sealed, key))
        check_length(self.engine, self.magic[1], sealed, QUERY_HEADER.size + self.query_size(layout))
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
        if not 8 <= bits <= MAX_SHARE_BITS:
            raise ConfigError(f"shares: L is 8 to {MAX_SHARE_BITS}, got {bits}; use fewer bits of fixed point")
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
    return hashlib.sha256(coin + public).digest()[:FINGERPRINT_BYTES]


class RingHolder(ShareHolder):
    """The party that owns V and a secret key. An engine adds how it makes keys, encrypts and decrypts."""

    def __init__(self, parameters: Any, coin: bytes) -> None:
        self._parameters = parameters
        first = self._new_key(parameters.coined(coin))
        self.public = PUBLIC_KEY_HEADER.pack(parameters.magic[0], parameters.ring.bits) + first
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
        public, magic = PUBLIC_KEY_HEADER.size + parameters.key_size, parameters.magic[0]
        check_length(parameters.engine, magic, exported, FINGERPRINT_BYTES + public + parameters.secret_size)
        if exported[FINGERPRINT_BYTES:][:4] != magic:
            raise CryptoError(f"{parameters.engine}: an exported key was expected, other bytes came; export it again")
        holder = cls.__new__(cls)
        holder._parameters, holder._key = parameters, exported[:FINGERPRINT_BYTES]
        holder.public = exported[FINGERPRINT_BYTES:][:public]
        holder._has_secret(exported[FINGERPRINT_BYTES + public :])
        return holder

    def encrypt(self, V: Words, *, columns: int, uses: int = 1) -> bytes:
        parameters = self._parameters
        if V.ndim != 2 or 0 in V.shape or V.dtype != np.uint64 or columns < 1 or uses < 1:
            raise RangeError(f"{parameters.engine}: V is n x c words, n, c >= 1, got shape {V.shape} of {V.dtype}")
        if (parameters.ring.mask < V).any():
            raise RangeError(f"{parameters.engine}: V has words of 2^{parameters.ring.bits} or more; reduce them first")
        layout = parameters.choose(*V.shape, columns, uses)
        head = QUERY_HEADER.pack(parameters.magic[1], self._key, *V.shape, layout.r, layout.s)
        return b"".join([head, *self._sealed(layout, V)])

    def open(self, reply: bytes) -> Words:
        parameters = self._parameters
        c, r, s, d = read_header(parameters.engine, REPLY_HEADER, parameters.magic[2], reply, self._key)
        layout = parameters.layout(s, c, r, s)  # how many sample blocks there were makes no difference here
        if d < 1:
            raise CryptoError(f"{parameters.engine}: a reply names no column; it is malformed")
        check_length(
            parameters.engine, parameters.magic[2], reply, REPLY_HEADER.size + parameters.reply_size(layout, d)
        )
        shares = np.empty((d, c), np.uint64)
        for columns, outputs, words in self._opened(layout, d, memoryview(reply)[REPLY_HEADER.size :]):
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
        if public[: PUBLIC_KEY_HEADER.size] != PUBLIC_KEY_HEADER.pack(magic, parameters.ring.bits):
            raise CryptoError(
                f"{parameters.engine}: not a public key for L = {parameters.ring.bits}; both sides need one L"
            )
        check_length(parameters.engine, magic, public, PUBLIC_KEY_HEADER.size + parameters.key_size)
        self._parameters, self.public, self.coin = parameters, public, coin
        self._has_public(memoryview(public)[PUBLIC_KEY_HEADER.size :], parameters.coined(coin))
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
        parts = [REPLY_HEADER.pack(parameters.magic[2], self._key, layout.c, layout.r, layout.s, d)]
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

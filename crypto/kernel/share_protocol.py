"""The protocol of shared products W^T V modulo 2^L, with base classes for every library that multiplies.

The holder has V (n, c) and a secret key, and the evaluator has W (n, d); their random-looking shares (d, c) add up to
the product. This package's arithmetic (shares.py) and SEAL (crypto/lattice/lattice_shares.py) implement encryption,
multiplication, hiding and decryption. shares.py lists the steps and explains who learns what. A query is the holder's
message with encrypted V, and a reply is the evaluator's answer. A coin is 32 random bytes that the nonces (random
bytes) of both parties determine; part of a public key is computed from it, so that the holder cannot choose that part.
q is the modulus of ciphertexts, and t = 2^L. A layout (ring_layout.py) is the way in which matrices are divided into
blocks: r outputs (columns of V) and s rows in a block. P is the number of primes whose product is q.
"""

from __future__ import annotations

import hashlib
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.kernel.ring_layout import RingLayout, checked_layout
from securevfl.crypto.kernel.ring_sampling import NOISE_STD
from securevfl.crypto.message_headers import check_length, read_header
from securevfl.crypto.prg import Prg
from securevfl.crypto.secret import Secret
from securevfl.crypto.share_ring import Integers, ShareRing, Words
from securevfl.crypto.share_scheme import COIN_BYTES, ShareEvaluator, ShareHolder, ShareScheme
from securevfl.errors import ConfigError, CryptoError, RangeError

MAX_SHARE_BITS = 56
"""Largest number of bits L of a share."""

FINGERPRINT_BYTES = 16
"""Length of the fingerprint of a key in bytes."""

PUBLIC_KEY_HEADER = struct.Struct("<4sB")
"""Header of a public key: four letters that name the kind of message, and L."""

QUERY_HEADER = struct.Struct("<4s16sIIII")
"""Header of a query: four letters, fingerprint of the key, n, c, r, s."""

REPLY_HEADER = struct.Struct("<4s16sIIII")
"""Header of a reply: four letters, fingerprint of the key, c, r, s, d."""

EXACT_DEVIATION = 0.1
"""Largest standard deviation of the noise of a product that is exact up to rounding, in units of a share's last bit."""

_MAX_ENTRY = 1 << 44  # largest absolute value of an entry of W


class RingParameters(ABC):
    """Public parameters of an implementation for one L. They are slow to compute.

    Args:
        bits: the number of bits L of a share.
        tolerance: the largest standard deviation of the noise of a product, in units of the last bit of a share.

    Attributes:
        engine: name of the implementation in error messages.
        magic: the letters at the beginning of public keys, queries and replies.
        zero: standard deviation of the noise of an encryption of zero.
        modulus: the modulus q.
        key_bits: number of bits of the largest modulus of a key.
        key_size: number of bytes of the first polynomial of a public key.
        secret_size: number of bytes of an exported secret key.
    """

    engine: ClassVar[str]
    magic: ClassVar[tuple[bytes, bytes, bytes]]
    zero: ClassVar[float]
    modulus: int
    key_bits: int
    key_size: int
    secret_size: int

    def __init__(self, bits: int, tolerance: float = EXACT_DEVIATION) -> None:
        self.ring, self.tolerance = ShareRing(bits), tolerance

    def noise(self, entries: int, largest: int) -> float:
        """Return an upper bound on the standard deviation of the noise of a product.

        The noise is the sum of three parts: the errors in the query times W, the rounding of V in the query times W,
        and the noise of the encryption of zero.

        Args:
            entries: number of entries of W that are added up in a coefficient.
            largest: largest absolute value of an entry of W.

        Returns:
            The bound, in units of the last bit of a share.
        """
        products = (NOISE_STD**2 + 1 / 12) * entries * largest**2
        return math.sqrt(products + self.zero**2) * 2.0**self.ring.bits / self.modulus

    def coined(self, coin: bytes) -> bytes:
        """Return the coin unchanged. Raise CryptoError if it has the wrong length."""
        if len(coin) != COIN_BYTES:
            raise CryptoError(
                f"{self.engine}: the coin, a random seed that both parties know, has {len(coin)} bytes instead of "
                f"{COIN_BYTES}",
                "derive it with common_coin",
                code="SVFL-CRYPTO-KEY",
            )
        return coin

    def layout(self, n: int, c: int, r: int, s: int) -> RingLayout:
        """Return the layout that a peer's message states. Raise CryptoError if its numbers are impossible."""
        return checked_layout(self.engine, n, c, r, s)

    def asked(self, sealed: bytes, key: bytes) -> RingLayout:
        """Return the layout of a query. Raise CryptoError if it is malformed or for a key of another fingerprint."""
        layout = self.layout(*read_header(self.engine, QUERY_HEADER, self.magic[1], sealed, key))
        check_length(self.engine, self.magic[1], sealed, QUERY_HEADER.size + self.query_size(layout))
        return layout

    @abstractmethod
    def choose(self, n: int, c: int, d: int, uses: int = 1) -> RingLayout:
        """Return the fastest layout for V (n, c) and W (n, d), if W is multiplied by `uses` such V."""

    @abstractmethod
    def query_size(self, layout: RingLayout) -> int:
        """Return the number of bytes of a query without its header."""

    @abstractmethod
    def reply_size(self, layout: RingLayout, d: int) -> int:
        """Return the number of bytes of a reply for d columns of W, without its header."""


class RingShares(ShareScheme):
    """Base class of the schemes for shared products modulo 2^bits, with 128-bit security under RLWE.

    Args:
        bits: the number of bits L of a share, from 8 to 56.
        parameters: returns the parameters of the implementation for this number of bits.

    Raises:
        ConfigError: if the number of bits is out of range.
    """

    holders: ClassVar[type[RingHolder]]
    evaluators: ClassVar[type[RingEvaluator]]

    def __init__(self, bits: int, parameters: Callable[[int], RingParameters]) -> None:
        if not 8 <= bits <= MAX_SHARE_BITS:
            raise ConfigError(
                f"shares cannot have {bits} bits",
                f"use fixed-point bits that lead to 8 to {MAX_SHARE_BITS} bits",
                code="SVFL-CRYPTO-PARAMETERS",
            )
        self.bits = bits
        self._parameters: Any = parameters(bits)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.bits,)

    def __eq__(self, other: object) -> bool:
        """Return whether both schemes have the same parameters, so that each reads the other's messages."""
        return isinstance(other, RingShares) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self.__reduce__())

    @property
    def strength(self) -> str:
        """Ring dimension, size of the modulus and security level, as one line of text."""
        return (
            f"RLWE ring N={DEGREE}, {self._parameters.key_bits}-bit modulus (HomomorphicEncryption.org: 128 bits), "
            f"shares modulo 2^{self.bits} masked over the whole modulus"
        )

    def error_rate(self, n: int, c: int, d: int, largest: int) -> float:
        """Return an upper bound on the fraction of results that are off by one; see `ShareScheme.error_rate`."""
        return float(self._parameters.noise(n * min(d, self._parameters.choose(n, c, d).columns), largest))

    def keygen(self, coin: bytes) -> ShareHolder:
        """Create a holder with a new key for a coin; see `ShareScheme.keygen`."""
        return self.holders(self._parameters, coin)

    def holder(self, exported: bytes) -> ShareHolder:
        """Restore a holder from exported bytes; see `ShareScheme.holder`."""
        return self.holders.imported(self._parameters, exported)

    def evaluator(self, public: bytes, coin: bytes) -> ShareEvaluator:
        """Create the evaluator for a public key and its coin; see `ShareScheme.evaluator`."""
        return self.evaluators(self._parameters, public, coin)


def _fingerprint(coin: bytes, public: bytes) -> bytes:
    return hashlib.sha256(coin + public).digest()[:FINGERPRINT_BYTES]


class RingHolder(ShareHolder):
    """The party that has V and a secret key. Subclasses implement keys, encryption and decryption.

    Args:
        parameters: moduli and sizes of the implementation (`RingParameters`).
        coin: 32 bytes from the nonces of both parties, which determine a part of the public key.
    """

    def __init__(self, parameters: Any, coin: bytes) -> None:
        self._parameters = parameters
        first = self._new_key(parameters.coined(coin))
        self.public = PUBLIC_KEY_HEADER.pack(parameters.magic[0], parameters.ring.bits) + first
        self._key = _fingerprint(coin, self.public)

    @abstractmethod
    def _new_key(self, coin: bytes) -> bytes:
        """Generate a secret key and return the first polynomial of its public key as bytes."""

    @abstractmethod
    def _secret(self) -> bytes:
        """Return the secret key, for processes of this party only."""

    @abstractmethod
    def _has_secret(self, secret: bytes) -> None:
        """Restore the secret key from the bytes that `_secret` returned. Raise CryptoError if they are not a key."""

    @abstractmethod
    def _sealed(self, layout: RingLayout, V: Words) -> Iterator[bytes]:
        """Yield the encrypted parts of a query, in the order of the message."""

    @abstractmethod
    def _opened(self, layout: RingLayout, d: int, view: memoryview) -> Iterator[tuple[slice, slice, Words]]:
        """Decrypt the parts of a reply; yield a slice of columns, a slice of outputs, and their shares."""

    def exported(self) -> bytes:
        """Return this holder, secret key included, as bytes; see `ShareHolder.exported`."""
        return self._key + self.public + self._secret()

    @classmethod
    def imported(cls, parameters: RingParameters, exported: bytes) -> RingHolder:
        """Restore a holder from the bytes that `exported` returned. Raise CryptoError if they are malformed."""
        public, magic = PUBLIC_KEY_HEADER.size + parameters.key_size, parameters.magic[0]
        check_length(parameters.engine, magic, exported, FINGERPRINT_BYTES + public + parameters.secret_size)
        if exported[FINGERPRINT_BYTES:][:4] != magic:
            raise CryptoError(
                f"{parameters.engine}: the bytes are not a stored secret key",
                "export the key again",
                code="SVFL-CRYPTO-KEY",
            )
        holder = cls.__new__(cls)
        holder._parameters, holder._key = parameters, exported[:FINGERPRINT_BYTES]
        holder.public = exported[FINGERPRINT_BYTES:][:public]
        holder._has_secret(exported[FINGERPRINT_BYTES + public :])
        return holder

    def encrypt(self, V: Words, *, columns: int, uses: int = 1, rows: int = 0) -> bytes:
        """Encrypt V; see `ShareHolder.encrypt`."""
        parameters = self._parameters
        if V.ndim != 2 or 0 in V.shape or V.dtype != np.uint64 or columns < 1 or uses < 1:
            raise RangeError(
                f"{parameters.engine}: the holder's V of shape {V.shape} and type {V.dtype} is not a matrix of uint64",
                code="SVFL-CRYPTO-SHAPE",
            )
        if (parameters.ring.mask < V).any():
            raise RangeError(
                f"{parameters.engine}: the holder's V has entries of 2^{parameters.ring.bits} or larger",
                f"reduce them modulo 2^{parameters.ring.bits} first",
                code="SVFL-CRYPTO-RANGE",
            )
        n, c = V.shape
        layout = self._layout(n, c, columns, uses, rows)
        header = QUERY_HEADER.pack(parameters.magic[1], self._key, *V.shape, layout.r, layout.s)
        return b"".join([header, *self._sealed(layout, V)])

    def _layout(self, n: int, c: int, columns: int, uses: int, rows: int) -> RingLayout:
        """Return the layout of a V (n, c), with the blocks that are fastest for `rows` rows (for n if that is 0)."""
        layout: RingLayout = self._parameters.choose(rows or n, c, columns, uses)
        return replace(layout, n=n)

    @property
    def ring(self) -> ShareRing:
        """The ring of the shares; see `ShareHolder.ring`."""
        ring: ShareRing = self._parameters.ring
        return ring

    def open(self, reply: bytes) -> Words:
        """Decrypt a reply; the result is this party's share. See `ShareHolder.open`."""
        parameters = self._parameters
        c, r, s, d = read_header(parameters.engine, REPLY_HEADER, parameters.magic[2], reply, self._key)
        layout = parameters.layout(s, c, r, s)  # replies do not depend on n, so n = s will do
        if d < 1:
            raise CryptoError(
                f"{parameters.engine}: the evaluator's reply has no column", code="SVFL-CRYPTO-CIPHERTEXT"
            )
        check_length(
            parameters.engine, parameters.magic[2], reply, REPLY_HEADER.size + parameters.reply_size(layout, d)
        )
        shares = np.empty((d, c), np.uint64)
        for columns, outputs, words in self._opened(layout, d, memoryview(reply)[REPLY_HEADER.size :]):
            shares[columns, outputs] = words
        return shares


class PreparedFactor:
    """W, with its encoding as polynomials for the layout that was used last. It is the evaluator's secret data.

    Args:
        parameters: moduli and sizes of the implementation (`RingParameters`).
        W: signed integers (n, d).
    """

    def __init__(self, parameters: Any, W: Integers) -> None:
        self.shape = W.shape
        self._parameters = parameters
        self._W = W
        self._largest = max(int(W.max()), -int(W.min()))
        self._slot = (0, 0)
        self._values: Any = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shape}, secret>"

    def deviation(self, columns: int) -> float:
        """Return a bound on the standard deviation of a product's noise; W has `columns` columns in a block."""
        return float(self._parameters.noise(self.shape[0] * columns, self._largest))

    def check(self, columns: int) -> None:
        """Check that the noise stays below the tolerance of the parameters, and that entries are exact in floats.

        Args:
            columns: number of columns of W in a block.

        Raises:
            RangeError: if an entry is too large.
        """
        if self._largest > _MAX_ENTRY:
            raise _too_large(self._parameters.engine)
        check_noise(self._parameters, self.deviation(columns))

    def values(self, layout: RingLayout) -> Any:
        """Return the encoding of W for a layout, and cache it."""
        if self._slot != (layout.r, layout.s):
            self.check(min(layout.columns, self.shape[1]))
            self._values = None  # frees the memory of the encoding for the previous layout first
            self._values, self._slot = self._plaintexts(layout), (layout.r, layout.s)
        return self._values

    def _plaintexts(self, layout: RingLayout) -> Any:
        """Compute the encoding of W for a layout."""
        raise NotImplementedError


class ProductTotal(Secret):
    """An encrypted product that is not hidden yet, or a sum of several: the evaluator's secret, which it never sends.

    Args:
        layout: the layout of the query.
        columns: number of columns of W.
        values: the polynomials of the product, in the order of a reply.
        deviation: upper bound on the standard deviation of its noise, in units of the last bit of a share.
    """

    __slots__ = ("columns", "deviation", "layout", "values")

    def __init__(self, layout: RingLayout, columns: int, values: list[Any], deviation: float) -> None:
        self.layout, self.columns, self.values, self.deviation = layout, columns, values, deviation


class RingEvaluator(ShareEvaluator):
    """The party that has W. Subclasses implement keys, multiplication and hiding.

    Args:
        parameters: moduli and sizes of the implementation (`RingParameters`).
        public: the holder's public key.
        coin: 32 bytes from the nonces of both parties, which determine a part of the public key.

    Raises:
        CryptoError: if the key is malformed.
    """

    def __init__(self, parameters: Any, public: bytes, coin: bytes) -> None:
        magic = parameters.magic[0]
        if public[: PUBLIC_KEY_HEADER.size] != PUBLIC_KEY_HEADER.pack(magic, parameters.ring.bits):
            raise CryptoError(
                f"{parameters.engine}: the bytes are not a public key for shares of {parameters.ring.bits} bits",
                "use the same fixed-point options on both sides",
                code="SVFL-CRYPTO-KEY",
            )
        check_length(parameters.engine, magic, public, PUBLIC_KEY_HEADER.size + parameters.key_size)
        self._parameters, self.public, self.coin = parameters, public, coin
        self._has_public(memoryview(public)[PUBLIC_KEY_HEADER.size :], parameters.coined(coin))
        self._key = _fingerprint(coin, public)

    @abstractmethod
    def _has_public(self, first: memoryview, coin: bytes) -> None:
        """Store the public key. Raise CryptoError if a residue in its bytes is not below its prime."""

    def _prepared(self, W: Integers, once: bool) -> PreparedFactor:
        """Return W in the form that this implementation multiplies."""
        raise NotImplementedError

    @abstractmethod
    def _totals(self, prepared: Any, layout: RingLayout, sealed: bytes) -> Iterable[Any]:
        """Multiply a query by W, and yield the encrypted products in the order of `_positions`, without randomness."""

    @abstractmethod
    def _positions(self, layout: RingLayout, d: int) -> Iterator[tuple[slice, slice]]:
        """Yield, for each encrypted product, the slice of outputs and the slice of columns that it contains."""

    @abstractmethod
    def _hidden(self, layout: RingLayout, total: Any, shape: tuple[int, int], prg: Prg) -> tuple[bytes, Any]:
        """Add an encryption of zero and a mask to an encrypted product.

        Args:
            layout: the division of matrices into blocks (`ring_layout.py`).
            total: the encrypted product.
            shape: the numbers of columns and outputs that it contains.
            prg: the generator of all randomness.

        Returns:
            The bytes for the reply, and the mask as residues (P, *shape) modulo P primes.
        """

    @abstractmethod
    def _share(self, mask: Any) -> Words:
        """Return round(t * r / q) for a mask r; the evaluator's share is the negative of it."""

    def prepare(self, W: Integers, *, once: bool = False) -> Any:
        """Encode W for products; see `ShareEvaluator.prepare`."""
        if W.ndim != 2 or 0 in W.shape or W.dtype.kind != "i":
            raise RangeError(
                f"{self._parameters.engine}: the evaluator's W of shape {W.shape} and type {W.dtype} is not a matrix "
                "of integers",
                code="SVFL-CRYPTO-SHAPE",
            )
        prepared = self._prepared(np.ascontiguousarray(W), once)
        prepared.check(1)
        return prepared

    def product(self, prepared: Any, sealed: bytes) -> tuple[bytes, Words]:
        """Multiply W with an encrypted V, and hide the result; see `ShareEvaluator.product`."""
        layout, (n, d) = self._parameters.asked(sealed, self._key), prepared.shape
        check_same_rows(self._parameters, layout, n)
        return self._answer(layout, d, self._totals(prepared, layout, sealed))

    def hide(self, total: ProductTotal) -> tuple[bytes, Words]:
        """Hide a product, or a sum of several; see `ShareEvaluator.hide`."""
        return self._answer(total.layout, total.columns, total.values)

    def _answer(self, layout: RingLayout, d: int, totals: Iterable[Any]) -> tuple[bytes, Words]:
        """Hide the encrypted products one after the other; return the reply, and this party's share (d, c)."""
        parameters, prg, shares = self._parameters, Prg.fresh("what hides a reply"), np.empty((d, layout.c), np.uint64)
        message = [REPLY_HEADER.pack(parameters.magic[2], self._key, layout.c, layout.r, layout.s, d)]
        for (outputs, columns), total in zip(self._positions(layout, d), totals, strict=True):
            shape = columns.stop - columns.start, outputs.stop - outputs.start
            answer, mask = self._hidden(layout, total, shape, prg)
            message.append(answer)
            shares[columns, outputs] = parameters.ring.reduce(-self._share(mask))
        return b"".join(message), shares


def check_noise(parameters: RingParameters, deviation: float) -> None:
    """Raise RangeError if the noise of a product, in units of a share's last bit, exceeds the tolerance."""
    if deviation > parameters.tolerance:
        raise _too_large(parameters.engine)


def _too_large(engine: str) -> RangeError:
    return RangeError(
        f"{engine}: the evaluator's matrix W has entries that are too large for shares of this size",
        "use fewer fixed-point bits",
        code="SVFL-CRYPTO-RANGE",
    )


def check_same_rows(parameters: RingParameters, layout: RingLayout, n: int) -> None:
    """Raise CryptoError unless the V of a query, whose layout is given, has n rows like W."""
    if n != layout.n:
        raise CryptoError(
            f"{parameters.engine}: the holder's V has {layout.n} rows, but the evaluator's W has {n}",
            code="SVFL-CRYPTO-SHAPE",
        )

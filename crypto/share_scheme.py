"""Interface of the encryption schemes for shared products: two parties obtain additive shares of W^T V modulo 2^L.

The holder has a matrix V (n, c) and a secret key, and the evaluator has a matrix W (n, d) of small integers. Each
obtains a random-looking matrix (d, c), its share of the product; the sum of both shares is the product. Elements are
words: integers modulo 2^L, stored as uint64.

    holder                                          evaluator
    sealed = encrypt(V)                      ->     reply, evaluator_share = product(prepare(W), sealed)
    holder_share = open(reply)               <-

A few elements of the sum differ from the product by one (`ShareScheme.error_rate`). The evaluator sees only ciphertexts
and the holder decrypts uniform words, so neither party learns anything.

Each key depends on a coin: 32 bytes that are derived from a nonce of each party, the number of a chunk of work, and the
purpose of the key. One part of the public key, which neither party may choose, is computed from the coin.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from securevfl.crypto.key_derivation import encode_context
from securevfl.crypto.prg import Prg
from securevfl.crypto.secret import Secret
from securevfl.crypto.share_ring import Integers, ShareRing, Words
from securevfl.errors import CryptoError

COIN_NONCE_BYTES = 32

COIN_BYTES = 32


def common_coin(holder: bytes, evaluator: bytes, chunk: int, purpose: str) -> bytes:
    """Derive the coin of one key from the nonces of both parties.

    Neither party alone determines the coin. Different chunks, purposes and directions have different coins, with
    SHA-256 as a random oracle.

    Args:
        holder: public nonce of the key holder, 32 random bytes.
        evaluator: public nonce of the evaluator, 32 random bytes.
        chunk: number of the chunk of work for which the key is used.
        purpose: for which products the key is used, such as "steps".

    Returns:
        The coin of 32 bytes.

    Raises:
        CryptoError: if a nonce has another length.
    """
    for name, nonce in (("key holder", holder), ("evaluator", evaluator)):
        if len(nonce) != COIN_NONCE_BYTES:
            raise CryptoError(
                f"the nonce of the {name} has {len(nonce)} bytes instead of {COIN_NONCE_BYTES}",
                "draw a new one",
                code="SVFL-PROTOCOL-SIZE",
            )
    return hashlib.sha256(encode_context("securevfl coin", holder, evaluator, chunk, purpose)).digest()


class ShareHolder(Secret, ABC):
    """The party that has V and a secret key.

    Attributes:
        public: the part of the public key that the evaluator cannot compute from the coin.
    """

    public: bytes

    @abstractmethod
    def exported(self) -> bytes:
        """Return this object with its secret key as bytes, which this party's processes read (`ShareScheme.holder`)."""

    @abstractmethod
    def encrypt(self, V: Words, *, columns: int, uses: int = 1, rows: int = 0) -> bytes:
        """Encrypt V with new randomness.

        Args:
            V: words (n, c) below 2^L.
            columns: approximate number of columns of W. The holder chooses the layout, that is the division of V and W
                into blocks, from this, `uses` and `rows`. The layout affects the speed, but not the result.
            uses: number of such messages that the evaluator will multiply by the same prepared W.
            rows: the number of rows for which the layout is chosen; 0 for the number of rows of V. The products of
                several V can be added up only if their layouts are equal.

        Returns:
            The message for the evaluator.

        Raises:
            RangeError: if V is not a matrix, or a word is 2^L or larger.
        """

    def encrypt_uniform(self, n: int, c: int, *, columns: int, uses: int = 1, rows: int = 0) -> tuple[bytes, Words]:
        """Draw a uniform V and encrypt it; the message may be shorter than that of `encrypt`.

        Args:
            n: number of rows of V.
            c: number of columns of V.
            columns: approximate number of columns of W; see `encrypt`.
            uses: number of messages that are multiplied by one W; see `encrypt`.
            rows: the number of rows for which the layout is chosen; see `encrypt`.

        Returns:
            The message for the evaluator, and V: words (n, c) below 2^L.
        """
        V = self.ring.uniform(Prg.fresh("uniform vectors of a holder"), (n, c))
        return self.encrypt(V, columns=columns, uses=uses, rows=rows), V

    @property
    @abstractmethod
    def ring(self) -> ShareRing:
        """The ring of integers modulo 2^L."""

    @abstractmethod
    def open(self, reply: bytes) -> Words:
        """Decrypt a reply to this party's share of W^T V, which is uniform whatever V and W are.

        Args:
            reply: the message that `ShareEvaluator.product` returned.

        Returns:
            The share (d, c).

        Raises:
            CryptoError: if the message is malformed.
            KeyMismatch: if the message belongs to another key.
        """


class ShareEvaluator(ABC):
    """The party that has W, and the holder's public key with its coin."""

    public: bytes
    coin: bytes

    @abstractmethod
    def prepare(self, W: Integers, *, once: bool = False) -> Any:
        """Convert W to the form that products need. The result can be used with other keys as well.

        The attribute `nbytes` of the result estimates its memory, which products may increase.

        Args:
            W: signed integers (n, d).
            once: whether the result is used for one product only, so that nothing needs to be cached in it.

        Returns:
            The prepared matrix.

        Raises:
            RangeError: if an entry is so large that the noise of a product would change the shares.
        """

    @abstractmethod
    def product(self, prepared: Any, sealed: bytes) -> tuple[bytes, Words]:
        """Multiply W with the holder's encrypted V, and subtract this party's random share.

        Under the scheme's assumption, the reply looks uniform to the holder, whatever it has sent and whatever key it
        has chosen.

        Args:
            prepared: W, as `prepare` returned it.
            sealed: the holder's message with encrypted V.

        Returns:
            The reply to the holder, and this party's share (d, c).

        Raises:
            CryptoError: if the message is malformed or has another number of rows than W.
            KeyMismatch: if the message belongs to another key.
        """

    def multiply(self, prepared: Any, sealed: bytes) -> Any:
        """Multiply W with an encrypted V as `product` does, but do not hide the result, which must not be sent.

        Results for several pairs of W and V with one layout can be added up; see `add`.

        Args:
            prepared: W, as `prepare` returned it.
            sealed: the holder's message with encrypted V.

        Returns:
            The encrypted product, for `add` and `hide`.

        Raises:
            NotImplementedError: if the scheme does not support this.
        """
        raise NotImplementedError

    def join(self, sealed: bytes, d: int, parts: Sequence[bytes]) -> Any:
        """Add up products that other processes have computed with `ShareScheme.multiply`.

        Args:
            sealed: the holder's message with encrypted V.
            d: number of columns of W.
            parts: the results of `ShareScheme.multiply` for matrices (n, d) whose sum is W. Each of them contains some
                rows of W, which no other one contains, and zeros in all other rows.

        Returns:
            The encrypted product, for `add` and `hide`.

        Raises:
            CryptoError: if a part has the wrong length.
            RangeError: if the noise of the sum exceeds the tolerance.
            NotImplementedError: if the scheme does not support this.
        """
        raise NotImplementedError

    def add(self, total: Any, product: Any) -> None:
        """Add an encrypted product to `total` in place, which then is the product for the rows of both.

        Args:
            total: an encrypted product of `multiply` or `join`, which is changed.
            product: an encrypted product of other matrices W and V, with equal numbers of columns and the same layout.

        Raises:
            NotImplementedError: if the scheme does not support this.
        """
        raise NotImplementedError

    def hide(self, total: Any) -> tuple[bytes, Words]:
        """Hide an encrypted product, or a sum of several; this method draws all randomness of the reply.

        Args:
            total: an encrypted product of `multiply` or `join`.

        Returns:
            The reply to the holder, and this party's share (d, c).

        Raises:
            NotImplementedError: if the scheme does not support this.
        """
        raise NotImplementedError


class ShareScheme(ABC):
    """An encryption scheme for shared products. It has public parameters only and can be pickled.

    Attributes:
        name: name of the scheme, for messages and reports.
        unlocked: whether it computes without Python's global interpreter lock, so that threads run in parallel.
        adds_products: whether evaluators can add up products before they hide them (`ShareEvaluator.add`).
        bits: the number L; shares are integers modulo 2^L.
    """

    name: ClassVar[str]
    unlocked: ClassVar[bool] = False
    adds_products: ClassVar[bool] = False
    bits: int

    @property
    @abstractmethod
    def strength(self) -> str:
        """Ring dimension, security level and assumption, as one line of text."""

    @abstractmethod
    def keygen(self, coin: bytes) -> ShareHolder:
        """Create a holder with a new key for a coin. A coin must be used for one key only."""

    @abstractmethod
    def holder(self, exported: bytes) -> ShareHolder:
        """Restore a holder from the bytes of `ShareHolder.exported`. Raise CryptoError if they are malformed."""

    @abstractmethod
    def evaluator(self, public: bytes, coin: bytes) -> ShareEvaluator:
        """Create the evaluator for a public key and its coin. Raise CryptoError if the key is malformed."""

    def multiply(self, W: Integers, sealed: bytes) -> bytes:
        """Compute the part of `ShareEvaluator.product` that needs neither a key nor randomness.

        A process that has only W can call this. Equal arguments give equal results.

        Args:
            W: signed integers (n, d).
            sealed: the holder's message with encrypted V.

        Returns:
            The result for `ShareEvaluator.join`.

        Raises:
            NotImplementedError: if the scheme has no such part.
        """
        raise NotImplementedError

    def check_query(self, sealed: bytes, shape: tuple[int, int], *, columns: int, uses: int, rows: int) -> None:
        """Check that an encrypted V has the layout that its holder chooses for these sizes.

        The evaluator stores products that it adds up (`ShareEvaluator.multiply`) until it hides their sum, and their
        size depends on the layout. With another layout, a holder could make it use much more memory.

        Args:
            sealed: the holder's message with encrypted V.
            shape: the agreed shape (n, c) of V.
            columns: the number of columns of W that the holder has passed to `ShareHolder.encrypt`.
            uses: number of V that are multiplied by the same W, as passed to `ShareHolder.encrypt`.
            rows: number of rows for which the layout is chosen, as passed to `ShareHolder.encrypt`; 0 for those of V.

        Raises:
            CryptoError: if the message is malformed or has another layout.
            NotImplementedError: if the scheme does not add up products.
        """
        raise NotImplementedError

    @abstractmethod
    def error_rate(self, n: int, c: int, d: int, largest: int) -> float:
        """Return an upper bound on the fraction of the product's elements that are off by one.

        Args:
            n: number of rows of V and W.
            c: number of columns of V.
            d: number of columns of W.
            largest: largest absolute value of an entry of W.

        Returns:
            The upper bound of the fraction.
        """

    def with_bits(self, bits: int) -> ShareScheme:
        """Return the scheme of the same kind for exact products modulo 2^bits.

        Args:
            bits: the number of bits.

        Returns:
            The scheme.

        Raises:
            NotImplementedError: if the scheme has no exact products of other sizes.
        """
        raise NotImplementedError

    def within(
        self, tolerance: float, largest: int, shapes: Sequence[tuple[int, int, int]], *, uses: int = 1
    ) -> ShareScheme:
        """Return a scheme whose ciphertexts are shorter and whose products have a larger error, if there is one.

        The error of such a product is random, with a mean of zero. All parties that call this with equal arguments
        obtain the same scheme.

        Args:
            tolerance: the largest standard deviation of an error, in units of the last bit of a share.
            largest: the largest absolute value of an entry of W.
            shapes: the numbers (n, c, d) of all products.
            uses: the number of messages that the evaluator multiplies by one W; see `ShareHolder.encrypt`.

        Returns:
            The scheme, for the same number of bits; this scheme if no other one is precise enough.
        """
        return self

    @abstractmethod
    def seconds(self, n: int, c: int, d: int) -> float:
        """Estimate the seconds of a product of V (n, c) and W (n, d) on one core, for both parties together."""


def encrypt_exported(scheme: ShareScheme, key: bytes, V: Words, columns: int, uses: int) -> bytes:
    """Run `ShareHolder.encrypt` in another process of the same party, with the exported holder `key`."""
    return scheme.holder(key).encrypt(V, columns=columns, uses=uses)


def encrypt_uniform_exported(
    scheme: ShareScheme, key: bytes, n: int, c: int, columns: int, uses: int, rows: int
) -> tuple[bytes, Words]:
    """Run `ShareHolder.encrypt_uniform` in another process of the same party, with the exported holder `key`."""
    return scheme.holder(key).encrypt_uniform(n, c, columns=columns, uses=uses, rows=rows)


def multiply_once(scheme: ShareScheme, public: bytes, coin: bytes, W: Integers, sealed: bytes) -> tuple[bytes, Words]:
    """Run `ShareEvaluator.prepare` and `ShareEvaluator.product` in another process of the same party."""
    evaluator = scheme.evaluator(public, coin)
    return evaluator.product(evaluator.prepare(W, once=True), sealed)


def multiply_part(scheme: ShareScheme, W: Integers, sealed: bytes) -> bytes:
    """Run `ShareScheme.multiply` in another process of the same party."""
    return scheme.multiply(W, sealed)


def open_exported(scheme: ShareScheme, key: bytes, reply: bytes) -> Words:
    """Run `ShareHolder.open` in another process of the same party, with the exported holder `key`."""
    return scheme.holder(key).open(reply)

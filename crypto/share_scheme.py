"""Interface of engines for shared products: two parties obtain additive shares of W^T V modulo 2^L.

    holder of V                                     evaluator (has W)
    sealed = encrypt(V)                      ->     reply, evaluator_share = product(prepare(W), sealed)
    holder_share = open(reply)               <-

The shares add up to W^T V modulo 2^L, except for a few values that are off by one (`ShareScheme.error_rate`). The
evaluator sees ciphertexts and the holder decrypts uniform words, so neither party learns anything. No answer is sent
back.

Each key depends on a *coin*: 32 bytes derived from one nonce of each party, the number of the chunk of work and its
purpose. A scheme expands from the coin the part of the public key that neither party may choose.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from securevfl.crypto.key_derivation import encode_context
from securevfl.crypto.secret import Secret
from securevfl.crypto.share_ring import Integers, Words
from securevfl.errors import CryptoError

COIN_NONCE_BYTES = 32

COIN_BYTES = 32


def common_coin(holder: bytes, evaluator: bytes, chunk: int, purpose: str) -> bytes:
    """Derive the coin of one key from the nonces of both parties.

    Neither party alone determines the coin, and different chunks, purposes and directions have different coins
    (SHA-256 as a random oracle).

    Args:
        holder: public nonce of the key holder, 32 random bytes.
        evaluator: public nonce of the evaluator, 32 random bytes.
        chunk: number of the chunk of work.
        purpose: purpose of the key.

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
    """The party that has V and a key for one coin.

    Attributes:
        public: the part of the public key that does not follow from the coin.
    """

    public: bytes

    @abstractmethod
    def exported(self) -> bytes:
        """Return the holder with its secret key for `ShareScheme.holder`, in processes of this party only."""

    @abstractmethod
    def encrypt(self, V: Words, *, columns: int, uses: int = 1) -> bytes:
        """Encrypt V with fresh randomness.

        Args:
            V: words (n, c) below 2^L.
            columns: approximate number of columns of W; it affects only the speed.
            uses: how many such messages the evaluator answers with the same prepared W; it affects only the speed.

        Returns:
            The message for the evaluator.

        Raises:
            RangeError: if V has another shape, or a word is 2^L or larger.
        """

    @abstractmethod
    def open(self, reply: bytes) -> Words:
        """Decrypt this party's share, which is uniform whatever V and W are.

        Args:
            reply: the message that `ShareEvaluator.product` returned.

        Returns:
            The share (d, c).

        Raises:
            CryptoError: if the message is malformed.
            KeyMismatch: if it belongs to another key.
        """


class ShareEvaluator(ABC):
    """The party that has W, with the holder's public key and the coin."""

    public: bytes
    coin: bytes

    @abstractmethod
    def prepare(self, W: Integers, *, once: bool = False) -> Any:
        """Convert W to the form that products need; it remains valid for other keys.

        The attribute `nbytes` of the result estimates its memory. Products may add to it.

        Args:
            W: signed integers (n, d).
            once: True if it is used for one product only, so that nothing needs to be cached.

        Returns:
            The prepared matrix.

        Raises:
            RangeError: if an entry is so large that the noise of a product would change the shares.
        """

    @abstractmethod
    def product(self, prepared: Any, sealed: bytes) -> tuple[bytes, Words]:
        """Return the reply to the holder, and this party's share of W^T V.

        Under the scheme's assumption, the reply is uniform to the holder, whatever the holder sent and whatever key it
        chose.

        Args:
            prepared: the prepared W.
            sealed: the message of the holder.

        Returns:
            The reply and the share (d, c).

        Raises:
            CryptoError: if the message is malformed or has another number of rows than W.
            KeyMismatch: if it belongs to another key.
        """

    def hide(self, sealed: bytes, d: int, parts: Sequence[bytes]) -> tuple[bytes, Words]:
        """Complete `product` with the results of `ShareScheme.multiply` for matrices whose sum is W (n, d).

        All randomness of the reply is drawn here.

        Args:
            sealed: the message of the holder.
            d: number of columns of W.
            parts: the results.

        Returns:
            The reply and the share (d, c).

        Raises:
            NotImplementedError: if the engine does not support it.
        """
        raise NotImplementedError


class ShareScheme(ABC):
    """An engine for shared products, without state apart from its public parameters; it can be pickled.

    Attributes:
        name: name of the engine.
        unlocked: whether it computes without Python's lock, so that threads run in parallel.
        bits: size L of the ring of shares.
    """

    name: ClassVar[str]
    unlocked: ClassVar[bool] = False
    bits: int

    @property
    @abstractmethod
    def strength(self) -> str:
        """One line for people: ring, security level, assumption."""

    @abstractmethod
    def keygen(self, coin: bytes) -> ShareHolder:
        """Create a holder with a fresh key for a coin; a coin must be used for one key only."""

    @abstractmethod
    def holder(self, exported: bytes) -> ShareHolder:
        """Restore an exported holder; CryptoError if the bytes are malformed."""

    @abstractmethod
    def evaluator(self, public: bytes, coin: bytes) -> ShareEvaluator:
        """Create the evaluator for a public key and its coin; CryptoError if the key is malformed."""

    def multiply(self, W: Integers, sealed: bytes) -> bytes:
        """Compute the part of `ShareEvaluator.product` that needs neither key nor randomness.

        A process that has only W can call it. Equal arguments give equal results.

        Args:
            W: signed integers (n, d).
            sealed: the message of the holder.

        Returns:
            The result for `ShareEvaluator.hide`.

        Raises:
            NotImplementedError: if the engine has no such part.
        """
        raise NotImplementedError

    @abstractmethod
    def error_rate(self, n: int, c: int, d: int, largest: int) -> float:
        """Bound the fraction of values that are off by one, for V (n, c) and W (n, d) with entries up to `largest`."""

    @abstractmethod
    def seconds(self, n: int, c: int, d: int) -> float:
        """Estimate the seconds of a product of V (n, c) and W (n, d) on one core, for both sides together."""


def encrypt_exported(scheme: ShareScheme, key: bytes, V: Words, columns: int, uses: int) -> bytes:
    """Run `ShareHolder.encrypt` in another process of the same party, with the exported holder `key`."""
    return scheme.holder(key).encrypt(V, columns=columns, uses=uses)


def multiply_once(scheme: ShareScheme, public: bytes, coin: bytes, W: Integers, sealed: bytes) -> tuple[bytes, Words]:
    """Run `ShareEvaluator.product` in another process of the same party."""
    evaluator = scheme.evaluator(public, coin)
    return evaluator.product(evaluator.prepare(W, once=True), sealed)


def open_exported(scheme: ShareScheme, key: bytes, reply: bytes) -> Words:
    """Run `ShareHolder.open` in another process of the same party, with the exported holder `key`."""
    return scheme.holder(key).open(reply)

"""Products whose result nobody sees: two parties end up with additive shares of W^T V modulo 2^L.

    holder of V                                 evaluator (owns W)
    sealed = encrypt(V)                  ->     reply, own = product(prepare(W), sealed)
    theirs = open(reply)                 <-

own + theirs = W^T V modulo 2^L, but for a few values that are off by one (the scheme says how many). The evaluator
holds ciphertexts, the holder opens uniform words: there is no `unblind`, and no answer goes back.

What both parties agree on enters through a *coin*: 32 bytes made of a nonce of either party, the number of the chunk
of work and its purpose. A scheme expands from it whatever part of a public key must not be of anyone's choosing.
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

NONCE_BYTES = 32

COIN_BYTES = 32


def common_coin(holder: bytes, evaluator: bytes, chunk: int, purpose: str) -> bytes:
    """Derive the coin (32 bytes) of one key from the nonces (32 random bytes each, public) `holder` and `evaluator`.

    Neither party alone decides it, and no two chunks, purposes or directions share one (SHA-256 as a random oracle).
    CryptoError if a nonce has another length.
    """
    for name, nonce in (("key holder", holder), ("evaluator", evaluator)):
        if len(nonce) != NONCE_BYTES:
            raise CryptoError(
                f"coin: the {name}'s nonce was expected to have {NONCE_BYTES} bytes, {len(nonce)} came; draw a new one"
            )
    return hashlib.sha256(encode_context("securevfl coin", holder, evaluator, chunk, purpose)).digest()


class ShareHolder(Secret, ABC):
    """The party that owns V and a key made for one coin."""

    public: bytes  # what an evaluator needs beside the coin; safe to publish

    @abstractmethod
    def exported(self) -> bytes:
        """All that makes it again (`ShareScheme.holder`), the secret key in it: for processes of this party alone."""

    @abstractmethod
    def encrypt(self, V: Words, *, columns: int, uses: int = 1) -> bytes:
        """Encrypts V (n x c, words below 2^L), freshly randomised.

        `columns` is about how many columns W has, `uses` how many such messages the evaluator answers with the same
        prepared W; both only tune the layout. RangeError if V is not n x c with n, c >= 1 or a word is 2^L or more.
        """

    @abstractmethod
    def open(self, reply: bytes) -> Words:
        """Return this party's share (d x c) from what `ShareEvaluator.product` sent; uniform, whatever V and W are.

        CryptoError if the bytes are malformed, KeyMismatch if they belong to another key.
        """


class ShareEvaluator(ABC):
    """The party that owns W, with the other one's public key and their coin."""

    public: bytes
    coin: bytes

    @abstractmethod
    def prepare(self, W: Integers, *, once: bool = False) -> Any:
        """W (n x d, signed integers) in the form the product wants; it outlives the key.

        once: whether it serves for one product alone, so that nothing made on the way need be kept.
        Its `nbytes` says about what memory it takes; products may add to it. RangeError if an entry is so large that
        the noise of a product would reach the shares.
        """

    @abstractmethod
    def product(self, prepared: Any, sealed: bytes) -> tuple[bytes, Words]:
        """Return what to send to the holder, and this party's own share (d x c) of W^T V.

        The bytes are uniform to the holder (under the scheme's assumption), whatever it sent and whatever key it chose.
        CryptoError if `sealed` is malformed or of other rows than W, KeyMismatch if it belongs to another key.
        """

    def hide(self, sealed: bytes, d: int, parts: Sequence[bytes]) -> tuple[bytes, Words]:
        """Do the rest of `product` for W (n x d), given what `ShareScheme.multiply` made of matrices whose sum is W.

        Whatever is drawn is drawn here. CryptoError and KeyMismatch as there.
        """
        raise NotImplementedError


class ShareScheme(ABC):
    """An engine for shared products. Stateless apart from its public parameters, and it travels between processes."""

    name: ClassVar[str]
    unlocked: ClassVar[bool] = False  # whether it computes without Python's lock, so that threads gain
    bits: int  # L

    @property
    @abstractmethod
    def strength(self) -> str:
        """One line for people: ring, security level, assumption."""

    @abstractmethod
    def keygen(self, coin: bytes) -> ShareHolder:
        """Make a holder with a fresh key under this coin, which serves for one key only."""

    @abstractmethod
    def holder(self, exported: bytes) -> ShareHolder:
        """Restore a holder as it was exported. CryptoError if the bytes are malformed."""

    @abstractmethod
    def evaluator(self, public: bytes, coin: bytes) -> ShareEvaluator:
        """Make the other side. CryptoError if the public bytes are malformed."""

    def multiply(self, W: Integers, sealed: bytes) -> bytes:
        """Do what of `ShareEvaluator.product` needs neither key nor randomness, in a process that has W (n x d) alone.

        Equal arguments give equal bytes. An engine that has no such part raises NotImplementedError.
        """
        raise NotImplementedError

    @abstractmethod
    def error_rate(self, n: int, c: int, d: int, largest: int) -> float:
        """Bound the fraction of values off by one, for V of n x c and W of n x d with entries up to `largest`."""

    @abstractmethod
    def seconds(self, n: int, c: int, d: int) -> float:
        """About how long a product takes with V of n x c and W of n x d, both ends, on one core."""


def encrypt_exported(scheme: ShareScheme, key: bytes, V: Words, columns: int, uses: int) -> bytes:
    """`ShareHolder.encrypt` in another process of the holder's party; key: the holder, exported."""
    return scheme.holder(key).encrypt(V, columns=columns, uses=uses)


def multiply_once(scheme: ShareScheme, public: bytes, coin: bytes, W: Integers, sealed: bytes) -> tuple[bytes, Words]:
    """`ShareEvaluator.product` in another process of the evaluator's party."""
    evaluator = scheme.evaluator(public, coin)
    return evaluator.product(evaluator.prepare(W, once=True), sealed)


def open_exported(scheme: ShareScheme, key: bytes, reply: bytes) -> Words:
    """`ShareHolder.open` in another process of the holder's party."""
    return scheme.holder(key).open(reply)

"""Products of shared vectors with columns: the messages between the two share holders and every party.

The share holders are the active party and its partner. A holder h has vectors V_h, and every other party k a factor
W_k:

0. all      a nonce and an X25519 key, from everyone to everyone                 once a session
1. h -> k   the holder's public keys, one for each purpose                       from coins of all nonces
2. h -> k   [[V_h]]_h
3. k -> h   masked W_k^T V_h      => one additive share at k, one at h

A party receives ciphertexts under a holder's key. A holder receives replies that are uniform to it, whatever key it
generated and whatever it sent (`crypto/kernel/shares.py`), with either backend: every coin depends on the nonce of the
evaluator. So all parties learn the sizes only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from securevfl.base.roles import ACTIVE, PARTNER, PASSIVE
from securevfl.crypto.batch_cache import BatchCache
from securevfl.crypto.key_agreement import KeyPair
from securevfl.crypto.key_derivation import encode_context
from securevfl.crypto.share_ring import Integers, ShareRing, Words
from securevfl.crypto.share_scheme import (
    COIN_NONCE_BYTES,
    ShareEvaluator,
    ShareHolder,
    ShareScheme,
    common_coin,
)
from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares.product_work import ProductExecutor, RemoteFactor
from securevfl.runtime.codec import M, Message
from securevfl.runtime.disclosure_gate import DisclosurePermit

Evaluators = Mapping[str, ShareEvaluator]
"""An evaluator under the key of each other holder, by the holder's name."""

Factors = Callable[[int], Integers]
"""Returns the factor of a batch."""

SealedVectors = Callable[[str, int], bytes]
"""Returns the query of a holder about a batch."""


class ProductGreeting(Message, frozen=True):
    """32 random bytes for the coins of this session, and an X25519 key."""

    nonce: bytes
    public: bytes


class HolderKeys(Message, frozen=True):
    """A holder's public keys, without the polynomials that both sides derive from the coin."""

    publics: tuple[bytes, ...]


class ProductQuery(Message, frozen=True):
    """[[V]] for the factor of one batch."""

    batch: int
    ciphertext: bytes


class ProductReply(Message, frozen=True):
    """The masked product W^T V, which the holder decrypts."""

    batch: int
    ciphertext: bytes


ROLES = ACTIVE, PARTNER, PASSIVE
PAIRS = [(one, other) for one in ROLES for other in ROLES if one != other or one == PASSIVE]
"""All pairs of sender and receiver; there may be several passive parties."""


def declares() -> list[MessageDeclaration]:
    """Declare the disclosures of the messages. Roles: active, partner, passive (any party that is neither)."""
    declarations = [MessageDeclaration(ProductGreeting, *pair, Reveal("public")) for pair in PAIRS]
    for holder, other in PAIRS:
        if holder != PASSIVE:
            declarations.append(MessageDeclaration(HolderKeys, holder, other, Reveal("public")))
            declarations.append(MessageDeclaration(ProductQuery, holder, other, Reveal("ciphertext", holder)))
            declarations.append(MessageDeclaration(ProductReply, other, holder, Reveal("uniform")))
    return declarations


def unpack_words(name: str, data: bytes, ring: ShareRing, shape: tuple[int, ...], content: str = "shares") -> Words:
    """Return the ring elements that a party has sent.

    Args:
        name: the sender.
        data: the packed elements.
        ring: the ring.
        shape: the expected shape.
        content: what the elements are, for the error message.

    Returns:
        The elements.

    Raises:
        ProtocolError: the data has another size.
    """
    size = ring.size(int(np.prod(shape)))
    if len(data) != size:
        raise ProtocolError(
            f"{name} sent {len(data)} bytes of {content} instead of {size}", code="SVFL-PROTOCOL-SIZE", party=name
        )
    return ring.unpack(data, shape)


def read_offsets(name: str, data: bytes, rows: int, entries: int) -> NDArray[np.uint8]:
    """Return the table offsets (rows,) that a party has sent.

    Args:
        name: the sender.
        data: one byte for each row.
        rows: the number of rows.
        entries: the number of table entries.

    Returns:
        The offsets.

    Raises:
        ProtocolError: the number of offsets is wrong, or an offset is not below `entries`.
    """
    offsets = np.frombuffer(data, np.uint8)
    if len(offsets) != rows:
        raise ProtocolError(
            f"{name} sent {len(offsets)} table offsets instead of {rows}", code="SVFL-PROTOCOL-SIZE", party=name
        )
    if (offsets >= entries).any():
        raise ProtocolError(f"{name} sent a table offset of {entries} or more", code="SVFL-PROTOCOL-VALUES", party=name)
    return offsets


class Products:
    """One party's side of all products of a session, whichever its role.

    Args:
        context: this party's context.
        partner: the share holder next to the active party.
        scheme: the encryption scheme.

    Attributes:
        others: all other parties.
        other_holders: the share holders other than this party; their vectors meet this party's factors.
        is_holder: True if this party is a share holder.
        queried: the parties whose factors meet this party's vectors; empty unless it is a share holder.
        pair_keys: secret keys of this session, 32 bytes shared with each other party.
    """

    def __init__(self, context: PartyContext, partner: str, scheme: ShareScheme) -> None:
        self.context, self.holders = context, (context.active, partner)
        self.scheme, self._ring = scheme, ShareRing(scheme.bits)
        self.others = tuple(name for name in context.parties if name != context.me)
        self.other_holders = tuple(name for name in self.holders if name != context.me)
        self.is_holder = context.me in self.holders
        self.queried = self.others if self.is_holder else ()
        self.pair_keys: dict[str, bytes] = {}
        self._nonces: dict[str, bytes] = {}

    def greet(self) -> bool:
        """Exchange nonces and keys with everyone, once; return False if that was done before.

        Returns:
            True if the exchange took place, False if it was done before.

        Raises:
            ProtocolError: a nonce has the wrong length.
        """
        if self._nonces:
            return False
        context, key_pair, nonce = self.context, KeyPair(), os.urandom(COIN_NONCE_BYTES)
        for name in self.others:
            self.send(name, ProductGreeting(nonce, key_pair.public))  # 0
        self._nonces[context.me] = nonce
        session = context.channel.session.hex() + context.subchannel
        for name in self.others:
            greeting = self.recv(name, ProductGreeting)
            if len(greeting.nonce) != COIN_NONCE_BYTES:
                raise ProtocolError(
                    f"{name} sent a nonce of {len(greeting.nonce)} bytes instead of {COIN_NONCE_BYTES}",
                    code="SVFL-PROTOCOL-SIZE",
                    party=name,
                )
            self._nonces[name] = greeting.nonce
            self.pair_keys[name] = key_pair.agree(
                greeting.public, session=session, party=context.me, peer=name, domain="training on shares"
            )
        return True

    def coin(self, holder: str, number: int, purpose: str) -> bytes:
        """Return 32 bytes that depend on the holder's nonce and on everyone else's.

        Args:
            holder: the holder.
            number: the number of the chunk.
            purpose: what the coin is for.

        Returns:
            The coin.
        """
        nonces = [part for name in sorted(self._nonces) if name != holder for part in (name, self._nonces[name])]
        return common_coin(self._nonces[holder], hashlib.sha256(encode_context(*nonces)).digest(), number, purpose)

    def keys(self, number: int, purposes: Sequence[str]) -> tuple[list[ShareHolder], list[Evaluators]]:
        """Generate new keys and exchange the public ones.

        Args:
            number: the number of the chunk.
            purposes: a key is generated for each of them.

        Returns:
            This party's keys for each purpose (empty unless it is a holder), and the evaluators under the other
            holders' keys for each purpose.

        Raises:
            ProtocolError: a holder sent another number of keys.
        """
        meter, scheme = self.context.meter, self.scheme
        coins = [self.coin(self.context.me, number, purpose) for purpose in purposes if self.is_holder]
        holders = [meter("keygen", partial(scheme.keygen, coin)) for coin in coins]
        for name in self.queried:
            self.send(name, HolderKeys(tuple(holder.public for holder in holders)))  # 1
        evaluators: list[dict[str, ShareEvaluator]] = [{} for _ in purposes]
        for name in self.other_holders:
            publics = self.recv(name, HolderKeys).publics
            if len(publics) != len(purposes):
                raise ProtocolError(
                    f"{name} sent {len(publics)} public keys instead of {len(purposes)}",
                    code="SVFL-PROTOCOL-SIZE",
                    party=name,
                )
            for purpose, public, by_holder in zip(purposes, publics, evaluators, strict=True):
                create = partial(scheme.evaluator, public, self.coin(name, number, purpose))
                by_holder[name] = meter("keygen", create)
        return holders, list(evaluators)

    def executor(self, seconds: float) -> ProductExecutor:
        """Return an executor for products that take about this time on one core."""
        return ProductExecutor(self.context.meter, self.scheme, seconds)

    def send_queries(
        self,
        executor: ProductExecutor,
        names: Collection[str],
        holder: ShareHolder,
        vectors: Mapping[int, Words],
        *,
        columns: Callable[[int], int],
        uses: int,
    ) -> None:
        """Encrypt the vectors of each batch, and send them to the parties that multiply them.

        Args:
            executor: computes the encryptions.
            names: the receivers.
            holder: this party's key.
            vectors: the vectors (n, c) of each batch.
            columns: returns the approximate number of columns of the factor of a batch.
            uses: how many queries meet the same factor, as in `ShareHolder.encrypt`.
        """
        calls = (executor.encrypting(holder, V, columns(batch), uses) for batch, V in vectors.items())
        for batch, ciphertext in zip(vectors, executor.in_order("encrypt", calls), strict=True):
            for name in names:
                self.send(name, ProductQuery(batch, ciphertext))  # 2

    def answer_queries(
        self,
        executor: ProductExecutor,
        evaluators: Evaluators,
        batches: Mapping[int, int],
        factor: Callable[[int], Integers | RemoteFactor],
        *,
        cache: BatchCache | None = None,
        sealed: SealedVectors | None = None,
        remote: bool = False,
    ) -> dict[int, Words]:
        """Answer the query of every other holder about each batch.

        Args:
            executor: computes the products.
            evaluators: the evaluators, by holder.
            batches: the number of vectors that a query about each batch must have.
            factor: returns the factor of a batch.
            cache: stores plaintexts for later queries about the same batches.
            sealed: returns queries that were received before; None receives them.
            remote: True if other processes store the factors.

        Returns:
            The sum of this party's shares for all holders, by batch.

        Raises:
            ProtocolError: a query has another number of vectors; it is not answered.
        """
        pairs = [(batch, name) for batch in batches for name in evaluators]
        totals: dict[int, Words] = {}
        source = sealed or self._receive_query
        results = (
            self._remote_products(executor, evaluators, pairs, cast(Callable[[int], RemoteFactor], factor), source)
            if remote
            else self._products(executor, evaluators, pairs, cast(Factors, factor), cache, source)
        )
        for (batch, name), (masked, share) in zip(pairs, results, strict=True):
            if share.shape[1] != batches[batch]:
                raise ProtocolError(
                    f"{name} sent {share.shape[1]} vectors for batch {batch} instead of {batches[batch]}",
                    code="SVFL-PROTOCOL-SIZE",
                    party=name,
                )
            self.send(name, ProductReply(batch, masked))  # 3
            totals[batch] = share if batch not in totals else self._ring.reduce(totals[batch] + share)
        return totals

    def _remote_products(
        self,
        executor: ProductExecutor,
        evaluators: Evaluators,
        pairs: Sequence[tuple[int, str]],
        factor: Callable[[int], RemoteFactor],
        sealed: SealedVectors,
    ) -> Iterator[tuple[bytes, Words]]:
        """Mask in this process the products of workers, which have neither keys nor masks."""

        def call(evaluator: ShareEvaluator, W: RemoteFactor, query: bytes) -> Callable[[], tuple[bytes, Words]]:
            wait = W.multiply(self.scheme, query)
            return lambda: evaluator.hide(query, W.shape[1], wait())

        calls = (call(evaluators[name], factor(batch), sealed(name, batch)) for batch, name in pairs)
        return executor.in_order("compute", calls, started=True)

    def _products(
        self,
        executor: ProductExecutor,
        evaluators: Evaluators,
        pairs: Sequence[tuple[int, str]],
        factor: Factors,
        cache: BatchCache | None,
        sealed: SealedVectors,
    ) -> Iterator[tuple[bytes, Words]]:
        """Yield the reply and this party's share for each pair of batch and holder."""
        if executor.away:
            calls = (
                executor.multiplying(evaluators[name], factor(batch), sealed(name, batch)) for batch, name in pairs
            )
            yield from executor.in_order("compute", calls)
            return
        if not executor.here:
            batches = dict.fromkeys(batch for batch, _ in pairs)
            yield from self._products_in_threads(executor, evaluators, batches, factor, cache, sealed)
            return
        meter, current, prepared = self.context.meter, None, None
        for batch, name in pairs:
            query, evaluator = sealed(name, batch), evaluators[name]
            if batch != current:
                current, prepared = batch, None if cache is None else cache.get(batch)
            if prepared is None:
                once = cache is None and len(evaluators) == 1
                prepared = meter("encode", partial(evaluator.prepare, factor(batch), once=once))
            yield meter("compute", partial(evaluator.product, prepared, query))
            if cache is not None:
                cache.put(batch, prepared)

    def _products_in_threads(
        self,
        executor: ProductExecutor,
        evaluators: Evaluators,
        batches: Collection[int],
        factor: Factors,
        cache: BatchCache | None,
        sealed: SealedVectors,
    ) -> Iterator[tuple[bytes, Words]]:
        """Compute all products of a batch in one call, so that they share its plaintexts."""
        once = cache is None and len(evaluators) == 1

        def call(batch: int) -> Callable[[], tuple[Any, list[tuple[bytes, Words]]]]:
            queries = [(evaluator, sealed(name, batch)) for name, evaluator in evaluators.items()]
            cached = None if cache is None else cache.get(batch)
            W = factor(batch) if cached is None else None

            def compute() -> tuple[Any, list[tuple[bytes, Words]]]:
                prepared = cached if W is None else queries[0][0].prepare(W, once=once)
                return prepared, [evaluator.product(prepared, query) for evaluator, query in queries]

            return compute

        results = executor.in_order("compute", (call(batch) for batch in batches))
        for batch, (prepared, products) in zip(batches, results, strict=True):
            yield from products
            if cache is not None:
                cache.put(batch, prepared)

    def open_replies(
        self, executor: ProductExecutor, holder: ShareHolder, name: str, shapes: Mapping[int, tuple[int, int]]
    ) -> dict[int, Words]:
        """Decrypt the replies of a party.

        Args:
            executor: computes the decryptions.
            holder: this party's key.
            name: the party.
            shapes: the expected shape (d, c) of each batch's product.

        Returns:
            This holder's shares, by batch.

        Raises:
            ProtocolError: a product has another shape.
        """
        calls = (
            executor.opening(holder, self._ciphertext_of(name, batch, self.recv(name, ProductReply)))
            for batch in shapes
        )
        shares: dict[int, Words] = {}
        for (batch, shape), share in zip(shapes.items(), executor.in_order("decrypt", calls), strict=True):
            if share.shape != shape:
                raise ProtocolError(
                    f"{name} sent a product of shape {share.shape} for batch {batch} instead of {shape}",
                    code="SVFL-PROTOCOL-SIZE",
                    party=name,
                )
            shares[batch] = share
        return shares

    def _receive_query(self, name: str, batch: int) -> bytes:
        return self._ciphertext_of(name, batch, self.recv(name, ProductQuery))

    def _ciphertext_of(self, name: str, batch: int, message: ProductQuery | ProductReply) -> bytes:
        """Return the ciphertext of a message. Raises ProtocolError if it belongs to another batch."""
        if message.batch != batch:
            raise ProtocolError(
                f"{name} sent a {type(message).__name__} about batch {message.batch} instead of {batch}",
                code="SVFL-PROTOCOL-MESSAGE",
                party=name,
            )
        return message.ciphertext

    def send(self, name: str, message: Message, permit: DisclosurePermit | None = None) -> None:
        """Send a message on the subchannel of this session; a disclosing message needs a permit."""
        self.context.channel.send(name, message, self.context.subchannel, permit=permit)

    def recv(self, name: str, kind: type[M]) -> M:
        """Receive the next message of a party."""
        return self.context.channel.recv(name, kind, self.context.subchannel)

"""Products of shared vectors with columns: what passes between the two holders of masks and every party.

The *holders* are the active party and its partner. A holder h has vectors V_h, every other party k a factor W_k:

0. all      a nonce, an X25519 key, engines, everyone to everyone                once a session
1. h -> k   the holder's public keys, one for a purpose                          by coins of all nonces
2. h -> k   [[V_h]]_h
3. k -> h   masked W_k^T V_h      => one share at k, one at h

A party receives ciphertexts under a holder's key, a holder replies that are uniform to it whatever key it made and
whatever it asked (crypto/kernel/shares.py), on the library that the job names: no coin is made without the evaluator's
own nonce.
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
    NONCE_BYTES,
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

Evaluators = Mapping[str, ShareEvaluator]  # under the keys of the holders named
Factors = Callable[[int], Integers]  # by batch
Sealed = Callable[[str, int], bytes]  # the query of a holder about a batch


class ProductGreeting(Message, frozen=True):
    """32 random bytes for this session's coins, and an X25519 key."""

    nonce: bytes
    public: bytes


class HolderKeys(Message, frozen=True):
    """A holder's public keys, without the polynomials that both sides expand."""

    publics: tuple[bytes, ...]


class ProductQuery(Message, frozen=True):
    """[[V]] for the factor of one batch."""

    batch: int
    ciphertext: bytes


class ProductReply(Message, frozen=True):
    """The message with the product W^T V, masked, that the holder opens."""

    batch: int
    ciphertext: bytes


ROLES = ACTIVE, PARTNER, PASSIVE
PAIRS = [(one, other) for one in ROLES for other in ROLES if one != other or one == PASSIVE]  # several of these


def declares() -> list[MessageDeclaration]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    made = [MessageDeclaration(ProductGreeting, *pair, Reveal("public")) for pair in PAIRS]
    for holder, other in PAIRS:
        if holder != PASSIVE:
            made.append(MessageDeclaration(HolderKeys, holder, other, Reveal("public")))
            made.append(MessageDeclaration(ProductQuery, holder, other, Reveal("ciphertext", holder)))
            made.append(MessageDeclaration(ProductReply, other, holder, Reveal("uniform")))
    return made


def unpack_words(name: str, data: bytes, ring: ShareRing, shape: tuple[int, ...], what: str = "shares") -> Words:
    """Elements of this shape that a party has sent. ProtocolError if they are of another length."""
    size = ring.size(int(np.prod(shape)))
    if len(data) != size:
        raise ProtocolError(
            f"{name}: {size} bytes of {what} were expected, {len(data)} came; do both run the same job?"
        )
    return ring.unpack(data, shape)


def read_offsets(name: str, data: bytes, rows: int, entries: int) -> NDArray[np.uint8]:
    """Read the places of so many rows' tables that a party asks from on. ProtocolError if they are something else."""
    places = np.frombuffer(data, np.uint8)
    if len(places) != rows or (places >= entries).any():
        raise ProtocolError(
            f"{name}: {rows} places below {entries} were expected, others came; do both run the same job?"
        )
    return places


class Products:
    """One party's end, whichever it is, for a session."""

    def __init__(self, context: PartyContext, partner: str, scheme: ShareScheme) -> None:
        self.context, self.holders = context, (context.active, partner)
        self.scheme, self._ring = scheme, ShareRing(scheme.bits)
        self.others = tuple(name for name in context.parties if name != context.me)
        self.served = tuple(name for name in self.holders if name != context.me)  # whose vectors meet own columns
        self.asked = self.others if context.me in self.holders else ()  # whose columns meet own vectors
        self.pair_keys: dict[str, bytes] = {}  # with every other party, 32 bytes, of this session
        self._nonces: dict[str, bytes] = {}

    def meet(self) -> bool:
        """Greets everyone; False if that has been done."""
        if self._nonces:
            return False
        context, pair, mine = self.context, KeyPair(), os.urandom(NONCE_BYTES)
        for name in self.others:
            self.send(name, ProductGreeting(mine, pair.public))  # 0
        self._nonces[context.me] = mine
        session = context.channel.session.hex() + context.subchannel
        for name in self.others:
            greeting = self.recv(name, ProductGreeting)
            if len(greeting.nonce) != NONCE_BYTES:
                raise ProtocolError(f"{name}: a nonce of {NONCE_BYTES} bytes was expected, {len(greeting.nonce)} came")
            self._nonces[name] = greeting.nonce
            self.pair_keys[name] = pair.agree(
                greeting.public, session=session, party=context.me, peer=name, domain="training on shares"
            )
        return True

    def coin(self, holder: str, number: int, purpose: str) -> bytes:
        """32 bytes of the holder's nonce and everyone else's."""
        rest = [part for name in sorted(self._nonces) if name != holder for part in (name, self._nonces[name])]
        return common_coin(self._nonces[holder], hashlib.sha256(encode_context(*rest)).digest(), number, purpose)

    def keys(self, number: int, purposes: Sequence[str]) -> tuple[list[ShareHolder], list[Evaluators]]:
        """Make new keys for each purpose: a holder's own (none otherwise), and evaluators under the other holders'."""
        meter, scheme = self.context.meter, self.scheme
        own = [self.coin(self.context.me, number, purpose) for purpose in purposes if self.asked]
        holders = [meter("keygen", partial(scheme.keygen, coin)) for coin in own]
        for name in self.asked:
            self.send(name, HolderKeys(tuple(holder.public for holder in holders)))  # 1
        evaluators: list[dict[str, ShareEvaluator]] = [{} for _ in purposes]
        for name in self.served:
            publics = self.recv(name, HolderKeys).publics
            if len(publics) != len(purposes):
                raise ProtocolError(f"{name}: {len(purposes)} public keys were expected, {len(publics)} came")
            for purpose, public, found in zip(purposes, publics, evaluators, strict=True):
                make = partial(scheme.evaluator, public, self.coin(name, number, purpose))
                found[name] = meter("keygen", make)
        return holders, list(evaluators)

    def work(self, seconds: float) -> ProductExecutor:
        """Choose where products of about so many seconds on one core are computed."""
        return ProductExecutor(self.context.meter, self.scheme, seconds)

    def ask(
        self,
        work: ProductExecutor,
        names: Collection[str],
        holder: ShareHolder,
        vectors: Mapping[int, Words],
        *,
        columns: Callable[[int], int],
        uses: int,
    ) -> None:
        """Send [[V]] of each batch to those whose factors it meets.

        columns (by batch), uses: as in `ShareHolder.encrypt`.
        """
        calls = (work.encrypting(holder, V, columns(batch), uses) for batch, V in vectors.items())
        for batch, ciphertext in zip(vectors, work.in_order("encrypt", calls), strict=True):
            for name in names:
                self.send(name, ProductQuery(batch, ciphertext))  # 2

    def answer(
        self,
        work: ProductExecutor,
        evaluators: Evaluators,
        batches: Mapping[int, int],
        factor: Callable[[int], Integers | RemoteFactor],
        *,
        shelf: BatchCache | None = None,
        sealed: Sealed | None = None,
        apart: bool = False,
    ) -> dict[int, Words]:
        """Answers every holder's query about each batch; this party's shares by batch, those of all holders added up.

        batches: how many vectors a query about each is to have. ProtocolError if one has others, before it is answered.
        shelf: keeps plaintexts for another time. sealed: the query by holder and batch, if it has been received.
        apart: whether factors lie elsewhere.
        """
        asked = [(batch, name) for batch in batches for name in evaluators]
        total: dict[int, Words] = {}
        results = (
            self._elsewhere(work, evaluators, asked, cast(Callable[[int], RemoteFactor], factor), sealed or self._query)
            if apart
            else self._products(work, evaluators, asked, cast(Factors, factor), shelf, sealed or self._query)
        )
        for (batch, name), (masked, share) in zip(asked, results, strict=True):
            if share.shape[1] != batches[batch]:
                raise ProtocolError(
                    f"{name}: a query of {batches[batch]} vectors about batch {batch} was expected, one of "
                    f"{share.shape[1]} came; do both run the same job?"
                )
            self.send(name, ProductReply(batch, masked))  # 3
            total[batch] = share if batch not in total else self._ring.reduce(total[batch] + share)
        return total

    def _elsewhere(
        self,
        work: ProductExecutor,
        evaluators: Evaluators,
        asked: Sequence[tuple[int, str]],
        factor: Callable[[int], RemoteFactor],
        sealed: Sealed,
    ) -> Iterator[tuple[bytes, Words]]:
        """Hide here what workers multiply, which have neither key nor mask."""

        def call(evaluator: ShareEvaluator, W: RemoteFactor, query: bytes) -> Callable[[], tuple[bytes, Words]]:
            came = W.multiply(self.scheme, query)
            return lambda: evaluator.hide(query, W.shape[1], came())

        calls = (call(evaluators[name], factor(batch), sealed(name, batch)) for batch, name in asked)
        return work.in_order("compute", calls, started=True)

    def _products(
        self,
        work: ProductExecutor,
        evaluators: Evaluators,
        asked: Sequence[tuple[int, str]],
        factor: Factors,
        shelf: BatchCache | None,
        sealed: Sealed,
    ) -> Iterator[tuple[bytes, Words]]:
        if work.away:
            calls = (work.multiplying(evaluators[name], factor(batch), sealed(name, batch)) for batch, name in asked)
            yield from work.in_order("compute", calls)
            return
        if not work.here:
            yield from self._in_threads(
                work, evaluators, dict.fromkeys(batch for batch, _ in asked), factor, shelf, sealed
            )
            return
        meter, last, prepared = self.context.meter, None, None
        for batch, name in asked:
            query, evaluator = sealed(name, batch), evaluators[name]
            if batch != last:
                last, prepared = batch, None if shelf is None else shelf.get(batch)
            if prepared is None:
                once = shelf is None and len(evaluators) == 1
                prepared = meter("encode", partial(evaluator.prepare, factor(batch), once=once))
            yield meter("compute", partial(evaluator.product, prepared, query))
            if shelf is not None:
                shelf.put(batch, prepared)

    def _in_threads(
        self,
        work: ProductExecutor,
        evaluators: Evaluators,
        batches: Collection[int],
        factor: Factors,
        shelf: BatchCache | None,
        sealed: Sealed,
    ) -> Iterator[tuple[bytes, Words]]:
        """Compute the products of each batch in one piece, so that they share its plaintexts."""
        once = shelf is None and len(evaluators) == 1

        def call(batch: int) -> Callable[[], tuple[Any, list[tuple[bytes, Words]]]]:
            queries = [(evaluator, sealed(name, batch)) for name, evaluator in evaluators.items()]
            kept = None if shelf is None else shelf.get(batch)
            W = factor(batch) if kept is None else None

            def made() -> tuple[Any, list[tuple[bytes, Words]]]:
                prepared = kept if W is None else queries[0][0].prepare(W, once=once)
                return prepared, [evaluator.product(prepared, query) for evaluator, query in queries]

            return made

        results = work.in_order("compute", (call(batch) for batch in batches))
        for batch, (prepared, products) in zip(batches, results, strict=True):
            yield from products
            if shelf is not None:
                shelf.put(batch, prepared)

    def opened(
        self, work: ProductExecutor, holder: ShareHolder, name: str, shapes: Mapping[int, tuple[int, int]]
    ) -> dict[int, Words]:
        """Open what a party has answered: the holder's shares, by batch. ProtocolError if one is of another shape."""
        calls = (work.opening(holder, self._of(name, batch, self.recv(name, ProductReply))) for batch in shapes)
        found: dict[int, Words] = {}
        for (batch, shape), share in zip(shapes.items(), work.in_order("decrypt", calls), strict=True):
            if share.shape != shape:
                raise ProtocolError(
                    f"{name}: an answer of {shape} values was expected, {share.shape} came; do both run the same job?"
                )
            found[batch] = share
        return found

    def _query(self, name: str, batch: int) -> bytes:
        return self._of(name, batch, self.recv(name, ProductQuery))

    def _of(self, name: str, batch: int, message: ProductQuery | ProductReply) -> bytes:
        if message.batch != batch:
            raise ProtocolError(
                f"{name}: {type(message).__name__} about batch {batch} was expected, one about {message.batch} came; "
                "do both run the same job?"
            )
        return message.ciphertext

    def send(self, name: str, message: Message, permit: DisclosurePermit | None = None) -> None:
        """Send a message on this session's subchannel, with its entry in the record of what is told if it tells
        something."""
        self.context.channel.send(name, message, self.context.subchannel, permit=permit)

    def recv(self, name: str, kind: type[M]) -> M:
        """Receive the next message of that party."""
        return self.context.channel.recv(name, kind, self.context.subchannel)

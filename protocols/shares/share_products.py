"""Encrypted matrix products between two parties, whose result is additively shared between them.

The share holders are the active party, which has the labels, and its partner. A share holder h has secret vectors V_h
(n, c), and another party k has a secret integer matrix, the "factor" W_k (n, d). Their product W_k^T V_h (d, c) ends as
two random-looking shares, integers modulo 2^L whose sum is the product. V_h belongs to a batch, a numbered set of rows:

0. all -> all   a nonce (32 random bytes) and an X25519 key                  once a session
1. h -> k       the holder's public keys: one for each purpose, the name of a use of products such as "steps"
2. h -> k       a query: V_h, encrypted under the holder's key. If V_h shall be uniformly random, h draws it together
                with its ciphertext, which k computes from a seed and a small number for each entry
3. k -> h       a reply: W_k^T V_h minus k's random share, encrypted         => one share at k, one at h

Comments refer to these steps by number. Keys and masks depend on a coin: 32 bytes computed from the nonces of all
parties, so that no party alone chooses them. A party receives only ciphertexts under a holder's key. A holder receives
replies that look uniform to it, whatever key it generated and whatever it sent (`crypto/kernel/shares.py`). So all
parties learn the sizes only. An *evaluator* is the object with which k computes on ciphertexts under a holder's key. A
chunk is a number of iterations whose products are computed together; each has its own coins. Factors may be stored at
*workers*, other processes of the party.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
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
from securevfl.protocols.shares.reply_sums import ReplySums
from securevfl.runtime.codec import M, Message
from securevfl.runtime.disclosure_gate import DisclosurePermit

Evaluators = Mapping[str, ShareEvaluator]
"""By the name of each other share holder, the object that computes on ciphertexts under this holder's key."""

Factors = Callable[[int], Integers]
"""A function that returns this party's factor for a batch."""

SealedVectors = Callable[[str, int], bytes]
"""A function that returns a holder's encrypted vectors, by the holder's name and the batch."""


class ProductGreeting(Message, frozen=True):
    """A nonce of 32 random bytes for the coins of this session, and a public X25519 key."""

    nonce: bytes
    public: bytes


class HolderKeys(Message, frozen=True):
    """A holder's public keys, without their random halves, which the receiver computes from the coin."""

    publics: tuple[bytes, ...]


class ProductQuery(Message, frozen=True):
    """A holder's encrypted vectors V, to be multiplied with the receiver's factor for one batch."""

    batch: int
    ciphertext: bytes


class ProductReply(Message, frozen=True):
    """The encrypted product W^T V minus the sender's share; the holder decrypts it."""

    batch: int
    ciphertext: bytes


SHARE_ROLES = ACTIVE, PARTNER, PASSIVE
ROLE_PAIRS = [(one, other) for one in SHARE_ROLES for other in SHARE_ROLES if one != other or one == PASSIVE]
"""All pairs of sender and receiver by role. Two passive parties can also exchange messages with each other."""


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active, partner, passive (any other party)."""
    declarations = [MessageDeclaration(ProductGreeting, *pair, Reveal("public")) for pair in ROLE_PAIRS]
    for holder, other in ROLE_PAIRS:
        if holder != PASSIVE:
            declarations.append(MessageDeclaration(HolderKeys, holder, other, Reveal("public")))
            declarations.append(MessageDeclaration(ProductQuery, holder, other, Reveal("ciphertext", holder)))
            declarations.append(MessageDeclaration(ProductReply, other, holder, Reveal("uniform")))
    return declarations


def unpack_words(
    name: str,
    data: bytes,
    ring: ShareRing,
    shape: tuple[int, ...],
    content: str = "shares",
    *,
    where: tuple[Any, ...] = (),
) -> Words:
    """Return the ring elements that a party has sent.

    Args:
        name: name of the party that has sent them, for the error message.
        data: the elements as packed bytes.
        ring: the integers modulo 2^L.
        shape: the shape of the array of elements.
        content: a word for the elements in the error message.
        where: an index into an array of this shape, to read only some of the elements.

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
    return ring.unpack(data, shape, where)


def read_offsets(name: str, data: bytes, rows: int, entries: int) -> NDArray[np.uint8]:
    """Return the offsets that a party has sent: by how many entries the receiver rotates the lookup table of each row.

    Args:
        name: name of the party that has sent them, for the error message.
        data: one byte for each row.
        rows: the number of rows.
        entries: the number of entries of a lookup table.

    Returns:
        The offsets (rows,).

    Raises:
        ProtocolError: the number of offsets is wrong, or an offset is not below `entries`.
    """
    offsets = np.frombuffer(data, np.uint8)
    if len(offsets) != rows:
        raise ProtocolError(
            f"{name} sent {len(offsets)} indices into lookup tables instead of one for each of {rows} rows",
            code="SVFL-PROTOCOL-SIZE",
            party=name,
        )
    if (offsets >= entries).any():
        raise ProtocolError(
            f"{name} sent an index into a lookup table that is not below {entries}, the number of its entries",
            code="SVFL-PROTOCOL-VALUES",
            party=name,
        )
    return offsets


class Products:
    """One party's side of all encrypted matrix products of a session, for a share holder or any other party.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        partner: the share holder that does not have the labels.
        scheme: the encryption scheme of the products.

    Attributes:
        others: all other parties.
        other_holders: the share holders without this party; this party multiplies their vectors by its factors.
        is_holder: whether this party is a share holder.
        queried: the parties that multiply this party's vectors by their factors; empty unless it is a share holder.
        pair_keys: for each other party, a secret key (32 bytes) of this session that only these two parties have.
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
        """Exchange nonces and keys with all other parties; a second call does nothing.

        Returns:
            True if the exchange took place now, False if it was done before.

        Raises:
            ProtocolError: a nonce has the wrong length.
        """
        if self._nonces:
            return False
        context, key_pair, nonce = self.context, KeyPair(), os.urandom(COIN_NONCE_BYTES)
        for name in self.others:
            self.send(name, ProductGreeting(nonce, key_pair.public))  # step 0
        self._nonces[context.me] = nonce
        session = context.channel.session.hex() + context.subchannel
        for name in self.others:
            greeting = self.recv(name, ProductGreeting)
            if len(greeting.nonce) != COIN_NONCE_BYTES:
                raise ProtocolError(
                    f"{name} sent a nonce (a random number for one session) of {len(greeting.nonce)} bytes instead of "
                    f"{COIN_NONCE_BYTES}",
                    code="SVFL-PROTOCOL-SIZE",
                    party=name,
                )
            self._nonces[name] = greeting.nonce
            self.pair_keys[name] = key_pair.agree(
                greeting.public, session=session, party=context.me, peer=name, domain="training on shares"
            )
        return True

    def coin(self, holder: str, number: int, purpose: str) -> bytes:
        """Return a coin: 32 bytes that depend on the nonces of a holder and of all other parties.

        Args:
            holder: the share holder whose key will depend on the coin.
            number: the number of the chunk of iterations, so that every chunk has other coins.
            purpose: the purpose of the coin, such as "steps"; every purpose has another coin.

        Returns:
            The coin.
        """
        nonces = [part for name in sorted(self._nonces) if name != holder for part in (name, self._nonces[name])]
        return common_coin(self._nonces[holder], hashlib.sha256(encode_context(*nonces)).digest(), number, purpose)

    def send_keys(self, number: int, purposes: Sequence[str], schemes: Sequence[ShareScheme] = ()) -> list[ShareHolder]:
        """Generate new keys, if this party is a share holder, and send the public keys to all other parties.

        A holder sends its queries before it receives the keys of the other one (`receive_keys`). One holder's keys and
        queries then arrive together, half a round trip earlier.

        Args:
            number: a number that makes keys differ between uses: the number of the chunk of iterations, of the
                evaluation or of the request for scores.
            purposes: names of the purposes of the products, such as "steps"; each holder generates one key for each
                name.
            schemes: the encryption scheme of each purpose; the scheme of this session for all of them if empty.

        Returns:
            This party's secret keys, one for each purpose; empty unless it is a share holder.
        """
        meter, schemes = self.context.meter, schemes or [self.scheme] * len(purposes)
        holders = [
            meter("keygen", partial(scheme.keygen, self.coin(self.context.me, number, purpose)))
            for purpose, scheme in zip(purposes, schemes, strict=True)
            if self.is_holder
        ]
        for name in self.queried:
            self.send(name, HolderKeys(tuple(holder.public for holder in holders)))  # step 1
        return holders

    def receive_keys(
        self, number: int, purposes: Sequence[str], schemes: Sequence[ShareScheme] = ()
    ) -> list[Evaluators]:
        """Receive the public keys of the other share holders.

        Args:
            number: see `send_keys`.
            purposes: see `send_keys`.
            schemes: see `send_keys`.

        Returns:
            For each purpose, the evaluators for the keys of the other share holders.

        Raises:
            ProtocolError: a holder sent another number of keys.
        """
        meter, schemes = self.context.meter, schemes or [self.scheme] * len(purposes)
        evaluators: list[dict[str, ShareEvaluator]] = [{} for _ in purposes]
        for name in self.other_holders:
            publics = self.recv(name, HolderKeys).publics
            if len(publics) != len(purposes):
                raise ProtocolError(
                    f"{name} sent {len(publics)} public keys instead of {len(purposes)}",
                    code="SVFL-PROTOCOL-SIZE",
                    party=name,
                )
            for purpose, scheme, public, by_holder in zip(purposes, schemes, publics, evaluators, strict=True):
                create = partial(scheme.evaluator, public, self.coin(name, number, purpose))
                by_holder[name] = meter("keygen", create)
        return list(evaluators)

    def executor(self, seconds: float, scheme: ShareScheme | None = None) -> ProductExecutor:
        """Return an executor for products with a scheme (this session's if omitted) that take about `seconds`."""
        return ProductExecutor(self.context.meter, scheme or self.scheme, seconds)

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
            names: names of the parties that receive the queries.
            holder: this party's secret key.
            vectors: the vectors V (n, c) of each batch.
            columns: returns the approximate number of columns of the receivers' factors for a batch.
            uses: the number of queries that will be multiplied with the same factor; see `ShareHolder.encrypt`.
        """
        calls = (executor.encrypting(holder, V, columns(batch), uses) for batch, V in vectors.items())
        for batch, ciphertext in zip(vectors, executor.in_order("encrypt", calls), strict=True):
            for name in names:
                self.send(name, ProductQuery(batch, ciphertext))  # step 2

    def send_uniform_queries(
        self,
        executor: ProductExecutor,
        names: Collection[str],
        holder: ShareHolder,
        shapes: Mapping[int, tuple[int, int]],
        *,
        columns: int,
        uses: int,
        layout_rows: Callable[[int], int] = lambda batch: 0,
    ) -> dict[int, Words]:
        """Draw uniform vectors for each batch, and send their ciphertexts to the parties that multiply them.

        Args:
            executor: computes the encryptions.
            names: names of the parties that receive the queries.
            holder: this party's secret key.
            shapes: the shape (n, c) of the vectors of each batch.
            columns: the approximate number of columns of the receivers' factors.
            uses: the number of queries that will be multiplied with the same factor; see `ShareHolder.encrypt`.
            layout_rows: returns the number of rows for which the layout of a batch's query is chosen; 0 for its own.

        Returns:
            The vectors, by batch.
        """
        vectors: dict[int, Words] = {}
        calls = (
            executor.encrypting_uniform(holder, shape, columns, uses, layout_rows(batch))
            for batch, shape in shapes.items()
        )
        for batch, (ciphertext, V) in zip(shapes, executor.in_order("encrypt", calls), strict=True):
            for name in names:
                self.send(name, ProductQuery(batch, ciphertext))  # step 2
            vectors[batch] = V
        return vectors

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
        sums: ReplySums | None = None,
    ) -> dict[int, Words]:
        """Receive the query of every other share holder about each batch, and send the masked products back.

        Args:
            executor: computes the products.
            evaluators: for each share holder, the object that computes with ciphertexts under its key.
            batches: for each batch, the number of vectors (columns of V) that a query must contain.
            factor: returns this party's matrix W for a batch, given the number of the batch.
            cache: stores encoded factors for later queries about the same batches.
            sealed: returns the encrypted vectors if they were received before; None receives them now.
            remote: whether other processes store the factors.
            sums: adds up the products of several batches before they are sent; None sends each one.

        Returns:
            For each batch with a reply, the sum of this party's shares of the products with all holders.

        Raises:
            ProtocolError: a query has another number of vectors; it is not answered.
        """
        pairs = [(batch, name) for batch in batches for name in evaluators]
        totals: dict[int, Words] = {}
        source = sealed or self.receive_query
        is_sum = sums is not None
        results = (
            self._remote_products(
                executor, evaluators, pairs, cast(Callable[[int], RemoteFactor], factor), source, hides=not is_sum
            )
            if remote
            else self._products(executor, evaluators, pairs, cast(Factors, factor), cache, source, hides=not is_sum)
        )
        for (batch, name), product in zip(pairs, results, strict=True):
            if sums is None:
                masked, share = product
            else:
                answer = partial(sums.reply, batch, name, evaluators[name], product)
                masked, share = self.context.meter("compute", answer)
            if share is None:
                self.send(name, ProductReply(batch, masked))  # step 3
                continue
            if share.shape[1] != batches[batch]:
                raise ProtocolError(
                    f"{name} sent {share.shape[1]} encrypted vectors for batch {batch} instead of {batches[batch]}",
                    code="SVFL-PROTOCOL-SIZE",
                    party=name,
                )
            self.send(name, ProductReply(batch, masked))  # step 3
            totals[batch] = share if batch not in totals else self._ring.reduce(totals[batch] + share)
        return totals

    def _remote_products(
        self,
        executor: ProductExecutor,
        evaluators: Evaluators,
        pairs: Sequence[tuple[int, str]],
        factor: Callable[[int], RemoteFactor],
        sealed: SealedVectors,
        *,
        hides: bool,
    ) -> Iterator[Any]:
        """Yield replies and shares for factors at workers: a worker multiplies, and this process masks the product.

        If `hides` is False, yield encrypted products in place of replies and shares.
        """

        def call(evaluator: ShareEvaluator, W: RemoteFactor, query: bytes) -> Callable[[], Any]:
            wait = W.multiply(executor.scheme, query)

            def complete() -> Any:
                product = evaluator.join(query, W.shape[1], wait())
                return evaluator.hide(product) if hides else product

            return complete

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
        *,
        hides: bool,
    ) -> Iterator[Any]:
        """Yield the reply and this party's share for each pair of a batch and a share holder.

        If `hides` is False, yield encrypted products in place of replies and shares.
        """
        if executor.away and not hides:
            yield from self._products_of_processes(executor, evaluators, pairs, factor, sealed)
            return
        if executor.away:
            calls = (
                executor.multiplying(evaluators[name], factor(batch), sealed(name, batch)) for batch, name in pairs
            )
            yield from executor.in_order("compute", calls)
            return
        if not executor.here:
            batches = dict.fromkeys(batch for batch, _ in pairs)
            yield from self._products_in_threads(executor, evaluators, batches, factor, cache, sealed, hides=hides)
            return
        meter, current, prepared = self.context.meter, None, None
        for batch, name in pairs:
            query, evaluator = sealed(name, batch), evaluators[name]
            if batch != current:
                current, prepared = batch, None if cache is None else cache.get(batch)
            if prepared is None:
                once = cache is None and len(evaluators) == 1
                prepared = meter("encode", partial(evaluator.prepare, factor(batch), once=once))
            yield meter("compute", partial(evaluator.product if hides else evaluator.multiply, prepared, query))
            if cache is not None:
                cache.put(batch, prepared)

    def _products_of_processes(
        self,
        executor: ProductExecutor,
        evaluators: Evaluators,
        pairs: Sequence[tuple[int, str]],
        factor: Factors,
        sealed: SealedVectors,
    ) -> Iterator[Any]:
        """Yield encrypted products that other processes have computed, for each pair of a batch and a share holder."""
        started = deque[tuple[ShareEvaluator, bytes, int]]()

        def calls() -> Iterator[Callable[[], bytes]]:
            for batch, name in pairs:
                W, query = factor(batch), sealed(name, batch)
                started.append((evaluators[name], query, W.shape[1]))
                yield executor.multiplying_part(W, query)

        for part in executor.in_order("compute", calls()):
            evaluator, query, columns = started.popleft()
            yield evaluator.join(query, columns, [part])

    def _products_in_threads(
        self,
        executor: ProductExecutor,
        evaluators: Evaluators,
        batches: Collection[int],
        factor: Factors,
        cache: BatchCache | None,
        sealed: SealedVectors,
        *,
        hides: bool,
    ) -> Iterator[Any]:
        """Yield replies and shares like `_products`, with one call to a thread for each batch.

        One call for all holders encodes the factor of the batch just once.
        """
        once = cache is None and len(evaluators) == 1

        def call(batch: int) -> Callable[[], tuple[Any, list[Any]]]:
            queries = [(evaluator, sealed(name, batch)) for name, evaluator in evaluators.items()]
            cached = None if cache is None else cache.get(batch)
            W = factor(batch) if cached is None else None

            def compute() -> tuple[Any, list[Any]]:
                prepared = cached if W is None else queries[0][0].prepare(W, once=once)
                products = (evaluator.product if hides else evaluator.multiply for evaluator, _ in queries)
                return prepared, [
                    product(prepared, query) for product, (_, query) in zip(products, queries, strict=True)
                ]

            return compute

        results = executor.in_order("compute", (call(batch) for batch in batches))
        for batch, (prepared, products) in zip(batches, results, strict=True):
            yield from products
            if cache is not None:
                cache.put(batch, prepared)

    def open_replies(
        self,
        executor: ProductExecutor,
        holder: ShareHolder,
        name: str,
        shapes: Mapping[int, tuple[int, int]],
        *,
        ends: Callable[[int], bool] = lambda batch: True,
    ) -> dict[int, Words]:
        """Receive and decrypt the replies of one party.

        Args:
            executor: computes the decryptions.
            holder: this party's secret key.
            name: the party that sends the replies.
            shapes: the expected shape (d, c) of the product for each batch.
            ends: returns whether the reply about a batch contains a product; see `answer_queries`.

        Returns:
            This holder's share of the product, for each batch with a product.

        Raises:
            ProtocolError: a product has another shape.
        """
        replied = {batch: shape for batch, shape in shapes.items() if ends(batch)}
        calls = (executor.opening(holder, reply) for reply in self._replies(name, shapes, ends))
        shares: dict[int, Words] = {}
        for (batch, shape), share in zip(replied.items(), executor.in_order("decrypt", calls), strict=True):
            if share.shape != shape:
                raise ProtocolError(
                    f"{name} sent a product of shape {share.shape} for batch {batch} instead of {shape}",
                    code="SVFL-PROTOCOL-SIZE",
                    party=name,
                )
            shares[batch] = share
        return shares

    def _replies(self, name: str, batches: Collection[int], ends: Callable[[int], bool]) -> Iterator[bytes]:
        """Receive the replies of one party. Raises ProtocolError if a reply without a product is not empty."""
        for batch in batches:
            reply = self._ciphertext_of(name, batch, self.recv(name, ProductReply))
            if ends(batch):
                yield reply
            elif reply:
                raise ProtocolError(
                    f"{name} sent a reply of {len(reply)} bytes about batch {batch} instead of an empty one",
                    "use the same version at all parties",
                    code="SVFL-PROTOCOL-SIZE",
                    party=name,
                )

    def receive_query(self, name: str, batch: int) -> bytes:
        """Receive the encrypted vectors of a share holder for a batch."""
        return self._ciphertext_of(name, batch, self.recv(name, ProductQuery))

    def _ciphertext_of(self, name: str, batch: int, message: ProductQuery | ProductReply) -> bytes:
        """Return the ciphertext of a message. Raises ProtocolError if the message is about another batch."""
        if message.batch != batch:
            raise ProtocolError(
                f"{name} sent a {type(message).__name__} about batch {message.batch} instead of {batch}",
                code="SVFL-PROTOCOL-MESSAGE",
                party=name,
            )
        return message.ciphertext

    def send(self, name: str, message: Message, permit: DisclosurePermit | None = None) -> None:
        """Send a message on the subchannel of this session. A message that discloses something needs a permit."""
        self.context.channel.send(name, message, self.context.subchannel, permit=permit)

    def recv(self, name: str, kind: type[M]) -> M:
        """Receive the next message of a party, which must be of this class."""
        return self.context.channel.recv(name, kind, self.context.subchannel)

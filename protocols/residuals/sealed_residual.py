"""Sealed residual: g under the active party's key; a passive party learns J^T g and nothing else.

Generalises the encrypted gradients of Hardy et al. 2017 and FedBCD 2019 section 5 to any J.

0. active -> passive   public key            anew every epoch where the engine asks for it
1. active -> passive   [[g]]                 ciphertexts under the active party's key; numbered, an exchange; in
                                             pieces, so that the passive party multiplies one while the next is made
2. passive -> active   [[J^T g + r]]         blinded by r, re-randomised: uniform to the key holder
3. active -> passive   J^T g + r             opened
   passive             subtracts r; ends with a ProtocolError unless checks, opened beside, fit what was opened
4. passive -> active   it asks no more about an exchange, or about any

The active party opens uniform noise. A passive party learns its own parameter gradient: p equations about the n c
numbers of g, the same ones every epoch while J and the partition into batches stay (FedBCD's assumption A2).
Steps 2 and 3 are repeated for every local step when J moves with the weights, once when it does not (FedBCD eq. 57).
Where rows are weighed anew in local steps they are repeated in every one, so that their number tells nothing: with the
last product, blinded anew, where the weights of rows are as before.

The active party serves step 2 in a thread beside the one that publishes, exchange by exchange and in any order: a reply
may be kept and asked late, again, from another thread, while later exchanges go on. A key lives as long as an exchange
under it is open. An exchange is open to a passive party until it has had the openings agreed (`Agreement`), or gives
the exchange up (step 4), which it does with the oldest of more than `kept`. The active party refuses what goes beyond,
and waits where more than `kept` exchanges are open to a party it would publish to: there are never more than kept + 1.

An active party that deviates seals a g of its choice. What it opens is checked by secret combinations of J's columns
that the engine has opened beside them: a changed value is found but with probability 2^-20 (docs/proof.md).

A passive party that deviates gets at most what was agreed opened, so many times a residual and no more values than the
columns it declared and their checks: with the identity for J it would read every row's g. Which equations these are
stays its choice: the residuals of so many rows, say. Under CKKS a ciphertext that is no product at all has parts of
the secret key opened instead, 12 of its 4,096 ternary coefficients a value, so that the key of an epoch, and with it
every [[g]] of the epoch, is taken in some 350 values. Under Paillier it has numbers about g opened and not the key.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Self

from securevfl.base.arrays import Floats
from securevfl.base.roles import ACTIVE, PASSIVE
from securevfl.crypto.batch_cache import BatchCache
from securevfl.crypto.scheme import Evaluator, KeyHolder, LinearScheme, OpeningShape
from securevfl.errors import LimitError, OpeningMismatch, ProtocolError, ShapeMismatch, TransportError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.differentiable import Differentiable
from securevfl.protocols.engines import ENGINES, AnyEngine, Encrypted
from securevfl.protocols.message_protocol import Release
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import (
    ActiveResidual,
    Agreement,
    Batch,
    PassiveResidual,
    Reply,
    ResidualProtocol,
)
from securevfl.protocols.residuals.defences import AnyDefence, Defence, Noise
from securevfl.protocols.residuals.exchanges import Exchange, Exchanges, Piece, Pieces
from securevfl.runtime.background_task import BackgroundTask
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage

DISTANCE = 40  # bits: how far the openings of a run should at most be from ones that tell J^T g alone


class ResidualKey(Message, frozen=True):
    """The active party's key, for the exchanges that follow."""

    key: bytes


class ResidualCiphertext(Message, frozen=True):
    """[[g]] of an exchange, or the next piece of it."""

    exchange: int
    ciphertext: bytes
    last: bool = True


class BlindedProduct(Message, frozen=True):
    """[[J^T g + r]] for the g of an exchange."""

    exchange: int
    ciphertext: bytes


class OpenedProduct(DisclosingMessage, frozen=True):
    """J^T g + r, low bits dithered where the engine needs it, and checks."""

    exchange: int
    values: bytes


class ResidualClosed(Message, frozen=True):
    """The sender asks no more about this exchange, or about any where it names none."""

    exchange: int | None


class SealedResidual(Encrypted, ResidualProtocol):
    """g under encryption, by the engine named; blurred before by a `defence` that bounds it, if any."""

    name: ClassVar[str] = "sealed"
    engine: AnyEngine
    """The encryption that seals g."""
    defence: AnyDefence | None = None
    """What blurs g before it is sealed: gaussian or rounding."""

    def model_post_init(self, context: object) -> None:
        if self.defence is not None:
            self.defence.reach(1.0)

    def active(self, context: PartyContext, agreement: Agreement) -> ActiveResidual:
        return SealedActive(context, self.linear(context), agreement, self.defence)

    def passive(self, context: PartyContext, agreement: Agreement) -> PassiveResidual:
        return SealedPassive(context, self.linear(context), agreement)

    def declares(self) -> list[MessageDeclaration]:
        return [
            MessageDeclaration(ResidualKey, ACTIVE, PASSIVE, Reveal("public"), renewed=True),
            MessageDeclaration(ResidualCiphertext, ACTIVE, PASSIVE, Reveal("ciphertext", ACTIVE)),
            MessageDeclaration(BlindedProduct, PASSIVE, ACTIVE, Reveal("uniform")),
            MessageDeclaration(
                OpenedProduct, ACTIVE, PASSIVE, Reveal("output", "the receiver's own parameter gradient J^T g")
            ),
            MessageDeclaration(ResidualClosed, PASSIVE, ACTIVE, Reveal("public")),
        ]

    @classmethod
    def variants(cls) -> dict[str, Self]:
        return {name: cls(engine=engine) for kind in ENGINES.values() for name, engine in kind.variants().items()}

    @property
    def strength(self) -> str:
        return self.engine.scheme().strength

    def openings(self, values: int, epochs: int, *, columns: int, once: int = 0) -> str:
        scheme = self.engine.scheme()
        opened, checks = values - (-once // epochs) + columns * scheme.checks, columns * scheme.checks * epochs
        run = scheme.distance_bits(opened * epochs)
        key = scheme.distance_bits(opened) if scheme.rotates else run
        text = (
            f"{values * epochs + once:,} values in a run and {checks:,} checks at most, within 2^-{run:.1f} of "
            f"openings that tell J^T g alone (2^-{key:.1f} a key, 2^-{scheme.distance_bits(1):.1f} a value)"
        )
        return text if run >= DISTANCE else f"{text}; 2^-{DISTANCE} is meant, so use fewer epochs or larger batches"

    def counted_bits(self, rows: int, counts: int, word: int) -> int:
        return self.engine.scheme().opened_bits(rows, counts, word)

    @property
    def label(self) -> str:
        return self.engine.name

    @property
    def seals(self) -> bool:
        return True


def _subchannels(context: PartyContext) -> tuple[str, str]:
    """Name the channel subchannels on which g is sent (steps 0 and 1) and on which it is asked about (steps 2 to 4)."""
    return f"{context.subchannel}/residual", f"{context.subchannel}/opening"


class SealedActive(ActiveResidual):
    """The key holder's side. Its serving thread runs until every passive party has closed or the channel fails."""

    def __init__(
        self, context: PartyContext, scheme: LinearScheme, agreement: Agreement, defence: Defence | None
    ) -> None:
        self._context = context
        self._scheme = scheme
        self._agreement = agreement
        self._defence = defence
        self._noise = Noise(context.noise_key, context.subchannel, context.residuals_sent)
        self._bound = context.residual_bound if defence is None else defence.reach(context.residual_bound)
        self._down, self._asked = _subchannels(context)
        self._columns = max(context.parameters.values(), default=0) // (
            context.outputs if agreement.shares_outputs else 1
        )
        self._holder = self._key()
        self._epoch: int | None = None
        self._told: set[str] = set()
        self._exchanges = Exchanges(context, agreement)
        self._server = BackgroundTask(context.channel, self._serve, "openings")

    def publish(self, g: Floats, *, epoch: int, to: Collection[str], resend_of: Release | None = None) -> None:
        if self._scheme.rotates and self._epoch not in (None, epoch):
            self._holder, self._told = self._key(), set()
        self._epoch = epoch
        if self._defence is not None:
            g = self._defence.apply(g, self._noise.take(None if resend_of is None else resend_of.number))
        sealed = self._agreement.facing(g)
        pieces = self._holder.encrypt_pieces(sealed, bound=self._bound)
        first = next(pieces)
        shape = sealed.shape[0], sealed.shape[1]
        used = 0 if resend_of is None else resend_of.used
        exchange = self._exchanges.begin(self._holder, to, shape, self._server.join, used=used)
        for passive in to:
            if passive not in self._told:
                self._context.channel.send(passive, ResidualKey(self._holder.public), self._down)  # 0
                self._told.add(passive)
        for piece, last in chain((first,), pieces):
            for passive in to:
                self._context.channel.send(passive, ResidualCiphertext(exchange, piece, last), self._down)  # 1

    def _key(self) -> KeyHolder:
        return self._scheme.keygen(columns=self._columns, openings=self._agreement.openings)

    def close(self) -> None:
        timeout = self._context.channel.timeout
        if not self._server.join(timeout):
            late = ", ".join(sorted(self._exchanges.asking))
            raise TransportError(f"{self._context.me}: {late} had more to ask {timeout:g} s after the last residual")

    def _serve(self) -> None:
        channel, subchannel, exchanges = self._context.channel, self._asked, self._exchanges
        try:
            while asking := exchanges.asking:
                sender, message = channel.recv_any(
                    asking, (BlindedProduct, ResidualClosed), subchannel, timeout=threading.TIMEOUT_MAX
                )
                if isinstance(message, BlindedProduct):
                    spent = exchanges.spend(sender, message.exchange)
                    shape = self._shape(sender, spent)
                    entry = self._agreement.record(sender, self._context.parameters[sender], channel.me)
                    permit = channel.permit(replace(entry, max_bytes=self._scheme.opened_size(shape)))
                    opened = self._open_one(sender, spent, message.ciphertext, shape)  # 2
                    del spent  # a key must not outlive its last exchange
                    channel.send(sender, OpenedProduct(message.exchange, opened), subchannel, permit=permit)  # 3
                elif isinstance(message, ResidualClosed):
                    exchanges.forget(sender, message.exchange)  # 4
        finally:
            exchanges.served()

    def _shape(self, passive: str, exchange: Exchange) -> OpeningShape:
        """Return what is opened to a passive party: products with as many columns as its part of the model has."""
        rows, outputs = exchange.shape
        return OpeningShape(rows, outputs, self._context.parameters[passive] // outputs, self._agreement.word)

    def _open_one(self, passive: str, exchange: Exchange, blinded: bytes, shape: OpeningShape) -> bytes:
        """ProtocolError, before anything is opened, if it is wider than the party's part of the model."""
        try:
            return exchange.holder.open(blinded, shape)
        except ShapeMismatch as error:
            raise ProtocolError(f"{passive} asks for another product than its gradient: {error}; ask it why") from error


class SealedPassive(PassiveResidual):
    """The side that owns J. One product is made, and one opening is on its way, at a time."""

    def __init__(self, context: PartyContext, scheme: LinearScheme, agreement: Agreement) -> None:
        super().__init__(context)
        self.agreement = agreement
        self.me = context.me
        self._context = context
        self._scheme = scheme
        self._down, self._asked = _subchannels(context)
        self._evaluator: Evaluator | None = None
        self._coming: Pieces | None = None  # of the last exchange
        self.products: dict[int, Any] = {}  # [[J^T g]], the last of each exchange that is held
        self._held: deque[SealedReply] = deque()
        self._shelf = BatchCache()
        self._one_product, self._one_opening = threading.Lock(), threading.Lock()

    def receive(self) -> Reply:
        channel, active = self._context.channel, self._context.active
        if self._coming is not None:
            self._coming.wait()
        message = channel.recv_any((active,), (ResidualKey, ResidualCiphertext), self._down)[1]
        if isinstance(message, ResidualKey):
            self._evaluator = self._scheme.evaluator(message.key)  # 0
            message = channel.recv(active, ResidualCiphertext, self._down)
        assert isinstance(message, ResidualCiphertext)
        if self._evaluator is None:
            raise ProtocolError(f"{self.me}: {active} was expected to send its key before a residual")
        exchange, again = message.exchange, self.agreement.openings > 1
        more = partial(self._next, exchange)
        self._coming = Pieces((message.ciphertext, message.last), more, again=again)  # 1
        reply = SealedReply(self, exchange, self._coming, self._evaluator)
        self._held.append(reply)
        if len(self._held) > self.agreement.max_open_exchanges:
            self._held.popleft().close()
        return reply

    def _next(self, exchange: int) -> Piece:
        """Receive the next piece of an exchange, and whether it is the last."""
        message = self._context.channel.recv(self._context.active, ResidualCiphertext, self._down)
        if message.exchange != exchange:
            active = self._context.active
            raise ProtocolError(
                f"{self.me}: {active} was expected to finish exchange {exchange}, began {message.exchange}"
            )
        return message.ciphertext, message.last

    def gradient(
        self, exchange: int, sealed: Iterable[bytes], evaluator: Evaluator, model: Differentiable, batch: Batch
    ) -> Floats:
        """Run steps 2 and 3 for one Jacobian J, and return the gradient."""
        static = model.static_jacobian
        with self._one_product:
            prepared = self._shelf.get(batch.index) if static else None
            if prepared is None:
                J = self.agreement.matrix(model.jacobian(batch.X), self.me)
                prepared = evaluator.prepare(J, max_bytes=self._shelf.free_bytes if static else 0)
            product = self.products[exchange] = product_of(evaluator, prepared, sealed)
            blinded, r = evaluator.blind(product)
            self._context.meter.add_worker_seconds(batch.worker_seconds)
            if static:
                self._shelf.put(batch.index, prepared)
        opened = self.ask_to_open(exchange, blinded)
        try:
            found = evaluator.unblind(opened, r, self.agreement.word)
        except OpeningMismatch as error:
            raise ProtocolError(
                f"{self.me}: {self._context.active} was expected to open what it decrypts of exchange {exchange}: "
                f"{error}; ask it why"
            ) from error
        return self.agreement.gradient(found)

    def ask_to_open(self, exchange: int, blinded: bytes) -> bytes:
        """Ask the active party to open a blinded product, and return what it opens."""
        channel, active = self._context.channel, self._context.active
        with self._one_opening:
            channel.send(active, BlindedProduct(exchange, blinded), self._asked)  # 2
            opened = channel.recv(active, OpenedProduct, self._asked)  # 3
        if opened.exchange != exchange:
            raise ProtocolError(f"{self.me}: {active} was asked about exchange {exchange}, it opened {opened.exchange}")
        return opened.values

    def end(self, exchange: int | None) -> None:
        """Step 4."""
        with self._one_opening:
            self._context.channel.send(self._context.active, ResidualClosed(exchange), self._asked)  # 4

    def close(self) -> None:
        self.end(None)


def product_of(evaluator: Evaluator, prepared: Any, sealed: Iterable[bytes]) -> Any:
    """[[J^T g]] of the pieces of [[g]], each taken in as it comes."""
    product = None
    for piece in sealed:
        evaluator.encode(prepared, piece, product)
        product = evaluator.transpose_product(prepared, piece, product)
    return product


class SealedReply(Reply):
    """[[g]] with the way to use it. J^T g is kept where J does not move."""

    def __init__(self, residual: SealedPassive, exchange: int, sealed: Pieces, evaluator: Evaluator) -> None:
        self.exchange = exchange
        self._residual = residual
        self._sealed = sealed
        self._evaluator = evaluator
        self._left = residual.agreement.openings
        self._closed = False
        self._gradient: Floats | None = None
        self._lock = threading.Lock()

    def gradient(self, model: Differentiable, batch: Batch) -> Floats:
        with self._lock:
            if self._gradient is None or not model.static_jacobian:
                self._spend()
                self._gradient = self._residual.gradient(self.exchange, self._sealed, self._evaluator, model, batch)
            return self._gradient

    def repeat(self) -> None:
        with self._lock:
            self._spend()
            self._residual.ask_to_open(self.exchange, self._evaluator.blind(self._residual.products[self.exchange])[0])

    def close(self) -> None:
        with self._lock:
            if self._left and not self._closed:
                self._residual.end(self.exchange)
            self._closed = True
            self._residual.products.pop(self.exchange, None)
            self._sealed.forget()

    def _spend(self) -> None:
        agreed, me = self._residual.agreement, self._residual.me
        if self._closed:
            raise LimitError(f"{me}: exchange {self.exchange} is closed, the limit is {agreed.max_open_exchanges}")
        if not self._left:
            raise LimitError(f"{me}: the {agreed.openings} gradients agreed of exchange {self.exchange} are spent")
        self._left -= 1

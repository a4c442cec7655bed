"""Sealed residual: the active party sends the residual encrypted; a passive party learns only its gradient.

The active party has the labels and a key pair. The residual g (n, c) is the derivative of the loss by the c model
outputs of n rows; [[g]] is its encryption under the active party's public key. A passive party has only columns, and a
model part with p parameters; J is the derivative of its outputs by these parameters. It learns the gradient J^T g and
nothing else about g. This generalizes the encrypted gradients of Hardy et al. 2017 and of section 5 of FedBCD 2019 to
any J. An exchange is one residual with all requests about it. An opening is the decryption of one product:

0. active -> passive   public key            a new one in every epoch, if the encryption scheme requires that
1. active -> passive   [[g]]                 in pieces, so that the passive party multiplies one piece while the active
                                             party encrypts the next
2. passive -> active   [[J^T g + r]]         r is a random blinding, so that the active party decrypts uniform noise;
                                             the ciphertext is re-randomised, so that it does not reveal J
3. active -> passive   J^T g + r             decrypted, with check values
   passive             subtracts r; raises a ProtocolError unless the check values match
4. passive -> active   a message that it sends no more requests about one exchange, or about all

Comments refer to these steps by number. `SealedResidual` documents who learns what, also if a party deviates. The
engine is the encryption scheme. A defence is noise or rounding of g. In a local step, a passive party updates its
weights with a residual that it has received before.
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

# statistical distance between the decrypted values of a run and values that reveal only gradients: at most 2^-40
MAX_DISTANCE_BITS = 40


class ResidualKey(Message, frozen=True):
    """The active party's public key for all following exchanges (step 0)."""

    key: bytes


class ResidualCiphertext(Message, frozen=True):
    """A piece of the encrypted residual [[g]] of an exchange (step 1)."""

    exchange: int
    ciphertext: bytes
    last: bool = True


class BlindedProduct(Message, frozen=True):
    """The encrypted, blinded product [[J^T g + r]] for the residual g of an exchange (step 2)."""

    exchange: int
    ciphertext: bytes


class OpenedProduct(DisclosingMessage, frozen=True):
    """The decrypted product J^T g + r with check values (step 3). Under CKKS, its lowest bits contain added noise."""

    exchange: int
    values: bytes


class ResidualClosed(Message, frozen=True):
    """The sender sends no more requests about this exchange, or about any exchange if None (step 4)."""

    exchange: int | None


class SealedResidual(Encrypted, ResidualProtocol):
    """The protocol with encrypted residuals. A `defence` with bounded noise may change residuals before encryption.

    The gradient is p linear equations about the n * c numbers of g. The equations are the same in every epoch as long
    as J and the division into batches are the same (assumption A2 of FedBCD). If J depends on the weights, steps 2 and
    3 are repeated in every local step, otherwise they run once (FedBCD eq. 57). If the optimizer gives rows different
    weights in local steps, steps 2 and 3 run in every local step, so that their number reveals nothing. If the weights
    have not changed, the passive party then sends the previous product with a new r.

    The active party answers step 2 in a background thread, for exchanges in any order. A passive party may use a
    residual later, repeatedly, or in another thread, while later exchanges continue. A key exists as long as one of its
    exchanges is open. An exchange is open to a passive party until the party has used its openings (`Agreement`) or
    closes it (step 4). A party that has more than `max_open_exchanges` open exchanges closes the oldest one. The active
    party rejects requests about closed exchanges, and waits before it publishes to a party that has more than
    `max_open_exchanges` open ones.

    A malicious active party may encrypt any g. It also decrypts secret combinations of J's columns as check values. If
    it changes the result, the check values do not match, except with probability 2^-20 (docs/proof.md).

    A malicious passive party obtains at most the agreed number of openings per residual. Each opening has at most one
    value for each of its declared columns, and their check values, because with the identity matrix for J it could
    otherwise learn g of every row. It can still choose the equations, for example to read the residuals of some rows.
    Under CKKS, it can also send a ciphertext that is not a product; each decrypted value then reveals 12 of the 4,096
    ternary coefficients of the secret key. After about 350 values it knows the key of the epoch, and so every g of the
    epoch. Under Paillier such a ciphertext reveals numbers about g, but not the key.
    """

    name: ClassVar[str] = "sealed"
    engine: AnyEngine
    """The encryption scheme."""
    defence: AnyDefence | None = None
    """Noise or rounding of g before encryption: gaussian or rounding."""

    def model_post_init(self, context: object) -> None:
        """Reject a defence whose noise has no bound, because encryption needs a bound of g."""
        if self.defence is not None:
            self.defence.output_bound(1.0)

    def active(self, context: PartyContext, agreement: Agreement) -> ActiveResidual:
        """Create the object by which the active party takes part in the protocol."""
        return SealedActive(context, self.linear(context), agreement, self.defence)

    def passive(self, context: PartyContext, agreement: Agreement) -> PassiveResidual:
        """Create the object by which a passive party takes part in the protocol."""
        return SealedPassive(context, self.linear(context), agreement)

    def declares(self) -> list[MessageDeclaration]:
        """Declare sender, receiver and disclosure of each message."""
        return [
            MessageDeclaration(ResidualKey, ACTIVE, PASSIVE, Reveal("public"), renewed=True),
            MessageDeclaration(ResidualCiphertext, ACTIVE, PASSIVE, Reveal("ciphertext", ACTIVE)),
            MessageDeclaration(BlindedProduct, PASSIVE, ACTIVE, Reveal("uniform")),
            MessageDeclaration(
                OpenedProduct, ACTIVE, PASSIVE, Reveal("output", "the receiver's parameter gradient J^T g")
            ),
            MessageDeclaration(ResidualClosed, PASSIVE, ACTIVE, Reveal("public")),
        ]

    @classmethod
    def variants(cls) -> dict[str, Self]:
        """Return one protocol for each variant of each engine; see `MessageProtocol.variants`."""
        return {name: cls(engine=engine) for kind in ENGINES.values() for name, engine in kind.variants().items()}

    @property
    def strength(self) -> str:
        """The cryptographic assumption and the key length of the engine, as one line of text."""
        return self.engine.scheme().strength

    def openings(self, values: int, epochs: int, *, columns: int, once: int = 0) -> str:
        """Describe how little decrypted values reveal in addition to gradients; see `ResidualProtocol.openings`."""
        scheme = self.engine.scheme()
        opened, checks = values - (-once // epochs) + columns * scheme.checks, columns * scheme.checks * epochs
        run = scheme.distance_bits(opened * epochs)
        key = scheme.distance_bits(opened) if scheme.rotates else run
        text = (
            f"a run decrypts at most {values * epochs + once:,} values and {checks:,} check values, within statistical "
            f"distance 2^-{run:.1f} of values that reveal only J^T g (2^-{key:.1f} per key, "
            f"2^-{scheme.distance_bits(1):.1f} per value)"
        )
        if run >= MAX_DISTANCE_BITS:
            return text
        return f"{text}; the target is 2^-{MAX_DISTANCE_BITS}: use fewer epochs or larger batches"

    def counted_bits(self, rows: int, counts: int, word: int) -> int:
        """Return the number of bits that class counts reveal; see `ResidualProtocol.counted_bits`."""
        return self.engine.scheme().opened_bits(rows, counts, word)

    @property
    def label(self) -> str:
        """The name of the engine, which names this protocol in cost tables."""
        return self.engine.name

    @property
    def seals(self) -> bool:
        """Whether passive parties cannot read the residual: always True, because it is encrypted."""
        return True


def _subchannels(context: PartyContext) -> tuple[str, str]:
    """Return the subchannel for keys and residuals (steps 0 and 1), and the one for requests (steps 2 to 4)."""
    return f"{context.subchannel}/residual", f"{context.subchannel}/opening"


class SealedActive(ActiveResidual):
    """The role of the active party, which encrypts residuals and decrypts products.

    A background thread answers requests until all passive parties have closed, or until the channel fails.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        scheme: the encryption scheme of g and of the products with it.
        agreement: the largest number of gradients per residual, and the format of g in messages.
        defence: noise or rounding that is applied to g before encryption, if any.
    """

    def __init__(
        self, context: PartyContext, scheme: LinearScheme, agreement: Agreement, defence: Defence | None
    ) -> None:
        self._context = context
        self._scheme = scheme
        self._agreement = agreement
        self._defence = defence
        self._noise = Noise(context.noise_key, context.subchannel, context.residuals_sent)
        self._bound = context.residual_bound if defence is None else defence.output_bound(context.residual_bound)
        self._residuals, self._requests = _subchannels(context)
        self._columns = max(context.parameters.values(), default=0) // (
            context.outputs if agreement.shares_outputs else 1
        )
        self._holder = self._key()
        self._epoch: int | None = None
        self._have_key: set[str] = set()
        self._exchanges = Exchanges(context, agreement)
        self._server = BackgroundTask(context.channel, self._serve, "openings")

    def publish(self, g: Floats, *, epoch: int, to: Collection[str], resend_of: Release | None = None) -> None:
        """Encrypt g and send it; see `ActiveResidual.publish`."""
        if self._scheme.rotates and self._epoch not in (None, epoch):
            self._holder, self._have_key = self._key(), set()
        self._epoch = epoch
        if self._defence is not None:
            g = self._defence.apply(g, self._noise.take(None if resend_of is None else resend_of.number))
        matrix = self._agreement.facing(g)
        pieces = self._holder.encrypt_pieces(matrix, bound=self._bound)
        first = next(pieces)
        shape = matrix.shape[0], matrix.shape[1]
        used = 0 if resend_of is None else resend_of.used
        exchange = self._exchanges.begin(self._holder, to, shape, self._server.join, used=used)
        for passive in to:
            if passive not in self._have_key:
                self._context.channel.send(passive, ResidualKey(self._holder.public), self._residuals)  # step 0
                self._have_key.add(passive)
        for piece, last in chain((first,), pieces):
            for passive in to:
                # step 1
                self._context.channel.send(passive, ResidualCiphertext(exchange, piece, last), self._residuals)

    def _key(self) -> KeyHolder:
        return self._scheme.keygen(columns=self._columns, openings=self._agreement.openings)

    def close(self) -> None:
        """Wait until all passive parties have closed. Raise TransportError if they do not close in time."""
        timeout = self._context.channel.timeout
        if not self._server.join(timeout):
            late = ", ".join(sorted(self._exchanges.asking))
            raise TransportError(
                f"{self._context.me}: {late} has not reported that it needs no more gradients: this party has "
                f"waited {timeout:g} s after the last residual",
                code="SVFL-PEER-AWAY",
            )

    def _serve(self) -> None:
        channel, subchannel, exchanges = self._context.channel, self._requests, self._exchanges
        try:
            while asking := exchanges.asking:
                sender, message = channel.recv_any(
                    asking, (BlindedProduct, ResidualClosed), subchannel, timeout=threading.TIMEOUT_MAX
                )
                if isinstance(message, BlindedProduct):
                    spent = exchanges.spend(sender, message.exchange)
                    shape = self._shape(sender, spent)
                    record = self._agreement.record(sender, self._context.parameters[sender], channel.me)
                    permit = channel.permit(replace(record, max_bytes=self._scheme.opened_size(shape)))
                    values = self._open_one(sender, spent, message.ciphertext, shape)  # step 2
                    del spent  # drop the last reference, because a key must be deleted when its last exchange is closed
                    channel.send(sender, OpenedProduct(message.exchange, values), subchannel, permit=permit)  # step 3
                elif isinstance(message, ResidualClosed):
                    exchanges.forget(sender, message.exchange)  # step 4
        finally:
            exchanges.served()

    def _shape(self, passive: str, exchange: Exchange) -> OpeningShape:
        """Return the shape of the products that are decrypted for a party, from the size of its part of the model."""
        rows, outputs = exchange.shape
        return OpeningShape(rows, outputs, self._context.parameters[passive] // outputs, self._agreement.word)

    def _open_one(self, passive: str, exchange: Exchange, blinded: bytes, shape: OpeningShape) -> bytes:
        """Decrypt a product. Raise ProtocolError before decrypting if it has more values than the party's gradient."""
        try:
            return exchange.holder.open(blinded, shape)
        except ShapeMismatch as error:
            raise ProtocolError(
                f"{passive} requested a product that is not its gradient ({error.problem})",
                "ask this party for the reason",
                code="SVFL-PROTOCOL-CHEATING",
                party=passive,
            ) from error


class SealedPassive(PassiveResidual):
    """The role of a passive party, which multiplies encrypted residuals by its J.

    It computes one product, and requests one opening, at a time.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        scheme: the encryption scheme of g and of the products with it.
        agreement: the largest number of gradients per residual, and the format of g in messages.
    """

    def __init__(self, context: PartyContext, scheme: LinearScheme, agreement: Agreement) -> None:
        super().__init__(context)
        self.agreement = agreement
        self.me = context.me
        self._context = context
        self._scheme = scheme
        self._residuals, self._requests = _subchannels(context)
        self._evaluator: Evaluator | None = None
        self._latest: Pieces | None = None  # the ciphertext [[g]] of the latest exchange
        self.products: dict[int, Any] = {}  # the latest product [[J^T g]] of each open exchange
        self._replies: deque[SealedReply] = deque()
        self._cache = BatchCache()
        self._product_lock, self._request_lock = threading.Lock(), threading.Lock()

    def receive(self) -> Reply:
        """Receive the next residual; see `PassiveResidual.reply`."""
        channel, active = self._context.channel, self._context.active
        if self._latest is not None:
            self._latest.wait()
        message = channel.recv_any((active,), (ResidualKey, ResidualCiphertext), self._residuals)[1]
        if isinstance(message, ResidualKey):
            self._evaluator = self._scheme.evaluator(message.key)  # step 0
            message = channel.recv(active, ResidualCiphertext, self._residuals)
        assert isinstance(message, ResidualCiphertext)
        if self._evaluator is None:
            raise ProtocolError(
                f"{self.me}: {active} sent a residual before its key", code="SVFL-PROTOCOL-MESSAGE", party=active
            )
        exchange, again = message.exchange, self.agreement.openings > 1
        more = partial(self._next, exchange)
        self._latest = Pieces((message.ciphertext, message.last), more, again=again)  # step 1
        reply = SealedReply(self, exchange, self._latest, self._evaluator)
        self._replies.append(reply)
        if len(self._replies) > self.agreement.max_open_exchanges:
            self._replies.popleft().close()
        return reply

    def _next(self, exchange: int) -> Piece:
        """Receive the next piece of an exchange, and whether it is the last one."""
        message = self._context.channel.recv(self._context.active, ResidualCiphertext, self._residuals)
        if message.exchange != exchange:
            active = self._context.active
            raise ProtocolError(
                f"{self.me}: {active} sent a piece of encrypted residual {message.exchange} before residual "
                f"{exchange} was complete",
                code="SVFL-PROTOCOL-MESSAGE",
                party=active,
            )
        return message.ciphertext, message.last

    def gradient(
        self, exchange: int, sealed: Iterable[bytes], evaluator: Evaluator, model: Differentiable, batch: Batch
    ) -> Floats:
        """Compute the gradient of one exchange by steps 2 and 3.

        Args:
            exchange: number of the exchange.
            sealed: the pieces of [[g]].
            evaluator: computes on ciphertexts under the active party's public key.
            model: this party's part of the model.
            batch: the data of one batch of rows at this party: columns, and targets if it has labels.

        Returns:
            The gradient J^T g in the shape of the model's parameters.

        Raises:
            ProtocolError: if the check values do not match.
        """
        static = model.static_jacobian
        with self._product_lock:
            prepared = self._cache.get(batch.index) if static else None
            if prepared is None:
                J = self.agreement.matrix(model.jacobian(batch.X), self.me)
                prepared = evaluator.prepare(J, max_bytes=self._cache.free_bytes if static else 0)
            product = self.products[exchange] = product_of(evaluator, prepared, sealed)
            blinded, r = evaluator.blind(product)
            self._context.meter.add_worker_seconds(batch.worker_seconds)
            if static:
                self._cache.put(batch.index, prepared)
        opened = self.ask_to_open(exchange, blinded)
        try:
            product = evaluator.unblind(opened, r, self.agreement.word)
        except OpeningMismatch as error:
            raise ProtocolError(
                f"{self.me}: the values that {self._context.active} decrypted in exchange {exchange} do not match "
                "their "
                f"check values ({error.problem})",
                code="SVFL-PROTOCOL-CHEATING",
                party=self._context.active,
            ) from error
        return self.agreement.gradient(product)

    def ask_to_open(self, exchange: int, blinded: bytes) -> bytes:
        """Send a blinded product to the active party, and return its decryption."""
        channel, active = self._context.channel, self._context.active
        with self._request_lock:
            channel.send(active, BlindedProduct(exchange, blinded), self._requests)  # step 2
            opened = channel.recv(active, OpenedProduct, self._requests)  # step 3
        if opened.exchange != exchange:
            raise ProtocolError(
                f"{self.me}: {active} answered a request about exchange {exchange} with exchange {opened.exchange}",
                code="SVFL-PROTOCOL-MESSAGE",
                party=active,
            )
        return opened.values

    def end(self, exchange: int | None) -> None:
        """Tell the active party that this party sends no more requests about an exchange (step 4); None for all."""
        with self._request_lock:
            self._context.channel.send(self._context.active, ResidualClosed(exchange), self._requests)  # step 4

    def close(self) -> None:
        """Tell the active party that this party sends no more requests."""
        self.end(None)


def product_of(evaluator: Evaluator, prepared: Any, sealed: Iterable[bytes]) -> Any:
    """Return the encrypted product [[J^T g]], computed piece by piece as the pieces of [[g]] arrive."""
    product = None
    for piece in sealed:
        evaluator.encode(prepared, piece, product)
        product = evaluator.transpose_product(prepared, piece, product)
    return product


class SealedReply(Reply):
    """An encrypted residual at a passive party. The gradient is stored for later calls if J never changes.

    Args:
        residual: the party's role.
        exchange: number of the exchange.
        sealed: the pieces of [[g]].
        evaluator: computes on ciphertexts under the active party's public key.
    """

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
        """Return the gradient J^T g; see `Reply.gradient`."""
        with self._lock:
            if self._gradient is None or not model.static_jacobian:
                self._spend()
                self._gradient = self._residual.gradient(self.exchange, self._sealed, self._evaluator, model, batch)
            return self._gradient

    def repeat(self) -> None:
        """Request the latest product again, with a new blinding; see `Reply.repeat`."""
        with self._lock:
            self._spend()
            self._residual.ask_to_open(self.exchange, self._evaluator.blind(self._residual.products[self.exchange])[0])

    def close(self) -> None:
        """Close the exchange; see `Reply.close`."""
        with self._lock:
            if self._left and not self._closed:
                self._residual.end(self.exchange)
            self._closed = True
            self._residual.products.pop(self.exchange, None)
            self._sealed.forget()

    def _spend(self) -> None:
        agreement, me = self._residual.agreement, self._residual.me
        if self._closed:
            raise LimitError(
                f"{me}: residual number {self.exchange} cannot be used any more, because the parties agreed on at "
                f"most {agreement.max_open_exchanges} residuals in use at a time",
                "use a residual before newer ones arrive",
                code="SVFL-PROTOCOL-LIMIT",
            )
        if not self._left:
            raise LimitError(
                f"{me}: this party already received the {agreement.openings} gradients of residual number "
                f"{self.exchange} that the parties agreed on",
                code="SVFL-PROTOCOL-LIMIT",
            )
        self._left -= 1

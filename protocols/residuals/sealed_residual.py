"""Sealed residual: the active party sends g encrypted; a passive party learns J^T g and nothing else about g.

Generalises the encrypted gradients of Hardy et al. 2017 and FedBCD 2019 section 5 to any J.

0. active -> passive   public key            a new one in every epoch, if the engine asks for that
1. active -> passive   [[g]]                 an exchange, numbered; in pieces, so that the passive party multiplies one
                                             piece while the active party encrypts the next
2. passive -> active   [[J^T g + r]]         blinded by r and re-randomised: uniform for the key holder
3. active -> passive   J^T g + r             decrypted, with check values
   passive             subtracts r; raises a ProtocolError unless the check values match
4. passive -> active   the end of its requests about one exchange, or about all

The active party decrypts uniform noise. A passive party learns its gradient: p linear equations about the n c numbers
of g, the same equations in every epoch as long as J and the partition into batches are the same (assumption A2 of
FedBCD). Steps 2 and 3 are repeated in every local step if J depends on the weights, otherwise they run once (FedBCD eq.
57). If local steps weigh rows, steps 2 and 3 run in every local step, so that their number reveals nothing. When the
weights have not changed, the passive party sends the previous product with fresh blinding.

The active party serves step 2 in a background thread, for exchanges in any order. A passive party may store a reply and
use it later, repeatedly, or in another thread, while later exchanges continue. A key exists as long as an exchange
under it is open. An exchange is open to a passive party until the party has used its openings (`Agreement`) or closes
it (step 4). A party that holds more than `max_open_exchanges` replies closes the oldest. The active party rejects
further requests, and waits before it publishes to a party that has more than `max_open_exchanges` open exchanges.

A malicious active party may encrypt any g. The engine decrypts secret combinations of J's columns as check values, so a
modified result is detected except with probability 2^-20 (docs/proof.md).

A malicious passive party obtains at most the agreed number of openings per residual, each with no more values than its
declared columns and their check values. With the identity for J it would otherwise learn g of every row. It can choose
the equations, for example the residuals of some rows. Under CKKS, a ciphertext that is not a product makes the key
holder reveal parts of the secret key, 12 of its 4,096 ternary coefficients per value. The key of an epoch, and with it
every [[g]] of the epoch, is then known after about 350 values. Under Paillier such a ciphertext reveals numbers about g
and not the key.
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

MAX_DISTANCE_BITS = 40  # statistical distance 2^-40 of a run's openings from openings that reveal only J^T g


class ResidualKey(Message, frozen=True):
    """The active party's public key for the following exchanges."""

    key: bytes


class ResidualCiphertext(Message, frozen=True):
    """A piece of [[g]] of an exchange."""

    exchange: int
    ciphertext: bytes
    last: bool = True


class BlindedProduct(Message, frozen=True):
    """[[J^T g + r]] for the g of an exchange."""

    exchange: int
    ciphertext: bytes


class OpenedProduct(DisclosingMessage, frozen=True):
    """The decrypted J^T g + r with check values; low bits are dithered if the engine needs that."""

    exchange: int
    values: bytes


class ResidualClosed(Message, frozen=True):
    """The end of the sender's requests about this exchange, or about all exchanges if None."""

    exchange: int | None


class SealedResidual(Encrypted, ResidualProtocol):
    """Residuals encrypted by an engine; a bounded `defence` may add noise before encryption."""

    name: ClassVar[str] = "sealed"
    engine: AnyEngine
    """The encryption scheme."""
    defence: AnyDefence | None = None
    """Noise or rounding of g before encryption: gaussian or rounding."""

    def model_post_init(self, context: object) -> None:
        """Check that the defence is bounded."""
        if self.defence is not None:
            self.defence.output_bound(1.0)

    def active(self, context: PartyContext, agreement: Agreement) -> ActiveResidual:
        """Create the active party's role."""
        return SealedActive(context, self.linear(context), agreement, self.defence)

    def passive(self, context: PartyContext, agreement: Agreement) -> PassiveResidual:
        """Create a passive party's role."""
        return SealedPassive(context, self.linear(context), agreement)

    def declares(self) -> list[MessageDeclaration]:
        """Declare what each message reveals."""
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
        """Return one residual for each variant of each engine; see `MessageProtocol.variants`."""
        return {name: cls(engine=engine) for kind in ENGINES.values() for name, engine in kind.variants().items()}

    @property
    def strength(self) -> str:
        """Cryptographic assumption and key length of the engine."""
        return self.engine.scheme().strength

    def openings(self, values: int, epochs: int, *, columns: int, once: int = 0) -> str:
        """Describe the statistical distance of decrypted values; see `ResidualProtocol.openings`."""
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
        """Return the bits that class counts reveal; see `ResidualProtocol.counted_bits`."""
        return self.engine.scheme().opened_bits(rows, counts, word)

    @property
    def label(self) -> str:
        """Name of the engine."""
        return self.engine.name

    @property
    def seals(self) -> bool:
        """True: passive parties do not see g."""
        return True


def _subchannels(context: PartyContext) -> tuple[str, str]:
    """Return the subchannel of [[g]] (steps 0 and 1), and the one of requests (steps 2 to 4)."""
    return f"{context.subchannel}/residual", f"{context.subchannel}/opening"


class SealedActive(ActiveResidual):
    """The active party's role. Its serving thread runs until all passive parties have closed or the channel fails.

    Args:
        context: the party's context.
        scheme: the encryption scheme.
        agreement: what the parties agreed on.
        defence: noise or rounding for g, if any.
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
                self._context.channel.send(passive, ResidualKey(self._holder.public), self._residuals)  # 0
                self._have_key.add(passive)
        for piece, last in chain((first,), pieces):
            for passive in to:
                self._context.channel.send(passive, ResidualCiphertext(exchange, piece, last), self._residuals)  # 1

    def _key(self) -> KeyHolder:
        return self._scheme.keygen(columns=self._columns, openings=self._agreement.openings)

    def close(self) -> None:
        """Wait until all passive parties have closed. Raise TransportError if they do not close in time."""
        timeout = self._context.channel.timeout
        if not self._server.join(timeout):
            late = ", ".join(sorted(self._exchanges.asking))
            raise TransportError(
                f"{self._context.me}: {late} has not closed within {timeout:g} s after the last residual",
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
                    values = self._open_one(sender, spent, message.ciphertext, shape)  # 2
                    del spent  # a key must not outlive its last exchange
                    channel.send(sender, OpenedProduct(message.exchange, values), subchannel, permit=permit)  # 3
                elif isinstance(message, ResidualClosed):
                    exchanges.forget(sender, message.exchange)  # 4
        finally:
            exchanges.served()

    def _shape(self, passive: str, exchange: Exchange) -> OpeningShape:
        """Return the shape of the products that are decrypted for a party: as many columns as its model part has."""
        rows, outputs = exchange.shape
        return OpeningShape(rows, outputs, self._context.parameters[passive] // outputs, self._agreement.word)

    def _open_one(self, passive: str, exchange: Exchange, blinded: bytes, shape: OpeningShape) -> bytes:
        """Decrypt a product. Raise ProtocolError, without decrypting, if it is wider than the party's model part."""
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
    """The role of a passive party, which has J. It computes one product, and requests one opening, at a time.

    Args:
        context: the party's context.
        scheme: the encryption scheme.
        agreement: what the parties agreed on.
    """

    def __init__(self, context: PartyContext, scheme: LinearScheme, agreement: Agreement) -> None:
        super().__init__(context)
        self.agreement = agreement
        self.me = context.me
        self._context = context
        self._scheme = scheme
        self._residuals, self._requests = _subchannels(context)
        self._evaluator: Evaluator | None = None
        self._latest: Pieces | None = None  # ciphertext of the latest exchange
        self.products: dict[int, Any] = {}  # the latest [[J^T g]] of each open exchange
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
            self._evaluator = self._scheme.evaluator(message.key)  # 0
            message = channel.recv(active, ResidualCiphertext, self._residuals)
        assert isinstance(message, ResidualCiphertext)
        if self._evaluator is None:
            raise ProtocolError(
                f"{self.me}: {active} sent a residual before its key", code="SVFL-PROTOCOL-MESSAGE", party=active
            )
        exchange, again = message.exchange, self.agreement.openings > 1
        more = partial(self._next, exchange)
        self._latest = Pieces((message.ciphertext, message.last), more, again=again)  # 1
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
                f"{self.me}: {active} sent a piece of exchange {message.exchange} before exchange {exchange} was "
                "complete",
                code="SVFL-PROTOCOL-MESSAGE",
                party=active,
            )
        return message.ciphertext, message.last

    def gradient(
        self, exchange: int, sealed: Iterable[bytes], evaluator: Evaluator, model: Differentiable, batch: Batch
    ) -> Floats:
        """Run steps 2 and 3.

        Args:
            exchange: number of the exchange.
            sealed: the pieces of [[g]].
            evaluator: computes with the active party's public key.
            model: this party's model.
            batch: the batch.

        Returns:
            J^T g in the shape of the model's parameters.

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
            channel.send(active, BlindedProduct(exchange, blinded), self._requests)  # 2
            opened = channel.recv(active, OpenedProduct, self._requests)  # 3
        if opened.exchange != exchange:
            raise ProtocolError(
                f"{self.me}: {active} answered a request about exchange {exchange} with exchange {opened.exchange}",
                code="SVFL-PROTOCOL-MESSAGE",
                party=active,
            )
        return opened.values

    def end(self, exchange: int | None) -> None:
        """Send the end of requests (step 4); see `ResidualClosed`."""
        with self._request_lock:
            self._context.channel.send(self._context.active, ResidualClosed(exchange), self._requests)  # 4

    def close(self) -> None:
        """Send the end of all requests."""
        self.end(None)


def product_of(evaluator: Evaluator, prepared: Any, sealed: Iterable[bytes]) -> Any:
    """Return [[J^T g]], computed piece by piece as [[g]] arrives."""
    product = None
    for piece in sealed:
        evaluator.encode(prepared, piece, product)
        product = evaluator.transpose_product(prepared, piece, product)
    return product


class SealedReply(Reply):
    """An encrypted residual at a passive party. J^T g is stored if J is independent of the weights.

    Args:
        residual: the party's role.
        exchange: number of the exchange.
        sealed: the pieces of [[g]].
        evaluator: computes with the active party's public key.
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
        """Return J^T g; see `Reply.gradient`."""
        with self._lock:
            if self._gradient is None or not model.static_jacobian:
                self._spend()
                self._gradient = self._residual.gradient(self.exchange, self._sealed, self._evaluator, model, batch)
            return self._gradient

    def repeat(self) -> None:
        """Request the decryption of the latest product with fresh blinding; see `Reply.repeat`."""
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
                f"{me}: exchange {self.exchange} is closed; at most {agreement.max_open_exchanges} exchanges are open "
                "at a "
                "time",
                "use a reply before newer ones arrive",
                code="SVFL-PROTOCOL-LIMIT",
            )
        if not self._left:
            raise LimitError(
                f"{me}: all {agreement.openings} agreed gradients of exchange {self.exchange} are used",
                code="SVFL-PROTOCOL-LIMIT",
            )
        self._left -= 1

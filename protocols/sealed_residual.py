"""Sealed residual: g under the active party's key; a passive party learns J^T g and nothing else.

Generalises the encrypted gradients of Hardy et al. 2017 and FedBCD 2019 section 5 to any J.

0. active -> passive   public key            anew every epoch where the engine asks for it
1. active -> passive   [[g]]                 ciphertexts under the active party's key
2. passive -> active   [[J^T g + r]]         blinded by r, re-randomised: uniform to the key holder
3. active -> passive   J^T g + r             opened
   passive             subtracts r

The active party opens uniform noise. A passive party learns its own parameter gradient: p equations about the n c
numbers of g, the same ones every epoch while J and the partition into batches stay (FedBCD's assumption A2).
Steps 2 and 3 are repeated for every local step when J moves with the weights, once when it does not (FedBCD eq. 57).

A passive party that deviates gets at most what was agreed opened, so many times a residual and no more values than the
columns it declared: with the identity for J it would read every row's g. Which p equations these are stays its choice:
the residuals of p rows, say. Under CKKS a ciphertext that is no product at all has parts of the secret key opened
instead, 12 of its 4,096 ternary coefficients a value, so that the key of an epoch, and with it every [[g]] of the
epoch, is taken in some 350 values. Under Paillier it has numbers about g opened and not the key.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from securevfl.codec import Message
from securevfl.crypto.prg import Prg
from securevfl.crypto.scheme import Evaluator, Floats, KeyHolder, LinearScheme, Shape
from securevfl.errors import ProtocolError, ShapeMismatch
from securevfl.protocols.base import (
    ActiveResidual,
    Batch,
    Declared,
    Differentiable,
    PassiveResidual,
    Reply,
    ResidualProtocol,
    Reveal,
    Seat,
)
from securevfl.protocols.defences import AnyDefence, Defence
from securevfl.protocols.engines import AnyEngine

DISTANCE = 40  # bits: how far the openings of a run should at most be from ones that tell J^T g alone
KEPT = 1 << 30  # bytes of prepared batches that a passive party keeps


class PublicKey(Message, frozen=True):
    """The active party's key."""

    key: bytes


class SealedG(Message, frozen=True):
    """[[g]]."""

    ciphertext: bytes


class Blinded(Message, frozen=True):
    """[[J^T g + r]]."""

    ciphertext: bytes


class Opened(Message, frozen=True):
    """J^T g + r, low bits dithered where the engine needs it."""

    values: bytes


class SealedResidual(ResidualProtocol):
    """g under encryption, by the engine named; blurred before by a `defence` that bounds it, if any."""

    name: ClassVar[str] = "sealed"
    engine: AnyEngine
    defence: AnyDefence | None = None

    def model_post_init(self, context: object) -> None:
        if self.defence is not None:
            self.defence.reach(1.0)

    def active(self, seat: Seat) -> ActiveResidual:
        return SealedActive(seat, seat.meter.linear(self.engine.scheme()), self.defence)

    def passive(self, seat: Seat) -> PassiveResidual:
        return SealedPassive(seat, seat.meter.linear(self.engine.scheme()))

    def declares(self) -> list[Declared]:
        return [
            Declared(PublicKey, "active", "passive", Reveal("public")),
            Declared(SealedG, "active", "passive", Reveal("ciphertext", "active")),
            Declared(Blinded, "passive", "active", Reveal("uniform")),
            Declared(Opened, "active", "passive", Reveal("output", "the receiver's own parameter gradient J^T g")),
        ]

    @property
    def strength(self) -> str:
        return self.engine.scheme().strength

    def openings(self, values: int, epochs: int) -> str:
        scheme = self.engine.scheme()
        run = scheme.distance_bits(values * epochs)
        key = scheme.distance_bits(values) if scheme.rotates else run
        text = (
            f"{values * epochs:,} values in a run, within 2^-{run:.1f} of openings that tell J^T g alone "
            f"(2^-{key:.1f} a key, 2^-{scheme.distance_bits(1):.1f} a value)"
        )
        return text if run >= DISTANCE else f"{text}; 2^-{DISTANCE} is meant, so use fewer epochs or larger batches"

    @property
    def seals(self) -> bool:
        return True


class SealedActive(ActiveResidual):
    def __init__(self, seat: Seat, scheme: LinearScheme, defence: Defence | None) -> None:
        self._seat = seat
        self._scheme = scheme
        self._defence = defence
        self._prg = Prg.fresh("defence of a sealed residual")
        self._bound = seat.residual_bound if defence is None else defence.reach(seat.residual_bound)
        self._holder: KeyHolder = scheme.keygen()
        self._epoch = 0
        self._told: set[str] = set()
        self._owed: dict[str, int] = {}
        self._shape = (0, 0)  # rows and outputs of the residual last published

    def publish(self, g: Floats, *, epoch: int, to: Collection[str]) -> None:
        self.settle()
        if self._scheme.rotates and epoch != self._epoch:
            self._holder, self._epoch, self._told = self._scheme.keygen(), epoch, set()
        if self._defence is not None:
            g = self._defence.apply(g, self._prg)
        ciphertext = self._holder.encrypt(g, bound=self._bound)
        self._shape = (g.shape[0], g.shape[1])
        for passive in to:
            if passive not in self._told:
                self._seat.channel.send(passive, PublicKey(self._holder.public))  # 0
                self._told.add(passive)
            self._seat.channel.send(passive, SealedG(ciphertext))  # 1
            self._owed[passive] = self._seat.openings[passive]

    def settle(self) -> None:
        owed, self._owed = self._owed, {}
        for turn in range(max(owed.values(), default=0)):
            for passive in (name for name, count in owed.items() if count > turn):
                blinded = self._seat.channel.recv(passive, Blinded)  # 2
                self._seat.channel.send(passive, Opened(self._open(passive, blinded)))  # 3

    def _open(self, passive: str, blinded: Blinded) -> bytes:
        """ProtocolError, before anything is opened, if it is wider than the party's part of the model."""
        try:
            return self._holder.open(blinded.ciphertext, Shape(*self._shape, self._seat.widths[passive]))
        except ShapeMismatch as error:
            raise ProtocolError(f"{passive} asks for another product than its gradient: {error}; ask it why") from error


class Shelf:
    """Prepared batches, as many as fit in `KEPT` bytes: those that came first, for good.

    Every epoch asks for each batch once, in a new random order. A share f of the batches kept for good serves a share
    f of the asks; the share f used last would serve f + (1 - f) ln(1 - f), half the square of it where f is small.
    """

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}
        self._bytes: dict[int, int] = {}
        self._total = 0

    def get(self, batch: int) -> Any | None:
        return self._held.get(batch)

    def put(self, batch: int, prepared: Any) -> None:
        """Keeps it if there is room; one that has grown may have to go."""
        self._total += prepared.nbytes - self._bytes.get(batch, 0)
        self._held[batch], self._bytes[batch] = prepared, prepared.nbytes
        if self._total > KEPT:
            del self._held[batch]
            self._total -= self._bytes.pop(batch)


class SealedPassive(PassiveResidual):
    def __init__(self, seat: Seat, scheme: LinearScheme) -> None:
        self._seat = seat
        self._scheme = scheme
        self._evaluator: Evaluator | None = None
        self._epoch = 0
        self._shelf = Shelf()

    def reply(self, *, epoch: int) -> Reply:
        channel, active = self._seat.channel, self._seat.active
        if self._evaluator is None or (self._scheme.rotates and epoch != self._epoch):
            self._evaluator = self._scheme.evaluator(channel.recv(active, PublicKey).key)  # 0
            self._epoch = epoch
        return SealedReply(self, channel.recv(active, SealedG).ciphertext)  # 1

    def gradient(self, sealed: bytes, model: Differentiable, batch: Batch) -> Floats:
        """Steps 2 and 3 for one J."""
        assert self._evaluator is not None
        prepared = self._shelf.get(batch.index) if model.static_jacobian else None
        if prepared is None:
            prepared = self._evaluator.prepare(model.jacobian(batch.X))
        blinded, r = self._evaluator.blind(self._evaluator.transpose_product(prepared, sealed))
        if model.static_jacobian:
            self._shelf.put(batch.index, prepared)
        self._seat.channel.send(self._seat.active, Blinded(blinded))  # 2
        opened = self._seat.channel.recv(self._seat.active, Opened)  # 3
        return self._evaluator.unblind(opened.values, r)


class SealedReply(Reply):
    """[[g]] with the way to use it. J^T g is kept where J does not move."""

    def __init__(self, residual: SealedPassive, sealed: bytes) -> None:
        self._residual = residual
        self._sealed = sealed
        self._gradient: Floats | None = None

    def gradient(self, model: Differentiable, batch: Batch) -> Floats:
        if self._gradient is None or not model.static_jacobian:
            self._gradient = self._residual.gradient(self._sealed, model, batch)
        return self._gradient

"""Runs that keep what every role received, beside what went into the protocol.

A `Witness` stands at each party's side of a protocol: it notes what the party put in and what came out, which no
message shows. The checker holds messages against both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr, SerializeAsAny

from securevfl.base.arrays import Floats
from securevfl.base.roles import Roles
from securevfl.protocols.declared import Declared, Phases, Release, Space
from securevfl.protocols.differentiable import Differentiable, Jacobian
from securevfl.protocols.residuals.base import (
    ActiveResidual,
    Agreement,
    Batch,
    PassiveResidual,
    Reply,
    ResidualProtocol,
)
from securevfl.protocols.seat import Seat
from securevfl.protocols.sums.base import SumProtocol, SumRole
from securevfl.runtime.channel import Event
from securevfl.runtime.codec import Message

COLLECTS = "A"  # the party that collects, and publishes residuals, where one protocol runs alone


class GradientSeen(NamedTuple):
    """A gradient that a passive party learned of an exchange on a lane: J^T g for this J."""

    lane: str
    exchange: int
    J: Jacobian
    gradient: Floats


class Cast(NamedTuple):
    """A sum's seat as its parties took it: its lane, who plays which part, and what its messages reveal."""

    lane: str
    roles: Roles
    declared: list[Declared]

    def carries(self, lane: str, *names: str) -> bool:
        """Whether a lane is its own, or one below, and these are of its parties."""
        return (lane == self.lane or lane.startswith(f"{self.lane}/")) and set(names) <= set(self.roles.parties)


@dataclass
class WitnessedParts:
    """What went into the sums of one collector, by party, and what it collected, in order."""

    parts: dict[str, list[NDArray[Any]]] = field(default_factory=lambda: defaultdict(list))
    spaces: list[Space] = field(default_factory=list)
    totals: list[NDArray[Any]] = field(default_factory=list)


@dataclass
class Witness:
    """What went in and came out, by party, in order. residuals: g as it goes down, after a defence; clear: before.

    sums, casts: by collector, of whom there are several where several parties hold labels. before: how many residuals
    went before the first one on a lane.
    """

    sums: dict[str, WitnessedParts] = field(default_factory=dict)
    casts: dict[str, Cast] = field(default_factory=dict)
    residuals: dict[str, list[tuple[Floats, tuple[str, ...]]]] = field(default_factory=lambda: defaultdict(list))
    clear: dict[str, list[Floats]] = field(default_factory=lambda: defaultdict(list))
    gradients: dict[str, list[GradientSeen]] = field(default_factory=lambda: defaultdict(list))
    sessions: set[bytes] = field(default_factory=set)
    epochs: set[int] = field(default_factory=set)
    before: dict[str, int] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, list[NDArray[Any]]]:
        """What each party has put into anyone's sums."""
        every: dict[str, list[NDArray[Any]]] = defaultdict(list)
        for summed in self.sums.values():
            for name, parts in summed.parts.items():
                every[name] += parts
        return every

    @property
    def spaces(self) -> list[Space]:
        """The spaces of numbers in which all sums of the run were computed."""
        return [space for summed in self.sums.values() for space in summed.spaces]

    def blurred(self, name: str) -> Callable[[Floats], None]:
        """Return a function that notes what a defence has made of the g that this party has just published."""

        def note(g: Floats) -> None:
            clear, to = self.residuals[name][-1]
            self.clear[name].append(clear)
            self.residuals[name][-1] = g, to

        return note


@dataclass(frozen=True)
class Transcript:
    """One run. `declared`: what its messages are said to reveal, in these roles. `secrets`: what none may show.

    rotates: keys change with the epoch. defended: a defence stands before every residual.
    """

    events: list[Event]
    roles: Roles
    declared: list[Declared]
    witness: Witness
    secrets: dict[str, NDArray[Any]] = field(default_factory=dict)
    rotates: bool = False
    defended: bool = False

    @property
    def received(self) -> list[Event]:
        """Every message as its receiver saw it."""
        return [event for event in self.events if event.direction == "recv"]

    def declaration(self, event: Event) -> Declared | None:
        """Return what is declared of a received message, first by the sum on its lane; None if nothing is."""
        casts = [cast for cast in self.witness.casts.values() if cast.carries(event.lane, event.me, event.peer)]
        for roles, declared in [*((cast.roles, cast.declared) for cast in casts), (self.roles, self.declared)]:
            for item in declared:
                between = item.sender in roles.plays(event.peer) and item.receiver in roles.plays(event.me)
                if between and item.message is type(event.message):
                    return item
        return None

    def role(self, name: str, lane: str) -> str:
        """Return the role of a party in the sum on a lane, or in the run."""
        casts = [cast.roles for cast in self.witness.casts.values() if cast.carries(lane, name)]
        return [*casts, self.roles][0].role(name)

    def missed(self, name: str) -> Iterator[tuple[GradientSeen, Floats]]:
        """Each gradient that a party learned, and how far it is from J^T g."""
        for learned in self.witness.gradients[name]:
            first = self.witness.before[learned.lane]
            g, _ = self.witness.residuals[self.roles.lead][first + learned.exchange]
            yield learned, learned.gradient - learned.J.vjp(g)

    def messages(self) -> list[Message]:
        return [event.message for event in self.received]


W = TypeVar("W", "WitnessedSum", "WitnessedResidual")


def witnessed(kind: type[W], inner: Any, witness: Witness) -> W:
    """Return a protocol with this witness at every seat."""
    protocol = kind(inner=inner)
    protocol._witness = witness
    return protocol


class WitnessedSum(SumProtocol):
    """Another sum with a witness at every seat."""

    name: ClassVar[str] = "witnessed"
    inner: SerializeAsAny[SumProtocol]
    _witness: Witness = PrivateAttr(default_factory=Witness)

    def role(self, seat: Seat) -> SumRole:
        self._witness.sessions.add(seat.channel.session)
        summed = self._witness.sums.setdefault(seat.collector, WitnessedParts())
        self._witness.casts[seat.collector] = Cast(seat.lane, seat.roles, self.inner.declares(seat.contributors))
        return WitnessedRole(self.inner.role(seat), seat.me, summed)

    def declares(self, passives: Sequence[str]) -> list[Declared]:
        return self.inner.declares(passives)

    def coalitions(self, parties: Sequence[str]) -> dict[str, frozenset[str]]:
        return self.inner.coalitions(parties)

    @property
    def hides_parts(self) -> bool:
        return self.inner.hides_parts


class WitnessedRole(SumRole):
    def __init__(self, inner: SumRole, me: str, summed: WitnessedParts) -> None:
        self._inner, self._me, self._summed = inner, me, summed

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        self._summed.parts[self._me].append(np.array(values))
        self._inner.contribute(values, space)

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        total = self._inner.collect(shape, space)
        self._summed.spaces.append(space)
        self._summed.totals.append(np.array(total))
        return total


class WitnessedResidual(ResidualProtocol):
    """Another residual with a witness at every seat."""

    name: ClassVar[str] = "witnessed"
    inner: SerializeAsAny[ResidualProtocol]
    _witness: Witness = PrivateAttr(default_factory=Witness)

    def active(self, seat: Seat, agreement: Agreement) -> ActiveResidual:
        self._witness.before[seat.lane] = len(self._witness.residuals[seat.me])
        return WitnessedActive(self.inner.active(seat, agreement), seat.me, self._witness)

    def passive(self, seat: Seat, agreement: Agreement) -> PassiveResidual:
        return WitnessedPassive(self.inner.passive(seat, agreement), seat, self._witness)

    def declares(self) -> list[Declared]:
        return self.inner.declares()

    @property
    def strength(self) -> str:
        return self.inner.strength

    def counted_bits(self, rows: int, counts: int, word: int) -> int:
        return self.inner.counted_bits(rows, counts, word)

    @property
    def seals(self) -> bool:
        return self.inner.seals


class WitnessedActive(ActiveResidual):
    def __init__(self, inner: ActiveResidual, me: str, witness: Witness) -> None:
        self._inner, self._me, self._witness = inner, me, witness

    def publish(self, g: Floats, *, epoch: int, to: Collection[str], again: Release | None = None) -> None:
        self._witness.residuals[self._me].append((np.array(g), tuple(to)))
        self._witness.epochs.add(epoch)
        self._inner.publish(g, epoch=epoch, to=to, again=again)

    def close(self) -> None:
        self._inner.close()


class WitnessedPassive(PassiveResidual):
    def __init__(self, inner: PassiveResidual, seat: Seat, witness: Witness) -> None:
        super().__init__(seat)
        self._inner, self._witness = inner, witness

    def receive(self) -> Reply:
        return WitnessedReply(self._inner.receive(), self.seat, self._witness)

    def close(self) -> None:
        self._inner.close()


class WitnessedReply(Reply):
    def __init__(self, inner: Reply, seat: Seat, witness: Witness) -> None:
        self._inner, self._seat, self._witness = inner, seat, witness
        self.exchange = inner.exchange
        self._last: GradientSeen | None = None

    def gradient(self, model: Differentiable, batch: Batch) -> Floats:
        gradient = self._inner.gradient(model, batch)
        if self._last is None or not model.static_jacobian:
            self._last = GradientSeen(self._seat.lane, self.exchange, model.jacobian(batch.X), np.array(gradient))
            self._witness.gradients[self._seat.me].append(self._last)
        return gradient

    def repeat(self) -> None:
        assert self._last is not None, "it has asked before"
        self._inner.repeat()
        self._witness.gradients[self._seat.me].append(self._last)

    def close(self) -> None:
        self._inner.close()

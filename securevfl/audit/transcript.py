"""Runs that keep what every role received, beside what went into the protocol.

A `Witness` stands at each party's side of a protocol: it notes what the party put in and what came out, which no
message shows. The checker holds messages against both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr, SerializeAsAny

from securevfl.audit.defended import defence_of, noting
from securevfl.channel import Channel, Event
from securevfl.clock import WallClock
from securevfl.codec import Message
from securevfl.costs import Meter
from securevfl.crypto.scheme import Floats
from securevfl.job import Job, Protocol
from securevfl.party import Party, check_parties
from securevfl.protocols.base import (
    ActiveResidual,
    Batch,
    Coalition,
    Declared,
    Differentiable,
    PassiveResidual,
    Phases,
    Reply,
    ResidualProtocol,
    Seat,
    Space,
    SumProtocol,
    SumRole,
)
from securevfl.protocols.no_residual import NoResidual
from securevfl.run import Run
from securevfl.simulate import simulate
from securevfl.transport.threads import run_threads


def worker_of(lane: str) -> str | None:
    """Whose sums of phases a lane carries (`protocols.phase_sums`); None if it is another."""
    return lane.removeprefix("to ").split("/")[0] if lane.startswith("to ") else None


@dataclass
class Summed:
    """What went into the sums of one collector, by party, and what it collected, in order."""

    parts: dict[str, list[NDArray[Any]]] = field(default_factory=lambda: defaultdict(list))
    spaces: list[Space] = field(default_factory=list)
    totals: list[NDArray[Any]] = field(default_factory=list)


@dataclass
class Witness:
    """What went in and came out, by party, in order. residuals: g as it goes down, after a defence; clear: before.

    sums: by collector, of whom there are several where several parties hold labels.
    """

    sums: dict[str, Summed] = field(default_factory=dict)
    residuals: dict[str, list[tuple[Floats, tuple[str, ...]]]] = field(default_factory=lambda: defaultdict(list))
    clear: dict[str, list[Floats]] = field(default_factory=lambda: defaultdict(list))
    gradients: dict[str, list[tuple[Floats, Floats]]] = field(default_factory=lambda: defaultdict(list))
    sessions: set[bytes] = field(default_factory=set)
    epochs: set[int] = field(default_factory=set)

    @property
    def parts(self) -> dict[str, list[NDArray[Any]]]:
        """What each party has put into anyone's sums."""
        found: dict[str, list[NDArray[Any]]] = defaultdict(list)
        for summed in self.sums.values():
            for name, parts in summed.parts.items():
                found[name] += parts
        return found

    @property
    def spaces(self) -> list[Space]:
        """The spaces of all sums."""
        return [space for summed in self.sums.values() for space in summed.spaces]

    def blurred(self, name: str) -> Callable[[Floats], None]:
        """Notes what a defence has made of the g that this party has just published."""

        def note(g: Floats) -> None:
            clear, to = self.residuals[name][-1]
            self.clear[name].append(clear)
            self.residuals[name][-1] = g, to

        return note


@dataclass(frozen=True)
class Transcript:
    """One run. `roles` by party in the session, `declared` what its messages reveal, `secrets` what none may show.

    rotates: keys change with the epoch. defended: a defence stands before every residual.
    """

    events: list[Event]
    roles: dict[str, str]
    declared: list[Declared]
    witness: Witness
    secrets: dict[str, NDArray[Any]] = field(default_factory=dict)
    rotates: bool = False
    defended: bool = False

    @property
    def received(self) -> list[Event]:
        """Every message as its receiver saw it."""
        return [event for event in self.events if event.direction == "recv"]

    @property
    def passives(self) -> list[str]:
        return [name for name, role in self.roles.items() if role == "passive"]

    def role(self, name: str, lane: str) -> str:
        """The party's role on a lane: on that of a worker's sums the worker is the active party."""
        worker = worker_of(lane)
        return self.roles[name] if worker not in self.roles else "active" if name == worker else "passive"

    def declaration(self, event: Event) -> Declared | None:
        """What is declared of a received message; None if nothing is."""
        roles = self.role(event.peer, event.lane), self.role(event.me, event.lane)
        for item in self.declared:
            if item.message is type(event.message) and (item.sender, item.receiver) == roles:
                return item
        return None

    def messages(self) -> list[Message]:
        return [event.message for event in self.received]


class WitnessedSum(SumProtocol):
    """Another sum with a witness at every seat."""

    name: ClassVar[str] = "witnessed"
    inner: SerializeAsAny[SumProtocol]
    _witness: Witness = PrivateAttr(default_factory=Witness)

    def role(self, seat: Seat) -> SumRole:
        self._witness.sessions.add(seat.channel.session)
        summed = self._witness.sums.setdefault(seat.active, Summed())
        return WitnessedRole(self.inner.role(seat), seat.me, summed)

    def declares(self, passives: Sequence[str]) -> list[Declared]:
        return self.inner.declares(passives)

    def coalitions(self, parties: Sequence[str]) -> dict[str, Coalition]:
        return self.inner.coalitions(parties)

    @property
    def hides_parts(self) -> bool:
        return self.inner.hides_parts


class WitnessedRole(SumRole):
    def __init__(self, inner: SumRole, me: str, summed: Summed) -> None:
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

    def active(self, seat: Seat) -> ActiveResidual:
        return WitnessedActive(self.inner.active(seat), seat.me, self._witness)

    def passive(self, seat: Seat) -> PassiveResidual:
        return WitnessedPassive(self.inner.passive(seat), seat.me, self._witness)

    def declares(self) -> list[Declared]:
        return self.inner.declares()

    @property
    def strength(self) -> str:
        return self.inner.strength

    @property
    def seals(self) -> bool:
        return self.inner.seals


class WitnessedActive(ActiveResidual):
    def __init__(self, inner: ActiveResidual, me: str, witness: Witness) -> None:
        self._inner, self._me, self._witness = inner, me, witness

    def publish(self, g: Floats, *, epoch: int, to: Collection[str]) -> None:
        self._witness.residuals[self._me].append((np.array(g), tuple(to)))
        self._witness.epochs.add(epoch)
        self._inner.publish(g, epoch=epoch, to=to)

    def settle(self) -> None:
        self._inner.settle()


class WitnessedPassive(PassiveResidual):
    def __init__(self, inner: PassiveResidual, me: str, witness: Witness) -> None:
        self._inner, self._me, self._witness = inner, me, witness

    def reply(self, *, epoch: int) -> Reply:
        return WitnessedReply(self._inner.reply(epoch=epoch), self._me, self._witness)


class WitnessedReply(Reply):
    def __init__(self, inner: Reply, me: str, witness: Witness) -> None:
        self._inner, self._me, self._witness = inner, me, witness
        self._noted = False

    def gradient(self, model: Differentiable, batch: Batch) -> Floats:
        gradient = self._inner.gradient(model, batch)
        if not self._noted:
            self._witness.gradients[self._me].append((model.jacobian(batch.X), np.array(gradient)))
            self._noted = True
        return gradient


def record(job: Job, parties: Sequence[Party]) -> tuple[Transcript, Run]:
    """Runs the job with all parties in this process, and keeps everything that anyone receives.

    Raises what `simulate` raises. Heavy calls run in this process.
    """
    from securevfl.audit.declarations import declared_of

    active, passives = check_parties(parties, several_active=job.optimizer.several_active)
    names = [party.name for party in passives]
    witness = Witness()
    sums = WitnessedSum(inner=job.protocol.sum_for(len(passives)))
    sums._witness = witness
    residual = job.protocol.residual
    if not isinstance(residual, NoResidual):
        watched = WitnessedResidual(inner=noting(residual, witness.blurred(active.name)))
        watched._witness, residual = witness, watched
    own = job.model_copy(update={"protocol": Protocol(sum=sums, residual=residual)})
    events: list[Event] = []
    run = simulate(own, parties, workers=1, observe=events.append)
    roles = {active.name: "active"} | dict.fromkeys(names, "passive")
    secrets: dict[str, NDArray[Any]] = {f"the columns of {party.name}": party.X for party in parties}
    transcript = Transcript(
        events,
        roles,
        declared_of(job, names),
        witness,
        secrets,
        rotates=_rotates(job.protocol.residual),
        defended=defence_of(job.protocol.residual) is not None,
    )
    return transcript, Run(job, run.parts)


def _rotates(residual: ResidualProtocol) -> bool:
    engine = getattr(residual, "engine", None)
    return bool(engine is not None and engine.scheme().rotates)


def record_sum(sums: SumProtocol, rounds: Sequence[Mapping[str, NDArray[Any]]], space: Space) -> Transcript:
    """One sum protocol alone: in round t passive party k contributes rounds[t][k]; party "active" collects."""
    passives = tuple(rounds[0])
    shape = rounds[0][passives[0]].shape
    witness = Witness()
    watched = WitnessedSum(inner=sums)
    watched._witness = witness

    def seat(channel: Channel) -> Seat:
        meter = Meter(channel.clock, channel.ledger)
        return Seat(channel=channel, active="active", passives=passives, meter=meter)

    def collect(channel: Channel) -> None:
        role = watched.role(seat(channel))
        for _ in rounds:
            role.collect(shape, space)

    def contribute(channel: Channel) -> None:
        role = watched.role(seat(channel))
        for parts in rounds:
            role.contribute(parts[channel.me], space)

    events: list[Event] = []
    roles: dict[str, Callable[[Channel], None]] = {"active": collect, **dict.fromkeys(passives, contribute)}
    run_threads(roles, WallClock, timeout=60.0, observe=events.append)
    kinds = {"active": "active"} | dict.fromkeys(passives, "passive")
    return Transcript(events, kinds, sums.declares(passives), witness)


class FixedJacobian:
    """A model whose Jacobian is what it is handed."""

    static_jacobian = True

    def vjp(self, X: Floats, g: Floats) -> Floats:
        gradient: Floats = X.T @ g
        return gradient

    def jacobian(self, X: Floats) -> Floats:
        return X


def record_residual(
    residual: ResidualProtocol, residuals: Sequence[Floats], jacobians: Mapping[str, Sequence[Floats]], *, epochs: int
) -> Transcript:
    """One residual protocol alone: every epoch the active party publishes each g (n x c), |g| <= 1, in turn.

    jacobians: for every passive party one J (n x d) for each g.
    """
    passives = tuple(jacobians)
    outputs = residuals[0].shape[1]
    witness = Witness()
    watched = WitnessedResidual(inner=noting(residual, witness.blurred("active")))
    watched._witness = witness

    def seat(channel: Channel) -> Seat:
        witness.sessions.add(channel.session)
        return Seat(
            channel=channel,
            active="active",
            passives=passives,
            meter=Meter(channel.clock, channel.ledger),
            outputs=outputs,
            openings=dict.fromkeys(passives, 1),
            widths={name: J[0].shape[1] for name, J in jacobians.items()},
        )

    def publish(channel: Channel) -> None:
        role = watched.active(seat(channel))
        for epoch in range(epochs):
            for g in residuals:
                role.publish(g, epoch=epoch, to=passives)
        role.settle()

    def ask(channel: Channel) -> None:
        role = watched.passive(seat(channel))
        for epoch in range(epochs):
            for index, J in enumerate(jacobians[channel.me]):
                role.reply(epoch=epoch).gradient(FixedJacobian(), Batch(index, epoch, J))

    events: list[Event] = []
    roles: dict[str, Callable[[Channel], None]] = {"active": publish, **dict.fromkeys(passives, ask)}
    run_threads(roles, WallClock, timeout=60.0, observe=events.append)
    kinds = {"active": "active"} | dict.fromkeys(passives, "passive")
    return Transcript(
        events,
        kinds,
        residual.declares(),
        witness,
        rotates=_rotates(residual),
        defended=defence_of(residual) is not None,
    )

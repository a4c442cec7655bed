"""Runs that keep what every role received, beside what went into the protocol.

A `Witness` stands at each party's side of a protocol: it notes what the party put in and what came out, which no
message shows. The checker holds messages against both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr, SerializeAsAny

from securevfl.audit.recording.defended import defence_of, noting
from securevfl.crypto.scheme import Floats
from securevfl.data.party import Party, check_parties, register_of
from securevfl.job import Job
from securevfl.methods.declared import declared_of
from securevfl.protocols.base import (
    ActiveResidual,
    Agreement,
    Batch,
    Coalition,
    Declared,
    PassiveResidual,
    Phases,
    Reply,
    ResidualProtocol,
    Seat,
    Space,
    SumProtocol,
    SumRole,
)
from securevfl.protocols.differentiable import Differentiable, FixedJacobian, Jacobian
from securevfl.roles import CONTRIBUTOR, Roles
from securevfl.runtime.channel import Channel, Event
from securevfl.runtime.clock import WallClock
from securevfl.runtime.codec import Message
from securevfl.runtime.meter import Meter
from securevfl.runtime.threads import run_threads
from securevfl.training.run import Run
from securevfl.training.simulate import simulate

COLLECTS = "A"  # the party that collects, and publishes residuals, where one protocol runs alone


class Learned(NamedTuple):
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
class Summed:
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

    sums: dict[str, Summed] = field(default_factory=dict)
    casts: dict[str, Cast] = field(default_factory=dict)
    residuals: dict[str, list[tuple[Floats, tuple[str, ...]]]] = field(default_factory=lambda: defaultdict(list))
    clear: dict[str, list[Floats]] = field(default_factory=lambda: defaultdict(list))
    gradients: dict[str, list[Learned]] = field(default_factory=lambda: defaultdict(list))
    sessions: set[bytes] = field(default_factory=set)
    epochs: set[int] = field(default_factory=set)
    before: dict[str, int] = field(default_factory=dict)

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
        """What is declared of a received message, first by the sum on its lane; None if nothing is."""
        casts = [cast for cast in self.witness.casts.values() if cast.carries(event.lane, event.me, event.peer)]
        for roles, declared in [*((cast.roles, cast.declared) for cast in casts), (self.roles, self.declared)]:
            for item in declared:
                between = item.sender in roles.plays(event.peer) and item.receiver in roles.plays(event.me)
                if between and item.message is type(event.message):
                    return item
        return None

    def role(self, name: str, lane: str) -> str:
        """What a party is in the sum on a lane, or in the run."""
        casts = [cast.roles for cast in self.witness.casts.values() if cast.carries(lane, name)]
        return [*casts, self.roles][0].role(name)

    def missed(self, name: str) -> Iterator[tuple[Learned, Floats]]:
        """Each gradient that a party learned, and how far it is from J^T g."""
        for learned in self.witness.gradients[name]:
            first = self.witness.before[learned.lane]
            g, _ = self.witness.residuals[self.roles.lead][first + learned.exchange]
            yield learned, learned.gradient - learned.J.vjp(g)

    def messages(self) -> list[Message]:
        return [event.message for event in self.received]


class WitnessedSum(SumProtocol):
    """Another sum with a witness at every seat."""

    name: ClassVar[str] = "witnessed"
    inner: SerializeAsAny[SumProtocol]
    _witness: Witness = PrivateAttr(default_factory=Witness)

    def role(self, seat: Seat) -> SumRole:
        self._witness.sessions.add(seat.channel.session)
        summed = self._witness.sums.setdefault(seat.collector, Summed())
        self._witness.casts[seat.collector] = Cast(seat.lane, seat.roles, self.inner.declares(seat.contributors))
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

    @property
    def seals(self) -> bool:
        return self.inner.seals


class WitnessedActive(ActiveResidual):
    def __init__(self, inner: ActiveResidual, me: str, witness: Witness) -> None:
        self._inner, self._me, self._witness = inner, me, witness

    def publish(self, g: Floats, *, epoch: int, to: Collection[str], again: int | None = None) -> None:
        self._witness.residuals[self._me].append((np.array(g), tuple(to)))
        self._witness.epochs.add(epoch)
        self._inner.publish(g, epoch=epoch, to=to, again=again)

    def close(self) -> None:
        self._inner.close()


class WitnessedPassive(PassiveResidual):
    def __init__(self, inner: PassiveResidual, seat: Seat, witness: Witness) -> None:
        self._inner, self._seat, self._witness = inner, seat, witness

    def reply(self) -> Reply:
        return WitnessedReply(self._inner.reply(), self._seat, self._witness)

    def close(self) -> None:
        self._inner.close()


class WitnessedReply(Reply):
    def __init__(self, inner: Reply, seat: Seat, witness: Witness) -> None:
        self._inner, self._seat, self._witness = inner, seat, witness
        self.exchange = inner.exchange
        self._last: Learned | None = None

    def gradient(self, model: Differentiable, batch: Batch) -> Floats:
        gradient = self._inner.gradient(model, batch)
        if self._last is None or not model.static_jacobian:
            self._last = Learned(self._seat.lane, self.exchange, model.jacobian(batch.X), np.array(gradient))
            self._witness.gradients[self._seat.me].append(self._last)
        return gradient

    def repeat(self) -> None:
        assert self._last is not None, "it has asked before"
        self._inner.repeat()
        self._witness.gradients[self._seat.me].append(self._last)

    def close(self) -> None:
        self._inner.close()


def record(job: Job, parties: Sequence[Party]) -> tuple[Transcript, Run]:
    """Runs the job with all parties in this process, and keeps everything that anyone receives.

    Raises what `simulate` raises. Heavy calls run in this process.
    """
    lead, others = check_parties(parties)
    roles = job.method.cast([lead, *others])
    roles = job.method.assigned(job, roles, {party.name: len(party.columns) for party in parties})
    witness = Witness()
    sums = WitnessedSum(inner=job.protocol.sum_for(sum(bool(party.columns) for party in others)))
    sums._witness = witness
    residual = job.protocol.residual
    if residual is not None:
        watched = WitnessedResidual(inner=noting(residual, witness.blurred(lead.name)))
        watched._witness, residual = witness, watched
    seen = {"sum": sums, "residual": residual} if job.protocol.method is None else {}
    own = job.model_copy(update={"protocol": job.protocol.model_copy(update=seen)})
    events: list[Event] = []
    run = simulate(own, parties, workers=1, observe=events.append)
    secrets: dict[str, NDArray[Any]] = {f"the columns of {party.name}": party.X for party in parties}
    secrets[f"the labels of {lead.name}"] = _targets(job, lead, others)
    transcript = Transcript(
        events,
        roles,
        declared_of(job.method, job, roles),
        witness,
        secrets,
        rotates=_rotates(job.protocol.residual),
        defended=job.protocol.residual is not None and defence_of(job.protocol.residual) is not None,
    )
    return transcript, Run(job, run.parts)


def _targets(job: Job, lead: Party, others: Sequence[Party]) -> NDArray[Any]:
    """Those of the training rows (m x c), in the order of the schedule."""
    y, loss, rows = np.asarray(lead.y), job.model.loss, job.schedule(register_of([lead, *others])).flow
    return loss.targets(y, loss.classes(y))[rows]


def _rotates(residual: ResidualProtocol | None) -> bool:
    engine = getattr(residual, "engine", None)
    return bool(engine is not None and engine.scheme().rotates)


def record_sum(sums: SumProtocol, rounds: Sequence[Mapping[str, NDArray[Any]]], space: Space) -> Transcript:
    """One sum protocol alone: in round t party k contributes rounds[t][k], and `COLLECTS` collects."""
    cast = Roles.sum(COLLECTS, rounds[0])
    shape = next(iter(rounds[0].values())).shape
    witness = Witness()
    watched = WitnessedSum(inner=sums)
    watched._witness = witness

    def seat(channel: Channel) -> Seat:
        return Seat(channel, cast, Meter(channel.clock, channel.books))

    def collect(channel: Channel) -> None:
        role = watched.role(seat(channel))
        for _ in rounds:
            role.collect(shape, space)

    def contribute(channel: Channel) -> None:
        role = watched.role(seat(channel))
        for parts in rounds:
            role.contribute(parts[channel.me], space)

    events: list[Event] = []
    roles: dict[str, Callable[[Channel], None]] = {COLLECTS: collect, **dict.fromkeys(rounds[0], contribute)}
    run_threads(roles, WallClock, timeout=60.0, observe=events.append)
    return Transcript(events, cast, sums.declares(cast.having(CONTRIBUTOR)), witness)


def record_residual(
    residual: ResidualProtocol, residuals: Sequence[Floats], jacobians: Mapping[str, Sequence[Floats]], *, epochs: int
) -> Transcript:
    """One residual protocol alone: every epoch the active party publishes each g (n x c), |g| <= 1, in turn.

    jacobians: for every passive party one J (n x d) for each g.
    """
    passives = tuple(jacobians)
    cast = Roles.labelled(COLLECTS, passives)
    outputs = residuals[0].shape[1]
    witness = Witness()
    watched = WitnessedResidual(inner=noting(residual, witness.blurred(COLLECTS)))
    watched._witness = witness

    def seat(channel: Channel) -> Seat:
        witness.sessions.add(channel.session)
        return Seat(
            channel=channel,
            roles=cast,
            meter=Meter(channel.clock, channel.books),
            outputs=outputs,
            parameters={name: J[0].shape[1] * outputs for name, J in jacobians.items()},
        )

    def publish(channel: Channel) -> None:
        role = watched.active(seat(channel), Agreement())
        for epoch in range(epochs):
            for g in residuals:
                role.publish(g, epoch=epoch, to=passives)
        role.close()

    def ask(channel: Channel) -> None:
        role = watched.passive(seat(channel), Agreement())
        for epoch in range(epochs):
            for index, J in enumerate(jacobians[channel.me]):
                role.reply().gradient(FixedJacobian(), Batch(index, epoch, J))
        role.close()

    events: list[Event] = []
    roles: dict[str, Callable[[Channel], None]] = {COLLECTS: publish, **dict.fromkeys(passives, ask)}
    run_threads(roles, WallClock, timeout=60.0, observe=events.append)
    return Transcript(
        events,
        cast,
        residual.declares(),
        witness,
        rotates=_rotates(residual),
        defended=defence_of(residual) is not None,
    )

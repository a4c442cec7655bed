"""Runs with a witness at every context: of a whole job, of one sum alone, of one residual alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.recording.party_recording import watched
from securevfl.audit.recording.protocol_record import COLLECTS, ProtocolRecord
from securevfl.audit.recording.recorded_protocols import RecordedResidual, RecordedSum, witnessed
from securevfl.audit.recording.replayed_defence import defence_of, replayed
from securevfl.audit.recording.transcript import Transcript
from securevfl.base.arrays import Floats
from securevfl.base.roles import CONTRIBUTOR, Roles
from securevfl.data.party import Party, check_parties, register_of
from securevfl.families.declarations import run_declarations, run_roles
from securevfl.job import Job
from securevfl.models.class_labels import find_classes
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.differentiable import FixedJacobian
from securevfl.protocols.number_spaces import Space
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import Agreement, Batch, ResidualProtocol
from securevfl.protocols.sums.base import SumProtocol, SumRole
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.observer import Event
from securevfl.runtime.party_threads import run_threads
from securevfl.training.run import Run
from securevfl.training.simulate import simulate


def record_transcript(job: Job, parties: Sequence[Party], executor: Executor | None = None) -> tuple[Transcript, Run]:
    """Run the job with all parties in this process, and keep everything that anyone receives.

    executor: takes the heavy calls; without one they run as they come. Raises what `simulate` raises.
    """
    lead, others = check_parties(parties)
    roles, witness, residual = run_roles(job.family, job, parties), ProtocolRecord(), job.protocol.residual
    seen = None if residual is None else _watched(residual, lead.name, witness)
    events: list[Event] = []
    run = simulate(
        watched(job, parties, witness, seen),
        parties,
        workers=1 if executor is None else None,
        executor=executor,
        observe=events.append,
    )
    secrets: dict[str, NDArray[Any]] = {f"the columns of {party.name}": party.X for party in parties}
    # targets of the training rows (m x c), in the order of the schedule
    y, loss, rows = np.asarray(lead.y), job.model.loss, job.schedule(register_of([lead, *others])).flow
    secrets[f"the labels of {lead.name}"] = loss.targets(
        y[rows], find_classes(lead.name, loss, y if loss.classifies else y[rows], job.positive)
    )
    transcript = _transcript(events, roles, run_declarations(job.family, job, roles), witness, residual, secrets)
    return transcript, Run(job, run.parts)


def _watched(residual: ResidualProtocol, active: str, witness: ProtocolRecord) -> RecordedResidual:
    return witnessed(RecordedResidual, replayed(residual, note=witness.blurred(active)), witness)


def _transcript(
    events: list[Event],
    roles: Roles,
    declared: list[MessageDeclaration],
    witness: ProtocolRecord,
    residual: ResidualProtocol | None,
    secrets: dict[str, NDArray[Any]] | None = None,
) -> Transcript:
    defended = defence_of(residual) is not None
    return Transcript(events, roles, declared, witness, secrets or {}, _rotates(residual), defended)


def _rotates(residual: ResidualProtocol | None) -> bool:
    engine = getattr(residual, "engine", None)
    return bool(engine is not None and engine.scheme().rotates)


def record_sum(
    protocol: SumProtocol, rounds: Sequence[Mapping[str, NDArray[Any]]], space: Space, executor: Executor | None = None
) -> Transcript:
    """One sum protocol alone: in round t party k contributes rounds[t][k], and `COLLECTS` collects."""
    cast, witness = Roles.sum(COLLECTS, rounds[0]), ProtocolRecord()
    shape = next(iter(rounds[0].values())).shape
    sums = witnessed(RecordedSum, protocol, witness)

    def context(channel: Channel) -> SumRole:
        return sums.role(PartyContext(channel, cast, Meter(channel.clock, channel.counters, executor)))

    def collect(channel: Channel) -> None:
        role = context(channel)
        for _ in rounds:
            role.collect(shape, space)

    def contribute(channel: Channel) -> None:
        role = context(channel)
        for parts in rounds:
            role.contribute(parts[channel.me], space)

    events: list[Event] = []
    roles: dict[str, Callable[[Channel], None]] = {COLLECTS: collect, **dict.fromkeys(rounds[0], contribute)}
    run_threads(roles, WallClock, timeout=60.0, observe=events.append)
    return Transcript(events, cast, protocol.declares(cast.with_role(CONTRIBUTOR)), witness)


def record_residual(
    residual: ResidualProtocol,
    residuals: Sequence[Floats],
    jacobians: Mapping[str, Sequence[Floats]],
    *,
    epochs: int,
    executor: Executor | None = None,
) -> Transcript:
    """One residual protocol alone: every epoch the active party publishes each g (n x c), |g| <= 1, in turn.

    jacobians: for every passive party one J (n x d) for each g.
    """
    passives, outputs, witness = tuple(jacobians), residuals[0].shape[1], ProtocolRecord()
    cast = Roles.labelled(COLLECTS, passives)
    protocol = _watched(residual, COLLECTS, witness)

    def context(channel: Channel) -> PartyContext:
        witness.sessions.add(channel.session)
        return PartyContext(
            channel=channel,
            roles=cast,
            meter=Meter(channel.clock, channel.counters, executor),
            outputs=outputs,
            parameters={name: J[0].shape[1] * outputs for name, J in jacobians.items()},
        )

    def publish(channel: Channel) -> None:
        role = protocol.active(context(channel), Agreement())
        for epoch in range(epochs):
            for g in residuals:
                role.publish(g, epoch=epoch, to=passives)
        role.close()

    def ask(channel: Channel) -> None:
        role = protocol.passive(context(channel), Agreement())
        for epoch in range(epochs):
            for index, J in enumerate(jacobians[channel.me]):
                role.reply().gradient(FixedJacobian(), Batch(index, epoch, J))
        role.close()

    events: list[Event] = []
    roles: dict[str, Callable[[Channel], None]] = {COLLECTS: publish, **dict.fromkeys(passives, ask)}
    run_threads(roles, WallClock, timeout=60.0, observe=events.append)
    return _transcript(events, cast, residual.declares(), witness, residual)

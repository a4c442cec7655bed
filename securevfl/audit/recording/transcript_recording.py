"""Transcripts of a whole job, of one sum alone, and of one residual protocol alone.

A residual g is the derivative of the loss by the outputs of the model, J the derivative of a party's outputs by its
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.recording.party_recording import with_recorders
from securevfl.audit.recording.protocol_record import COLLECTS, ProtocolRecord
from securevfl.audit.recording.recorded_protocols import RecordedResidual, RecordedSum, recorded
from securevfl.audit.recording.replayed_defence import defence_of, with_replayed_defence
from securevfl.audit.recording.transcript import Transcript
from securevfl.base.arrays import Floats
from securevfl.base.roles import CONTRIBUTOR, Roles
from securevfl.data.party import Party, check_parties, register_of
from securevfl.families.message_declarations import run_declarations, run_roles
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
    """Run the job with all parties in this process and record all messages.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        parties: the parties with their tables.
        executor: runs the expensive calls; by default they run in the calling thread.

    Returns:
        The transcript, and the result of the run, whose job has no recorders.
    """
    lead, others = check_parties(parties)
    roles, record, residual = run_roles(job.family, job, parties), ProtocolRecord(), job.protocol.residual
    recorded_residual = None if residual is None else _recorded(residual, lead.name, record)
    events: list[Event] = []
    run = simulate(
        with_recorders(job, parties, record, recorded_residual),
        parties,
        workers=1 if executor is None else None,
        executor=executor,
        observe=events.append,
    )
    secrets: dict[str, NDArray[Any]] = {f"the columns of {party.name}": party.X for party in parties}
    # targets of the training rows (m, c), in the order in which batches are read
    y, loss, rows = np.asarray(lead.y), job.model.loss, job.schedule(register_of([lead, *others])).batch_order
    secrets[f"the labels of {lead.name}"] = loss.targets(
        y[rows], find_classes(lead.name, loss, y if loss.classifies else y[rows], job.positive)
    )
    transcript = _transcript(events, roles, run_declarations(job.family, job, roles), record, residual, secrets)
    return transcript, Run(job, run.parts)


def _recorded(residual: ResidualProtocol, active: str, record: ProtocolRecord) -> RecordedResidual:
    """Return a protocol that runs this one and records its gradients, and its residuals before and after a defence."""
    inner = with_replayed_defence(residual, on_outcome=record.defence_recorder(active))
    return recorded(RecordedResidual, inner, record)


def _transcript(
    events: list[Event],
    roles: Roles,
    declared: list[MessageDeclaration],
    record: ProtocolRecord,
    residual: ResidualProtocol | None,
    secrets: dict[str, NDArray[Any]] | None = None,
) -> Transcript:
    defended = defence_of(residual) is not None
    return Transcript(events, roles, declared, record, secrets or {}, _rotates(residual), defended)


def _rotates(residual: ResidualProtocol | None) -> bool:
    engine = getattr(residual, "engine", None)
    return bool(engine is not None and engine.scheme().rotates)


def record_sum(
    protocol: SumProtocol, rounds: Sequence[Mapping[str, NDArray[Any]]], space: Space, executor: Executor | None = None
) -> Transcript:
    """Run one sum protocol alone and return its transcript.

    Args:
        protocol: the sum protocol.
        rounds: the summand of each party, by name, for each round. The party `COLLECTS` collects the totals.
        space: the number space of the sums.
        executor: runs the expensive calls; by default they run in the calling thread.

    Returns:
        The transcript.
    """
    roles, record = Roles.sum(COLLECTS, rounds[0]), ProtocolRecord()
    shape = next(iter(rounds[0].values())).shape
    sums = recorded(RecordedSum, protocol, record)

    def role_of(channel: Channel) -> SumRole:
        return sums.role(PartyContext(channel, roles, Meter(channel.clock, channel.counters, executor)))

    def collect(channel: Channel) -> None:
        role = role_of(channel)
        for _ in rounds:
            role.collect(shape, space)

    def contribute(channel: Channel) -> None:
        role = role_of(channel)
        for parts in rounds:
            role.contribute(parts[channel.me], space)

    events: list[Event] = []
    tasks: dict[str, Callable[[Channel], None]] = {COLLECTS: collect, **dict.fromkeys(rounds[0], contribute)}
    run_threads(tasks, WallClock, timeout=60.0, observe=events.append)
    return Transcript(events, roles, protocol.declares(roles.with_role(CONTRIBUTOR)), record)


def record_residual(
    residual: ResidualProtocol,
    residuals: Sequence[Floats],
    jacobians: Mapping[str, Sequence[Floats]],
    *,
    epochs: int,
    executor: Executor | None = None,
) -> Transcript:
    """Run one residual protocol alone and return its transcript.

    Args:
        residual: the residual protocol.
        residuals: each g (n, c) with |g| <= 1. The party `COLLECTS` publishes all of them in every epoch.
        jacobians: the matrix J (n, d) for each g, by passive party.
        epochs: number of epochs.
        executor: runs the expensive calls; by default they run in the calling thread.

    Returns:
        The transcript.
    """
    passives, outputs, record = tuple(jacobians), residuals[0].shape[1], ProtocolRecord()
    roles = Roles.labelled(COLLECTS, passives)
    protocol = _recorded(residual, COLLECTS, record)

    def context_of(channel: Channel) -> PartyContext:
        record.sessions.add(channel.session)
        return PartyContext(
            channel=channel,
            roles=roles,
            meter=Meter(channel.clock, channel.counters, executor),
            outputs=outputs,
            parameters={name: J[0].shape[1] * outputs for name, J in jacobians.items()},
        )

    def publish(channel: Channel) -> None:
        role = protocol.active(context_of(channel), Agreement())
        for epoch in range(epochs):
            for g in residuals:
                role.publish(g, epoch=epoch, to=passives)
        role.close()

    def ask(channel: Channel) -> None:
        role = protocol.passive(context_of(channel), Agreement())
        for epoch in range(epochs):
            for index, J in enumerate(jacobians[channel.me]):
                role.reply().gradient(FixedJacobian(), Batch(index, epoch, J))
        role.close()

    events: list[Event] = []
    tasks: dict[str, Callable[[Channel], None]] = {COLLECTS: publish, **dict.fromkeys(passives, ask)}
    run_threads(tasks, WallClock, timeout=60.0, observe=events.append)
    return _transcript(events, roles, residual.declares(), record, residual)

"""A recorded run of one stored sum: workers push payloads of different versions and pull sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from securevfl.audit.recording.protocol_record import COLLECTS, ProtocolRecord, SumRecord
from securevfl.audit.recording.transcript import Transcript
from securevfl.base.arrays import Floats
from securevfl.base.roles import COLLECTOR, CONTRIBUTOR, READER, Roles
from securevfl.errors import SecureVFLError
from securevfl.families.fdml.stored_sum import StoredServer, StoredSum, StoredWorker
from securevfl.protocols.declarations import MessageDeclaration, declare_in_roles
from securevfl.protocols.party_context import PartyContext
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.codec import Message
from securevfl.runtime.meter import Meter
from securevfl.runtime.party_threads import run_threads

WORKERS = ("P1", "P2", "P3")


class StoredPush(Message, frozen=True):
    """A payload that the server stores."""

    batch: int
    version: int
    payload: bytes


class StoredTotal(Message, frozen=True):
    """A total, and the version of each worker's part in it."""

    total: bytes
    versions: dict[str, int]


class WorkerStep(NamedTuple):
    """A worker pushes this version of a batch, and pulls if it reads and all have pushed the batch."""

    worker: str
    batch: int
    version: int


class PulledTotal(NamedTuple):
    """The sum that a reader computed from a total (None if it refused), and the correct sum."""

    reader: str
    sum: Floats | None
    truth: Floats


@dataclass(frozen=True)
class StoredRun:
    """The transcript, every pull, what went in, and all sides as they were at the end; the server is `COLLECTS`."""

    transcript: Transcript
    pulled: list[PulledTotal]
    outputs: Mapping[WorkerStep, Floats]
    sides: Mapping[str, StoredWorker | StoredServer]


def steps(batches: int, visits: int) -> list[WorkerStep]:
    """Return steps of workers out of step: in every visit, another one is first and another one omits a batch."""
    taken_steps, version = [], dict.fromkeys(WORKERS, -1)
    for visit in range(visits):
        for batch in range(batches):
            order = WORKERS[visit % 3 :] + WORKERS[: visit % 3]
            for place, worker in enumerate(order):
                if visit == 0 or place < 2 or batch % 2:
                    version[worker] += 1 + place
                    taken_steps.append(WorkerStep(worker, batch, version[worker]))
    return taken_steps


def record_stored(
    stored: StoredSum, outputs: Mapping[WorkerStep, Floats], readers: Sequence[str] = WORKERS
) -> StoredRun:
    """Record one stored sum by running the steps in order. outputs: H (n x c) of every step."""
    cast = Roles.sum(COLLECTS, WORKERS)
    witness = ProtocolRecord()
    summed = witness.sums.setdefault(COLLECTS, SumRecord())
    truths, latest = dict[WorkerStep, Floats](), dict[tuple[str, int], Floats]()
    for step, H in outputs.items():
        summed.parts[step.worker].append(H)
        latest[step.worker, step.batch] = H
        summands = [latest[name, step.batch] for name in WORKERS if (name, step.batch) in latest]
        if len(summands) == len(WORKERS) and step.worker in readers:
            truths[step] = np.sum(summands, axis=0)
    pulled: list[PulledTotal] = []

    def context(channel: Channel) -> PartyContext:
        witness.sessions.add(channel.session)
        return PartyContext(channel, cast, Meter(channel.clock, channel.counters))

    def serve(channel: Channel) -> StoredServer:
        side = stored.server(context(channel), readers)
        pushes: dict[int, dict[str, StoredPush]] = {}
        for step in outputs:
            push = channel.recv(step.worker, StoredPush)
            pushed = pushes.setdefault(push.batch, {})
            pushed[step.worker] = push
            if step in truths:
                total = side.add({name: item.payload for name, item in pushed.items()})
                channel.send(step.worker, StoredTotal(total, {name: item.version for name, item in pushed.items()}))
        return side

    def work(channel: Channel) -> StoredWorker:
        side = stored.worker(context(channel), readers)
        for step, H in outputs.items():
            if step.worker != channel.me:
                continue
            channel.send(COLLECTS, StoredPush(step.batch, step.version, side.conceal(H, step.batch, step.version)))
            if step in truths:
                message = channel.recv(COLLECTS, StoredTotal)
                try:
                    revealed = side.reveal(message.total, message.versions, step.batch, (H.shape[0], H.shape[1]))
                except SecureVFLError:
                    revealed = None
                pulled.append(PulledTotal(channel.me, revealed, truths[step]))
        return side

    events: list[Any] = []
    roles: dict[str, Callable[[Channel], StoredWorker | StoredServer]] = {
        COLLECTS: serve,
        **dict.fromkeys(WORKERS, work),
    }
    sides = run_threads(roles, WallClock, timeout=60.0, observe=events.append)
    declared = [
        *stored.declares(),
        MessageDeclaration(StoredPush, CONTRIBUTOR, COLLECTOR, stored.pushed),
        MessageDeclaration(StoredTotal, COLLECTOR, READER, stored.pulled),
    ]
    declared = declare_in_roles(declared, {READER: (CONTRIBUTOR,)})
    return StoredRun(Transcript(events, cast, declared, witness), pulled, outputs, sides)

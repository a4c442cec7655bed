"""The server of FDML: it stores the latest payload of every worker and batch, and answers pulls.

In each iteration a worker pushes a *payload*, its concealed outputs on a batch, and *pulls* the sum of all workers'
latest payloads of that batch. The *version* of a payload is the iteration in which it was pushed. A pull is answered
only when the slowest worker is close enough behind (`WorkerPace.max_lead`). A *reader* is a worker that receives sums;
others get replies without a sum. Comments name steps of `securevfl.families.fdml.pulls`: 0 is the start, 1 a push, 2
the reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from securevfl.errors import ProtocolError
from securevfl.families.fdml.pulls import PullReply, Push, RestoredOutputs, StartIteration
from securevfl.families.fdml.stored_sum import StoredServer
from securevfl.families.fdml.worker_pace import WorkerPace
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.permits import permit_sizes
from securevfl.runtime.channel import Channel


@dataclass(frozen=True)
class PullObservation:
    """The record, for observers of a run, that a pull was answered.

    Attributes:
        worker: the worker whose pull was answered.
        iteration: the iteration of the pull.
        slowest: the last iteration that all workers had pushed.
        versions: the iteration of each worker's payload in the sum.
    """

    worker: str
    iteration: int
    slowest: int
    versions: Mapping[str, int]


@dataclass
class _WorkerProgress:
    """The state of one worker at the server.

    Attributes:
        pushed: the last iteration that the worker has pushed; -1 before the first.
        answered: the last iteration whose pull was answered; -1 before the first.
        finished: number of iterations that the worker has finished.
        delayed: iterations whose pulls wait for an answer, in order.
    """

    pushed: int = -1
    answered: int = -1
    finished: int = 0
    delayed: deque[int] = field(default_factory=deque)


class PayloadTable:
    """The latest payload of every worker and batch, with its version.

    Args:
        channel: the channel of the party that stores the payloads.
        subchannel: the subchannel of pushes.
        pace: how many iterations workers may be apart.
        workers: the names of the workers.
    """

    def __init__(self, channel: Channel, subchannel: str, pace: WorkerPace, workers: Sequence[str]) -> None:
        self._channel, self._subchannel, self._pace = channel, subchannel, pace
        self.workers = {name: _WorkerProgress() for name in workers}
        self._payloads: dict[str, dict[int, tuple[int, bytes]]] = {name: {} for name in workers}

    @property
    def slowest(self) -> int:
        """The last iteration that all workers have pushed."""
        return min(worker.pushed for worker in self.workers.values())

    def begin(self, name: str) -> None:
        """Receive a worker's first iteration, and its payloads on batches of earlier iterations.

        Args:
            name: name of the worker.

        Raises:
            ProtocolError: if the worker names an iteration or a batch that the schedule does not have.
        """
        iterations = len(self._pace.batches)
        while True:
            _, message = self._channel.recv_any((name,), (RestoredOutputs, StartIteration), self._subchannel)  # step 0
            match message:
                case StartIteration(iteration) if 0 <= iteration <= iterations:
                    worker = self.workers[name]
                    worker.finished, worker.pushed, worker.answered = iteration, iteration - 1, iteration - 1
                    return
                case RestoredOutputs(batch, version, payload) if (
                    0 <= version < iterations and self._pace.batches[version] == batch
                ):
                    self.put(name, batch, version, payload)
                case _:
                    raise ProtocolError(
                        f"{self._channel.me}: {name} names an iteration or a batch that is not in the schedule of "
                        f"{iterations} iterations",
                        "check that both parties run the same job",
                        code="SVFL-PROTOCOL-MESSAGE",
                        peer=name,
                    )

    def put(self, name: str, batch: int, version: int, payload: bytes) -> None:
        """Store a worker's payload of a batch, in place of its earlier one."""
        self._payloads[name][batch] = version, payload

    def take(self, name: str, push: Push) -> int:
        """Store a worker's next push.

        Args:
            name: name of the worker that sent the push.
            push: the worker's message with its payload.

        Returns:
            The iteration of the push.

        Raises:
            ProtocolError: if the message is not the worker's next push.
        """
        worker = self.workers[name]
        t = worker.pushed + 1
        batch = self._pace.batches[t] if t < len(self._pace.batches) else -1
        if (push.iteration, push.batch) != (t, batch) or not worker.finished <= push.finished <= t:
            raise ProtocolError(
                f"{self._channel.me}: {name} pushed iteration {push.iteration} of batch {push.batch} with "
                f"{push.finished} finished iterations; its next push is iteration {t} of batch {batch}",
                "check that both parties run the same job",
                code="SVFL-PROTOCOL-MESSAGE",
                peer=name,
            )
        worker.pushed, worker.finished = t, push.finished
        self.put(name, batch, t, push.payload)
        return t

    def parts(self, batch: int) -> tuple[dict[str, bytes], dict[str, int]]:
        """Return the stored payloads of a batch and their versions, both by worker."""
        entries = {name: payloads[batch] for name, payloads in self._payloads.items() if batch in payloads}
        payloads_by_worker = {name: payload for name, (_, payload) in entries.items()}
        return payloads_by_worker, {name: version for name, (version, _) in entries.items()}


class PullServer:
    """The server's side: it stores the latest payloads of all batches and answers pulls.

    Args:
        context: the server's channel, and the roles of all parties in the sums that it receives.
        pace: how many iterations workers may be apart.
        stored: the object that adds payloads.
        lead: name of the leading party, which has the labels.
        readers: the workers that receive sums.
        needs_all: whether a sum must contain a payload of every worker.
    """

    def __init__(
        self,
        context: PartyContext,
        pace: WorkerPace,
        stored: StoredServer,
        *,
        lead: str,
        readers: Iterable[str],
        needs_all: bool,
    ) -> None:
        self._channel, self._subchannel = context.channel, f"{context.subchannel}/pulls"
        self._pace, self._stored, self._lead = pace, stored, lead
        self._readers, self._needs_all = frozenset(readers), needs_all
        self._payloads = PayloadTable(context.channel, self._subchannel, pace, context.contributors)
        self._workers = self._payloads.workers

    def serve(self) -> Iterator[int]:
        """Answer pulls until the end; yield the number of iterations answered for all workers as it grows."""
        for name in self._workers:
            self._payloads.begin(name)  # step 0
        done = self._answered_iterations
        while done < len(self._pace.batches):
            senders = self._next_senders(done)
            awaited = [name for name in senders if self._pushes_without_residual(name)]
            name, push = self._channel.recv_first(senders, Push, self._subchannel, awaited=awaited)  # step 1
            self._workers[name].delayed.append(self._payloads.take(name, push))
            self._answer()
            while done < self._answered_iterations:
                done += 1
                yield done

    @property
    def _answered_iterations(self) -> int:
        """Number of iterations whose pulls are answered for every worker."""
        return 1 + min(worker.answered for worker in self._workers.values())

    def _next_senders(self, done: int) -> list[str]:
        """Return the workers that can push again without a further reply; `done` iterations are answered for all."""
        senders = []
        for name, worker in self._workers.items():
            t = worker.pushed
            waits_for_others = t >= done and self._pace.meets_after(t)
            if not (waits_for_others or t - worker.answered > self._pace.max_unanswered(t)):
                senders.append(name)
        return senders

    def _pushes_without_residual(self, name: str) -> bool:
        """Whether a worker can push next without first receiving a residual from the leading party."""
        if name in self._readers:
            return True
        t = self._workers[name].pushed
        return self._workers[self._lead].finished > t - self._pace.max_unanswered(t)

    def _answer(self) -> None:
        """Answer all pulls that are not too far ahead and whose batch has all payloads that the sum needs."""
        slowest = self._payloads.slowest
        for name, worker in self._workers.items():
            while worker.delayed and worker.delayed[0] - slowest <= self._pace.max_lead(worker.delayed[0]):
                t = worker.delayed[0]
                parts, stored_versions = self._payloads.parts(self._pace.batches[t])
                if self._needs_all and len(parts) < len(self._workers):
                    break
                worker.delayed.popleft()
                worker.answered = t
                total = self._stored.add(parts) if name in self._readers else b""
                versions = {worker_name: stored_versions.get(worker_name, -1) for worker_name in self._workers}
                finished = self._workers[self._lead].finished
                self._channel.note(PullObservation(name, t, slowest, versions))
                reply = PullReply(t, total, tuple(versions.values()), finished)
                # the workers have recorded in their ledgers what the sum discloses when they pushed
                permit = permit_sizes(self._channel, name)
                self._channel.send(name, reply, self._subchannel, permit=permit)  # step 2

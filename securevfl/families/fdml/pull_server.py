"""The server of FDML: it stores the latest payload of every worker and batch, and answers pulls."""

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
    """A fact for observers: the pull of `worker` for an iteration was answered when the slowest had pushed `slowest`,
    from parts of these versions by worker."""

    worker: str
    iteration: int
    slowest: int
    versions: Mapping[str, int]


@dataclass
class _WorkerProgress:
    """What is known of one: the last iterations pushed and answered, how many it has finished, what is held back."""

    pushed: int = -1
    answered: int = -1
    finished: int = 0
    held: deque[int] = field(default_factory=deque)


class PayloadTable:
    """What each worker has pushed last of each batch, at whoever keeps it: payloads with their versions."""

    def __init__(self, channel: Channel, subchannel: str, pace: WorkerPace, workers: Sequence[str]) -> None:
        self._channel, self._subchannel, self._pace = channel, subchannel, pace
        self.workers = {name: _WorkerProgress() for name in workers}
        self._stored: dict[str, dict[int, tuple[int, bytes]]] = {name: {} for name in workers}

    @property
    def slowest(self) -> int:
        """The last iteration that all have pushed."""
        return min(worker.pushed for worker in self.workers.values())

    def begin(self, name: str) -> None:
        """Step 0 of a worker: take in the iteration that it begins with, and payloads of batches visited before.

        ProtocolError for what this schedule does not have.
        """
        last = len(self._pace.batches)
        while True:
            _, message = self._channel.recv_any((name,), (RestoredOutputs, StartIteration), self._subchannel)  # 0
            match message:
                case StartIteration(iteration) if 0 <= iteration <= last:
                    worker = self.workers[name]
                    worker.finished, worker.pushed, worker.answered = iteration, iteration - 1, iteration - 1
                    return
                case RestoredOutputs(batch, version, payload) if (
                    0 <= version < last and self._pace.batches[version] == batch
                ):
                    self.put(name, batch, version, payload)
                case _:
                    raise ProtocolError(
                        f"{self._channel.me}: {name} was expected to begin within {last} iterations of the schedule, "
                        "it names one or a batch that is none of it; do both run the same job?"
                    )

    def put(self, name: str, batch: int, version: int, payload: bytes) -> None:
        """Keep a worker's payload in place of what it had pushed of this batch."""
        self._stored[name][batch] = version, payload

    def take(self, name: str, push: Push) -> int:
        """Take in a worker's next push, and return its iteration. ProtocolError if it is another."""
        worker = self.workers[name]
        t = worker.pushed + 1
        batch = self._pace.batches[t] if t < len(self._pace.batches) else -1
        if (push.iteration, push.batch) != (t, batch) or not worker.finished <= push.finished <= t:
            raise ProtocolError(
                f"{self._channel.me}: {name} was expected to push iteration {t} of batch {batch}, it pushed "
                f"{push.iteration} of {push.batch}, with {push.finished} finished; do both run the same job?"
            )
        worker.pushed, worker.finished = t, push.finished
        self.put(name, batch, t, push.payload)
        return t

    def parts(self, batch: int) -> tuple[dict[str, bytes], dict[str, int]]:
        """Return the payloads of a batch that have been pushed, by worker, and their versions."""
        parts = {name: own[batch] for name, own in self._stored.items() if batch in own}
        return {name: part for name, (_, part) in parts.items()}, {name: v for name, (v, _) in parts.items()}


class PullServer:
    """The server's side: keeps the latest payloads of all batches (one a worker), and answers."""

    def __init__(
        self,
        context: PartyContext,
        pace: WorkerPace,
        stored: StoredServer,
        *,
        lead: str,
        told: Iterable[str],
        whole: bool,
    ):
        """context: of a sum, whose collector this is. told: who is told sums. whole: sums are of all workers or
        none."""
        self._channel, self._subchannel = context.channel, f"{context.subchannel}/pulls"
        self._pace, self._stored, self._lead, self._told, self._whole = pace, stored, lead, frozenset(told), whole
        self._latest = PayloadTable(context.channel, self._subchannel, pace, context.contributors)
        self._workers = self._latest.workers

    def serve(self) -> Iterator[int]:
        """Serve until all pushes are answered; yield the number of iterations that every worker has finished."""
        for name in self._workers:
            self._latest.begin(name)  # 0
        done = self._through
        while done < len(self._pace.batches):
            senders = self._pushing(done)
            awaited = [name for name in senders if self._waits_for_nobody(name)]
            name, push = self._channel.recv_first(senders, Push, self._subchannel, awaited=awaited)  # 1
            self._workers[name].held.append(self._latest.take(name, push))
            self._answer()
            while done < self._through:
                done += 1
                yield done

    @property
    def _through(self) -> int:
        """How many iterations everyone's pulls are answered of."""
        return 1 + min(worker.answered for worker in self._workers.values())

    def _pushing(self, done: int) -> list[str]:
        """Who pushes next without an answer from here, while all are through with `done` iterations."""
        found = []
        for name, worker in self._workers.items():
            t = worker.pushed
            meets = t >= done and self._pace.pauses(t)  # waits for the others after its last push
            if not (meets or t - worker.answered > self._pace.unanswered(t)):
                found.append(name)
        return found

    def _waits_for_nobody(self, name: str) -> bool:
        """Whether its next push needs no residual either that the leading party may still have to publish."""
        if name in self._told:
            return True
        t = self._workers[name].pushed
        return self._workers[self._lead].finished > t - self._pace.unanswered(t)

    def _answer(self) -> None:
        """Answers all that need not wait: those whose lead is small enough, and have parts of all where they must."""
        slowest = self._latest.slowest
        for name, worker in self._workers.items():
            while worker.held and worker.held[0] - slowest <= self._pace.lead(worker.held[0]):
                t = worker.held[0]
                parts, stored = self._latest.parts(self._pace.batches[t])
                if self._whole and len(parts) < len(self._workers):
                    break
                worker.held.popleft()
                worker.answered = t
                total = self._stored.add(parts) if name in self._told else b""
                versions = {each: stored.get(each, -1) for each in self._workers}
                finished = self._workers[self._lead].finished
                self._channel.note(PullObservation(name, t, slowest, versions))
                permit = permit_sizes(self._channel, name)  # what the total tells, those who pushed have entered
                self._channel.send(
                    name, PullReply(t, total, tuple(versions.values()), finished), self._subchannel, permit=permit
                )  # 2

"""What an attacker holds after a run, and what it would hold had it been given the declared output alone.

A `View` is one party's knowledge: its own columns, the schedule (public), its weights, every message it got, and the
gradients it opened or the sums it collected. `Stage` makes two of them for one job:

real    from the job as it stands, with every byte of the transcript
ideal   from the ideal functionality: the same training with nothing hidden or encrypted, of which the party is handed
        its declared output (own gradients J^T g; sums of the others' parts). In place of messages it gets random bytes
        of the same lengths, which it could have drawn itself

An attack that does better on the real view than on the ideal one has found something in the messages. One that does
well on both has found what the declared output gives away by itself.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.recording.defended import noting
from securevfl.audit.recording.ideal import drawing_from, ideal_job
from securevfl.audit.recording.transcript import Witness, WitnessedSum
from securevfl.crypto.scheme import Floats
from securevfl.data.party import Party, check_parties, register_of
from securevfl.data.schedule import Rows, Schedule
from securevfl.job import Job, Protocol
from securevfl.optim.base import Optimizer
from securevfl.optim.fdskl import FDSKL
from securevfl.privacy.leaks import LEAKS
from securevfl.protocols.base import Batch, Phases, Reply
from securevfl.runtime.channel import Event
from securevfl.runtime.codec import Message
from securevfl.training.run import Run
from securevfl.training.simulate import simulate


@dataclass(frozen=True)
class Opening:
    """A gradient that a party learned: gradient (d x c) = J^T g for its own J (n x d) on batch `index`.

    Where its outputs share no J, J is (n c x p), gradient (p x 1), and g all n c residuals in a column.
    """

    visit: int
    index: int
    J: Floats
    gradient: Floats


@dataclass(frozen=True)
class Total:
    """A sum that the active party collected (n x c), or a part that a passive party gave to one."""

    visit: int
    index: int
    values: Floats


@dataclass(frozen=True)
class PhaseTotal:
    """The sum of the others' phases of block k that a worker learned (n x D, residues modulo 2^bits)."""

    visit: int
    k: int
    bits: int
    phases: Phases


@dataclass(frozen=True)
class Receipt:
    """A message that came during a visit; -1 before the first."""

    visit: int
    message: Message


@dataclass(frozen=True)
class View:
    """One party's knowledge at the end. X (m x d) scaled as in training, theta (d x c), rows of batch `index`.

    key: what its random features are drawn from, if it has any.
    """

    name: str
    X: Floats
    theta: Floats
    outputs: int
    rows: dict[int, Rows]
    visits: tuple[int, ...]
    openings: tuple[Opening, ...]
    totals: tuple[Total, ...]
    receipts: tuple[Receipt, ...]
    events: tuple[Event, ...] = ()
    phases: tuple[PhaseTotal, ...] = ()
    key: bytes = field(default=b"", repr=False)

    def residuals(self) -> list[tuple[Rows, Floats]]:
        """Residuals (n x c) that stand in a message as they are, as numbers or as the bytes of numbers, by visit."""
        found = []
        for receipt in self.receipts:
            if receipt.visit < 0:
                continue
            rows = self.rows[self.visits[receipt.visit]]
            for value in fields(receipt.message):
                numbers = _as_numbers(value, len(rows), self.outputs)
                if numbers is not None:
                    found.append((rows, numbers))
        return found

    def equations(self) -> list[tuple[Rows, Floats, Floats]]:
        """Everything the view says about residuals, linear as it is: (rows, A (k x n), A g (k x c)), by visit."""
        plain = [(rows, np.eye(len(rows)), g) for rows, g in self.residuals()]
        return plain or [(self.rows_of(opened), opened.J.T, opened.gradient) for opened in self.openings]

    def rows_of(self, opened: Opening) -> Rows:
        """The rows that the residuals of an opening belong to, in their order."""
        rows = self.rows[opened.index]
        return np.repeat(rows, len(opened.J) // len(rows))

    def estimates(self) -> list[tuple[Rows, Floats]]:
        """Residuals (n x c) by visit: as read, or the least-norm solution of the equations."""
        plain = self.residuals()
        return plain or [(rows, least_norm(A, b)) for rows, A, b in self.equations()]


def least_norm(A: Floats, b: Floats) -> Floats:
    """The shortest g (n x c) of those nearest to A (k x n) g = b (k x c)."""
    return np.linalg.lstsq(A, b)[0].astype(np.float64)


def fields(message: Message) -> list[Any]:
    """The values in a message, lists opened up."""
    values = [getattr(message, name) for name in message.__struct_fields__]
    return [item for value in values for item in (value if isinstance(value, list | tuple) else [value])]


def _as_numbers(value: Any, n: int, c: int) -> Floats | None:
    """The (n x c) finite numbers of moderate size that the value is or ends in; None for anything else."""
    if isinstance(value, bytes) and len(value) >= 8 * n * c > 0:
        value = np.frombuffer(value[-8 * n * c :], "<f8").reshape(n, c)
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.shape != (n, c):
        return None
    size = np.abs(value)
    plausible = bool(np.isfinite(value).all() and size.max() < 2.0**10 and size[size > 0].min(initial=1.0) > 2.0**-60)
    return value.astype(np.float64) if plausible else None


@dataclass
class Tape:
    """What the recorded parties did, by name. Each party writes from its own threads.

    `sums` holds every part and every sum of the run, those of evaluations too; `trained` the places of the others.
    """

    visits: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    openings: dict[str, list[Opening]] = field(default_factory=lambda: defaultdict(list))
    totals: dict[str, list[Total]] = field(default_factory=lambda: defaultdict(list))
    receipts: dict[str, list[Receipt]] = field(default_factory=lambda: defaultdict(list))
    events: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    phases: dict[str, list[PhaseTotal]] = field(default_factory=lambda: defaultdict(list))
    sums: Witness = field(default_factory=Witness)
    trained: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    blurred: list[Floats] = field(default_factory=list)  # what a defence has made of each g, in order
    lock: threading.Lock = field(default_factory=threading.Lock)

    def evaluated(self, name: str) -> Floats:
        """What this party collected in evaluations, or gave to them, one after the other (rows x c)."""
        every = enumerate(self._summed(name))
        return np.concatenate([values for place, values in every if place not in self.trained[name]])

    def _summed(self, name: str) -> list[Floats]:
        """All that this party collected, or if it never does, gave to sums."""
        return self.sums.sums[name].totals if name in self.sums.sums else self.sums.parts[name]

    def observe(self, event: Event) -> None:
        """For `simulate(observe=...)`."""
        with self.lock:
            self.events[event.me].append(event)
            if event.direction == "recv":
                self.receipts[event.me].append(Receipt(len(self.visits[event.me]) - 1, event.message))

    def began(self, name: str, batch: Batch) -> None:
        with self.lock:
            self.visits[name].append(batch.index)

    def opened(self, name: str, J: Floats, gradient: Floats, index: int) -> None:
        with self.lock:
            self.openings[name].append(Opening(len(self.visits[name]) - 1, index, J, gradient))

    def summed(self, name: str, index: int) -> None:
        """Right after a sum of the training: the last one that this party collected or gave to."""
        with self.lock:
            every = self._summed(name)
            self.trained[name].add(len(every) - 1)
            self.totals[name].append(Total(len(self.visits[name]) - 1, index, every[-1]))

    def learned(self, name: str, k: int, bits: int, phases: Phases) -> None:
        with self.lock:
            self.phases[name].append(PhaseTotal(len(self.visits[name]) - 1, k, bits, phases))


class _Watched:
    """A trainee whose visits are written down. Everything else is its own."""

    def __init__(self, party: Any, tape: Tape, name: str) -> None:
        self._party = party
        self._tape = tape
        self._name = name

    def __getattr__(self, key: str) -> Any:
        return getattr(self._party, key)

    def batches(self, *args: Any, **keys: Any) -> Iterator[Batch]:
        for batch in self._party.batches(*args, **keys):
            self._tape.began(self._name, batch)
            yield batch


class _PhaseTap:
    """Sums of phases that are written down where they end, without the worker's own part."""

    def __init__(self, sums: Any, tape: Tape) -> None:
        self._sums = sums
        self._tape = tape

    def __getattr__(self, key: str) -> Any:
        return getattr(self._sums, key)

    def phases(
        self, worker: str, blocks: int, rows: int, size: int, own: Callable[[int], Phases]
    ) -> Iterator[tuple[int, Phases]]:
        bits = self._sums.bits
        for k, total in self._sums.phases(worker, blocks, rows, size, own):
            self._tape.learned(worker, k, bits, (total - own(k)) & np.uint32(2**bits - 1))
            yield k, total


class _PhasesWatched(_Watched):
    """A party at FDSKL whose sums of phases are written down too."""

    @property
    def sums(self) -> _PhaseTap:
        return _PhaseTap(self._party.sums, self._tape)


class _ActiveTap:
    """An active link whose sums are written down."""

    def __init__(self, link: Any, tape: Tape, name: str) -> None:
        self._link = link
        self._tape = tape
        self._name = name

    def __getattr__(self, key: str) -> Any:
        return getattr(self._link, key)

    def sum(self, batch: Batch, *args: Any, **keys: Any) -> Floats:
        total: Floats = self._link.sum(batch, *args, **keys)
        self._tape.summed(self._name, batch.index)
        return total


class _PassiveTap:
    """A passive link whose contributions and opened gradients are written down."""

    def __init__(self, link: Any, tape: Tape) -> None:
        self._link = link
        self._tape = tape

    def __getattr__(self, key: str) -> Any:
        return getattr(self._link, key)

    def contribute(self, H: Floats, batch: Batch, *args: Any, **keys: Any) -> None:
        self._link.contribute(H, batch, *args, **keys)
        self._tape.summed(self._link.me, batch.index)

    def reply(self, *args: Any, **keys: Any) -> Reply:
        return _ReplyTap(self._link.reply(*args, **keys), self._tape, self._link.me)


class _ReplyTap(Reply):
    def __init__(self, reply: Reply, tape: Tape, name: str) -> None:
        self._reply = reply
        self._tape = tape
        self._name = name
        self._asked = False
        self.exchange = reply.exchange

    def gradient(self, model: Any, batch: Batch) -> Floats:
        gradient = self._reply.gradient(model, batch)
        if not (self._asked and model.static_jacobian):
            J = model.jacobian(batch.X)
            self._tape.opened(self._name, J.matrix, gradient.reshape(J.matrix.shape[1], -1), batch.index)
        self._asked = True
        return gradient

    def close(self) -> None:
        self._reply.close()


def recorded(optimizer: Optimizer, tape: Tape, active: str) -> Optimizer:
    """The same optimizer, of the same kind, that writes to the tape."""
    kind = type(optimizer)
    options = {name: getattr(optimizer, name) for name in kind.model_fields}

    if isinstance(optimizer, FDSKL):
        own = {"run": lambda self, party: FDSKL.run(self, _PhasesWatched(party, tape, party.sums.me))}
        return type(kind.__name__, (kind,), {"__module__": __name__, **own})(**options)  # type: ignore[no-any-return]

    def run_active(self: Any, party: Any, link: Any) -> Any:
        return kind.active(self, _Watched(party, tape, active), _ActiveTap(link, tape, active))  # type: ignore

    def run_passive(self: Any, party: Any, link: Any) -> Any:
        return kind.passive(self, _Watched(party, tape, link.me), _PassiveTap(link, tape))  # type: ignore

    traced = type(kind.__name__, (kind,), {"__module__": __name__, "active": run_active, "passive": run_passive})
    return traced(**options)  # type: ignore[no-any-return]


def record(job: Job, parties: Sequence[Party]) -> tuple[Run, Tape]:
    """Runs the job and writes down what each party did and got."""
    tape = Tape()
    active = check_parties(parties)[0].name
    watched: dict[str, Any] = {"optimizer": recorded(job.optimizer, tape, active)}
    if job.protocol.residual is not None:  # else its sums are of phases, and many
        sums = WitnessedSum(inner=job.protocol.sum_for(len(parties) - 1))
        sums._witness = tape.sums
        watched["protocol"] = Protocol(sum=sums, residual=noting(job.protocol.residual, tape.blurred.append))
    return simulate(job.model_copy(update=watched), parties, observe=tape.observe), tape


class Worlds:
    """One job with one seed, run as it stands and as its ideal; each run is made once, when it is first asked for.

    All leaks are accepted, as what they tell is to be seen, and no run ends early. `job` evaluates at the end only.
    """

    def __init__(self, job: Job, parties: Sequence[Party], seed: int, *, attacker: str | None = None) -> None:
        """`attacker` is the passive party that attacks labels: the one without any with the most columns if None."""
        plain = {"seed": seed, "evaluate_every": 0, "target": None, "accepts": LEAKS}
        self.job = job.model_copy(update=plain)
        self._interval = job.evaluation_interval
        self.parties = list(parties)
        self.seed = seed
        self.active, others = check_parties(parties)
        self.passives = [party for party in others if party.columns]
        self.attacker = attacker or max(self.passives, key=lambda party: (not party.active, party.X.shape[1])).name

    @cached_property
    def real_run(self) -> tuple[Run, Tape]:
        return record(self.job, self.parties)

    @cached_property
    def ideal_run(self) -> tuple[Run, Tape]:
        """From the parties' own data and draws as in the real run: noise before a residual, keys of features."""
        run, tape = self.real_run
        with drawing_from(self.job, run):
            return record(ideal_job(self.job, tape.blurred), self.parties)

    @cached_property
    def whole_run(self) -> tuple[Run, Tape]:
        """`real_run` with all evaluations that the job asks for."""
        if not self._interval:
            return self.real_run
        return record(self.job.model_copy(update={"evaluate_every": self._interval}), self.parties)

    @cached_property
    def schedule(self) -> Schedule:
        return self.job.schedule(register_of(self.parties))

    def real(self, name: str | None = None) -> View:
        """The view of this party (the attacker if None) in the job as it stands."""
        return self._view(*self.real_run, name or self.attacker)

    def ideal(self, name: str | None = None) -> View:
        """What the party could hold from its declared output alone."""
        name = name or self.attacker
        ideal = self._view(*self.ideal_run, name)
        stand_ins = [Receipt(receipt.visit, noise_like(receipt.message)) for receipt in self.real(name).receipts]
        return replace(ideal, receipts=tuple(stand_ins), events=())

    def _view(self, run: Run, tape: Tape, name: str) -> View:
        party = next(party for party in self.parties if party.name == name)
        part = run.parts[name]
        return View(
            name=name,
            X=(party.X - part.mean) / part.deviation,
            theta=part.state.get("theta", np.zeros((0, part.outputs))),
            outputs=part.outputs,
            rows={visit.index: visit.rows for visit in self.schedule.visits()},
            visits=tuple(tape.visits[name]),
            openings=tuple(tape.openings[name]),
            totals=tuple(tape.totals[name]),
            receipts=tuple(tape.receipts[name]),
            events=tuple(tape.events[name]),
            phases=tuple(tape.phases[name]),
            key=self.real_run[0].parts[name].state.get("key", b""),
        )

    @cached_property
    def labels(self) -> NDArray[np.intp]:
        """The truth (m,): class numbers, in the order of the classes."""
        return np.unique(np.asarray(self.active.y), return_inverse=True)[1]


def noise_like(message: Message) -> Message:
    """A message of the same shape without content: every byte string random, every array emptied."""
    changed: dict[str, Any] = {}
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if isinstance(value, bytes):
            changed[name] = os.urandom(len(value))
        elif isinstance(value, np.ndarray):
            changed[name] = np.empty((0,), value.dtype)
    return type(message)(**{name: changed.get(name, getattr(message, name)) for name in message.__struct_fields__})

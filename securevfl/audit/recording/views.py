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
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.recording.defended import noting
from securevfl.audit.recording.ideal import drawing_from, ideal_job
from securevfl.audit.recording.transcript import Witness, WitnessedSum
from securevfl.base.arrays import Floats
from securevfl.data.party import Party, check_parties, register_of
from securevfl.data.schedule import Rows, Schedule
from securevfl.job import Job
from securevfl.methods import leak_kinds
from securevfl.protocols.notes import Began, Learned, LearnedPhases, Pushed, SharedResidual, Summed, ToldSum
from securevfl.protocols.spaces import Phases
from securevfl.runtime.channel import Event, Observer
from securevfl.runtime.codec import Message
from securevfl.runtime.door import Entry
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

    shared: its words about residuals, read as numbers. key: what its random features are drawn from, if it has any.
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
    shared: tuple[Total, ...] = ()
    key: bytes = field(default=b"", repr=False)

    def residuals(self) -> list[tuple[Rows, Floats]]:
        """Residuals (n x c) that stand in a message as they are, as numbers or as the bytes of numbers, by visit."""
        found = []
        for receipt in self.receipts:
            if receipt.visit < 0:
                continue
            rows = self.rows[self.visits[receipt.visit]]
            for value in fields(receipt.message):
                numbers = as_numbers(value, len(rows), self.outputs)
                if numbers is not None:
                    found.append((rows, numbers))
        return found

    def equations(self) -> list[tuple[Rows, Floats, Floats]]:
        """Everything the view says about residuals, linear as it is: (rows, A (k x n), A g (k x c)), by visit."""
        plain = [(rows, np.eye(len(rows)), g) for rows, g in self.residuals()]
        return plain or [(self.rows_of(opened), opened.J.T, opened.gradient) for opened in self.openings]

    def rows_of(self, opened: Opening) -> Rows:
        """Return the rows that the residuals of an opening belong to, in their order."""
        rows = self.rows[opened.index]
        return np.repeat(rows, len(opened.J) // len(rows))

    def estimates(self) -> list[tuple[Rows, Floats]]:
        """Residuals (n x c) by visit: as read, or the least-norm solution of the equations."""
        plain = self.residuals()
        return plain or [(rows, least_norm(A, b)) for rows, A, b in self.equations()]


def least_norm(A: Floats, b: Floats) -> Floats:
    """Find the shortest g (n x c) of those nearest to A (k x n) g = b (k x c)."""
    return np.linalg.lstsq(A, b)[0].astype(np.float64)


def fields(message: Message) -> list[Any]:
    """List the values in a message, with lists opened up."""
    values = [getattr(message, name) for name in message.__struct_fields__]
    return [item for value in values for item in (value if isinstance(value, list | tuple) else [value])]


def as_numbers(value: Any, n: int, c: int) -> Floats | None:
    """Return the (n x c) finite numbers of moderate size that the value is or ends in; None for anything else."""
    if isinstance(value, bytes) and len(value) >= 8 * n * c > 0:
        value = np.frombuffer(value[-8 * n * c :], "<f8").reshape(n, c)
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.shape != (n, c):
        return None
    size = np.abs(value)
    plausible = bool(np.isfinite(value).all() and size.max() < 2.0**10 and size[size > 0].min(initial=1.0) > 2.0**-60)
    return value.astype(np.float64) if plausible else None


@dataclass
class Tape(Observer):
    """What the recorded parties did, by name. Each party writes from its own threads.

    `entries` is what each has told, as it went through its door; `bins` what it was opened about classes in its bins.
    `sums` holds every part and every sum of the run, those of evaluations too; `trained` the places of the others.
    """

    visits: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    openings: dict[str, list[Opening]] = field(default_factory=lambda: defaultdict(list))
    bins: dict[str, list[Opening]] = field(default_factory=lambda: defaultdict(list))
    entries: dict[str, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    totals: dict[str, list[Total]] = field(default_factory=lambda: defaultdict(list))
    receipts: dict[str, list[Receipt]] = field(default_factory=lambda: defaultdict(list))
    events: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    phases: dict[str, list[PhaseTotal]] = field(default_factory=lambda: defaultdict(list))
    shared: dict[str, list[Total]] = field(default_factory=lambda: defaultdict(list))
    pushed: dict[str, list[Pushed]] = field(default_factory=lambda: defaultdict(list))
    told: dict[str, list[ToldSum]] = field(default_factory=lambda: defaultdict(list))
    sums: Witness = field(default_factory=Witness)
    trained: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    blurred: list[Floats] = field(default_factory=list)  # what a defence has made of each g, in order
    lock: threading.Lock = field(default_factory=threading.Lock)

    def evaluated(self, name: str) -> Floats:
        """Return what this party collected in evaluations, or gave to them, one after the other (rows x c)."""
        every = enumerate(self._summed(name))
        return np.concatenate([values for place, values in every if place not in self.trained[name]])

    def _summed(self, name: str) -> list[Floats]:
        """All that this party collected, or if it never does, gave to sums."""
        return self.sums.sums[name].totals if name in self.sums.sums else self.sums.parts[name]

    def __call__(self, event: Event) -> None:
        with self.lock:
            self.events[event.me].append(event)
            if event.direction == "recv":
                self.receipts[event.me].append(Receipt(len(self.visits[event.me]) - 1, event.message))

    def note(self, me: str, fact: object) -> None:
        with self.lock:
            visit = len(self.visits[me]) - 1
            match fact:
                case Began(index):
                    self.visits[me].append(index)
                case Summed(index):
                    every = self._summed(me)
                    self.trained[me].add(len(every) - 1)
                    self.totals[me].append(Total(visit, index, every[-1]))
                case Learned(index, J, gradient, group):
                    own = gradient.reshape(J.dense.shape[1], -1)
                    openings = self.bins if group == "bins" else self.openings
                    openings[me].append(Opening(visit, index, J.dense, own))
                case Entry():
                    self.entries[me].append(fact)
                case SharedResidual(index, words):
                    self.shared[me].append(Total(visit, index, words.copy()))
                case Pushed():
                    self.pushed[me].append(fact)
                case ToldSum():
                    self.told[me].append(fact)
                case LearnedPhases(k, bits, phases):
                    self.phases[me].append(PhaseTotal(visit, k, bits, phases.copy()))


def record(job: Job, parties: Sequence[Party]) -> tuple[Run, Tape]:
    """Run the job and write down what each party did and got."""
    tape = Tape()
    sums = WitnessedSum(inner=job.protocol.sum_for(sum(bool(party.columns) for party in parties) - 1))
    sums._witness = tape.sums
    residual = None if job.protocol.residual is None else noting(job.protocol.residual, tape.blurred.append)
    protocol = job.protocol
    if protocol.method is None:
        protocol = protocol.model_copy(update={"sum": sums, "residual": residual})
    watched = job.model_copy(update={"protocol": protocol})
    run = simulate(watched, parties, observe=tape)
    parts = {name: replace(part, job=job.to_dict()) for name, part in run.parts.items()}  # to predict without a witness
    return Run(job, parts), tape


class Worlds:
    """One job with one seed, run as it stands and as its ideal; each run is made once, when it is first asked for.

    All leaks are accepted, as what they tell is to be seen, and no run ends early. `job` evaluates at the end only.
    """

    def __init__(
        self,
        job: Job,
        parties: Sequence[Party],
        seed: int,
        *,
        attacker: str | None = None,
        asked: tuple[Job, Sequence[Party]] | None = None,
    ) -> None:
        """`attacker` is the passive party that attacks labels: the one without any with the most columns if None.

        asked: the job and the tables before they were prepared, if that was done.
        """
        plain = {"seed": seed, "evaluate_every": 0, "target": None, "patience": None, "accepts": [*leak_kinds()]}
        self.job = job.model_copy(update=plain)
        self._interval = job.evaluation_interval
        self._asked = (job, parties) if asked is None else asked
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
        """The ideal run, from the same data and draws as the real one: noise before a residual, keys of features."""
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
    def bins_tape(self) -> Tape:
        """What parties were told of classes in bins, in a run of one epoch that prepares its tables."""
        job, parties = self._asked
        plain = {"seed": self.seed, "epochs": 1, "target": None, "patience": None, "accepts": [*leak_kinds()]}
        return record(job.model_copy(update=plain), parties)[1]

    @cached_property
    def schedule(self) -> Schedule:
        return self.job.schedule(register_of(self.parties))

    def real(self, name: str | None = None) -> View:
        """Return the view of this party (the attacker if None) in the job as it stands."""
        return self._view(*self.real_run, name or self.attacker)

    def ideal(self, name: str | None = None) -> View:
        """Return what the party (the attacker if None) could hold from its declared output alone."""
        name = name or self.attacker
        ideal = self._view(*self.ideal_run, name)
        stand_ins = [Receipt(receipt.visit, noise_like(receipt.message)) for receipt in self.real(name).receipts]
        return replace(ideal, receipts=tuple(stand_ins), events=())

    def _view(self, run: Run, tape: Tape, name: str) -> View:
        party = next(party for party in self.parties if party.name == name)
        part = run.parts[name]
        return View(
            name=name,
            X=part.scaling(party.X),
            theta=self.job.method.weights(self.job, part.state, len(run.parts)),
            outputs=part.outputs,
            rows={visit.index: visit.rows for visit in self.schedule.visits()},
            visits=tuple(tape.visits[name]),
            openings=tuple(tape.openings[name]),
            totals=tuple(tape.totals[name]),
            receipts=tuple(tape.receipts[name]),
            events=tuple(tape.events[name]),
            phases=tuple(tape.phases[name]),
            shared=tuple(tape.shared[name]),
            key=self.real_run[0].parts[name].state.get("key", b""),
        )

    @cached_property
    def labels(self) -> NDArray[np.intp]:
        """The truth (m,): class numbers, in the order of the classes."""
        return np.unique(np.asarray(self.active.y), return_inverse=True)[1]


def noise_like(message: Message) -> Message:
    """Make a message of the same shape without content: every byte string random, every array emptied."""
    changed: dict[str, Any] = {}
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if isinstance(value, bytes):
            changed[name] = os.urandom(len(value))
        elif isinstance(value, np.ndarray):
            changed[name] = np.empty((0,), value.dtype)
    return type(message)(**{name: changed.get(name, getattr(message, name)) for name in message.__struct_fields__})

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr, SerializeAsAny

from securevfl.audit.recording.transcript import Witness, WitnessedSum
from securevfl.base.arrays import Floats
from securevfl.crypto.prg import Prg
from securevfl.data.party import Party, check_parties, register_of
from securevfl.data.schedule import Rows, Schedule
from securevfl.families import leak_kinds
from securevfl.families.base import Method
from securevfl.families.player import Player, State
from securevfl.job import Job
from securevfl.protocols.declared import Phases
from securevfl.protocols.notes import Began, Learned, LearnedPhases, Pushed, SharedResidual, Summed, ToldSum
from securevfl.protocols.residuals.base import ResidualProtocol
from securevfl.protocols.residuals.defences import Defence
from securevfl.protocols.residuals.open_residual import OpenResidual
from securevfl.protocols.seat import Seat
from securevfl.runtime.channel import Entry, Event, Observer
from securevfl.runtime.codec import Message
from securevfl.training.run import Run
from securevfl.training.simulate import simulate

# What goes down of g where a defence blurs it: noted as it goes, or given, so that two runs can be told the same.
#
# The ideal functionality of a residual with a defence hands out what the defence has made of g. Noise is drawn anew in
# every run; an ideal run that drew its own would differ from the real one by chance, as if messages had told something.


Note = Callable[[Floats], None]


class Noted(Defence):
    """Another defence of which every outcome is noted."""

    name: ClassVar[str] = "noted"
    inner: SerializeAsAny[Defence]
    _note: Note = PrivateAttr()

    def apply(self, g: Floats, prg: Prg) -> Floats:
        blurred = self.inner.apply(g, prg)
        self._note(np.array(blurred))
        return blurred

    def reach(self, bound: float) -> float:
        return self.inner.reach(bound)

    def check(self, outputs: int) -> None:
        self.inner.check(outputs)

    @property
    def promise(self) -> str:
        return self.inner.promise


class Given(Defence):
    """Hands out, in order, what another run has noted; beyond it, or where the shape is another, g as `inner` does."""

    name: ClassVar[str] = "given"
    inner: SerializeAsAny[Defence]
    _outcomes: Iterator[Floats] = PrivateAttr()

    def apply(self, g: Floats, prg: Prg) -> Floats:
        outcome = next(self._outcomes, None)
        return self.inner.apply(g, prg) if outcome is None or outcome.shape != g.shape else outcome

    def reach(self, bound: float) -> float:
        return self.inner.reach(bound)

    def check(self, outputs: int) -> None:
        self.inner.check(outputs)


def defence_of(residual: ResidualProtocol) -> Defence | None:
    """Return the defence of a residual that has one."""
    found = getattr(residual, "defence", None)
    return found if isinstance(found, Defence) else None


def noting(residual: ResidualProtocol, note: Note) -> ResidualProtocol:
    """Return the same residual, each outcome of its defence told to `note`; itself where it has none."""
    defence = defence_of(residual)
    if defence is None:
        return residual
    noted = Noted(inner=defence)
    noted._note = note
    return residual.model_copy(update={"defence": noted})


def given(defence: Defence, outcomes: Iterable[Floats]) -> Given:
    """Make a defence that hands out these outcomes, for the run of an ideal functionality."""
    found = Given(inner=defence)
    found._outcomes = iter(outcomes)
    return found


def giving(residual: ResidualProtocol, outcomes: Iterable[Floats]) -> ResidualProtocol:
    """Return the same residual, whose defence hands these out; itself where it has none."""
    defence = defence_of(residual)
    return residual if defence is None else residual.model_copy(update={"defence": given(defence, outcomes)})


# The ideal functionality of a job: the same training with nothing hidden, from the same data and the same draws.
#
# What a party is handed by it is its declared output. So that the two runs differ by messages alone, the ideal one
# takes over what the real one has drawn at random: what a defence has made of g, and the keys of random features.


def ideal_job(job: Job, blurred: Sequence[Floats] = ()) -> Job:
    """Return a job for the same training with nothing hidden, from which the declared outputs are computed.

    blurred: what the job's defence, if it has one, has made of each g of the real run.
    """
    ideal = job.method.ideal(job)
    if ideal.protocol.residual is None:
        return ideal
    protocol = ideal.protocol.model_copy(update={"residual": giving(ideal.protocol.residual, blurred)})
    return ideal.model_copy(update={"protocol": protocol})


@contextmanager
def drawing_from(job: Job, run: Run) -> Iterator[None]:
    """While the block runs, every party starts from what it has drawn for itself in another run of the job."""
    method = type(job.method)
    make = method.player

    def start(self: Method[Any], job: Job, seat: Seat, columns: int, state: State | None) -> Player:
        drawn = self.drawn(run.parts[seat.me].state) if state is None else state
        return make(self, job, seat, columns, drawn)

    with mock.patch.object(method, "player", start):
        yield


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


# The numbers about columns that a party received in a run, row by row, whatever sum they came through.
#
# A sum in the clear tells the active party each part H_k, a sum that hides its parts their total. A residual that is
# not sealed tells a passive party y and f as far as the loss can be undone (`Loss.undo`), less its own part. Where sums
# are stored, whoever pulls them is told the sum of all others, the change of one of them where that one alone has moved
# between two pulls, and who stores them each part, if it is in the clear.


BATCHES = 8  # of a partition that are looked at


@dataclass(frozen=True)
class Received:
    """Numbers (n x T c) that `learner` received about these rows of the columns of the parties `about`.

    truth (n x d): those columns, scaled as in training, with their names. dimensions: of the space that the numbers lie
    in, but for noise.
    """

    learner: str
    about: tuple[str, ...]
    rows: Rows
    numbers: Floats
    truth: Floats
    names: tuple[str, ...]
    dimensions: int


def received(worlds: Worlds, tape: Tape) -> list[Received]:
    """Return what was received: by learner, by the parties whose columns it adds up, by batch, and of held-out rows."""
    names = [party.name for party in worlds.passives]
    active = worlds.active.name
    if worlds.job.protocol.sum_for(len(names)).hides_parts and len(names) > 1:
        shown: list[tuple[str, tuple[str, ...]]] = [(active, tuple(names))]
    else:
        shown = [(name, (name,)) for name in names]
    found = []
    for source, about in shown:
        found += [_received(worlds, active, about, rows, columns) for rows, columns in _sums(worlds, tape, source)]
    residual = worlds.job.protocol.residual
    if isinstance(residual, OpenResidual) and residual.defence is None:
        everyone = (active, *names)
        for name in names:
            others = tuple(other for other in everyone if other != name)
            found += [_received(worlds, name, others, rows, columns) for rows, columns in _undone(worlds, tape, name)]
    workers = (active, *names)
    for name in tape.told:
        others = tuple(other for other in workers if other != name)
        found += [
            _received(worlds, name, about, rows, columns)
            for about, rows, columns in _sums_pulled(worlds, tape, name, others)
        ]
    for helper in (party.name for party in worlds.parties if not party.columns):
        for name in workers:
            parts = _helper_numbers(worlds, tape, helper, name)
            found += [_received(worlds, helper, (name,), rows, columns) for rows, columns in parts]
    return found


def _received(worlds: Worlds, learner: str, about: tuple[str, ...], rows: Rows, numbers: list[Floats]) -> Received:
    parties = {party.name: party for party in worlds.parties}
    parts = worlds.real_run[0].parts
    truth = np.hstack([parts[name].scaling(parties[name].X[rows]) for name in about])
    columns = tuple(column for name in about for column in parties[name].columns)
    labels = learner != worlds.active.name and worlds.job.loss.keeps_targets
    return Received(learner, about, rows, np.hstack(numbers), truth, columns, len(columns) + labels)


def _sums(worlds: Worlds, tape: Tape, source: str) -> Iterator[tuple[Rows, list[Floats]]]:
    """Yield what this party collected, or gave in the clear: by batch, and of the held-out rows."""
    schedule = worlds.schedule
    by_batch: dict[int, list[Floats]] = defaultdict(list)
    for total in tape.totals[source]:
        by_batch[total.index].append(total.values)
    asked = schedule.test if len(schedule.test) else schedule.flow
    told = tape.evaluated(source).reshape(-1, len(asked), worlds.real_run[0].parts[source].outputs)
    if len(schedule.test):
        yield schedule.test, list(told)
    place = np.empty(len(worlds.active), np.intp)
    place[asked] = np.arange(len(asked))
    rows = {visit.index: visit.rows for visit in schedule.visits()}
    for index in sorted(by_batch)[:BATCHES]:
        own = rows[index]
        yield own, by_batch[index] + ([] if len(schedule.test) else [values[place[own]] for values in told])


def _undone(worlds: Worlds, tape: Tape, name: str) -> Iterator[tuple[Rows, list[Floats]]]:
    """Yield what the residuals that this passive party read tell of f, less its own part, by batch."""
    loss = worlds.job.loss
    own = {}
    for total in reversed(tape.totals[name]):
        own[total.visit] = total.values  # as it was at the first exchange of the visit
    rows = {visit.index: visit.rows for visit in worlds.schedule.visits()}
    by_batch: dict[int, list[Floats]] = defaultdict(list)
    pushed = iter(tape.pushed[name])  # of a party that goes ahead: residuals come in the order of what it pushed
    for receipt in tape.receipts[name]:
        g: Any = getattr(receipt.message, "g", None)
        if g is None or receipt.visit < 0:
            continue
        if (part := next(pushed, None)) is not None:
            index, values = part.index, part.values
        elif receipt.visit in own:
            index, values = tape.visits[name][receipt.visit], own[receipt.visit]
        else:
            continue
        by_batch[index].append(loss.undo(g).sums - loss.shown(values))
    for index in sorted(by_batch)[:BATCHES]:
        known, numbers = complete(by_batch[index])
        if numbers:
            yield rows[index][known], numbers


def complete(numbers: list[Floats]) -> tuple[Rows, list[Floats]]:
    """Numbers (n x c) of as many visits as can be while half of the rows are known in all of them, on these rows.

    The rows are given as their places. A loss that is flat somewhere leaves rows open, NaN, that lie there.
    """
    known = [np.isfinite(each).all(axis=1) for each in numbers]
    rows, kept = np.ones(len(numbers[0]), bool), []
    for number in sorted(range(len(numbers)), key=lambda number: -int(known[number].sum())):
        if 2 * (rows & known[number]).sum() >= len(rows):
            rows &= known[number]
            kept.append(number)
    return np.flatnonzero(rows), [numbers[number][rows] for number in sorted(kept)]


def _sums_pulled(
    worlds: Worlds, tape: Tape, name: str, others: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Rows, list[Floats]]]:
    """Yield the sums of all others that this party has pulled, by batch, and differences where one alone has moved."""
    rows = {visit.index: visit.rows for visit in worlds.schedule.visits()}
    by_batch: dict[int, list[ToldSum]] = defaultdict(list)
    for told in tape.told[name]:
        by_batch[told.index].append(told)
    for index in sorted(by_batch)[:BATCHES]:
        sums, alone = by_batch[index], defaultdict[str, list[Floats]](list)
        yield others, rows[index], [told.values for told in sums]
        for before, after in pairwise(sums):
            moved = [other for other in others if before.versions.get(other) != after.versions.get(other)]
            if len(moved) == 1 < len(others):
                alone[moved[0]].append(after.values - before.values)
        yield from (((other,), rows[index], changes) for other, changes in alone.items())


def _helper_numbers(worlds: Worlds, tape: Tape, helper: str, name: str) -> Iterator[tuple[Rows, list[Floats]]]:
    """Yield what a party without a table was sent of this one about a batch and can read as numbers, by batch."""
    rows = {visit.index: visit.rows for visit in worlds.schedule.visits()}
    outputs = worlds.real_run[0].parts[name].outputs
    by_batch: dict[int, list[Floats]] = defaultdict(list)
    for event in tape.events[helper]:
        batch = getattr(event.message, "batch", None)
        if event.direction == "recv" and event.peer == name and batch in rows:
            read = (as_numbers(value, len(rows[batch]), outputs) for value in fields(event.message))
            by_batch[batch] += [numbers for numbers in read if numbers is not None]
    for index in sorted(index for index, numbers in by_batch.items() if numbers)[:BATCHES]:
        yield rows[index], by_batch[index]

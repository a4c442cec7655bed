"""What an attacker holds after a run, and what it would hold had it been given the declared output alone.

A `View` is one party's knowledge: its own columns, the schedule (public), its weights, every message it got, and the
gradients it opened or the sums it collected. `Worlds` makes two of them for one job:

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
from typing import Any, ClassVar, TypeVar
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr, SerializeAsAny

from securevfl.audit.recording.transcript import Witness, WitnessedSum, witnessed
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


class Replayed(Defence):
    """Another defence of which every outcome is noted. It hands out, in order, what another run has noted; beyond that,
    or where the shape is another, g as `inner` does."""

    name: ClassVar[str] = "replayed"
    inner: SerializeAsAny[Defence]
    _note: Callable[[Floats], None] = PrivateAttr()
    _outcomes: Iterator[Floats] = PrivateAttr()

    def apply(self, g: Floats, prg: Prg) -> Floats:
        outcome = next(self._outcomes, None)
        if outcome is None or outcome.shape != g.shape:
            outcome = self.inner.apply(g, prg)
        self._note(np.array(outcome))
        return outcome

    def reach(self, bound: float) -> float:
        return self.inner.reach(bound)

    def check(self, outputs: int) -> None:
        self.inner.check(outputs)

    @property
    def promise(self) -> str:
        return self.inner.promise


def defence_of(residual: ResidualProtocol | None) -> Defence | None:
    """Return the defence of a residual that has one."""
    defence = getattr(residual, "defence", None)
    return defence if isinstance(defence, Defence) else None


def replayed(
    residual: ResidualProtocol,
    *,
    note: Callable[[Floats], None] = lambda g: None,
    outcomes: Iterable[Floats] = (),
) -> ResidualProtocol:
    """Return the same residual, whose defence hands these outcomes out and tells `note` of each; itself where it has
    none."""
    defence = defence_of(residual)
    if defence is None:
        return residual
    replay = Replayed(inner=defence)
    replay._note, replay._outcomes = note, iter(outcomes)
    return residual.model_copy(update={"defence": replay})


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


@dataclass(kw_only=True)
class PartyRecord:
    """What one party did and got in a run, in order.

    `entries` is what it has told, as it went through its door; `bins` what it was opened about classes in its bins;
    `shared` its words about residuals, read as numbers; `trained` the places of sums of training among all of its sums.
    """

    visits: list[int] = field(default_factory=list)
    openings: list[Opening] = field(default_factory=list)
    bins: list[Opening] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    totals: list[Total] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    phases: list[PhaseTotal] = field(default_factory=list)
    shared: list[Total] = field(default_factory=list)
    pushed: list[Pushed] = field(default_factory=list)
    told: list[ToldSum] = field(default_factory=list)
    trained: set[int] = field(default_factory=set)


@dataclass(kw_only=True)
class View(PartyRecord):
    """One party's knowledge at the end. X (m x d) scaled as in training, theta (d x c), rows of batch `index`.

    key: what its random features are drawn from, if it has any.
    """

    name: str
    X: Floats
    theta: Floats
    outputs: int
    rows: dict[int, Rows]
    key: bytes = field(default=b"", repr=False)

    def received(self) -> Iterator[tuple[Rows, Receipt]]:
        """Yield each message that came during a visit, with the rows of its batch."""
        for receipt in self.receipts:
            if receipt.visit >= 0:
                yield self.rows[self.visits[receipt.visit]], receipt

    def residuals(self) -> list[tuple[Rows, Floats]]:
        """Residuals (n x c) that stand in a message as they are, as numbers or as the bytes of numbers, by visit."""
        read = (
            (rows, as_numbers(value, len(rows), self.outputs))
            for rows, receipt in self.received()
            for value in fields(receipt.message)
        )
        return [(rows, numbers) for rows, numbers in read if numbers is not None]

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

    def mean_by_row(self, estimates: Sequence[tuple[Rows, Floats]]) -> Floats:
        """Average the estimates of each row (m x c); NaN for rows without any."""
        m, c = len(self.X), estimates[0][1].shape[1] if estimates else self.outputs
        total, count = np.zeros((m, c)), np.zeros((m, 1))
        for rows, values in estimates:
            total[rows] += values
            count[rows] += 1
        return np.divide(total, count, out=np.full((m, c), np.nan), where=count > 0)


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


class Tape(defaultdict[str, PartyRecord], Observer):
    """What the recorded parties did, by name. Each party writes from its own threads.

    `sums` holds every part and every sum of the run, those of evaluations too; `blurred` what a defence has made of
    each g.
    """

    def __init__(self) -> None:
        super().__init__(PartyRecord)
        self.sums, self.blurred, self._lock = Witness(), list[Floats](), threading.Lock()

    def evaluated(self, name: str) -> Floats:
        """Return what this party collected in evaluations, or gave to them, one after the other (rows x c)."""
        every = enumerate(self._summed(name))
        return np.concatenate([values for place, values in every if place not in self[name].trained])

    def _summed(self, name: str) -> list[Floats]:
        """All that this party collected, or if it never does, gave to sums."""
        return self.sums.sums[name].totals if name in self.sums.sums else self.sums.parts[name]

    def __call__(self, event: Event) -> None:
        with self._lock:
            seen = self[event.me]
            seen.events.append(event)
            if event.direction == "recv":
                seen.receipts.append(Receipt(len(seen.visits) - 1, event.message))

    def note(self, me: str, fact: object) -> None:
        with self._lock:
            seen = self[me]
            visit = len(seen.visits) - 1
            match fact:
                case Began(index):
                    seen.visits.append(index)
                case Summed(index):
                    every = self._summed(me)
                    seen.trained.add(len(every) - 1)
                    seen.totals.append(Total(visit, index, every[-1]))
                case Learned(index, J, gradient, group):
                    opened = Opening(visit, index, J.dense, gradient.reshape(J.dense.shape[1], -1))
                    (seen.bins if group == "bins" else seen.openings).append(opened)
                case Entry():
                    seen.entries.append(fact)
                case SharedResidual(index, words):
                    seen.shared.append(Total(visit, index, words.copy()))
                case Pushed():
                    seen.pushed.append(fact)
                case ToldSum():
                    seen.told.append(fact)
                case LearnedPhases(k, bits, phases):
                    seen.phases.append(PhaseTotal(visit, k, bits, phases.copy()))


def watched(job: Job, parties: Sequence[Party], witness: Witness, residual: ResidualProtocol | None) -> Job:
    """Return the job with this residual and a witness at every seat of its sums; itself on shares, which have none."""
    if job.protocol.method is not None:
        return job
    _, others = check_parties(parties)
    sums = witnessed(WitnessedSum, job.protocol.sum_for(sum(bool(party.columns) for party in others)), witness)
    return job.model_copy(update={"protocol": job.protocol.model_copy(update={"sum": sums, "residual": residual})})


def record(job: Job, parties: Sequence[Party]) -> tuple[Run, Tape]:
    """Run the job and write down what each party did and got."""
    tape, residual = Tape(), job.protocol.residual
    noting = None if residual is None else replayed(residual, note=tape.blurred.append)
    run = simulate(watched(job, parties, tape.sums, noting), parties, observe=tape)
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
        self._plain = {"seed": seed, "target": None, "patience": None, "accepts": [*leak_kinds()]}
        self.job = job.model_copy(update=self._plain | {"evaluate_every": 0})
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
        """The same training with nothing hidden, from the same data and draws as the real one.

        What a party is handed by it is its declared output. So that the two runs differ by messages alone, it takes
        over what the real one has drawn at random: what a defence has made of g, and the keys of random features.
        """
        run, tape = self.real_run
        ideal = self.job.method.ideal(self.job)
        if ideal.protocol.residual is not None:
            residual = replayed(ideal.protocol.residual, outcomes=tape.blurred)
            ideal = ideal.model_copy(update={"protocol": ideal.protocol.model_copy(update={"residual": residual})})
        with drawing_from(self.job, run):
            return record(ideal, self.parties)

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
        return record(job.model_copy(update=self._plain | {"epochs": 1}), parties)[1]

    @cached_property
    def schedule(self) -> Schedule:
        return self.job.schedule(register_of(self.parties))

    @cached_property
    def rows(self) -> dict[int, Rows]:
        """The rows of each batch, by its index in the schedule."""
        return {visit.index: visit.rows for visit in self.schedule.visits()}

    def real(self, name: str | None = None) -> View:
        """Return the view of this party (the attacker if None) in the job as it stands."""
        return self._view(*self.real_run, name or self.attacker)

    def ideal(self, name: str | None = None) -> View:
        """Return what the party (the attacker if None) could hold from its declared output alone."""
        name = name or self.attacker
        stand_ins = [Receipt(receipt.visit, noise_like(receipt.message)) for receipt in self.real(name).receipts]
        return replace(self._view(*self.ideal_run, name), receipts=stand_ins, events=[])

    def _view(self, run: Run, tape: Tape, name: str) -> View:
        part, party = run.parts[name], next(party for party in self.parties if party.name == name)
        return View(
            **vars(tape[name]),
            name=name,
            X=part.scaling(party.X),
            theta=self.job.method.weights(self.job, part.state, len(run.parts)),
            outputs=part.outputs,
            rows=self.rows,
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
        value = changed[name] = getattr(message, name)
        if isinstance(value, bytes):
            changed[name] = os.urandom(len(value))
        elif isinstance(value, np.ndarray):
            changed[name] = np.empty((0,), value.dtype)
    return type(message)(**changed)


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


Numbers = Iterator[tuple[Rows, list[Floats]]]  # of rows, so many times
T = TypeVar("T", Total, ToldSum, Pushed)


def by_batch(numbers: Iterable[T]) -> dict[int, list[T]]:
    """Group numbers about rows by the batch that they are of."""
    groups: dict[int, list[T]] = defaultdict(list)
    for each in numbers:
        groups[each.index].append(each)
    return groups


def received(worlds: Worlds, tape: Tape) -> list[Received]:
    """Return what was received: by learner, by the parties whose columns it adds up, by batch, and of held-out rows."""
    names = [party.name for party in worlds.passives]
    active = worlds.active.name
    workers = (active, *names)
    others = {name: tuple(other for other in workers if other != name) for name in workers}
    if worlds.job.protocol.sum_for(len(names)).hides_parts and len(names) > 1:
        shown = [(active, others[active])]
    else:
        shown = [(name, (name,)) for name in names]
    sources = [(active, about, _sums(worlds, tape, source)) for source, about in shown]
    residual = worlds.job.protocol.residual
    if isinstance(residual, OpenResidual) and residual.defence is None:
        sources += [(name, others[name], _undone(worlds, tape[name])) for name in names]
    for name, seen in tape.items():
        for index, sums in sorted(by_batch(seen.told).items())[:BATCHES]:
            rows, alone = worlds.rows[index], defaultdict[str, list[Floats]](list)
            sources.append((name, others[name], iter([(rows, [told.values for told in sums])])))
            for before, after in pairwise(sums):
                moved = [other for other in others[name] if before.versions.get(other) != after.versions.get(other)]
                if len(moved) == 1 < len(others[name]):
                    alone[moved[0]].append(after.values - before.values)
            sources += [(name, (other,), iter([(rows, changes)])) for other, changes in alone.items()]
    helpers = [party.name for party in worlds.parties if not party.columns]
    for helper in helpers:
        sources += [(helper, (name,), _helper_numbers(worlds, tape, helper, name)) for name in workers]
    parties, parts = {party.name: party for party in worlds.parties}, worlds.real_run[0].parts
    batches = []
    for learner, about, source in sources:
        columns = tuple(column for name in about for column in parties[name].columns)
        labels = learner != active and worlds.job.loss.keeps_targets
        for rows, numbers in source:
            truth = np.hstack([parts[name].scaling(parties[name].X[rows]) for name in about])
            dimensions = len(columns) + labels
            batches.append(Received(learner, about, rows, np.hstack(numbers), truth, columns, dimensions))
    return batches


def _sums(worlds: Worlds, tape: Tape, source: str) -> Numbers:
    """Yield what this party collected, or gave in the clear: by batch, and of the held-out rows."""
    schedule = worlds.schedule
    asked = schedule.test if len(schedule.test) else schedule.flow
    told = tape.evaluated(source).reshape(-1, len(asked), worlds.real_run[0].parts[source].outputs)
    if len(schedule.test):
        yield schedule.test, list(told)
    place = np.empty(len(worlds.active), np.intp)
    place[asked] = np.arange(len(asked))
    for index, totals in sorted(by_batch(tape[source].totals).items())[:BATCHES]:
        rows = worlds.rows[index]
        evaluated = [] if len(schedule.test) else [values[place[rows]] for values in told]
        yield rows, [total.values for total in totals] + evaluated


def _undone(worlds: Worlds, seen: PartyRecord) -> Numbers:
    """Yield what the residuals that this passive party read tell of f, less its own part, by batch."""
    loss = worlds.job.loss
    own = {total.visit: total for total in reversed(seen.totals)}  # as it was at the first exchange of the visit
    pushed = iter(seen.pushed)  # of a party that goes ahead: residuals come in the order of what it pushed
    told: dict[int, list[Floats]] = defaultdict(list)
    for receipt in seen.receipts:
        g: Any = getattr(receipt.message, "g", None)
        if g is not None and receipt.visit >= 0:
            part = next(pushed, None) or own.get(receipt.visit)
            if part is not None:
                told[part.index].append(loss.undo(g).sums - loss.shown(part.values))
    for index, numbers in sorted(told.items())[:BATCHES]:
        known, complete_numbers = complete(numbers)
        if complete_numbers:
            yield worlds.rows[index][known], complete_numbers


def complete(numbers: list[Floats]) -> tuple[Rows, list[Floats]]:
    """Numbers (n x c) of as many visits as can be while half of the rows are known in all of them, on these rows.

    The rows are given as their places. A loss that is flat somewhere leaves rows open, NaN, that lie there.
    """
    known = [np.isfinite(each).all(axis=1) for each in numbers]
    rows, visits = np.ones(len(numbers[0]), bool), []
    for visit in sorted(range(len(numbers)), key=lambda visit: -int(known[visit].sum())):
        if 2 * (rows & known[visit]).sum() >= len(rows):
            rows &= known[visit]
            visits.append(visit)
    return np.flatnonzero(rows), [numbers[visit][rows] for visit in sorted(visits)]


def _helper_numbers(worlds: Worlds, tape: Tape, helper: str, name: str) -> Numbers:
    """Yield what a party without a table was sent of this one about a batch and can read as numbers, by batch."""
    outputs = worlds.real_run[0].parts[name].outputs
    sent: dict[int, list[Floats]] = defaultdict(list)
    for event in tape[helper].events:
        batch = getattr(event.message, "batch", None)
        if event.direction == "recv" and event.peer == name and batch in worlds.rows:
            read = (as_numbers(value, len(worlds.rows[batch]), outputs) for value in fields(event.message))
            sent[batch] += [numbers for numbers in read if numbers is not None]
    for index, numbers in [each for each in sorted(sent.items()) if each[1]][:BATCHES]:
        yield worlds.rows[index], numbers

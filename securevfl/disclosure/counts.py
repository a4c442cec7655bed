"""What a whole run adds up to, counted from public sizes: equations about labels, numbers about columns, scores.

No single message tells much; a run does, and several runs on one table do more. Three things are counted:

labels    A passive party that opens J^T g learns p_k equations about the n c residuals of a batch. One fixed
          partition repeats the same equations every epoch, so they count once; rows reshuffled every epoch bring new
          ones. A residual that is not sealed shows all n c.
columns   Whoever collects a sum learns c numbers a row in every exchange, each a linear combination of the columns
          that are added up in it, with weights that move from one exchange to the next. From as many numbers a row as
          columns on, they span these columns. A sum in the clear shows the d_k columns of one party at a time; one
          that hides its parts shows those of all parties behind it together. Where parties take their steps in turn
          (sequential FedBCD), consecutive sums differ by one party's part alone, so each party is counted alone too.
          A residual that is not sealed shows f to the passive parties, who know y from its sign: each takes its own
          part off and has the sum of all others, the active party's among them.
          Rows that are held out take part in evaluations only, so they are counted apart.
scores    How many numbers f the joint evaluations tell the active party.

Phases of a kernel model are not counted here: their number of dimensions is exceeded in the first exchange, and
`securevfl.privacy.consent` says in words what they tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from securevfl.disclosure.exposure import HALF

if TYPE_CHECKING:
    from securevfl.data.schedule import Schedule
    from securevfl.options import JobOptions

Kind = Literal["labels", "columns", "scores"]


Group = Literal["training", "held out"]


@dataclass(frozen=True)
class Sizes:
    """The public sizes of a run: what every party knows once all have said hello.

    `rows` train and `held_out` rows do not; `batches` of at least `smallest_batch` rows are visited in each of
    `epochs`; `outputs` is c. `columns` holds d_k of every party, the active one first, and `parameters` p_k of every
    passive party, in the same order. `tables` may hold a digest of a passive party's columns by its name: only where it
    is known can two jobs be told to have asked the same equations; `partition` names their batches
    (`securevfl.data.schedule.Schedule.name`). `enough` may hold, for parties whose tables are at
    hand, how many numbers a row are enough to find their columns (`securevfl.disclosure.exposure.enough`).
    """

    active: str
    rows: int
    held_out: int
    batches: int
    smallest_batch: int
    epochs: int
    outputs: int
    parameters: Mapping[str, int]
    columns: Mapping[str, int]
    tables: Mapping[str, str] = field(default_factory=dict)
    enough: Mapping[str, float] = field(default_factory=dict)
    partition: str = ""

    @property
    def passives(self) -> tuple[str, ...]:
        """The passive parties, in their order."""
        return tuple(self.parameters)

    def enough_for(self, names: Sequence[str]) -> float:
        """Numbers a row that are enough to find the columns of these parties together; of an unknown table, half of
        as many as its columns."""
        return sum(self.enough.get(name, HALF * self.columns[name]) for name in names)

    @property
    def residuals(self) -> int:
        """The n c residuals of the smallest batch."""
        return self.smallest_batch * self.outputs


def sizes_of(
    job: JobOptions,
    schedule: Schedule,
    *,
    active: str,
    columns: Mapping[str, int],
    outputs: int,
    tables: Mapping[str, str] | None = None,
    enough: Mapping[str, float] | None = None,
) -> Sizes:
    """The sizes of this job on this schedule, with d_k `columns` at each party and c `outputs`; more as in `Sizes`."""
    return Sizes(
        active=active,
        rows=len(schedule.train),
        held_out=len(schedule.test),
        batches=schedule.batches,
        smallest_batch=schedule.smallest_batch,
        epochs=job.epochs,
        outputs=outputs,
        parameters={name: job.model.parameters(d, outputs) for name, d in columns.items() if name != active},
        columns={active: columns[active]} | dict(columns),
        tables=dict(tables or {}),
        enough=dict(enough or {}),
        partition=schedule.name,
    )


@dataclass(frozen=True)
class Disclosure:
    """One thing that `learner` is told about the data of the parties `about`.

    labels    `count` equations of `of` residuals of a batch (n c)
    columns   `count` numbers a row of `of` columns that are added up, on the rows of the `group`
    scores    `count` numbers f; `of` is 0, as there is no number at which they were all

    `basis` names the equations: a job that asks the same ones again (same partition, same columns, linear model) tells
    nothing more, so counts of an equal basis do not add up. An empty basis equals no other: such counts always add.
    Numbers about columns have none, as the weights move.
    """

    kind: Kind
    learner: str
    about: tuple[str, ...]
    count: int
    of: int
    basis: str = ""
    group: Group = "training"

    @property
    def share(self) -> float:
        """count / of, which may exceed 1; 0 where there is no `of`."""
        return self.count / self.of if self.of else 0.0


def counts(job: JobOptions, sizes: Sizes) -> list[Disclosure]:
    """What this job discloses if it runs to its end, all exchanges and evaluations counted."""
    return [*_labels(job, sizes), *_columns(job, sizes), *scores(job, sizes)]


def earlier(own: Disclosure, before: Sequence[Disclosure]) -> float:
    """What `before` adds to the share of `own`: of the same kind, to the same learner, about any of the same parties.

    Shares of labels add up as they are, since batches differ in length between jobs. Numbers about columns count
    against the columns of `own`, whichever group of rows they were about: rows change groups from job to job.
    """
    named = {own.basis} - {""}
    total = 0.0
    for item in before:
        if (item.kind, item.learner) != (own.kind, own.learner) or not set(item.about) & set(own.about):
            continue
        if item.basis and item.basis in named:
            continue
        named.add(item.basis)
        total += item.count / own.of if own.kind == "columns" and own.of else item.share
    return total


def evaluations(job: JobOptions, sizes: Sizes) -> int:
    """How often all parties predict together in a run: where it is due between rounds, and at the end."""
    interval = job.evaluation_interval
    return 1 + (sizes.epochs * sizes.batches // interval if interval else 0)


def _labels(job: JobOptions, sizes: Sizes) -> list[Disclosure]:
    about, of = (sizes.active,), sizes.residuals
    if not job.protocol.seals:
        return [Disclosure("labels", name, about, of, of, "every residual") for name in sizes.passives]
    times = sizes.epochs if job.reshuffle else 1
    return [
        Disclosure("labels", name, about, times * p, of, _basis(job, sizes, name))
        for name, p in sizes.parameters.items()
    ]


def _basis(job: JobOptions, sizes: Sizes, name: str) -> str:
    """Names the equations that this passive party opens, which are the rows of its J^T on every batch."""
    table = sizes.tables.get(name, "")
    if not (table and sizes.partition):
        return ""
    parted = f"parted anew in each of {sizes.epochs} epochs" if job.reshuffle else "one partition"
    return f"{job.model.name}, {job.scale} scale, columns {table}, batches {sizes.partition}, {parted}"


def _columns(job: JobOptions, sizes: Sizes) -> list[Disclosure]:
    c, passives = sizes.outputs, sizes.passives
    hides = job.protocol.sum_for(len(passives)).hides_parts and len(passives) > 1
    exchanges = job.optimizer.exchanges(passives)
    asked = {"training": sizes.epochs * exchanges, "held out": 0}
    asked["held out" if sizes.held_out else "training"] += evaluations(job, sizes)
    found = []
    groups: tuple[Group, ...] = ("training", "held out") if sizes.held_out else ("training",)
    for group in groups:
        shown = [passives] if hides else [(name,) for name in passives]
        found += [
            Disclosure("columns", sizes.active, about, c * asked[group], _added_up(sizes, about), group=group)
            for about in shown
        ]
    if hides and exchanges > 1:  # one party moves between two exchanges of a visit, and starts from zero
        found += [
            Disclosure("columns", sizes.active, (name,), c * sizes.epochs, sizes.columns[name]) for name in passives
        ]
    if not job.protocol.seals:  # parallel or in turn, each passive party gets one residual a visit
        for learner in passives:
            others = tuple(name for name in sizes.columns if name != learner)
            found.append(Disclosure("columns", learner, others, c * sizes.epochs, _added_up(sizes, others)))
    return found


def _added_up(sizes: Sizes, names: Sequence[str]) -> int:
    return sum(sizes.columns[name] for name in names)


def scores(job: JobOptions, sizes: Sizes) -> list[Disclosure]:
    """What the evaluations of any method tell: f of each row, whenever all parties predict together."""
    rows = sizes.held_out or sizes.rows
    told = evaluations(job, sizes) * rows * sizes.outputs
    return [Disclosure("scores", sizes.active, sizes.passives, told, 0)]

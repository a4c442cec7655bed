"""What training by rounds adds up to, counted, and what a passive party can tell from it, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.data.location_scale import moments
from securevfl.data.schedule import Schedule
from securevfl.disclosure.counts import Disclosure, Sizes
from securevfl.disclosure.exposure import ROWS, expected_label_auc, held, measure
from securevfl.families.base import Known, O, Told
from securevfl.families.sizes import evaluated, evaluations, scores
from securevfl.models.block import BlockModel
from securevfl.optim.rounds import RoundsTraining
from securevfl.options import JobOptions
from securevfl.protocols.bin_classes import word_bits
from securevfl.protocols.choice import Protocol
from securevfl.protocols.residuals.base import ResidualProtocol
from securevfl.protocols.residuals.defences import Gaussian
from securevfl.runtime.channel import Group

# What the options of a job by rounds hold.


class ResidualGoesDown(Protocol, defer_build=True):
    """The messages of a job whose residual goes down."""

    residual: ResidualProtocol


class RoundsJob(JobOptions, defer_build=True):
    """A job by rounds: a model of a block of weights for each party, and a residual."""

    model: BlockModel
    optimizer: RoundsTraining
    protocol: ResidualGoesDown


BATCHES = 8  # of a partition that are measured


def counts(job: JobOptions, sizes: Sizes) -> list[Disclosure]:
    """Count what a run discloses if it goes to its end, with all exchanges and evaluations."""
    return [*labels_told(job, sizes), *_columns_told(job, sizes), *scores(job, sizes)]


def labels_told(job: JobOptions, sizes: Sizes) -> list[Disclosure]:
    """Count what residuals tell each passive party of labels."""
    about, of = (sizes.active,), sizes.residuals
    defence = getattr(job.protocol.residual, "defence", None)
    rho = defence.rho(sizes.epochs) if isinstance(defence, Gaussian) else 0.0
    if not job.protocol.seals:
        numbers = sizes.rows * sizes.epochs * _width(job, sizes)
        return [
            Disclosure("labels", name, about, of, of, "every residual", numbers=numbers, rho=rho)
            for name in sizes.passives
        ]
    return [
        *(
            Disclosure(
                "labels",
                name,
                about,
                job.equations * p,
                of,
                _basis(job, sizes, name),
                numbers=_count_opened(sizes, name),
                rho=rho,
            )
            for name, p in sizes.parameters.items()
        ),
        *_bins_told(job, sizes),
    ]


def _bins_told(job: JobOptions, sizes: Sizes) -> list[Disclosure]:
    """Return the bits that words about the positive class in bins can tell of the labels of all training rows."""
    found, hold = [], round(sizes.rows * sizes.label_bits)
    if job.prepare.woe is None or job.protocol.residual is None:
        return []
    for name, asked in sizes.bins.items():
        table = sizes.tables.get(name, "")
        basis = f"classes in bins ({job.prepare.woe}), columns {table}, batches {sizes.partition}" if table else ""
        told = job.protocol.residual.counted_bits(sizes.rows, asked, word_bits(sizes.rows))
        found.append(Disclosure("labels", name, (sizes.active,), told, hold, basis, "bins", asked))
    return found


def _basis(job: JobOptions, sizes: Sizes, name: str) -> str:
    """Names the equations that this passive party opens, which are the rows of its J^T on every batch, if it stays."""
    table = sizes.tables.get(name, "")
    if not (table and sizes.partition and not job.moves):
        return ""
    parted = f"parted anew in each of {sizes.epochs} epochs" if job.reshuffle else "one partition"
    return f"{job.model.name}, {job.scale} scale, columns {table}, batches {sizes.partition}, {parted}"


def _columns_told(job: JobOptions, sizes: Sizes) -> list[Disclosure]:
    c, passives = job.model.output_width(sizes.outputs), sizes.passives
    hides = job.protocol.sum_for(len(passives)).hides_parts and len(passives) > 1
    exchanges = job.optimizer.exchanges(passives)
    asked = {"training": sizes.epochs * exchanges - _empty(job, sizes), "held out": 0}
    asked["held out" if sizes.held_out else "training"] += evaluations(job, sizes)
    where, rows = evaluated(job, sizes)
    numbers = {"training": sizes.rows * sizes.epochs * exchanges * _width(job, sizes), "held out": 0}
    numbers[where] += rows * _width(job, sizes)
    found = []
    groups: tuple[Group, ...] = ("training", "held out") if sizes.held_out else ("training",)
    for group in groups:
        shown = [passives] if hides else [(name,) for name in passives]
        found += [
            Disclosure(
                "columns",
                sizes.active,
                about,
                c * asked[group],
                added_up(sizes, about),
                group=group,
                numbers=numbers[group],
            )
            for about in shown
        ]
    if hides and exchanges > 1:  # one party moves between two exchanges of a visit, and starts from zero
        found += [
            Disclosure("columns", sizes.active, (name,), c * sizes.epochs, sizes.columns[name]) for name in passives
        ]
    if not job.protocol.seals:  # parallel or in turn, each passive party gets one residual a visit
        for learner in passives:
            others = tuple(name for name in sizes.columns if name != learner)
            found.append(Disclosure("columns", learner, others, c * sizes.epochs, added_up(sizes, others)))
    return found


def _width(job: JobOptions, sizes: Sizes) -> int:
    """How many numbers a row a passive party sends up, and is sent where residuals go down as they are."""
    return (
        job.model.collected_width(sizes.outputs, len(sizes.passives))
        if isinstance(job.model, BlockModel)
        else sizes.outputs
    )


def _empty(job: JobOptions, sizes: Sizes) -> int:
    """How many exchanges tell nothing of any batch: the first of a run, where weights of columns start at zero."""
    return int(sizes.batches == 1 and job.model.by_column and not sizes.resumed)


def added_up(sizes: Sizes, names: Sequence[str]) -> int:
    """Return how many columns these parties have together."""
    return sum(sizes.columns[name] for name in names)


def active_learns(job: JobOptions, party: str, known: Known | None) -> list[Told]:
    """Describe in words what the active party learns: scores, and what these tell of the others' columns."""
    what = "f and every Z_k" if job.model.separates_outputs else "f = sum_k H_k"
    scores = f"{what} on the rows predicted, and messages marked output or plain"
    found = [("learns", "\n".join([scores, *columns_lines(job, party, known, counts)]))]
    opens = job.protocol.seals and job.model.by_column
    return found + ([("opens", "\n".join(_alone_elsewhere(job, known)))] if opens else [])


def passive_learns(job: RoundsJob, party: str, known: Known | None) -> list[Told]:
    """Describe in words what a passive party learns by the kind of residual, and what its own part tells it."""
    residual = job.protocol.residual
    lines = [*equations(job, party, known), *_bins(job, party, known)] if residual.seals else [residual.shows]
    if not residual.seals:
        lines += columns_lines(job, party, known, counts)
    found = [("learns", "\n".join(lines))]
    return found + classifier_kept(job)


def classifier_kept(job: JobOptions) -> list[Told]:
    """Describe in words what a party without labels keeps of a classifier; empty for a loss of numbers."""
    if not job.model.loss.classifies:
        return []
    return [
        (
            "keeps",
            "its weights, so its own part X_k theta_k, which ranks the labels about as well as its columns can,\n"
            "whatever the protocol: to an AUC of 0.71 to 0.99 on public tables",
        )
    ]


def _count_opened(sizes: Sizes, party: str) -> int:
    """Count the numbers that a passive party opens of its gradients in a run that goes to its end."""
    return round(sizes.visits * sizes.openings) * sizes.parameters[party]


def equations(job: JobOptions, party: str, known: Known | None) -> list[str]:
    """Describe in words what an opened gradient tells a passive party of labels."""
    if known is None:
        return [
            "its own gradient: p equations about the n x c residuals of a batch; the share p / (n c)",
            "projects the labels and is a leak that larger batches make smaller",
        ]
    sizes, schedule, X = known.sizes, known.schedule, known.table(party)
    p, share = sizes.parameters[party], sizes.parameters[party] / sizes.residuals
    batches = "batch" if schedule.batches == 1 else f"{schedule.batches} batches"
    times = f"new in each of {job.epochs} epochs"
    if job.moves:
        why = "J moves" if not job.model.static_jacobian else "rows are weighed anew"
        times = f"others in each of {job.equations} local steps of a run, as {why}"
    elif not job.reshuffle:
        times = f"the same {batches} every epoch"
    auc = expected_label_auc(p, sizes.smallest_batch, sizes.outputs, job.equations, job.equations > 1)
    return [
        f"its own gradient: p = {p} equations about n x c = {sizes.residuals} residuals a batch, {times};",
        f"the share p / (n c) = {share:.3f} projects the labels: a leak that larger batches make smaller.",
        f"In {job.epochs} epochs it opens {_count_opened(sizes, party):,} numbers, about residuals that move.",
        f"from columns of noise it tells labels to an AUC of {auc:.2f}, from real columns to more",
        *(_alone(job, X, schedule) if job.model.by_column and X is not None else ()),
    ]


def _bins(job: JobOptions, party: str, known: Known | None) -> list[str]:
    """Describe in words what the counts in its bins tell a passive party of labels; empty where the job has none."""
    if job.prepare.woe is None:
        return []
    what = "for each of its bins how many of its rows are of the positive class, for weights of evidence"
    if known is None:
        return [f"{what}; a bin of one class is", "the labels of its rows"]
    sizes = known.sizes
    told = next(item for item in _bins_told(job, sizes) if item.learner == party)
    return [
        f"{what}:",
        f"{sizes.bins[party]} words of {word_bits(sizes.rows)} bits and checks, {told.count:,} bits of the {told.of:,} "
        "that the labels of",
        f"{sizes.rows:,} rows hold ({told.share:.3f}), whatever it asks; a bin of one class is the labels of its rows",
    ]


def columns_lines(
    job: O, learner: str, known: Known | None, count: Callable[[O, Sizes], list[Disclosure]]
) -> list[str]:
    """Describe in words what the numbers that a party receives in a run, as a method counts them, tell of other
    parties' columns."""
    if known is None:
        return [
            "T c numbers about each row in T exchanges and evaluations: T c / d of the dimensions of the d",
            "columns behind them, and more of their variance; from half of d on, or fewer, these columns",
        ]
    sizes, schedule = known.sizes, known.schedule
    groups = {"training": schedule.partition(0)[:BATCHES], "held out": [schedule.test[:ROWS]]}
    lines: list[str] = []
    c = job.model.output_width(sizes.outputs)
    for item in count(job, sizes):
        if item.kind != "columns" or item.learner != learner:
            continue
        behind = [X for name in item.about if (X := known.table(name)) is not None]
        most = ""
        if len(behind) == len(item.about):
            share = max(held(np.hstack([X[rows] for X in behind]), item.count) for rows in groups[item.group])
            most = f", up to {share:.2f} of their variance"
        enough, few = "enough to find them", "too few to find most, but what goes with the label shows from the first"
        lines += [
            f"T c = {item.count // c} x {c} numbers about each {item.group} row: "
            f"{min(1.0, item.share):.2f} of the dimensions of the {item.of} columns",
            f"of {', '.join(item.about)}{most}: " + (enough if item.count >= sizes.enough_for(item.about) else few),
        ]
    return lines


def _alone_elsewhere(job: JobOptions, known: Known | None) -> list[str]:
    """Describe in words what the party with labels is told of rows that stand nearly alone in other parties'
    columns."""
    tables = [] if known is None else [(name, known.table(name)) for name in known.sizes.passives]
    found = [
        f"{name}: {line}"
        for name, X in tables
        if known is not None and X is not None
        for line in _alone(job, X, known.schedule)
    ]
    if known is not None and len([X for _, X in tables if X is not None]) == len(tables):
        return found or ["no label by a row that stands alone in another party's columns"]
    return [
        "the labels of rows that stand nearly alone in another party's columns (rare values) to that party,",
        "which alone sees how many there are: ask it for that line of its sheet",
    ]


def _alone(job: JobOptions, X: Floats, schedule: Schedule) -> list[str]:
    """Return a further line if rows of the party stand nearly alone in their batches; empty otherwise."""
    mean, deviation = moments(X, schedule.flow)[:2] if job.scale == "standard" else (np.zeros(1), np.ones(1))
    found = measure((X[rows] - mean) / np.where(deviation > 0, deviation, np.inf) for rows in schedule.partition(0))
    if not found.alone:
        return []
    return [
        f"{found.alone} rows of {found.rows} stand nearly alone (rare values, leverage up to {found.largest:.2f}): "
        "their residual, and so label, is nearly opened"
    ]

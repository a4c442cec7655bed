"""What training by rounds adds up to, counted, and what a passive party can tell from it, in words."""

from __future__ import annotations

from collections.abc import Sequence

from securevfl.disclosure.counts import Disclosure, Sizes
from securevfl.families.evaluations import evaluated, evaluations, scores
from securevfl.models.block import BlockModel
from securevfl.options import JobOptions
from securevfl.protocols.bin_classes import count_bits
from securevfl.protocols.residuals.defences import Gaussian
from securevfl.runtime.disclosure_gate import Group


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
                numbers=count_opened(sizes, name),
                rho=rho,
            )
            for name, p in sizes.parameters.items()
        ),
        *bins_told(job, sizes),
    ]


def bins_told(job: JobOptions, sizes: Sizes) -> list[Disclosure]:
    """Return the bits that words about the positive class in bins can tell of the labels of all training rows."""
    found, hold = [], round(sizes.rows * sizes.label_bits)
    if job.prepare.woe is None or job.protocol.residual is None:
        return []
    for name, asked in sizes.bins.items():
        table = sizes.tables.get(name, "")
        basis = f"classes in bins ({job.prepare.woe}), columns {table}, batches {sizes.partition}" if table else ""
        told = job.protocol.residual.counted_bits(sizes.rows, asked, count_bits(sizes.rows))
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


def count_opened(sizes: Sizes, party: str) -> int:
    """Count the numbers that a passive party opens of its gradients in a run that goes to its end."""
    return round(sizes.visits * sizes.openings) * sizes.parameters[party]

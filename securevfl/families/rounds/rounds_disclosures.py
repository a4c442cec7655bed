"""What training by rounds adds up to, counted, and what a passive party can tell from it, in words."""

from __future__ import annotations

from collections.abc import Sequence

from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.families.evaluations import count_evaluations, evaluation_rows, score_disclosures
from securevfl.models.block import BlockModel
from securevfl.options import JobOptions
from securevfl.protocols.bin_classes import count_bits
from securevfl.protocols.residuals.defences import Gaussian
from securevfl.runtime.disclosure_gate import Group


def rounds_disclosures(job: JobOptions, sizes: RunShape) -> list[Disclosure]:
    """Count what a run discloses if it goes to its end, with all exchanges and evaluations."""
    return [*label_disclosures(job, sizes), *_column_disclosures(job, sizes), *score_disclosures(job, sizes)]


def label_disclosures(job: JobOptions, sizes: RunShape) -> list[Disclosure]:
    """Count what residuals tell each passive party of labels."""
    about, of = (sizes.active,), sizes.residuals
    defence = getattr(job.protocol.residual, "defence", None)
    rho = defence.rho(sizes.epochs) if isinstance(defence, Gaussian) else 0.0
    if not job.protocol.seals:
        numbers = sizes.rows * sizes.epochs * _numbers_per_row(job, sizes)
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
                _equation_basis(job, sizes, name),
                numbers=count_opened_numbers(sizes, name),
                rho=rho,
            )
            for name, p in sizes.parameters.items()
        ),
        *bin_disclosures(job, sizes),
    ]


def bin_disclosures(job: JobOptions, sizes: RunShape) -> list[Disclosure]:
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


def _equation_basis(job: JobOptions, sizes: RunShape, name: str) -> str:
    """Names the equations that this passive party opens, which are the rows of its J^T on every batch, if it stays."""
    table = sizes.tables.get(name, "")
    if not (table and sizes.partition and not job.equations_change):
        return ""
    parted = f"parted anew in each of {sizes.epochs} epochs" if job.reshuffle else "one partition"
    return f"{job.model.name}, {job.scale} scale, columns {table}, batches {sizes.partition}, {parted}"


def _column_disclosures(job: JobOptions, sizes: RunShape) -> list[Disclosure]:
    c, passives = job.model.output_width(sizes.outputs), sizes.passives
    hides = job.protocol.sum_for(len(passives)).hides_parts and len(passives) > 1
    exchanges = job.optimizer.exchanges(passives)
    asked = {"training": sizes.epochs * exchanges - _count_empty_exchanges(job, sizes), "held out": 0}
    asked["held out" if sizes.held_out else "training"] += count_evaluations(job, sizes)
    where, rows = evaluation_rows(job, sizes)
    numbers = {"training": sizes.rows * sizes.epochs * exchanges * _numbers_per_row(job, sizes), "held out": 0}
    numbers[where] += rows * _numbers_per_row(job, sizes)
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
                total_columns(sizes, about),
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
            found.append(Disclosure("columns", learner, others, c * sizes.epochs, total_columns(sizes, others)))
    return found


def _numbers_per_row(job: JobOptions, sizes: RunShape) -> int:
    """How many numbers a row a passive party sends up, and is sent where residuals go down as they are."""
    return (
        job.model.collected_width(sizes.outputs, len(sizes.passives))
        if isinstance(job.model, BlockModel)
        else sizes.outputs
    )


def _count_empty_exchanges(job: JobOptions, sizes: RunShape) -> int:
    """How many exchanges tell nothing of any batch: the first of a run, where weights of columns start at zero."""
    return int(sizes.batches == 1 and job.model.by_column and not sizes.resumed)


def total_columns(sizes: RunShape, names: Sequence[str]) -> int:
    """Return how many columns these parties have together."""
    return sum(sizes.columns[name] for name in names)


def count_opened_numbers(sizes: RunShape, party: str) -> int:
    """Count the numbers that a passive party opens of its gradients in a run that goes to its end."""
    return round(sizes.visits * sizes.openings) * sizes.parameters[party]

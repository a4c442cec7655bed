"""The disclosures of a training by rounds, as numbers.

The active party has labels; passive parties have none. In each exchange passive parties send outputs (c numbers for
each row), and receive residuals, either in the clear or encrypted ("sealed"). From encrypted residuals a passive party
obtains one gradient with p numbers, one for each of its weights: p linear equations about the residuals of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.families.evaluations import count_evaluations, evaluation_rows, score_disclosures
from securevfl.models.block import BlockModel
from securevfl.options import JobOptions
from securevfl.protocols.bin_classes import count_bits
from securevfl.protocols.residuals.defences import Gaussian
from securevfl.runtime.disclosure_gate import Group


def rounds_disclosures(job: JobOptions, shape: RunShape) -> list[Disclosure]:
    """Count what a complete run discloses, with all exchanges and evaluations."""
    return [*label_disclosures(job, shape), *_column_disclosures(job, shape), *score_disclosures(job, shape)]


def label_disclosures(job: JobOptions, shape: RunShape) -> list[Disclosure]:
    """Count the numbers or equations about labels that residuals disclose to each passive party."""
    about, residuals = (shape.active,), shape.residuals
    defence = getattr(job.protocol.residual, "defence", None)
    rho = defence.rho(shape.epochs) if isinstance(defence, Gaussian) else 0.0
    if not job.protocol.seals:
        numbers = shape.rows * shape.epochs * _numbers_per_row(job, shape)
        return [
            Disclosure("labels", name, about, residuals, residuals, "every residual", numbers=numbers, rho=rho)
            for name in shape.passives
        ]
    gradients = [
        Disclosure(
            "labels",
            name,
            about,
            job.equations * p,
            residuals,
            _equation_basis(job, shape, name),
            numbers=count_opened_numbers(shape, name),
            rho=rho,
        )
        for name, p in shape.parameters.items()
    ]
    return [*gradients, *bin_disclosures(job, shape)]


def bin_disclosures(job: JobOptions, shape: RunShape) -> list[Disclosure]:
    """Count the bits about labels of all training rows that class counts of bins can disclose."""
    if job.prepare.woe is None or job.protocol.residual is None:
        return []
    disclosures, capacity = [], round(shape.rows * shape.label_bits)
    for name, bins in shape.bins.items():
        table = shape.tables.get(name, "")
        basis = f"classes in bins ({job.prepare.woe}), columns {table}, batches {shape.partition}" if table else ""
        bits = job.protocol.residual.counted_bits(shape.rows, bins, count_bits(shape.rows))
        disclosures.append(Disclosure("labels", name, (shape.active,), bits, capacity, basis, "bins", bins))
    return disclosures


def _equation_basis(job: JobOptions, shape: RunShape, name: str) -> str:
    """Name the equations that this passive party opens, so that equal ones count once; empty if they change."""
    table = shape.tables.get(name, "")
    if not (table and shape.partition and not job.equations_change):
        return ""
    partition = f"parted anew in each of {shape.epochs} epochs" if job.reshuffle else "one partition"
    return f"{job.model.name}, {job.scale} scale, columns {table}, batches {shape.partition}, {partition}"


def _column_disclosures(job: JobOptions, shape: RunShape) -> list[Disclosure]:
    """Count the numbers about columns that sums of outputs, and residuals in the clear, disclose."""
    c, passives = job.model.output_width(shape.outputs), shape.passives
    hides_parts = job.protocol.sum_for(len(passives)).hides_parts and len(passives) > 1
    exchanges = job.optimizer.exchanges(passives)
    sums = {"training": shape.epochs * exchanges - _count_empty_exchanges(job, shape), "held out": 0}
    sums["held out" if shape.held_out else "training"] += count_evaluations(job, shape)
    evaluated_group, evaluated_rows = evaluation_rows(job, shape)
    numbers = {"training": shape.rows * shape.epochs * exchanges * _numbers_per_row(job, shape), "held out": 0}
    numbers[evaluated_group] += evaluated_rows * _numbers_per_row(job, shape)
    disclosures = []
    groups: tuple[Group, ...] = ("training", "held out") if shape.held_out else ("training",)
    for group in groups:
        disclosures += [
            Disclosure(
                "columns",
                shape.active,
                about,
                c * sums[group],
                total_columns(shape, about),
                group=group,
                numbers=numbers[group],
            )
            for about in ([passives] if hides_parts else [(name,) for name in passives])
        ]
    if hides_parts and exchanges > 1:
        # Weights start at 0 and one party updates between two exchanges, so sums differ by its output.
        disclosures += [
            Disclosure("columns", shape.active, (name,), c * shape.epochs, shape.columns[name]) for name in passives
        ]
    if not job.protocol.seals:
        # In parallel or in turn, each passive party receives one residual in an iteration.
        for learner in passives:
            others = tuple(name for name in shape.columns if name != learner)
            disclosures.append(Disclosure("columns", learner, others, c * shape.epochs, total_columns(shape, others)))
    return disclosures


def _numbers_per_row(job: JobOptions, shape: RunShape) -> int:
    """Return how many numbers a passive party sends for each row; a residual in the clear has as many."""
    if isinstance(job.model, BlockModel):
        return job.model.collected_width(shape.outputs, len(shape.passives))
    return shape.outputs


def _count_empty_exchanges(job: JobOptions, shape: RunShape) -> int:
    """Return how many exchanges disclose nothing about any batch.

    That is the first one of a run with one batch, because the weights of columns start at zero.
    """
    return int(shape.batches == 1 and job.model.by_column and not shape.resumed)


def total_columns(shape: RunShape, names: Sequence[str]) -> int:
    """Return the number of columns that these parties have together."""
    return sum(shape.columns[name] for name in names)


def count_opened_numbers(shape: RunShape, party: str) -> int:
    """Return how many numbers of its gradients a passive party has decrypted in a complete run."""
    return round(shape.visits * shape.openings) * shape.parameters[party]

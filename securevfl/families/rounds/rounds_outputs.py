"""The disclosures of a training by rounds, as a list of outputs (`securevfl.disclosure.outputs`).

The active party has the labels, passive parties have none. In each exchange passive parties send model outputs, c
numbers for each row, and receive residuals in the clear or encrypted ("sealed"). From encrypted residuals a passive
party obtains a gradient with p numbers, one for each weight: p linear equations about the residuals of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from securevfl.disclosure.column_leaks import COLUMN_RECOVERY
from securevfl.disclosure.counts import RunShape
from securevfl.disclosure.gradient_leaks import FRESH_EQUATIONS, LABEL_AUC, RANK
from securevfl.disclosure.identities import EVERY_RESIDUAL, identity_of
from securevfl.disclosure.outputs import Output
from securevfl.disclosure.sum_leaks import SEQUENTIAL
from securevfl.families.evaluations import EvaluationSchedule, evaluated_group, evaluated_rows, score_output
from securevfl.models.block import BlockModel
from securevfl.options import JobOptions
from securevfl.protocols.bin_classes import count_bits
from securevfl.protocols.residuals.defences import Gaussian

LABEL_LEAKS = RANK.name, FRESH_EQUATIONS.name, LABEL_AUC.name
COLUMN_LEAKS = (COLUMN_RECOVERY.name,)
SINGLE_OUTPUTS = "one party's forward outputs, in the clear"
"""The name of the output if the collector can read each party's outputs, as with a direct sum or one passive party."""


def rounds_outputs(job: JobOptions, shape: RunShape) -> list[Output]:
    """List what a complete run discloses, with all exchanges and evaluations."""
    return [*label_outputs(job, shape), *_column_outputs(job, shape), score_output(job, shape)]


def label_outputs(job: JobOptions, shape: RunShape) -> list[Output]:
    """List what residuals disclose about labels to each passive party."""
    about, residuals = (shape.active,), shape.residuals
    defence = getattr(job.protocol.residual, "defence", None)
    rho = defence.rho(shape.epochs) if isinstance(defence, Gaussian) else 0.0
    if not job.protocol.seals:
        return [
            Output(
                "residuals",
                "labels",
                name,
                about,
                "epoch",
                shape.epochs,
                residuals,
                residuals,
                rows=shape.rows,
                numbers=shape.rows * _numbers_per_row(job, shape),
                identity=EVERY_RESIDUAL,
                basis="every residual",
                rho=rho,
                leaks=(LABEL_AUC.name,),
            )
            for name in shape.passives
        ]
    gradients = [
        Output(
            "parameter gradients",
            "labels",
            name,
            about,
            "step",
            round(shape.steps * shape.openings),
            job.equations * p,
            residuals,
            rows=shape.smallest_batch,
            numbers=p,
            identity=_equation_identity(job, shape, name),
            basis=_describe_equations(job, shape),
            rho=rho,
            leaks=LABEL_LEAKS,
        )
        for name, p in shape.parameters.items()
    ]
    return [*gradients, *bin_outputs(job, shape)]


def bin_outputs(job: JobOptions, shape: RunShape) -> list[Output]:
    """List the class counts of bins, whose bits are about the labels of all training rows."""
    if job.prepare.woe is None or job.protocol.residual is None:
        return []
    outputs, word = [], count_bits(shape.rows)
    for name, bins in shape.bins.items():
        table = shape.tables.get(name, "")
        facts = "classes in bins", name, str(job.prepare.woe), table, shape.partition
        outputs.append(
            Output(
                "counts of the positive class in bins",
                "labels",
                name,
                (shape.active,),
                "start",
                1,
                job.protocol.residual.counted_bits(shape.rows, bins, word),
                round(shape.rows * shape.bits_of_a_label),
                numbers=bins,
                bits=word,
                identity=identity_of(*facts) if table else "",
                basis=f"the classes of all rows in {job.prepare.woe} bins",
                group="bins",
                leaks=LABEL_LEAKS,
            )
        )
    return outputs


def _equation_identity(job: JobOptions, shape: RunShape, name: str) -> str:
    """Return a digest that identifies the equations of a passive party's gradients, so that equal ones count once.

    The digest is empty if the equations change, or if nobody knows whether the party's columns are the same.
    """
    table = shape.tables.get(name, "")
    if not (table and shape.partition and not job.equations_change):
        return ""
    partitions = shape.epochs if job.reshuffle else 0
    return identity_of("gradients", name, job.model.name, job.scale, table, shape.partition, partitions)


def _describe_equations(job: JobOptions, shape: RunShape) -> str:
    """Return a description of the equations about residuals that a passive party's gradients are, for its ledger."""
    batches = f"new batches in each of {shape.epochs} epochs" if job.reshuffle else "the same batches in each epoch"
    return f"gradients of a {job.model.name} model on columns with {job.scale} scale, {batches}"


def _column_outputs(job: JobOptions, shape: RunShape) -> list[Output]:
    """List the outputs about columns that sums, and residuals in the clear, disclose."""
    c, passives = job.model.output_width(shape.outputs), shape.passives
    hides_parts = job.protocol.sum_for(len(passives)).hides_parts and len(passives) > 1
    exchanges = job.optimizer.exchanges(passives)
    trained = shape.epochs * exchanges
    evaluations, numbers_per_row = EvaluationSchedule.of_run(job, shape).evaluations, _numbers_per_row(job, shape)
    subjects = [passives] if hides_parts else [(name,) for name in passives]
    outputs = [
        Output(
            "sums of forward outputs" if len(about) > 1 else SINGLE_OUTPUTS,
            "columns",
            shape.active,
            about,
            "epoch",
            trained,
            c * (trained - _count_empty_exchanges(job, shape)),
            total_columns(shape, about),
            rows=shape.rows,
            numbers=shape.rows * numbers_per_row,
            leaks=COLUMN_LEAKS,
        )
        for about in subjects
    ]
    outputs += [evaluated_sums(shape, about, evaluations, c, numbers_per_row) for about in subjects]
    if hides_parts and exchanges > 1:
        # weights are 0 at first and one party at a time changes them, so two sums differ by that party's outputs
        outputs += [
            Output(
                "differences of sums, which follow from the sums",
                "columns",
                shape.active,
                (name,),
                "epoch",
                shape.epochs,
                c * shape.epochs,
                shape.columns[name],
                rows=shape.rows,
                leaks=(*COLUMN_LEAKS, SEQUENTIAL.name),
            )
            for name in passives
        ]
    if not job.protocol.seals:
        # whether parties update at once or in turn, each passive party receives one residual in an iteration
        outputs += [sum_from_residuals(shape, learner, c) for learner in passives]
    return outputs


def evaluated_sums(
    shape: RunShape, about: tuple[str, ...], evaluations: int, outputs: int, numbers_per_row: int
) -> Output:
    """Return the sums of forward outputs that joint evaluations disclose to the active party.

    Args:
        shape: the public sizes of the run.
        about: the parties whose outputs are summed.
        evaluations: number of evaluations.
        outputs: number of outputs c of the model.
        numbers_per_row: numbers that a party sends for each row.

    Returns:
        The sums as an output, with its counts.
    """
    return Output(
        "sums of evaluated rows" if len(about) > 1 else f"{SINGLE_OUTPUTS}, evaluated rows",
        "columns",
        shape.active,
        about,
        "evaluation",
        evaluations,
        outputs * evaluations,
        total_columns(shape, about),
        rows=evaluated_rows(shape),
        numbers=evaluated_rows(shape) * numbers_per_row,
        group=evaluated_group(shape),
        leaks=COLUMN_LEAKS,
    )


def sum_from_residuals(shape: RunShape, receiver: str, outputs: int) -> Output:
    """Return the sum of all other parties' outputs, which a residual in the clear discloses to a passive party."""
    others = tuple(name for name in shape.columns if name != receiver)
    return Output(
        "sums that follow from residuals",
        "columns",
        receiver,
        others,
        "epoch",
        shape.epochs,
        outputs * shape.epochs,
        total_columns(shape, others),
        rows=shape.rows,
        leaks=COLUMN_LEAKS,
    )


def _numbers_per_row(job: JobOptions, shape: RunShape) -> int:
    """Return how many numbers about each row a passive party sends, which is also how many residuals it receives."""
    if isinstance(job.model, BlockModel):
        return job.model.collected_width(shape.outputs, len(shape.passives))
    return shape.outputs


def _count_empty_exchanges(job: JobOptions, shape: RunShape) -> int:
    """Return how many exchanges disclose nothing: 1 for a run with a single batch, otherwise 0.

    In the first exchange of a run the sums are 0, because the weights of columns start at zero.
    """
    return int(shape.batches == 1 and job.model.by_column and not shape.resumed)


def total_columns(shape: RunShape, names: Sequence[str]) -> int:
    """Return the number of columns that these parties have together."""
    return sum(shape.columns[name] for name in names)

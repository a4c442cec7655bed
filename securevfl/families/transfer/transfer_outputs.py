"""The disclosures of a training by transfer learning, as a list of outputs (`securevfl.disclosure.outputs`).

The guest has the labels, the host has none. d is the number of representations of a row, n the number of rows of a
batch, and p the number of weights of a party's network (`securevfl.families.transfer.taylor`).
"""

from __future__ import annotations

from securevfl.disclosure.counts import RunShape
from securevfl.disclosure.identities import identity_of
from securevfl.disclosure.outputs import Output
from securevfl.families.evaluations import EvaluationSchedule, evaluated_group, evaluated_rows, score_output
from securevfl.families.rounds.rounds_outputs import COLUMN_LEAKS, LABEL_LEAKS
from securevfl.families.transfer.transfer_job import TransferJob
from securevfl.families.transfer.transfer_participant import TRANSFER_SCORE_ROWS


def transfer_outputs(job: TransferJob, shape: RunShape) -> list[Output]:
    """List all outputs that a complete run discloses: gradients or vectors, second moments and scores."""
    (host,), guest = shape.passives, shape.active
    training = _sealed_outputs(job, shape, host) if job.protocol.residual.seals else _open_outputs(job, shape, host)
    return [*training, _evaluation_output(job, shape, host), score_output(job, shape), *_host_view(job, shape, guest)]


def _sealed_outputs(job: TransferJob, shape: RunShape, host: str) -> list[Output]:
    """List the gradients that both parties open, with second moments if the networks are linearised."""
    guest = shape.active
    steps, moments = job.model.openings(job.optimizer.steps), job.model.moments(job.optimizer.steps)
    p_host, p_guest = shape.parameters[host], job.model.parameters(shape.columns[guest], 1)
    opened = ((p_guest + 1) * steps + moments) * shape.steps
    return [
        Output(
            "parameter gradients of the host",
            "labels",
            host,
            (guest,),
            "step",
            shape.steps,
            p_host * job.equations + moments * shape.epochs,
            shape.smallest_batch,
            rows=shape.smallest_batch,
            numbers=p_host * steps + moments,
            leaks=LABEL_LEAKS,
        ),
        Output(
            "parameter gradients of the guest",
            "columns",
            guest,
            (host,),
            "step",
            shape.steps,
            -(-opened // shape.rows),
            shape.columns[host],
            rows=shape.smallest_batch,
            numbers=(p_guest + 1) * steps + moments,
            leaks=COLUMN_LEAKS,
        ),
    ]


def _open_outputs(job: TransferJob, shape: RunShape, host: str) -> list[Output]:
    """List the vectors of representations that both parties send in the clear."""
    guest, n, d = shape.active, shape.smallest_batch, job.model.units
    vectors = shape.rows * d + shape.batches * (d * (d + 1) // 2 + job.model.moments(job.optimizer.steps))
    return [
        Output(
            "vectors of the guest",
            "labels",
            host,
            (guest,),
            "epoch",
            shape.epochs,
            n,
            n,
            rows=shape.rows,
            numbers=vectors,
            identity=identity_of("every exchange"),
            basis="every exchange",
        ),
        Output(
            "representations of the host",
            "columns",
            guest,
            (host,),
            "epoch",
            shape.epochs,
            d * shape.epochs,
            shape.columns[host],
            rows=shape.rows,
            numbers=vectors,
            leaks=COLUMN_LEAKS,
        ),
    ]


def _host_view(job: TransferJob, shape: RunShape, guest: str) -> list[Output]:
    """List the guest's representations, which the host can compute if vectors are sent in the clear."""
    if job.protocol.residual.seals:
        return []
    (host,), d = shape.passives, job.model.units
    return [
        Output(
            "representations of the guest, which follow from its vectors",
            "columns",
            host,
            (guest,),
            "epoch",
            shape.epochs,
            d * shape.epochs,
            shape.columns[guest],
            rows=shape.rows,
            leaks=COLUMN_LEAKS,
        )
    ]


def _evaluation_output(job: TransferJob, shape: RunShape, host: str) -> Output:
    """Return the output of an evaluation: the scores of the evaluated rows, or representations that determine them."""
    times, rows = EvaluationSchedule.of_run(job, shape).evaluations, evaluated_rows(shape)
    numbers_per_row = 1 if job.protocol.residual.seals else job.model.units
    block = min(TRANSFER_SCORE_ROWS, rows)
    return Output(
        "scores of evaluated rows, from representations",
        "columns",
        shape.active,
        (host,),
        "evaluation",
        times,
        times * numbers_per_row,
        shape.columns[host],
        rows=rows,
        numbers=-(-rows // block) * block * numbers_per_row,
        group=evaluated_group(shape),
        leaks=COLUMN_LEAKS,
    )

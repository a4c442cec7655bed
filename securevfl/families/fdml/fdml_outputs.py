"""The disclosures of asynchronous training (FDML), as a list of outputs (`securevfl.disclosure.outputs`).

Workers are the parties with columns. In every iteration a worker pushes its model outputs on a batch to a server and
pulls the sum of all workers' outputs: c numbers about each row. d such numbers determine the d columns in the sum.
- With three or more workers, it may happen that only one other worker changed its outputs between two pulls of a batch.
  The difference of the two sums is then that worker's change. So each other worker is also counted alone.
- A server that stores outputs in the clear receives those of every worker. Without a server, every worker receives the
  outputs of all others.

The active party has the labels. An evaluation computes metrics of the model on held-out rows; then the active party
receives the sum of all outputs. A residual is the derivative of the loss by this sum.
"""

from __future__ import annotations

from securevfl.base.roles import SERVER, Roles
from securevfl.disclosure.counts import RunShape
from securevfl.disclosure.identities import EVERY_LABEL
from securevfl.disclosure.outputs import Output
from securevfl.families.evaluations import EvaluationSchedule, score_output
from securevfl.families.fdml.fdml_optimizer import FdmlJob, stored_of
from securevfl.families.rounds.rounds_outputs import COLUMN_LEAKS, evaluated_sums, label_outputs, total_columns


def fdml_outputs(job: FdmlJob, shape: RunShape) -> list[Output]:
    """List what a complete run discloses: labels, pulled sums or pushed outputs, and evaluations."""
    return [
        *(_shown_labels(shape) if job.optimizer.shows_labels else label_outputs(job, shape)),
        *_column_outputs(job, shape),
        *_evaluation_outputs(job, shape),
        score_output(job, shape),
    ]


def _shown_labels(shape: RunShape) -> list[Output]:
    """List the labels that the active party sends to all workers."""
    labels = shape.residuals
    return [
        Output(
            "labels",
            "labels",
            name,
            (shape.active,),
            "start",
            1,
            labels,
            labels,
            rows=shape.rows,
            numbers=shape.rows * shape.outputs,
            identity=EVERY_LABEL,
            basis="every label",
        )
        for name in shape.passives
    ]


def _column_outputs(job: FdmlJob, shape: RunShape) -> list[Output]:
    """List what pulls, pushes and residuals in the clear disclose about columns."""
    workers, c = (shape.active, *shape.passives), job.model.output_width(shape.outputs)
    readers = workers if job.optimizer.shows_labels else (shape.active,)

    def each_epoch(name: str, receiver: str, about: tuple[str, ...], *, sent: bool) -> Output:
        numbers = shape.rows * c if sent else 0
        return Output(
            name,
            "columns",
            receiver,
            about,
            "epoch",
            shape.epochs,
            c * shape.epochs,
            total_columns(shape, about),
            rows=shape.rows,
            numbers=numbers,
            leaks=COLUMN_LEAKS,
        )

    outputs = []
    if not shape.helpers:  # without a server, every worker receives the outputs of all others in the clear
        outputs += [
            each_epoch("pushed outputs", reader, (other,), sent=True)
            for reader in workers
            for other in workers
            if reader != other
        ]
    else:
        for reader in readers:
            others = tuple(name for name in workers if name != reader)
            outputs.append(each_epoch("pulled sums", reader, others, sent=True))
            if job.optimizer.tau and len(others) > 1:
                outputs += [
                    each_epoch("changes of one worker's outputs", reader, (other,), sent=False) for other in others
                ]
        if not stored_of(job).hides_parts:
            outputs += [
                each_epoch("pushed outputs", server, (name,), sent=True) for server in shape.helpers for name in workers
            ]
    if not job.optimizer.shows_labels and not job.protocol.seals:  # unencrypted residuals g determine the sum f
        for receiver in shape.passives:
            others = tuple(name for name in workers if name != receiver)
            outputs.append(each_epoch("sums that follow from residuals", receiver, others, sent=False))
    return outputs


def _evaluation_outputs(job: FdmlJob, shape: RunShape) -> list[Output]:
    """List what the active party learns when all parties evaluate the model; the protocol of sums determines it."""
    passives, c = shape.passives, job.model.output_width(shape.outputs)
    hides_parts = len(passives) > 1 and job.protocol.sum_for(len(passives)).hides_parts
    evaluations = EvaluationSchedule.of_run(job, shape).evaluations
    subjects = [passives] if hides_parts else [(name,) for name in passives]
    return [evaluated_sums(shape, about, evaluations, c, c) for about in subjects]


def single_worker_lines(job: FdmlJob, roles: Roles) -> list[str]:
    """Return lines for the consent sheet if asynchronous pushes can reveal a single worker's outputs."""
    workers = [name for name in roles.parties if roles.role(name) != SERVER]
    if not job.optimizer.tau or len(workers) < 3 or not roles.with_role(SERVER):
        return []
    return [
        "workers advance independently: if only one other worker has pushed a batch between two pulls of it, the "
        "difference of the two sums is the change of that worker's outputs",
    ]

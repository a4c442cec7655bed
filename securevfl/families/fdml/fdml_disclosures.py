"""The disclosures of asynchronous training (FDML) about columns.

Workers are the parties with columns; c is the number of outputs of a row. A worker pushes its outputs on a batch to a
server, and pulls the sum of all workers' outputs. It thus receives c numbers about each row of a batch in every
iteration, under changing weights. After d such numbers, the d columns that contribute to the sum are determined, as in
training by rounds. Two rules are particular to FDML:

- With three workers or more, it may happen that only one other worker has pushed a batch again between two pulls of
  that batch. The versions in the replies show this, and the difference of the two sums is then the change of that
  worker's outputs. Therefore each other worker is also counted alone, with c numbers about a row in every iteration,
  although most iterations disclose less.
- A server that stores outputs in the clear receives those of every worker and is counted under its name. Without a
  server, every worker receives the outputs of all others.
"""

from __future__ import annotations

from securevfl.base.roles import SERVER, Roles
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.families.evaluations import count_evaluations, evaluation_rows
from securevfl.families.fdml.fdml_optimizer import FdmlJob
from securevfl.families.rounds.rounds_disclosures import total_columns
from securevfl.runtime.disclosure_gate import Group


def column_disclosure(
    shape: RunShape, learner: str, about: tuple[str, ...], count: int, numbers: int = 0, group: Group = "training"
) -> Disclosure:
    """Return the disclosure to `learner` of `count` numbers for each row about the columns of the parties `about`."""
    return Disclosure("columns", learner, about, count, total_columns(shape, about), group=group, numbers=numbers)


def evaluation_disclosures(job: FdmlJob, shape: RunShape) -> list[Disclosure]:
    """Count the disclosures of joint evaluations, by the job's sum protocol, to the active party."""
    passives = shape.passives
    hides_parts = len(passives) > 1 and job.protocol.sum_for(len(passives)).hides_parts
    numbers_per_row = count_evaluations(job, shape) * job.model.output_width(shape.outputs)
    group, rows = evaluation_rows(job, shape)
    numbers = rows * job.model.output_width(shape.outputs)
    return [
        column_disclosure(shape, shape.active, about, numbers_per_row, numbers, group)
        for about in ([passives] if hides_parts else [(name,) for name in passives])
    ]


def single_worker_lines(job: FdmlJob, roles: Roles) -> list[str]:
    """Return lines for the consent sheet if asynchronous pushes can reveal a single worker's outputs; else none."""
    workers = [name for name in roles.parties if roles.role(name) != SERVER]
    if not job.optimizer.tau or len(workers) < 3 or not roles.with_role(SERVER):
        return []
    return [
        "workers advance independently: if only one other worker has pushed a batch between two pulls of it, the",
        "difference of the two sums is the change of that worker's outputs",
    ]

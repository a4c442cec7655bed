"""What training at everyone's own pace (FDML) adds up to, counted, and what each role can tell from it, in words.

A worker that pulls sums is told, for every visit to a batch, c numbers about each of its rows: the sum of the forward
outputs of all others, of weights that move. Over d visits these span the d columns behind them, as in training by
rounds. Two things are particular here:

- With three workers or more that may be apart, it happens that between two pulls of one batch a single other worker
  has
  pushed it anew. The versions say so, and the difference of the two sums is then that worker's part alone. So each
  other worker is counted alone too, c numbers a row in every visit, though most visits tell less.
- The server, if local predictions lie there in the clear, is told every part of every worker: it is counted as a
  party
  that learns, under its name. Without a server every worker is told every part of all others.
"""

from __future__ import annotations

from securevfl.base.roles import SERVER, Roles
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.families.evaluations import count_evaluations, evaluation_rows
from securevfl.families.fdml.fdml_optimizer import FdmlJob
from securevfl.families.rounds.rounds_disclosures import total_columns
from securevfl.runtime.disclosure_gate import Group


def column_disclosure(
    sizes: RunShape, learner: str, about: tuple[str, ...], count: int, numbers: int = 0, group: Group = "training"
) -> Disclosure:
    return Disclosure("columns", learner, about, count, total_columns(sizes, about), group=group, numbers=numbers)


def evaluation_disclosures(job: FdmlJob, sizes: RunShape) -> list[Disclosure]:
    """Count what the sums of evaluations, made by the job's own sum, tell the active party."""
    passives = sizes.passives
    hides = len(passives) > 1 and job.protocol.sum_for(len(passives)).hides_parts
    told = count_evaluations(job, sizes) * job.model.output_width(sizes.outputs)
    group, rows = evaluation_rows(job, sizes)
    return [
        column_disclosure(sizes, sizes.active, about, told, rows * job.model.output_width(sizes.outputs), group)
        for about in ([passives] if hides else [(name,) for name in passives])
    ]


def single_worker_lines(job: FdmlJob, roles: Roles) -> list[str]:
    """Return a further line where the part of a single worker may show, because workers go at their own pace; empty
    otherwise."""
    workers = [name for name in roles.parties if roles.role(name) != SERVER]
    if not job.optimizer.tau or len(workers) < 3 or not roles.with_role(SERVER):
        return []
    return [
        "workers go at their own pace: where one other alone has moved between two pulls of a batch, the difference",
        "is the change of that worker's part",
    ]

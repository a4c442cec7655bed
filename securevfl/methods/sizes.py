"""The sizes of a job on a schedule, and what a run tells by its scores, whatever its method."""

from __future__ import annotations

from collections.abc import Mapping

from securevfl.data.schedule import Schedule
from securevfl.disclosure.counts import Disclosure, Sizes
from securevfl.options import JobOptions


def sizes_of(
    job: JobOptions,
    schedule: Schedule,
    *,
    active: str,
    columns: Mapping[str, int],
    outputs: int,
    brought: Mapping[str, int] | None = None,
    tables: Mapping[str, str] | None = None,
    enough: Mapping[str, float] | None = None,
) -> Sizes:
    """The sizes of this job on this schedule, with d_k `columns` at each party and c `outputs`; more as in `Sizes`.

    brought: p_k of parties that bring a module of their own. A party of no columns is a helper.
    """
    helpers = tuple(name for name, d in columns.items() if not d)
    columns = {name: d for name, d in columns.items() if d}
    return Sizes(
        active=active,
        rows=len(schedule.train),
        held_out=len(schedule.test),
        batches=schedule.batches,
        smallest_batch=schedule.smallest_batch,
        epochs=job.epochs,
        outputs=outputs,
        parameters={
            name: (brought or {}).get(name) or job.model.parameters(d, outputs)
            for name, d in columns.items()
            if name != active
        },
        columns={active: columns[active]} | dict(columns),
        tables=dict(tables or {}),
        enough=dict(enough or {}),
        partition=schedule.name,
        helpers=helpers,
    )


def evaluations(job: JobOptions, sizes: Sizes) -> int:
    """How often all parties predict together in a run: where it is due between rounds, and at the end."""
    interval = job.evaluation_interval
    return 1 + (sizes.epochs * sizes.batches // interval if interval else 0)


def scores(job: JobOptions, sizes: Sizes) -> list[Disclosure]:
    """How many numbers f the joint evaluations tell the leading party."""
    rows = sizes.held_out or sizes.rows
    told = evaluations(job, sizes) * rows * sizes.outputs
    return [Disclosure("scores", sizes.active, sizes.passives, told, 0)]

"""Leaks that a job must name before it may have them.

*Rank.* An opened gradient is p equations about the n c numbers of g. From p >= n c on it determines g, and g the
labels. (rank(J) <= min(p, n c), so a rank that reaches n c needs p >= n c.)

*Fresh equations.* With one fixed partition into batches a linear model's equations are the same every epoch. Rows
reshuffled between epochs give new equations about the same labels each time: 15 columns of noise and batches of 256
recover labels to AUC .98 in 40 epochs.

*Label AUC.* A job may set `max_label_auc`: what columns of noise may tell of the labels through opened gradients
(`securevfl.audit.curve`). Larger batches hide more, so the limit is a smallest batch size.

*Single passive.* A sum that hides its parts hides nothing when there is one part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from securevfl.errors import LeakageError

if TYPE_CHECKING:
    from securevfl.job import Job

LeakName = Literal["rank", "fresh_equations", "single_passive", "label_auc"]
LEAKS: tuple[str, ...] = get_args(LeakName)


@dataclass(frozen=True)
class Leak:
    """One leak of a job as it stands."""

    name: LeakName
    who: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f'{self.who}: {self.what}; {self.remedy}, or accept it with accepts = ["{self.name}"]'


def leaks(
    job: Job, columns: Mapping[str, int], *, batch_rows: int, outputs: int, rows: int | None = None
) -> list[Leak]:
    """What this job gives away beyond its protocol's declaration.

    `columns` holds d of every passive party, `batch_rows` the rows of the smallest batch, `rows` all that train.
    """
    found: list[Leak] = []
    chosen = job.protocol.sum_for(len(columns))
    if len(columns) == 1 and chosen.hides_parts:
        found.append(
            Leak(
                "single_passive",
                next(iter(columns)),
                f"a {chosen.name} sum of one passive party's outputs is that party's outputs, so it protects nothing",
                'use sum = "direct" (or "auto"), which says so',
            )
        )
    if job.protocol.residual.seals:
        found += [
            Leak(
                "rank",
                name,
                f"its opened gradient has {d * outputs} parameters for {batch_rows * outputs} residuals a batch, "
                "which determines every residual and so the labels",
                f"use batch_size > {d} (rows per batch more than its columns)",
            )
            for name, d in columns.items()
            if d >= batch_rows
        ]
        if job.reshuffle:
            found.append(
                Leak(
                    "fresh_equations",
                    ", ".join(columns),
                    "rows reshuffled every epoch give each passive party new equations about the labels every epoch",
                    "use reshuffle = false, one fixed partition into batches",
                )
            )
    if job.max_label_auc is not None:
        found += _beyond_limit(job, columns, job.max_label_auc, batch_rows, outputs, rows)
    return found


def _beyond_limit(
    job: Job, columns: Mapping[str, int], limit: float, batch_rows: int, outputs: int, rows: int | None
) -> list[Leak]:
    """The passive parties that would learn more of the labels than the job allows."""
    from securevfl.audit.curve import expected_label_auc, smallest_batch

    residual = job.protocol.residual
    if not residual.seals:
        shown = any(item.receiver == "passive" and item.reveals.kind == "plain" for item in residual.declares())
        what = f"an {residual.name} residual shows the labels, the job allows an AUC of {limit:g}"
        return [Leak("label_auc", ", ".join(columns), what, "seal the residual")] if shown else []
    found = []
    for name, d in columns.items():
        auc = expected_label_auc(d * outputs, batch_rows, outputs, job.epochs, job.reshuffle)
        if auc <= limit:
            continue
        needed = smallest_batch(d * outputs, outputs, job.epochs, job.reshuffle, limit)
        if rows is None:
            remedy = f"use batches of at least {needed} rows"
        elif needed > rows:
            remedy = f"raise the limit or drop columns: it would take batches of {needed} rows and there are {rows}"
        else:
            remedy = f"use batch_size >= {-(-rows // (rows // needed))}"
        what = f"its opened gradients tell labels to an AUC of {auc:.3f} from columns of noise, allowed is {limit:g}"
        found.append(Leak("label_auc", name, what, remedy))
    return found


def guard(job: Job, columns: Mapping[str, int], *, batch_rows: int, outputs: int, rows: int | None = None) -> None:
    """LeakageError, one line a leak, unless the job accepts each by name."""
    refused = [
        leak
        for leak in leaks(job, columns, batch_rows=batch_rows, outputs=outputs, rows=rows)
        if leak.name not in job.accepts
    ]
    if refused:
        raise LeakageError("\n".join(map(str, refused)))

"""Leaks that a job must name before it may have them.

*Rank.* An opened gradient is p equations about the n c numbers of g. From p >= n c on it determines g, and g the
labels. (rank(J) <= min(p, n c), so a rank that reaches n c needs p >= n c.)

*Fresh equations.* With one fixed partition into batches a linear model's equations are the same every epoch. Rows
reshuffled between epochs give new equations about the same labels each time: 15 columns of noise and batches of 256
recover labels to AUC .98 in 40 epochs.

*Single passive.* A sum that hides its parts hides nothing when there is one part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from securevfl.errors import LeakageError

if TYPE_CHECKING:
    from securevfl.job import Job

LeakName = Literal["rank", "fresh_equations", "single_passive"]
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


def leaks(job: Job, columns: Mapping[str, int], *, batch_rows: int, outputs: int) -> list[Leak]:
    """What this job gives away beyond its protocol's declaration.

    `columns` holds d of every passive party, `batch_rows` the rows of the smallest batch.
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
    return found


def guard(job: Job, columns: Mapping[str, int], *, batch_rows: int, outputs: int) -> None:
    """LeakageError, one line a leak, unless the job accepts each by name."""
    refused = [
        leak for leak in leaks(job, columns, batch_rows=batch_rows, outputs=outputs) if leak.name not in job.accepts
    ]
    if refused:
        raise LeakageError("\n".join(map(str, refused)))

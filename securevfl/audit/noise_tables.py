"""Tables of noise for the parties whose tables are not available, so that one party can audit a job alone.

Inferences about columns are then about this party's own columns. If this party has no labels, inferences about labels
are about generated labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.party import Party
from securevfl.errors import ConfigError
from securevfl.families.table_preparation import prepare_party
from securevfl.job import Job


def with_noise_parties(job: Job, party: Party, others: Mapping[str, int], classes: int | None) -> list[Party]:
    """Return the party together with parties that have columns of noise.

    If the party has no labels, the first of the others gets labels. These labels depend on a few columns of every party
    and on as much noise.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        party: the party with a real table.
        others: number of columns of each other party, by name.
        classes: number of classes of the generated labels; ignored if the job's loss takes numbers. None is the number
            of classes that the job names, or else 2.

    Returns:
        The parties; the first one has the labels. Raises ConfigError if the job names another number of classes.
    """
    rng = np.random.default_rng(job.seed)
    tables = {name: rng.normal(size=(len(party), d)) for name, d in others.items()}
    ids = {"aligned": True} if party.ids is None else {"ids": party.ids}
    y = (
        None
        if party.active
        else _labels(job, [prepare_party(job, party, party.register).X, *tables.values()], classes, rng)
    )
    lead = party.name if party.active else next(iter(others))
    first, *remaining = (Party(name, X, y if name == lead else None, **ids) for name, X in tables.items())
    return [party, first, *remaining] if party.active else [first, party, *remaining]


def _labels(job: Job, tables: list[Floats], classes: int | None, rng: np.random.Generator) -> NDArray[Any]:
    """Draw labels (m,) that depend on one direction of each table."""
    scores = sum(_direction(X, rng) for X in tables) + rng.normal(size=len(tables[0])) * len(tables) ** 0.5
    if not job.model.loss.classifies:
        return job.model.loss.synthetic_labels(np.asarray(scores, dtype=np.float64))
    names = _class_names(job)
    count = classes or len(names) or 2
    if names and count != len(names):
        raise ConfigError(
            f"the job names {len(names)} classes, and {count} classes were requested",
            f"set --classes to {len(names)}, or leave it out",
            code="SVFL-COMMAND-USAGE",
        )
    edges = np.quantile(scores, np.arange(1, count) / count)
    return np.array(names or range(count))[np.searchsorted(edges, scores)]


def _class_names(job: Job) -> list[str]:
    """Return the classes that the job names, last the positive one if it names one; empty if it names no class."""
    weighted = job.weights.classes if job.weights is not None else None
    names = list(weighted) if isinstance(weighted, dict) else []
    if job.positive is None:
        return names
    return [*([name for name in names if name != job.positive] or [f"not {job.positive}"]), job.positive]


def _direction(X: Floats, rng: np.random.Generator) -> Floats:
    """Return a random direction of the columns (m,), of standard deviation 1 unless all columns are constant."""
    values = (X - X.mean(axis=0)) @ rng.normal(size=X.shape[1])
    return values / (values.std() or 1.0)

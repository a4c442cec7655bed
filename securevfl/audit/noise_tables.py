"""Tables in the place of parties that show theirs to nobody: noise of their sizes, for one party's audit of its own.

What the audit then says of the party's own columns is of these; what it says of labels is of labels that were made
up.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.party import Party
from securevfl.families.table_preparation import prepare_party
from securevfl.job import Job


def with_noise_parties(job: Job, own: Party, others: Mapping[str, int], classes: int) -> list[Party]:
    """Place the party among others of so many columns of noise; if it has no labels, the first of the others has some.

    The labels follow a few columns of every party, the party's own among them, with as much noise: in so many
    `classes`, or as numbers where the job's loss takes these.
    """
    draw = np.random.default_rng(job.seed)
    tables = {name: draw.normal(size=(len(own), d)) for name, d in others.items()}
    ids = {"aligned": True} if own.ids is None else {"ids": own.ids}
    y = None if own.active else _labels(job, [prepare_party(job, own, own.register).X, *tables.values()], classes, draw)
    lead = own.name if own.active else next(iter(others))
    first, *rest = (Party(name, X, y if name == lead else None, **ids) for name, X in tables.items())
    return [own, first, *rest] if own.active else [first, own, *rest]


def _labels(job: Job, tables: list[Floats], classes: int, draw: np.random.Generator) -> NDArray[np.float64]:
    scores = sum(_column(X, draw) for X in tables) + draw.normal(size=len(tables[0])) * len(tables) ** 0.5
    if not job.model.loss.classifies:
        return job.model.loss.synthetic_labels(np.asarray(scores, dtype=np.float64))
    edges = np.quantile(scores, np.arange(1, classes) / classes)
    return np.searchsorted(edges, scores).astype(np.float64)


def _column(X: Floats, draw: np.random.Generator) -> Floats:
    """One direction of the columns, of deviation 1 where they vary."""
    own = (X - X.mean(axis=0)) @ draw.normal(size=X.shape[1])
    return own / (own.std() or 1.0)

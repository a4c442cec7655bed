"""What an attack is: it infers something from a view, and is scored on the real view, the ideal view and by chance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.views import Stage, View
from securevfl.crypto.scheme import Floats
from securevfl.job import Job
from securevfl.leakage import LeakName
from securevfl.party import Party
from securevfl.protocols.no_residual import NoResidual


@dataclass(frozen=True)
class Score:
    """How well an attack does: with the transcript, with the declared output alone, and knowing nothing.

    `detail` says whose data it is about and what of it was found, by the names of columns; never a value.
    """

    real: float
    simulated: float
    chance: float
    detail: str = ""

    @property
    def excess(self) -> float:
        """What the transcript gives beyond the declared output."""
        return self.real - self.simulated


class Attack(ABC):
    """One attack. `measures` says what its score is; `leak` which leak of a job it carries out, if that has a name, and
    `beyond` the score above which it has done so."""

    name: ClassVar[str]
    paper: ClassVar[str]
    measures: ClassVar[str]
    leak: ClassVar[LeakName | None] = None
    beyond: ClassVar[float] = 0.0

    def applies_to(self, job: Job) -> bool:
        """Whether the attack makes sense for this job."""
        return True

    def __call__(self, job: Job, parties: Sequence[Party], seed: int) -> Score:
        """Runs the job (and its ideal) with this seed and attacks both."""
        return self.score(Stage(job, parties, seed))

    @abstractmethod
    def score(self, stage: Stage) -> Score:
        """As above, on runs that several attacks share."""


class LabelAttack(Attack):
    """A passive party after the labels. The score is the AUC, for several classes the mean over one against rest."""

    measures: ClassVar[str] = "AUC of the labels"

    def applies_to(self, job: Job) -> bool:
        return job.model.loss.classifies and not isinstance(job.protocol.residual, NoResidual)

    @abstractmethod
    def guess(self, view: View, stage: Stage) -> Floats:
        """A score (m x c) for every row: c = 1, higher for the second class; or a column a class. Unknown rows NaN."""

    def score(self, stage: Stage) -> Score:
        real, ideal = (label_auc(self.guess(view, stage), stage.labels) for view in (stage.real(), stage.ideal()))
        return Score(real, ideal, 0.5)


def label_auc(scores: Floats, labels: NDArray[np.intp]) -> float:
    """AUC of scores (m x c) against class numbers (m,), over the rows that have a score; .5 where none can be told."""
    from sklearn.metrics import roc_auc_score

    known = np.isfinite(scores).all(axis=1)
    classes = [1] if scores.shape[1] == 1 else range(scores.shape[1])
    found = []
    for column, label in enumerate(classes):
        truth = labels[known] == label
        if 0 < truth.sum() < len(truth):
            found.append(float(roc_auc_score(truth, scores[known, column])))
    return float(np.mean(found)) if found else 0.5


def mean_by_row(estimates: list[tuple[NDArray[np.intp], Floats]], m: int, c: int) -> Floats:
    """The mean of the estimates of each row (m x c); NaN for rows without any."""
    total, count = np.zeros((m, c)), np.zeros((m, 1))
    for rows, values in estimates:
        total[rows] += values
        count[rows] += 1
    mean: Floats = np.divide(total, count, out=np.full((m, c), np.nan), where=count > 0)
    return mean


def known_rows(stage: Stage, share: float = 0.1, *, at_least: int = 5) -> NDArray[np.intp]:
    """Training rows whose labels the attacker is given: a share of each class, at least a few."""
    generator = np.random.default_rng([stage.seed, 77])
    train, labels = stage.schedule.train, stage.labels
    chosen = []
    for label in np.unique(labels):
        rows = generator.permutation(train[labels[train] == label])
        chosen.append(rows[: max(at_least, round(share * len(rows)))])
    return np.sort(np.concatenate(chosen))

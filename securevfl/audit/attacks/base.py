"""What an attack is: it infers something from a view, and is scored on the real view, the ideal view and by chance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.recording.views import View, Worlds
from securevfl.crypto.scheme import Floats
from securevfl.data.party import Party
from securevfl.disclosure.label_auc import smallest_batch
from securevfl.job import Job
from securevfl.methods.base import Known
from securevfl.options import LeakName

MODEST = 0.6  # label AUC that a proposed batch size keeps columns of noise at


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


class By(StrEnum):
    """Whose view an attack starts from."""

    EACH = "each passive party"
    LEAD = "the leading party"
    ANYONE = "any party"


class Attack(ABC):
    """One attack. `measures` says what its score is, `by` whose view it starts from; `leak` which leak of a job it
    carries out, if that has a name, and `beyond` the score above which it has done so."""

    name: ClassVar[str]
    paper: ClassVar[str]
    measures: ClassVar[str]
    by: ClassVar[By] = By.LEAD
    leak: ClassVar[LeakName | None] = None
    beyond: ClassVar[float] = 0.0

    def applies_to(self, job: Job) -> bool:
        """Whether the attack makes sense for this job."""
        return True

    def hidden(self, job: Job) -> bool:
        """Whether the job is to hide what the attack is after: a real view may then give no more than an ideal one."""
        return True

    def who(self, job: Job, attacker: str, lead: str) -> str:
        """The name of the attacker in this job, or `By.ANYONE`; `attacker` is the passive party whose turn it is."""
        return {By.EACH: attacker, By.LEAD: lead}.get(self.by, str(By.ANYONE))

    @abstractmethod
    def remedy(self, job: Job, known: Known, attacker: str) -> str:
        """What would make it find less."""

    def __call__(self, job: Job, parties: Sequence[Party], seed: int) -> Score:
        """Runs the job (and its ideal) with this seed and attacks both."""
        return self.score(Worlds(job, parties, seed))

    @abstractmethod
    def score(self, worlds: Worlds) -> Score:
        """As above, on runs that several attacks share."""


class LabelAttack(Attack):
    """A passive party after the labels. The score is the AUC, for several classes the mean over one against rest."""

    measures: ClassVar[str] = "AUC of the labels"
    by = By.EACH

    def applies_to(self, job: Job) -> bool:
        return job.model.loss.classifies and (job.protocol.residual is not None or job.protocol.method is not None)

    @abstractmethod
    def guess(self, view: View, worlds: Worlds) -> Floats:
        """A score (m x c) for every row: c = 1, higher for the second class; or a column a class. Unknown rows NaN."""

    def hidden(self, job: Job) -> bool:
        return job.protocol.seals or job.protocol.method is not None

    def remedy(self, job: Job, known: Known, attacker: str) -> str:
        if job.protocol.method is not None:
            return "none: it has nothing to go by"
        if not job.protocol.seals:
            return 'seal the residual: residual = "ckks" or "paillier"; or blur it with a defence'
        sizes = known.sizes
        p, rows = sizes.parameters[attacker], sizes.smallest_batch
        needed = smallest_batch(p, sizes.outputs, job.equations, job.equations > 1, MODEST)
        if needed <= rows:
            return f"leave out columns that go with the label: its gradient alone says little at {rows} rows a batch"
        share = p / (needed * sizes.outputs)
        fewer = "fewer columns" if job.model.by_column else "a bottom trained without labels (LocalBottom)"
        return f"batches of {needed:,} rows or more, so that p / (n c) falls below {share:.3f}; {fewer}"

    def score(self, worlds: Worlds) -> Score:
        real, ideal = (label_auc(self.guess(view, worlds), worlds.labels) for view in (worlds.real(), worlds.ideal()))
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


def known_rows(worlds: Worlds, share: float = 0.1, *, at_least: int = 5) -> NDArray[np.intp]:
    """Training rows whose labels the attacker is given: a share of each class, at least a few."""
    generator = np.random.default_rng([worlds.seed, 77])
    train, labels = worlds.schedule.train, worlds.labels
    chosen = []
    for label in np.unique(labels):
        rows = generator.permutation(train[labels[train] == label])
        chosen.append(rows[: max(at_least, round(share * len(rows)))])
    return np.sort(np.concatenate(chosen))

"""What an attack is: it infers something from a view, and is scored on the real view, the ideal view and by chance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.recording.party_view import PartyView
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.data.party import Party
from securevfl.disclosure.label_auc import smallest_batch
from securevfl.families.run_facts import RunFacts
from securevfl.job import Job

Requirement = tuple[Callable[[Job], bool], str]  # what a job must have for an attack, and what is said where it has not

CLASSIFICATION: Requirement = (
    lambda job: job.model.loss.classifies,
    "labels are numbers, and the attack tells classes apart",
)
WEIGHT_PER_COLUMN: Requirement = (
    lambda job: job.model.by_column,
    "only a model with a weight for each column can be attacked so",
)
NOT_ON_SHARES: Requirement = (
    lambda job: job.protocol.family is None,
    "on shares no sum and no residual is told, so there is none to attack",
)
SINGLE_OUTPUT: Requirement = (
    lambda job: job.model.loss.single,
    "the attack is for a loss of one output, and this one has several",
)
HIDDEN_PARTS: Requirement = (lambda job: job.protocol.sum_for(2).hides_parts, "the sum hides no part")

TARGET_LABEL_AUC = 0.6  # label AUC that a proposed batch size keeps columns of noise at


@dataclass(frozen=True)
class Score:
    """How well an attack does: with the transcript, with the declared output alone, and knowing nothing.

    `detail` says whose data it is about and what of it was found, by the names of columns; never a value. noise: the
    standard error of `real`, by how many rows it is from.
    """

    real: float
    simulated: float
    chance: float
    detail: str = ""
    noise: float = 0.0

    @property
    def excess(self) -> float:
        """What the transcript gives beyond the declared output."""
        return self.real - self.simulated


def fixed_remedy(remedy: str) -> Any:
    """Return an attack's method `remedy` where that is the same in every job."""
    return lambda self, job, known, attacker: remedy


class AttackerRole(StrEnum):
    """Whose view an attack starts from."""

    PASSIVE = "each passive party"
    LEAD = "the leading party"
    REQUESTER = "the party that asks for scores"
    ANY = "any party"


class Attack(ABC):
    """One attack. `measures` says what its score is, `by` whose view it starts from; `beyond` the score
    above which it has carried out the leaks that name it (`securevfl.disclosure.leaks`). `flips`: a score as far below
    chance serves as well, as an attacker may turn its ranking over. `drawn`: it ranks by what is drawn afresh, so that
    scores on views that say nothing differ by twice their noise and more. `needs`: what a job must have for it."""

    name: ClassVar[str]
    paper: ClassVar[str]
    measures: ClassVar[str]
    attacker_role: ClassVar[AttackerRole] = AttackerRole.LEAD
    leak_threshold: ClassVar[float] = inf
    two_sided: ClassVar[bool] = False
    randomized: ClassVar[bool] = False
    requirements: ClassVar[tuple[Requirement, ...]] = ()

    def skip_reason(self, job: Job) -> str:
        """Say why there is nothing in this job for the attack to do; empty where there is."""
        return next((why for has, why in self.requirements if not has(job)), "")

    def target_hidden(self, job: Job) -> bool:
        """Whether the job is to hide what the attack is after: a real view may then give no more than an ideal one."""
        return True

    def attacker_name(self, job: Job, attacker: str, lead: str) -> str:
        """Return the attacker's name in this job, or `AttackerRole.ANY`; `attacker` is the passive party in turn."""
        asker = job.family.score_requester(job, lead)
        return {AttackerRole.PASSIVE: attacker, AttackerRole.LEAD: lead, AttackerRole.REQUESTER: asker}.get(
            self.attacker_role, str(AttackerRole.ANY)
        )

    @abstractmethod
    def remedy(self, job: Job, known: RunFacts, attacker: str) -> str:
        """Say what would make the attack find less."""

    def __call__(self, job: Job, parties: Sequence[Party], seed: int) -> Score:
        """Run the job (and its ideal) with this seed and attack both."""
        return self.score(RealIdealPair(job, parties, seed))

    @abstractmethod
    def score(self, pair: RealIdealPair) -> Score:
        """Score the attack, as `__call__` does, on runs that several attacks share."""


class ColumnAttack(Attack):
    """Whoever receives numbers about rows after the columns behind them."""

    requirements = (WEIGHT_PER_COLUMN, NOT_ON_SHARES)
    remedy = fixed_remedy("fewer epochs and evaluations; a sum that hides parts, over more parties with more columns")

    def attacker_name(self, job: Job, attacker: str, lead: str) -> str:
        return lead if job.protocol.seals else str(AttackerRole.ANY)


class LabelAttack(Attack):
    """A passive party after the labels. The score is the AUC, for several classes the mean over one against rest."""

    measures: ClassVar[str] = "AUC of the labels"
    attacker_role = AttackerRole.PASSIVE
    two_sided = True
    requirements: ClassVar[tuple[Requirement, ...]] = (
        CLASSIFICATION,
        (
            lambda job: job.protocol.residual is not None or job.protocol.family is not None,
            "no residual goes down in this job, nor a share of one",
        ),
    )

    @abstractmethod
    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        """Score every row (m x c): c = 1, higher for the second class; or a column a class. Unknown rows are NaN."""

    def target_hidden(self, job: Job) -> bool:
        return job.protocol.seals or job.protocol.family is not None

    def remedy(self, job: Job, known: RunFacts, attacker: str) -> str:
        if job.protocol.family is not None:
            return "none: it has nothing to go by"
        if not job.protocol.seals:
            return 'seal the residual: residual = "ckks" or "paillier"; or blur it with a defence'
        sizes = known.shape
        p, rows = sizes.parameters[attacker], sizes.smallest_batch
        needed = smallest_batch(p, sizes.outputs, job.equations, job.equations > 1, TARGET_LABEL_AUC)
        if needed <= rows:
            return f"leave out columns that go with the label: its gradient alone says little at {rows} rows a batch"
        share = p / (needed * sizes.outputs)
        fewer = "fewer columns" if job.model.by_column else "outputs of a network that is trained without labels"
        return f"batches of {needed:,} rows or more, so that p / (n c) falls below {share:.3f}; {fewer}"

    def score(self, pair: RealIdealPair) -> Score:
        guesses = [by_row(self.guess(view, pair), len(pair.labels)) for view in (pair.real(), pair.ideal())]
        real, ideal = (label_auc(guess, pair.labels) for guess in guesses)
        return Score(real, ideal, 0.5, noise=auc_noise(pair.labels[np.isfinite(guesses[0]).all(axis=1)]))


def by_row(guess: Floats, rows: int) -> Floats:
    """Guesses as (m x c), also of one column without a second axis (m,). ValueError if there are not so many rows."""
    scores = guess[:, None] if guess.ndim == 1 else guess
    if scores.ndim != 2 or len(scores) != rows:
        raise ValueError(f"a guess for each of {rows} rows was expected, shape {guess.shape} came; NaN stands for none")
    return scores


def label_auc(scores: Floats, labels: NDArray[np.intp]) -> float:
    """AUC of scores (m x c) against class numbers (m,), over the rows that have a score; .5 where none can be told."""
    from sklearn.metrics import roc_auc_score

    scores = by_row(scores, len(labels))
    known = np.isfinite(scores).all(axis=1)
    classes = [1] if scores.shape[1] == 1 else range(scores.shape[1])
    truths = [labels[known] == label for label in classes]
    aucs = [
        roc_auc_score(truth, scores[known, column])
        for column, truth in enumerate(truths)
        if 0 < truth.sum() < len(truth)
    ]
    return float(np.mean(aucs)) if aucs else 0.5


def auc_noise(labels: NDArray[np.intp]) -> float:
    """Return the standard error of the AUC of scores that say nothing (Hanley and McNeil 1982), largest of all
    classes."""
    counts = np.bincount(labels)
    counts = counts[(counts > 0) & (counts < len(labels))]
    return float(np.sqrt((len(labels) + 1) / (12 * counts * (len(labels) - counts))).max()) if len(counts) else 0.0


def known_rows(pair: RealIdealPair, share: float = 0.1, *, at_least: int = 5) -> NDArray[np.intp]:
    """Training rows whose labels the attacker is given: a share of each class, at least a few."""
    generator = np.random.default_rng([pair.seed, 77])
    train, labels = pair.schedule.train, pair.labels
    chosen = []
    for label in np.unique(labels):
        rows = generator.permutation(train[labels[train] == label])
        chosen.append(rows[: max(at_least, round(share * len(rows)))])
    return np.sort(np.concatenate(chosen))

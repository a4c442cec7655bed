"""The interface of an attack: it infers something from a view and is scored on the real and on the ideal view.

A view is everything that one party received in a run. The real view comes from the job as it is. The ideal view comes
from the same training without encryption, and contains only the party's declared output (`securevfl.audit.recording`);
other messages are random bytes. f (m, c) are the c model outputs of each of m rows, and a residual is the derivative
of a row's loss by f. The leading or active party has the labels; passive parties have none.
"""

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
from securevfl.base.extras import import_extra
from securevfl.data.party import Party
from securevfl.disclosure.label_auc import smallest_batch
from securevfl.families.facts import RunFacts
from securevfl.job import Job
from securevfl.models.metrics import area_under_curve

import_extra("sklearn", "sklearn", "the audit")

Bits = NDArray[np.bool_]

Requirement = tuple[Callable[[Job], bool], str]
"""A condition on the job, and the reason for skipping the attack if the job does not meet it."""

CLASSIFICATION: Requirement = (
    lambda job: job.model.loss.classifies,
    "the labels are numbers and the attack distinguishes classes",
)
WEIGHT_PER_COLUMN: Requirement = (
    lambda job: job.model.by_column,
    "the attack needs a model with one weight for each column",
)
NOT_ON_SHARES: Requirement = (
    lambda job: job.protocol.family is None,
    "training on secret shares discloses no sums and no residuals",
)
SINGLE_OUTPUT: Requirement = (
    lambda job: job.model.loss.single,
    "the attack needs a loss with one output and the loss has several",
)
HIDDEN_PARTS: Requirement = (lambda job: job.protocol.sum_for(2).hides_parts, "the sum does not hide its parts")

TARGET_LABEL_AUC = 0.6
"""Label AUC that columns of pure noise must not exceed with the proposed batch size."""


@dataclass(frozen=True)
class Score:
    """The success of an attack, on the real and on the ideal view.

    Attributes:
        real: score on the real view.
        simulated: score on the ideal view, from the declared output alone.
        chance: score of a guess that uses no view.
        detail: text with the names of the attacker and of the columns that were found; never a value.
        noise: standard error of `real` for this number of rows.
    """

    real: float
    simulated: float
    chance: float
    detail: str = ""
    noise: float = 0.0

    @property
    def excess(self) -> float:
        """The difference between the scores on the real and on the ideal view."""
        return self.real - self.simulated


def fixed_remedy(remedy: str) -> Any:
    """Return a `remedy` method for an attack whose remedy is the same in every job."""
    return lambda self, job, known, attacker: remedy


class AttackerRole(StrEnum):
    """The party whose view an attack starts from."""

    PASSIVE = "each passive party"
    LEAD = "the leading party"
    REQUESTER = "the party that asks for scores"
    ANY = "any party"


class Attack(ABC):
    """Base class of all attacks.

    Attributes:
        name: key of the attack in `ATTACKS`.
        paper: source of the attack.
        measures: text that states which quantity the score is, such as an AUC.
        attacker_role: the party whose view the attack starts from.
        leak_threshold: score above which the attack confirms the leaks (disclosures that a job must accept) that list
            it among their attacks (`securevfl.disclosure.leaks`).
        two_sided: whether a score below chance is as useful as one above, because the attacker may reverse a ranking.
        randomized: whether the attack ranks by random values, so that scores without information vary by twice their
            standard error and more.
        requirements: conditions that a job must meet.
        output: name of the disclosed output that the attack uses (`Output.name`); the attack is skipped if the run
            does not disclose that output, for example because it has few rows. Empty if no output is needed.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    measures: ClassVar[str]
    attacker_role: ClassVar[AttackerRole] = AttackerRole.LEAD
    leak_threshold: ClassVar[float] = inf
    two_sided: ClassVar[bool] = False
    randomized: ClassVar[bool] = False
    requirements: ClassVar[tuple[Requirement, ...]] = ()
    output: ClassVar[str] = ""

    def skip_reason(self, job: Job, known: RunFacts | None = None) -> str:
        """Return why the attack does not apply to the job; empty if it does.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).
            known: facts about the run; without them, the reasons are those of the job alone.

        Returns:
            The reason.
        """
        if reason := next((reason for is_met, reason in self.requirements if not is_met(job)), ""):
            return reason
        if self.output and known is not None and all(output.name != self.output for output in known.outputs):
            return f"with these tables the job does not disclose {self.output}"
        return ""

    def unaccepted_leaks(self, job: Job) -> list[str]:
        """Return the names of the leaks that the attack carries out; none if the job accepts one of them."""
        leaks = [kind.name for kind in job.family.leak_kinds if self.name in kind.attacks]
        return [] if set(leaks) & set(job.accepts) else leaks

    def target_hidden(self, job: Job) -> bool:
        """Return whether the job should hide what the attack infers (its target).

        If so, the attack must not score higher on the real view than on the ideal view.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).

        Returns:
            True if the target must be hidden.
        """
        return True

    def attacker_name(self, job: Job, attacker: str, lead: str) -> str:
        """Return the attacker's name in this job, or `AttackerRole.ANY`.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).
            attacker: the passive party that attacks, for attacks by each passive party.
            lead: the party with labels.

        Returns:
            The name of a party, or the text of `AttackerRole.ANY`.
        """
        requester = job.family.score_requester(job, lead)
        names = {AttackerRole.PASSIVE: attacker, AttackerRole.LEAD: lead, AttackerRole.REQUESTER: requester}
        return names.get(self.attacker_role, str(AttackerRole.ANY))

    @abstractmethod
    def remedy(self, job: Job, known: RunFacts, attacker: str) -> str:
        """Return text for the report about changes of the job that would weaken the attack."""

    def __call__(self, job: Job, parties: Sequence[Party], seed: int) -> Score:
        """Run the job and its ideal version with this seed, and attack both."""
        return self.score(RealIdealPair(job, parties, seed))

    @abstractmethod
    def score(self, pair: RealIdealPair) -> Score:
        """Attack the real and the ideal run of one pair. Several attacks may use the same pair."""


class ColumnAttack(Attack):
    """An attack on other parties' columns by a party that receives numbers computed from them, row by row."""

    requirements = (WEIGHT_PER_COLUMN, NOT_ON_SHARES)
    remedy = fixed_remedy(
        "fewer epochs and evaluations; a masked or encrypted sum, over more parties with more columns"
    )

    def attacker_name(self, job: Job, attacker: str, lead: str) -> str:
        """Return the party with labels if residuals are encrypted, or else `AttackerRole.ANY`."""
        return lead if job.protocol.seals else str(AttackerRole.ANY)


class LabelAttack(Attack):
    """An attack on labels by a passive party. Its score is the AUC, averaged over one-against-rest for classes."""

    measures: ClassVar[str] = "AUC of the labels"
    attacker_role = AttackerRole.PASSIVE
    two_sided = True
    requirements: ClassVar[tuple[Requirement, ...]] = (
        CLASSIFICATION,
        (
            lambda job: job.protocol.residual is not None or job.protocol.family is not None,
            "the job publishes neither residuals nor shares of residuals",
        ),
    )

    @abstractmethod
    def guess(self, view: PartyView, pair: RealIdealPair) -> Floats:
        """Guess the label of every row: return a score for each row, NaN for rows without a guess.

        Args:
            view: everything that the attacker received in a run, with its columns and its weights.
            pair: the real and the ideal run, for public facts and for labels that the attacker is assumed to know.

        Returns:
            Scores (m, c). With c = 1, higher scores mean the second class; otherwise there is a column for each class.
        """

    def target_hidden(self, job: Job) -> bool:
        """Return whether the job should hide labels: it encrypts residuals or trains on secret shares."""
        return job.protocol.seals or job.protocol.family is not None

    def remedy(self, job: Job, known: RunFacts, attacker: str) -> str:
        """Return text about what would weaken the attack: another protocol, larger batches, or fewer columns."""
        if job.protocol.family is not None:
            return "none needed: the attacker receives nothing that depends on labels"
        if not job.protocol.seals:
            return 'encrypt the residual: residual = "ckks" or "paillier"; or add noise to it with a defence'
        sizes = known.shape
        p, rows = sizes.parameters[attacker], sizes.smallest_batch
        needed = smallest_batch(p, sizes.outputs, job.equations, job.equations > 1, TARGET_LABEL_AUC)
        if needed <= rows:
            return f"remove columns that correlate with the label: at {rows} rows a batch the gradient reveals little"
        share = p / (needed * sizes.outputs)
        fewer = "fewer columns" if job.model.by_column else "outputs of a network that is trained without labels"
        return f"batches of {needed:,} rows or more, so that p / (n * c) falls below {share:.3f}; {fewer}"

    def score(self, pair: RealIdealPair) -> Score:
        """Return the AUC of the guesses on the real and on the ideal view."""
        guesses = [by_row(self.guess(view, pair), len(pair.labels)) for view in (pair.real(), pair.ideal())]
        real, ideal = (label_auc(guess, pair.labels) for guess in guesses)
        return Score(real, ideal, 0.5, noise=auc_noise(pair.labels[np.isfinite(guesses[0]).all(axis=1)]))


def by_row(guess: Floats, rows: int) -> Floats:
    """Return an attack's guesses as an array (m, c); of shape (m,) they get a second axis of length 1.

    Args:
        guess: the guesses of an attack.
        rows: number of rows m.

    Returns:
        The guesses with two axes.

    Raises:
        ValueError: if there is not one guess for each row.
    """
    scores = guess[:, None] if guess.ndim == 1 else guess
    if scores.ndim != 2 or len(scores) != rows:
        raise ValueError(
            f"an attack returned guesses of shape {guess.shape} for {rows} rows; return one guess for each row, "
            "NaN where there is none"
        )
    return scores


def label_auc(scores: Floats, labels: NDArray[np.intp]) -> float:
    """Return the AUC of scores (m, c) against class numbers (m,), over the rows with a score; 0.5 if undefined."""
    scores = by_row(scores, len(labels))
    scored = np.isfinite(scores).all(axis=1)
    classes = [1] if scores.shape[1] == 1 else range(scores.shape[1])
    truths = [labels[scored] == label for label in classes]
    aucs = [
        area_under_curve(truth, scores[scored, column])
        for column, truth in enumerate(truths)
        if 0 < truth.sum() < len(truth)
    ]
    return float(np.mean(aucs)) if aucs else 0.5


def auc_noise(labels: NDArray[np.intp]) -> float:
    """Return the standard error of the AUC of random scores; with several classes, the largest over the classes.

    Source: Hanley and McNeil 1982.
    """
    counts = np.bincount(labels)
    counts = counts[(counts > 0) & (counts < len(labels))]
    return float(np.sqrt((len(labels) + 1) / (12 * counts * (len(labels) - counts))).max()) if len(counts) else 0.0


def known_rows(pair: RealIdealPair, share: float = 0.1, *, at_least: int = 5) -> NDArray[np.intp]:
    """Draw the training rows whose labels the attacker is assumed to know.

    Args:
        pair: the real and the ideal run of the job.
        share: share of the rows of each class whose labels are known.
        at_least: smallest number of known rows of each class.

    Returns:
        Sorted row numbers.
    """
    generator = np.random.default_rng([pair.seed, 77])
    train, labels = pair.schedule.train, pair.labels
    chosen = []
    for label in np.unique(labels):
        rows = generator.permutation(train[labels[train] == label])
        chosen.append(rows[: max(at_least, round(share * len(rows)))])
    return np.sort(np.concatenate(chosen))

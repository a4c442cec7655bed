"""Comparison of models of the active party's columns with models of all parties' columns.

The active party has the labels. It trains models on its columns alone, without sending anything. The same models are
trained on all columns with secret shares (joint models), and each is measured once, at its end. Only the figures are
stored: no model of a comparison ever scores a new row. The *gain* is the AUC of the best joint model minus that of the
best model of the active party alone. A party's *ledger* is a file that records and limits its disclosures in all jobs.

`compare` has all tables in one process, so it also trains the models without encryption on one table with all columns.
The joint models should reach the figures of these models. Between organisations nobody has that table
(`securevfl.organisations.compare`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.files import write_atomic
from securevfl.consent.forecast import check_together
from securevfl.data.party import Party, check_parties, register_of
from securevfl.data.store import StoredParty
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.display import html
from securevfl.errors import ConfigError
from securevfl.families.run_facts import pooled_run_facts
from securevfl.job import Job
from securevfl.models import metrics
from securevfl.models.linear import Logistic
from securevfl.models.paired_auc import (
    CRITICAL_VALUE,
    auc_correlation,
    correlation_within_classes,
    difference_error,
    score_correlation,
    spread_within_classes,
)
from securevfl.models.standard_errors import standard_errors
from securevfl.models.trees import Trees
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.shares.opened_loss import select_measured
from securevfl.runtime.network import Network
from securevfl.training.local_baseline import MAX_TABLE_VALUES, local_metrics, local_scores
from securevfl.training.model_part import ModelPart
from securevfl.training.simulate import simulate
from securevfl.training.text_table import format_table

DEFAULT_BINS = 10
DEFAULT_PAIRS = 16
"""Number of components of a party in the model with interactions, unless the job sets it."""
INTERACTIONS = "trees with interactions"
"""Name of the model of trees with pairs, the products of two parties' components."""
NOTHING = "nothing"
"""Description of the values that a model of one party alone discloses."""
EVERYTHING = "every column"
"""Description of the values that a model of one table with all columns discloses."""


@dataclass(frozen=True)
class ComparedModel:
    """One model of a comparison.

    Attributes:
        columns: the parties whose columns it uses.
        model: its name.
        auc: AUC on the held-out rows.
        log_loss: log loss on the held-out rows.
        seconds: processor time if a party is alone; otherwise time from start to end on the given network.
        disclosed: description of the values that were disclosed for it.
    """

    columns: str
    model: str
    auc: float
    log_loss: float
    seconds: float
    disclosed: str


class MeasuredModel(NamedTuple):
    """A compared model with further figures, from which the standard error of the gain is computed.

    Attributes:
        row: the model's line in the printed comparison.
        auc_error: standard error of its AUC.
        spread: standard deviation of the model's log odds within the classes (`spread_within_classes`).
        f: its outputs (n,) for the held-out rows, if it is a model of the active party's columns alone.
    """

    row: ComparedModel
    auc_error: float
    spread: float
    f: Floats | None = None


@dataclass(frozen=True)
class InteractionGain:
    """The AUC of joint trees with pairs minus that of joint trees without them, on the same held-out rows.

    Attributes:
        gain: the difference.
        gain_error: its standard error, which takes into account that both AUCs are of the same rows.
    """

    gain: float
    gain_error: float

    @property
    def is_certain(self) -> bool:
        """Whether the gain is statistically significant, at a one-sided level of 5 %."""
        return self.gain > CRITICAL_VALUE * self.gain_error

    @property
    def conclusion(self) -> str:
        """The result as a sentence."""
        changed = f"Interactions between columns of two parties change the AUC of trees by {self.gain:+.3f}"
        error = f"with a standard error of {self.gain_error:.4f}"
        return f"{changed}, {error}." if self.is_certain else f"{changed}, {error}, so this may be chance."

    def plain(self) -> dict[str, Any]:
        """Return the figures as a dict that can be written as JSON."""
        return {"gain": self.gain, "gain_std_error": self.gain_error, "is_certain": self.is_certain}


@dataclass(frozen=True)
class Comparison:
    """Models on the same held-out rows.

    Attributes:
        rows: the models, those of the active party alone first.
        held_out: number of held-out rows.
        positive: number of held-out rows of the rarer class.
        gain_error: standard error of the gain (`securevfl.models.paired_auc`).
        pooled: the same models trained on one table with all columns; empty if no process has all tables in memory.
        interactions: the gain by interactions between the parties' columns; None if they were not compared.
    """

    rows: tuple[ComparedModel, ...]
    held_out: int
    positive: int
    gain_error: float
    pooled: tuple[ComparedModel, ...] = ()
    interactions: InteractionGain | None = None

    @property
    def gain(self) -> float:
        """The AUC of the best joint model minus that of the best model of the active party alone."""
        alone = self.rows[0].columns
        best_alone = max(row.auc for row in self.rows if row.columns == alone)
        best_joint = max(row.auc for row in self.rows if row.columns != alone)
        return best_joint - best_alone

    @property
    def is_certain(self) -> bool:
        """Whether the gain is statistically significant, at a one-sided level of 5 %."""
        return self.gain > CRITICAL_VALUE * self.gain_error

    @property
    def conclusion(self) -> str:
        """The result as text of one to three sentences."""
        return self._of_columns if self.interactions is None else f"{self._of_columns} {self.interactions.conclusion}"

    @property
    def _of_columns(self) -> str:
        """What the columns of the other parties add."""
        alone = self.rows[0].columns
        best_alone = max((row for row in self.rows if row.columns == alone), key=lambda row: row.auc)
        best_joint = max((row for row in self.rows if row.columns != alone), key=lambda row: row.auc)
        figures = f"{best_alone.auc:.3f} ({best_alone.columns}, {best_alone.model})"
        figures += f" to {best_joint.auc:.3f} ({best_joint.columns}, {best_joint.model})"
        accuracy = f"On {self.held_out:,} held-out rows the difference has a standard error of {self.gain_error:.4f}"
        if not self.is_certain:
            return f"The best AUC changes from {figures}. {accuracy}, so this may be chance."
        return f"The best AUC rises by {self.gain:.3f}, from {figures}. {accuracy}."

    def __str__(self) -> str:
        """Return the table and the conclusion."""
        return f"{format_table([_cells(row) for row in (*self.rows, *self.pooled)])}\n\n{self.conclusion}"

    def _repr_html_(self) -> str:
        heads, *_ = cells = [_cells(row) for row in (*self.rows, *self.pooled)]
        table = html.table(list(heads), [[html.cell_text(value) for value in row.values()] for row in cells])
        return f"{table}<p>{html.escape(self.conclusion)}</p>"

    def plain(self) -> dict[str, Any]:
        """Return the comparison as lists and dicts that can be written as JSON."""
        return {
            "models": [asdict(row) for row in self.rows],
            "pooled": [asdict(row) for row in self.pooled],
            "held_out": self.held_out,
            "positive": self.positive,
            "gain": self.gain,
            "gain_std_error": self.gain_error,
            "is_certain": self.is_certain,
            "interactions": None if self.interactions is None else self.interactions.plain(),
            "conclusion": self.conclusion,
        }

    def page(self) -> str:
        """Return the table and the conclusion as a page of HTML."""
        body = ["<h1>What the other columns add</h1>", self._repr_html_(), f"<p class='soft'>{NOTE}</p>"]
        return html.page("Comparison", body)

    def report(self, path: str | Path) -> None:
        """Write the comparison to a file, as an HTML page."""
        write_atomic(Path(path), self.page().encode())


NOTE = (
    "All models are measured on the same held-out rows. For a model on shares the party with labels receives one pair "
    "of a rounded score and a label for each of these rows, in a secret random order, and the others receive sizes. "
    "No model is stored."
)


def _cells(row: ComparedModel) -> dict[str, str | int | float | None]:
    figures = {"AUC": row.auc, "log loss": row.log_loss, "seconds": row.seconds}
    return {"columns of": row.columns, "model": row.model, **figures, "discloses": row.disclosed}


def compare(
    job: Job,
    parties: Sequence[Party],
    *,
    network: Network | None = None,
    ledgers: Mapping[str, DisclosureLedger] | None = None,
    on_model: Callable[[str], object] = lambda name: None,
    interactions: bool = False,
) -> Comparison:
    """Compare models of the active party's columns with models of all parties' columns on shares.

    The models are logistic regression, logistic regression on bins of the columns, and trees. The ledgers are checked
    first, for all models together.

    Args:
        job: which rows are held out, how columns are prepared, and what is accepted. Its model is used if it is
            logistic regression or trees.
        parties: the parties, each with its name and its table.
        network: the simulated network, as in `simulate`.
        ledgers: each party's ledger, by name, as in `simulate`.
        on_model: called with the name of each model before it is trained.
        interactions: whether joint trees with pairs are compared as well. A job of trees with pairs implies it.

    Returns:
        The comparison.

    Raises:
        ConfigError: if the job is not on shares, holds no rows out, or has labels of other than two classes.
        LeakageError: if the models together would disclose too much. Nothing has been sent then.
    """
    jobs = compared_jobs(job, interactions=interactions, parties=len(parties))
    lead, others = check_parties(parties)
    _check(list(jobs.values()), [lead, *others], ledgers or {})
    everyone = [lead, *others]
    together = ", ".join(party.name for party in everyone if party.columns)
    rows = list(alone(jobs, lead, on_model))
    for name, shared in jobs.items():
        on_model(f"{name}, {together}")
        run = simulate(shared, everyone, network=network, ledgers=ledgers)
        rows.append(joint_row(together, name, run.active, run.costs.total))
    comparison = build_comparison(rows, next(iter(jobs.values())), lead)
    return replace(comparison, pooled=tuple(_pooled(jobs, everyone, on_model)))


def _pooled(
    jobs: Mapping[str, Job], parties: Sequence[Party], on_model: Callable[[str], object]
) -> Iterator[ComparedModel]:
    """Yield the models trained on one table with the columns of all parties; none if it would not fit in memory."""
    if any(isinstance(party, StoredParty) for party in parties):
        return
    if sum(party.X.size for party in parties) > MAX_TABLE_VALUES:
        return
    for name, job in _by_one_party(jobs).items():
        on_model(f"{name}, pooled")
        started = time.thread_time()
        measured = local_metrics(job, pooled_party([_without_dropped(job, party) for party in parties]))
        seconds = time.thread_time() - started
        yield ComparedModel("pooled", name, measured["auc"], measured["log_loss"], seconds, EVERYTHING)


def _without_dropped(job: Job, party: Party) -> Party:
    dropped = [name for name in job.prepare.drop if name in party.columns]
    return party.without(dropped) if dropped else party


def pooled_party(parties: Sequence[Party]) -> Party:
    """Return one party that has the columns of all parties, as if one organisation had all tables.

    A column of another party whose name occurs earlier is renamed to PARTY.COLUMN.

    Args:
        parties: parties with the same rows in the same order; the first one has the labels.

    Returns:
        The party.
    """
    lead, *others = parties
    pooled = copy(lead)
    pooled.columns, pooled.constant = list(lead.columns), list(lead.constant)
    categories, dates, percents, types = dict(lead.categories), set(lead.dates), set(lead.percents), dict(lead.types)
    for party in others:
        names = {name: f"{party.name}.{name}" if name in pooled.columns else name for name in party.columns}
        pooled.columns += names.values()
        pooled.constant += [names[name] for name in party.constant]
        categories |= {names[name]: texts for name, texts in party.categories.items()}
        dates |= {names[name] for name in party.dates}
        percents |= {names[name] for name in party.percents}
        types |= {names[name]: kind for name, kind in party.types.items() if name in names}
    pooled.X = np.hstack([party.X for party in parties if party.columns])
    pooled.categories, pooled.types = categories, types
    pooled.dates, pooled.percents = frozenset(dates), frozenset(percents)
    return pooled


def _by_one_party(jobs: Mapping[str, Job]) -> dict[str, Job]:
    """Return the jobs whose models one party can train, which excludes products of two parties' components."""
    return {name: job for name, job in jobs.items() if name != INTERACTIONS}


def compared_jobs(job: Job, *, interactions: bool = False, parties: int = 2) -> dict[str, Job]:
    """Return the jobs whose models a comparison trains jointly, by the name of the model.

    Each trains without early stopping, is measured once, and discloses no scores or weights to anybody.

    Args:
        job: which rows are held out, how columns are prepared, and what is accepted, as in `compare`.
        interactions: whether trees with pairs are one of the models, even if the job's model has none.
        parties: number of parties.

    Returns:
        The jobs.

    Raises:
        ConfigError: if the job is not on shares, holds no rows out, or has labels of other than two classes, or if
            interactions are compared by more than two parties or for another loss.
    """
    pairs = job.model.pairs if isinstance(job.model, Logistic | Trees) else 0
    if interactions or pairs:
        _check_interactions(job, parties)
    if job.protocol.shares is None:
        raise ConfigError(
            "a comparison must disclose only its figures, so its job must use secret shares",
            "leave protocol out",
            code="SVFL-JOB-UNSUPPORTED",
        )
    if not (job.model.loss.classifies and job.model.loss.single):
        raise ConfigError(
            f"a comparison needs labels of two classes, and a {job.model.name} model has other labels",
            "compare a logistic job",
            code="SVFL-JOB-UNSUPPORTED",
        )
    if not job.test_fraction:
        raise ConfigError(
            "models are compared on held-out rows, and this job has none",
            "set test_fraction = 0.25",
            code="SVFL-JOB-COMBINATION",
        )
    shared_keys: dict[str, Any] = {
        key: getattr(job, key)
        for key in ("seed", "test_fraction", "split", "weights", "positive", "accepts", "prepare")
    }
    shared_keys |= {"patience": None, "evaluate_every": 0}  # one measurement discloses less than several
    silent = {"scores": "none", "score_bits": None, "scores_to": None, "open_weights": ()}
    shared_keys["protocol"] = Protocol(shares=job.protocol.shares.model_copy(update=silent))
    bins = shared_keys | {"prepare": job.prepare.model_copy(update={"bins": job.prepare.bins or DEFAULT_BINS})}
    plain = shared_keys | {"prepare": job.prepare.model_copy(update={"bins": None})}
    logistic = job.model.model_copy(update={"pairs": 0}) if isinstance(job.model, Logistic) else Logistic()
    trees = job.model.model_copy(update={"pairs": 0}) if isinstance(job.model, Trees) else Trees()
    jobs = {
        "logistic": Job(model=logistic, scale=job.scale, **plain),
        "bins": Job(model=logistic, scale=job.scale, **bins),
        "trees": Job(model=trees, **plain),
    }
    if interactions or pairs:
        with_pairs = trees.model_copy(update={"pairs": pairs or DEFAULT_PAIRS})
        jobs[INTERACTIONS] = Job(model=with_pairs, **plain)
    return jobs


def _check_interactions(job: Job, parties: int) -> None:
    """Check that trees with pairs can be compared for this job and number of parties; may raise ConfigError."""
    if parties != 2:
        raise ConfigError(
            f"interactions are compared between two parties, and there are {parties}",
            "leave --interactions out, and set pairs = 0",
            code="SVFL-JOB-UNSUPPORTED",
        )
    if isinstance(job.model, Trees) and job.model.loss_name != "logistic":
        raise ConfigError(
            f"interactions are compared for the loss logistic, and the loss of the trees is {job.model.loss_name}",
            "leave --interactions out, or leave loss out",
            code="SVFL-JOB-UNSUPPORTED",
        )


def _check(jobs: Sequence[Job], parties: Sequence[Party], ledgers: Mapping[str, DisclosureLedger]) -> None:
    """Check that leak checks and ledgers allow all trainings in turn, each measured once on the same rows."""
    check_together([(job, pooled_run_facts(job, parties).shape) for job in jobs], parties, ledgers)
    lead, *others = parties
    rows = select_measured(jobs[0].schedule(register_of(parties)).test, 1)
    if any("small_metrics" in job.accepts for job in jobs):
        return
    for party in others:
        if party.name in ledgers and party.has_ids:
            ScoreLedger(ledgers[party.name].path).check_evaluations(lead.name, party.keys_of(rows), len(jobs))


def alone(jobs: Mapping[str, Job], lead: Party, on_model: Callable[[str], object]) -> Iterator[MeasuredModel]:
    """Train the compared models on the columns of the party with labels, without messages; yield their figures.

    Args:
        jobs: the jobs by name.
        lead: the party with labels.
        on_model: called with the name of each model before it is trained.

    Yields:
        The models.
    """
    for name, job in _by_one_party(jobs).items():
        on_model(f"{name}, {lead.name} alone")
        started = time.thread_time()
        f, labels, classes = local_scores(job, lead)
        seconds = time.thread_time() - started
        measured = metrics.evaluate(job.model.loss, f, labels, classes)
        errors = standard_errors(job.model.loss, f, labels, classes, None, ("auc",))
        points = metrics.calibration(labels == classes[1], job.model.loss.proba(f)[:, 1])
        row = ComparedModel(f"{lead.name} alone", name, measured["auc"], measured["log_loss"], seconds, NOTHING)
        yield MeasuredModel(row, errors.get("auc", 0.0), spread_within_classes(points.tolist()), f[:, 0])


def joint_row(together: str, name: str, part: ModelPart, seconds: float) -> MeasuredModel:
    """Return the figures of one joint model as a line of the comparison.

    `together` names the parties, and `part` is the model part of the party with labels.
    """
    disclosed = f"{part.held_out:,} (score, label) pairs"
    row = ComparedModel(together, name, part.metrics["auc"], part.metrics["log_loss"], seconds, disclosed)
    return MeasuredModel(row, part.metric_std_errors.get("auc", 0.0), spread_within_classes(part.calibration))


def build_comparison(models: Sequence[MeasuredModel], job: Job, lead: Party) -> Comparison:
    """Return the comparison of these models on the rows that the job holds out."""
    labels = lead.labels[job.schedule(lead.register).test]
    values, counts = np.unique(labels, return_counts=True)
    error = gain_error(models, labels == values[-1])
    rows = tuple(model.row for model in models)
    return Comparison(rows, len(labels), int(counts.min()), error, interactions=interaction_gain(models))


def interaction_gain(models: Sequence[MeasuredModel]) -> InteractionGain | None:
    """Return the gain by pairs of joint trees; None if no model has pairs.

    The scores of both models arrive in secret orders, so no pair of scores belongs to a known row. Trees without pairs
    are close to the projection of trees with pairs on their inputs, so the correlation of the scores is the ratio of
    their standard deviations, as between a local and a joint model (`securevfl.models.paired_auc`).
    """
    joint = {model.row.model: model for model in models if model.f is None}
    if INTERACTIONS not in joint:
        return None
    without, with_pairs = joint["trees"], joint[INTERACTIONS]
    correlation = score_correlation(*sorted((without.spread, with_pairs.spread)))
    of_areas = auc_correlation(without.row.auc, with_pairs.row.auc, correlation)
    error = difference_error(without.auc_error, with_pairs.auc_error, of_areas)
    return InteractionGain(with_pairs.row.auc - without.row.auc, error)


def gain_error(models: Sequence[MeasuredModel], positive: NDArray[np.bool_]) -> float:
    """Return the standard error of the best joint AUC minus the best AUC of the active party alone.

    Args:
        models: all models; those of the active party alone have outputs.
        positive: True (n,) for the held-out rows of one of the two classes.

    Returns:
        The standard error.
    """
    best_alone = max((model for model in models if model.f is not None), key=lambda model: model.row.auc)
    best_joint = max((model for model in models if model.f is None), key=lambda model: model.row.auc)
    kind = "trees" if best_joint.row.model == INTERACTIONS else best_joint.row.model
    same_kind = next(model for model in models if model.f is not None and model.row.model == kind)
    assert best_alone.f is not None, "models of one party alone have outputs"
    assert same_kind.f is not None, "models of one party alone have outputs"
    correlation = score_correlation(same_kind.spread, best_joint.spread)
    correlation *= correlation_within_classes(best_alone.f, same_kind.f, positive)
    of_areas = auc_correlation(best_alone.row.auc, best_joint.row.auc, correlation)
    return difference_error(best_alone.auc_error, best_joint.auc_error, of_areas)

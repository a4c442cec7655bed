"""What a partner is worth: models of the active party's own columns and of all parties' columns, side by side.

On its own columns the active party trains alone and sends nothing. Together the same models are trained on shares, and
each is measured once, at its end. Nothing but figures is kept of them: no model of a comparison ever scores a row.

All tables are in one process; between organisations see `securevfl.organisations.compare`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securevfl.base.extras import is_installed
from securevfl.base.files import write_atomic
from securevfl.consent.forecast import check_together
from securevfl.data.party import Party, check_parties, register_of
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.display import html
from securevfl.errors import ConfigError
from securevfl.families.run_facts import pooled_run_facts
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.models.trees import Trees
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.score_ledger.ledger import ScoreLedger
from securevfl.protocols.shares.opened_loss import MAX_LOSS_ROWS
from securevfl.runtime.network import Network
from securevfl.training.local_baseline import local_metrics
from securevfl.training.model_part import ModelPart
from securevfl.training.simulate import simulate
from securevfl.training.text_table import format_table

DEFAULT_BINS = 10
NOTHING = "nothing"


@dataclass(frozen=True)
class ComparedModel:
    """One model of a comparison: whose columns it is of, how good it is on held-out rows, how long it took, and what
    was told for it. seconds: of a processor where a party is alone, else from start to end on the network given."""

    columns: str
    model: str
    auc: float
    log_loss: float
    seconds: float
    tells: str


@dataclass(frozen=True)
class Comparison:
    """Models side by side, those of the active party alone first; all on the same held-out rows, of which so many are
    of the positive class."""

    rows: tuple[ComparedModel, ...]
    held_out: int
    positive: int

    @property
    def gain(self) -> float:
        """The AUC of the best model together, less that of the best of the active party alone."""
        alone = self.rows[0].columns
        best = [max(row.auc for row in self.rows if (row.columns == alone) is own) for own in (True, False)]
        return best[1] - best[0]

    @property
    def deviation(self) -> float:
        """Standard deviation of the best AUC over held-out rows like these (Hanley, McNeil 1982)."""
        a, p = max(row.auc for row in self.rows), self.positive
        n = self.held_out - p
        one, other = a / (2 - a) - a * a, 2 * a * a / (1 + a) - a * a
        return float(max(0.0, (a * (1 - a) + (p - 1) * one + (n - 1) * other) / (p * n)) ** 0.5)

    @property
    def conclusion(self) -> str:
        """What the table comes to, in a sentence or two."""
        alone = self.rows[0].columns
        own = max((row for row in self.rows if row.columns == alone), key=lambda row: row.auc)
        best = max((row for row in self.rows if row.columns != alone), key=lambda row: row.auc)
        figures = f"{own.auc:.3f} ({own.columns}, {own.model}) to {best.auc:.3f} ({best.columns}, {best.model})"
        spread = f"An AUC of {self.held_out:,} held-out rows is good to about +-{2 * self.deviation:.3f}"
        if self.gain <= 2 * self.deviation:
            return f"The best AUC goes from {figures}. {spread}, so that this may be chance."
        return f"The best AUC rises by {self.gain:.3f}, from {figures}. {spread}."

    def __str__(self) -> str:
        return f"{format_table([_cells(row) for row in self.rows])}\n\n{self.conclusion}"

    def _repr_html_(self) -> str:
        heads, *_ = cells = [_cells(row) for row in self.rows]
        table = html.table(list(heads), [[html.cell_text(each) for each in row.values()] for row in cells])
        return f"{table}<p>{html.escape(self.conclusion)}</p>"

    def report(self, path: str | Path) -> None:
        """Write one page of HTML for a browser: the table, and what it comes to."""
        body = ["<h1>What the other columns are worth</h1>", self._repr_html_(), f"<p class='soft'>{NOTE}</p>"]
        write_atomic(Path(path), html.page("Comparison", body).encode())


NOTE = (
    "All models are measured on the same held-out rows. For a model on shares the party with labels is told one pair "
    "of a rounded score and a label for each of these rows, in an order that nobody knows, and the others are told "
    "sizes. No model is kept."
)


def _cells(row: ComparedModel) -> dict[str, str | int | float | None]:
    figures = {"AUC": row.auc, "log loss": row.log_loss, "seconds": row.seconds}
    return {"columns of": row.columns, "model": row.model, **figures, "told": row.tells}


def compare(
    job: Job,
    parties: Sequence[Party],
    *,
    network: Network | None = None,
    ledgers: Mapping[str, DisclosureLedger] | None = None,
    on_model: Callable[[str], object] = lambda what: None,
) -> Comparison:
    """Train logistic regression, the same on bins of the columns, and trees: on the active party's own columns, then on
    all parties' on shares, and return how good each is on the rows that the job holds out.

    job: which rows are held out, how columns are prepared, what is accepted; its own model counts where it is logistic.
    network, ledgers: as in `simulate`. The ledgers are asked first, for all models together. on_model: told what is
    trained next. ConfigError for a job that is not on shares, holds no rows out or has other than two classes,
    LeakageError if the models together would tell too much; nothing is sent then.
    """
    jobs = compared_jobs(job)
    lead, others = check_parties(parties)
    _check(list(jobs.values()), [lead, *others], ledgers or {})
    everyone = [lead, *others]
    together = ", ".join(party.name for party in everyone if party.columns)
    rows = list(alone(jobs, lead, on_model))
    for name, shared in jobs.items():
        on_model(f"{name}, {together}")
        run = simulate(shared, everyone, network=network, ledgers=ledgers)
        rows.append(joint_row(together, name, run.active, run.costs.total))
    return build_comparison(rows, next(iter(jobs.values())), lead)


def compared_jobs(job: Job) -> dict[str, Job]:
    """Return the jobs of a comparison by the name of their model: each trains for all its visits, is measured once and
    tells nobody scores or weights.

    ConfigError as `compare`.
    """
    if job.protocol.shares is None:
        raise ConfigError(
            "a job on shares was expected, as a comparison must tell no more than its figures; leave protocol out"
        )
    if not (job.model.loss.classifies and job.model.loss.single):
        raise ConfigError(f"labels of two classes were expected, {job.model.name} has others; compare a logistic job")
    if not job.test_fraction:
        raise ConfigError("rows held out were expected, by which models are compared; set test_fraction = 0.25")
    kept: dict[str, Any] = {
        key: getattr(job, key)
        for key in ("seed", "test_fraction", "split", "weights", "positive", "accepts", "prepare")
    }
    kept |= {"patience": None, "evaluate_every": 0}  # one measurement tells less than one every few visits
    silent = {"scores": "none", "score_bits": None, "scores_to": None, "open_weights": ()}
    kept["protocol"] = Protocol(shares=job.protocol.shares.model_copy(update=silent))
    bins = kept | {"prepare": job.prepare.model_copy(update={"bins": job.prepare.bins or DEFAULT_BINS})}
    plain = kept | {"prepare": job.prepare.model_copy(update={"bins": None})}
    logistic = job.model if isinstance(job.model, Logistic) else Logistic()
    trees = job.model if isinstance(job.model, Trees) else Trees(boosted_score=is_installed("sklearn"))
    return {
        "logistic": Job(model=logistic, **plain),
        "bins": Job(model=logistic, **bins),
        "trees": Job(model=trees, **plain),
    }


def _check(jobs: Sequence[Job], parties: Sequence[Party], ledgers: Mapping[str, DisclosureLedger]) -> None:
    """LeakageError unless the guards and the ledgers let all jobs through, one after the other, with one measurement of
    the same rows for each."""
    check_together([(job, pooled_run_facts(job, parties).shape) for job in jobs], parties, ledgers)
    lead, *others = parties
    rows = jobs[0].schedule(register_of(parties)).test[:MAX_LOSS_ROWS]
    if any("small_metrics" in job.accepts for job in jobs):
        return
    for party in others:
        if party.name in ledgers and party.has_ids:
            ScoreLedger(ledgers[party.name].scores_path).check_evaluations(lead.name, party.keys_of(rows), len(jobs))


def alone(jobs: Mapping[str, Job], lead: Party, on_model: Callable[[str], object]) -> Iterator[ComparedModel]:
    """Yield the models of the party with labels by itself; nothing is sent."""
    for name, job in jobs.items():
        on_model(f"{name}, {lead.name} alone")
        started = time.thread_time()
        found = local_metrics(job, lead)
        spent = time.thread_time() - started
        yield ComparedModel(f"{lead.name} alone", name, found["auc"], found["log_loss"], spent, NOTHING)


def joint_row(together: str, name: str, part: ModelPart, seconds: float) -> ComparedModel:
    """Return the line of a model that was trained on shares, from what the party with labels was told of it."""
    tells = f"{part.held_out:,} (score, label) pairs"
    return ComparedModel(together, name, part.metrics["auc"], part.metrics["log_loss"], seconds, tells)


def build_comparison(rows: Sequence[ComparedModel], job: Job, lead: Party) -> Comparison:
    """Return the comparison of these models on the rows that the job holds out of the table with labels."""
    labels = lead.labels[job.schedule(lead.register).test]
    return Comparison(tuple(rows), len(labels), int(min((labels == each).sum() for each in set(labels.tolist()))))

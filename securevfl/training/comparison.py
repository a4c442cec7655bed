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

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.extras import is_installed
from securevfl.base.files import write_atomic
from securevfl.consent.booking import check_together
from securevfl.data.party import Party, check_parties, register_of
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.display import html
from securevfl.errors import ConfigError
from securevfl.families.run_facts import known_run
from securevfl.families.table_preparation import prepare
from securevfl.families.training_data import TrainingData
from securevfl.job import Job
from securevfl.models import metrics
from securevfl.models.inputs import FittingData, InputShape, private_stream
from securevfl.models.linear import LinearModel, Logistic
from securevfl.models.trees import Trees
from securevfl.optim.block_descent import BlockDescent
from securevfl.options import JobOptions
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.score_ledger.ledger import ScoreLedger
from securevfl.protocols.shares.opened_loss import MAX_LOSS_ROWS
from securevfl.runtime.network import Network
from securevfl.training.model_part import ModelPart
from securevfl.training.run_page import format_table
from securevfl.training.simulate import simulate

# How good a model of one party's own columns is: what it can do by itself, before anybody sends anything.


LARGEST = 20_000_000  # numbers of a table, of which a model is made in passing
RIDGE = 1e-6  # where neither model nor optimizer has one
TWO = 2  # parties; trees are shared out as beside one other


def metrics_alone(job: JobOptions, party: Party) -> dict[str, float] | None:
    """Return `own_metrics` where there are any to stand beside a model of this job: of a table that fits in memory, for
    labels of two classes, with rows held out, on shares."""
    linear = isinstance(job.model, LinearModel) and job.model.loss.classifies and job.model.loss.single
    if not (linear and job.protocol.shares is not None and job.test_fraction and party.active):
        return None
    return None if len(party) * len(party.columns) > LARGEST else own_metrics(job, party)


def own_metrics(job: JobOptions, party: Party) -> dict[str, float]:
    """Return the metrics on the job's held-out rows of its model trained on this party's columns alone.

    The columns are prepared and the steps are those of a training on shares, in floats; nothing is sent. The party has
    the labels, the model is linear in inputs of the columns (`models.base`), as logistic regression and trees are.
    """
    party, model, options = prepare(job, party, party.register), job.model, job.protocol.shares
    assert isinstance(model, LinearModel), "shares train no other"
    assert options is not None, "compared jobs are on shares"
    loss, schedule = model.loss, job.schedule(party.register)
    data = TrainingData(party, schedule, loss, scale=job.scaling, weights=job.weights, positive=job.positive)
    train, test = schedule.train, schedule.test
    assert data.targets is not None, "the party has the labels"
    assert data.classes is not None, "the party has the labels"
    y, counts = data.targets[train], None if data.weights is None else data.weights[train]
    own, new = data.scaled(train), data.scaled(test)
    spread = InputShape(active=True, columns=data.columns, outputs=y.shape[1], parties=TWO, rows=len(train))
    key = private_stream(f"alone {job.seed}", own, y)(32)
    seen = FittingData(party.name, own, data.sources, y, counts, key=key)
    inputs = model.inputs(spread, None, lambda: seen)
    X, Z = (
        made.clip(-options.clip, options.clip) for made in (inputs.trained(own, np.arange(len(train))), inputs(new))
    )
    theta = _descended(job, model, X, y, np.ones((len(y), 1)) if counts is None else counts[:, None])
    return metrics.evaluate(loss, Z @ theta, np.asarray(party.y)[test], data.classes)


def _descended(job: JobOptions, model: LinearModel, X: Floats, y: Floats, counts: Floats) -> Floats:
    """Return weights (d x c) after the job's visits to all rows, by its bound of the curvature, with momentum.

    A model that ends early takes the visits that are right for most tables.
    """
    loss, n = model.loss, len(X)
    ridge = model.ridge_of(n) or (job.optimizer.ridge if isinstance(job.optimizer, BlockDescent) else RIDGE)
    decay = np.full((X.shape[1], 1), model.l2)
    decay[-1] = 0.0  # of the intercept
    bound = (loss.curvature or 1.0) * (X.T @ (counts * X)) / n + np.diag(ridge + decay[:, 0])
    turn = np.linalg.inv(bound)
    theta = before = np.zeros((X.shape[1], y.shape[1]))
    for step in range(model.defaults["epochs"] if model.ends_early else job.epochs):
        ahead = theta + step / (step + 3) * (theta - before)
        gradient = X.T @ (counts * loss.residual(X @ ahead, y)) / n + decay * ahead
        before, theta = theta, ahead - turn @ gradient
    return theta


BINS = 10
NOTHING = "nothing"


@dataclass(frozen=True)
class Compared:
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

    rows: tuple[Compared, ...]
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


def _cells(row: Compared) -> dict[str, str | int | float | None]:
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
        rows.append(shared_row(together, name, run.active, run.costs.total))
    return put_together(rows, next(iter(jobs.values())), lead)


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
    bins = kept | {"prepare": job.prepare.model_copy(update={"bins": job.prepare.bins or BINS})}
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
    check_together([(job, known_run(job, parties).sizes) for job in jobs], parties, ledgers)
    lead, *others = parties
    rows = jobs[0].schedule(register_of(parties)).test[:MAX_LOSS_ROWS]
    if any("small_metrics" in job.accepts for job in jobs):
        return
    for party in others:
        if party.name in ledgers and party.named:
            ScoreLedger(ledgers[party.name].scores).check_measures(lead.name, party.keys_of(rows), len(jobs))


def alone(jobs: Mapping[str, Job], lead: Party, on_model: Callable[[str], object]) -> Iterator[Compared]:
    """Yield the models of the party with labels by itself; nothing is sent."""
    for name, job in jobs.items():
        on_model(f"{name}, {lead.name} alone")
        started = time.thread_time()
        found = own_metrics(job, lead)
        spent = time.thread_time() - started
        yield Compared(f"{lead.name} alone", name, found["auc"], found["log_loss"], spent, NOTHING)


def shared_row(together: str, name: str, part: ModelPart, seconds: float) -> Compared:
    """Return the line of a model that was trained on shares, from what the party with labels was told of it."""
    tells = f"{part.held_out:,} (score, label) pairs"
    return Compared(together, name, part.metrics["auc"], part.metrics["log_loss"], seconds, tells)


def put_together(rows: Sequence[Compared], job: Job, lead: Party) -> Comparison:
    """Return the comparison of these models on the rows that the job holds out of the table with labels."""
    labels = lead.labels[job.schedule(lead.register).test]
    return Comparison(tuple(rows), len(labels), int(min((labels == each).sum() for each in set(labels.tolist()))))

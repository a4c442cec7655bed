"""Quality of a model of one party's columns alone (a *baseline*), which the party trains without any message.

A report compares it with the joint model, so that readers see what the other parties' columns add. A model has c
outputs for each row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.party import Party
from securevfl.data.schedule import Rows, Schedule
from securevfl.families.table_preparation import prepare_rows
from securevfl.families.training_data import TrainingData
from securevfl.families.weights_of_evidence import encode_evidence_pooled
from securevfl.models import metrics
from securevfl.models.inputs import FittingData, InputShape, private_stream
from securevfl.models.linear import LinearModel
from securevfl.models.pair_metrics import supports_pairs
from securevfl.models.paired_auc import spread_within_classes
from securevfl.models.standard_errors import standard_errors
from securevfl.optim.block_descent import BlockDescent
from securevfl.optim.defaults import PRECISE_ITERATIONS
from securevfl.options import JobOptions

MAX_TABLE_VALUES = 20_000_000
"""A baseline model is trained for a report only if the table has at most this many values."""
DEFAULT_RIDGE = 1e-6
"""Ridge penalty (l2) of the baseline model if neither the model nor the optimizer has one."""
BASELINE_PARTIES = 2
"""Number of parties over which the job's number of trees is divided: this party, and one other party that is
assumed."""


@dataclass(frozen=True)
class LocalQuality:
    """Quality of a model of one party's columns alone, on the job's held-out rows.

    Attributes:
        metrics: the metrics.
        std_errors: their standard errors.
        spread: with two classes, the standard deviation of the log odds within the classes
            (`securevfl.models.paired_auc`); otherwise None.
    """

    metrics: dict[str, float]
    std_errors: dict[str, float] = field(default_factory=dict)
    spread: float | None = None


def baseline_figures(job: JobOptions, party: Party) -> LocalQuality | None:
    """Train and measure a model of one party's columns as a baseline for a report.

    The result is None if the job or the table does not allow it.

    The job must hold out rows, its model must be linear in inputs derived from the columns, and the table must fit in
    memory.
    """
    linear = isinstance(job.model, LinearModel) and job.model.loss.curvature is not None
    if not (linear and job.test_fraction and party.active and party.columns):
        return None
    return None if len(party) * len(party.columns) > MAX_TABLE_VALUES else local_figures(job, party)


def local_metrics(job: JobOptions, party: Party) -> dict[str, float]:
    """Train the job's model on one party's columns, and return its metrics on the job's held-out rows.

    Args:
        job: a job whose model is linear in inputs derived from the columns, as in `local_scores`.
        party: the party with labels.

    Returns:
        The metrics. Rows have the same weights as in the metrics of the run.
    """
    return local_figures(job, party).metrics


def local_figures(job: JobOptions, party: Party) -> LocalQuality:
    """Return `local_metrics` with their standard errors."""
    schedule, loss = job.schedule(party.register), job.model.loss
    model, rows = fit_local(job, party, schedule), schedule.test
    if job.exposure is not None and job.protocol.shares is not None:  # such a run measures only its loss
        values = model.losses(rows)
        return LocalQuality({"loss": float(values.mean())}, {"loss": float(values.std() / np.sqrt(len(rows)))})
    f, labels, weights, classes = model.outputs(rows), np.asarray(party.y)[rows], model.weights(rows), model.classes
    spread = None
    if loss.classifies and loss.single:
        points = metrics.calibration(labels == classes[1], loss.proba(f)[:, 1], weights=weights)
        spread = spread_within_classes(points.tolist())
    measured = metrics.evaluate(loss, f, labels, classes, weights)
    return LocalQuality(measured, standard_errors(loss, f, labels, classes, weights), spread)


def _counts_rows_once(job: JobOptions) -> bool:
    """Return whether the run's metrics ignore row weights: on secret shares, metrics of (score, label) pairs do."""
    return job.protocol.shares is not None and supports_pairs(job.model.loss)


def local_scores(job: JobOptions, party: Party) -> tuple[Floats, NDArray[Any], NDArray[Any]]:
    """Train the job's model on one party's columns, and return its outputs for the job's held-out rows.

    Columns are prepared and steps are taken as in a training on shares, but in floats and without messages.

    Args:
        job: a job whose model is linear in inputs derived from the columns, such as logistic regression or trees.
        party: the party with labels.

    Returns:
        The outputs (n, c) and the labels (n,) of the n held-out rows, and the classes.
    """
    schedule = job.schedule(party.register)
    model = fit_local(job, party, schedule)
    return model.outputs(schedule.test), np.asarray(party.y)[schedule.test], model.classes


@dataclass(frozen=True)
class LocalModel:
    """A model of one party's columns.

    Attributes:
        linear_part: computes the outputs (m, c) for rows of the party's table, without the offset of exposures.
        data: the party's prepared columns and targets.
        job: the options of the training.
    """

    linear_part: Callable[[Rows], Floats]
    data: TrainingData
    job: JobOptions

    @property
    def classes(self) -> NDArray[Any]:
        """The classes of the labels, or location and scale of numeric labels."""
        assert self.data.target_classes is not None, "the party has the labels"
        return self.data.target_classes

    def outputs(self, rows: Rows) -> Floats:
        """Return the outputs (m, c) of these rows; with an exposure they are for the whole exposure of each row."""
        return self.data.with_offsets(self.linear_part(rows), rows)

    def weights(self, rows: Rows) -> Floats | None:
        """Return the weights (m,) of these rows in metrics, or None if all rows count once, as in the job's metrics."""
        return None if _counts_rows_once(self.job) else self.data.metric_weights(rows)

    def losses(self, rows: Rows) -> Floats:
        """Return the loss (m,) of each row with its exposure, times its weight relative to the mean of these rows."""
        targets = self.data.targets
        assert targets is not None, "the party has the labels"
        weights, y = self.weights(rows), targets[rows]
        loss = self.job.model_copy(update={"weights": None}).loss
        y = y if self.data.offsets is None else np.column_stack([y, self.data.offsets[rows]])
        values = loss.value(self.linear_part(rows), y)
        return values if weights is None else values * (weights / weights.mean())


def fit_local(job: JobOptions, party: Party, schedule: Schedule) -> LocalModel:
    """Train the job's model on one party's columns and the training rows of a schedule, as `local_scores` describes."""
    party, model, options = prepare_rows(job, party, schedule), job.model, job.protocol.shares
    if party.preparation is not None and party.preparation.has_evidence:
        (party,) = encode_evidence_pooled(job, [party], schedule.batch_order)
    assert isinstance(model, LinearModel), "other models have no baseline"
    clip = np.inf if options is None else options.clip
    data = TrainingData(
        party,
        schedule,
        model.loss,
        scale=job.scaling,
        weights=job.weights,
        exposure=job.exposure,
        positive=job.positive,
    )
    train = schedule.train
    targets = data.loss_targets(train)
    assert targets is not None, "the party has the labels"
    assert data.targets is not None, "the party has the labels"
    y, row_weights = data.targets[train], None if data.weights is None else data.weights[train]
    training_rows = data.scaled(train)
    shape = InputShape(active=True, columns=data.columns, outputs=y.shape[1], parties=BASELINE_PARTIES, rows=len(train))
    key = private_stream(f"alone {job.seed}", training_rows, y)(32)
    fitting_data = FittingData(party.name, training_rows, data.sources, y, row_weights, key=key)
    inputs = model.inputs(shape, None, lambda: fitting_data)
    X = inputs.trained(training_rows, np.arange(len(train))).clip(-clip, clip)
    theta = _block_descent(job, model, X, targets, y.shape[1])
    return LocalModel(lambda rows: inputs(data.scaled(rows)).clip(-clip, clip) @ theta, data, job)


def _block_descent(job: JobOptions, model: LinearModel, X: Floats, targets: Floats, outputs: int) -> Floats:
    """Train by `BlockDescent` with one block that has all columns, and return the weights (d, c).

    The number of steps is the job's number of epochs. If the job stops by itself or has another optimizer, the number
    of steps is fixed, and enough for most tables.

    Args:
        job: the options of the training.
        model: the job's model.
        X: the inputs (n, d) of the training rows, the last of which is the intercept.
        targets: the targets of the job's loss (n, c + 0 to 2), with offsets and weights of rows.
        outputs: c, the number of outputs.

    Returns:
        The weights.
    """
    loss, n, descends = model.loss, len(X), isinstance(job.optimizer, BlockDescent)
    row_weights = np.ones((n, 1)) if job.weights is None else targets[:, -1:]
    optimizer = job.optimizer if isinstance(job.optimizer, BlockDescent) else BlockDescent(ridge=DEFAULT_RIDGE)
    steps = job.epochs if descends else PRECISE_ITERATIONS
    multiple = loss.step_factor if loss.reports_standard_errors else 1.0
    ridge = model.ridge_of(n) or optimizer.ridge
    decay = np.full((X.shape[1], 1), model.l2)
    decay[-1] = 0.0  # the intercept is not penalised
    curvature = (loss.curvature or 1.0) * (X.T @ (row_weights * X)) / n
    preconditioner = np.linalg.inv(curvature + np.diag(ridge + decay[:, 0]))
    theta = previous = np.zeros((X.shape[1], outputs))
    for step in range(1, 1 + (model.defaults["epochs"] if model.ends_early else steps)):
        point = theta + optimizer.extrapolation(step) * (theta - previous)
        gradient = X.T @ job.loss.residual(X @ point, targets) / n + decay * point
        previous, theta = theta, point - multiple * (preconditioner @ gradient)
    return theta

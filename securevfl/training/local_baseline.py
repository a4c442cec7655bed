"""Quality of a model of one party's columns alone (a *baseline*), which the party trains without any message.

A report compares it with the joint model, so that readers see what the other parties' columns add.
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
from securevfl.families.table_preparation import prepare_party, prepare_rows
from securevfl.families.training_data import TrainingData
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

    The job must hold out rows and name no exposure, its model must be linear in inputs derived from the columns, and
    the table must fit in memory.
    """
    linear = isinstance(job.model, LinearModel) and job.model.loss.curvature is not None
    if not (linear and job.exposure is None and job.test_fraction and party.active and party.columns):
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
    weights = _test_weights(job, party)
    f, labels, classes = local_scores(job, party)
    return metrics.evaluate(job.model.loss, f, labels, classes, weights)


def local_figures(job: JobOptions, party: Party) -> LocalQuality:
    """Return `local_metrics` with their standard errors."""
    weights, loss = _test_weights(job, party), job.model.loss
    f, labels, classes = local_scores(job, party)
    spread = None
    if loss.classifies and loss.single:
        points = metrics.calibration(labels == classes[1], loss.proba(f)[:, 1], weights=weights)
        spread = spread_within_classes(points.tolist())
    measured = metrics.evaluate(loss, f, labels, classes, weights)
    return LocalQuality(measured, standard_errors(loss, f, labels, classes, weights), spread)


def _test_weights(job: JobOptions, party: Party) -> Floats | None:
    """Return the weights (n,) of the held-out rows, or None if all rows count once."""
    if job.weights is None or job.weights.column is None or _counts_rows_once(job):
        return None
    weights = prepare_party(job, party, party.register).weights
    return None if weights is None else weights[job.schedule(party.register).test]


def _counts_rows_once(job: JobOptions) -> bool:
    """Return whether the run's metrics ignore row weights, as those on secret shares from scores and labels do."""
    return job.protocol.shares is not None and supports_pairs(job.model.loss)


def local_scores(job: JobOptions, party: Party) -> tuple[Floats, NDArray[Any], NDArray[Any]]:
    """Train the job's model on one party's columns, and return its outputs for the job's held-out rows.

    Columns are prepared and steps are taken as in a training on shares, but in floats and without messages.

    Args:
        job: a job whose model is linear in inputs derived from the columns, such as logistic regression or trees.
        party: the party with labels.

    Returns:
        The outputs (n, c), the labels (n,) and the classes.
    """
    schedule = job.schedule(party.register)
    model = fit_local(job, party, schedule)
    return model.outputs(schedule.test), np.asarray(party.y)[schedule.test], model.classes


@dataclass(frozen=True)
class LocalModel:
    """A model of one party's columns.

    Attributes:
        classes: the classes of the labels.
        outputs: computes the outputs (m, c) for rows of the party's table.
    """

    classes: NDArray[Any]
    outputs: Callable[[Rows], Floats]


def fit_local(job: JobOptions, party: Party, schedule: Schedule) -> LocalModel:
    """Train the job's model on one party's columns and a schedule's training rows; the method is in `local_scores`."""
    party, model, options = prepare_rows(job, party, schedule), job.model, job.protocol.shares
    assert isinstance(model, LinearModel), "other models have no baseline"
    clip = np.inf if options is None else options.clip
    loss = model.loss
    data = TrainingData(party, schedule, loss, scale=job.scaling, weights=job.weights, positive=job.positive)
    train = schedule.train
    assert data.targets is not None, "the party has the labels"
    assert data.classes is not None, "the party has the labels"
    y, row_weights = data.targets[train], None if data.weights is None else data.weights[train]
    training_rows = data.scaled(train)
    shape = InputShape(active=True, columns=data.columns, outputs=y.shape[1], parties=BASELINE_PARTIES, rows=len(train))
    key = private_stream(f"alone {job.seed}", training_rows, y)(32)
    fitting_data = FittingData(party.name, training_rows, data.sources, y, row_weights, key=key)
    inputs = model.inputs(shape, None, lambda: fitting_data)
    X = inputs.trained(training_rows, np.arange(len(train))).clip(-clip, clip)
    theta = _block_descent(job, model, X, y, np.ones((len(y), 1)) if row_weights is None else row_weights[:, None])
    return LocalModel(data.classes, lambda rows: inputs(data.scaled(rows)).clip(-clip, clip) @ theta)


def _block_descent(job: JobOptions, model: LinearModel, X: Floats, y: Floats, row_weights: Floats) -> Floats:
    """Train by `BlockDescent` with one block that has all columns, and return the weights (d, c).

    The number of steps is the job's. If the job would stop by itself, or has another optimizer, it is a fixed number
    that is enough for most tables.
    """
    loss, n, descends = model.loss, len(X), isinstance(job.optimizer, BlockDescent)
    optimizer = job.optimizer if isinstance(job.optimizer, BlockDescent) else BlockDescent(ridge=DEFAULT_RIDGE)
    steps = job.epochs if descends else PRECISE_ITERATIONS
    multiple = loss.step_factor if loss.reports_standard_errors else 1.0
    ridge = model.ridge_of(n) or optimizer.ridge
    decay = np.full((X.shape[1], 1), model.l2)
    decay[-1] = 0.0  # the intercept is not penalised
    curvature = (loss.curvature or 1.0) * (X.T @ (row_weights * X)) / n
    preconditioner = np.linalg.inv(curvature + np.diag(ridge + decay[:, 0]))
    theta = previous = np.zeros((X.shape[1], y.shape[1]))
    for step in range(1, 1 + (model.defaults["epochs"] if model.ends_early else steps)):
        point = theta + optimizer.extrapolation(step) * (theta - previous)
        gradient = X.T @ (row_weights * loss.residual(X @ point, y)) / n + decay * point
        previous, theta = theta, point - multiple * (preconditioner @ gradient)
    return theta

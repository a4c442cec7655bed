"""Quality of a model of one party's columns alone: the quality that the party reaches without any message."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.party import Party
from securevfl.families.table_preparation import prepare_party
from securevfl.families.training_data import TrainingData
from securevfl.models import metrics
from securevfl.models.inputs import FittingData, InputShape, private_stream
from securevfl.models.linear import LinearModel
from securevfl.optim.block_descent import BlockDescent
from securevfl.options import JobOptions

MAX_TABLE_VALUES = 20_000_000
"""A baseline model is trained for a report only if the table has at most this many values."""
DEFAULT_RIDGE = 1e-6
"""Ridge penalty (l2) of the baseline model if neither the model nor the optimizer has one."""
BASELINE_PARTIES = 2
"""Number of parties over which the job's number of trees is divided: this party, and one other party that is
assumed."""


def baseline_metrics(job: JobOptions, party: Party) -> dict[str, float] | None:
    """Return `local_metrics` as a baseline for a report, or None if the job or the table does not allow it.

    The job must be on shares, hold out rows and have labels of two classes, and the table must fit in memory.
    """
    linear = isinstance(job.model, LinearModel) and job.model.loss.classifies and job.model.loss.single
    if not (linear and job.protocol.shares is not None and job.test_fraction and party.active):
        return None
    return None if len(party) * len(party.columns) > MAX_TABLE_VALUES else local_metrics(job, party)


def local_metrics(job: JobOptions, party: Party) -> dict[str, float]:
    """Train the job's model on one party's columns, and return its metrics on the job's held-out rows.

    Args:
        job: see `local_scores`.
        party: the party with labels.

    Returns:
        The metrics.
    """
    f, labels, classes = local_scores(job, party)
    return metrics.evaluate(job.model.loss, f, labels, classes)


def local_scores(job: JobOptions, party: Party) -> tuple[Floats, NDArray[Any], NDArray[Any]]:
    """Train the job's model on one party's columns, and return its outputs for the job's held-out rows.

    Columns are prepared and steps are taken as in a training on shares, but in floats and without messages.

    Args:
        job: a job on shares whose model is linear in inputs derived from the columns, such as logistic regression or
            trees.
        party: the party with labels.

    Returns:
        The outputs (n, c), the labels (n,) and the classes.
    """
    party, model, options = prepare_party(job, party, party.register), job.model, job.protocol.shares
    assert isinstance(model, LinearModel), "shares train no other"
    assert options is not None, "compared jobs are on shares"
    loss, schedule = model.loss, job.schedule(party.register)
    data = TrainingData(party, schedule, loss, scale=job.scaling, weights=job.weights, positive=job.positive)
    train, test = schedule.train, schedule.test
    assert data.targets is not None, "the party has the labels"
    assert data.classes is not None, "the party has the labels"
    y, row_weights = data.targets[train], None if data.weights is None else data.weights[train]
    training_rows, test_rows = data.scaled(train), data.scaled(test)
    shape = InputShape(active=True, columns=data.columns, outputs=y.shape[1], parties=BASELINE_PARTIES, rows=len(train))
    key = private_stream(f"alone {job.seed}", training_rows, y)(32)
    fitting_data = FittingData(party.name, training_rows, data.sources, y, row_weights, key=key)
    inputs = model.inputs(shape, None, lambda: fitting_data)
    X = inputs.trained(training_rows, np.arange(len(train))).clip(-options.clip, options.clip)
    Z = inputs(test_rows).clip(-options.clip, options.clip)
    theta = _block_descent(job, model, X, y, np.ones((len(y), 1)) if row_weights is None else row_weights[:, None])
    return Z @ theta, np.asarray(party.y)[test], data.classes


def _block_descent(job: JobOptions, model: LinearModel, X: Floats, y: Floats, row_weights: Floats) -> Floats:
    """Return weights (d, c) after the job's steps on all rows by `BlockDescent`, with one block.

    A model whose training would end by itself takes a fixed number of steps, which is enough for most tables.
    """
    optimizer = job.optimizer if isinstance(job.optimizer, BlockDescent) else BlockDescent(ridge=DEFAULT_RIDGE)
    loss, n = model.loss, len(X)
    ridge = model.ridge_of(n) or optimizer.ridge
    decay = np.full((X.shape[1], 1), model.l2)
    decay[-1] = 0.0  # the intercept is not penalised
    curvature = (loss.curvature or 1.0) * (X.T @ (row_weights * X)) / n
    preconditioner = np.linalg.inv(curvature + np.diag(ridge + decay[:, 0]))
    theta = previous = np.zeros((X.shape[1], y.shape[1]))
    for step in range(1, 1 + (model.defaults["epochs"] if model.ends_early else job.epochs)):
        point = theta + optimizer.extrapolation(step) * (theta - previous)
        gradient = X.T @ (row_weights * loss.residual(X @ point, y)) / n + decay * point
        previous, theta = theta, point - preconditioner @ gradient
    return theta

"""How good a model of one party's own columns is: what it can do by itself, before anybody sends anything."""

from __future__ import annotations

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.data.party import Party
from securevfl.families.table_preparation import prepare_party
from securevfl.families.training_data import TrainingData
from securevfl.models import metrics
from securevfl.models.inputs import FittingData, InputShape, private_stream
from securevfl.models.linear import LinearModel
from securevfl.optim.block_descent import BlockDescent
from securevfl.options import JobOptions

MAX_TABLE_VALUES = 20_000_000  # numbers of a table, of which a model is made in passing

DEFAULT_RIDGE = 1e-6  # where neither model nor optimizer has one

BASELINE_PARTIES = 2  # parties; trees are shared out as beside one other


def baseline_metrics(job: JobOptions, party: Party) -> dict[str, float] | None:
    """Return `local_metrics` where there are any to stand beside a model of this job: of a table that fits in
    memory, for
    labels of two classes, with rows held out, on shares."""
    linear = isinstance(job.model, LinearModel) and job.model.loss.classifies and job.model.loss.single
    if not (linear and job.protocol.shares is not None and job.test_fraction and party.active):
        return None
    return None if len(party) * len(party.columns) > MAX_TABLE_VALUES else local_metrics(job, party)


def local_metrics(job: JobOptions, party: Party) -> dict[str, float]:
    """Return the metrics on the job's held-out rows of its model trained on this party's columns alone.

    The columns are prepared and the steps are those of a training on shares, in floats; nothing is sent. The party has
    the labels, the model is linear in inputs of the columns (`models.base`), as logistic regression and trees are.
    """
    party, model, options = prepare_party(job, party, party.register), job.model, job.protocol.shares
    assert isinstance(model, LinearModel), "shares train no other"
    assert options is not None, "compared jobs are on shares"
    loss, schedule = model.loss, job.schedule(party.register)
    data = TrainingData(party, schedule, loss, scale=job.scaling, weights=job.weights, positive=job.positive)
    train, test = schedule.train, schedule.test
    assert data.targets is not None, "the party has the labels"
    assert data.classes is not None, "the party has the labels"
    y, counts = data.targets[train], None if data.weights is None else data.weights[train]
    own, new = data.scaled(train), data.scaled(test)
    spread = InputShape(
        active=True, columns=data.columns, outputs=y.shape[1], parties=BASELINE_PARTIES, rows=len(train)
    )
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
    ridge = model.ridge_of(n) or (job.optimizer.ridge if isinstance(job.optimizer, BlockDescent) else DEFAULT_RIDGE)
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

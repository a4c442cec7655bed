"""Choices that a job may leave open and that depend on the tables: loss of trees, class weights, number of epochs.

- Trees with labels of several classes use the loss one against the rest.
- Class weights have a *room*: the largest weight of a row divided by the mean weight. All parties must know it.
- Rare classes need more iterations of block descent than the default.
- A job with 0 epochs gets the largest number of epochs that the leak checks (`securevfl.consent.leak_check`) allow.
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from securevfl.consent.leak_check import leaks
from securevfl.data.party import Party, check_parties, register_of
from securevfl.errors import ConfigError, DataNotice
from securevfl.families.facts import RunFacts
from securevfl.families.run_facts import pooled_run_facts
from securevfl.job import Job
from securevfl.models.class_labels import find_classes
from securevfl.models.row_weights import Weights, with_max_weight
from securevfl.models.standard_losses import LogisticLoss
from securevfl.models.trees import Trees
from securevfl.optim.block_descent import BlockDescent, iterations_for, rounded_iterations
from securevfl.optim.block_newton import BlockNewton
from securevfl.optim.defaults import (
    DEFAULT_ITERATIONS,
    EVALUATE_EVERY,
    EVALUATE_SAFE_STEPS_EVERY,
    LONG_STEP_ITERATIONS,
    iteration_factor,
)

MAX_OPEN_EPOCHS = 10
MAX_SELF_ENDING_EPOCHS = 50  # a limit for optimizers that end by themselves, usually earlier (block Newton descent)
"""Largest number of epochs of a job that leaves it open, before class weights and standard errors increase it."""
SUFFICIENT_SHARE = 0.9
"""The default number of iterations is left unchanged if it is at least this share of the number that is needed."""
MAX_RARE_CLASS_ITERATIONS = 160
"""Largest number of iterations to which a rare class increases the default; it is enough for a rate of 0.2 %."""


def settle_job(job: Job, parties: Sequence[Party]) -> Job:
    """Make the choices that a job leaves open, from the tables of parties in one process.

    The classes of the labels determine the loss of trees, the maximum weight of a row, and the number of iterations. If
    the number of epochs is 0, it becomes the largest number, at most `most_epochs`, for which the job has no leak named
    "columns" (the disclosed numbers suffice to recover columns of a party). It becomes `most_epochs` if the job accepts
    this leak, and also if even one epoch has the leak; in the second case the leak check then refuses the run.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        parties: the parties, each with its name and its table.

    Returns:
        The job with all choices made.
    """
    lead, others = check_parties(parties)
    job = _settle_iterations(_settle_classes(job, [lead, *others]), [lead, *others])
    if job.epochs:
        return job
    longest = job.model_copy(update={"epochs": most_epochs(job)})
    if "columns" in job.accepts:
        return longest
    return with_allowed_epochs(longest, pooled_run_facts(longest, [lead, *others]))


def most_epochs(job: Job) -> int:
    """Return the largest number of epochs that `settle_job` chooses for a job that leaves the number open.

    It is larger if coefficients get standard errors, and if class weights make steps shorter.
    """
    room = 1.0 if job.weights is None else job.weights.limit
    epochs = MAX_SELF_ENDING_EPOCHS if isinstance(job.optimizer, BlockNewton) else MAX_OPEN_EPOCHS
    if job.model.loss.reports_standard_errors:
        return math.ceil(3 * epochs * math.sqrt(room))
    return math.ceil(epochs * iteration_factor(room))


def _settle_classes(job: Job, parties: Sequence[Party]) -> Job:
    """Set the loss of trees with several classes, the room of class weights, and the epochs that this room requires."""
    lead, model = parties[0], job.model
    if lead.y is None:
        return job
    if isinstance(model, Trees) and "loss_name" not in model.model_fields_set and len(np.unique(lead.y)) > 2:
        one_vs_rest = Trees(**{**model.model_dump(), "loss_name": "one_vs_rest"})
        notice = f"party {lead.name}: the labels have several classes, so trees learn each class against all others"
        warnings.warn(f'{notice}; to choose this in the job, set loss = "one_vs_rest"', DataNotice, stacklevel=3)
        job = job.model_copy(update={"model": one_vs_rest})
    if job.weights is None or not job.model.loss.classifies:
        return job
    classes = find_classes(lead.name, job.model.loss, lead.y, job.positive)
    train = job.schedule(register_of(parties)).batch_order
    return _with_room(job, with_max_weight(lead.name, job.weights, job.model.loss, lead.y, classes, train))


def _settle_iterations(job: Job, parties: Sequence[Party]) -> Job:
    """Increase the default number of iterations of block descent if the rarest class needs more.

    The number is rounded up to one of a few values, because all parties learn it, and it shows roughly how rare the
    class is. The number of evaluations does not change, unless the training may stop early.
    """
    lead, loss = parties[0], job.model.loss
    is_default = (
        isinstance(job.optimizer, BlockDescent)
        and not job.optimizer.may_overshoot
        and job.epochs == DEFAULT_ITERATIONS
        and job.evaluate_every in (0, EVALUATE_SAFE_STEPS_EVERY)
    )
    if not (is_default and job.weights is None and lead.y is not None and isinstance(loss, LogisticLoss)):
        return job
    train = job.schedule(register_of(parties)).batch_order
    positive = np.asarray(lead.y)[train] == find_classes(lead.name, loss, lead.y, job.positive)[1]
    rate = float(positive.mean())
    needed = iterations_for(4 * rate * (1 - rate), len(train))
    if needed <= DEFAULT_ITERATIONS / SUFFICIENT_SHARE:
        return job
    epochs = min(MAX_RARE_CLASS_ITERATIONS, rounded_iterations(needed))
    warnings.warn(
        f"party {lead.name}: the rarest class has few rows, so the training takes {epochs} iterations instead of "
        f"{DEFAULT_ITERATIONS}. All parties learn this number, which shows roughly how rare the class is; to choose "
        f"another one, set epochs in the job to any number but {DEFAULT_ITERATIONS}",
        DataNotice,
        stacklevel=3,
    )
    evaluate_every = job.evaluate_every * epochs // DEFAULT_ITERATIONS
    return job.model_copy(update={"epochs": epochs, "evaluate_every": evaluate_every})


def _with_room(job: Job, weights: Weights) -> Job:
    """Return the job with the room of its class weights filled in.

    A larger room makes the steps of block descent shorter. So if the room was open, the number of epochs and the rounds
    between evaluations grow in proportion, unless the job sets other numbers than the defaults.
    """
    update: dict[str, Any] = {"weights": weights}
    factor = 1.0 if job.weights is None or job.weights.max_weight is not None else iteration_factor(weights.limit)
    if isinstance(job.optimizer, BlockDescent) and factor > 1:
        if job.epochs in (DEFAULT_ITERATIONS, LONG_STEP_ITERATIONS, job.model.defaults.get("epochs")):
            update["epochs"] = math.ceil(factor * job.epochs)
        if job.evaluate_every in (EVALUATE_EVERY, EVALUATE_SAFE_STEPS_EVERY):
            update["evaluate_every"] = min(math.ceil(factor * job.evaluate_every), update.get("epochs", job.epochs))
    return job.model_copy(update=update)


def with_allowed_epochs(job: Job, facts: RunFacts) -> Job:
    """Return the job with the largest number of epochs, at most its current number, that has no leak named "columns".

    If even one epoch has this leak, the job is returned unchanged.
    """

    def with_epochs(epochs: int) -> Job:
        return job.model_copy(update={"epochs": epochs})

    def is_refused(epochs: int) -> bool:
        found = leaks(with_epochs(epochs), replace(facts.shape, epochs=epochs))
        return any(leak.name == "columns" for leak in found)

    # bisection finds the number, because more epochs never disclose less
    allowed = bisect_left(range(1, job.epochs + 1), True, key=is_refused)
    return with_epochs(allowed) if allowed else job


def check_settled(job: Job, party: str) -> None:
    """Check that a job between organisations sets its number of epochs.

    Args:
        job: the job to check.
        party: name of the party, for the error.

    Raises:
        ConfigError: if it leaves the number to the leak checks, each of which sees one table only.
    """
    if not job.epochs:
        raise ConfigError(
            f"{party}: between organisations the job must set the number of epochs, because each party sees only its "
            "own table",
            "write for example epochs = 2; securevfl explain shows whether your leak checks accept it",
            code="SVFL-JOB-COMBINATION",
            party=party,
        )

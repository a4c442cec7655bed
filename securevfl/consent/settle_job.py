"""How long a job may train on the tables at hand: as many epochs as no guard refuses for what columns tell."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from securevfl.consent.leak_guard import leaks
from securevfl.data.party import Party, check_parties, register_of
from securevfl.errors import ConfigError, DataNotice
from securevfl.families.run_facts import RunFacts, pooled_run_facts
from securevfl.job import Job
from securevfl.models.class_labels import classes_of
from securevfl.models.row_weights import Weights, room_for
from securevfl.models.trees import Trees
from securevfl.optim.block_descent import BlockDescent
from securevfl.optim.defaults import EVALUATE_EVERY, LONG_VISITS, VISITS, longer

MAX_EPOCHS = 10  # epochs


def settle_job(job: Job, parties: Sequence[Party]) -> Job:
    """Settle what the job leaves open, by tables of parties that sit in one process: what follows from the classes of
    the labels (`_classified`), and the number of epochs if that is left to the guards (0).

    It is the most, up to `most_epochs`, that none of these parties refuses for what it tells of columns. It is all of
    these where the job accepts that, or where a guard refuses one epoch already; the guard then says so as ever.
    """
    lead, others = check_parties(parties)
    job = _classified(job, [lead, *others])
    if job.epochs:
        return job
    whole = job.model_copy(update={"epochs": most_epochs(job)})
    if "columns" in job.accepts:
        return whole
    return with_allowed_epochs(whole, pooled_run_facts(whole, [lead, *others]))


def most_epochs(job: Job) -> int:
    """Return the most epochs that a job is given which leaves them open; more where coefficients are read with standard
    errors, and where weights make the safe steps shorter."""
    room = 1.0 if job.weights is None else job.weights.room
    if job.model.loss.reports_standard_errors:
        return math.ceil(3 * MAX_EPOCHS * math.sqrt(room))
    return math.ceil(MAX_EPOCHS * longer(room))


def _classified(job: Job, parties: Sequence[Party]) -> Job:
    """Settle the loss of trees that name none, where there are several classes, and the room that weights of classes
    need, with visits enough for the smaller steps."""
    lead, model = parties[0], job.model
    if lead.y is None:
        return job
    if isinstance(model, Trees) and "loss_name" not in model.model_fields_set and len(np.unique(lead.y)) > 2:
        rest = Trees(**{**model.model_dump(), "loss_name": "one_vs_rest"})
        notice = f"party {lead.name}: trees learn each of several classes against the rest"
        warnings.warn(f'{notice}, as a job says by loss = "one_vs_rest"', DataNotice, stacklevel=3)
        job = job.model_copy(update={"model": rest})
    if job.weights is None or not job.model.loss.classifies:
        return job
    classes = classes_of(lead.name, job.model.loss, lead.y, job.positive)
    train = job.schedule(register_of(parties)).flow
    return _roomy(job, room_for(lead.name, job.weights, job.model.loss, lead.y, classes, train))


def _roomy(job: Job, weights: Weights) -> Job:
    """Return a job that left the room of its weights open with these weights, and with visits as many times as many as
    the room makes steps smaller, as far as the job left these open too."""
    update: dict[str, Any] = {"weights": weights}
    more = 1.0 if job.weights is None or job.weights.most is not None else longer(weights.room)
    if isinstance(job.optimizer, BlockDescent) and more > 1:
        if job.epochs in (VISITS, LONG_VISITS, job.model.defaults.get("epochs")):
            update["epochs"] = math.ceil(more * job.epochs)
        if job.evaluate_every == EVALUATE_EVERY:
            update["evaluate_every"] = math.ceil(more * EVALUATE_EVERY)
    return job.model_copy(update=update)


def with_allowed_epochs(job: Job, known: RunFacts) -> Job:
    """Return the job with the most epochs, up to its own, whose columns no guard refuses by these sizes.

    The job is returned as it is if there is no such number of epochs.
    """
    for epochs in range(job.epochs, 0, -1):
        shorter = job.model_copy(update={"epochs": epochs})
        if not any(leak.name == "columns" for leak in leaks(shorter, replace(known.shape, epochs=epochs))):
            return shorter
    return job


def check_settled(job: Job, who: str) -> None:
    """ConfigError if a job between organisations leaves its epochs to the guards, who see one table each."""
    if not job.epochs:
        raise ConfigError(
            f"{who}: a number of epochs was expected, as each party sees its own table alone; write epochs = 2, say, "
            "and let securevfl explain tell whether your guard lets it through"
        )

"""How long a job may train on the tables at hand: as many epochs as no guard refuses for what columns tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from securevfl.consent.leaks import leaks
from securevfl.data.party import Party, check_parties
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.methods.base import Known
from securevfl.methods.known_run import known_run

MOST = 10  # epochs


def settled(job: Job, parties: Sequence[Party]) -> Job:
    """Settle the number of epochs if the job leaves it to the guards (0).

    It is the most, up to MOST, that none of these parties refuses for what it tells of columns. It is MOST where the
    job accepts that, or where a guard refuses one epoch already; the guard then says so as ever.
    """
    if job.epochs:
        return job
    lead, others = check_parties(parties)
    whole = job.model_copy(update={"epochs": MOST})
    if "columns" in job.accepts:
        return whole
    return allowed(whole, known_run(whole, [lead, *others]))


def allowed(job: Job, known: Known) -> Job:
    """Return the job with the most epochs, up to its own, whose columns no guard refuses by these sizes.

    The job is returned as it is if there is no such number of epochs.
    """
    for epochs in range(job.epochs, 0, -1):
        shorter = job.model_copy(update={"epochs": epochs})
        if not any(leak.name == "columns" for leak in leaks(shorter, replace(known.sizes, epochs=epochs))):
            return shorter
    return job


def check_settled(job: Job, who: str) -> None:
    """ConfigError if a job between organisations leaves its epochs to the guards, who see one table each."""
    if not job.epochs:
        raise ConfigError(
            f"{who}: a number of epochs was expected, as each party sees its own table alone; write epochs = 2, say, "
            "and let securevfl explain tell whether your guard lets it through"
        )

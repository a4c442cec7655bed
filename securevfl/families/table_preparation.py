"""The preparation of a party's columns (missing values, texts, bins), before anything is counted or sent.

A job states how columns are prepared. A table that is read from disk cannot be changed, so such a job is refused.
Weights of evidence replace the bins of a column by the log odds of the classes in each bin. Rows may be stored at
workers, processes of a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TypeVar

from securevfl.data.party import Party, register_of
from securevfl.data.preparation import FittedPreparation, Preparation, fit_preparation
from securevfl.data.register import Register
from securevfl.data.schedule import Schedule
from securevfl.data.store import StoredParty
from securevfl.errors import TableError
from securevfl.families.weights_of_evidence import encode_evidence_pooled
from securevfl.options import JobOptions

J = TypeVar("J", bound=JobOptions)


def prepare_party(job: JobOptions, party: Party, register: Register) -> Party:
    """Prepare a party's columns; the preparation is fitted on its training rows.

    TableError is raised if the table is read from disk and the job asks for weights of evidence.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        party: the party; one that is already prepared is returned unchanged.
        register: the register of the rows' ids, which determines the training rows.

    Returns:
        The party with prepared columns.
    """
    if party.preparation is not None or not party.columns:
        return party
    return prepare_rows(job, party, job.schedule(register))


def prepare_rows(job: JobOptions, party: Party, schedule: Schedule) -> Party:
    """Prepare a party's columns as `prepare_party` does, for a schedule that is already known."""
    if party.preparation is not None or not party.columns:
        return party
    column = None if job.weights is None or not party.active or party.weights is not None else job.weights.column
    exposure = job.exposure if party.active and party.exposure is None else None
    dropped = [name for name in job.prepare.drop if name in party.columns]
    if isinstance(party, StoredParty) and job.prepare.woe is not None:
        raise TableError(
            f"party {party.name}: weights of evidence cannot be computed for a table that is read from disk",
            "use bins, or read a smaller table into memory",
            code="SVFL-TABLE-ON-DISK",
            party=party.name,
        )
    if isinstance(party, StoredParty) and party.is_remote:
        changes = any(option is not None for option in (job.prepare.clip, job.prepare.bins, column, exposure))
        changes |= any(kind.is_divided for kind in party.types.values())
        return party.prepared(_remote_preparation(party, unchanged=not (dropped or changes)))
    if dropped:
        party = party.without(dropped)
    if column is not None:
        party = party.with_column_as("weights", column)
    if exposure is not None:
        party = party.with_column_as("exposure", exposure)
    options = job.prepare if job.scaling != "none" else job.prepare.model_copy(update={"tails": "keep"})
    return party.prepared(fit_preparation(party.name, party.table, schedule.batch_order, options))


def _remote_preparation(party: StoredParty, *, unchanged: bool) -> FittedPreparation:
    """Return the preparation of a table at workers, which leaves the columns as they are."""
    if not unchanged or not party.is_plain:
        raise TableError(
            f"party {party.name}: worker processes store the rows, where columns cannot be prepared, and this table "
            "has gaps, texts, dates, special codes or declared bins, or the job changes columns",
            "prepare the table before you store it, or train without workers",
            code="SVFL-TABLE-ON-DISK",
            party=party.name,
        )
    return FittedPreparation(party.columns)


def prepare_parties(job: JobOptions, parties: Sequence[Party]) -> list[Party]:
    """Prepare all parties of a run in one process; the leading party is the first."""
    schedule = job.schedule(register_of(parties))
    return [prepare_rows(job, party, schedule) for party in parties]


def with_prepared_tables(job: J, parties: Sequence[Party]) -> tuple[J, list[Party]]:
    """Prepare the parties' tables, and remove the preparation from the job, which then trains the same model.

    Weights of evidence are computed from the labels of the first party.
    """
    train = job.schedule(register_of(parties)).batch_order
    prepared = [copy(party) for party in encode_evidence_pooled(job, prepare_parties(job, parties), train)]
    for party in prepared:
        party.preparation = party.preparation and party.preparation.identity
    return job.model_copy(update={"prepare": Preparation()}), prepared

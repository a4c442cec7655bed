"""The preparation of a party's columns, applied before anything is counted or sent."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TypeVar

from securevfl.data.party import Party, register_of
from securevfl.data.preparation import FittedPreparation, Preparation, fit_preparation
from securevfl.data.register import Register
from securevfl.data.store import StoredParty
from securevfl.errors import TableError
from securevfl.families.weights_of_evidence import encode_evidence_pooled
from securevfl.options import JobOptions

J = TypeVar("J", bound=JobOptions)


def prepare_party(job: JobOptions, party: Party, register: Register) -> Party:
    """Prepare the party's columns by its training rows under this register; a party that is prepared already is
    returned as it is.

    TableError if the job has no use for its columns as they are, or they lie on disk and would have to be changed.
    """
    if party.preparation is not None or not party.columns:
        return party
    column = None if job.weights is None or not party.active or party.weights is not None else job.weights.column
    exposure = job.exposure if party.active and party.exposure is None else None
    dropped = [name for name in job.prepare.drop if name in party.columns]
    if isinstance(party, StoredParty):
        if dropped:
            raise TableError(
                f"party {party.name}: a table in memory was expected to leave columns out of, it is read from disk; "
                "prepare such large tables beforehand"
            )
        if column is not None or exposure is not None:
            raise TableError(
                f"party {party.name}: weights and exposures in a table in memory were expected, it is read from disk; "
                "weigh classes, or bring a smaller table"
            )
        if any(each is not None for each in (job.prepare.clip, job.prepare.bins, job.prepare.woe)):
            raise TableError(
                f"party {party.name}: a table in memory was expected to clip or part columns, it is read from disk; "
                "prepare such large tables beforehand"
            )
        return party.prepared(FittedPreparation(party.columns))
    if dropped:
        party = party.without(dropped)
    if column is not None:
        party = party.with_column_as("weights", column)
    if exposure is not None:
        party = party.with_column_as("exposure", exposure)
    options = job.prepare if job.scaling != "none" else job.prepare.model_copy(update={"tails": "keep"})
    return party.prepared(fit_preparation(party.name, party.table, job.schedule(register).batch_order, options))


def prepare_parties(job: JobOptions, parties: Sequence[Party]) -> list[Party]:
    """All parties of a run in one process, the leading one first."""
    register = register_of(parties)
    return [prepare_party(job, party, register) for party in parties]


def with_prepared_tables(job: J, parties: Sequence[Party]) -> tuple[J, list[Party]]:
    """Return the same run as a job that prepares nothing, with parties whose columns are already prepared, and weighed
    by the labels of the leading one."""
    train = job.schedule(register_of(parties)).batch_order
    found = [copy(party) for party in encode_evidence_pooled(job, prepare_parties(job, parties), train)]
    for party in found:
        party.preparation = party.preparation and party.preparation.identity
    return job.model_copy(update={"prepare": Preparation()}), found

"""Join of tables on their ids, for parties that are in one process."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data.id_advice import lost_zeros_notice, no_match_error
from securevfl.data.id_keys import Keys, shared_rows
from securevfl.data.party import Party, check_are_parties
from securevfl.errors import DataNotice, IdError


class Aligned(list[Party]):
    """Several parties' tables after a join: all have the same rows in the same order.

    Args:
        parties: the parties, each with its name and its table.
        missing: for each party, the ids that it lacks and another party has, as the other party writes them.
    """

    def __init__(self, parties: Iterable[Party], missing: dict[str, list[str]]) -> None:
        super().__init__(parties)
        self.missing = missing


def align(parties: Sequence[Party]) -> Aligned:
    """Join the tables of parties in one process on their ids.

    Ids of different types are compared as `securevfl.crypto.identifiers.canonical_id` documents. Organisations that do
    not share a process use private alignment (`securevfl align`).

    Args:
        parties: two or more parties with ids.

    Returns:
        The parties with the shared rows, in the order of the active party.

    Raises:
        IdError: if a party has no ids, or no id is shared.
    """
    check_are_parties(parties)
    for party in parties:
        if party.ids is None:
            raise IdError(
                f"party {party.name} has no ids to join on",
                "name its id column",
                code="SVFL-ID-MISSING",
                party=party.name,
            )
    ids = {party.name: (party.ids, party.keys) for party in parties if party.keys is not None}
    lead = next((party for party in parties if party.active), parties[0])
    rows, missing = join_ids(ids, lead.name)
    return Aligned((party.take(rows[party.name]) for party in parties), missing)


def join_ids(
    ids: Mapping[str, tuple[Any, Keys]], lead: str, by_rule: bool | None = None
) -> tuple[dict[str, NDArray[np.intp]], dict[str, list[str]]]:
    """Find the rows of the ids that all parties have.

    A notice reports rows that are left out because a table has lost the leading zeros of their ids.

    Args:
        ids: the ids (n,) of each party, and the digests of these ids.
        lead: the party whose order of rows the result has.
        by_rule: whether the ids were composed by the rule for spellings (`securevfl.data.composite_ids`), which ignores
            capitals, accents and punctuation; None if the caller cannot use that rule.

    Returns:
        The rows of the shared ids by party, and the ids that each party lacks.

    Raises:
        IdError: if no id is shared; it contains advice.
    """
    rows, lacking = shared_rows({name: keys for name, (_, keys) in ids.items()}, lead)
    values = {name: party_ids for name, (party_ids, _) in ids.items()}
    if not len(rows[lead]):
        raise no_match_error(values, by_rule)
    if notice := lost_zeros_notice(values, rows):
        warnings.warn(notice, DataNotice, stacklevel=3)
    return rows, {name: [str(ids[owner][0][row]) for owner, row in absent] for name, absent in lacking.items()}

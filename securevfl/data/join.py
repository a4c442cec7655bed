"""Join of tables on their ids, for parties that are in one process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data.id_keys import Keys, shared_rows
from securevfl.data.party import Party
from securevfl.errors import IdError


class Aligned(list[Party]):
    """Parties whose tables have the same rows in one order. missing: for each the ids that others have and it lacks, in
    the others' spelling."""

    def __init__(self, parties: Iterable[Party], missing: dict[str, list[str]]) -> None:
        super().__init__(parties)
        self.missing = missing


def align(parties: Sequence[Party]) -> Aligned:
    """Join the tables on their ids, for parties that sit in one process.

    Ids of different types meet as `crypto.curve.canonical_id` says. Returns the parties with the shared rows in the
    active party's order. IdError if a party has no ids or nothing is shared. Between organisations use private
    alignment.
    """
    for party in parties:
        if party.ids is None:
            raise IdError(f"party {party.name}: ids were expected to join on, none came; name the id column")
    ids = {party.name: (party.ids, party.keys) for party in parties if party.keys is not None}
    lead = next((party for party in parties if party.active), parties[0])
    rows, missing = join_ids(ids, lead.name)
    return Aligned((party.take(rows[party.name]) for party in parties), missing)


def join_ids(
    ids: Mapping[str, tuple[Any, Keys]], lead: str
) -> tuple[dict[str, NDArray[np.intp]], dict[str, list[str]]]:
    """`align` of ids and their keys by party: the rows of each, and what each lacks."""
    rows, lacking = shared_rows({name: keys for name, (_, keys) in ids.items()}, lead)
    if not len(rows[lead]):
        raise IdError("at least one shared id was expected, there is none; is the right id column named?")
    return rows, {name: [str(ids[owner][0][row]) for owner, row in found] for name, found in lacking.items()}

"""What each message of a run reveals, handshake included, in the roles of that run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from securevfl.base.roles import Roles
from securevfl.data.party import Party, check_parties
from securevfl.families.family import Method
from securevfl.options import JobOptions
from securevfl.protocols import handshake
from securevfl.protocols.declarations import MessageDeclaration


def roles_of(method: Method[Any], job: JobOptions, parties: Sequence[Party]) -> Roles:
    """Return who plays which part in a job of these parties. PartiesError if they do not fit."""
    lead, others = check_parties(parties)
    roles = method.cast([lead, *others])
    return method.assigned(job, roles, {party.name: len(party.columns) for party in parties})


def declared_of(method: Method[Any], job: JobOptions, roles: Roles) -> list[MessageDeclaration]:
    """All declarations between roles that two different parties of the run have."""
    every = [*handshake.declares(roles), *method.declares(job, roles)]
    return [item for item in every if roles.may_send(item.sender, item.receiver)]

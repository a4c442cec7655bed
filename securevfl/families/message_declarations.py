"""The roles of a run, and the declarations of what each of its messages reveals, handshake included.

The handshake is the exchange of public sizes and digests with which a run starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from securevfl.base.roles import Roles
from securevfl.data.party import Party, check_parties
from securevfl.families.family import Family
from securevfl.options import JobOptions
from securevfl.protocols import handshake
from securevfl.protocols.declarations import MessageDeclaration


def run_roles(family: Family[Any], job: JobOptions, parties: Sequence[Party]) -> Roles:
    """Return the roles of these parties in a job. Raises PartiesError if the protocol family has no such roles."""
    lead, others = check_parties(parties)
    roles = family.assign_roles([lead, *others])
    return family.complete_roles(job, roles, {party.name: len(party.columns) for party in parties})


def run_declarations(family: Family[Any], job: JobOptions, roles: Roles) -> list[MessageDeclaration]:
    """Return the declarations of all messages that two different parties of the run can exchange."""
    declarations = [*handshake.declares(roles), *family.declarations(job, roles)]
    return [item for item in declarations if roles.may_send(item.sender, item.receiver)]

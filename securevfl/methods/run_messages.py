"""What each message of a run of a job reveals, handshake included, in the roles of that run."""

from __future__ import annotations

from typing import Any

from securevfl.base.roles import Roles
from securevfl.methods.base import Method
from securevfl.options import JobOptions
from securevfl.protocols import meeting
from securevfl.protocols.declared import Declared


def declared_of(method: Method[Any], job: JobOptions, roles: Roles) -> list[Declared]:
    """All declarations between roles that two different parties of the run have."""
    every = [*meeting.declares(roles), *method.declares(job, roles)]
    return [item for item in every if roles.may_pass(item.sender, item.receiver)]

"""Read a job file, and complete the list of parties, for which a command has read only the tables.

A job may need parties without a table, such as a server, and may name PyTorch modules for some parties.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from securevfl.errors import ConfigError

if TYPE_CHECKING:
    from securevfl.data.party import Party
    from securevfl.job import Job


def load_job(path: Path) -> Job:
    """Load a job file. If it has several problems, each line of the error begins with the path."""
    from securevfl.job import Job

    try:
        return Job.load(path)
    except ConfigError as error:
        lines = str(error).splitlines()
        text = "\n".join(line if line.startswith(f"{path}:") else f"{path}: {line}" for line in lines)
        raise ConfigError(text, "", code=error.code, **error.fields) from None


def with_helpers(job: Job, parties: list[Party]) -> list[Party]:
    """Return the parties, followed by the parties without a table that the job needs, such as the server of FDML."""
    from securevfl.data.party import Helper
    from securevfl.errors import PartiesError
    from securevfl.families.message_declarations import run_roles

    try:
        run_roles(job.family, job, parties)
    except PartiesError:
        names = {party.name for party in parties}
        return parties + [Helper(name, role) for name, role in job.family.example_helpers if name not in names]
    return parties


def with_modules(job: Job, job_file: Path, parties: list[Party]) -> list[Party]:
    """Give each party the PyTorch module that the job names for it; SECUREVFL_ALLOW must list the module."""
    for party in parties:
        party.model = job.model.named_module(party.name, job_file.parent)
    return parties

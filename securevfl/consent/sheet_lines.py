"""Lines of the consent sheet about *tools*: features from separate packages that a job uses (such as reason codes).

A job names a tool by an option, for example `reason_codes`, and a package registers it (`securevfl.base.extensions`). A
party that lacks the package cannot describe what the tool reveals, so it refuses the job before it asks for consent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from securevfl.base.extensions import require_tool
from securevfl.base.roles import Roles
from securevfl.families.facts import RunFacts
from securevfl.job import Job

SHEET_LINE_ENTRY_POINTS = "securevfl.sheet_lines"


class SheetLines(Protocol):
    """Function that describes what a tool reveals to a party, and what it reveals about that party."""

    def __call__(self, job: Job, roles: Roles, facts: RunFacts | None, name: str) -> Sequence[tuple[str, str]]:
        """Return the lines of a party.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).
            roles: the roles of all parties.
            facts: sizes, batches and disclosures of the run, if they are known.
            name: name of the party.

        Returns:
            Pairs of a word, such as "learns", and a text, which may have several lines.
        """
        ...


def check_tools(job: Job, party: str) -> None:
    """Check that this party has the package of each tool that the job allows.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        party: name of this party.

    Raises:
        PackageMissingError: a package is missing; the message names the package and the party.
    """
    for option in job.needed_tools:
        require_tool(SHEET_LINE_ENTRY_POINTS, option, option, party)


def tool_lines(job: Job, roles: Roles, facts: RunFacts | None, name: str) -> list[tuple[str, str]]:
    """Return the sheet's lines for one party about all tools of the job. See `SheetLines` for arguments and errors."""
    lines: list[tuple[str, str]] = []
    for option in job.needed_tools:
        describe: SheetLines = require_tool(SHEET_LINE_ENTRY_POINTS, option, option)
        lines += describe(job, roles, facts, name)
    return lines

"""The facts about a run, computed once before it starts: its tables, its schedule, its shape and its outputs."""

from __future__ import annotations

from dataclasses import dataclass

from securevfl.base.arrays import Floats
from securevfl.data.party import Party
from securevfl.data.schedule import Schedule
from securevfl.disclosure.counts import RunShape
from securevfl.disclosure.outputs import Output


@dataclass(frozen=True)
class RunFacts:
    """The facts about a run that are known before it starts.

    Attributes:
        parties: the parties whose tables are available here; the leading party is the first if it is among them.
        schedule: which rows are in which batch.
        shape: the shape of the run.
        outputs: what the run discloses.
    """

    parties: tuple[Party, ...]
    schedule: Schedule
    shape: RunShape
    outputs: tuple[Output, ...]

    def table(self, name: str) -> Floats | None:
        """Return the columns (n, d) of a party; None if its table is not available here."""
        return next((party.X for party in self.parties if party.name == name), None)

"""The facts about a run that are known before it starts: its tables, batches, public sizes and disclosures.

The *schedule* states which rows form which batch. The *shape* contains the public sizes of the run, such as numbers of
rows. An *output* is a kind of value that the run discloses to a party (`securevfl.disclosure.outputs`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from securevfl.base.arrays import Floats
from securevfl.data.party import Party
from securevfl.data.schedule import Schedule
from securevfl.disclosure.counts import RunShape
from securevfl.disclosure.outputs import Output


@dataclass(frozen=True)
class RunFacts:
    """The facts about a run that are known before it starts.

    Attributes:
        parties: the parties whose tables are available in this process; the leading party comes first.
        schedule: which rows form which batch.
        shape: the public sizes of the run.
        outputs: the disclosures of the run.
        plan: returns the values that the protocol family computes from public sizes before the training, such as step
            sizes (`Family.plan`); they are computed once for each run.
    """

    parties: tuple[Party, ...]
    schedule: Schedule
    shape: RunShape
    outputs: tuple[Output, ...]
    plan: Callable[[], Any] = lambda: None

    def table(self, name: str) -> Floats | None:
        """Return the columns (n, d) of a party; None if its table is not available in this process."""
        return next((party.X for party in self.parties if party.name == name), None)

"""The workset table: exchanges that a party stores for further local steps (CELU-VFL 2022, section 3 and Algorithm 2).

An *exchange* consists of the outputs and residuals that parties have sent each other for one batch. The table contains
the W newest exchanges, each in one row until it has been used R times (first when it arrives). Each row has two
numbers:
    inserted    the index of its exchange in the run; if there are more than W rows, the oldest one is deleted
    sampled     the local step in which the row was last used; for a new row, W steps before its insertion
A local step uses the row that has waited longest, of those that were not used in the last W - 1 local steps: the
paper's round robin. If there is no such row, the step is skipped. The selection depends only on these numbers, so all
parties and all runs make the same one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

E = TypeVar("E")


@dataclass(repr=False)
class WorksetRow(Generic[E]):
    """One exchange in the table.

    Attributes:
        entry: the exchange, in the form in which the party stores it.
        inserted: index of the exchange in the run.
        sampled: index of the local step in which the exchange was last used.
        uses: number of uses.
    """

    entry: E
    inserted: int
    sampled: int
    uses: int = 1


class Workset(Generic[E]):
    """A table of at most W exchanges, each used at most R times. A new exchange of a batch replaces the older one.

    Args:
        W: maximum number of exchanges in the table.
        R: maximum number of uses of an exchange.
        steps: number of local steps so far.
        recent: batches of the last W - 1 local steps; None for a step that was skipped.
    """

    def __init__(self, W: int, R: int, *, steps: int = 0, recent: Sequence[int | None] = ()) -> None:
        self._W, self._R = W, R
        self.steps = steps
        self.recent: deque[int | None] = deque(recent, maxlen=W - 1)
        self._rows: dict[int, WorksetRow[E]] = {}  # by batch, the oldest exchange first

    def put(self, batch: int, entry: E, exchange: int) -> list[E]:
        """Insert an exchange that has just been used for the first time; return the entries that are deleted for it."""
        removed = [self._rows.pop(batch).entry] if batch in self._rows else []
        self._rows[batch] = WorksetRow(entry, exchange, self.steps - self._W)
        if len(self._rows) > self._W:
            removed.append(self._rows.pop(next(iter(self._rows))).entry)
        return removed

    def sample(self) -> E | None:
        """Return the entry for the next local step; None if the step is skipped."""
        waiting = [
            (row.sampled, row.inserted, batch)
            for batch, row in self._rows.items()
            if row.uses < self._R and batch not in self.recent
        ]
        batch = min(waiting)[2] if waiting else None
        now, self.steps = self.steps, self.steps + 1
        self.recent.append(batch)
        if batch is None:
            return None
        row = self._rows[batch]
        row.sampled, row.uses = now, row.uses + 1
        return row.entry

    def rows(self) -> Iterator[WorksetRow[E]]:
        """Return the stored exchanges that may still be used, the oldest first."""
        return (row for row in self._rows.values() if row.uses < self._R)

    def restore(self, batch: int, row: WorksetRow[E]) -> None:
        """Insert an exchange that `rows` has returned; callers restore them from the oldest to the newest."""
        self._rows[batch] = row

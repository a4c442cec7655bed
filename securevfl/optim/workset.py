"""The workset table: exchanges that a party keeps to step on again (CELU-VFL 2022, section 3 and Algorithm 2).

It holds the W newest exchanges, each until it has been used R times; using it fresh, when it came, was the first. Two
clocks tell whose turn it is:

inserted    the exchange that a row came with; the row of the oldest exchange leaves when there are more than W
sampled     the local step that a row was last taken for; of a new one, W steps before it came

A local step takes, of the rows that were not taken in the last W - 1 local steps, the one that has waited longest.
That is the round robin of the paper: with R - 1 local steps an exchange every row is taken R - 1 times before it
leaves. A step for which there is no such row is left out, as happens while the table fills. (The code that was
published with the paper draws rows at random and rejects those of the last W - 1 steps: then some leave before they
were used R times.)

What is taken depends on the two clocks alone, so it is the same at all parties and in every run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

E = TypeVar("E")


@dataclass(repr=False)
class WorksetRow(Generic[E]):
    """One exchange in the table: what is kept of it, its two clocks, and how often it has been used."""

    entry: E
    inserted: int
    sampled: int
    uses: int = 1


class Workset(Generic[E]):
    """A table of at most W exchanges, each of which is used at most R times. A batch that is exchanged again takes the
    place of its older row.

    steps: the clock of local steps. recent: the batches of the last W - 1 of them, None where one was left out.
    """

    def __init__(self, W: int, R: int, *, steps: int = 0, recent: Sequence[int | None] = ()) -> None:
        self._W, self._R = W, R
        self.steps = steps
        self.recent: deque[int | None] = deque(recent, maxlen=W - 1)
        self._rows: dict[int, WorksetRow[E]] = {}  # by batch, the oldest exchange first

    def put(self, batch: int, entry: E, exchange: int) -> list[E]:
        """Take in an exchange of this batch, later than all before it, that has just been used; return the entries that
        leave for it."""
        left = [self._rows.pop(batch).entry] if batch in self._rows else []
        self._rows[batch] = WorksetRow(entry, exchange, self.steps - self._W)
        if len(self._rows) > self._W:
            left.append(self._rows.pop(next(iter(self._rows))).entry)
        return left

    def sample(self) -> E | None:
        """Return the entry on which the next local step is taken; None if that step is left out."""
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
        """Return the rows that have uses left, the oldest first."""
        return (row for row in self._rows.values() if row.uses < self._R)

    def restore(self, batch: int, row: WorksetRow[E]) -> None:
        """Put back a row that `rows` gave; rows are put back oldest first."""
        self._rows[batch] = row

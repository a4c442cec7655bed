"""Which rows are held out, which rows make a batch, which batch comes when: the same at every party.

Rows are held out and parted into batches by keyed random numbers of their ids (`securevfl.data.register`), the key
being the whole set of ids. The seed of a job orders its visits and does nothing else. So all jobs with as many held-out
rows and batches on one table visit the same batches, whatever their seeds, the order of the rows or of the parties: a
linear model opens the same equations about the labels again, and thirty jobs tell what one tells.

What changes the partition is another number of held-out rows (`test_fraction`), another `split`, another number of
batches (`batch_size`), and another set of rows. Each gives a partition drawn anew, and other columns give other
equations on the same batches: all of these are new equations about the labels, and count as such
(`securevfl.disclosure.counts`). Drawn anew, and not moved a little, since the difference of two batches that share all
rows but a few is about these few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.prg import derive_key
from securevfl.data.register import Register

Rows = NDArray[np.intp]
BatchSize = int | Literal["all"]


@dataclass(frozen=True)
class Visit:
    """One visit to one batch: `index` names the batch in the partition, `rows` are its rows of the table."""

    index: int
    epoch: int
    rows: Rows


class Batched(Protocol):
    """What says which rows make a batch: a job."""

    @property
    def batch_size(self) -> BatchSize:
        """Rows a batch at most, or "all" for one batch of all training rows."""

    @property
    def test_fraction(self) -> float:
        """The share of rows that is held out."""

    @property
    def split(self) -> int:
        """Which of the ways to hold rows out."""

    def schedule(self, rows: int | Register) -> Schedule:
        """Which rows are held out, and which make a batch."""


class Schedule:
    """One fixed partition into batches, visited in a new random order every epoch (FedBCD 2019, assumption A2).

    `rows` is the register of the table, or the number of rows of a table without ids. A `batch_size` of "all" makes one
    batch of all training rows, so that an epoch is one visit. With `reshuffle` the rows are
    parted anew every epoch, again the same way in every job. `split` numbers the ways to hold rows out; another one
    parts the others anew too.
    """

    def __init__(
        self,
        rows: int | Register,
        *,
        batch_size: BatchSize,
        epochs: int,
        seed: int,
        test_fraction: float,
        reshuffle: bool,
        split: int = 0,
    ) -> None:
        self._register = Register.of_numbers(rows) if isinstance(rows, int) else rows
        held_out = round(self._register.rows * test_fraction)
        self._split = [split] if split else []
        order = self._register.drawn("held out", held_out, *self._split)
        self.test: Rows = np.sort(order[:held_out])
        self.train: Rows = np.sort(order[held_out:])
        self.epochs = epochs
        self.batches = 1 if batch_size == "all" else max(1, -(-len(self.train) // batch_size))
        self.smallest_batch = len(self.train) // self.batches
        self._seed = seed
        self._reshuffle = reshuffle

    def __len__(self) -> int:
        """Visits in all epochs."""
        return self.epochs * self.batches

    @property
    def name(self) -> str:
        """32 hex digits, equal for two schedules if and only if they part the same rows in the same way."""
        return derive_key(self._register.key, "partition", len(self.test), self.batches, *self._split).hex()[:32]

    @cached_property
    def flow(self) -> Rows:
        """The training rows, batch after batch of the first epoch: the order in which they are fastest to read."""
        return self._parted(0)

    def sample(self, rows: int) -> Rows:
        """So many training rows, or all, spread evenly over the table: one that is sorted is not judged by its top."""
        order = np.sort(self.flow)
        return order[np.linspace(0, len(order) - 1, min(rows, len(order))).astype(np.intp)]

    def partition(self, epoch: int) -> list[Rows]:
        """Cut the training rows into the batches of this epoch."""
        return np.array_split(self._parted(epoch) if self._reshuffle and epoch else self.flow, self.batches)

    def visits(self) -> Iterator[Visit]:
        """All visits, in order."""
        return chain.from_iterable(map(self._epoch, range(self.epochs)))

    def _epoch(self, epoch: int) -> list[Visit]:
        parts = self.partition(epoch)
        first = epoch * self.batches if self._reshuffle else 0
        order = np.random.default_rng([self._seed, 2, epoch]).permutation(self.batches)
        return [Visit(first + int(index), epoch, parts[index]) for index in order]

    def _parted(self, epoch: int) -> Rows:
        """Return the training rows in the order in which they are cut into batches; a single batch is in the order of
        the table."""
        if self.batches == 1:
            return self.train
        order = self._register.drawn("batches", len(self.test), self.batches, epoch, *self._split)
        if not len(self.test):
            return order
        trains = np.ones(len(order), dtype=bool)
        trains[self.test] = False
        return order[trains[order]]

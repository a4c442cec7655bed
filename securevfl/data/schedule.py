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

from securevfl.crypto.key_derivation import derive_key
from securevfl.data.register import Register

Rows = NDArray[np.intp]
BatchSize = int | Literal["all", "growing"]

MIN_GROWING_ROWS = 100_000  # training rows from which visits go to parts that grow
MIN_SUBSET_ROWS = 1 << 14  # rows of the smallest part at least
SUBSET_FACTOR = 4  # a part is so many times the one before
MAX_SUBSET_ROWS = (
    1 << 21
)  # rows of the largest part: more would move a linear model by less than who is in the table by chance
MAX_FITTING_ROWS = (
    1 << 18
)  # rows by which a party's own inputs are made: quantiles and trees of its columns move little beyond
FINAL_ITERATIONS, SUBSET_ITERATIONS = 4, 6  # visits to the largest part, and to each before it but the smallest


@dataclass(frozen=True)
class Iteration:
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
    batch of all training rows, so that an epoch is one visit. So it is with "growing", but that from
    `MIN_GROWING_ROWS` training
    rows on visits go to parts of them first that lie in each other, each `SUBSET_FACTOR` times the one before: the last
    `FINAL_ITERATIONS` to the largest, all training rows or `MAX_SUBSET_ROWS`, `SUBSET_ITERATIONS` to each smaller
    one, the first ones to the
    smallest. With `reshuffle` the rows are parted anew every epoch, again the same way in every job. `split` numbers
    the ways to hold rows out; another one parts the others anew too.
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
        n = len(self.train)
        self.batches = 1 if isinstance(batch_size, str) else max(1, -(-n // batch_size))
        self.parts = parts_of(n) if batch_size == "growing" else (n,) * (self.batches == 1)
        self.smallest_batch = self.parts[0] if self.parts else n // self.batches
        self._seed = seed
        self._reshuffle = reshuffle

    def __len__(self) -> int:
        """Visits in all epochs."""
        return self.epochs * self.batches

    @property
    def name(self) -> str:
        """32 hex digits, equal for two schedules if and only if they part the same rows in the same way."""
        sizes = (self.batches, *self.parts) if self.grows else (self.batches,)
        return derive_key(self._register.key, "partition", len(self.test), *sizes, *self._split).hex()[:32]

    @property
    def grows(self) -> bool:
        """Whether visits go to parts that grow."""
        return len(self.parts) > 1 or 0 < sum(self.parts) < len(self.train)

    @property
    def settled(self) -> int:
        """How many visits go to parts smaller than the largest."""
        return max(0, self.epochs - FINAL_ITERATIONS) if self.grows else 0

    @cached_property
    def flow(self) -> Rows:
        """The training rows, batch after batch of the first epoch, and parts that grow from its start on: the order in
        which they are fastest to read."""
        return self._parted(0)

    @cached_property
    def by_ids(self) -> Rows:
        """The training rows in the order that ids give, whatever the table's is; in the table's without ids."""
        order = self._register.order
        if order is None:
            return self.train
        trains = np.ones(len(order), dtype=bool)
        trains[self.test] = False
        return order[trains[order]]

    @cached_property
    def fitting_rows(self) -> Rows:
        """The training rows, `MAX_FITTING_ROWS` at most, by which a party makes its own inputs: drawn by ids, in the
        order of
        the table; without ids spread evenly over it."""
        at = np.linspace(0, len(self.train) - 1, min(MAX_FITTING_ROWS, len(self.train))).astype(np.intp)
        return np.sort(self.by_ids[at])

    def sample(self, rows: int) -> Rows:
        """So many training rows, or all, spread evenly over the table: one that is sorted is not judged by its top."""
        order = np.sort(self.flow)
        return order[np.linspace(0, len(order) - 1, min(rows, len(order))).astype(np.intp)]

    def partition(self, epoch: int) -> list[Rows]:
        """Cut the training rows into the batches of this epoch; or into the parts that grow, which each other holds."""
        if self.grows:
            return [self.flow[:rows] for rows in self.parts]
        return np.array_split(self._parted(epoch) if self._reshuffle and epoch else self.flow, self.batches)

    def iterations(self) -> Iterator[Iteration]:
        """All visits, in order."""
        return chain.from_iterable(map(self._epoch, range(self.epochs)))

    def _epoch(self, epoch: int) -> list[Iteration]:
        parts = self.partition(epoch)
        if self.grows:
            part = self._part(epoch)
            return [Iteration(part, epoch, parts[part])]
        first = epoch * self.batches if self._reshuffle else 0
        order = np.random.default_rng([self._seed, 2, epoch]).permutation(self.batches)
        return [Iteration(first + int(index), epoch, parts[index]) for index in order]

    def _part(self, epoch: int) -> int:
        """Return the number of the part that the visit of this epoch goes to."""
        smaller = self.epochs - FINAL_ITERATIONS - epoch
        return max(0, len(self.parts) - 1 - (-(-smaller // SUBSET_ITERATIONS) if smaller > 0 else 0))

    def _parted(self, epoch: int) -> Rows:
        """Return the training rows in the order in which they are cut into batches; a single batch is in the order of
        the table."""
        if self.batches == 1 and not self.grows:
            return self.train
        order = self._register.drawn("batches", len(self.test), 0 if self.grows else self.batches, epoch, *self._split)
        if not len(self.test):
            return order
        trains = np.ones(len(order), dtype=bool)
        trains[self.test] = False
        return order[trains[order]]


def parts_of(rows: int) -> tuple[int, ...]:
    """Return the sizes of the parts of so many training rows that visits go to, the smallest first."""
    sizes = [min(rows, MAX_SUBSET_ROWS)]
    while rows >= MIN_GROWING_ROWS and sizes[-1] // SUBSET_FACTOR >= MIN_SUBSET_ROWS:
        sizes.append(sizes[-1] // SUBSET_FACTOR)
    return tuple(reversed(sizes))

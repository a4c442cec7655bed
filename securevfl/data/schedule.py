"""The schedule of a training: held-out rows, batches, and the order of iterations, equal at every party.

Held-out rows evaluate the model. Training rows are divided into batches (the *partition*); an *iteration* is one update
on a batch. Large tables use *growing subsets* of the training rows instead of batches.

Pseudorandom numbers that are derived from the ids (the *register* of a table, `securevfl.data.register`) select the
rows, and a job's seed only orders iterations. Jobs with equal `test_fraction`, `split`, `batch_size` and rows thus use
the same batches. This limits what repeated jobs disclose: a party without labels learns the same linear equations about
labels from each linear model, so thirty jobs reveal no more than one. Any other value of these options draws an
independent partition, because the difference between two batches that share almost all rows would reveal the remaining
ones. New equations are counted (`securevfl.disclosure.counts`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.key_derivation import derive_key
from securevfl.data.register import Register

Rows = NDArray[np.intp]
"""Row numbers (k,)."""
BatchSize = int | Literal["all", "growing"]
"""Maximum number of rows of a batch; or "all" for one batch of all rows, or "growing" for growing subsets."""

MIN_GROWING_ROWS = 100_000
""""growing" uses subsets if there are at least this many training rows, otherwise one batch of all rows."""
MIN_SUBSET_ROWS = 1 << 14
"""Minimum number of rows of the smallest subset."""
SUBSET_FACTOR = 4
"""The ratio of the sizes of consecutive subsets."""
MAX_SUBSET_ROWS = 1 << 21
"""Maximum number of rows of the largest subset. More rows would change a linear model by less than the sampling
error."""
MAX_FITTING_ROWS = 1 << 18
"""Maximum number of rows to which a party fits the quantiles and random trees of its columns; with more rows these
hardly change."""
FINAL_ITERATIONS, SUBSET_ITERATIONS = 4, 6
"""Iterations on the largest subset, and on each smaller one except the smallest."""
MIN_PRECISE_EPOCHS = 40
"""From this number of epochs on, three fifths of the iterations use the largest subset, because the optimum of a
smaller subset differs from that of all rows by several standard errors."""


@dataclass(frozen=True)
class Iteration:
    """One update on a batch.

    Attributes:
        index: the index of the batch in the partition, from 0. If each epoch uses another partition, the count
            continues over all epochs. For growing subsets, the index of the subset.
        epoch: the index of the epoch, from 0.
        rows: the rows of the batch.
    """

    index: int
    epoch: int
    rows: Rows


class Batched(Protocol):
    """The options of a job that determine its batches; a type for modules that must not import `Job`."""

    @property
    def batch_size(self) -> BatchSize:
        """Rows of a batch at most, or "all" for one batch of all training rows."""

    @property
    def test_fraction(self) -> float:
        """The share of rows that is held out."""

    @property
    def split(self) -> int:
        """A number that selects which rows are held out; another number selects other rows."""

    def schedule(self, rows: int | Register) -> Schedule:
        """Return the schedule of a table."""


class Schedule:
    """Which rows are held out, the partition of training rows into batches, and the order of batches in each epoch.

    Each epoch uses each batch of the fixed partition once (FedBCD 2019, assumption A2), in a random order. With a batch
    size of "all" there is one batch. "growing" means the same for fewer than MIN_GROWING_ROWS training rows. For more,
    iterations use nested random subsets, each SUBSET_FACTOR times larger than the one before: the last
    `final_iterations` iterations use the largest subset (all training rows, at most MAX_SUBSET_ROWS),
    SUBSET_ITERATIONS each smaller one, and all earlier iterations the smallest.

    Args:
        rows: the register of the table, or the number of rows of a table without ids.
        batch_size: see `BatchSize`.
        epochs: the number of epochs.
        seed: seed of the random order of batches.
        test_fraction: the share of rows that is held out.
        reshuffle: True if each epoch uses another partition. Epoch k then uses the same partition in every job.
        split: a number that selects which rows are held out; another number also changes the batches.

    Attributes:
        test: the held-out rows.
        train: the training rows.
        batches: the number of batches of an epoch.
        subset_sizes: sizes of the growing subsets; only the number of training rows if there is one batch; empty
            otherwise.
        smallest_batch: rows of the smallest batch.
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
        order = self._register.permutation("held out", held_out, *self._split)
        self.test: Rows = np.sort(order[:held_out])
        self.train: Rows = np.sort(order[held_out:])
        self.epochs = epochs
        self._batch_size = batch_size
        self._divide_into_batches()
        self._seed = seed
        self._reshuffle = reshuffle

    def _divide_into_batches(self) -> None:
        """Compute the number and the sizes of batches from the number of training rows."""
        n, size = len(self.train), self._batch_size
        self.batches = batches_of_epoch(n, size)
        self.subset_sizes = subset_sizes(n) if size == "growing" else (n,) * (self.batches == 1)
        self.smallest_batch = self.subset_sizes[0] if self.subset_sizes else n // self.batches
        self._latest_epoch: tuple[int, list[Iteration]] | None = None

    def __len__(self) -> int:
        """Return the number of iterations of all epochs."""
        return self.epochs * self.batches

    @property
    def name(self) -> str:
        """A digest (32 hexadecimal digits) of the partition, equal for equal partitions of the same rows."""
        sizes = (self.batches, *self.subset_sizes) if self.uses_subsets else (self.batches,)
        return derive_key(self._register.key, "partition", len(self.test), *sizes, *self._split).hex()[:32]

    def with_training_rows(self, rows: Rows) -> Schedule:
        """Return this schedule with other training rows, for a cross-validation by one party.

        Args:
            rows: the training rows; all other rows are held out.

        Returns:
            The schedule.
        """
        changed = copy(self)
        for name, attribute in vars(Schedule).items():
            if isinstance(attribute, cached_property):  # computed from the training rows
                changed.__dict__.pop(name, None)
        changed.train = np.sort(rows)
        changed.test = np.setdiff1d(np.arange(self._register.rows), changed.train)
        changed._divide_into_batches()
        return changed

    @property
    def uses_subsets(self) -> bool:
        """Whether iterations use subsets of the training rows."""
        return len(self.subset_sizes) > 1 or 0 < sum(self.subset_sizes) < len(self.train)

    @property
    def subset_iterations(self) -> int:
        """The number of iterations on subsets smaller than the largest one."""
        return _epochs_on_subsets(self.epochs) if self.uses_subsets else 0

    @property
    def final_iterations(self) -> int:
        """The number of iterations on the largest subset, which come last."""
        return final_iterations(self.epochs)

    @cached_property
    def batch_order(self) -> Rows:
        """The training rows in the order of the first epoch's batches, one batch after another.

        Each growing subset is a prefix of it. A stored table has its rows in this order, so it is the fastest to read.
        """
        return self._divided(0)

    @cached_property
    def by_ids(self) -> Rows:
        """The training rows sorted by the digests of their ids, or in the order of the table if it has no ids."""
        order = self._register.order
        return self.train if order is None else self._training_rows_of(order)

    @cached_property
    def fitting_rows(self) -> Rows:
        """At most MAX_FITTING_ROWS training rows, to which a party fits quantiles and random trees.

        They are selected by their ids and stay in the table's order; without ids they are spread evenly over the table.
        """
        selected = np.linspace(0, len(self.train) - 1, min(MAX_FITTING_ROWS, len(self.train))).astype(np.intp)
        return np.sort(self.by_ids[selected])

    def sample(self, rows: int) -> Rows:
        """Return at most `rows` training rows, spread evenly over the table, because it may be sorted."""
        order = np.sort(self.batch_order)
        return order[np.linspace(0, len(order) - 1, min(rows, len(order))).astype(np.intp)]

    def partition(self, epoch: int) -> list[Rows]:
        """Return the rows of each batch of an epoch, or the rows of each growing subset."""
        if self.uses_subsets:
            return [self.batch_order[:rows] for rows in self.subset_sizes]
        order = self._divided(epoch) if self._reshuffle and epoch else self.batch_order
        return np.array_split(order, self.batches)

    def count_sizes(self, epochs: range) -> Counter[int]:
        """Return how many iterations of these epochs use n rows, for each n, without computing which rows these are."""
        if self.uses_subsets:
            return Counter(self.subset_sizes[self._subset(epoch)] for epoch in epochs)
        rows, larger = divmod(len(self.train), self.batches)
        counts = Counter({rows + 1: larger * len(epochs), rows: (self.batches - larger) * len(epochs)})
        return +counts

    def iterations(self) -> Iterator[Iteration]:
        """Return an iterator over all iterations of the training."""
        return chain.from_iterable(map(self._iterations_of, range(self.epochs)))

    def iteration(self, number: int) -> Iteration | None:
        """Return the iteration with this number, from 0; None after the last one.

        The iterations of the latest epoch that was read are stored, so that readers of consecutive iterations do not
        divide the rows again for each.
        """
        epoch, position = divmod(number, self.batches)
        if epoch >= self.epochs:
            return None
        latest = self._latest_epoch
        if latest is None or latest[0] != epoch:
            self._latest_epoch = latest = epoch, self._iterations_of(epoch)
        return latest[1][position]

    def _iterations_of(self, epoch: int) -> list[Iteration]:
        batches = self.partition(epoch)
        if self.uses_subsets:
            subset = self._subset(epoch)
            return [Iteration(subset, epoch, batches[subset])]
        first = epoch * self.batches if self._reshuffle else 0
        order = np.random.default_rng([self._seed, 2, epoch]).permutation(self.batches)
        return [Iteration(first + int(index), epoch, batches[index]) for index in order]

    def _subset(self, epoch: int) -> int:
        """Return the index of the growing subset that an epoch uses, 0 for the smallest one."""
        return subset_of_epoch(epoch, self.epochs, len(self.subset_sizes))

    def _divided(self, epoch: int) -> Rows:
        """Return the training rows in the order in which an epoch's batches are cut from them, one after another.

        A single batch of all rows is in the order of the table.
        """
        if self.batches == 1 and not self.uses_subsets:
            return self.train
        batches = 0 if self.uses_subsets else self.batches
        order = self._register.permutation("batches", len(self.test), batches, epoch, *self._split)
        return self._training_rows_of(order) if len(self.test) else order

    def _training_rows_of(self, order: Rows) -> Rows:
        """Return those of the given rows that are training rows, in the same order."""
        is_training = np.ones(len(order), dtype=bool)
        is_training[self.test] = False
        return order[is_training[order]]


class IterationIndices(Collection[int]):
    """The batch index (`Iteration.index`) of each iteration, in order. They are computed when read, to save memory.

    Args:
        schedule: the schedule of the training.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def __len__(self) -> int:
        """Return the number of iterations."""
        return len(self._schedule)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the batch indices, one for each iteration of the training."""
        return (iteration.index for iteration in self._schedule.iterations())

    def __contains__(self, index: object) -> bool:
        """Return whether some iteration uses the batch with this index."""
        return any(index == other for other in self)


def subset_sizes(rows: int) -> tuple[int, ...]:
    """Return the sizes of the growing subsets of `rows` training rows, the smallest first."""
    sizes = [min(rows, MAX_SUBSET_ROWS)]
    while rows >= MIN_GROWING_ROWS and sizes[-1] // SUBSET_FACTOR >= MIN_SUBSET_ROWS:
        sizes.append(sizes[-1] // SUBSET_FACTOR)
    return tuple(reversed(sizes))


def final_iterations(epochs: int) -> int:
    """Return the number of iterations on the largest subset.

    It is three fifths of `epochs` from MIN_PRECISE_EPOCHS epochs on, and FINAL_ITERATIONS otherwise.
    """
    return 3 * epochs // 5 if epochs >= MIN_PRECISE_EPOCHS else FINAL_ITERATIONS


def subset_of_epoch(epoch: int, epochs: int, subsets: int) -> int:
    """Return the index of the subset that an epoch uses, 0 for the smallest of `subsets` growing subsets."""
    remaining = epochs - final_iterations(epochs) - epoch
    return max(0, subsets - 1 - (-(-remaining // SUBSET_ITERATIONS) if remaining > 0 else 0))


def _epochs_on_subsets(epochs: int) -> int:
    return max(0, epochs - final_iterations(epochs))


def count_subset_epochs(rows: int, epochs: int, batch_size: BatchSize) -> int:
    """Return the number of epochs that use subsets smaller than the largest one, of `rows` training rows."""
    is_divided = batch_size == "growing" and subset_sizes(rows) != (rows,)
    return _epochs_on_subsets(epochs) if is_divided else 0


def batches_of_epoch(rows: int, batch_size: BatchSize) -> int:
    """Return the number of batches of an epoch, for `rows` training rows."""
    return 1 if isinstance(batch_size, str) else max(1, -(-rows // batch_size))


def rows_of_epochs(rows: int, epochs: int, batch_size: BatchSize) -> list[int]:
    """Return the number of rows that each epoch uses, of `rows` training rows."""
    if batch_size != "growing":
        return [rows] * epochs
    sizes = subset_sizes(rows)
    return [sizes[subset_of_epoch(epoch, epochs, len(sizes))] for epoch in range(epochs)]

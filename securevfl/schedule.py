"""Which rows are held out, which rows make a batch, which batch comes when: the same at every party, from the seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Visit:
    """One visit to one batch: `index` names the batch in the partition, `rows` are its rows of the table."""

    index: int
    epoch: int
    rows: Rows


class Schedule:
    """One fixed partition into batches, visited in a new random order every epoch (FedBCD 2019, assumption A2).

    With `reshuffle` the rows are parted anew every epoch.
    """

    def __init__(self, rows: int, *, batch_size: int, epochs: int, seed: int, test_fraction: float, reshuffle: bool):
        order = np.random.default_rng([seed, 0]).permutation(rows)
        held_out = round(rows * test_fraction)
        self.test: Rows = np.sort(order[:held_out])
        self.train: Rows = np.sort(order[held_out:])
        self.epochs = epochs
        self.batches = max(1, -(-len(self.train) // batch_size))
        self.smallest_batch = len(self.train) // self.batches
        self._seed = seed
        self._reshuffle = reshuffle

    def __len__(self) -> int:
        """Visits in all epochs."""
        return self.epochs * self.batches

    @property
    def flow(self) -> Rows:
        """The training rows, batch after batch of the first epoch: the order in which they are fastest to read."""
        return np.concatenate(self.partition(0))

    def partition(self, epoch: int) -> list[Rows]:
        """The batches of this epoch."""
        generator = np.random.default_rng([self._seed, 1, epoch if self._reshuffle else 0])
        return np.array_split(generator.permutation(self.train), self.batches)

    def visits(self) -> Iterator[Visit]:
        """All visits, in order."""
        parts = self.partition(0)
        for epoch in range(self.epochs):
            if self._reshuffle and epoch:
                parts = self.partition(epoch)
            first = epoch * self.batches if self._reshuffle else 0
            for index in np.random.default_rng([self._seed, 2, epoch]).permutation(self.batches):
                yield Visit(first + int(index), epoch, parts[index])

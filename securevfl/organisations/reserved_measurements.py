"""Measurements of held-out rows that one consent covers and that the score ledger has counted in advance.

Each training of a comparison or a search has its own number of measurements, which it uses up one by one. When none is
left, a further measurement is refused, even if a peer claims that it has lost its results and repeats the training. A
training cannot use the measurements of another one. Otherwise a peer could claim that it knows the results of some
trainings already, and use their measurements to learn scores and labels of the chosen model several times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from securevfl.errors import LeakageError


class ReservedMeasurements:
    """The numbers of measurements that the trainings of a comparison or a search may still make.

    Args:
        party: name of the party whose rows are measured.
        counts: number of measurements of each training, by its name.
        use: uses up one measurement of a training on disk before it begins, and returns whether there was one.
    """

    def __init__(
        self, party: str, counts: Mapping[str, int], use: Callable[[str], bool] = lambda training: True
    ) -> None:
        self._party, self._use = party, use
        self._remaining = dict(counts)

    def of(self, training: str) -> Callable[[], None]:
        """Return a function that uses up one measurement of a training, and raises LeakageError if none is left."""
        return partial(self._use_one, training)

    def _use_one(self, training: str) -> None:
        remaining = self._remaining.get(training, 0)
        if remaining <= 0 or not self._use(training):
            raise LeakageError(
                f"{self._party}: the training of {training} has made all measurements that its consent covers, and a "
                "peer asks for another",
                "ask the peer for the reason; to start again, remove the folder of checkpoints at every party, which "
                "asks for consent and counts all measurements again",
                code="SVFL-LIMIT-REACHED",
                party=self._party,
            )
        self._remaining[training] = remaining - 1

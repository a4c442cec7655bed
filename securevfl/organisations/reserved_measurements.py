"""Measurements of held-out rows that one consent covers and that the score ledger has counted in advance.

Trainings of a comparison or a search use them up one by one. When none is left, a further measurement is refused, even
if a peer claims that it has lost its results and repeats a training.
"""

from __future__ import annotations

from collections.abc import Callable

from securevfl.errors import LeakageError


class ReservedMeasurements:
    """How many measurements of held-out rows one consent still allows.

    Args:
        party: name of the party whose rows are measured.
        count: number of measurements.
        store: is called with the remaining number before a measurement begins; it may write the number to disk.

    Attributes:
        remaining: number of measurements that are still allowed.
    """

    def __init__(self, party: str, count: int, store: Callable[[int], None] = lambda remaining: None) -> None:
        self._party, self._store = party, store
        self.remaining = count

    def use_one(self) -> None:
        """Use up one measurement.

        Raises:
            LeakageError: none is left.
        """
        if not self.remaining:
            raise LeakageError(
                f"{self._party}: all measurements that its consent covers have been made, and a peer asks for another",
                "ask the peer for the reason; to start again, remove the folder of checkpoints at every party, which "
                "asks for consent and counts all measurements again",
                code="SVFL-LIMIT-REACHED",
                party=self._party,
            )
        self._store(self.remaining - 1)
        self.remaining -= 1

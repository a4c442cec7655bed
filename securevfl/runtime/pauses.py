"""A party that is slow at random, as one whose processor others use too.

A factor on all computing makes a party slow throughout, and who is slow throughout holds the others back in the end
however far they may go ahead. What bounded staleness gains by is a party that is slow now and then (FDML, Hu et al.
2019): the others go on meanwhile, and it catches up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

DRAWN = 1024  # numbers at a time


@dataclass(frozen=True)
class Pauses:
    """Stop a party before a message that it sends, with probability `share`, for an exponential time of mean `seconds`.

    Pauses are drawn from `seed`, one number a message, so a run has the same ones whatever the machine.
    """

    share: float
    seconds: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and self.seconds >= 0):
            raise ValueError(f"Pauses needs a share in [0, 1] and seconds >= 0, got {self}")

    def lengths(self) -> Iterator[float]:
        """Yield the seconds of the pause before each message, 0 where there is none."""
        generator = np.random.default_rng(self.seed)
        while True:
            stops = generator.random(DRAWN) < self.share
            yield from np.where(stops, generator.exponential(self.seconds, DRAWN), 0.0).tolist()

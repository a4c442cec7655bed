"""How far the workers of FDML may be apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class WorkerPace:
    """How far workers may go apart.

    batches: by number in the partition, of every iteration. epoch: iterations of one epoch. tau: how far a worker may
    be ahead. together: so many iterations at the start are taken in step. pause: iterations between joint evaluations,
    at which all meet; 0 for none.
    """

    batches: Sequence[int] = field(repr=False)
    epoch: int
    tau: int
    together: int = 0
    pause: int = 0

    def lead(self, t: int) -> int:
        """How far iteration t may be ahead of the slowest worker's push when it is answered."""
        return 0 if t < self.together else self.tau

    def pauses(self, t: int) -> bool:
        """Whether all meet after iteration t."""
        return t + 1 == len(self.batches) or (self.pause > 0 and (t + 1) % self.pause == 0)

    def unanswered(self, t: int) -> int:
        """How many pushes a worker may have open when it goes on after the push of t: never two of one batch."""
        if t < 0 or self.pauses(t):
            return 0
        most = min(self.lead(t), t + 1)
        return next((back for back in range(most) if self.batches[t - back] == self.batches[t + 1]), most)

"""How far the workers of FDML may be apart: the bounded staleness of Hu et al. 2019."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class WorkerPace:
    """How far the workers of a run may be apart.

    Attributes:
        batches: for every iteration, the number of its batch in the partition.
        epoch: number of iterations of one epoch.
        tau: maximum number of iterations between a worker and the slowest worker.
        synchronous: number of iterations at the start in which all workers advance together.
        meeting_interval: number of iterations between joint evaluations, at which all workers meet; 0 for none.
    """

    batches: Sequence[int] = field(repr=False)
    epoch: int
    tau: int
    synchronous: int = 0
    meeting_interval: int = 0

    def max_lead(self, t: int) -> int:
        """Return how far iteration `t` may be ahead of the slowest worker's push when it is answered."""
        return 0 if t < self.synchronous else self.tau

    def meets_after(self, t: int) -> bool:
        """Whether all workers meet after iteration `t`."""
        return t + 1 == len(self.batches) or (self.meeting_interval > 0 and (t + 1) % self.meeting_interval == 0)

    def max_unanswered(self, t: int) -> int:
        """Return how many pushes a worker may leave unanswered after the push of iteration `t`.

        A worker never has two unanswered pushes of one batch.
        """
        if t < 0 or self.meets_after(t):
            return 0
        limit = min(self.max_lead(t), t + 1)
        return next((back for back in range(limit) if self.batches[t - back] == self.batches[t + 1]), limit)

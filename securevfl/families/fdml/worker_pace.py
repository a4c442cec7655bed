"""How many iterations the workers of FDML may be apart: the bounded staleness of Hu et al. 2019.

In each iteration, a worker pushes (sends) its outputs on a batch and waits for a reply with the sum. The *lead* of an
iteration is the number of iterations by which it is ahead of the slowest worker's latest push.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class WorkerPace:
    """The limits on how many iterations the workers of a run may be apart.

    Attributes:
        batches: for every iteration, the number of its batch.
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
        """Return how many iterations `t` may be ahead of the slowest worker's latest push when `t` is answered."""
        return 0 if t < self.synchronous else self.tau

    def meets_after(self, t: int) -> bool:
        """Whether all workers wait for each other after iteration `t`, for an evaluation or the end."""
        return t + 1 == len(self.batches) or (self.meeting_interval > 0 and (t + 1) % self.meeting_interval == 0)

    def max_unanswered(self, t: int) -> int:
        """Return how many pushes a worker may leave unanswered after the push of iteration `t`.

        The limit is low enough that a worker never has two unanswered pushes of one batch.
        """
        if t < 0 or self.meets_after(t):
            return 0
        limit = min(self.max_lead(t), t + 1)
        return next((back for back in range(limit) if self.batches[t - back] == self.batches[t + 1]), limit)

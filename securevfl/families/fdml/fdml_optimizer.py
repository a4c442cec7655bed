"""FDML (Hu et al. 2019): stochastic gradient descent of all parties at their own pace, on sums that may be stale.

All parties go through one sequence of batches (Algorithm 1). In iteration t party k

1. pushes H_k = its local predictions (n x c) on the batch of t
2. pulls f, the sum of what all have pushed last of this batch, as soon as the slowest has pushed t - tau
3. takes a step on its own weights: theta_k -= eta_t (J_k^T g / n + l2 theta_k), g = df-loss at f

The paper's Algorithm 1 has another order: it pulls, updates, and then pushes the prediction of the updated weights.
Here a push comes first, so that a sum holds predictions of its own iteration as far as tau lets it, and at tau = 0
the steps are those of FedSGD.

The paper lets every party know the labels: then each makes its own g. With labels at one party alone the others pull
nothing; that party publishes its g, and each steps when the one of its iteration has come, the same tau at most late.

In 2 a party puts its own prediction as it is now in place of the one it pushed: its own weights are never stale, as
in the paper, while answers are under way. In 3 eta_t = lr / sqrt(t + 1) with decay "sqrt_t", for which Proposition 1
has the regret of a convex loss fall as 1 / sqrt(T) (for gradients and distances that are bounded).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, SerializeAsAny

from securevfl.base.roles import ACTIVE, PASSIVE
from securevfl.data.schedule import Iteration, Schedule
from securevfl.families.fdml.masked_store import StoredMasks
from securevfl.families.fdml.stored_sum import StoredSum
from securevfl.families.fdml.stored_sums import STORED
from securevfl.families.fdml.worker_pace import WorkerPace
from securevfl.models.block import BlockModel
from securevfl.optim.optimizer import Optimizer
from securevfl.optim.rule_choice import AnyRule
from securevfl.optim.rules import Sgd
from securevfl.options import JobOptions
from securevfl.protocols.party_context import PartyContext


class FDML(Optimizer):
    """Each party at its own pace, at most `tau` iterations ahead of the slowest."""

    name: ClassVar[str] = "fdml"
    family: ClassVar[str] = "fdml"
    tau: int = Field(default=8, ge=0)
    """Iterations a party may be ahead of the slowest; 0 has all go in step."""
    rule: AnyRule = Field(default_factory=Sgd)
    """How a gradient becomes a change of weights."""
    synchronous_first: bool = True
    """All go in step through the first epoch, so that every party's predictions are there from the first sum on."""
    stored: Annotated[SerializeAsAny[StoredSum] | None, BeforeValidator(STORED.read)] = None
    """How local predictions lie at a server: "open", or "masks", which stand if it is left out."""
    shows_labels: bool = False
    """The party with labels shows those of the training rows to all others, as the paper has it; else residuals go
    down."""

    @property
    def label(self) -> str:
        rule = "" if isinstance(self.rule, Sgd) else f" {self.rule.name}"
        return f"FDML tau={self.tau}{rule}"


class FdmlJob(JobOptions, defer_build=True):
    """A job at everyone's own pace: a block of weights for each worker, by FDML."""

    model: BlockModel
    optimizer: FDML


def stored_of(job: JobOptions) -> StoredSum:
    """How local predictions lie at its server: under masks unless it says otherwise."""
    return (job.optimizer.stored if isinstance(job.optimizer, FDML) else None) or StoredMasks()


def pace_of(job: FdmlJob, schedule: Schedule, visits: list[Iteration]) -> WorkerPace:
    """How far parties may go apart on this schedule."""
    own, epoch = job.optimizer, schedule.batches
    together = epoch if own.synchronous_first else 0
    return WorkerPace([visit.index for visit in visits], epoch, own.tau, together, job.evaluation_interval)


def workers_of(context: PartyContext) -> tuple[str, ...]:
    """List the parties with columns, in the order of the run's roles."""
    return tuple(name for name in context.parties if context.roles.role(name) in (ACTIVE, PASSIVE))


def readers_of(job: FdmlJob, context: PartyContext) -> tuple[str, ...]:
    """Who pulls sums: whoever knows labels."""
    return workers_of(context) if job.optimizer.shows_labels else (context.active,)

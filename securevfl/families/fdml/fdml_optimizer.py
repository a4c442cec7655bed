"""FDML (Hu et al. 2019): asynchronous stochastic gradient descent on sums that may be stale.

All parties use the same sequence of batches (Algorithm 1). In iteration t, party k
1. pushes H_k, its local predictions (n, c) on the batch of t, to the server
2. pulls f, the sum of all parties' latest pushes of this batch, as soon as the slowest party has pushed t - tau. It
   replaces its own push in the sum by its current prediction, so that its own weights are never stale
3. updates its weights: theta_k -= eta_t * (J_k^T g / n + l2 * theta_k)
g is the derivative of the loss by f, J_k that of H_k by theta_k, eta_t the step size and n the number of rows.

The paper pushes the predictions of the updated weights at the end of an iteration; here the push comes first, so tau =
0 gives the steps of FedSGD. If only one party has labels, the others pull no sums: it sends them g, with the same tau.
A *worker* is a party with columns, and a *reader* is a worker that pulls sums.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, SerializeAsAny

from securevfl.base.roles import ACTIVE, PASSIVE
from securevfl.data.schedule import Iteration, Schedule
from securevfl.families.fdml.masked_store import StoredMasks
from securevfl.families.fdml.stored_sum import StoredSum
from securevfl.families.fdml.stored_sums import STORED_SUMS
from securevfl.families.fdml.worker_pace import WorkerPace
from securevfl.models.block import BlockModel
from securevfl.optim.optimizer import Optimizer
from securevfl.optim.rule_choice import AnyRule
from securevfl.optim.rules import Sgd
from securevfl.options import JobOptions
from securevfl.protocols.party_context import PartyContext


class FDML(Optimizer):
    """Asynchronous descent in which a party is at most `tau` iterations ahead of the slowest one."""

    name: ClassVar[str] = "fdml"
    family: ClassVar[str] = "fdml"
    tau: int = Field(default=8, ge=0, le=10_000)
    """Maximum number of iterations between a party and the slowest one; 0 synchronises all parties."""
    rule: AnyRule = Field(default_factory=Sgd)
    """Update rule: how a gradient becomes a change of weights."""
    synchronous_first: bool = True
    """Synchronise all parties in the first epoch, so that every sum contains the predictions of all parties."""
    stored: Annotated[SerializeAsAny[StoredSum] | None, BeforeValidator(STORED_SUMS.read)] = None
    """How a server stores local predictions: "masks" (the default) or "open"."""
    shows_labels: bool = False
    """Send the labels of the training rows to all parties, as in the paper; otherwise send residuals."""

    @property
    def label(self) -> str:
        """The optimizer's name in a cost table, with tau and the update rule."""
        rule = "" if isinstance(self.rule, Sgd) else f" {self.rule.name}"
        return f"FDML tau={self.tau}{rule}"


class FdmlJob(JobOptions, defer_build=True):
    """The options of a job of asynchronous training: each worker has its weights, and all are trained by FDML."""

    model: BlockModel
    optimizer: FDML


def stored_of(job: JobOptions) -> StoredSum:
    """Return how the server stores local predictions: as the job states, or masked if it states nothing."""
    return (job.optimizer.stored if isinstance(job.optimizer, FDML) else None) or StoredMasks()


def pace_of(job: FdmlJob, schedule: Schedule, iterations: list[Iteration]) -> WorkerPace:
    """Return how many iterations the workers of a job may be apart on this schedule."""
    optimizer, epoch = job.optimizer, schedule.batches
    synchronous = epoch if optimizer.synchronous_first else 0
    batches = [iteration.index for iteration in iterations]
    return WorkerPace(batches, epoch, optimizer.tau, synchronous, job.evaluation_interval)


def workers_of(context: PartyContext) -> tuple[str, ...]:
    """Return the parties with columns, in the order of the run's roles."""
    return tuple(name for name in context.parties if context.roles.role(name) in (ACTIVE, PASSIVE))


def readers_of(job: FdmlJob, context: PartyContext) -> tuple[str, ...]:
    """Return the names of the workers that pull sums (*readers*): those that know the labels."""
    return workers_of(context) if job.optimizer.shows_labels else (context.active,)

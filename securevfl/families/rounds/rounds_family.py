"""Training by rounds: a sum of forward outputs and a residual (FedBCD, Liu et al. 2019, Algorithm 1).

1. Every passive party k sends H_k (n, c), its outputs on a batch, into the sum protocol of the job.
2. The active party computes f, the sum of all H_k, and the residual g (n, c), the derivative of the loss by f.
3. The active party sends g to the passive parties, in the clear or encrypted.
4. Every party computes its gradient J_k^T g, with the Jacobian J_k of its outputs by its weights, and updates them.

The active party has the labels, and all parties have columns. The optimizer determines the updates and how many
exchanges they use. The sum protocol and the residual protocol determine which party can read H_k and g. A consent sheet
states what a party sends and learns. The audit runs a job on test data and compares the values that parties receive
with the declared ones.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

from securevfl.base.extras import is_installed
from securevfl.base.roles import ACTIVE, COLLECTOR, CONTRIBUTOR, PASSIVE, Roles
from securevfl.data.preparation import Preparation
from securevfl.data.woe import Woe
from securevfl.disclosure.counts import RunShape
from securevfl.disclosure.outputs import Output
from securevfl.families.facts import RunFacts
from securevfl.families.family import Family
from securevfl.families.family_types import J, MessageProtocol, SheetStatement
from securevfl.families.output_rounding import output_step
from securevfl.families.participant import Participant
from securevfl.families.rounds.rounds_job import RoundsJob
from securevfl.families.rounds.rounds_outputs import rounds_outputs
from securevfl.families.rounds.rounds_participant import RoundsParticipant
from securevfl.families.rounds.rounds_statements import active_statements, passive_statements
from securevfl.families.state import State
from securevfl.models.linear import Logistic
from securevfl.models.neural import Neural
from securevfl.models.rounding_error import SumRounding
from securevfl.optim.block_newton import BlockNewton
from securevfl.optim.celu import CeluVFL
from securevfl.optim.fedbcd import FedBCD
from securevfl.optim.rounds import RoundsTraining
from securevfl.options import JobOptions
from securevfl.protocols.declarations import MessageDeclaration, Reveal, declare_in_roles
from securevfl.protocols.engines import Ckks
from securevfl.protocols.number_spaces import Reals
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.residuals.open_residual import OpenResidual
from securevfl.protocols.residuals.sealed_residual import OpenedProduct
from securevfl.protocols.sums.direct_sum import DirectSum
from securevfl.protocols.sums.tree_sum import TreeSum

EVIDENCE_REVEAL = Reveal("output", "the receiver's own parameter gradient J^T g, and the class counts of its bins")


class RoundsFamily(Family[RoundsJob]):
    """Training by rounds: sums of outputs and residuals, for models with a block of weights at every party."""

    name: ClassVar[str] = "rounds"
    options: ClassVar[type[JobOptions]] = RoundsJob
    supports_row_weights: ClassVar[bool] = True
    supports_evidence: ClassVar[bool] = True
    repeatable_scores: ClassVar[bool] = True
    supports_single_precision: ClassVar[bool] = True

    def check_job(self, job: JobOptions) -> None:
        """Check that the job has a residual protocol and a sum protocol that fits the model."""
        if job.protocol.residual is None:
            raise ValueError("protocol.residual: is missing; add it")
        if isinstance(job.optimizer, RoundsTraining):
            job.optimizer.check(job.model)
        sums = job.protocol.sum_for(2)
        if job.model.separates_outputs and sums.hides_parts:
            raise ValueError(
                f"protocol.sum: a top model needs the outputs of each party, which {sums.name} hides; "
                'use sum = "direct"'
            )

    def example_jobs(self) -> dict[str, dict[str, Any]]:
        """Return one job for each kind of sum, residual, optimizer and model."""
        base: dict[str, Any] = {"model": Logistic(l2=1e-3), "optimizer": FedBCD(local_steps=3, lr=0.2)}
        sealed = {"protocol": Protocol(residual=Ckks())}
        linear: dict[str, dict[str, Any]] = {
            "ckks": base | sealed,
            "tree open": base | {"protocol": Protocol(sum=TreeSum(), residual=OpenResidual())},
            "kept exchanges": base
            | sealed
            | {"optimizer": CeluVFL(R=3, W=2, xi=60, lr=0.1), "accepts": ("fresh_equations",)},
            "evidence": base | sealed | {"prepare": Preparation(woe=Woe(bins=2, rows=20)), "accepts": ("rank",)},
            "curvature": base | sealed | {"optimizer": BlockNewton(), "batch_size": "all"},
        }
        if not is_installed("torch"):
            return linear
        networks = base | {
            "accepts": ("columns", "fresh_equations"),
            "protocol": Protocol(sum=DirectSum(), residual=Ckks()),
        }
        return linear | {
            "neural": networks | {"model": Neural()},
            "neural top": networks | {"model": Neural(joint="top", width=2)},
        }

    def declarations(self, job: RoundsJob, roles: Roles) -> list[MessageDeclaration]:
        """Declare sender, receiver and disclosure of each message: sums, residuals, optimizer messages."""
        passives = roles.with_role(PASSIVE)
        sum_messages = job.protocol.sum_for(len(passives)).declares(passives)
        residual_messages = job.protocol.residual.declares()
        if job.prepare.woe is not None:
            residual_messages = [
                replace(item, reveals=EVIDENCE_REVEAL) if item.message is OpenedProduct else item
                for item in residual_messages
            ]
        return [
            *declare_in_roles(sum_messages, {COLLECTOR: (ACTIVE,), CONTRIBUTOR: (PASSIVE,)}, space=Reals),
            *residual_messages,
            *job.optimizer.declares(),
        ]

    def outputs(self, job: RoundsJob, shape: RunShape) -> list[Output]:
        """List the outputs of a run: sums, residuals or gradients, and evaluations."""
        return rounds_outputs(job, shape)

    def sum_rounding(self, job: RoundsJob, rows: int, parties: int) -> SumRounding | None:
        """Return how outputs are rounded if the model is linear and residuals are encrypted; None otherwise."""
        if not (job.protocol.seals and job.model.static_jacobian):
            return None
        remedy = "to reduce it, train with secret sharing (leave protocol out)"
        return SumRounding(output_step(rows) * math.sqrt((parties - 1) / 6), remedy)

    def message_protocols(self, job: RoundsJob, roles: Roles) -> list[MessageProtocol]:
        """List the protocols that the audit checks separately: the sum protocol and the residual protocol."""
        return [job.protocol.sum_for(len(roles.with_role(PASSIVE))), job.protocol.residual]

    def title(self, job: RoundsJob, roles: Roles) -> str:
        """Return a title with the names of the sum protocol and the residual protocol."""
        return f"{job.protocol.sum_for(len(roles.with_role(PASSIVE))).name} sum / {job.protocol.residual.name} residual"

    def strength(self, job: RoundsJob) -> str:
        """Return one line that names the cryptographic assumption of the residual protocol."""
        return job.protocol.residual.strength

    def common_statements(self, job: RoundsJob, roles: Roles, facts: RunFacts | None) -> dict[str, str]:
        """Return a statement on the number of decrypted values of gradients and of decrypted class counts of bins."""
        if facts is None:
            return {}
        shape = facts.shape
        openings = job.optimizer.agreement(job.model).openings
        opened = shape.batches * openings * sum(shape.parameters.values())
        woe = job.prepare.woe
        columns = (shape.batches * openings + (woe is not None)) * len(shape.passives) * shape.outputs
        slots = 0 if woe is None else sum(woe.counts(shape.columns[name]) for name in shape.passives)
        text = job.protocol.residual.openings(opened, shape.epochs, columns=columns, once=slots)
        if text and slots:
            text += f"; {slots:,} of these values are counts in bins, some of them empty"
        return {"openings": text}

    def statements(self, job: RoundsJob, roles: Roles, party: str, facts: RunFacts | None) -> list[SheetStatement]:
        """Return what the active party or a passive party learns, for its consent sheet."""
        if roles.role(party) == ACTIVE:
            return active_statements(job, party, facts)
        return passive_statements(job, party, facts)

    def coalitions(self, job: RoundsJob, roles: Roles) -> str:
        """Return one line that states which parties can, together, compute outputs of single parties."""
        passives = roles.with_role(PASSIVE)
        sums = job.protocol.sum_for(len(passives))
        if sums.hides_parts and len(passives) > 1 and job.optimizer.exchanges(passives) > 1:
            return (
                "needs nobody: only one passive party updates its weights between two sums, and weights start at "
                "zero, so\n"
                "the difference of two sums reveals that party's outputs"
            )
        return sums.coalition(passives)

    def participant(self, job: RoundsJob, context: PartyContext, columns: int, state: State | None) -> Participant:
        """Create the object that does one party's side of the training."""
        return RoundsParticipant(job, context, columns, state)

    def ideal_job(self, job: J) -> J:
        """Return the job for the audit's ideal run: sums and residuals in the clear; a defence of residuals remains."""
        defence = getattr(job.protocol.residual, "defence", None)
        residual = OpenResidual() if defence is None else OpenResidual(defence=defence)
        protocol = Protocol(sum=DirectSum(), residual=residual)
        return job.model_copy(update={"protocol": protocol, "max_label_auc": None})

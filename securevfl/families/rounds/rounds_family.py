"""Training by rounds: a forward sum goes up, a residual goes down (FedBCD 2019, Algorithm 1).

    every passive party k     H_k (n x c) into a sum of its choice                    up
    the active party          f = sum of all H_k, g = df-loss at f (n x c)
    the active party          g, in the clear or sealed                               down
    every party               its own parameter gradient J_k^T g, and steps on its own block of weights

One party has labels, all have columns. What steps a party takes, and on how many exchanges, is its optimizer's; what
others see of H_k and g is the sum's and the residual's.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

from securevfl.base.extras import is_installed
from securevfl.base.roles import ACTIVE, COLLECTOR, CONTRIBUTOR, PASSIVE, Roles
from securevfl.data.preparation import Preparation
from securevfl.data.woe import Woe
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.families.family import Family, J, MessageProtocol, SheetStatement
from securevfl.families.output_rounding import output_step
from securevfl.families.participant import Participant
from securevfl.families.rounds.rounds_disclosures import rounds_disclosures
from securevfl.families.rounds.rounds_job import RoundsJob
from securevfl.families.rounds.rounds_participant import RoundsParticipant
from securevfl.families.rounds.rounds_statements import active_statements, passive_statements
from securevfl.families.run_facts import RunFacts
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

EVIDENCE_REVEAL = Reveal("output", "the receiver's own parameter gradient J^T g, and the classes in each of its bins")


class RoundsFamily(Family[RoundsJob]):
    """A sum up and a residual down, for models that every party has a block of weights of."""

    name: ClassVar[str] = "rounds"
    options: ClassVar[type[JobOptions]] = RoundsJob
    supports_row_weights: ClassVar[bool] = True
    supports_evidence: ClassVar[bool] = True
    repeatable_scores: ClassVar[bool] = True
    supports_single_precision: ClassVar[bool] = True

    def check_job(self, job: JobOptions) -> None:
        if job.protocol.residual is None:
            raise ValueError("protocol.residual: is missing; add it")
        if isinstance(job.optimizer, RoundsTraining):
            job.optimizer.check(job.model)
        sums = job.protocol.sum_for(2)
        if job.model.separates_outputs and sums.hides_parts:
            raise ValueError(
                f'protocol.sum: "direct" was expected, a top model is fed every party\'s outputs apart and {sums.name} '
                'hides none of them; use sum = "direct"'
            )

    def example_jobs(self) -> dict[str, dict[str, Any]]:
        own: dict[str, Any] = {"model": Logistic(l2=1e-3), "optimizer": FedBCD(local_steps=3, lr=0.2)}
        nets = own | {"accepts": ("columns", "fresh_equations"), "protocol": Protocol(sum=DirectSum(), residual=Ckks())}
        neural = {"neural": nets | {"model": Neural()}, "neural top": nets | {"model": Neural(joint="top", width=2)}}
        linear: dict[str, dict[str, Any]] = {
            "ckks": own | {"protocol": Protocol(residual=Ckks())},
            "tree open": own | {"protocol": Protocol(sum=TreeSum(), residual=OpenResidual())},
            "kept exchanges": own
            | {"optimizer": CeluVFL(R=3, W=2, xi=60, lr=0.1), "protocol": Protocol(residual=Ckks())}
            | {"accepts": ("fresh_equations",)},
            "evidence": own
            | {"protocol": Protocol(residual=Ckks()), "prepare": Preparation(woe=Woe(bins=2, rows=20))}
            | {"accepts": ("rank",)},
            "curvature": own | {"optimizer": BlockNewton(), "batch_size": "all", "protocol": Protocol(residual=Ckks())},
        }
        return linear | (neural if is_installed("torch") else {})

    def declarations(self, job: RoundsJob, roles: Roles) -> list[MessageDeclaration]:
        sums = job.protocol.sum_for(len(roles.with_role(PASSIVE)))
        parts, down = sums.declares(roles.with_role(PASSIVE)), job.protocol.residual.declares()
        if job.prepare.woe is not None:
            down = [replace(item, reveals=EVIDENCE_REVEAL) if item.message is OpenedProduct else item for item in down]
        return [
            *declare_in_roles(parts, {COLLECTOR: (ACTIVE,), CONTRIBUTOR: (PASSIVE,)}, space=Reals),
            *down,
            *job.optimizer.declares(),
        ]

    def disclosures(self, job: RoundsJob, sizes: RunShape) -> list[Disclosure]:
        return rounds_disclosures(job, sizes)

    def sum_rounding(self, job: RoundsJob, rows: int, parties: int) -> SumRounding | None:
        if not (job.protocol.seals and job.model.static_jacobian):
            return None
        remedy = "to have less of it, train on shares (leave protocol out)"
        return SumRounding(output_step(rows) * math.sqrt((parties - 1) / 6), remedy)

    def message_protocols(self, job: RoundsJob, roles: Roles) -> list[MessageProtocol]:
        return [job.protocol.sum_for(len(roles.with_role(PASSIVE))), job.protocol.residual]

    def title(self, job: RoundsJob, roles: Roles) -> str:
        return f"{job.protocol.sum_for(len(roles.with_role(PASSIVE))).name} sum / {job.protocol.residual.name} residual"

    def strength(self, job: RoundsJob) -> str:
        return job.protocol.residual.strength

    def opened_values(self, job: RoundsJob, sizes: RunShape) -> str:
        times = job.optimizer.agreement(job.model).openings
        opened = sizes.batches * times * sum(sizes.parameters.values())
        columns = (sizes.batches * times + (job.prepare.woe is not None)) * len(sizes.passives) * sizes.outputs
        woe = job.prepare.woe
        slots = 0 if woe is None else sum(woe.counts(sizes.columns[name]) for name in sizes.passives)
        told = job.protocol.residual.openings(opened, sizes.epochs, columns=columns, once=slots)
        return f"{told}; {slots:,} of these values are counts in bins, some of them empty" if told and slots else told

    def statements(self, job: RoundsJob, roles: Roles, party: str, known: RunFacts | None) -> list[SheetStatement]:
        if roles.role(party) == ACTIVE:
            return active_statements(job, party, known)
        return passive_statements(job, party, known)

    def coalitions(self, job: RoundsJob, roles: Roles) -> str:
        passives = roles.with_role(PASSIVE)
        sums = job.protocol.sum_for(len(passives))
        if sums.hides_parts and len(passives) > 1 and job.optimizer.exchanges(passives) > 1:
            return (
                "needs nobody: one passive party moves between two sums, so their difference is that party's\n"
                "part, and weights start at zero"
            )
        return sums.coalition(passives)

    def participant(self, job: RoundsJob, context: PartyContext, columns: int, state: State | None) -> Participant:
        return RoundsParticipant(job, context, columns, state)

    def ideal_job(self, job: J) -> J:
        """Return the same job with a direct sum and an open residual, under the defence that its residual has."""
        defence = getattr(job.protocol.residual, "defence", None)
        residual = OpenResidual() if defence is None else OpenResidual(defence=defence)
        protocol = Protocol(sum=DirectSum(), residual=residual)
        return job.model_copy(update={"protocol": protocol, "max_label_auc": None})

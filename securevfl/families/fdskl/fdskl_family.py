"""Training by phases: random features of everyone's columns, kept where the labels are (FDSKL, Gu et al. 2020).

    every party l             x_l w_l on the circle, into a sum for each party with labels
    each party with labels    keeps the cosines, which are its features, and coefficients for them
    all                       f_l on a batch, into a sum for the one whose turn it is, which takes a step

One party or more have labels; the first of them leads. Nothing goes down. See
`securevfl.families.fdskl.kernel_model` for the features, `securevfl.families.fdskl.phase_sums` for the messages.
"""

from __future__ import annotations

from typing import Any, ClassVar

from securevfl.base.roles import ACTIVE, COLLECTOR, CONTRIBUTOR, PASSIVE, Role, Roles
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.families.evaluations import score_disclosures
from securevfl.families.family import Family, J, MessageProtocol, SheetStatement
from securevfl.families.fdskl import phase_sums
from securevfl.families.fdskl.fdskl_job import PhasesJob
from securevfl.families.fdskl.fdskl_optimizer import FDSKL
from securevfl.families.fdskl.fdskl_participant import PhasesParticipant
from securevfl.families.fdskl.kernel_model import Kernel
from securevfl.families.participant import Participant
from securevfl.families.run_facts import RunFacts
from securevfl.families.state import State
from securevfl.models.base import Model
from securevfl.optim.optimizer import Training
from securevfl.options import JobOptions
from securevfl.protocols.declarations import MessageDeclaration, declare_in_roles
from securevfl.protocols.number_spaces import Circle
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.sums.direct_sum import DirectSum
from securevfl.protocols.sums.pairwise_sum import PairwiseSum
from securevfl.protocols.sums.tree_sum import TreeSum

PHASES_STATEMENT = """\
M = {M} phases of every row: the sum of x_l w_l over the other parties, modulo a turn. Each
draws its w_l itself, so no system of equations leads to its columns. What no w hides is told:
the kernel, and so the distance, of any two rows in the other parties' columns together; where
phases seldom wrap (small gamma), these columns up to one unknown linear map, which as many known
rows as columns give away"""


class PhasesFamily(Family[PhasesJob]):
    """Sums of phases to every party with labels, for kernel models by random features."""

    name: ClassVar[str] = "phases"
    options: ClassVar[type[JobOptions]] = PhasesJob
    components: ClassVar[tuple[type[Model] | type[Training], ...]] = (Kernel, FDSKL)

    def check_job(self, job: JobOptions) -> None:
        if job.protocol.residual is not None:
            raise ValueError(f"optimizer {job.optimizer.name} sends no residual; leave protocol.residual out")
        if isinstance(job.optimizer, FDSKL) and job.optimizer.precondition and job.model.loss.curvature is None:
            raise ValueError(
                f"loss {job.model.loss.name} states no curvature, which preconditioners rest on; state it, or set "
                "optimizer.precondition = false"
            )
        if job.reshuffle:
            raise ValueError(f"optimizer {job.optimizer.name} keeps features by batch; set reshuffle = false")

    def accepts_role(self, role: Role, *, leads: bool) -> bool:
        return role == ACTIVE or (role == PASSIVE and not leads)

    def example_jobs(self) -> dict[str, dict[str, Any]]:
        own = {"model": Kernel(gamma=0.01, blocks=2, block_size=32), "optimizer": FDSKL()}
        return {
            "kernel tree": own | {"protocol": Protocol(sum=TreeSum())},
            "kernel direct": own | {"protocol": Protocol(sum=DirectSum())},
            "kernel pairwise": own | {"protocol": Protocol(sum=PairwiseSum())},
        }

    def declarations(self, job: PhasesJob, roles: Roles) -> list[MessageDeclaration]:
        found = []
        others = roles.others(roles.lead)
        for declared in (job.protocol.sum_for(len(others)).declares(others), phase_sums.declare_windows()):
            found += declare_in_roles(
                declared, _parts(roles), space=None if len(roles.with_role(ACTIVE)) > 1 else Circle
            )
        return found

    def disclosures(self, job: PhasesJob, sizes: RunShape) -> list[Disclosure]:
        """Scores alone: what phases tell has as many dimensions as there are from the first exchange on, and `tells`
        says it in words."""
        return score_disclosures(job, sizes)

    def message_protocols(self, job: PhasesJob, roles: Roles) -> list[MessageProtocol]:
        return [job.protocol.sum_for(len(roles.cast) - 1)]

    def title(self, job: PhasesJob, roles: Roles) -> str:
        return f"{job.protocol.sum_for(len(roles.cast) - 1).name} sum / no residual"

    def strength(self, job: PhasesJob) -> str:
        return "none on the way down, where nothing is sent"

    def statements(self, job: PhasesJob, roles: Roles, party: str, known: RunFacts | None) -> list[SheetStatement]:
        if roles.role(party) != ACTIVE:
            return [("learns", "nothing")]
        labelled = len(roles.with_role(ACTIVE))
        whose = "the other's f" if labelled == 2 else "the sum of the others' f"
        leading = "f = sum_k H_k on the rows predicted, and messages marked output or plain"
        found = [("learns", leading if party == roles.lead else "f on its minibatches")]
        if labelled > 1:
            found.append(("learns", f"{whose} on the rows of its minibatches, which follows their labels"))
        found.append(("learns", PHASES_STATEMENT.format(M=job.model.features)))
        return found

    def coalitions(self, job: PhasesJob, roles: Roles) -> str:
        others = roles.others(roles.lead)
        return job.protocol.sum_for(len(others)).coalition(others, "the party with labels")

    def participant(self, job: PhasesJob, context: PartyContext, columns: int, state: State | None) -> Participant:
        return PhasesParticipant(job, context, columns, state)

    def drawn_secrets(self, state: State) -> State | None:
        return State(key=state["key"], theta=None)

    def ideal_job(self, job: J) -> J:
        return job.model_copy(update={"protocol": Protocol(sum=DirectSum()), "max_label_auc": None})


def _parts(roles: Roles) -> dict[Role, tuple[Role, ...]]:
    """Who plays which part in the sums: those with labels are told, and all others than the one told put in."""
    others = dict.fromkeys(roles.role(name) for name in reversed(roles.others(roles.lead)))
    return {COLLECTOR: (ACTIVE,), CONTRIBUTOR: tuple(others)}

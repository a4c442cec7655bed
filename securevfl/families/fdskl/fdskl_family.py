"""Training by sums of phases: the parties with labels cache random features of all columns (FDSKL, Gu et al. 2020).

A *phase* is an angle: the product of party l's columns x_l with its random frequencies w_l, modulo a full turn. The
cosine of the phases summed over all parties is one random Fourier feature of a kernel.
1. Every party l sends its phases of a batch into a sum for each party with labels.
2. Each party with labels caches the cosines of the summed phases, which are its features, and stores coefficients.
3. All parties with labels send f_l, their features times coefficients, on a batch into a sum for one of them at a
   time, which updates its coefficients.

One party or more have labels; the first of them leads. No residual is sent. `fdskl.kernel_model` describes the features
and `fdskl.phase_sums` the messages. A consent sheet states what a party sends and learns. The audit runs a job on test
data and compares the values that parties receive with the declared ones.
"""

from __future__ import annotations

from typing import Any, ClassVar

from securevfl.base.roles import ACTIVE, COLLECTOR, CONTRIBUTOR, PASSIVE, Role, Roles
from securevfl.disclosure.counts import RunShape
from securevfl.disclosure.outputs import Output
from securevfl.families.evaluations import score_output
from securevfl.families.facts import RunFacts
from securevfl.families.family import Family
from securevfl.families.family_types import J, MessageProtocol, SheetStatement
from securevfl.families.fdskl import phase_sums
from securevfl.families.fdskl.fdskl_job import PhasesJob
from securevfl.families.fdskl.fdskl_optimizer import FDSKL
from securevfl.families.fdskl.fdskl_participant import PhasesParticipant
from securevfl.families.fdskl.kernel_model import Kernel
from securevfl.families.participant import Participant
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
{M} angles (phases) of every row. An angle is a sum of the other parties' columns, each multiplied by a
random factor that its party chooses and keeps secret; full turns are left out. So no system of equations determines
the columns. But the angles reveal how similar any two rows are in the other parties' columns together. If few sums
exceed a full turn (small gamma), somebody who knows as many rows as there are columns can compute these columns for
all rows"""


class PhasesFamily(Family[PhasesJob]):
    """Trains kernel models by random features; every party with labels receives sums of phases."""

    name: ClassVar[str] = "phases"
    options: ClassVar[type[JobOptions]] = PhasesJob
    components: ClassVar[tuple[type[Model] | type[Training], ...]] = (Kernel, FDSKL)

    def check_job(self, job: JobOptions) -> None:
        """Check that the job has no residual protocol and fixed batches, and that preconditioners have a curvature."""
        if job.protocol.residual is not None:
            raise ValueError(f"protocol.residual: optimizer {job.optimizer.name} sends no residual; leave it out")
        if isinstance(job.optimizer, FDSKL) and job.optimizer.precondition and job.model.loss.curvature is None:
            raise ValueError(
                f"optimizer.precondition: loss {job.model.loss.name} defines no curvature, which preconditioners need; "
                "define it, or set optimizer.precondition = false"
            )
        if job.reshuffle:
            raise ValueError(
                f"reshuffle: optimizer {job.optimizer.name} caches features by batch; set reshuffle = false"
            )

    def accepts_role(self, role: Role, *, leads: bool) -> bool:
        """Accept active parties, and passive parties that do not lead."""
        return role == ACTIVE or (role == PASSIVE and not leads)

    def example_jobs(self) -> dict[str, dict[str, Any]]:
        """Return one job for each sum protocol."""
        base = {"model": Kernel(gamma=0.01, blocks=2, block_size=32), "optimizer": FDSKL()}
        return {
            "kernel tree": base | {"protocol": Protocol(sum=TreeSum())},
            "kernel direct": base | {"protocol": Protocol(sum=DirectSum())},
            "kernel pairwise": base | {"protocol": Protocol(sum=PairwiseSum())},
        }

    def declarations(self, job: PhasesJob, roles: Roles) -> list[MessageDeclaration]:
        """Declare sender, receiver and disclosure of each message: sums and their acknowledgements."""
        declarations = []
        others = roles.others(roles.lead)
        space = None if len(roles.with_role(ACTIVE)) > 1 else Circle
        for messages in (job.protocol.sum_for(len(others)).declares(others), phase_sums.declare_windows()):
            declarations += declare_in_roles(messages, _sum_roles(roles), space=space)
        return declarations

    def outputs(self, job: PhasesJob, shape: RunShape) -> list[Output]:
        """List the outputs of a run: only the scores; phases are described by `statements` instead.

        A number of phases would be misleading, because the first exchange already discloses as much as all others.
        """
        return [score_output(job, shape)]

    def message_protocols(self, job: PhasesJob, roles: Roles) -> list[MessageProtocol]:
        """List the one protocol that the audit checks separately: the sum protocol."""
        return [job.protocol.sum_for(len(roles.cast) - 1)]

    def title(self, job: PhasesJob, roles: Roles) -> str:
        """Return a title with the name of the sum protocol."""
        return f"{job.protocol.sum_for(len(roles.cast) - 1).name} sum / no residual"

    def strength(self, job: PhasesJob) -> str:
        """Return the consent sheet's text on encrypted residuals: they do not occur, because no residual is sent."""
        return "not applicable: no residual is sent"

    def statements(self, job: PhasesJob, roles: Roles, party: str, facts: RunFacts | None) -> list[SheetStatement]:
        """Return what a party with labels learns, for its consent sheet; other parties learn nothing."""
        if roles.role(party) != ACTIVE:
            return []
        labelled = len(roles.with_role(ACTIVE))
        leading = "the score f of each predicted row, and the messages that --details marks as output or plain"
        statements = [("learns", leading if party == roles.lead else "the score f of each row that it trains on")]
        if labelled > 1:
            outputs = "the other party's scores" if labelled == 2 else "the sum of the other parties' scores"
            statements.append(("learns", f"{outputs} of the rows that it trains on; they follow the labels"))
        statements.append(("learns", PHASES_STATEMENT.format(M=job.model.features)))
        return statements

    def coalitions(self, job: PhasesJob, roles: Roles) -> str:
        """Return one line that states which coalitions could learn more: those of the sum protocol."""
        others = roles.others(roles.lead)
        return job.protocol.sum_for(len(others)).coalition(others, roles.lead)

    def participant(self, job: PhasesJob, context: PartyContext, columns: int, state: State | None) -> Participant:
        """Create the object that does one party's side of the training."""
        return PhasesParticipant(job, context, columns, state)

    def drawn_secrets(self, state: State) -> State | None:
        """Return the key from which the party's frequencies are drawn."""
        return State(key=state["key"], theta=None)

    def ideal_job(self, job: J) -> J:
        """Return the job that the audit compares with: the same job, but parties' outputs are summed unencrypted."""
        return job.model_copy(update={"protocol": Protocol(sum=DirectSum()), "max_label_auc": None})


def _sum_roles(roles: Roles) -> dict[Role, tuple[Role, ...]]:
    """Map the roles of a sum to those of the run: parties with labels collect, all others contribute."""
    others = dict.fromkeys(roles.role(name) for name in reversed(roles.others(roles.lead)))
    return {COLLECTOR: (ACTIVE,), CONTRIBUTOR: tuple(others)}

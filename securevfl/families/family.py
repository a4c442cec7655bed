"""The interface of a protocol family: one way to train, with its rules, disclosures and participants.

A `Family` contains everything that is special about a way to train: which models and roles fit, what its messages
reveal, what a whole run discloses and how to state that in words. A disclosure is a number or bit that a party learns
about another party's data; a leak is a disclosure that a job must accept by name. A family creates one `Participant`
for each party. A session (`securevfl.training.session`) runs every participant in the same way:

    all parties agree on the job; check and count its disclosures; create the participant
    for round in participant.train(data, start):      evaluate, store states, report; a run may stop between rounds
    store participant.model_state()

No code mentions a family by name, except its own files, the registry `FAMILIES` and the family's tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.config import NamedOption, mismatched_fields
from securevfl.base.roles import ACTIVE, PASSIVE, Role, Roles
from securevfl.data.party import Party
from securevfl.data.schedule import Schedule
from securevfl.disclosure.column_leaks import COLUMNS
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.disclosure.gradient_leaks import FRESH_EQUATIONS, LABEL_AUC, RANK
from securevfl.disclosure.leaks import Leak, LeakKind
from securevfl.disclosure.outputs import Output
from securevfl.disclosure.sum_leaks import SEQUENTIAL, SINGLE_PASSIVE
from securevfl.errors import PartiesError
from securevfl.families.facts import RunFacts
from securevfl.families.participant import Participant
from securevfl.families.run_files import RunFile
from securevfl.families.state import State
from securevfl.models.base import Model
from securevfl.models.rounding_error import SumRounding
from securevfl.optim.optimizer import Training
from securevfl.options import JobOptions
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import ResidualProtocol
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.sums.base import SumProtocol

MessageProtocol = SumProtocol | ResidualProtocol
SheetStatement = tuple[str, str]  # such as ("learns", "its gradient")
J = TypeVar("J", bound=JobOptions)
O = TypeVar("O", bound=JobOptions)  # the job options of one family, after `check_types`


class FamilyJob(JobOptions, defer_build=True):
    """Job options that name a registered family; `securevfl.job.Job` is the only one."""

    @property
    @abstractmethod
    def family(self) -> Family[Any]:
        """The family of this job."""


class Family(NamedOption, ABC, Generic[O]):
    """A family of training: the messages of a run, what they disclose, and the participants.

    Attributes:
        options: the type of the family's job options; its fields have narrower types than `JobOptions`.
        max_parties: maximum number of parties; None for no limit.
        supports_row_weights: whether rows may have weights (`securevfl.models.row_weights`).
        supports_evidence: whether parties can obtain class counts of their bins (`securevfl.data.woe`).
        uses_stored_sums: whether a server stores local predictions (`securevfl.families.fdml.stored_sum`).
        supports_single_precision: whether outputs and residuals may be sent in single precision.
        example_helpers: names and roles of the parties without a table in the example jobs.
        run_files: the files that its participants write to the folder of a run; they write no others.
        components: models and optimizers that are registered with the family.
        reveals_only_outputs: whether messages reveal nothing but declared outputs. The audit then compares a run with
            one on simulated tables.
        repeatable_scores: whether the predictions that a party contributes depend only on its own part of the model
            and its own columns, so that a repeated request discloses nothing new.
        admits_rows_itself: whether the family decides row by row which requested rows receive a score, and charges
            them to the ledger (`securevfl.protocols.party_context.LocalResources.charge_scores`).
        leak_kinds: the leaks that a job of this family may have, and may accept by name.
    """

    options: ClassVar[type[JobOptions]] = JobOptions
    max_parties: ClassVar[int | None] = None
    supports_row_weights: ClassVar[bool] = False
    supports_evidence: ClassVar[bool] = False
    uses_stored_sums: ClassVar[bool] = False
    supports_single_precision: ClassVar[bool] = False
    example_helpers: ClassVar[tuple[tuple[str, Role], ...]] = ()
    run_files: ClassVar[tuple[RunFile, ...]] = ()
    components: ClassVar[tuple[type[Model] | type[Training], ...]] = ()
    reveals_only_outputs: ClassVar[bool] = False
    repeatable_scores: ClassVar[bool] = False
    admits_rows_itself: ClassVar[bool] = False
    leak_kinds: ClassVar[tuple[LeakKind, ...]] = (RANK, FRESH_EQUATIONS, SINGLE_PASSIVE, LABEL_AUC, COLUMNS, SEQUENTIAL)

    def supports_model(self, model: type[Model]) -> bool:
        """Whether the family can train this kind of model; by default, if the type of `options` allows it."""
        kind: Any = self.options.model_fields["model"].annotation
        return issubclass(model, kind)

    @abstractmethod
    def check_job(self, job: JobOptions) -> None:
        """Raise ValueError, with a remedy, if two options of the job contradict each other."""

    def check_types(self, job: JobOptions) -> None:
        """Check that the job is of the type `options`.

        Args:
            job: the job.

        Raises:
            ValueError: if a field of the job has another type.
        """
        if fields := list(mismatched_fields(job, self.options)):
            raise ValueError(f"{', '.join(fields)}: {self.name} does not support this value; choose another one")

    def role_of(self, party: Party) -> Role:
        """Return the role that the party requests; by default active if it has labels, else passive."""
        return party.role or (ACTIVE if party.active else PASSIVE)

    def accepts_role(self, role: Role, *, leads: bool) -> bool:
        """Whether a party of this role can take part, as the leading party if `leads`, else as another one."""
        return role == (ACTIVE if leads else PASSIVE)

    def assign_roles(self, parties: Sequence[Party]) -> Roles:
        """Assign the parties their roles.

        Args:
            parties: all parties of the run; the leading party is the first.

        Returns:
            The role of each party.

        Raises:
            PartiesError: if there are too many parties or if a role does not fit.
        """
        if self.max_parties is not None and len(parties) > self.max_parties:
            raise PartiesError(
                f"{self.name} trains at most {self.max_parties} parties; the run has {len(parties)}",
                "leave out the others",
                code="SVFL-PARTIES-COUNT",
                limit=self.max_parties,
            )
        roles = Roles.of((party.name, self.role_of(party)) for party in parties)
        misfits = [name for k, (name, role) in enumerate(roles.cast) if not self.accepts_role(role, leads=k == 0)]
        if not misfits:
            return roles
        labelled = ", ".join(party.name for party in parties if party.active) or "none"
        if labelled != roles.lead:
            raise PartiesError(
                f"the run needs exactly one party with labels; parties with labels: {labelled}",
                "pass y to one Party only",
                code="SVFL-PARTIES-LABELS",
            )
        listed = ", ".join(f"{name} ({roles.role(name)})" for name in misfits)
        raise PartiesError(f"{self.name} has no role for {listed}", "leave these parties out", code="SVFL-PARTIES-ROLE")

    def complete_roles(self, job: O, roles: Roles, columns: Mapping[str, int]) -> Roles:
        """Complete the roles once columns are known; raise PartiesError if a required party is absent.

        Args:
            job: the job.
            roles: the roles so far.
            columns: d_k, number of columns of each party; empty if unknown.

        Returns:
            The completed roles.
        """
        return roles

    def score_requester(self, job: O, lead: str) -> str:
        """Return the party that receives scores of new rows; by default the leading party, `lead`."""
        return lead

    def count_trained_rows(self, state: State, score_ledger: ScoreLedger, ids: Iterable[bytes]) -> int:
        """Return how many rows get no score because the model was trained on them; by default 0.

        Args:
            state: the party's state of the model.
            score_ledger: the party's score ledger.
            ids: digests of the ids of the rows.

        Returns:
            The number of rows.
        """
        return 0

    def score_bits(self, job: O, shape: RunShape | None = None) -> int:
        """Return the number of bits that each score of a new row discloses; 0 if no score is disclosed.

        Args:
            job: the job.
            shape: the shape of the run, if it is known.

        Returns:
            The number of bits that each score of a new row discloses.
        """
        return 64

    def column_clip(self, job: O) -> float | None:
        """Return the absolute value at which scaled columns are clipped; None if they are not clipped."""
        return None

    def sum_rounding(self, job: O, rows: int, parties: int) -> SumRounding | None:
        """Return how the training rounds the sums f at random.

        Args:
            job: the job.
            rows: number of training rows.
            parties: number of parties.

        Returns:
            The rounding; None without rounding, or if coefficients are not reported with standard errors.
        """
        return None

    @abstractmethod
    def example_jobs(self) -> dict[str, dict[str, Any]]:
        """Return the options of small jobs by name. The checks run each of them, and the docs refer to them."""

    @abstractmethod
    def declarations(self, job: O, roles: Roles) -> list[MessageDeclaration]:
        """Declare what each message of a run reveals; handshakes are declared elsewhere."""

    @abstractmethod
    def outputs(self, job: O, shape: RunShape) -> list[Output]:
        """List what a complete run discloses. Guards, consent sheets, ledgers and audits read this list."""

    def leaks(
        self, job: O, shape: RunShape, outputs: Sequence[Output], before: Sequence[Disclosure] = ()
    ) -> list[Leak]:
        """List the leaks of a job: disclosures that it must accept by name, each of one of `leak_kinds`.

        Args:
            job: the job.
            shape: the shape of the run.
            outputs: the outputs of the run.
            before: disclosures of earlier jobs about the same tables.

        Returns:
            The family's leaks in addition to those that follow from outputs of any family
            (`securevfl.families.run_outputs.run_leaks`).
        """
        return []

    @abstractmethod
    def message_protocols(self, job: O, roles: Roles) -> list[MessageProtocol]:
        """List the message protocols of a run that the audit can check one by one."""

    @abstractmethod
    def title(self, job: O, roles: Roles) -> str:
        """Return a title that names the protocols of a run in a few words."""

    def cost_label(self, job: O, contributors: int) -> str:
        """Return the protocols' label in a cost table; `contributors` is the number of parties that send to sums."""
        return job.protocol.label(contributors)

    @abstractmethod
    def strength(self, job: O) -> str:
        """Return the security assumption and the key strength in one line."""

    def opened_values(self, job: O, facts: RunFacts) -> str:
        """Return one line about the values that a run decrypts in addition to its outputs; empty if none."""
        return ""

    def plan(self, job: O, schedule: Schedule, shape: RunShape) -> Any:
        """Compute what a training needs to know in advance from public sizes; None for a family without a plan.

        Args:
            job: the job.
            schedule: which rows are in which batch.
            shape: the shape of the run.

        Returns:
            The plan, which the family alone reads (`TrainingData.plan`).
        """
        return None

    def resource_estimates(self, job: O, facts: RunFacts) -> list[str]:
        """Return lines about the time and memory that a run needs, or why it would be refused; empty if unknown."""
        return []

    @abstractmethod
    def statements(self, job: O, roles: Roles, party: str, facts: RunFacts | None) -> list[SheetStatement]:
        """State in words what a party "learns" from its messages, and what it "keeps" after the run.

        Args:
            job: the job.
            roles: the roles of the run.
            party: the party whose consent sheet contains the statements.
            facts: the facts of the run; without them, formulas take the place of numbers.

        Returns:
            Words of the consent sheet, each with a text.
        """

    @abstractmethod
    def coalitions(self, job: O, roles: Roles) -> str:
        """State which smallest groups of parties could together learn more than is declared."""

    @abstractmethod
    def participant(self, job: O, context: PartyContext, columns: int, state: State | None) -> Participant:
        """Create the participant of one party. All parties do so at the same point: protocols may exchange keys.

        Args:
            job: the job.
            context: the context of the party.
            columns: d, number of columns of the party.
            state: the state to resume from, or the model state to predict with; None to start a training.

        Returns:
            The participant.
        """

    def drawn_secrets(self, state: State) -> State | None:
        """Return the random values that a participant drew before its training began; None if it draws none.

        Args:
            state: the state of the participant.

        Returns:
            The random values, or None if there are none.
        """
        return None

    def final_weights(self, job: O, state: State, parties: int) -> Floats:
        """Return the weights (d, c) that a party has stored after the training.

        Args:
            job: the job.
            state: the model state of the party.
            parties: number of parties.

        Returns:
            The weights; an array (0, 1) for a party without weights.
        """
        return state.get("theta", np.zeros((0, 1)))

    @abstractmethod
    def ideal_job(self, job: J) -> J:
        """Return a job for the same training without encryption; the audit computes declared outputs with it."""

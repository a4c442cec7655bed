"""What a family of training is: a method makes a player for each party, and a player trains, predicts and is kept.

A `Family` knows everything that is special about its family: which models and roles fit, what its messages reveal, what
a whole run adds up to, what that means in words. A session (`securevfl.training.session`) drives any player in the same
way:

    meet, check, count, make the player
    for round in player.train(data, start):      evaluate, keep, report, stop in between
    keep player.outcome()

so that nothing outside a method's own files, the registry `FAMILIES` and its tests names it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.config import NamedOption, mismatched_fields
from securevfl.base.roles import ACTIVE, PASSIVE, Role, Roles
from securevfl.data.party import Party
from securevfl.disclosure.column_leaks import COLUMNS, column_leaks
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.disclosure.gradient_leaks import FRESH_EQUATIONS, LABEL_AUC, RANK, equation_leaks, label_auc_leaks
from securevfl.disclosure.leaks import Leak, LeakKind
from securevfl.disclosure.sum_leaks import SEQUENTIAL, SINGLE_PASSIVE, sequential, single_passive
from securevfl.errors import PartiesError
from securevfl.families.participant import Participant
from securevfl.families.run_facts import RunFacts
from securevfl.families.state import State
from securevfl.models.base import Model
from securevfl.models.rounding_error import SumRounding
from securevfl.optim.optimizer import Training
from securevfl.options import JobOptions
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import ResidualProtocol
from securevfl.protocols.sums.base import SumProtocol

MessageProtocol = SumProtocol | ResidualProtocol
SheetStatement = tuple[str, str]  # a word of the consent sheet, such as "learns", and a text of one line or more
J = TypeVar("J", bound=JobOptions)
O = TypeVar("O", bound=JobOptions)  # of one method: those that it has checked to be of its kinds


class Family(NamedOption, ABC, Generic[O]):
    """A family of training: what parties exchange, what that tells, and how one of them plays.

    options: JobOptions with what its jobs hold in narrower types, which `fits` makes sure of.
    most: how many parties it is made for, if it is not for any number. weighs: whether rows may count differently
    (`securevfl.models.row_weights`). bins: whether classes in bins can be told by its residual
    (`securevfl.data.woe`).
    stores: whether local predictions lie at a server (`securevfl.families.fdml.stored_sum`). single: whether outputs
    and residuals can go in single precision. helpers: the parties without a table that its examples are run with, by
    name and role. brings: models and optimizers that are registered with it. replayed: whether its messages tell
    nothing but declared outputs, so that the audit compares a run with one of made-up tables. repeats: whether all that
    a party tells of new rows follows from its part of the model and its columns of them, whatever others send, so that
    the same rows asked again tell nothing more. accounts: whether it says itself which of the rows asked about get a
    score (`securevfl.protocols.party_context.LocalResources.charge_scores`), row by row. leak_kinds: which leaks its
    jobs may have and accept by
    name; it adds its own to these.
    """

    options: ClassVar[type[JobOptions]] = JobOptions
    max_parties: ClassVar[int | None] = None
    supports_row_weights: ClassVar[bool] = False
    supports_evidence: ClassVar[bool] = False
    uses_stored_sums: ClassVar[bool] = False
    supports_single_precision: ClassVar[bool] = False
    example_helpers: ClassVar[tuple[tuple[str, Role], ...]] = ()
    components: ClassVar[tuple[type[Model] | type[Training], ...]] = ()
    reveals_only_outputs: ClassVar[bool] = False
    repeatable_scores: ClassVar[bool] = False
    admits_rows_itself: ClassVar[bool] = False
    leak_kinds: ClassVar[tuple[LeakKind, ...]] = (RANK, FRESH_EQUATIONS, SINGLE_PASSIVE, LABEL_AUC, COLUMNS, SEQUENTIAL)

    def supports_model(self, model: type[Model]) -> bool:
        """Whether it can train this kind of model: here whether its `options` have room for it."""
        kind: Any = self.options.model_fields["model"].annotation
        return issubclass(model, kind)

    @abstractmethod
    def check_job(self, job: JobOptions) -> None:
        """ValueError, with the remedy, if the options do not go together."""

    def check_types(self, job: JobOptions) -> None:
        """ValueError if the options hold something else than `options` says."""
        if found := list(mismatched_fields(job, self.options)):
            raise ValueError(f"{', '.join(found)}: {self.name} trains nothing of this kind; choose another")

    def role_of(self, party: Party) -> Role:
        """Return this party's role in a run: the one it names itself, or else active if it has labels and passive if
        not."""
        return party.role or (ACTIVE if party.active else PASSIVE)

    def accepts_role(self, role: Role, *, leads: bool) -> bool:
        """Whether there is a place for a party of this role, first among all or not."""
        return role == (ACTIVE if leads else PASSIVE)

    def assign_roles(self, parties: Sequence[Party]) -> Roles:
        """Assign these parties their roles, the leading one first. Raises PartiesError if they make no run of this
        method."""
        if self.max_parties is not None and len(parties) > self.max_parties:
            raise PartiesError(
                f"at most {self.max_parties} parties were expected for {self.name}, {len(parties)} came; "
                "leave out others"
            )
        roles = Roles.of((party.name, self.role_of(party)) for party in parties)
        wrong = [name for k, (name, role) in enumerate(roles.cast) if not self.accepts_role(role, leads=k == 0)]
        if wrong:
            labelled = ", ".join(party.name for party in parties if party.active) or "none"
            if labelled != roles.lead:
                raise PartiesError(
                    f"exactly one party with labels was expected, with labels: {labelled}; pass y to one Party only"
                )
            found = ", ".join(f"{name} ({roles.role(name)})" for name in wrong)
            raise PartiesError(f"{self.name} has no place for {found}; leave them out")
        return roles

    def complete_roles(self, job: O, roles: Roles, columns: Mapping[str, int]) -> Roles:
        """Complete the roles once it is known how many columns each party has (d_k; empty where that is not known).

        PartiesError if the job asks for parties that are not there.
        """
        return roles

    def score_requester(self, job: O, lead: str) -> str:
        """Who is told f of new rows; `lead` is the party that leads."""
        return lead

    def score_bits(self, job: O, sizes: RunShape | None = None) -> int:
        """How many bits each score of a new row has as it is told, as far as sizes are known; 0 where none is."""
        return 64

    def column_clip(self, job: O) -> float | None:
        """Return where scaled columns are cut off, and rounded, before weights meet them; None if they are not."""
        return None

    def sum_rounding(self, job: O, rows: int, parties: int) -> SumRounding | None:
        """Return how a training on so many rows rounds the sums f at random; None if it does not, or if coefficients
        are not read with standard errors."""
        return None

    @abstractmethod
    def example_jobs(self) -> dict[str, dict[str, Any]]:
        """Return the options of small jobs (model, optimizer, protocol), by name; checks run each of them to the end,
        and the docs refer to them."""

    @abstractmethod
    def declarations(self, job: O, roles: Roles) -> list[MessageDeclaration]:
        """Declare what every message of a run reveals, apart from those of the handshake."""

    @abstractmethod
    def disclosures(self, job: O, sizes: RunShape) -> list[Disclosure]:
        """Count what all the messages of a whole run disclose together."""

    def leaks(self, job: O, sizes: RunShape, before: Sequence[Disclosure] = ()) -> list[Leak]:
        """List what a job gives away beyond the declaration of its messages, each of one of `leak_kinds`: here what
        follows from its counts and its sum, to which a method adds its own.

        `before` is what earlier jobs have disclosed about the same tables.
        """
        counts = self.disclosures(job, sizes)
        return [
            *single_passive(job, sizes),
            *equation_leaks(job, counts, sizes, before),
            *label_auc_leaks(job, counts, sizes, before),
            *column_leaks(job, counts, sizes, before),
            *sequential(job, sizes),
        ]

    @abstractmethod
    def message_protocols(self, job: O, roles: Roles) -> list[MessageProtocol]:
        """List the message protocols that a run is made of; each can be audited alone."""

    @abstractmethod
    def title(self, job: O, roles: Roles) -> str:
        """How parties exchange, in a few words."""

    def cost_label(self, job: O, contributors: int) -> str:
        """Name the protocols of a job, for a cost table, with this many contributors."""
        return job.protocol.label(contributors)

    @abstractmethod
    def strength(self, job: O) -> str:
        """Assumption and key strength of what is encrypted, one line for people."""

    def opened_values(self, job: O, sizes: RunShape) -> str:
        """Describe in one line what is opened in a run beside what it should tell; empty where nothing is."""
        return ""

    def resource_estimates(self, job: O, known: RunFacts) -> list[str]:
        """Describe in lines what a run takes of its parties, or why it would be refused; empty where nobody can
        say."""
        return []

    @abstractmethod
    def statements(self, job: O, roles: Roles, party: str, known: RunFacts | None) -> list[SheetStatement]:
        """Describe in words what a party `learns` from what it receives and what it `keeps`; formulas stand in for
        numbers without `known`."""

    @abstractmethod
    def coalitions(self, job: O, roles: Roles) -> str:
        """Who must pool what they hold to learn more than is declared."""

    @abstractmethod
    def participant(self, job: O, context: PartyContext, columns: int, state: State | None) -> Participant:
        """One party at its context, with so many columns (d); going on from a state, or to predict with a model.

        All parties make theirs at the same point: protocols may exchange keys.
        """

    def drawn_secrets(self, state: State) -> State | None:
        """Return, from the state that a player keeps, what it had drawn at random for itself by the time it began; None
        if it draws nothing."""
        return None

    def final_weights(self, job: O, state: State, parties: int) -> Floats:
        """Return what a party of a run of `parties` parties has of its own weights (d x c) at the end; an array (0 x 1)
        without any."""
        return state.get("theta", np.zeros((0, 1)))

    @abstractmethod
    def ideal_job(self, job: J) -> J:
        """Return a job for the same training with nothing hidden or encrypted, from which the declared outputs are
        computed."""

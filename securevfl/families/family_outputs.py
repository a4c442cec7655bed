"""What the messages and the runs of a protocol family disclose, as data (outputs) and in words.

A protocol family is one way to train a model together. An output is a set of numbers that a run discloses to a party
(`securevfl.disclosure.outputs`). A leak is a disclosure that a job must accept by name, because it may reveal labels or
columns. People of a party accept a consent sheet before a run; it states the disclosures to each party. The audit runs
a job on test data and compares received values with declared ones. A party's ledger records the disclosures of all its
jobs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic

from securevfl.base.roles import Roles
from securevfl.disclosure.column_leaks import COLUMN_RECOVERY
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.disclosure.gradient_leaks import FRESH_EQUATIONS, LABEL_AUC, RANK
from securevfl.disclosure.leaks import Leak, LeakKind
from securevfl.disclosure.outputs import Output
from securevfl.disclosure.sum_leaks import SEQUENTIAL, SINGLE_PASSIVE
from securevfl.families.facts import RunFacts
from securevfl.families.family_types import J, MessageProtocol, O, SheetStatement
from securevfl.protocols.declarations import MessageDeclaration


class FamilyOutputs(ABC, Generic[O]):
    """What the messages and the runs of a family disclose.

    Attributes:
        uses_stored_sums: whether a server stores local predictions (`securevfl.families.fdml.stored_sum`).
        reveals_only_outputs: whether messages reveal nothing but declared outputs. The audit then compares a run with
            one on simulated tables.
        leak_kinds: the leaks that a job of this protocol family may have, and may accept by name.
    """

    uses_stored_sums: ClassVar[bool] = False
    reveals_only_outputs: ClassVar[bool] = False
    leak_kinds: ClassVar[tuple[LeakKind, ...]] = (
        RANK,
        FRESH_EQUATIONS,
        SINGLE_PASSIVE,
        LABEL_AUC,
        COLUMN_RECOVERY,
        SEQUENTIAL,
    )

    @abstractmethod
    def declarations(self, job: O, roles: Roles) -> list[MessageDeclaration]:
        """Declare what each message of a run reveals; handshakes are declared elsewhere."""

    @abstractmethod
    def outputs(self, job: O, shape: RunShape) -> list[Output]:
        """List what a complete run discloses to each party; everything that counts disclosures reads this list."""

    def leaks(
        self, job: O, shape: RunShape, outputs: Sequence[Output], before: Sequence[Disclosure] = ()
    ) -> list[Leak]:
        """List the leaks of a job. The kind of each is one of `leak_kinds`.

        More disclosures in `before` must never remove a leak: the ledger admits a job without an exact search if it
        may run after more disclosures than have really been made.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).
            shape: public sizes of the run: numbers of rows, batches, model outputs and columns of each party.
            outputs: the values that the run discloses: which party receives which numbers, how often.
            before: disclosures of earlier jobs about the same tables.

        Returns:
            The leaks of this protocol family, in addition to those that follow from the outputs of any job
            (`securevfl.families.run_outputs.run_leaks`).
        """
        return []

    def statements(self, job: O, roles: Roles, party: str, facts: RunFacts | None) -> list[SheetStatement]:
        """Return statements for a party's consent sheet, in addition to its table of outputs; by default none.

        Each statement has a word that determines its place in the sheet, such as "learns" for values that the party can
        compute from its messages, "keeps" for values that it has after the run, and "later" for scores of new rows.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).
            roles: the role of each party in the run, such as active or passive.
            party: the party whose consent sheet contains the statements.
            facts: the facts of the run; without them, formulas take the place of numbers.

        Returns:
            Words of the consent sheet, each with a text.
        """
        return []

    def gain_of_deviation(self, job: O, roles: Roles, party: str, facts: RunFacts) -> str:
        """Return what a party could learn at most from its outputs if it breaks the protocol; by default no statement.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).
            roles: the role of each party in the run, such as active or passive.
            party: the party that breaks the protocol.
            facts: the facts known before the run.

        Returns:
            The text for the consent sheet; empty if the family states no maximum.
        """
        return ""

    @abstractmethod
    def coalitions(self, job: O, roles: Roles) -> str:
        """Return one line for the consent sheet: which groups of parties together could learn more than declared."""

    def common_statements(self, job: O, roles: Roles, facts: RunFacts | None) -> dict[str, str]:
        """Return the statements that the consent sheets of all parties have in common; by default none.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).
            roles: the role of each party in the run, such as active or passive.
            facts: the facts of the run; without them, there is no statement on numbers of values.

        Returns:
            Texts by word: "shares" explains secret shares, "openings" states how many values a run decrypts or opens,
            "steps" how scores of new rows are rounded, and "nobody" names values that no party learns.
        """
        return {}

    @abstractmethod
    def message_protocols(self, job: O, roles: Roles) -> list[MessageProtocol]:
        """List the message protocols of a run, such as its sum protocol, that the audit can check separately."""

    @abstractmethod
    def ideal_job(self, job: J) -> J:
        """Return a job for the same training without encryption, so that the audit can compute the declared outputs."""

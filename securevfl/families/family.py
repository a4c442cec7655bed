"""The interface of a protocol family: one way to train, with its rules, disclosures and participants.

A *disclosure* is a value that a party learns about another party's data; a *leak* is a disclosure that a job must
accept by name. A family creates one `Participant` for each party, and a session (`securevfl.training.session`) runs it:

    all parties agree on the job; check and count its disclosures; create the participant
    for round in participant.train(data, start):      evaluate, store states, report; a run may stop between rounds
    store participant.model_state()

A `Family` joins four interfaces: rules of a job (`job_rules`), outputs (`family_outputs`), training (`family_training`)
and prediction (`family_prediction`). Only its own files, its tests and the registry `FAMILIES` mention it by name.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic

from securevfl.base.config import NamedOption, mismatched_fields
from securevfl.base.roles import ACTIVE, PASSIVE, Role, Roles
from securevfl.data.party import Party
from securevfl.errors import PartiesError
from securevfl.families.family_outputs import FamilyOutputs
from securevfl.families.family_prediction import FamilyPrediction
from securevfl.families.family_training import FamilyTraining
from securevfl.families.family_types import O
from securevfl.families.job_rules import JobRules
from securevfl.options import JobOptions


class FamilyJob(JobOptions, defer_build=True):
    """The options of a job that knows its protocol family. `securevfl.job.Job` is the only subclass."""

    @property
    @abstractmethod
    def family(self) -> Family[Any]:
        """The protocol family that trains this job."""


class Family(NamedOption, JobRules[O], FamilyOutputs[O], FamilyTraining[O], FamilyPrediction[O], Generic[O]):
    """A protocol family: one way to train a model together.

    Subclasses implement the four interfaces; the methods of this class are the same for all.
    """

    def check_types(self, job: JobOptions) -> None:
        """Check that the job's options have the types that this family requires (its attribute `options`).

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).

        Raises:
            ValueError: if a field of the job has another type.
        """
        if fields := list(mismatched_fields(job, self.options)):
            raise ValueError(f"{', '.join(fields)}: {self.name} does not support this value; choose another one")

    def role_of(self, party: Party) -> Role:
        """Return the role that the party has set (`Party.role`); otherwise active if it has labels, else passive."""
        return party.role or (ACTIVE if party.active else PASSIVE)

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

"""Rules of a protocol family (a way to train a model together): which jobs, models and parties fit it.

The leading party has the labels. A helper is a party without a table. The contributors of a sum are the parties whose
outputs it adds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic

from securevfl.base.roles import ACTIVE, PASSIVE, Role, Roles
from securevfl.families.family_types import O
from securevfl.models.base import Model
from securevfl.optim.optimizer import Training
from securevfl.options import JobOptions


class JobRules(ABC, Generic[O]):
    """The rules of a protocol family: which models, options and parties it supports, and the titles of its jobs.

    Attributes:
        options: the type of this protocol family's job options; its fields have narrower types than `JobOptions`.
        max_parties: maximum number of parties; None for no limit.
        trains_pairs: whether it trains models with products of two parties' components.
        supports_row_weights: whether rows may have weights (`securevfl.models.row_weights`).
        supports_evidence: whether parties without labels can obtain the class counts of their bins, for weights of
            evidence (`securevfl.data.woe`).
        supports_single_precision: whether outputs and residuals may be sent in single precision.
        example_helpers: names and roles of the parties without a table in the example jobs.
        components: models and optimizers that are registered with the protocol family.
    """

    options: ClassVar[type[JobOptions]] = JobOptions
    max_parties: ClassVar[int | None] = None
    trains_pairs: ClassVar[bool] = False
    supports_row_weights: ClassVar[bool] = False
    supports_evidence: ClassVar[bool] = False
    supports_single_precision: ClassVar[bool] = False
    example_helpers: ClassVar[tuple[tuple[str, Role], ...]] = ()
    components: ClassVar[tuple[type[Model] | type[Training], ...]] = ()

    def supports_model(self, model: type[Model]) -> bool:
        """Whether this protocol family can train this kind of model; by default, if the type of `options` allows it."""
        kind: Any = self.options.model_fields["model"].annotation
        return issubclass(model, kind)

    @abstractmethod
    def check_job(self, job: JobOptions) -> None:
        """Raise ValueError, with a remedy, if two options of the job contradict each other."""

    def check_extras(self, job: O) -> None:
        """Raise ConfigError if a run of the job needs an optional library that is not installed here."""

    def accepts_role(self, role: Role, *, leads: bool) -> bool:
        """Whether a party of this role can take part, as the leading party if `leads`, else as another one."""
        return role == (ACTIVE if leads else PASSIVE)

    def complete_roles(self, job: O, roles: Roles, columns: Mapping[str, int]) -> Roles:
        """Complete the roles once columns are known; raise PartiesError if a required party is absent.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).
            roles: the roles that the parties have by their tables and labels.
            columns: d_k, number of columns of each party; empty if unknown.

        Returns:
            The completed roles.
        """
        return roles

    @abstractmethod
    def example_jobs(self) -> dict[str, dict[str, Any]]:
        """Return the options of small example jobs by name. The audit's checks run them, and the docs refer to them."""

    @abstractmethod
    def title(self, job: O, roles: Roles) -> str:
        """Return a title that names the protocols of a run in a few words."""

    @abstractmethod
    def strength(self, job: O) -> str:
        """Return the security assumption and the key strength in one line."""

    def cost_label(self, job: O, contributors: int) -> str:
        """Return the protocols' label in a cost table; `contributors` is the number of parties that send to sums."""
        return job.protocol.label(contributors)

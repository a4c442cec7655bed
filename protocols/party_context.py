"""A party's context at a protocol: its channel, the roles that all have, and what was agreed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from securevfl.base.roles import ACTIVE, COLLECTOR, CONTRIBUTOR, PASSIVE, Roles
from securevfl.protocols.number_spaces import DOUBLES, Reals
from securevfl.runtime.channel import Channel
from securevfl.runtime.meter import Meter


@dataclass(frozen=True)
class LocalResources:
    """What a party has at hand beside its channel: what it keeps of its own, and for whom it sits there.

    run: names the training, the same at all its parties and in all sessions. ahead: a folder for work that is done
    ahead of it; chunks: the file of the names of what is spent of such work. scores: the file of what it has let others
    score. together: the tables of all are in this one process, so that nobody is told anything. account: is told how
    many rows of a block get a score, and how many this party refuses, before it lets either out. reserved: the
    measurements of this training are in the file of scores already.
    """

    run: str = ""
    preprocessing: Path | None = None
    spent_chunks: Path | None = None
    score_ledger: Path | None = None
    simulated: bool = False
    charge_scores: Callable[[int, int], None] = lambda scored, refused: None
    evaluations_reserved: bool = False


@dataclass(frozen=True)
class PartyContext:
    """One party's place in a run or in a protocol: its line, who plays which part, what is agreed.

    A party may hold several seats over one channel, each with a cast and a subchannel of its own.
    noise: the secret key of what this party blurs in this training, a fresh one if empty; `released` residuals went
    before this run of it. model: the module of its own that this party brings, if any. parameters: p_k of every passive
    party, by which a sealed residual limits what is opened. columns: d_k of every party that has any, if known. reals:
    what outputs that are summed up and residuals in the clear are carried as.
    """

    channel: Channel
    roles: Roles
    meter: Meter
    outputs: int = 1
    residual_bound: float = 1.0
    parameters: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    subchannel: str = ""
    noise_key: bytes = field(default=b"", repr=False)
    residuals_sent: int = 0
    columns: Mapping[str, int] = field(default_factory=dict)
    resources: LocalResources = LocalResources()
    model: object = field(default=None, repr=False)
    reals: Reals = DOUBLES

    @cached_property
    def me(self) -> str:
        return self.channel.me

    @cached_property
    def parties(self) -> tuple[str, ...]:
        """Everyone, in the order of the cast."""
        return self.roles.parties

    @cached_property
    def active(self) -> str:
        """The name of the one party that has the labels."""
        return self.roles.only(ACTIVE)

    @cached_property
    def passives(self) -> tuple[str, ...]:
        """The names of the parties that have columns alone."""
        return self.roles.with_role(PASSIVE)

    @cached_property
    def collector(self) -> str:
        """The name of the party that a sum is for."""
        return self.roles.only(COLLECTOR)

    @cached_property
    def contributors(self) -> tuple[str, ...]:
        """Whose parts are in a sum."""
        return self.roles.with_role(CONTRIBUTOR)

    def sum_to(
        self, collector: str, contributors: Sequence[str] = (), *, subchannel: str | None = None
    ) -> PartyContext:
        """Return this party's context at a sum for `collector` of the parts of `contributors`, or of everybody else."""
        cast = Roles.sum(collector, contributors or self.roles.others(collector))
        return replace(self, roles=cast, subchannel=self.subchannel if subchannel is None else subchannel)

"""One party's view of a protocol run: its channel, the roles of all parties, and what the parties agreed on."""

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
    """Files, callbacks and the trust setting of one party in a run.

    Attributes:
        run: name of the training, the same at all parties and in all sessions.
        preprocessing: folder for precomputed material of the offline phase.
        spent_chunks: file with the names of precomputed chunks that were used.
        score_ledger: file of the rows that this party has let others score.
        simulated: all tables are in this one process, so nothing is disclosed to anybody.
        charge_scores: receives, before a block of scores is sent, the number of rows that are scored and the number
            that this party refuses.
        evaluations_reserved: the score ledger already contains the evaluations of this training.
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
    """One party's view of a protocol run.

    A party may have several contexts with one channel, each with its roles and its subchannel.

    Attributes:
        channel: the party's channel.
        roles: the roles of all parties.
        meter: measures operations of encryption schemes.
        outputs: c, the number of model outputs per row.
        residual_bound: largest absolute value of a residual.
        parameters: p_k of every passive party; a sealed residual limits what it decrypts by them.
        seed: public seed of the run.
        subchannel: the channel's subchannel for this protocol.
        noise_key: secret key of the noise that this party adds to residuals in this training; empty for a fresh key.
        residuals_sent: number of residuals that earlier sessions of this training have sent.
        columns: d_k of every party that has columns, if known.
        resources: files and callbacks of this party.
        model: the network module of this party, if it has one.
        reals: number format of summed outputs and of residuals in the clear.
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
        """Name of this party."""
        return self.channel.me

    @cached_property
    def parties(self) -> tuple[str, ...]:
        """Names of all parties, in the order of the roles."""
        return self.roles.parties

    @cached_property
    def active(self) -> str:
        """Name of the one party that has labels."""
        return self.roles.only(ACTIVE)

    @cached_property
    def passives(self) -> tuple[str, ...]:
        """Names of the parties that have only columns."""
        return self.roles.with_role(PASSIVE)

    @cached_property
    def collector(self) -> str:
        """Name of the party that receives a sum."""
        return self.roles.only(COLLECTOR)

    @cached_property
    def contributors(self) -> tuple[str, ...]:
        """Names of the parties whose values are added in a sum."""
        return self.roles.with_role(CONTRIBUTOR)

    def sum_to(
        self, collector: str, contributors: Sequence[str] = (), *, subchannel: str | None = None
    ) -> PartyContext:
        """Return this party's context of a sum.

        Args:
            collector: the party that receives the sum.
            contributors: the parties whose values are added; all others if empty.
            subchannel: subchannel of the sum; None for this context's.

        Returns:
            The context.
        """
        roles = Roles.sum(collector, contributors or self.roles.others(collector))
        return replace(self, roles=roles, subchannel=self.subchannel if subchannel is None else subchannel)

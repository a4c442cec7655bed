"""One party's view of a protocol run: its channel, the roles of all parties, and the agreed sizes.

A party is one organisation that takes part in a training. It sends messages to the others through its channel, which
has named subchannels. A role ("active", "passive", "collector", "contributor") is the part that a party plays in one
protocol. The active party has the labels. Passive parties have only columns. Contributors hold the summands of a sum,
and the collector receives it. A party's account is a file in which it records its disclosures. Its score ledger, a part
of the account, records the scores and the evaluations of its rows; an evaluation computes metrics of a model on a set
of rows.
"""

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
    """Files and callbacks that one party's computer provides to a run, and whether the run is a simulation.

    Attributes:
        run: name of the training, the same at all parties, also after an interruption.
        preprocessing: folder for random numbers that a training on secret shares generates in advance.
        account: file of this party's account. It lists the used files of `preprocessing`, because each may be used only
            once, and the rows of this party whose scores others have received.
        simulated: whether the tables of all parties are in this one process, so that nothing is disclosed to anybody.
        charge_scores: function that is called before a block of scores is sent, with the number of rows that will be
            scored and the number of rows that this party refuses to have scored.
        use_reserved_evaluation: a search over several trainings has all its evaluations counted in the score ledger at
            its start, and sets this function. It is called before each evaluation, and raises LeakageError if none of
            them is left. None if each evaluation is counted when it takes place.
    """

    run: str = ""
    preprocessing: Path | None = None
    account: Path | None = None
    simulated: bool = False
    charge_scores: Callable[[int, int], None] = lambda scored, refused: None
    use_reserved_evaluation: Callable[[], None] | None = None


@dataclass(frozen=True)
class PartyContext:
    """One party's view of a protocol run.

    A party may use several contexts with the same channel, for example one for sums and one for residuals. Each has its
    roles and its subchannel.

    Attributes:
        channel: the party's channel.
        roles: the roles of all parties.
        meter: measures the time of encryptions, decryptions and other operations on ciphertexts.
        outputs: number of model outputs per row: 1, or one for each class.
        residual_bound: largest absolute value of a residual, which is the derivative of a row's loss by its output.
        parameters: number of model parameters of every passive party, by its name. If residuals are encrypted, the
            active party decrypts at most this many values of a gradient.
        seed: public seed of the run.
        subchannel: name of the subchannel that this protocol uses.
        noise_key: secret key of the noise that this party adds to residuals in this training; empty for a fresh key.
        residuals_sent: number of residuals that this training sent before it was interrupted and resumed.
        columns: number of columns of every party that has columns, by its name; empty if unknown.
        resources: files and callbacks of this party's computer.
        model: the neural network of this party, if it has one.
        reals: format in which model outputs and unencrypted residuals are sent.
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
    def without_labels(self) -> tuple[str, ...]:
        """Names of all parties except the active one: the partner and the passive parties."""
        return tuple(name for name in self.parties if name != self.active)

    @cached_property
    def passives(self) -> tuple[str, ...]:
        """Names of the parties that have only columns."""
        return self.roles.with_role(PASSIVE)

    @cached_property
    def collector(self) -> str:
        """Name of the party that receives the sum."""
        return self.roles.only(COLLECTOR)

    @cached_property
    def contributors(self) -> tuple[str, ...]:
        """Names of the parties whose values are summed."""
        return self.roles.with_role(CONTRIBUTOR)

    def sum_to(
        self, collector: str, contributors: Sequence[str] = (), *, subchannel: str | None = None
    ) -> PartyContext:
        """Return a context in which this party takes part in a sum.

        Args:
            collector: the party that receives the sum.
            contributors: the parties whose values are added; all parties except the collector if empty.
            subchannel: name of the subchannel for the sum; None for the subchannel of this context.

        Returns:
            A copy of this context with the roles of a sum.
        """
        roles = Roles.sum(collector, contributors or self.roles.others(collector))
        return replace(self, roles=roles, subchannel=self.subchannel if subchannel is None else subchannel)

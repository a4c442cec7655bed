"""A party's seat at a protocol: its channel, the roles that all have, and what was agreed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from securevfl.base.roles import ACTIVE, COLLECTOR, CONTRIBUTOR, LEAD, PASSIVE, Roles
from securevfl.protocols.declared import DOUBLES, Declared, Reals, Reveal, sizes
from securevfl.runtime.channel import Abort, Channel, Telling
from securevfl.runtime.executor import Meter


@dataclass(frozen=True)
class Desk:
    """What a party has at hand beside its channel: what it keeps of its own, and for whom it sits there.

    run: names the training, the same at all its parties and in all sessions. ahead: a folder for work that is done
    ahead of it; chunks: the file of the names of what is spent of such work. scores: the file of what it has let others
    score. together: the tables of all are in this one process, so that nobody is told anything. account: is told how
    many rows of a block get a score, and how many this party refuses, before it lets either out. reserved: the
    measurements of this training are in the file of scores already.
    """

    run: str = ""
    ahead: Path | None = None
    chunks: Path | None = None
    scores: Path | None = None
    together: bool = False
    account: Callable[[int, int], None] = lambda scored, refused: None
    reserved: bool = False


@dataclass(frozen=True)
class Seat:
    """One party's place in a run or in a protocol: its line, who plays which part, what is agreed.

    A party may hold several seats over one channel, each with a cast and a lane of its own.
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
    lane: str = ""
    noise: bytes = field(default=b"", repr=False)
    released: int = 0
    columns: Mapping[str, int] = field(default_factory=dict)
    desk: Desk = Desk()
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
        return self.roles.the(ACTIVE)

    @cached_property
    def passives(self) -> tuple[str, ...]:
        """The names of the parties that have columns alone."""
        return self.roles.having(PASSIVE)

    @cached_property
    def collector(self) -> str:
        """The name of the party that a sum is for."""
        return self.roles.the(COLLECTOR)

    @cached_property
    def contributors(self) -> tuple[str, ...]:
        """Whose parts are in a sum."""
        return self.roles.having(CONTRIBUTOR)

    def sum_to(self, collector: str, contributors: Sequence[str] = (), *, lane: str | None = None) -> Seat:
        """Return this party's seat at a sum for `collector` of the parts of `contributors`, or of everybody else."""
        cast = Roles.sum(collector, contributors or self.roles.others(collector))
        return replace(self, roles=cast, lane=self.lane if lane is None else lane)


# How every run begins and how it stops early: parties say who they are, and the leading one whether to go on.
#
# 1. all <-> all      Meeting    digest of the job, role, rows, columns, parameters, outputs, keyed digest of the
#                                row order, what is saved of which training, a name of its columns' content that its own
#                                ledger gives
# 2. lead -> all      Verdict    after a joint evaluation: stop, go on or turn back, and whether the model is the best
#                                so far
#
# What stands in a Meeting is no one's secret: sizes, and digests that are keyed or of what all parties have agreed on.


_SIZES = (
    "digests of the job and, keyed by the session, of the row order; role; numbers of rows, columns, parameters, "
    "outputs and saved rounds; whether its columns are those of its earlier jobs"
)
_VERDICT = "whether the training is to stop or to turn back, and whether its model is the best so far"
_STOPPED = "that the sender has stopped, and which of a few codes fits the error"


class Meeting(Telling, frozen=True):
    """What a party says of itself before anything else. parameters: of a module of its own; 0 where they follow from
    its columns. saved, run: its states are of these rounds of this training.

    content: the same in two jobs if its columns are the same, by its own ledger, and else random; empty without a
    ledger.
    """

    job: bytes
    role: str
    rows: int
    columns: int
    parameters: int
    outputs: int
    order: bytes
    saved: tuple[int, ...]
    run: str
    content: str


class Verdict(Telling, frozen=True):
    """Whether the training stops here, as the target is reached or patience is at its end, whether no evaluation
    before was better, and whether the training has lost its way: it then goes on from the best model by half the
    step."""

    stop: bool
    best: bool
    back: bool


def meet(channel: Channel, parties: Iterable[str], own: Meeting) -> dict[str, Meeting]:
    """Exchange what every party says of itself, and return it by name, in the order of `parties`."""
    peers = [name for name in parties if name != channel.me]
    for peer in peers:
        channel.send(peer, own, told=sizes(channel, peer))  # 1
    heard = {peer: channel.recv(peer, Meeting) for peer in peers}  # 1
    return {name: heard.get(name, own) for name in parties}


def declares(roles: Roles) -> list[Declared]:
    """Declare what these messages reveal, and `Abort`, which any party may send at any time."""
    rest = dict.fromkeys(roles.role(name) for name in roles.others(roles.lead))
    return [
        *(Declared(Meeting, sender, receiver, Reveal("plain", _SIZES)) for sender, receiver in roles.pairs()),
        *(Declared(Verdict, LEAD, role, Reveal("plain", _VERDICT)) for role in rest),
        *(Declared(Abort, sender, receiver, Reveal("plain", _STOPPED)) for sender, receiver in roles.pairs()),
    ]

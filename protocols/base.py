"""What every protocol is made of: a seat at the table, sums, residuals, and what each message reveals.

A round is a forward sum and a residual (design: FedBCD 2019, Algorithm 1). A `SumProtocol` says how the H_k (n x c)
go up, a `ResidualProtocol` how g = df/dH (n x c) goes down; any of the one goes with any of the other.
Both are options (frozen, named) that make one role object for each party.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from securevfl.config import Named
from securevfl.crypto.scheme import Floats
from securevfl.errors import PeerLost
from securevfl.protocols.differentiable import Differentiable
from securevfl.roles import ACTIVE, COLLECTOR, CONTRIBUTOR, PASSIVE, Role, Roles
from securevfl.runtime.channel import Channel
from securevfl.runtime.codec import Message
from securevfl.runtime.meter import Meter

Phases = NDArray[np.uint32]


@dataclass(frozen=True)
class Reals:
    """Sums of real vectors, |v| <= bound. Where they are masked they are fixed point in Z_2^64."""

    bound: float = 2.0**12


@dataclass(frozen=True)
class Circle:
    """Sums of phases in Z_2^bits = [0, 2 pi); carried as uint32."""

    bits: Literal[16, 32] = 32


Space = Reals | Circle
KindOfSpace: TypeAlias = "type[Reals] | type[Circle]"


@dataclass(frozen=True)
class Desk:
    """What a party has at hand beside its channel: what it keeps of its own, and for whom it sits there.

    run: names the training, the same at all its parties and in all sessions. ahead: a folder for work that is done
    ahead of it. scores: the file of what it has let others score.
    """

    run: str = ""
    ahead: Path | None = None
    scores: Path | None = None


@dataclass(frozen=True)
class Seat:
    """One party's place in a run or in a protocol: its line, who plays which part, what is agreed.

    A party may hold several seats over one channel, each with a cast and a lane of its own.
    noise: the secret key of what this party blurs in this training, a fresh one if empty; `released` residuals went
    before this run of it. model: the module of its own that this party brings, if any. parameters: p_k of every passive
    party, by which a sealed residual limits what is opened. columns: d_k of every party that has any, if known.
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

    @property
    def me(self) -> str:
        return self.channel.me

    @property
    def parties(self) -> tuple[str, ...]:
        """Everyone, in the order of the cast."""
        return self.roles.parties

    @property
    def active(self) -> str:
        """The one party with labels."""
        return self.roles.the(ACTIVE)

    @property
    def passives(self) -> tuple[str, ...]:
        """The parties with columns alone."""
        return self.roles.having(PASSIVE)

    @property
    def collector(self) -> str:
        """Whom a sum is for."""
        return self.roles.the(COLLECTOR)

    @property
    def contributors(self) -> tuple[str, ...]:
        """Whose parts are in a sum."""
        return self.roles.having(CONTRIBUTOR)

    def sum_to(self, collector: str, contributors: Sequence[str] = (), *, lane: str | None = None) -> Seat:
        """This party's seat at a sum for `collector` of the parts of `contributors`, or of everybody else."""
        cast = Roles.sum(collector, contributors or self.roles.others(collector))
        return replace(self, roles=cast, lane=self.lane if lane is None else lane)


@dataclass(frozen=True)
class Reveal:
    """What a received message tells its receiver.

    `public`      nothing that is anyone's own
    `uniform`     random bits, whatever the data
    `ciphertext`  nothing without the key of `what`
    `output`      what the protocol is there to tell
    `plain`       `what`, in the clear
    """

    kind: Literal["public", "uniform", "ciphertext", "output", "plain"]
    what: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}" if self.what else self.kind


@dataclass(frozen=True)
class Declared:
    """One kind of message: who sends it to whom, and what the receiver learns from it.

    space: the kind of numbers it is sent with, where a protocol has another message for another kind. structured: its
    bytes are short pieces with a form of their own (points, sealed boxes, shares), neither an engine's format nor words
    of a ring. relays: it passes on bytes of others. renewed: a key that is sent anew every epoch if the engine asks.
    """

    message: type[Message]
    sender: Role
    receiver: Role
    reveals: Reveal
    space: KindOfSpace | None = None
    structured: bool = False
    relays: bool = False
    renewed: bool = False


def recast(
    declared: Iterable[Declared], cast: Mapping[Role, Sequence[Role]], *, space: KindOfSpace | None = None
) -> list[Declared]:
    """Declarations of a protocol in the roles of a run, each once. `cast`: which roles of the run play each part.

    With a `space` those are left out that are sent with other numbers alone. What names a key names its holder anew.
    """
    found: list[Declared] = []
    for item in declared:
        if space is not None and item.space not in (None, space):
            continue
        reveals = item.reveals
        if reveals.kind == "ciphertext" and reveals.what in cast:
            reveals = Reveal("ciphertext", " or ".join(cast[reveals.what]))
        senders, receivers = cast.get(item.sender, (item.sender,)), cast.get(item.receiver, (item.receiver,))
        found += [
            replace(item, sender=sender, receiver=receiver, reveals=reveals)
            for sender in senders
            for receiver in receivers
        ]
    return list(dict.fromkeys(found))


TOTAL = Reveal("output", "the sum of the parts; of a linear model these span their columns over a run")


@dataclass(frozen=True)
class Coalition:
    """The fewest parties that learn a part by pooling what they hold: `members`, and any `further` of `among`."""

    members: frozenset[str]
    among: frozenset[str] = frozenset()
    further: int = 0

    @property
    def size(self) -> int:
        return len(self.members) + self.further

    def __str__(self) -> str:
        names = sorted(self.members)
        if self.further:
            names.append(f"any {self.further} of {', '.join(sorted(self.among))}")
        *some, last = names
        return f"{', '.join(some)} and {last}" if some else last


class SumRole(ABC):
    """One party's side of a sum, good for the whole run."""

    @abstractmethod
    def contribute(self, values: Floats | Phases, space: Space) -> None:
        """Adds this party's part (any shape; the same at every party)."""

    @abstractmethod
    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        """The sum of all other parties' parts; only for the party the sum is for."""

    @property
    def dropped(self) -> tuple[str, ...]:
        """Who is missing from the last sum, where the protocol lets one finish without everyone."""
        return ()

    def collect_all(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        """`collect` for a model, which is another one without a party's columns: PeerLost if somebody has dropped."""
        total = self.collect(shape, space)
        if self.dropped:
            raise PeerLost(f"a sum of all parties was expected, {', '.join(self.dropped)} dropped out of it")
        return total


class MessageProtocol(Named, ABC):
    """What a job can name and an audit can hold to its word, whatever it does."""

    @classmethod
    def variants(cls) -> dict[str, Self]:
        """One of each kind that others see differently, by the name that checks and documents give it."""
        return {cls.name: cls()}

    @property
    def quick(self) -> Self:
        """The same with the smallest keys that are allowed, for tests."""
        return self

    @property
    def encrypts(self) -> bool:
        """Whether it works on ciphertexts, so that a round takes long."""
        return False

    @property
    def pooled(self) -> bool:
        """Whether its calls take so long that a pool of processes gains."""
        return False

    @property
    @abstractmethod
    def strength(self) -> str:
        """Assumption and key strength, one line for people."""


class SumProtocol(MessageProtocol):
    """How the parts go up."""

    @property
    def strength(self) -> str:
        return "see its docstring"

    @abstractmethod
    def role(self, seat: Seat) -> SumRole:
        """This party's side; exchanges keys if the protocol has any. All parties call it at the same point."""

    @abstractmethod
    def declares(self, contributors: Sequence[str]) -> list[Declared]:
        """What each message reveals when these parties contribute, in the roles of a sum."""

    @abstractmethod
    def coalitions(self, parties: Sequence[str]) -> dict[str, Coalition]:
        """Who must collude: for each contributor the fewest others that learn its part. `parties`: collector first.

        Exact for parties that follow the protocol: a set of others learns the part if and only if it holds such a
        coalition, or is everybody else (who are left with the part when they take theirs off the sum).
        """

    def coalition(self, contributors: Sequence[str], collector: str = "the active party") -> str:
        """The weakest of `coalitions`, as one line for people. It speaks of the messages of one sum."""
        found = self.coalitions((collector, *contributors))
        name, fewest = min(found.items(), key=lambda item: item[1].size)
        if fewest.size == 1:
            return f"{fewest} learns the part of {name}"
        return f"{fewest} together learn the part of {name}; fewer than {fewest.size} learn nobody's"

    @property
    def hides_parts(self) -> bool:
        """Whether the active party is kept from seeing single parts (given two or more)."""
        return True


@dataclass(frozen=True)
class Batch:
    """One party's side of a batch: `index` names it in the partition, X (n x d), targets y (n x c) or None."""

    index: int
    epoch: int
    X: Floats
    y: Floats | None = None


@dataclass(frozen=True)
class Agreement:
    """What the parties of a residual protocol agree on beforehand; an optimizer and a model make it.

    openings: gradients that a passive party may have opened for one exchange: one where J does not move, as many as
    local steps where it does. kept: how many exchanges a passive party may hold replies of at a time; a newer one
    than these closes the oldest. shares_outputs: of which kind the passive parties' Jacobians are (`Jacobian`), and so
    whether g (n x c) goes down as it is or as n c rows of one output.
    """

    openings: int = 1
    kept: int = 1
    shares_outputs: bool = True


class Reply(ABC):
    """A residual as a passive party holds it. May be kept, and asked later and again, from any thread of the party.

    `exchange` numbers the residuals of a run, from 0.
    """

    exchange: int

    @abstractmethod
    def gradient(self, model: Differentiable, batch: Batch) -> Floats:
        """J^T g in the shape of the model's parameters, summed over the rows of the batch.

        LimitError where more is asked than was agreed.
        """

    def repeat(self) -> None:  # noqa: B027
        """Asks for what it asked last and drops the answer, so that messages do not tell that this party needed none.
        It spends what `gradient` would, without a product."""

    def close(self) -> None:  # noqa: B027
        """Gives the reply up before a newer one does: nothing more will be asked of it."""


class ActiveResidual(ABC):
    """The side that computes g. What passive parties ask about it is served beside the thread that publishes."""

    @abstractmethod
    def publish(self, g: Floats, *, epoch: int, to: Collection[str], again: int | None = None) -> None:
        """Sends g (n x c) down to these parties: a new one, or release `again` (from 0) of this training, under the
        noise that it had."""

    def close(self) -> None:  # noqa: B027
        """Returns when the passive parties have asked all they wanted; raises what went wrong in serving them."""


class PassiveResidual(ABC):
    """The side that needs J^T g."""

    @abstractmethod
    def reply(self) -> Reply:
        """The next residual that the active party publishes."""

    def close(self) -> None:  # noqa: B027
        """Tells the active party that nothing more will be asked."""


class ResidualProtocol(MessageProtocol):
    """How g goes down."""

    @abstractmethod
    def active(self, seat: Seat, agreement: Agreement) -> ActiveResidual:
        """The active party's side."""

    @abstractmethod
    def passive(self, seat: Seat, agreement: Agreement) -> PassiveResidual:
        """A passive party's side."""

    @abstractmethod
    def declares(self) -> list[Declared]:
        """What each message reveals."""

    @property
    def label(self) -> str:
        """Its name in a cost table."""
        return self.name

    def openings(self, values: int, epochs: int) -> str:
        """What openings, `values` in each epoch, tell beside gradients, as a line for people; empty without any."""
        return ""

    @property
    def seals(self) -> bool:
        """Whether passive parties are kept from seeing g."""
        return False

    @property
    def shows(self) -> str:
        """What a passive party learns, in a few words."""
        return "its own gradient J^T g" if self.seals else "g of every row of every batch"

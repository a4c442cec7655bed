"""What every protocol is made of: a seat at the table, sums, residuals, and what each message reveals.

A round is a forward sum and a residual (design: FedBCD 2019, Algorithm 1). A `SumProtocol` says how the H_k (n x c)
go up, a `ResidualProtocol` how g = df/dH (n x c) goes down; any of the one goes with any of the other.
Both are options (frozen, named) that make one role object for each party.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from securevfl.channel import Channel
from securevfl.codec import Message
from securevfl.config import Named
from securevfl.costs import Meter
from securevfl.crypto.scheme import Floats
from securevfl.errors import PeerLost

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


@dataclass(frozen=True)
class Seat:
    """One party's place in a run: who it is, who the others are, what is agreed.

    A party may hold several seats over one channel, each with another party as the active one and a lane of its own.
    `openings` and `widths` say what a passive party may have opened of a sealed residual: how many times, and J^T g for
    how many columns of J.
    """

    channel: Channel
    active: str
    passives: tuple[str, ...]
    meter: Meter
    outputs: int = 1
    residual_bound: float = 1.0
    openings: Mapping[str, int] = field(default_factory=dict)
    widths: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    lane: str = ""

    @property
    def me(self) -> str:
        return self.channel.me

    @property
    def parties(self) -> tuple[str, ...]:
        """Everyone, the active party first."""
        return (self.active, *self.passives)


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

    `phases`: it is sent only where phases of a kernel model are summed.
    """

    message: type[Message]
    sender: str
    receiver: str
    reveals: Reveal
    phases: bool = False


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


class SumProtocol(Named, ABC):
    """How the parts go up."""

    @abstractmethod
    def role(self, seat: Seat) -> SumRole:
        """This party's side; exchanges keys if the protocol has any. All parties call it at the same point."""

    @abstractmethod
    def declares(self, passives: Sequence[str]) -> list[Declared]:
        """What each message reveals when these passive parties take part."""

    @abstractmethod
    def coalitions(self, parties: Sequence[str]) -> dict[str, Coalition]:
        """Who must collude: for each passive party the fewest others that learn its part. `parties`: active first.

        Exact for parties that follow the protocol: a set of others learns the part if and only if it holds such a
        coalition, or is everybody else (who are left with the part when they take theirs off the sum).
        """

    def coalition(self, passives: Sequence[str]) -> str:
        """The weakest of `coalitions`, as one line for people."""
        found = self.coalitions(("the active party", *passives))
        name, fewest = min(found.items(), key=lambda item: item[1].size)
        if fewest.size == 1:
            return f"{fewest} learns the part of {name}"
        return f"{fewest} together learn the part of {name}; fewer than {fewest.size} learn nobody's"

    @property
    def hides_parts(self) -> bool:
        """Whether the active party is kept from seeing single parts (given two or more)."""
        return True


class Differentiable(Protocol):
    """What a residual protocol needs of a model: J^T g in the clear, or J itself."""

    static_jacobian: bool

    def vjp(self, X: Floats, g: Floats) -> Floats:
        """J^T g (d x c) for plain g (n x c)."""

    def jacobian(self, X: Floats) -> Floats:
        """J (n x d)."""


@dataclass(frozen=True)
class Batch:
    """One party's side of a batch: `index` names it in the partition, X (n x d), targets y (n x c) or None."""

    index: int
    epoch: int
    X: Floats
    y: Floats | None = None


class Reply(ABC):
    """A residual as a passive party holds it. May be kept and asked again."""

    @abstractmethod
    def gradient(self, model: Differentiable, batch: Batch) -> Floats:
        """J^T g (d x c), summed over the rows of the batch."""


class ActiveResidual(ABC):
    """The side that computes g."""

    @abstractmethod
    def publish(self, g: Floats, *, epoch: int, to: Collection[str]) -> None:
        """Sends g (n x c) down to these parties."""

    @abstractmethod
    def settle(self) -> None:
        """Serves what the passive parties still have to ask about the residuals published so far."""


class PassiveResidual(ABC):
    """The side that needs J^T g."""

    @abstractmethod
    def reply(self, *, epoch: int) -> Reply:
        """The next residual that the active party publishes."""


class ResidualProtocol(Named, ABC):
    """How g goes down."""

    @abstractmethod
    def active(self, seat: Seat) -> ActiveResidual:
        """The active party's side."""

    @abstractmethod
    def passive(self, seat: Seat) -> PassiveResidual:
        """A passive party's side."""

    @abstractmethod
    def declares(self) -> list[Declared]:
        """What each message reveals."""

    @property
    @abstractmethod
    def strength(self) -> str:
        """Assumption and key strength, one line for people."""

    def openings(self, values: int, epochs: int) -> str:
        """What openings, `values` in each epoch, tell beside gradients, as a line for people; empty without any."""
        return ""

    @property
    def seals(self) -> bool:
        """Whether passive parties are kept from seeing g."""
        return False

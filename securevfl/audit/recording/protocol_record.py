"""Inputs and outputs of the sums and residuals of a run, which no message shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import Roles
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.differentiable import Jacobian
from securevfl.protocols.number_spaces import Space

COLLECTS = "A"  # the party that collects, and publishes residuals, where one protocol runs alone


class LearnedGradient(NamedTuple):
    """A gradient that a passive party learned of an exchange on a subchannel: J^T g for this J."""

    subchannel: str
    exchange: int
    J: Jacobian
    gradient: Floats


class SumSession(NamedTuple):
    """A sum's seat as its parties took it: its subchannel, who plays which part, and what its messages reveal."""

    subchannel: str
    roles: Roles
    declared: list[MessageDeclaration]

    def carries(self, subchannel: str, *names: str) -> bool:
        """Whether a subchannel is its own, or one below, and these are of its parties."""
        return (subchannel == self.subchannel or subchannel.startswith(f"{self.subchannel}/")) and set(names) <= set(
            self.roles.parties
        )


@dataclass
class SumRecord:
    """What went into the sums of one collector, by party, and what it collected, in order."""

    parts: dict[str, list[NDArray[Any]]] = field(default_factory=lambda: defaultdict(list))
    spaces: list[Space] = field(default_factory=list)
    totals: list[NDArray[Any]] = field(default_factory=list)


@dataclass
class ProtocolRecord:
    """What went in and came out, by party, in order. residuals: g as it goes down, after a defence; clear: before.

    sums, casts: by collector, of whom there are several where several parties hold labels. before: how many residuals
    went before the first one on a subchannel.
    """

    sums: dict[str, SumRecord] = field(default_factory=dict)
    casts: dict[str, SumSession] = field(default_factory=dict)
    residuals: dict[str, list[tuple[Floats, tuple[str, ...]]]] = field(default_factory=lambda: defaultdict(list))
    clear: dict[str, list[Floats]] = field(default_factory=lambda: defaultdict(list))
    gradients: dict[str, list[LearnedGradient]] = field(default_factory=lambda: defaultdict(list))
    sessions: set[bytes] = field(default_factory=set)
    epochs: set[int] = field(default_factory=set)
    before: dict[str, int] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, list[NDArray[Any]]]:
        """What each party has put into anyone's sums."""
        every: dict[str, list[NDArray[Any]]] = defaultdict(list)
        for summed in self.sums.values():
            for name, parts in summed.parts.items():
                every[name] += parts
        return every

    @property
    def spaces(self) -> list[Space]:
        """The spaces of numbers in which all sums of the run were computed."""
        return [space for summed in self.sums.values() for space in summed.spaces]

    def blurred(self, name: str) -> Callable[[Floats], None]:
        """Return a function that notes what a defence has made of the g that this party has just published."""

        def note(g: Floats) -> None:
            clear, to = self.residuals[name][-1]
            self.clear[name].append(clear)
            self.residuals[name][-1] = g, to

        return note

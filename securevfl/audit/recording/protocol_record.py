"""Inputs and outputs of the sums and residual protocols of a run, which are not visible in its messages.

A sum adds the parties' outputs, its summands, for one of them, the collector. In a residual protocol the party with
labels publishes residuals g (n, c), the derivatives of the loss by the outputs. A passive party, which has no labels,
learns the gradient J^T g, where J is the derivative of its outputs by its weights. A protocol sends its messages on a
subchannel. An exchange is one published residual with all requests about it; each subchannel counts exchanges from 0. A
defence changes residuals before they are published.
"""

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

COLLECTS = "A"
"""Name of the party that collects sums and publishes residuals when one protocol runs alone."""


class LearnedGradient(NamedTuple):
    """A gradient J^T g that a passive party learned, with the subchannel and the number of the exchange."""

    subchannel: str
    exchange: int
    J: Jacobian
    gradient: Floats


class SumSession(NamedTuple):
    """The subchannel of a sum, the roles of its parties, and the declaration of its messages."""

    subchannel: str
    roles: Roles
    declared: list[MessageDeclaration]

    def carries(self, subchannel: str, *names: str) -> bool:
        """Return True if a subchannel belongs to this sum and all named parties take part in the sum."""
        below = subchannel == self.subchannel or subchannel.startswith(f"{self.subchannel}/")
        return below and set(names) <= set(self.roles.parties)


@dataclass
class SumRecord:
    """All sums of one collector, in order: the summands of each party, the number spaces, and the totals."""

    parts: dict[str, list[NDArray[Any]]] = field(default_factory=lambda: defaultdict(list))
    spaces: list[Space] = field(default_factory=list)
    totals: list[NDArray[Any]] = field(default_factory=list)


@dataclass
class ProtocolRecord:
    """Inputs and outputs of the protocols of a run, by party and in order.

    Attributes:
        sums: the sums of each collector. There are several collectors if several parties have labels.
        sum_sessions: the session of each collector's sums.
        residuals: each residual as it was published, after the defence, with the receiving parties; by publisher.
        undefended: each residual before the defence; by publisher.
        gradients: gradients that each passive party learned.
        sessions: identifiers of the sessions.
        epochs: epochs in which residuals were published.
        first_exchange: for each subchannel, the index of its exchange 0 in the publisher's list of `residuals`.
    """

    sums: dict[str, SumRecord] = field(default_factory=dict)
    sum_sessions: dict[str, SumSession] = field(default_factory=dict)
    residuals: dict[str, list[tuple[Floats, tuple[str, ...]]]] = field(default_factory=lambda: defaultdict(list))
    undefended: dict[str, list[Floats]] = field(default_factory=lambda: defaultdict(list))
    gradients: dict[str, list[LearnedGradient]] = field(default_factory=lambda: defaultdict(list))
    sessions: set[bytes] = field(default_factory=set)
    epochs: set[int] = field(default_factory=set)
    first_exchange: dict[str, int] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, list[NDArray[Any]]]:
        """The summands of each party in the sums of all collectors."""
        parts_of: dict[str, list[NDArray[Any]]] = defaultdict(list)
        for record in self.sums.values():
            for name, parts in record.parts.items():
                parts_of[name] += parts
        return parts_of

    @property
    def spaces(self) -> list[Space]:
        """The numbers (reals, or integers modulo 2^b) in which each sum of the run was computed."""
        return [space for record in self.sums.values() for space in record.spaces]

    def defence_recorder(self, name: str) -> Callable[[Floats], None]:
        """Return a function that a defence calls with each residual g that it has changed.

        The function stores g in place of the latest residual of `name`, which it moves to `undefended`.
        """

        def note(g: Floats) -> None:
            undefended, receivers = self.residuals[name][-1]
            self.undefended[name].append(undefended)
            self.residuals[name][-1] = g, receivers

        return note

"""How the parts of a sum go up (n x c each), and who must collude to learn one.

A round is a forward sum and a residual (design: FedBCD 2019, Algorithm 1). A `SumProtocol` says how the H_k go up;
it goes with any residual. It is an option (frozen, named) that makes one role object for each party.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.message_protocol import MessageProtocol
from securevfl.protocols.number_spaces import Circle, Phases, Space
from securevfl.protocols.party_context import PartyContext
from securevfl.runtime.disclosure_gate import DisclosurePermit, DisclosureRecord

TOTAL = Reveal("output", "the sum of the parts; of a linear model these span their columns over a run")


class SumRole:
    """One party's side of a sum, good for the whole run."""

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        """Contribute this party's part (any shape; the same at every party)."""
        raise ProtocolError("the party that a sum is for collects; it adds its own part in the clear")

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        """Return the sum of all other parties' parts; only for the party the sum is for."""
        raise ProtocolError("only the party that a sum is for collects it")


class SumProtocol(MessageProtocol):
    """A protocol by which the parties' parts are added up for one of them."""

    @property
    def strength(self) -> str:
        return "see its docstring"

    @abstractmethod
    def role(self, context: PartyContext) -> SumRole:
        """Create this party's side, exchanging keys if the protocol has any. All parties call it at the same point."""

    @abstractmethod
    def declares(self, contributors: Sequence[str]) -> list[MessageDeclaration]:
        """Declare what each message reveals when these parties contribute, in the roles of a sum."""

    @abstractmethod
    def coalitions(self, parties: Sequence[str]) -> dict[str, frozenset[str]]:
        """Who must collude: for each contributor the fewest others that learn its part. `parties`: collector first.

        Exact for parties that follow the protocol: a set of others learns the part if and only if it holds such a
        coalition, or is everybody else (who are left with the part when they take theirs off the sum).
        """

    def coalition(self, contributors: Sequence[str], collector: str = "the active party") -> str:
        """Describe the weakest of `coalitions` in one line for people. It speaks of the messages of one sum."""
        name, fewest = min(self.coalitions((collector, *contributors)).items(), key=lambda item: len(item[1]))
        *some, last = sorted(fewest)
        if not some:
            return f"{last} learns the part of {name}"
        return (
            f"{', '.join(some)} and {last} together learn the part of {name}; fewer than {len(fewest)} learn nobody's"
        )

    @property
    def hides_parts(self) -> bool:
        """Whether the active party is kept from seeing single parts (given two or more)."""
        return True


def part_of_sum(
    context: PartyContext, values: Floats | Phases, space: Space, about: Sequence[str] = (), *, max_bytes: int = 0
) -> DisclosurePermit:
    """Enters this party's part of a sum as told to the collector. about: whose columns the sum is of, all
    contributors' by default, as where it hides who gave what. octets: of a message in which it is sealed.
    """
    circle = isinstance(space, Circle)
    return context.channel.permit(
        DisclosureRecord(
            context.collector,
            "phases" if circle else "columns",
            values.size,
            space.bits,
            tuple(about) or context.contributors,
            max_bytes=max_bytes,
        )
    )


def check_shape(sender: str, values: NDArray[Any], shape: tuple[int, ...]) -> None:
    """ProtocolError unless the part has the agreed shape and is finite."""
    if values.shape != shape:
        raise ProtocolError(f"{sender} was expected to send a part of shape {shape}, {values.shape} came")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ProtocolError(f"{sender} sent a part with NaN or infinite values; lower its step size")

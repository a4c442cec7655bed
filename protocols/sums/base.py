"""Interface of sum protocols: one party, the collector, learns the sum of the other parties' arrays.

In a training round, every contributor has the forward outputs of its model part for n rows and c outputs, an array (n,
c) that is called its summand. The collector, normally the party with labels, learns the sum. It then sends a residual
back (FedBCD 2019, Algorithm 1). A `SumProtocol` can be combined with any residual protocol. It is an immutable option
of a job that creates one role object for each party. A *space* is the kind of the numbers: real numbers up to a bound,
or phases (angles). A *permit* states what a message discloses; without it, the channel does not send the message.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.message_protocol import MessageProtocol
from securevfl.protocols.number_spaces import Circle, Phases, Space
from securevfl.protocols.party_context import PartyContext
from securevfl.runtime.disclosure_gate import DisclosurePermit, DisclosureRecord

TOTAL = Reveal("output", "the sum of the summands; with a linear model, the sums of a run span the parties' columns")


class SumRole:
    """One party's role in a sum protocol, collector or contributor, for all sums of a run."""

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        """Contribute this party's summand to the next sum; all summands of a sum have the same shape."""
        raise ProtocolError(
            "the collector of a sum cannot contribute", "add its values to the collected sum", code="SVFL-STATE"
        )

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        """Return the sum of all contributors' summands. Only the collector may call this."""
        raise ProtocolError("only the collector of a sum can collect it", code="SVFL-STATE")


class SumProtocol(MessageProtocol):
    """A protocol that adds the contributors' summands for one collector.

    Attributes:
        min_contributors: the smallest number of contributors with which it runs.
        is_recorder: whether this is an audit's wrapper around the sum protocol of a job, and not chosen by a user.
    """

    min_contributors: ClassVar[int] = 1
    is_recorder: ClassVar[bool] = False

    @property
    def strength(self) -> str:
        """The cryptographic assumption and the key length, as one line of text."""
        return "see its docstring"

    @abstractmethod
    def role(self, context: PartyContext) -> SumRole:
        """Create this party's role, and exchange keys if needed. All parties call this at the same point of a run."""

    @abstractmethod
    def declares(self, contributors: Sequence[str]) -> list[MessageDeclaration]:
        """Declare sender, receiver and disclosure of each message in a sum of these contributors."""

    @abstractmethod
    def coalitions(self, parties: Sequence[str]) -> dict[str, frozenset[str]]:
        """Return for each contributor the smallest set of other parties that learns its summand by colluding.

        The result is exact for parties that follow the protocol. A set of other parties learns the summand if and only
        if it contains this coalition, or if it consists of all other parties, who can subtract their summands from the
        sum.

        Args:
            parties: the collector, followed by the contributors.

        Returns:
            The coalition for each contributor, by its name.
        """

    def coalition(self, contributors: Sequence[str], collector: str = "the active party") -> str:
        """Describe the smallest of all `coalitions` in one line of text, for one single sum."""
        name, members = min(self.coalitions((collector, *contributors)).items(), key=lambda item: len(item[1]))
        *others, last = sorted(members)
        if not others:
            return f"{last} learns the outputs of {name} alone, without pooling"
        return (
            f"{', '.join(others)} and {last} together learn the outputs of {name}; fewer than {len(members)} parties "
            "learn no party's outputs"
        )

    @property
    def hides_parts(self) -> bool:
        """Whether the collector sees no single summand, if there are two or more."""
        return True


def permit_summand(
    context: PartyContext, values: Floats | Phases, space: Space, about: Sequence[str] = (), *, max_bytes: int = 0
) -> DisclosurePermit:
    """Record that the collector learns this party's summand as part of a sum, and return the permit to send it.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        values: this party's summand (n, c), or phases.
        space: the kind of numbers in the sum.
        about: the parties whose columns the disclosed numbers are about; all contributors by default, because a sum
            does not reveal which of them contributed which value.
        max_bytes: largest size of the message in bytes if the summand is encrypted.

    Returns:
        The permit to send the summand.
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
    """Raise ProtocolError unless a received summand has the agreed shape and is finite."""
    if values.shape != shape:
        raise ProtocolError(
            f"{sender} sent outputs of shape {values.shape} instead of {shape}",
            code="SVFL-PROTOCOL-SIZE",
            party=sender,
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ProtocolError(
            f"{sender} sent outputs that are NaN or infinite",
            "lower its step size",
            code="SVFL-PROTOCOL-VALUES",
            party=sender,
        )

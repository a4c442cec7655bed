"""Direct sum: every contributor sends its outputs to the collector in the clear (FedBCD 2019, Algorithm 1).

H_k (n, c) are the forward outputs of contributor k for n rows and c model outputs. In a linear model, H_k = X_k @
theta_k, with d_k columns X_k and the weights theta_k.

1. contributor k -> collector   H_k     in the clear
   collector                    adds all H_k

The collector learns each H_k. Because theta_k changes from round to round, the outputs of at most d_k rounds span the
columns X_k. Columns with few distinct values can then be reconstructed, and a few known rows determine all others. This
is the leak `columns`; `securevfl.disclosure.column_recovery` computes the number of rounds. Contributors learn nothing.
H_k is the summand of contributor k.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import COLLECTOR, CONTRIBUTOR
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.number_spaces import Circle, Phases, Reals, Space
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums.base import SumProtocol, SumRole, check_shape, permit_summand
from securevfl.runtime.codec import Numbers, check_bits, to_wire_floats
from securevfl.runtime.disclosure_gate import DisclosingMessage


class Summand(DisclosingMessage, frozen=True):
    """One party's forward outputs H_k (n, c) in the clear."""

    values: Numbers


class PhaseSummand(DisclosingMessage, frozen=True):
    """One party's phases in the clear: angles of random Fourier features, as integers of 16 or 32 bits."""

    values: NDArray[np.uint32 | np.uint16]


class DirectSum(SumProtocol):
    """A sum of summands in the clear: the fastest protocol, which shows the collector each summand."""

    name: ClassVar[str] = "direct"

    def role(self, context: PartyContext) -> SumRole:
        """Create this party's role; see `SumProtocol.role`."""
        return DirectSumRole(context)

    def declares(self, contributors: Sequence[str]) -> list[MessageDeclaration]:
        """Declare sender, receiver and disclosure of each message; see `SumProtocol.declares`."""
        outputs = Reveal(
            "plain", "the sender's forward outputs H_k on the requested rows; the outputs of a run span its columns"
        )
        phases = Reveal("plain", "the sender's phases w^T x_k")
        return [
            MessageDeclaration(Summand, CONTRIBUTOR, COLLECTOR, outputs, space=Reals),
            MessageDeclaration(PhaseSummand, CONTRIBUTOR, COLLECTOR, phases, space=Circle),
        ]

    def coalitions(self, parties: Sequence[str]) -> dict[str, frozenset[str]]:
        """Return, for every contributor, the collector alone; see `SumProtocol.coalitions`."""
        return {passive: frozenset(parties[:1]) for passive in parties[1:]}

    @property
    def strength(self) -> str:
        """One line of text for documents: nothing is encrypted, so there is no cryptographic strength."""
        return "none: outputs are sent in the clear"

    @property
    def hides_parts(self) -> bool:
        """Whether the collector sees no single summand: always False, because all summands are sent in the clear."""
        return False


class DirectSumRole(SumRole):
    """The role of the collector or of a contributor in a direct sum."""

    def __init__(self, context: PartyContext) -> None:
        self._context = context

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        """Contribute this party's summand; see `SumRole.contribute`."""
        if isinstance(space, Reals):
            message: Summand | PhaseSummand = Summand(to_wire_floats(values, space.bits))
        else:
            message = PhaseSummand(values.astype(np.uint16 if space.bits == 16 else np.uint32))
        permit = permit_summand(self._context, values, space, (self._context.me,))
        self._context.channel.send(self._context.collector, message, self._context.subchannel, permit=permit)  # step 1

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        """Return the sum; see `SumRole.collect`."""
        kind: type[Summand] | type[PhaseSummand] = Summand if isinstance(space, Reals) else PhaseSummand
        total: NDArray[Any] = np.zeros(shape, np.float64 if isinstance(space, Reals) else np.uint32)
        for passive in self._context.contributors:
            values = self._context.channel.recv(passive, kind, self._context.subchannel).values  # step 1
            check_shape(passive, values, shape)
            check_bits(passive, values, space.bits)
            total += values
        return total & np.uint32(2**space.bits - 1) if isinstance(space, Circle) else total

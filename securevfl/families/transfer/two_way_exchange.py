"""What the two parties of transfer learning send each other: a sealed vector each way, products of it, moments.

    1. each -> the other   its vector, sealed                              `TwoWayExchange.publish`
    2. each                J^T v for a matrix J of its own, opened         `TwoWayExchange.reply`
    3. each -> the other   a symmetric matrix (d x d) in the clear         `TwoWayExchange.show`, if linearised

Step 3 is Phi^T Phi of the guest's, from labels, and the mean of u^T u of the host's, from columns. One opened
gradient tells the direction of Phi almost as well, to a cosine of .99 (`tests/security/test_transfer_leaks.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import SparseRows, materialize
from securevfl.base.roles import Roles
from securevfl.errors import ProtocolError
from securevfl.families.transfer import local_quadratic, taylor
from securevfl.protocols.differentiable import Jacobian
from securevfl.protocols.link import Link
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import Agreement, Reply, ResidualProtocol
from securevfl.runtime.codec import Numbers
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord


class SecondMoments(DisclosingMessage, frozen=True):
    """The upper half of a symmetric matrix (d x d), which the other party's local steps bend by."""

    upper: Numbers


class RequestedProduct:
    """A matrix that a party asks a product with, as a residual protocol sees it: it moves with the weights."""

    static_jacobian = False
    shares_outputs = False

    def __init__(self, matrix: SparseRows) -> None:
        self._matrix = matrix

    @property
    def parameters(self) -> int:
        return self._matrix.shape[1]

    def rows(self, X: Floats) -> int:
        return len(self._matrix)

    def vjp(self, X: Floats, g: Floats) -> Floats:
        return self._matrix.backward(g)[:, 0]

    def jacobian(self, X: Floats) -> Jacobian:
        return Jacobian(materialize(self._matrix), shares_outputs=False)


class TwoWayExchange(Link):
    """Both directions between two parties: each seals a vector for the other and asks products of the other's."""

    def __init__(
        self, residual: ResidualProtocol, context: PartyContext, subchannel: str, asks: dict[str, int], openings: int
    ) -> None:
        """asks: how many numbers each party may ask for in one opening; who asks none is sent no vector."""
        (self._peer,) = (name for name in context.parties if name != context.me)
        self._context, self._subchannel = context, f"{context.subchannel}/{subchannel}/moments"
        self._sealer, self._asker = None, None
        for asker, most in asks.items():
            (sealer,) = (name for name in context.parties if name != asker)
            cast = Roles.labelled(sealer, [asker])
            tells: Literal["labels", "columns"] = "labels" if sealer == context.roles.lead else "columns"
            agreement = Agreement(openings, shares_outputs=False, subject=tells, group=context.channel.gate.group)
            own = replace(
                context,
                roles=cast,
                subchannel=f"{context.subchannel}/{subchannel}/{sealer}",
                parameters={asker: most},
                outputs=1,
            )
            if sealer == context.me:
                self._sealer = residual.active(own, agreement)
            else:
                self._asker = residual.passive(own, agreement)

    def publish(self, v: Floats, epoch: int) -> None:
        """Seals a vector (m,) for the other."""
        assert self._sealer is not None, "who publishes is asked"
        self._sealer.publish(v[:, None], epoch=epoch, to=[self._peer])

    def reply(self) -> Reply:
        """Return the vector that the other party has sealed for this one."""
        assert self._asker is not None, "who is answered asks"
        return self._asker.reply()

    def show(self, moments: Floats) -> Floats:
        """Send a symmetric matrix (d x d) of this party's in the clear, and return the other's."""
        channel, upper = self._context.channel, taylor.upper_half(moments)
        kind: Literal["labels", "columns"] = "labels" if channel.me == self._context.active else "columns"
        permit = channel.permit(DisclosureRecord(self._peer, kind, upper.size, 64, about=(channel.me,)))
        channel.send(self._peer, SecondMoments(upper), self._subchannel, permit=permit)  # 3
        other = np.asarray(channel.recv(self._peer, SecondMoments, self._subchannel).upper, np.float64)  # 3
        if other.shape != upper.shape or not np.isfinite(other).all():
            raise ProtocolError(
                f"{channel.me}: {self._peer} was expected to send {upper.size} finite moments, {other.shape} came; "
                "both sides must run the same release"
            )
        return local_quadratic.symmetric_matrix(other, len(moments))

    def close(self) -> None:
        """End the exchange in good order: tell the other party that nothing more is asked, and wait for it to say the
        same."""
        if self._asker is not None:
            self._asker.close()
        if self._sealer is not None:
            self._sealer.close()

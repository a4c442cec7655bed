"""The messages of transfer learning: an encrypted vector in each direction, products with it, and second moments.

The guest has the labels, the host has none (`securevfl.families.transfer.taylor`).

 1. each party -> the other   its vector v, encrypted                                   `TwoWayExchange.publish`
 2. each party                J^T v for its own matrix J and the other's v, decrypted   `TwoWayExchange.reply`
 3. each party -> the other   a symmetric matrix (d, d) in the clear, if networks are linearised
                                                                                 `TwoWayExchange.exchange_moments`

Comments refer to these steps by number. The matrix of step 3 is the guest's Phi^T Phi, which depends on labels, or the
host's mean of u^T u, which depends on columns. Already one decrypted gradient discloses the direction of Phi almost as
well, to a cosine of 0.99 (`tests/security/test_transfer_leaks.py`). A residual protocol
(`securevfl.protocols.residuals`) sends the vectors in place of residuals.
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
    """The upper half of a symmetric matrix (d, d) that the other party needs for the Hessian of its local steps."""

    upper: Numbers


class RequestedProduct:
    """A matrix J whose product with the other's vector is requested, as residual protocols expect it.

    Args:
        matrix: the matrix J.
    """

    static_jacobian = False
    shares_outputs = False

    def __init__(self, matrix: SparseRows) -> None:
        self._matrix = matrix

    @property
    def parameters(self) -> int:
        """Number of columns of J."""
        return self._matrix.shape[1]

    def rows(self, X: Floats) -> int:
        """Return the number of rows of J; X is ignored."""
        return len(self._matrix)

    def vjp(self, X: Floats, g: Floats) -> Floats:
        """Return J^T g; X is ignored."""
        return self._matrix.backward(g)[:, 0]

    def jacobian(self, X: Floats) -> Jacobian:
        """Return J; X is ignored."""
        return Jacobian(materialize(self._matrix), shares_outputs=False)


class TwoWayExchange(Link):
    """The exchange of two parties: each encrypts a vector and requests products with the other's vector.

    Args:
        residual: the protocol that sends encrypted vectors and decrypts products with them.
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        subchannel: the subchannel of the exchange.
        product_sizes: for each party, the number of values that it may have decrypted at a time. A party that is not
            listed requests nothing and receives no vector.
        openings: number of products with one vector that a party may have decrypted.
    """

    def __init__(
        self,
        residual: ResidualProtocol,
        context: PartyContext,
        subchannel: str,
        product_sizes: dict[str, int],
        openings: int,
    ) -> None:
        (self._peer,) = (name for name in context.parties if name != context.me)
        self._context, self._subchannel = context, f"{context.subchannel}/{subchannel}/moments"
        self._sender, self._requester = None, None
        for requester, values in product_sizes.items():
            (sender,) = (name for name in context.parties if name != requester)
            subject: Literal["labels", "columns"] = "labels" if sender == context.roles.lead else "columns"
            agreement = Agreement(openings, shares_outputs=False, subject=subject, group=context.channel.gate.group)
            direction = replace(
                context,
                roles=Roles.labelled(sender, [requester]),
                subchannel=f"{context.subchannel}/{subchannel}/{sender}",
                parameters={requester: values},
                outputs=1,
            )
            if sender == context.me:
                self._sender = residual.active(direction, agreement)
            else:
                self._requester = residual.passive(direction, agreement)

    def publish(self, v: Floats, epoch: int) -> None:
        """Send an encrypted vector (m,) to the other party."""
        assert self._sender is not None, "only a party whose peer makes requests publishes a vector"
        self._sender.publish(v[:, None], epoch=epoch, to=[self._peer])

    def reply(self) -> Reply:
        """Receive the vector that the other party has encrypted, as a reply that computes products with it."""
        assert self._requester is not None, "only a party that makes requests receives a vector"
        return self._requester.reply()

    def exchange_moments(self, moments: Floats) -> Floats:
        """Send this party's second moments in the clear, and receive the other's.

        Args:
            moments: a symmetric matrix (d, d).

        Returns:
            The symmetric matrix (d, d) of the other party.

        Raises:
            ProtocolError: if the matrix of the other party has another size or is not finite.
        """
        channel, upper = self._context.channel, taylor.upper_half(moments)
        kind: Literal["labels", "columns"] = "labels" if channel.me == self._context.active else "columns"
        permit = channel.permit(DisclosureRecord(self._peer, kind, upper.size, 64, about=(channel.me,)))
        channel.send(self._peer, SecondMoments(upper), self._subchannel, permit=permit)  # step 3
        other = np.asarray(channel.recv(self._peer, SecondMoments, self._subchannel).upper, np.float64)  # step 3
        if other.shape != upper.shape or not np.isfinite(other).all():
            raise ProtocolError(
                f"{channel.me}: {self._peer} sent second moments that are not {upper.size} finite numbers",
                "run the same version of securevfl at both parties",
                code="SVFL-PROTOCOL-VALUES",
                peer=self._peer,
            )
        return local_quadratic.symmetric_matrix(other, len(moments))

    def close(self) -> None:
        """End the exchange: send that no more requests follow, and wait for the other party's same message."""
        if self._requester is not None:
            self._requester.close()
        if self._sender is not None:
            self._sender.close()

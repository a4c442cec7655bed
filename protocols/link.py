"""The interface of an optimizer to the protocols: sums of forward outputs, and residuals.

The active and the passive links are used in lockstep: each `sum` of the active party matches one `contribute` of every
passive party, and each `publish` matches one `reply` of every receiver. A reply can be used at any time and from any
thread, within the agreed limits (`securevfl.protocols.residuals.base.Agreement`). A link is a context manager; exit it
when training ends:

    with ActiveLink(context, sums, residual) as link:
        optimizer.active(party, link)

On exit, the link waits until all requests about published residuals are served. After an error it does not wait: the
party stops, and its channel stops too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Self, TypeVar

from securevfl.base.arrays import Floats
from securevfl.protocols.message_protocol import Release
from securevfl.protocols.observations import SumFinished
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.permits import permit_stop_decision
from securevfl.protocols.residuals.base import ActiveResidual, Batch, PassiveResidual, Reply
from securevfl.protocols.sums.base import SumRole
from securevfl.runtime.background_task import BackgroundTask
from securevfl.runtime.codec import Message
from securevfl.runtime.costs import Kind

M = TypeVar("M", bound=Message)


class Link(ABC):
    """One party's link during a training. It is closed on exit unless an error has occurred."""

    @abstractmethod
    def close(self) -> None:
        """Close the link together with the other side."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or kind is GeneratorExit:  # a generator that is closed has stopped early, without an error
            self.close()


class ActiveLink(Link):
    """The active party's link to all passive parties.

    Args:
        context: the party's context.
        sums: its role in the sum protocol.
        residual: its role in the residual protocol.
    """

    def __init__(self, context: PartyContext, sums: SumRole, residual: ActiveResidual) -> None:
        self.me = context.me
        self.passives = context.passives
        self.rounds = 0  # exchanges so far
        self._channel = context.channel
        self._subchannel = context.subchannel
        self._outputs = context.outputs
        self._space = context.reals
        self._sums = sums
        self._residual: ActiveResidual = residual

    def close(self) -> None:
        """Wait until all requests of the passive parties are served."""
        self._residual.close()

    def sum(self, batch: Batch, collected: Floats | None = None) -> Floats:
        """Return sum_k H_k (n x c) of all passive parties on this batch, and count a round.

        Args:
            batch: the batch.
            collected: the sum, if `collect` has already received it.

        Returns:
            The sum.
        """
        self.rounds += 1
        return self.collect(batch) if collected is None else collected

    def collect(self, batch: Batch) -> Floats:
        """Receive the sum on a batch without counting a round; for a batch that is in flight ahead of its round."""
        self._channel.clock.offloaded(Kind.LOCAL, batch.worker_seconds)
        total: Floats = self._sums.collect((len(batch.X), self._outputs), self._space)
        self._channel.note(SumFinished(batch.index))
        return total

    def broadcast(self, message: Message, subchannel: str) -> None:
        """Send a message that an optimizer declares to all passive parties, on a separate subchannel."""
        for passive in self.passives:
            permit = permit_stop_decision(self._channel, passive)
            self._channel.send(passive, message, f"{self._subchannel}/{subchannel}", permit=permit)

    def sum_in_background(self, batch: Batch) -> BackgroundTask[Floats]:
        """Start `sum` in a background thread; only one at a time."""
        return BackgroundTask(self._channel, lambda: self.sum(batch), "exchange")

    def publish(
        self, g: Floats, batch: Batch, *, to: Collection[str] | None = None, resend_of: Release | None = None
    ) -> None:
        """Send the residual g (n x c) of a batch.

        Args:
            g: the residual.
            batch: the batch.
            to: the receivers; all passive parties if None.
            resend_of: the earlier release of this residual, if an earlier session has sent it.
        """
        self._residual.publish(g, epoch=batch.epoch, to=self.passives if to is None else to, resend_of=resend_of)


class PassiveLink(Link):
    """A passive party's link to the active party.

    Args:
        context: the party's context.
        sums: its role in the sum protocol.
        residual: its role in the residual protocol.
        sanitize: returns the outputs H (n x c) of a batch as they may be sent, for example rounded.
    """

    def __init__(
        self,
        context: PartyContext,
        sums: SumRole,
        residual: PassiveResidual,
        sanitize: Callable[[Floats, Batch], Floats] = lambda H, batch: H,
    ) -> None:
        self.me = context.me
        self.passives = context.passives
        self._sanitize = sanitize
        self._context = context
        self._sums = sums
        self._residual: PassiveResidual = residual
        self.rounds = 0  # exchanges so far

    def close(self) -> None:
        """Report to the active party that this party sends no more requests."""
        self._residual.close()

    def contribute(self, H: Floats, batch: Batch) -> None:
        """Add this party's H_k (n x c) to the sum."""
        self.rounds += 1
        self._context.channel.clock.offloaded(Kind.LOCAL, batch.worker_seconds)
        self._sums.contribute(self._sanitize(H, batch), self._context.reals)
        self._context.channel.note(SumFinished(batch.index))

    def exchange_in_background(self, H: Floats, batch: Batch) -> BackgroundTask[Reply]:
        """Start `contribute` and then `reply` in a background thread; only one at a time."""

        def exchange() -> Reply:
            self.contribute(H, batch)
            return self.reply()

        return BackgroundTask(self._context.channel, exchange, "exchange")

    def recv_broadcast(self, kind: type[M], subchannel: str) -> M:
        """Receive the next message of this class that the active party broadcasts on the subchannel."""
        return self._context.channel.recv(self._context.active, kind, f"{self._context.subchannel}/{subchannel}")

    def reply(self) -> Reply:
        """Receive the next residual that the active party publishes to this party."""
        return self._residual.reply()

"""Links: the object through which an optimizer at one party calls the protocols for sums and residuals.

For a batch of n rows, every party k computes its forward outputs H_k (n, c), where c is the number of model outputs per
row. The active party, which has the labels, receives the sum of all H_k and computes the residual g (n, c), the
derivative of each row's loss by the outputs. It publishes g, in the clear or encrypted, to the passive parties. Each of
them computes its gradient J^T g from its `Reply`; J is the derivative of its outputs by its parameters.

The active and the passive links are used in lockstep: each `sum` of the active party matches one `contribute` of every
passive party, and each `publish` matches one `reply` of every receiver. A reply can be used at any time and from any
thread, within the agreed limits (`securevfl.protocols.residuals.base.Agreement`). A link is a context manager; exit it
when training ends:

    with ActiveLink(context, sums, residual) as link:
        optimizer.active(party, link)

On exit, the link waits until the active party has answered all requests about published residuals, such as decryptions.
After an error it does not wait: the party stops, and its channel stops too.
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
    """Base class of both links, a context manager. On exit it is closed, unless an error has occurred."""

    @abstractmethod
    def close(self) -> None:
        """Tell the peers that this party has finished, or wait until they have finished."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # GeneratorExit means that the optimizer stopped early, which is no error
        if kind is None or kind is GeneratorExit:
            self.close()


class ActiveLink(Link):
    """The active party's link to all passive parties.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        sums: runs this party's side of the sum protocol.
        residual: runs this party's side of the residual protocol.
    """

    def __init__(self, context: PartyContext, sums: SumRole, residual: ActiveResidual) -> None:
        self.me = context.me
        self.passives = context.passives
        self.rounds = 0  # number of batches whose sum this party has received so far
        self._channel = context.channel
        self._subchannel = context.subchannel
        self._outputs = context.outputs
        self._space = context.reals
        self._sums = sums
        self._residual: ActiveResidual = residual

    def close(self) -> None:
        """Wait until all requests of the passive parties are answered."""
        self._residual.close()

    def sum(self, batch: Batch, collected: Floats | None = None) -> Floats:
        """Return the sum of all passive parties' outputs on this batch, and count a round.

        Args:
            batch: the batch of n rows.
            collected: the sum, if `collect` has already received it.

        Returns:
            The sum (n, c).
        """
        self.rounds += 1
        return self.collect(batch) if collected is None else collected

    def collect(self, batch: Batch) -> Floats:
        """Receive the sum on a batch without counting a round, because `sum` will count it later."""
        self._channel.clock.offloaded(Kind.LOCAL, batch.worker_seconds)
        total: Floats = self._sums.collect((len(batch.X), self._outputs), self._space)
        self._channel.note(SumFinished(batch.index))
        return total

    def broadcast(self, message: Message, subchannel: str) -> None:
        """Send a message of the optimizer to all passive parties, on a separate subchannel."""
        for passive in self.passives:
            permit = permit_stop_decision(self._channel, passive)
            self._channel.send(passive, message, f"{self._subchannel}/{subchannel}", permit=permit)

    def sum_in_background(self, batch: Batch) -> BackgroundTask[Floats]:
        """Start `sum` in a background thread. Only one such task may run at a time."""
        return BackgroundTask(self._channel, lambda: self.sum(batch), "exchange")

    def publish(
        self, g: Floats, batch: Batch, *, to: Collection[str] | None = None, resend_of: Release | None = None
    ) -> None:
        """Send the residual of a batch.

        Args:
            g: the residual (n, c) to send.
            batch: the batch of n rows.
            to: the receivers; all passive parties if None.
            resend_of: the record of this residual, if it was already sent before the training was resumed.
        """
        self._residual.publish(g, epoch=batch.epoch, to=self.passives if to is None else to, resend_of=resend_of)


class PassiveLink(Link):
    """A passive party's link to the active party.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        sums: runs this party's side of the sum protocol.
        residual: runs this party's side of the residual protocol.
        sanitize: returns the outputs H (n, c) of a batch as this party may send them, for example rounded.
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
        self.rounds = 0  # number of batches to whose sum this party has contributed so far

    def close(self) -> None:
        """Tell the active party that this party sends no more requests."""
        self._residual.close()

    def contribute(self, H: Floats, batch: Batch) -> None:
        """Add this party's forward outputs H (n, c) on a batch to the sum that the active party receives."""
        self.rounds += 1
        self._context.channel.clock.offloaded(Kind.LOCAL, batch.worker_seconds)
        self._sums.contribute(self._sanitize(H, batch), self._context.reals)
        self._context.channel.note(SumFinished(batch.index))

    def exchange_in_background(self, H: Floats, batch: Batch) -> BackgroundTask[Reply]:
        """Run `contribute` and then `reply` in a background thread. Only one such task may run at a time."""

        def exchange() -> Reply:
            self.contribute(H, batch)
            return self.reply()

        return BackgroundTask(self._context.channel, exchange, "exchange")

    def recv_broadcast(self, kind: type[M], subchannel: str) -> M:
        """Receive the next message of this class that the active party broadcasts on the subchannel."""
        return self._context.channel.recv(self._context.active, kind, f"{self._context.subchannel}/{subchannel}")

    def reply(self) -> Reply:
        """Receive the next residual that the active party publishes, as an object that computes gradients from it."""
        return self._residual.reply()

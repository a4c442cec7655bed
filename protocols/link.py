"""What an optimizer sees of the protocols: sums up, residuals down.

Active and passive links are driven in step: every `sum` of the active party meets one `contribute` of each passive
party, every `publish` one `reply` of each party it goes to. A reply may be asked at any time and from any thread, as
far as was agreed (`securevfl.protocols.residuals.base.Agreement`). A link is left, as a context, when the training is
over:

    with ActiveLink(context, sums, residual) as link:
        optimizer.active(party, link)

Leaving it waits until all that was published has been served. One that is left by an error waits for nothing: the
party stops, and its channel with it.
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
    """A context of a training: closed if that ended well or was stopped, else left as it is."""

    @abstractmethod
    def close(self) -> None:
        """Close the link in good order, together with the other side."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or kind is GeneratorExit:  # a generator that is closed has stopped early, and well
            self.close()


class ActiveLink(Link):
    """The active party's end of the link to the passive parties."""

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
        self._residual.close()

    def sum(self, batch: Batch, here: Floats | None = None) -> Floats:
        """sum_k H_k of all passive parties (n x c) on this batch; may be used as long as the optimizer likes.

        here: it, if it was taken in ahead of its round.
        """
        self.rounds += 1
        return self.ahead(batch) if here is None else here

    def ahead(self, batch: Batch) -> Floats:
        """Return the sum on the batch of a later round, whose parts are on their way."""
        self._channel.clock.offloaded(Kind.LOCAL, batch.worker_seconds)
        total: Floats = self._sums.collect((len(batch.X), self._outputs), self._space)
        self._channel.note(SumFinished(batch.index))
        return total

    def tell(self, message: Message, subchannel: str) -> None:
        """Send what an optimizer declares beside sums and residuals to all passive parties, on a subchannel of its
        own."""
        for passive in self.passives:
            permit = permit_stop_decision(self._channel, passive)
            self._channel.send(passive, message, f"{self._subchannel}/{subchannel}", permit=permit)

    def sum_in_background(self, batch: Batch) -> BackgroundTask[Floats]:
        """`sum` in a thread of its own, whose result it is; one at a time."""
        return BackgroundTask(self._channel, lambda: self.sum(batch), "exchange")

    def publish(
        self, g: Floats, batch: Batch, *, to: Collection[str] | None = None, resend_of: Release | None = None
    ) -> None:
        """Send g (n x c) of a batch to all passive parties, unless told otherwise; `again` as for residuals."""
        self._residual.publish(g, epoch=batch.epoch, to=self.passives if to is None else to, resend_of=resend_of)


class PassiveLink(Link):
    """A passive party's end of the link to the active party."""

    def __init__(
        self,
        context: PartyContext,
        sums: SumRole,
        residual: PassiveResidual,
        shown: Callable[[Floats, Batch], Floats] = lambda H, batch: H,
    ) -> None:
        """shown: H (n x c) of a batch as it may be sent."""
        self.me = context.me
        self.passives = context.passives
        self._shown = shown
        self._context = context
        self._sums = sums
        self._residual: PassiveResidual = residual
        self.rounds = 0  # exchanges so far

    def close(self) -> None:
        self._residual.close()

    def contribute(self, H: Floats, batch: Batch) -> None:
        """Send this party's H_k (n x c) to the sum."""
        self.rounds += 1
        self._context.channel.clock.offloaded(Kind.LOCAL, batch.worker_seconds)
        self._sums.contribute(self._shown(H, batch), self._context.reals)
        self._context.channel.note(SumFinished(batch.index))

    def exchange_in_background(self, H: Floats, batch: Batch) -> BackgroundTask[Reply]:
        """`contribute` and then `reply` in a thread of its own, whose result that is; one at a time."""

        def exchange() -> Reply:
            self.contribute(H, batch)
            return self.reply()

        return BackgroundTask(self._context.channel, exchange, "exchange")

    def told(self, kind: type[M], subchannel: str) -> M:
        """Receive the next message of this kind that the active party sends on the subchannel."""
        return self._context.channel.recv(self._context.active, kind, f"{self._context.subchannel}/{subchannel}")

    def reply(self) -> Reply:
        """Receive the next residual that the active party publishes to this party."""
        return self._residual.reply()

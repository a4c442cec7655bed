"""What an optimizer sees of the protocols: sums up, residuals down.

Active and passive links are driven in step: every `sum` of the active party meets one `contribute` of each passive
party, every `publish` one `reply` of each party it goes to.
"""

from __future__ import annotations

from collections.abc import Collection

from securevfl.crypto.scheme import Floats
from securevfl.protocols.base import ActiveResidual, Batch, PassiveResidual, Reals, Reply, Seat, SumRole


class ActiveLink:
    """The active party's link."""

    def __init__(self, seat: Seat, sums: SumRole, residual: ActiveResidual) -> None:
        self.passives = seat.passives
        self.rounds = 0  # exchanges so far
        self._outputs = seat.outputs
        self._sums = sums
        self._residual = residual
        self._epoch = 0

    def sum(self, batch: Batch) -> Floats:
        """sum_k H_k of all passive parties (n x c) on this batch; may be used as long as the optimizer likes."""
        self._residual.settle()
        self._epoch = batch.epoch
        self.rounds += 1
        total: Floats = self._sums.collect_all((len(batch.X), self._outputs), Reals())
        return total

    def publish(self, g: Floats, *, to: Collection[str] | None = None) -> None:
        """Sends g (n x c) of the batch last summed down, to all passive parties unless told otherwise."""
        self._residual.publish(g, epoch=self._epoch, to=self.passives if to is None else to)

    def settle(self) -> None:
        """Serves what passive parties still have to ask; called by the run before it evaluates and ends."""
        self._residual.settle()


class PassiveLink:
    """A passive party's link."""

    def __init__(self, seat: Seat, sums: SumRole, residual: PassiveResidual) -> None:
        self.me = seat.me
        self.passives = seat.passives
        self._sums = sums
        self._residual = residual
        self._epoch = 0

    def contribute(self, H: Floats, batch: Batch) -> None:
        """Sends this party's H_k (n x c) up."""
        self._epoch = batch.epoch
        self._sums.contribute(H, Reals())

    def reply(self) -> Reply:
        """The residual of the batch last contributed to."""
        return self._residual.reply(epoch=self._epoch)

"""Residuals that are out at the key holder: which exchange is open to whom, under which key, for how many openings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from securevfl.crypto.scheme import KeyHolder
from securevfl.errors import LimitError, ProtocolError, TransportError
from securevfl.protocols.residuals.base import Agreement
from securevfl.protocols.seat import Seat


@dataclass
class Exchange:
    """An exchange that is open: its key, n and c of what was sealed, and the openings each passive party has left."""

    holder: KeyHolder
    shape: tuple[int, int]
    left: dict[str, int]


class Exchanges:
    """The exchanges of a run. Safe to use from the thread that publishes and the one that serves.

    asking: the passive parties that may still ask.
    """

    def __init__(self, seat: Seat, agreement: Agreement) -> None:
        self.asking = set(seat.passives)
        self.open: dict[int, Exchange] = {}
        self._seat = seat
        self._agreement = agreement
        self._published = 0
        self._served = False
        self._changed = threading.Condition()

    def begin(
        self,
        holder: KeyHolder,
        to: Collection[str],
        shape: tuple[int, int],
        ended: Callable[[], object],
        *,
        used: int = 0,
    ) -> int:
        """Open an exchange to these parties, as soon as they hold few enough others, and return its number.

        used: how many of its openings each party had in an earlier session. `ended` is called, to raise, where nobody
        serves any more. TransportError after the channel's time-out.
        """
        me, timeout, kept = self._seat.me, self._seat.channel.timeout, self._agreement.kept
        with self._changed:
            if not self._changed.wait_for(lambda: self._served or not self._crowded(to), timeout):
                late = ", ".join(self._crowded(to))
                raise TransportError(
                    f"{me}: {late} was expected to keep at most {kept} replies, more are open after {timeout:g} s"
                )
            if self._served:
                ended()
            if not self.asking.issuperset(to):
                raise ProtocolError(f"{me}: a residual was to go to a party that has closed; do both run the same job?")
            exchange, self._published = self._published, self._published + 1
            left = self._agreement.openings - used
            if left > 0:
                self.open[exchange] = Exchange(holder, shape, dict.fromkeys(to, left))
            return exchange

    def spend(self, passive: str, number: int) -> Exchange:
        """Take one opening off an exchange. LimitError where none is left."""
        with self._changed:
            exchange = self.open.get(number)
            left = 0 if exchange is None else exchange.left.get(passive, 0)
            if exchange is None or not left:
                raise LimitError(
                    f"{self._seat.me}: {passive} asked about exchange {number}, of which it has had the "
                    f"{self._agreement.openings} gradients agreed or which is closed to it; do both run the same job?"
                )
            exchange.left[passive] = left - 1
            if left == 1:
                self._end(passive, number)
            return exchange

    def forget(self, passive: str, number: int | None) -> None:
        """Close this exchange to a passive party that asks no more about it, or every exchange if it names none."""
        with self._changed:
            if number is None:
                self.asking.discard(passive)
            for each in [*self.open] if number is None else [number]:
                self._end(passive, each)

    def served(self) -> None:
        """Nobody serves any more: whoever waits to publish goes on."""
        with self._changed:
            self._served = True
            self._changed.notify_all()

    def _crowded(self, to: Collection[str]) -> list[str]:
        """Which of them have more exchanges open than they may keep."""
        held = [name for exchange in self.open.values() for name in exchange.left]
        return [name for name in to if held.count(name) > self._agreement.kept]

    def _end(self, passive: str, number: int) -> None:
        """Close an exchange to a party, and delete it if that was its last party."""
        exchange = self.open.get(number)
        if exchange is not None:
            exchange.left.pop(passive, None)
            if not exchange.left:
                del self.open[number]
        self._changed.notify_all()

"""An exchange at both its ends: what the key holder may still open of it, and the pieces of [[g]] where it goes to.

`Exchanges` says which residual is open to whom, under which key, for how many openings. `Pieces` holds [[g]] at the
party that it goes to, whose first piece is here before the last is made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from securevfl.crypto.scheme import KeyHolder
from securevfl.errors import LimitError, ProtocolError, TransportError
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import (
    Agreement,
)


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

    def __init__(self, context: PartyContext, agreement: Agreement) -> None:
        self.asking = set(context.passives)
        self.open: dict[int, Exchange] = {}
        self._context = context
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
        me, timeout, kept = self._context.me, self._context.channel.timeout, self._agreement.max_open_exchanges
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
                    f"{self._context.me}: {passive} asked about exchange {number}, of which it has had the "
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
        return [name for name in to if held.count(name) > self._agreement.max_open_exchanges]

    def _end(self, passive: str, number: int) -> None:
        """Close an exchange to a party, and delete it if that was its last party."""
        exchange = self.open.get(number)
        if exchange is not None:
            exchange.left.pop(passive, None)
            if not exchange.left:
                del self.open[number]
        self._changed.notify_all()


Piece = tuple[bytes, bool]  # a piece of the ciphertext, and whether it is the last


class Pieces:
    """The pieces of an exchange in their order; whoever iterates waits for those that are still on their way.

    They are given out once, and forgotten as they are, unless they are to serve `again`: then to every iteration, from
    any thread.
    """

    def __init__(self, first: Piece, more: Callable[[], Piece], *, again: bool) -> None:
        self._held = [first[0]]
        self._whole = first[1]
        self._more = more
        self._again = again
        self._wanted = True
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[bytes]:
        place = 0
        while (piece := self._ciphertext_at(place)) is not None:
            yield piece
            place += 1

    def wait(self) -> None:
        """Wait until all pieces have arrived."""
        with self._lock:
            while not self._whole:
                self._pull()

    def forget(self) -> None:
        """Nobody will ask for a piece any more; those on their way are dropped as they come."""
        with self._lock:
            self._held, self._wanted = [], False

    def _ciphertext_at(self, place: int) -> bytes | None:
        with self._lock:
            if place == len(self._held):
                if self._whole:
                    return None
                self._pull()
            piece = self._held[place]
            if not self._again:
                self._held[place] = b""
            return piece

    def _pull(self) -> None:
        piece, self._whole = self._more()
        if self._wanted:
            self._held.append(piece)

"""The state of exchanges of encrypted residuals, at the active and at the passive parties.

In an exchange, the active party sends an encrypted residual [[g]] to passive parties. They send back encrypted products
with [[g]], which the active party decrypts. Each such request is an opening, and their number is limited. `Exchanges`
is the state of the active party: the open exchanges, their keys, and the openings that each passive party has left.
`Pieces` is the ciphertext [[g]] at a passive party, which uses the first pieces before the last one has arrived.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from securevfl.crypto.scheme import KeyHolder
from securevfl.errors import LimitError, ProtocolError, TransportError
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import Agreement


@dataclass
class Exchange:
    """An exchange that is open to at least one passive party.

    Attributes:
        holder: the secret key of the exchange.
        shape: the shape (n, c) of the encrypted residual.
        left: for each passive party to which the exchange is open, the number of openings that it may still request.
    """

    holder: KeyHolder
    shape: tuple[int, int]
    left: dict[str, int]


class Exchanges:
    """The open exchanges of a run.

    Two threads share this object: one publishes residuals, and the other one answers requests about them.

    Args:
        context: the active party's channel to the others, and the roles of all parties.
        agreement: the limits on openings and on open exchanges, agreed by all parties.

    Attributes:
        asking: the passive parties that may still send requests.
        open: the open exchanges by number.
    """

    def __init__(self, context: PartyContext, agreement: Agreement) -> None:
        self.asking = set(context.passives)
        self.open: dict[int, Exchange] = {}
        self._context = context
        self._agreement = agreement
        self._published = 0
        self._server_stopped = False
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
        """Open a new exchange, after waiting until none of its receivers has too many other exchanges open.

        Args:
            holder: the secret key of the exchange.
            to: the receivers of the residual.
            shape: the shape (n, c) of the encrypted residual.
            ended: function that raises the error of the answering thread; it is called if that thread has stopped.
            used: number of openings of this residual that each party used before the training was interrupted.

        Returns:
            The number of the exchange.

        Raises:
            TransportError: if a party still has too many exchanges open after the channel's timeout.
            ProtocolError: if a receiver has announced that it sends no more requests.
        """
        me, timeout, limit = self._context.me, self._context.channel.timeout, self._agreement.max_open_exchanges
        with self._changed:
            if not self._changed.wait_for(lambda: self._server_stopped or not self._over_limit(to), timeout):
                late = ", ".join(self._over_limit(to))
                raise TransportError(
                    f"{me}: after {timeout:g} s {late} still uses more than {limit} earlier residuals",
                    code="SVFL-PEER-AWAY",
                )
            if self._server_stopped:
                ended()
            if not self.asking.issuperset(to):
                raise ProtocolError(
                    f"{me}: a receiver of this residual has announced that it sends no more requests",
                    code="SVFL-PROTOCOL-MESSAGE",
                )
            exchange, self._published = self._published, self._published + 1
            left = self._agreement.openings - used
            if left > 0:
                self.open[exchange] = Exchange(holder, shape, dict.fromkeys(to, left))
            return exchange

    def spend(self, passive: str, number: int) -> Exchange:
        """Count one opening of an exchange for a passive party, and return the exchange.

        Raise LimitError if the exchange is not open to this party, or if the party has used all its openings.
        """
        with self._changed:
            exchange = self.open.get(number)
            left = 0 if exchange is None else exchange.left.get(passive, 0)
            if exchange is None or not left:
                raise LimitError(
                    f"{self._context.me}: {passive} requested a gradient of residual number {number}, which it has "
                    f"finished using, or of which it already received the {self._agreement.openings} gradients that "
                    "the parties agreed on",
                    code="SVFL-PROTOCOL-LIMIT",
                    party=passive,
                )
            exchange.left[passive] = left - 1
            if left == 1:
                self._end(passive, number)
            return exchange

    def forget(self, passive: str, number: int | None) -> None:
        """Close an exchange to a passive party. None closes all exchanges, and the party may send no more requests.

        Raise ProtocolError if no residual with this number was sent.
        """
        with self._changed:
            if number is not None and not 0 <= number < self._published:
                raise ProtocolError(
                    f"{self._context.me}: {passive} closed residual number {number}, which was not sent",
                    code="SVFL-PROTOCOL-VALUES",
                    party=passive,
                )
            if number is None:
                self.asking.discard(passive)
            for exchange in [*self.open] if number is None else [number]:
                self._end(passive, exchange)

    def served(self) -> None:
        """Record that the thread that answers requests has stopped; wake the one that publishes residuals."""
        with self._changed:
            self._server_stopped = True
            self._changed.notify_all()

    def _over_limit(self, to: Collection[str]) -> list[str]:
        """Return those of the parties `to` that have too many exchanges open."""
        open_to = [name for exchange in self.open.values() for name in exchange.left]
        return [name for name in to if open_to.count(name) > self._agreement.max_open_exchanges]

    def _end(self, passive: str, number: int) -> None:
        """Close an exchange to a party, and delete the exchange with its key if it is open to no other party."""
        exchange = self.open.get(number)
        if exchange is not None:
            exchange.left.pop(passive, None)
            if not exchange.left:
                del self.open[number]
        self._changed.notify_all()


Piece = tuple[bytes, bool]
"""The bytes of a piece of a ciphertext, and whether it is the last piece."""


class Pieces:
    """The pieces of one ciphertext, in their order. Iteration waits for pieces that have not arrived.

    Args:
        first: the first piece, which has already arrived.
        more: function that receives the next piece.
        again: True to store all pieces, so that they can be iterated repeatedly and from any thread; False to delete
            each piece after its first use.
    """

    def __init__(self, first: Piece, more: Callable[[], Piece], *, again: bool) -> None:
        self._pieces = [first[0]]
        self._complete = first[1]
        self._more = more
        self._again = again
        self._needed = True
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[bytes]:
        index = 0
        while (piece := self._piece(index)) is not None:
            yield piece
            index += 1

    def wait(self) -> None:
        """Wait until all pieces of the encrypted residual have arrived."""
        with self._lock:
            while not self._complete:
                self._receive()

    def forget(self) -> None:
        """Delete all pieces, and ignore later ones when they arrive."""
        with self._lock:
            self._pieces, self._needed = [], False

    def _piece(self, index: int) -> bytes | None:
        with self._lock:
            if index == len(self._pieces):
                if self._complete:
                    return None
                self._receive()
            piece = self._pieces[index]
            if not self._again:
                self._pieces[index] = b""
            return piece

    def _receive(self) -> None:
        piece, self._complete = self._more()
        if self._needed:
            self._pieces.append(piece)

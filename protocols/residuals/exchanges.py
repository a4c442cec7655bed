"""The state of sealed residuals at both parties.

`Exchanges` is the state of the key holder: the open exchanges, their keys, and the number of openings that each passive
party has left. `Pieces` holds the ciphertext [[g]] at a passive party, which uses the first pieces before the last one
has arrived.
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
    """An open exchange.

    Attributes:
        holder: its key.
        shape: n and c of the encrypted matrix.
        left: number of openings left, by passive party.
    """

    holder: KeyHolder
    shape: tuple[int, int]
    left: dict[str, int]


class Exchanges:
    """The open exchanges of a run. The publishing and the serving thread share this object.

    Args:
        context: the active party's context.
        agreement: what the parties agreed on.

    Attributes:
        asking: the passive parties that may send further requests.
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
        """Open an exchange to some parties once each of them has few enough other exchanges open.

        Args:
            holder: the key of the exchange.
            to: the receivers.
            shape: n and c of the encrypted matrix.
            ended: raises the error of the serving thread; called if that thread has stopped.
            used: number of openings that each party has used in an earlier session.

        Returns:
            The number of the exchange.

        Raises:
            TransportError: if a party keeps too many exchanges open until the channel's timeout.
            ProtocolError: if a receiver has closed.
        """
        me, timeout, limit = self._context.me, self._context.channel.timeout, self._agreement.max_open_exchanges
        with self._changed:
            if not self._changed.wait_for(lambda: self._server_stopped or not self._over_limit(to), timeout):
                late = ", ".join(self._over_limit(to))
                raise TransportError(
                    f"{me}: after {timeout:g} s {late} still has more than {limit} exchanges open",
                    code="SVFL-PEER-AWAY",
                )
            if self._server_stopped:
                ended()
            if not self.asking.issuperset(to):
                raise ProtocolError(
                    f"{me}: a receiver of this residual has already closed", code="SVFL-PROTOCOL-MESSAGE"
                )
            exchange, self._published = self._published, self._published + 1
            left = self._agreement.openings - used
            if left > 0:
                self.open[exchange] = Exchange(holder, shape, dict.fromkeys(to, left))
            return exchange

    def spend(self, passive: str, number: int) -> Exchange:
        """Use one opening of an exchange, and return the exchange. Raise LimitError if none is left."""
        with self._changed:
            exchange = self.open.get(number)
            left = 0 if exchange is None else exchange.left.get(passive, 0)
            if exchange is None or not left:
                raise LimitError(
                    f"{self._context.me}: {passive} requested a gradient of exchange {number}, which is closed to it "
                    "or "
                    f"has no openings left; the parties agreed on {self._agreement.openings}",
                    code="SVFL-PROTOCOL-LIMIT",
                    party=passive,
                )
            exchange.left[passive] = left - 1
            if left == 1:
                self._end(passive, number)
            return exchange

    def forget(self, passive: str, number: int | None) -> None:
        """Close an exchange to a passive party; None closes all exchanges, and the party may not request more."""
        with self._changed:
            if number is None:
                self.asking.discard(passive)
            for exchange in [*self.open] if number is None else [number]:
                self._end(passive, exchange)

    def served(self) -> None:
        """Note that the serving thread has stopped, and wake the publishing thread."""
        with self._changed:
            self._server_stopped = True
            self._changed.notify_all()

    def _over_limit(self, to: Collection[str]) -> list[str]:
        """Return the parties that have too many exchanges open."""
        open_to = [name for exchange in self.open.values() for name in exchange.left]
        return [name for name in to if open_to.count(name) > self._agreement.max_open_exchanges]

    def _end(self, passive: str, number: int) -> None:
        """Close an exchange to a party, and delete it if it is open to no other party."""
        exchange = self.open.get(number)
        if exchange is not None:
            exchange.left.pop(passive, None)
            if not exchange.left:
                del self.open[number]
        self._changed.notify_all()


Piece = tuple[bytes, bool]
"""A piece of a ciphertext, and whether it is the last one."""


class Pieces:
    """The pieces of one ciphertext in order. Iteration waits for pieces that have not arrived.

    Args:
        first: the first piece.
        more: receives the next piece.
        again: whether the pieces are stored, so that they can be iterated repeatedly and from any thread; otherwise
            each piece is returned once and then deleted.
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
        """Wait until all pieces have arrived."""
        with self._lock:
            while not self._complete:
                self._receive()

    def forget(self) -> None:
        """Delete all pieces; later pieces are dropped when they arrive."""
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

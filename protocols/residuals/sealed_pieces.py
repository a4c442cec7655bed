"""[[g]] of one exchange at the party that it goes to, in pieces, the first of which is here before the last is made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

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
        while (piece := self._at(place)) is not None:
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

    def _at(self, place: int) -> bytes | None:
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

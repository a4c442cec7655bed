"""Oblivious transfers of a chunk of iterations, generated during the training, shortly before they are used.

The transfers of an iteration depend on nothing that arises in the training, so they could be generated with all other
preprocessing of the chunk. But they are most of its bytes, and in each iteration the line from the partner to the party
with labels is free while the partner waits for tables. So the two share holders generate the transfers for the next
iterations then: the partner sends a message with its first requests, and the party with labels processes it when it has
sent its last answer (iteration.py).

If any party stores chunks on disk, transfers are generated with the chunk instead, so that they are complete before the
training starts (chunk_agreement.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from securevfl.protocols.shares.table_transfers import Transfers, grouped

_MIN_CHOICE_BITS = 6 << 14  # each extension has a fixed cost, so it has at least 2^14 rows with 64 entries each

Stored = tuple[bytes, ...]


class _Stream:
    """The transfers of one purpose, as they are needed by the blocks of consecutive iterations.

    Args:
        transfers: generates the transfers together with the other share holder.
        rows: for each iteration, the number of transfers of each of its blocks.
    """

    def __init__(self, transfers: Transfers, rows: Sequence[Sequence[int]]) -> None:
        self._transfers, self._rows = transfers, rows
        self._next = 0  # the first iteration whose transfers have not been begun
        self._pending: list[tuple[list[tuple[int, int]], Callable[[], list[Stored]]]] = []
        self._stored: dict[tuple[int, int], Stored] = {}

    def begin(self, iteration: int) -> None:
        """Exchange the messages for the transfers of all iterations up to this one."""
        while self._next <= min(iteration, len(self._rows) - 1):
            first, bits = self._next, 0
            while self._next < len(self._rows) and bits < _MIN_CHOICE_BITS:
                bits += sum(self._rows[self._next]) * self._transfers.bits
                self._next += 1
            blocks = [
                (number, block) for number in range(first, self._next) for block in range(len(self._rows[number]))
            ]
            for group in grouped([self._rows[number][block] for number, block in blocks], self._transfers.bits):
                self._pending.append((blocks[: len(group)], self._transfers.begin(group)))
                blocks = blocks[len(group) :]

    def finish(self) -> None:
        """Compute the transfers whose messages were exchanged."""
        for blocks, compute in self._pending:
            self._stored.update(zip(blocks, compute(), strict=True))
        self._pending.clear()

    def take(self, iteration: int, block: int) -> Stored:
        """Return the transfers of a block, once."""
        return self._stored.pop((iteration, block))


class DelayedTransfers:
    """One share holder's transfers for the iterations of a chunk.

    Both share holders must call `begin` at the same points of the protocol.

    Args:
        streams: for each purpose, such as tables and lifts, the object that generates its transfers.
        rows: for each iteration, the number of transfers of each of its blocks.
    """

    def __init__(self, streams: Sequence[Transfers], rows: Sequence[Sequence[int]]) -> None:
        self._streams = [_Stream(transfers, rows) for transfers in streams]

    def begin(self, iteration: int) -> None:
        """Exchange the messages for the transfers of an iteration, unless done before; nothing after the last one."""
        for stream in self._streams:
            stream.begin(iteration)

    def finish(self) -> None:
        """Compute the transfers whose messages were exchanged; `take` returns these."""
        for stream in self._streams:
            stream.finish()

    def take(self, iteration: int, block: int) -> list[Stored]:
        """Return the transfers of a block for each purpose, once: the input of `table_transfers.pads` or `chosen`."""
        return [stream.take(iteration, block) for stream in self._streams]

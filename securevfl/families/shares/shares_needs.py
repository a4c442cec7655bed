"""What a training on shares takes of its parties, from public sizes alone: said before anything is aligned or sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from types import TracebackType
from typing import Generic, TypeVar

from securevfl.crypto.share_ring import ShareRing
from securevfl.data.schedule import Schedule, Visit
from securevfl.disclosure.counts import Sizes
from securevfl.errors import ConfigError
from securevfl.families.shares.shares_plan import SharesJob, plan
from securevfl.runtime.channel import Channel
from securevfl.runtime.threads import Beside

__all__ = ["needs"]


# The chunks of a training on shares in turn: each is made while the visits of the one before go on.


T = TypeVar("T")


class Turns(Generic[T]):
    """Chunks of one party, ready when their turn comes.

    make: makes a chunk, in a thread of its own for all but the first. room: whether a chunk may be made while the one
    before it is kept; otherwise it is made when that has gone. Parties may differ in that.

    Used in a `with`: what is being made when it is left is finished if the training has stopped early and well, as the
    others rely on this party's part in it, and ends with the channel if the training has failed.
    """

    def __init__(self, channel: Channel, chunks: Sequence[T], make: Callable[[T], None], room: Callable[[T], bool]):
        self._channel, self._chunks, self._make, self._room = channel, chunks, make, room
        self._making: Beside[None] | None = None

    def __iter__(self) -> Iterator[T]:
        for number, chunk in enumerate(self._chunks):
            if self._making is None:
                self._make(chunk)
            else:
                self._making.join()
            self._making, after = None, self._chunks[number + 1 : number + 2]
            if after and self._room(after[0]):
                self._making = Beside(self._channel, partial(self._make, after[0]), "work ahead")
            yield chunk

    def __enter__(self) -> Turns[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._making is None:
            return
        if error is not None and not isinstance(error, GeneratorExit):
            self._channel.fail(error)
        with suppress(Exception):  # it has failed the channel, or the channel has failed it
            self._making.join()


def chunks_of(visits: Sequence[Visit], start: int, epochs: int) -> Iterator[tuple[int, list[Visit]]]:
    """Yield the visits from `start` on in chunks of so many whole epochs, each with the number of its first visit."""
    for _, stretch in groupby(enumerate(visits), key=lambda item: item[1].epoch // epochs):
        part = list(stretch)
        left = [visit for number, visit in part if number >= start]
        if left:
            yield max(start, part[0][0]), left


# Measured, 16 visits to 40,000 rows at once, a row, output and visit
PRODUCT_BYTES = 47  # of a holder's query and its reply, from each other party
PROCESSOR = 7.4e-6, 4.8e-8, 1.8e-6  # seconds at all parties: of two, of each column, of each party more


def needs(job: SharesJob, schedule: Schedule, sizes: Sizes) -> list[str]:
    """Describe in lines the visits of a run, the bits of its numbers, and what goes over the line, is kept and takes
    time; or why it would be refused."""
    visits, parties = list(schedule.visits()), len(sizes.columns)
    rows = max((len(part) for part in schedule.partition(0)), default=0)
    if not (visits and rows):
        return []
    try:
        numbers = plan(job, rows=rows, batches=schedule.batches, parties=parties).numbers
    except ConfigError as error:
        return [f"more bits than there are, so it would be refused: {error}"]
    by_rows = Counter(len(visit.rows) for visit in visits)
    several = len(by_rows) > 1 and max(by_rows) > min(by_rows) + 1
    visited = " then ".join(f"{times:,} to {each:,}" for each, times in sorted(by_rows.items())) if several else ""
    total = sum(len(visit.rows) for visit in visits) * sizes.outputs
    chunk = max(sum(len(visit.rows) for visit in part) for _, part in chunks_of(visits, 0, job.protocol.shares.chunk))
    octets = ShareRing(numbers.bits).octets
    sent = numbers.entries * octets + octets + 1 + 16 * numbers.table_bits + PRODUCT_BYTES * 2 * (parties - 1)
    sent += 2 * octets * (parties - 2)
    first, column, more = PROCESSOR
    seconds = total * (first + column * sum(sizes.columns.values()) + more * (parties - 2))
    kept = chunk * sizes.outputs * (2 * octets + 16 * numbers.table_bits)
    return [
        f"{len(visits):,} visits at most, {visited or f'to {rows:,} rows'}; {numbers.bits} bits a number, "
        f"w = {numbers.w}",
        f"some {_size(total * sent)} sent, {_size(kept)} of work ahead at the active party at a time "
        f"(chunk = {job.protocol.shares.chunk}), {seconds:,.0f} s of processor at all parties; evaluations come on top",
    ]


def _size(count: float) -> str:
    units: Sequence[tuple[float, str]] = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return next((f"{count / unit:.3g} {name}" for unit, name in units if count >= unit), f"{count:.0f} B")

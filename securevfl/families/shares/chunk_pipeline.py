"""The chunks of a training on shares: the next one is generated while the current one trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from types import TracebackType
from typing import Generic, TypeVar

from securevfl.data.schedule import Iteration
from securevfl.families.shares.shares_job import SharesJob
from securevfl.runtime.background_task import BackgroundTask
from securevfl.runtime.channel import Channel

T = TypeVar("T")


class ChunkPipeline(Generic[T]):
    """Chunks of one party, ready when their turn comes.

    make: makes a chunk, in a thread of its own for all but the first. room: whether a chunk may be made while the one
    before it is kept; otherwise it is made when that has gone. Parties may differ in that.

    Used in a `with`: what is being made when it is left is finished if the training has stopped early and well, as the
    others rely on this party's part in it, and ends with the channel if the training has failed.
    """

    def __init__(self, channel: Channel, chunks: Sequence[T], make: Callable[[T], None], room: Callable[[T], bool]):
        self._channel, self._chunks, self._make, self._room = channel, chunks, make, room
        self._making: BackgroundTask[None] | None = None

    def __iter__(self) -> Iterator[T]:
        for number, chunk in enumerate(self._chunks):
            if self._making is None:
                self._make(chunk)
            else:
                self._making.join()
            self._making, after = None, self._chunks[number + 1 : number + 2]
            if after and self._room(after[0]):
                self._making = BackgroundTask(self._channel, partial(self._make, after[0]), "work ahead")
            yield chunk

    def __enter__(self) -> ChunkPipeline[T]:
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


MAX_PREPROCESSING_BYTES = 1 << 29  # bytes of work ahead

MAX_CHUNK_EPOCHS = 32


def chunk_epochs(job: SharesJob, rows: int, outputs: int) -> int:
    """Return for how many epochs work is done ahead at a time, for so many training rows and outputs."""
    options = job.protocol.shares
    if options.chunk is not None:
        return options.chunk
    kept = min(job.epochs, MAX_CHUNK_EPOCHS) * rows * outputs * 16 * (1 + options.table_bits)
    return MAX_CHUNK_EPOCHS if kept <= MAX_PREPROCESSING_BYTES else MAX_CHUNK_EPOCHS // 2


def split_chunks(visits: Sequence[Iteration], start: int, epochs: int) -> Iterator[tuple[int, list[Iteration]]]:
    """Yield the visits from `start` on in chunks of so many whole epochs, each with the number of its first visit."""
    for _, stretch in groupby(enumerate(visits), key=lambda item: item[1].epoch // epochs):
        part = list(stretch)
        left = [visit for number, visit in part if number >= start]
        if left:
            yield max(start, part[0][0]), left

"""The chunks of a training on secret shares: the next one is preprocessed while the current one trains.

A *chunk* is a number of whole epochs. Its *preprocessing* is random material that the parties generate before the
chunk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from types import TracebackType
from typing import Generic, TypeVar

from securevfl.data.schedule import Iteration, rows_of_epochs
from securevfl.families.shares.shares_job import SharesJob
from securevfl.runtime.background_task import BackgroundTask
from securevfl.runtime.channel import Channel

T = TypeVar("T")

MAX_PREPROCESSING_BYTES = 1 << 29  # maximum size of a chunk's preprocessing, in bytes
MAX_CHUNK_EPOCHS = 40
MIN_CHUNK_ITERATIONS = 8
FIRST_CHUNK_SHARE = 7
"""The first chunk has about one in so many of the rows of all iterations. Two further chunks, with two and four in so
many, then contain most of the others."""


class ChunkPipeline(Generic[T]):
    """Iterates over chunks and generates the next one in the background.

    Use it as a context manager. On exit, a chunk whose preprocessing is being generated is completed if the training
    has stopped early without an error, because the other parties depend on this party. If the training has failed, the
    channel fails.

    Args:
        channel: the channel of the party.
        chunks: the chunks in order.
        generate: generates the preprocessing of a chunk. It runs in a background thread for all but the first chunk.
        has_room: whether memory or disk allows a chunk to be generated while the one before is in use. If not, it is
            generated afterwards. Parties may differ in this.
    """

    def __init__(
        self, channel: Channel, chunks: Sequence[T], generate: Callable[[T], None], has_room: Callable[[T], bool]
    ) -> None:
        self._channel, self._chunks, self._generate, self._has_room = channel, chunks, generate, has_room
        self._task: BackgroundTask[None] | None = None

    def __iter__(self) -> Iterator[T]:
        """Yield each chunk as soon as its preprocessing is generated."""
        for number, chunk in enumerate(self._chunks):
            if self._task is None:
                self._generate(chunk)
            else:
                self._task.join()
            self._task, following = None, self._chunks[number + 1 : number + 2]
            if following and self._has_room(following[0]):
                self._task = BackgroundTask(self._channel, partial(self._generate, following[0]), "preprocessing")
            yield chunk

    def __enter__(self) -> ChunkPipeline[T]:
        """Return the pipeline, for use in a `with` statement."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the chunk that is being generated; after an error, fail the channel instead."""
        if self._task is None:
            return
        if error is not None and not isinstance(error, GeneratorExit):
            self._channel.fail(error)
        with suppress(Exception):  # if the background task has failed, the channel has failed with it and reports that
            self._task.join()


def count_interval(job: SharesJob) -> int:
    """Return the number of epochs after which the parties count rows with model outputs beyond the lookup tables.

    Every multiple of this number ends a chunk.
    """
    return job.protocol.shares.chunk or MAX_CHUNK_EPOCHS


def chunk_ends(job: SharesJob, rows: int, outputs: int) -> tuple[int, ...]:
    """Divide the epochs of a training into chunks; all parties obtain the same ones, because they depend on sizes only.

    The first chunk is short, so that the iterations begin early. Each further chunk has at most twice as many rows,
    counted once for every iteration, as the one before, or eight iterations. Its preprocessing is then generated during
    the iterations of the one before, as preprocessing takes about half of the time of an iteration on a slow line.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        rows: number of training rows.
        outputs: c, number of outputs of a row.

    Returns:
        For each chunk, the number of the epoch after its last one.
    """
    interval, options = count_interval(job), job.protocol.shares
    if options.chunk is not None:
        return (*range(interval, job.epochs, interval), job.epochs)
    rows_by_epoch = rows_of_epochs(rows, job.epochs, job.batch_size)
    max_rows = MAX_PREPROCESSING_BYTES // (outputs * 16 * (1 + options.table_bits))
    batches = 1 if isinstance(job.batch_size, str) else max(1, -(-rows // job.batch_size))
    min_epochs = -(-MIN_CHUNK_ITERATIONS // batches)
    ends, start, wanted = list[int](), 0, sum(rows_by_epoch) // FIRST_CHUNK_SHARE
    while start < job.epochs:
        limit = min(job.epochs, (start // interval + 1) * interval)
        stop, used = start + 1, rows_by_epoch[start]
        while stop < limit:
            total = used + rows_by_epoch[stop]
            # a training with few iterations more than the first chunk needs no second one
            is_short = stop - start < min_epochs or (not ends and job.epochs - stop < min_epochs)
            if total > max_rows or (total > wanted and not is_short):
                break
            stop, used = stop + 1, total
        ends.append(stop)
        start, wanted = stop, 2 * used
    return tuple(ends)


def split_chunks(
    iterations: Sequence[Iteration], start: int, ends: Sequence[int]
) -> Iterator[tuple[int, list[Iteration]]]:
    """Yield the iterations from `start` on in chunks of whole epochs, with the number of each chunk's first iteration.

    Args:
        iterations: all iterations of the training.
        start: number of the first iteration.
        ends: for each chunk, the number of the epoch after its last one.

    Yields:
        (number of the chunk's first iteration, iterations of the chunk).
    """
    for _, group in groupby(enumerate(iterations), key=lambda item: bisect_right(ends, item[1].epoch)):
        chunk = list(group)
        remaining = [iteration for number, iteration in chunk if number >= start]
        if remaining:
            yield max(start, chunk[0][0]), remaining

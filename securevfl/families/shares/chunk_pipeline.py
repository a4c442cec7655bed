"""The chunks of a training on secret shares: the next one is preprocessed while the current one trains.

A *chunk* is a number of whole epochs (chunk_division.py). Its *preprocessing* is random material that the parties
generate before the chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

from securevfl.runtime.background_task import BackgroundTask
from securevfl.runtime.channel import Channel

T = TypeVar("T")


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

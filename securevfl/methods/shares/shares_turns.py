"""The chunks of a training on shares in turn: each is made while the visits of the one before go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from types import TracebackType
from typing import Generic, TypeVar

from securevfl.data.schedule import Visit
from securevfl.runtime.channel import Channel
from securevfl.runtime.second_thread import Beside

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

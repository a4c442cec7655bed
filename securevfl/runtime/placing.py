"""State at the workers of an engine: the seam through which one party is more than one machine.

A `Placing` puts what a function makes at one of its workers, and sends other work to where that lies. What is placed is
never moved by us; a worker that is lost is the engine's affair, which makes it anew on another one from the calls that
made it. So makers are pure functions of what travels to them, and work changes nothing but what it can do without.

Dask is one such engine (`securevfl.runtime.dask_placing`); any that keeps results where they were made can be another.
As with an executor, an engine belongs to one party, and its lines need TLS.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from securevfl.base.tall import Stretch, TallPart

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class Errand(Generic[T]):
    """One call on what is placed. Shows neither function nor arguments."""

    __slots__ = ("_args", "_kwargs", "_work")

    def __init__(self, work: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._work, self._args, self._kwargs = work, args, kwargs

    def __repr__(self) -> str:
        return "<an errand>"

    def run(self, *state: Any) -> tuple[T, float]:
        """Make the call, and return its result and its processor seconds."""
        started = time.thread_time()
        result = self._work(*state, *self._args, **self._kwargs)
        return result, time.thread_time() - started

    def make(self, *state: Any) -> T:
        """Make the call, and return its result alone."""
        return self._work(*state, *self._args, **self._kwargs)


class Placed(ABC, Generic[S]):
    """Something at a worker; goes when nobody holds this any more."""

    worker: str

    @abstractmethod
    def run(
        self, work: Callable[Concatenate[S, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[tuple[T, float]]:
        """Run work on the placed state at its worker; the future holds the result, and the processor seconds it
        took."""

    @abstractmethod
    def derive(self, make: Callable[Concatenate[S, P], T], /, *args: P.args, **kwargs: P.kwargs) -> Placed[T]:
        """Places what is made of it at the same worker."""


class Placing(ABC):
    """An engine that keeps state at its workers."""

    @property
    @abstractmethod
    def workers(self) -> tuple[str, ...]:
        """Their names. ConfigError if there are none."""

    @abstractmethod
    def place(self, worker: str, make: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Placed[T]:
        """Places what is made at this worker."""


class PlacedPart(TallPart):
    """A stretch of rows of a matrix that begins with row `start`, of `rows` rows, at a worker."""

    least = 128

    def __init__(self, start: int, rows: int, stretch: Placed[Stretch]) -> None:
        self.start, self.stop = start, start + rows
        self._stretch = stretch
        self._seconds: list[float] = []

    @property
    def place(self) -> str:
        return self._stretch.worker

    def run(self, work: Callable[Concatenate[Stretch, P], T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        found: Future[T] = Future()

        def came(inner: Future[tuple[T, float]]) -> None:
            try:
                result, seconds = inner.result()
            except Exception as error:  # whatever the work or the engine raises
                found.set_exception(error)
            else:
                self._seconds.append(seconds)
                found.set_result(result)

        self._stretch.run(work, *args, **kwargs).add_done_callback(came)
        return found

    def spent(self) -> float:
        seconds, self._seconds = sum(self._seconds), []
        return seconds

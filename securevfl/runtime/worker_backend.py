"""State at the workers of an engine: the seam through which one party is more than one machine.

A `WorkerBackend` puts what a function makes at one of its workers, and sends other work to where that lies. What is
placed is
never moved by us; a worker that is lost is the engine's affair, which makes it anew on another one from the calls that
made it. So makers are pure functions of what travels to them, and work changes nothing but what it can do without.

Dask is one such engine (`DaskBackend`); any that keeps results where they were made can be another.
As with an executor, an engine belongs to one party, and its lines need TLS.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Concatenate, Generic, ParamSpec, TypeVar

from securevfl.base.chunked_matrix import MatrixPart, RowChunk
from securevfl.errors import TransportError

PATIENCE = 240.0  # seconds; a worker that is lost has its rows read again by another one within

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class WorkerFuture(Future[T]):
    """A result that a worker owes. TransportError if it does not come within `PATIENCE` seconds."""

    def __init__(self, worker: str) -> None:
        super().__init__()
        self._worker = worker

    def result(self, timeout: float | None = None) -> T:
        try:
            return super().result(PATIENCE if timeout is None else timeout)
        except TimeoutError:
            raise TransportError(
                f"work was expected back from worker {self._worker} within {PATIENCE:g} seconds, nothing came; look "
                "whether the cluster has workers and a scheduler, and run the same again"
            ) from None


class RemoteObject(ABC, Generic[S]):
    """Something at a worker; goes when nobody holds this any more."""

    worker: str

    @abstractmethod
    def run(
        self, work: Callable[Concatenate[S, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[tuple[T, float]]:
        """Run work on the placed state at its worker; the future holds the result, and the processor seconds it
        took."""

    @abstractmethod
    def derive(self, make: Callable[Concatenate[S, P], T], /, *args: P.args, **kwargs: P.kwargs) -> RemoteObject[T]:
        """Places what is made of it at the same worker."""


class WorkerBackend(ABC):
    """An engine that keeps state at its workers."""

    @property
    @abstractmethod
    def workers(self) -> tuple[str, ...]:
        """Their names. ConfigError if there are none."""

    @abstractmethod
    def place(self, worker: str, make: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> RemoteObject[T]:
        """Places what is made at this worker."""


class RemotePart(MatrixPart):
    """A stretch of rows of a matrix that begins with row `start`, of `rows` rows, at a worker."""

    min_blocks = 128

    def __init__(self, start: int, rows: int, stretch: RemoteObject[RowChunk]) -> None:
        self.start, self.stop = start, start + rows
        self._stretch = stretch
        self._seconds: list[float] = []

    @property
    def worker(self) -> str:
        return self._stretch.worker

    def run(self, work: Callable[Concatenate[RowChunk, P], T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        found: Future[T] = WorkerFuture(self.worker)

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

    def derive(
        self, make: Callable[Concatenate[RowChunk, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> RemoteObject[T]:
        """Place what is made of the stretch where it lies."""
        return self._stretch.derive(make, *args, **kwargs)

    def spent(self) -> float:
        seconds, self._seconds = sum(self._seconds), []
        return seconds

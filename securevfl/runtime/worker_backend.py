"""Interface to engines that store a party's data at workers, so that one party can use several computers.

A `WorkerBackend` runs a function at one of its workers and stores the result there. Further functions can be run on
that result at the same worker; this package never moves it. If a worker is lost, the engine computes its results again
at another worker by repeating the calls. Functions that create results must therefore be pure functions of the
arguments that are sent to them, and functions on a result may only change caches inside it.

`DaskBackend` is one implementation; any engine that stores results where they were computed can be another. An engine
must belong to one party, because it sees this party's data, and its connections need TLS.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Concatenate, Generic, ParamSpec, TypeVar

from securevfl.base.chunked_matrix import MatrixPart, RowChunk
from securevfl.errors import TransportError

WORKER_TIMEOUT = 240.0  # seconds to wait for a result; another worker may have to read a lost worker's rows again

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class WorkerFuture(Future[T]):
    """The future of a function that runs at a worker.

    Args:
        worker: name of the worker.
    """

    def __init__(self, worker: str) -> None:
        super().__init__()
        self._worker = worker

    def result(self, timeout: float | None = None) -> T:
        """Return the result.

        Args:
            timeout: seconds to wait; `WORKER_TIMEOUT` if None.

        Returns:
            The result of the function.

        Raises:
            TransportError: if the worker does not answer in time.
            Exception: the exception that the function has raised.
        """
        seconds = WORKER_TIMEOUT if timeout is None else timeout
        try:
            return super().result(seconds)
        except TimeoutError:
            if self.done():
                raise  # raised by the function at the worker
            raise TransportError(
                f"worker {self._worker} has not answered within {seconds:g} seconds", code="SVFL-JOB-CLUSTER"
            ) from None


class RemoteObject(ABC, Generic[S]):
    """A result that is stored at a worker until this object is deleted.

    Attributes:
        worker: name of the worker.
    """

    worker: str

    @abstractmethod
    def run(
        self, work: Callable[Concatenate[S, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[tuple[T, float]]:
        """Run a function on the result at its worker; return its value and the CPU seconds that it took."""

    @abstractmethod
    def derive(self, make: Callable[Concatenate[S, P], T], /, *args: P.args, **kwargs: P.kwargs) -> RemoteObject[T]:
        """Run a function on the result, and store its value at the same worker."""


class WorkerBackend(ABC):
    """An engine that stores results at its workers."""

    @property
    @abstractmethod
    def workers(self) -> tuple[str, ...]:
        """Names of the workers. Raises ConfigError if there are none."""

    @abstractmethod
    def place(self, worker: str, make: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> RemoteObject[T]:
        """Run a function at this worker, and store its value there."""


class RemotePart(MatrixPart):
    """Consecutive rows of a matrix that are stored at a worker.

    Args:
        start: index of the first row.
        rows: number of rows.
        chunk: the rows at the worker.
    """

    min_blocks = 128

    def __init__(self, start: int, rows: int, chunk: RemoteObject[RowChunk]) -> None:
        self.start, self.stop = start, start + rows
        self._chunk = chunk
        self._seconds: list[float] = []

    @property
    def worker(self) -> str:
        """Name of the worker."""
        return self._chunk.worker

    def run(self, work: Callable[Concatenate[RowChunk, P], T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function on the rows at their worker."""
        future: Future[T] = WorkerFuture(self.worker)

        def complete(inner: Future[tuple[T, float]]) -> None:
            try:
                result, seconds = inner.result()
            except Exception as error:  # any error of the function or the engine
                future.set_exception(error)
            else:
                self._seconds.append(seconds)
                future.set_result(result)

        self._chunk.run(work, *args, **kwargs).add_done_callback(complete)
        return future

    def derive(
        self, make: Callable[Concatenate[RowChunk, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> RemoteObject[T]:
        """Run a function on the rows, and store its value at their worker."""
        return self._chunk.derive(make, *args, **kwargs)

    def spent(self) -> float:
        """Return the CPU seconds of functions on these rows that have finished since the last call."""
        seconds, self._seconds = sum(self._seconds), []
        return seconds

"""State at the workers of an engine: the seam through which one party is more than one machine.

A `Placing` puts what a function makes at one of its workers, and sends other work to where that lies. What is placed is
never moved by us; a worker that is lost is the engine's affair, which makes it anew on another one from the calls that
made it. So makers are pure functions of what travels to them, and work changes nothing but what it can do without.

Dask is one such engine (`DaskPlacing`); any that keeps results where they were made can be another.
As with an executor, an engine belongs to one party, and its lines need TLS.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from securevfl.base.chunked_matrix import Stretch, TallPart
from securevfl.errors import ConfigError, SecureVFLError, TransportError
from securevfl.runtime.executor import Piece, run_piece

PATIENCE = 240.0  # seconds; a worker that is lost has its rows read again by another one within

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class Coming(Future[T]):
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
        found: Future[T] = Coming(self.place)

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

    def derive(self, make: Callable[Concatenate[Stretch, P], T], /, *args: P.args, **kwargs: P.kwargs) -> Placed[T]:
        """Place what is made of the stretch where it lies."""
        return self._stretch.derive(make, *args, **kwargs)

    def spent(self) -> float:
        seconds, self._seconds = sum(self._seconds), []
        return seconds


# State at the workers of a Dask cluster (`pip install securevfl[dask]`).
#
# What is placed is the result of a task, which Dask keeps where it was made for as long as this process holds its
# future; work is a task that depends on it, and so runs there. A worker that is lost takes its results along: Dask runs
# the tasks that made them again on another one, and those that were under way.


class DaskPlacing(Placing):
    """The workers of the cluster that a `distributed.Client` is connected to."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    def workers(self) -> tuple[str, ...]:
        found = tuple(sorted(self._client.scheduler_info(n_workers=-1)["workers"]))
        if not found:
            raise ConfigError("a Dask cluster with workers was expected, it has none; start some")
        return found

    def place(self, worker: str, make: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Placed[T]:
        piece = Piece(make, *args, **kwargs)
        made = self._client.submit(_make, piece, workers=[worker], allow_other_workers=True, pure=False)
        return DaskPlaced(self._client, worker, made)


class DaskPlaced(Placed[S]):
    """The result of a task, at the worker that ran it."""

    def __init__(self, client: Any, worker: str, made: Any) -> None:
        self.worker = worker
        self._client = client
        self._made = made

    def run(
        self, work: Callable[Concatenate[S, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[tuple[T, float]]:
        found: Future[tuple[T, float]] = Coming(self.worker)
        task = self._submit(run_piece, Piece(work, *args, **kwargs))

        def came(task: Any) -> None:
            try:
                found.set_result(task.result())
            except SecureVFLError as error:
                found.set_exception(error)
            except Exception as error:  # Dask's own for a cluster that is gone, and what the work raises
                kind = type(error).__name__
                found.set_exception(_lost(self.worker, kind))

        task.add_done_callback(came)
        return found

    def derive(self, make: Callable[Concatenate[S, P], T], /, *args: P.args, **kwargs: P.kwargs) -> Placed[T]:
        return DaskPlaced(self._client, self.worker, self._submit(_make, Piece(make, *args, **kwargs)))

    def _submit(self, call: Callable[..., Any], piece: Piece[Any]) -> Any:
        """Send a task to the worker; to any other one where it is lost."""
        try:
            return self._client.submit(
                call, piece, self._made, workers=[self.worker], allow_other_workers=True, pure=False
            )
        except Exception as error:  # a client that has closed
            raise _lost(self.worker, type(error).__name__) from None


def _lost(worker: str, kind: str) -> TransportError:
    return TransportError(
        f"work was expected back from worker {worker}, {kind} came; look at its log and the scheduler's, and run the "
        "same again once the cluster is up"
    )


def _make(piece: Piece[T], *state: Any) -> T:
    return piece.run(*state)[0]

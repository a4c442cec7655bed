"""State at the workers of a Dask cluster (`pip install securevfl[dask]`).

What is placed is the result of a task, which Dask keeps where it was made for as long as this process holds its
future; work is a task that depends on it, and so runs there. A worker that is lost takes its results along: Dask runs
the tasks that made them again on another one, and those that were under way.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Concatenate

from securevfl.errors import ConfigError, SecureVFLError, TransportError
from securevfl.runtime.executor import Task, run_task
from securevfl.runtime.worker_backend import P, RemoteObject, S, T, WorkerBackend, WorkerFuture


class DaskBackend(WorkerBackend):
    """The workers of the cluster that a `distributed.Client` is connected to."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    def workers(self) -> tuple[str, ...]:
        found = tuple(sorted(self._client.scheduler_info(n_workers=-1)["workers"]))
        if not found:
            raise ConfigError("a Dask cluster with workers was expected, it has none; start some")
        return found

    def place(self, worker: str, make: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> RemoteObject[T]:
        piece = Task(make, *args, **kwargs)
        made = self._client.submit(_make, piece, workers=[worker], allow_other_workers=True, pure=False)
        return DaskObject(self._client, worker, made)


class DaskObject(RemoteObject[S]):
    """The result of a task, at the worker that ran it."""

    def __init__(self, client: Any, worker: str, made: Any) -> None:
        self.worker = worker
        self._client = client
        self._made = made

    def run(
        self, work: Callable[Concatenate[S, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[tuple[T, float]]:
        found: Future[tuple[T, float]] = WorkerFuture(self.worker)
        task = self._submit(run_task, Task(work, *args, **kwargs))

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

    def derive(self, make: Callable[Concatenate[S, P], T], /, *args: P.args, **kwargs: P.kwargs) -> RemoteObject[T]:
        return DaskObject(self._client, self.worker, self._submit(_make, Task(make, *args, **kwargs)))

    def _submit(self, call: Callable[..., Any], piece: Task[Any]) -> Any:
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


def _make(piece: Task[T], *state: Any) -> T:
    return piece.run(*state)[0]

"""Store a party's data at the workers of a Dask cluster (`pip install securevfl[dask]`).

Every stored object is the result of a Dask task. Dask stores it at the worker that computed it, as long as this process
has a reference to its future. A function on a result is another task that depends on it, so Dask runs it at the same
worker. If a worker is lost, Dask runs the tasks of its results again at another worker, and then the tasks that were in
progress.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Concatenate

from securevfl.errors import ConfigError, SecureVFLError, TransportError
from securevfl.runtime.executor import Task, run_task
from securevfl.runtime.worker_backend import P, RemoteObject, S, T, WorkerBackend, WorkerFuture


class DaskBackend(WorkerBackend):
    """The workers of a Dask cluster.

    Args:
        client: a `distributed.Client` that is connected to the cluster.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of the workers. Raises ConfigError if there are none."""
        names = tuple(sorted(self._client.scheduler_info(n_workers=-1)["workers"]))
        if not names:
            raise ConfigError("the Dask cluster has no workers", "start workers", code="SVFL-JOB-CLUSTER")
        return names

    def place(self, worker: str, make: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> RemoteObject[T]:
        """Run a function at this worker, and store its value there."""
        task = Task(make, *args, **kwargs)
        future = self._client.submit(_compute, task, workers=[worker], allow_other_workers=True, pure=False)
        return DaskObject(self._client, worker, future)


class DaskObject(RemoteObject[S]):
    """The result of a Dask task, at the worker that ran it.

    Args:
        client: the client that submitted the task.
        worker: name of the worker.
        future: Dask's future of the task.
    """

    def __init__(self, client: Any, worker: str, future: Any) -> None:
        self.worker = worker
        self._client = client
        self._future = future

    def run(
        self, work: Callable[Concatenate[S, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[tuple[T, float]]:
        """Run a function on the result at its worker; return its value and the CPU seconds that it took."""
        future: Future[tuple[T, float]] = WorkerFuture(self.worker)
        dask_future = self._submit(run_task, Task(work, *args, **kwargs))

        def complete(finished: Any) -> None:
            try:
                future.set_result(finished.result())
            except SecureVFLError as error:
                future.set_exception(error)
            except Exception as error:  # raised by the function itself, or by Dask if the cluster is lost
                future.set_exception(_worker_failed(self.worker, type(error).__name__))

        dask_future.add_done_callback(complete)
        return future

    def derive(self, make: Callable[Concatenate[S, P], T], /, *args: P.args, **kwargs: P.kwargs) -> RemoteObject[T]:
        """Run a function on the result, and store its value at the same worker."""
        return DaskObject(self._client, self.worker, self._submit(_compute, Task(make, *args, **kwargs)))

    def _submit(self, call: Callable[..., Any], task: Task[Any]) -> Any:
        """Submit a task to the worker, or to any other worker if it is lost."""
        try:
            return self._client.submit(
                call, task, self._future, workers=[self.worker], allow_other_workers=True, pure=False
            )
        except Exception as error:  # Dask's error if the client is closed
            raise _worker_failed(self.worker, type(error).__name__) from None


def _worker_failed(worker: str, kind: str) -> TransportError:
    return TransportError(
        f"a task failed at worker {worker} with {kind}",
        "check the logs of the worker and the scheduler, and run the same command again once the cluster is up",
        code="SVFL-JOB-CLUSTER",
    )


def _compute(task: Task[T], *state: Any) -> T:
    return task.run(*state)[0]

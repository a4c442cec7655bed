"""State at the workers of a Dask cluster (`pip install securevfl[dask]`).

What is placed is the result of a task, which Dask keeps where it was made for as long as this process holds its future;
work is a task that depends on it, and so runs there. A worker that is lost takes its results along: Dask runs the tasks
that made them again on another one, and those that were under way.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Concatenate, ParamSpec, TypeVar

from securevfl.errors import ConfigError, SecureVFLError, TransportError
from securevfl.runtime.placing import Errand, Placed, Placing

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


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
        errand = Errand(make, args, kwargs)
        made = self._client.submit(_make, errand, workers=[worker], allow_other_workers=True, pure=False)
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
        found: Future[tuple[T, float]] = Future()
        task = self._client.submit(_run, Errand(work, args, kwargs), self._made, pure=False)

        def came(task: Any) -> None:
            try:
                found.set_result(task.result())
            except SecureVFLError as error:
                found.set_exception(error)
            except Exception as error:  # Dask's own for a cluster that is gone, and what the work raises
                kind = type(error).__name__
                found.set_exception(
                    TransportError(f"work was expected back from worker {self.worker}, {kind} came; look at its log")
                )

        task.add_done_callback(came)
        return found

    def derive(self, make: Callable[Concatenate[S, P], T], /, *args: P.args, **kwargs: P.kwargs) -> Placed[T]:
        made = self._client.submit(_make, Errand(make, args, kwargs), self._made, pure=False)
        return DaskPlaced(self._client, self.worker, made)


def _make(errand: Errand[T], *state: Any) -> T:
    return errand.make(*state)


def _run(errand: Errand[T], *state: Any) -> tuple[T, float]:
    return errand.run(*state)

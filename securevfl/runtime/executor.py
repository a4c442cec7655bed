"""Run a party's expensive work on an executor of its choice: timed, hidden from logs, and repeated if it is lost.

Any `concurrent.futures.Executor` can be used: threads, processes, `distributed.Client(...).get_executor()`. Tasks are
pure functions. If a task fails in the executor or does not return, the thread that waits for its result runs it again:

- If a worker process is killed, its pool fails all tasks that it has accepted. A cluster that loses its last worker
  waits without an error.
- A cluster may log a failed call with its arguments, which may include a key. The repr of a `Task` shows no argument.
- A cluster may answer equal calls from a cache; two encryptions would then use the same randomness. Therefore no two
  `Task` objects are equal.

Tasks contain secret keys. An executor must therefore belong to one party, and a cluster needs TLS.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Generic, ParamSpec, TypeVar
from uuid import uuid4

from securevfl.errors import SecureVFLError
from securevfl.runtime import eventlog
from securevfl.runtime.worker_processes import LazyPool

P = ParamSpec("P")
T = TypeVar("T")

TASK_TIMEOUT = 120.0  # seconds after which the thread that waits for a task's result runs the task itself


class Task(Generic[T]):
    """One call of a function. Its repr shows neither function nor arguments, and it equals no other task."""

    __slots__ = ("_args", "_kwargs", "_serial", "_work")

    def __init__(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> None:
        self._work, self._args, self._kwargs = work, args, kwargs
        self._serial = uuid4().bytes

    def __repr__(self) -> str:
        return "<a piece of work>"

    def run(self, *state: Any) -> tuple[T, float]:
        """Call the function; return its result and the CPU seconds that it took.

        `state` are arguments that the worker provides; they precede the arguments of the task.
        """
        started = time.thread_time()
        result = self._work(*state, *self._args, **self._kwargs)
        return result, time.thread_time() - started


def run_task(task: Task[T], *state: Any) -> tuple[T, float]:
    """Run a task. This is the function that is submitted to executors."""
    return task.run(*state)


class TaskFuture(Future[T]):
    """The future of a task. `result` runs the task in the calling thread if the executor has lost it.

    Args:
        task: the function call that an executor runs.
        add_seconds: called with the CPU seconds of the task if the executor returns its result.
        report: called with the name of the error class if the executor loses the task.
        timeout: seconds that `result` waits for the executor before it runs the task.
    """

    def __init__(
        self,
        task: Task[T],
        add_seconds: Callable[[float], None],
        report: Callable[[str], None],
        timeout: float,
    ) -> None:
        super().__init__()
        self._timeout = timeout
        self._task = task
        self._add_seconds = add_seconds
        self._report = report
        self._returned = threading.Event()
        self._lock = threading.Lock()

    def complete(self, inner: Future[tuple[T, float]]) -> None:
        """Copy the result or the error from the executor's future."""
        try:
            result, seconds = inner.result()
        except SecureVFLError as error:
            self._set(error=error)
        except Exception as error:  # each library has a different error for a lost worker
            self._report(type(error).__name__)
        else:
            if self._set(result):
                self._add_seconds(seconds)
        self._returned.set()

    def reject(self, error: Exception) -> None:
        """Record that the executor has not accepted the task, so that `result` runs it."""
        self._report(type(error).__name__)
        self._returned.set()

    def result(self, timeout: float | None = None) -> T:
        """Return the result; run the task in this thread if the executor has lost it.

        Args:
            timeout: seconds until TimeoutError is raised; None to wait for the executor, and then run the task.

        Returns:
            The result of the task.

        Raises:
            TimeoutError: if the executor has not returned the task within `timeout` seconds.
        """
        returned = self._returned.wait(self._timeout if timeout is None else timeout)
        if not returned and timeout is not None:
            raise TimeoutError
        if not self.done():
            if not returned:
                self._report("TimeoutError")
            try:
                result, _ = self._task.run()  # the task's CPU seconds are part of this thread's own time
            except Exception as error:
                self._set(error=error)
            else:
                self._set(result)
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error of the task, or None; wait or run the task as `result` does."""
        try:
            self.result(timeout)
        except Exception as error:
            if not self.done():
                raise
            return error
        return None

    def _set(self, result: T | None = None, error: Exception | None = None) -> bool:
        """Set the result or the error unless one is set already; return whether it was set."""
        with self._lock:
            if self.done():
                return False
            if error is None:
                self.set_result(result)  # type: ignore[arg-type]
            else:
                self.set_exception(error)
            return True


class TimedExecutor(Executor):
    """An executor that forwards tasks to another one, measures their CPU time, and repeats lost tasks.

    Args:
        inner: the executor that runs the tasks.
        workers: number of tasks that `inner` runs at a time.
        task_timeout: seconds after which the thread that waits for a task runs it; `TASK_TIMEOUT` by default.
    """

    def __init__(self, inner: Executor, workers: int, task_timeout: float | None = None) -> None:
        self.workers = workers
        self._task_timeout = TASK_TIMEOUT if task_timeout is None else task_timeout
        self._inner = inner
        self._thread_state = threading.local()
        self._reported: set[str] = set()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a call; see `concurrent.futures.Executor.submit`."""
        task = Task(fn, *args, **kwargs)
        future = TaskFuture(task, self._seconds().append, self._report, self._task_timeout)
        try:
            inner = self._inner.submit(run_task, task)
        except Exception as error:  # the inner executor is broken or shut down
            future.reject(error)
        else:
            inner.add_done_callback(future.complete)
        return future

    def in_threads(self) -> TimedExecutor:
        """Return an executor with threads of this process instead, if this one uses a `LazyPool`; else this executor.

        The number of threads is that of the pool's processes. The times of both executors are counted together.
        """
        if not isinstance(self._inner, LazyPool):
            return self
        threads = TimedExecutor(self._inner.threads, self.workers, self._task_timeout)
        threads._thread_state = self._thread_state
        return threads

    def makespan(self) -> float:
        """Return the seconds that this thread's tasks since the previous call would take on `workers` computers."""
        seconds, self._thread_state.seconds = self._seconds(), []
        return max(max(seconds), sum(seconds) / self.workers) if seconds else 0.0

    def _seconds(self) -> list[float]:
        """Return the CPU seconds of each task that has returned to this thread."""
        return self._thread_state.__dict__.setdefault("seconds", [])

    def _report(self, error: str) -> None:
        if error not in self._reported:
            self._reported.add(error)
            eventlog.warn("", "an executor lost a task, which is run again here", {"error": error})

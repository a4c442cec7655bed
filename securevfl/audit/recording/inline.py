"""An executor that does each piece of work at once, in the thread that hands it over, cut as one of three workers.

So the ways that code goes where it has an executor are watched like those where it has none: draws stand under the name
of their party, in order, and nothing is lost in another process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import ParamSpec, TypeVar
from unittest import mock

from securevfl.protocols.shares import product_work

P = ParamSpec("P")
T = TypeVar("T")

__all__ = ["WAYS", "Inline", "any_work"]


class Inline(Executor):
    """An executor that does each piece of work at once, in the calling thread."""

    workers = 3

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Do the call now; the future is done, with its result or its error."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


WAYS: tuple[Executor | None, ...] = (None, Inline())  # what a check that runs twice takes in turn


@contextmanager
def any_work(executor: Executor | None) -> Iterator[None]:
    """While the block runs, no work is too little for an executor, if there is one."""
    with mock.patch.object(product_work, "WORTH", product_work.WORTH if executor is None else 0.0):
        yield

"""Helpers of checks over two runs: with and without an executor, and comparison of message sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar
from unittest import mock

from securevfl.audit.recording.transcript import Transcript
from securevfl.audit.transcript_checks import Outcome, ReceivedMessages
from securevfl.protocols.shares import product_work

P = ParamSpec("P")
T = TypeVar("T")


class Inline(Executor):
    """An executor that does the work in the calling thread, divided as among three workers.

    So checks also cover the code paths with an executor, and every draw is recorded in order, under its party's name.
    """

    workers = 3

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run the call immediately, and return a finished future with its result or error."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


WAYS: tuple[Executor | None, ...] = (None, Inline())  # the executors that a check that runs twice uses


@contextmanager
def any_work(executor: Executor | None) -> Iterator[None]:
    """While the block runs, use the executor, if there is one, for any amount of work."""
    with mock.patch.object(
        product_work, "MIN_EXECUTOR_SECONDS", product_work.MIN_EXECUTOR_SECONDS if executor is None else 0.0
    ):
        yield


def same_shape(a: Transcript, b: Transcript) -> Outcome:
    """Check that two runs of one job on tables of the same shape have messages of equal sizes and equal headers."""
    outcome = Outcome()
    shapes = []
    for run in (a, b):
        received = ReceivedMessages(run)
        by_receiver: dict[tuple[str, str, str], list[Any]] = defaultdict(list)
        for item in received.items:
            event, headers = item.event, tuple(part.header for part in item.parts)
            by_receiver[event.me, event.peer, event.subchannel].append((item.name, event.nbytes, headers))
        shapes.append(by_receiver)
    for place in shapes[0] | shapes[1]:
        for first, second in zip(shapes[0].get(place, []), shapes[1].get(place, []), strict=False):
            if first != second:
                outcome.add("shape", place[0], f"the size or the header of {first[0]} from {place[1]} follows the data")
                break
        if len(shapes[0].get(place, [])) != len(shapes[1].get(place, [])):
            outcome.add("shape", place[0], f"the number of messages from {place[1]} follows the data")
    return outcome

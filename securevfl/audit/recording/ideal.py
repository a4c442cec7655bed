"""The ideal functionality of a job: the same training with nothing hidden, from the same data and the same draws.

What a party is handed by it is its declared output. So that the two runs differ by messages alone, the ideal one takes
over what the real one has drawn at random: what a defence has made of g, and the keys of random features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from securevfl.audit.recording.defended import giving
from securevfl.base.arrays import Floats
from securevfl.job import Job
from securevfl.methods.base import Method
from securevfl.methods.player import Player
from securevfl.methods.state import State
from securevfl.protocols.seat import Seat
from securevfl.training.run import Run


def ideal_job(job: Job, blurred: Sequence[Floats] = ()) -> Job:
    """Return a job for the same training with nothing hidden, from which the declared outputs are computed.

    blurred: what the job's defence, if it has one, has made of each g of the real run.
    """
    ideal = job.method.ideal(job)
    if ideal.protocol.residual is None:
        return ideal
    protocol = ideal.protocol.model_copy(update={"residual": giving(ideal.protocol.residual, blurred)})
    return ideal.model_copy(update={"protocol": protocol})


@contextmanager
def drawing_from(job: Job, run: Run) -> Iterator[None]:
    """While the block runs, every party starts from what it has drawn for itself in another run of the job."""
    method = type(job.method)
    make = method.player

    def start(self: Method[Any], job: Job, seat: Seat, columns: int, state: State | None) -> Player:
        drawn = self.drawn(run.parts[seat.me].state) if state is None else state
        return make(self, job, seat, columns, drawn)

    with mock.patch.object(method, "player", start):
        yield

"""Runs with a witness at every seat: of a whole job, of one sum alone, of one residual alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.recording.transcript import COLLECTS, Transcript, Witness, WitnessedResidual, WitnessedSum
from securevfl.audit.recording.views import defence_of, noting
from securevfl.base.arrays import Floats
from securevfl.base.roles import CONTRIBUTOR, Roles
from securevfl.data.party import Party, check_parties, register_of
from securevfl.families.sizes import declared_of
from securevfl.job import Job
from securevfl.models.loss import classes_of
from securevfl.protocols.declared import Space
from securevfl.protocols.differentiable import FixedJacobian
from securevfl.protocols.residuals.base import Agreement, Batch, ResidualProtocol
from securevfl.protocols.seat import Seat
from securevfl.protocols.shares import share_products
from securevfl.protocols.sums.base import SumProtocol
from securevfl.runtime.channel import Channel, Event
from securevfl.runtime.clock import WallClock
from securevfl.runtime.executor import Meter
from securevfl.runtime.threads import run_threads
from securevfl.training.run import Run
from securevfl.training.simulate import simulate

# An executor that does each piece of work at once, in the thread that hands it over, cut as one of three workers.
#
# So the ways that code goes where it has an executor are watched like those where it has none: draws stand under the
# name of their party, in order, and nothing is lost in another process.


P = ParamSpec("P")
T = TypeVar("T")


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
    with mock.patch.object(share_products, "WORTH", share_products.WORTH if executor is None else 0.0):
        yield


def record(job: Job, parties: Sequence[Party], executor: Executor | None = None) -> tuple[Transcript, Run]:
    """Run the job with all parties in this process, and keep everything that anyone receives.

    executor: takes the heavy calls, however little they are; without one they run as they come. Raises what `simulate`
    raises.
    """
    lead, others = check_parties(parties)
    roles = job.method.cast([lead, *others])
    roles = job.method.assigned(job, roles, {party.name: len(party.columns) for party in parties})
    witness = Witness()
    sums = WitnessedSum(inner=job.protocol.sum_for(sum(bool(party.columns) for party in others)))
    sums._witness = witness
    residual = job.protocol.residual
    if residual is not None:
        watched = WitnessedResidual(inner=noting(residual, witness.blurred(lead.name)))
        watched._witness, residual = witness, watched
    seen = {"sum": sums, "residual": residual} if job.protocol.method is None else {}
    own = job.model_copy(update={"protocol": job.protocol.model_copy(update=seen)})
    events: list[Event] = []
    with any_work(executor):
        run = simulate(own, parties, workers=1 if executor is None else None, executor=executor, observe=events.append)
    secrets: dict[str, NDArray[Any]] = {f"the columns of {party.name}": party.X for party in parties}
    # targets of the training rows (m x c), in the order of the schedule
    y, loss, rows = np.asarray(lead.y), job.model.loss, job.schedule(register_of([lead, *others])).flow
    secrets[f"the labels of {lead.name}"] = loss.targets(
        y[rows], classes_of(lead.name, loss, y if loss.classifies else y[rows], job.positive)
    )
    transcript = Transcript(
        events,
        roles,
        declared_of(job.method, job, roles),
        witness,
        secrets,
        rotates=_rotates(job.protocol.residual),
        defended=job.protocol.residual is not None and defence_of(job.protocol.residual) is not None,
    )
    return transcript, Run(job, run.parts)


def _rotates(residual: ResidualProtocol | None) -> bool:
    engine = getattr(residual, "engine", None)
    return bool(engine is not None and engine.scheme().rotates)


def record_sum(
    sums: SumProtocol, rounds: Sequence[Mapping[str, NDArray[Any]]], space: Space, executor: Executor | None = None
) -> Transcript:
    """One sum protocol alone: in round t party k contributes rounds[t][k], and `COLLECTS` collects."""
    cast = Roles.sum(COLLECTS, rounds[0])
    shape = next(iter(rounds[0].values())).shape
    witness = Witness()
    watched = WitnessedSum(inner=sums)
    watched._witness = witness

    def seat(channel: Channel) -> Seat:
        return Seat(channel, cast, Meter(channel.clock, channel.books, executor))

    def collect(channel: Channel) -> None:
        role = watched.role(seat(channel))
        for _ in rounds:
            role.collect(shape, space)

    def contribute(channel: Channel) -> None:
        role = watched.role(seat(channel))
        for parts in rounds:
            role.contribute(parts[channel.me], space)

    events: list[Event] = []
    roles: dict[str, Callable[[Channel], None]] = {COLLECTS: collect, **dict.fromkeys(rounds[0], contribute)}
    run_threads(roles, WallClock, timeout=60.0, observe=events.append)
    return Transcript(events, cast, sums.declares(cast.having(CONTRIBUTOR)), witness)


def record_residual(
    residual: ResidualProtocol,
    residuals: Sequence[Floats],
    jacobians: Mapping[str, Sequence[Floats]],
    *,
    epochs: int,
    executor: Executor | None = None,
) -> Transcript:
    """One residual protocol alone: every epoch the active party publishes each g (n x c), |g| <= 1, in turn.

    jacobians: for every passive party one J (n x d) for each g.
    """
    passives = tuple(jacobians)
    cast = Roles.labelled(COLLECTS, passives)
    outputs = residuals[0].shape[1]
    witness = Witness()
    watched = WitnessedResidual(inner=noting(residual, witness.blurred(COLLECTS)))
    watched._witness = witness

    def seat(channel: Channel) -> Seat:
        witness.sessions.add(channel.session)
        return Seat(
            channel=channel,
            roles=cast,
            meter=Meter(channel.clock, channel.books, executor),
            outputs=outputs,
            parameters={name: J[0].shape[1] * outputs for name, J in jacobians.items()},
        )

    def publish(channel: Channel) -> None:
        role = watched.active(seat(channel), Agreement())
        for epoch in range(epochs):
            for g in residuals:
                role.publish(g, epoch=epoch, to=passives)
        role.close()

    def ask(channel: Channel) -> None:
        role = watched.passive(seat(channel), Agreement())
        for epoch in range(epochs):
            for index, J in enumerate(jacobians[channel.me]):
                role.reply().gradient(FixedJacobian(), Batch(index, epoch, J))
        role.close()

    events: list[Event] = []
    roles: dict[str, Callable[[Channel], None]] = {COLLECTS: publish, **dict.fromkeys(passives, ask)}
    run_threads(roles, WallClock, timeout=60.0, observe=events.append)
    return Transcript(
        events,
        cast,
        residual.declares(),
        witness,
        rotates=_rotates(residual),
        defended=defence_of(residual) is not None,
    )

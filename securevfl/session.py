"""One party's whole run, whatever carries its messages: handshake, guards, training, evaluation.

1. all <-> all        Hello      digest of the job, rows, columns, outputs, keyed digest of the row order, rounds saved
2. per round          the optimizer's exchanges
3. where due          joint evaluation, then active -> passive: Verdict, go on or stop
4. at the end         joint evaluation on the held-out rows
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl import eventlog, metrics
from securevfl.channel import Channel
from securevfl.checkpoint import FINISHED, Checkpoints, State, common_round
from securevfl.clock import Kind, Phase
from securevfl.codec import Message
from securevfl.config import plain
from securevfl.costs import Meter
from securevfl.crypto.scheme import Floats
from securevfl.errors import ConfigError, IdError, ProtocolError, TableError
from securevfl.job import Job
from securevfl.leakage import guard
from securevfl.learner import KernelLearner, LinearLearner, make_learner
from securevfl.models.kernel import Kernel, KernelShare
from securevfl.models.linear import Linear, starting_weights
from securevfl.part import Part
from securevfl.party import Party
from securevfl.protocols.base import Batch, Seat
from securevfl.scaling import moments
from securevfl.schedule import Rows, Schedule, Visit

SAMPLE = 1024  # rows that the first weights are drawn from


class Hello(Message, frozen=True):
    """What a party says of itself before anything else. saved, run: its states are of these rounds of this training."""

    job: bytes
    rows: int
    columns: int
    outputs: int
    order: bytes
    saved: tuple[int, ...]
    run: str


class Verdict(Message, frozen=True):
    """Whether the target is reached."""

    stop: bool


def take_part(
    job: Job,
    party: Party,
    channel: Channel,
    *,
    active: str,
    passives: Sequence[str],
    executor: Executor | None = None,
    workers: int = 1,
    on_round: Callable[[int, int], None] | None = None,
    checkpoints: Checkpoints | None = None,
) -> Part:
    """Trains with the others over `channel` and returns this party's part.

    `on_round(done, of)` is called after every round. With checkpoints the run goes on from the last round that all
    parties have a state for, and the part is on disk when this returns (`Checkpoints.final`).
    """
    key = run_key(job, party) if checkpoints is not None else b""
    constant = isinstance(job.model, Kernel) and not party.active
    saved = checkpoints.rounds(key, constant=constant) if checkpoints is not None else ()
    run = checkpoints.run(key) if checkpoints is not None else ""
    hellos = _greet(job, party, channel, active=active, passives=passives, saved=saved, run=run)
    outputs = hellos[active].outputs
    schedule = Schedule(
        len(party),
        batch_size=job.batch_size,
        epochs=job.epochs,
        seed=job.seed,
        test_fraction=job.test_fraction,
        reshuffle=job.reshuffle,
    )
    columns = {name: hellos[name].columns for name in passives}
    guard(job, columns, batch_rows=schedule.smallest_batch, outputs=outputs, rows=len(schedule.train))
    seat = Seat(
        channel=channel,
        active=active,
        passives=tuple(passives),
        meter=Meter(channel.clock, channel.ledger, executor, workers),
        outputs=outputs,
        residual_bound=job.model.loss.bound,
        openings=dict.fromkeys(passives, 1),
        widths=columns,
        seed=job.seed,
    )
    labelled = [name for name in (active, *passives) if hellos[name].outputs]
    together = len({hello.run for hello in hellos.values()}) == 1
    start = common_round([hello.saved for hello in hellos.values()]) if together else 0
    if checkpoints is not None and start == FINISHED and (done := checkpoints.final(key)) is not None:
        return done
    state = None
    if checkpoints is not None and start:
        checkpoints.reopen(key)
        state = checkpoints.load(key, start)
        _recognise(party.name, state, channel.keys)
    elif checkpoints is not None:
        checkpoints.clear(key)
    save = None if checkpoints is None else partial(_save, checkpoints, key)
    worker = Worker(job, party, seat, schedule, labelled, on_round, save, state)
    channel.clock.phase = Phase.TRAIN
    worker.train()
    channel.clock.phase = Phase.EVALUATE
    part = worker.finish()
    if checkpoints is not None:
        checkpoints.finish(key, part)
    return part


def run_key(job: Job, party: Party) -> bytes:
    """What the states of a party are filed under: the job and the table it trains on, 32 bytes."""
    table = json.dumps([len(party), party.columns]).encode()
    return hashlib.sha256(job.digest + party.order.ljust(32, b"\0") + table).digest()


def _recognise(me: str, state: State, keys: Mapping[str, str]) -> None:
    """Tells from where the run goes on, and whose certificate key is not the one of that state."""
    eventlog.emit(me, "resumed", {"round": state.round})
    for name, before in state.identities.items():
        if keys.get(name, before) != before:
            why = f"{name} shows another key than up to round {state.round}; if it has not renewed it, stop and ask it"
            facts = {"peer": name, "before": before, "now": keys[name], "reason": why}
            eventlog.emit(me, "key changed", facts, logging.ERROR)


def _save(checkpoints: Checkpoints, key: bytes, rounds: int, state: Callable[[], State]) -> None:
    if checkpoints.due(rounds):
        checkpoints.save(key, state())


def _greet(
    job: Job, party: Party, channel: Channel, *, active: str, passives: Sequence[str], saved: tuple[int, ...], run: str
) -> dict[str, Hello]:
    loss = job.model.loss
    outputs = loss.outputs(loss.classes(party.y)) if party.y is not None else 0
    order = hmac.digest(channel.session, party.order, hashlib.sha256) if party.order else b""
    own = Hello(job.digest, len(party), party.X.shape[1], outputs, order, saved, run)
    peers = [name for name in (active, *passives) if name != party.name]
    for peer in peers:
        channel.send(peer, own)
    hellos = {party.name: own} | {peer: channel.recv(peer, Hello) for peer in peers}
    for peer in peers:
        hello = hellos[peer]
        if hello.job != own.job:
            raise ConfigError(f"{peer} runs another job than {party.name}; give both the same job file")
        if hello.rows != own.rows:
            raise TableError(f"{peer} has {hello.rows} rows, {party.name} {own.rows}; align the tables first")
        if hello.order and own.order and not hmac.compare_digest(hello.order, own.order):
            raise IdError(f"{peer} and {party.name} hold their rows in different order; align the tables first")
        labelled = hello.outputs > 0
        if hello.columns < 1 or (labelled != (peer == active) and not (labelled and job.optimizer.several_active)):
            raise ProtocolError(f"{peer} was expected to be {'active' if peer == active else 'passive'}; check roles")
    return hellos


class Worker:
    """One party at work; what its optimizer sees of it."""

    def __init__(
        self,
        job: Job,
        party: Party,
        seat: Seat,
        schedule: Schedule,
        labelled: Sequence[str],
        on_round: Callable[[int, int], None] | None,
        save: Callable[[int, Callable[[], State]], None] | None,
        state: State | None,
    ) -> None:
        self.parties = len(seat.parties)
        self.seed = job.seed
        self.job = job
        self.seat = seat
        self.schedule = schedule
        self.start = state.round if state is not None else 0
        self.history: list[dict[str, float]] = [] if state is None else state.history
        self._run = seat.channel.session.hex() if state is None else state.run
        self._party = party
        self._active = party.name == seat.active
        self._on_round = on_round
        self._loss = job.model.loss
        self._trained = seat.channel.clock.path()
        self._save = save
        self._exchanged = state.exchanges if state is not None else 0
        self._round = self.start
        self._stopped = False
        self._batch_loss: float | None = None
        self.mean, self.deviation = _scaling(party.X, schedule.flow, job.scale)
        self.classes: NDArray[Any] | None = None
        self.targets: Floats | None = None
        if party.y is not None:
            self.classes = self._loss.classes(party.y)
            self.targets = self._loss.targets(party.y, self.classes)
        key, theta = (b"", self._start()) if state is None else (state.key, state.theta)
        self.learner = make_learner(job, seat, party.X.shape[1], labelled, key=key, theta=theta)

    @property
    def model(self) -> Linear:
        """Its part of a linear model."""
        assert isinstance(self.learner, LinearLearner)
        return self.learner.model

    @property
    def kernel(self) -> KernelShare:
        """Its share of a kernel model."""
        assert isinstance(self.learner, KernelLearner)
        return self.learner.share

    def train(self) -> None:
        """Runs the optimizer's schedule for this party's role."""
        self.learner.train(self)
        clock = self.seat.channel.clock
        clock.tick(Kind.LOCAL)
        self._trained = clock.path()

    def sample(self, rows: int) -> list[Batch]:
        """The first batches of the partition that hold as many rows, or all."""
        taken: list[Batch] = []
        held = 0
        for index, part in enumerate(self.schedule.partition(0)):
            if held >= rows:
                break
            taken.append(self._batch(Visit(index, 0, part)))
            held += len(part)
        return taken

    def batches(self) -> Iterator[Batch]:
        """This party's side of every batch, in the order all share; evaluates between them where that is due."""
        every = self.job.evaluation_interval
        for visit in islice(self.schedule.visits(), self.start, None):
            self._batch_loss = None
            yield self._batch(visit)
            self._round += 1
            record = {"round": float(self._round), "epoch": float(visit.epoch)}
            if self._batch_loss is not None:
                record["batch_loss"] = self._batch_loss
            if every and self._round % every == 0:
                record |= self._evaluate_and_decide()
            if self._active:
                self.seat.channel.clock.tick(Kind.LOCAL)
                record["seconds"] = float(self.seat.channel.clock.path()[Phase.TRAIN].sum())
                self.history.append(record)
            if self._on_round is not None:
                self._on_round(self._round, len(self.schedule))
            if self._save is not None:
                self._save(self._round, self._state)
            if self._stopped:
                return

    def residual(self, f: Floats, batch: Batch) -> Floats:
        """g (n x c) of this loss; the first of a batch also books its loss."""
        assert batch.y is not None, "only the active party has labels"
        if self._batch_loss is None:
            self._batch_loss = float(self._loss.value(f, batch.y).mean())
        return self._loss.residual(f, batch.y)

    def finish(self) -> Part:
        """Evaluates a last time and packs what this party takes home."""
        measured = self._evaluate()
        seat, party = self.seat, self._party
        path = seat.channel.clock.path()
        path[: Phase.EVALUATE] = self._trained[: Phase.EVALUATE]  # others may have evaluated while this one trained
        return Part(
            name=party.name,
            role="active" if self._active else "passive",
            job=plain(self.job),
            parties=list(seat.parties),
            columns=party.columns,
            mean=self.mean,
            deviation=self.deviation,
            theta=self.learner.theta,
            key=self.learner.key,
            outputs=seat.outputs,
            classes=self.classes,
            metrics=measured,
            history=self.history,
            rounds=self._exchanged + self.learner.rounds if self._active else 0,
            ledger=seat.channel.ledger,
            path=path,
            run=self._run,
        )

    def _start(self) -> Floats | None:
        """The active party's first weights of a linear model; the others start from zero."""
        if self.targets is None or isinstance(self.job.model, Kernel):
            return None
        sample = np.arange(len(self.targets))[:SAMPLE]
        return starting_weights(self._party.X[sample], self._scaled(sample), self.targets, self.job.seed)

    def _state(self) -> State:
        exchanges = self._exchanged + self.learner.rounds
        learner, keys = self.learner, dict(self.seat.channel.keys)
        return State(self._round, exchanges, learner.theta, learner.key, self.history, self._run, keys)

    def _batch(self, visit: Visit) -> Batch:
        rows = visit.rows if self.learner.wants(visit.index) else visit.rows[:0]
        targets = None if self.targets is None else self.targets[visit.rows]
        return Batch(visit.index, visit.epoch, self._scaled(rows), targets)

    def _scaled(self, rows: Rows) -> Floats:
        scaled: Floats = (self._party.X[rows] - self.mean) / self.deviation
        return scaled

    def _evaluate(self) -> dict[str, float]:
        """Metrics on the held-out rows, or without any on the training rows; empty at a passive party."""
        rows, batches = self.schedule.test, []
        if not len(rows):
            parts = self.schedule.partition(0)
            rows, ends = np.concatenate(parts), np.cumsum([len(part) for part in parts]).tolist()
            batches = [slice(end - len(part), end) for part, end in zip(parts, ends, strict=True)]

        def table(block: slice) -> Floats:
            return self._scaled(rows[block])

        f = self.learner.decision(table, len(rows), again=self.job.evaluation_interval > 0, batches=batches)
        if f is None:
            return {}
        assert self._party.y is not None
        assert self.classes is not None
        return metrics.evaluate(self._loss, f, self._party.y[rows], self.classes)

    def _evaluate_and_decide(self) -> dict[str, float]:
        self.learner.settle()
        clock = self.seat.channel.clock
        clock.tick(Kind.LOCAL)
        clock.phase = Phase.EVALUATE
        measured = self._evaluate()
        target = self.job.target
        if target is not None:
            if self._active:
                self._stopped = metrics.reached(target.metric, measured[target.metric], target.value)
                for passive in self.seat.passives:
                    self.seat.channel.send(passive, Verdict(self._stopped))
            else:
                self._stopped = self.seat.channel.recv(self.seat.active, Verdict).stop
        clock.tick(Kind.LOCAL)
        clock.phase = Phase.TRAIN
        return measured


def _scaling(X: Floats, train: Rows, scale: str) -> tuple[Floats, Floats]:
    """Mean and deviation of each column over the training rows; (0, 1) without scaling."""
    if scale == "none":
        return np.zeros(X.shape[1]), np.ones(X.shape[1])
    mean, deviation = moments(X, train)
    return mean, np.where(deviation > 0, deviation, 1.0)

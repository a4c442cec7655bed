"""One party's whole run, whatever carries its messages and whatever its method: meet, check, count, play.

1. all <-> all        RunHello    (`securevfl.protocols.party_context`)
2. per round          what the method's player exchanges (`securevfl.families`)
3. where due          joint evaluation, then leading party -> all others: StopDecision, go on or stop
4. at the end         joint evaluation on the held-out rows
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from securevfl.base.config import to_plain
from securevfl.base.roles import Roles
from securevfl.consent.booking import Booking, Sitting
from securevfl.consent.consent_sheet import Sheet, own_sheet
from securevfl.data.baseline import baselines, most
from securevfl.data.party import Party
from securevfl.data.preparation import FittedPreparation
from securevfl.data.register import Register
from securevfl.data.schedule import Schedule
from securevfl.data.validation import some
from securevfl.disclosure.counts import Sizes
from securevfl.disclosure.exposure import ROWS, enough
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import (
    ConfigError,
    DataNotice,
    DivergenceError,
    IdError,
    ProtocolError,
    RangeError,
    TableError,
    TransportError,
)
from securevfl.families.participant import Round
from securevfl.families.run_shape import sizes_of
from securevfl.families.table_preparation import prepare
from securevfl.families.training_data import TrainingData
from securevfl.families.weights_of_evidence import weigh
from securevfl.job import Job
from securevfl.models import metrics
from securevfl.models.linear import LinearModel
from securevfl.models.log_link_losses import LogLinkLoss
from securevfl.models.rounding_error import coefficient_error, report_coefficient_error
from securevfl.models.separation import FAR, GROW, columns_with_large_effect, separating_columns
from securevfl.models.standard_losses import LogisticLoss, SoftmaxLoss
from securevfl.optim.block_descent import BlockDescent
from securevfl.protocols.handshake import RunHello, StopDecision, exchange_hellos
from securevfl.protocols.party_context import LocalResources, PartyContext
from securevfl.protocols.permits import permit_evaluated_decision as tell_verdict
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Kind, Stage
from securevfl.runtime.disclosure_gate import Group
from securevfl.runtime.meter import Meter
from securevfl.training.checkpoint import FINISHED, Checkpoints, Saved, common_round
from securevfl.training.model_part import ModelPart, Standing

# One party while it trains: drives its player round by round, and evaluates, notes, keeps and stops in between.


MAX_FITTING_ROWS = 65_536  # rows in which separated classes are looked for

Save = Callable[[int, int, Callable[[], Saved]], None]  # rounds done, of how many, and what there is to save


@dataclass(eq=False)
class Trainee:
    """A party of a run: its player, what it has noted so far, and the part that it takes home."""

    job: Job
    party: Party
    context: PartyContext
    data: TrainingData
    run: str
    on_round: Callable[[int, int], None] | None
    save: Save | None
    saved: Saved | None

    def __post_init__(self) -> None:
        saved, self._every = self.saved, self.job.evaluation_interval
        self.rounds = self._start = 0 if saved is None else saved.round  # done so far, those before a resume among them
        self._over = saved is not None and saved.over
        self._history = [] if saved is None else saved.history
        self._best = None if saved is None else saved.best
        self._leads = self.party.name == self.context.roles.lead
        state = None if saved is None else saved.state
        self._player = self.job.method.player(self.job, self.context, self.data.columns, state)

    def train(self) -> None:
        """Plays until the rounds are over or the target is reached."""
        if not self._start:
            self._tell_separating()
        if self.save is not None and not self._start:
            self.save(0, len(self.data.schedule), lambda: self._saved(0, over=False))
        eventlog.emit(self.party.name, "begins", {}, logging.DEBUG)
        rounds = self._player.train(self.data, len(self.data.schedule) if self._over else self._start)
        try:
            for done in rounds:
                if self._after(done):
                    rounds.close()
        except BaseException as error:
            with suppress(BaseException):
                rounds.throw(error)  # so that what the player has open ends with the reason, and waits for nobody
            if isinstance(error, RangeError):
                raise DivergenceError(
                    f"{self.party.name}, round {self.rounds + 1}: {error}; a training that diverges comes to this: "
                    "lower lr, or scale the columns"
                ) from error
            raise
        self.context.channel.clock.tick(Kind.LOCAL)

    def finish(self) -> ModelPart:
        """Evaluate a last time and pack what this party takes home."""
        context, data = self.context, self.data
        exchanges = self._player.exchanges or self.rounds
        if self._best is not None and self.job.patience is not None:
            make = partial(self.job.method.player, self.job, context, data.columns)
            self._player = self._player.going_back(self._best, make)
        measured = self._evaluate(last=True)
        self._tell_far(measured)
        context.channel.clock.tick(Kind.LOCAL)
        return ModelPart(
            name=self.party.name,
            role=context.roles.role(self.party.name),
            job=to_plain(self.job),
            parties=list(context.parties),
            preparation=self.party.preparation or FittedPreparation(self.party.columns),
            scaling=data.scaling,
            state=self._player.outcome(),
            outputs=context.outputs,
            classes=data.classes,
            metrics=measured,
            calibration=self._player.calibration,
            spread=dict(self._player.spread),
            baseline=[] if self._player.scored is None else [self._player.scored],
            history=self._history,
            rounds=exchanges,
            counters=context.channel.counters,
            path=context.channel.clock.path(),
            run=self.run,
            trained=len(data.schedule.flow),
            held_out=len(data.schedule.test),
            model=self.party.model,
        )

    @property
    def _unbounded(self) -> bool:
        """Whether nothing keeps the weights of this party's columns finite where classes are separated."""
        model = self.job.model
        held = model.l2 and not isinstance(self.job.optimizer, BlockDescent)  # whose l2 is in its steps alone
        free = isinstance(model, LinearModel) and model.by_column and not held
        return free and isinstance(model.loss, LogisticLoss | SoftmaxLoss) and self.data.columns > 0

    def _tell_separating(self) -> None:
        """Say in a DataNotice which of this party's own columns separate its labels."""
        rows, targets = self.data.schedule.train[:MAX_FITTING_ROWS], self.data.targets
        if not self._unbounded or targets is None or len(self.data.schedule.train) > MAX_FITTING_ROWS:
            return
        names = np.array((self.party.preparation or FittedPreparation(self.party.columns)).features)
        if (found := separating_columns(self.data.raw(rows), targets[rows] > 0)).any():
            self._notice(f"columns that separate the labels: {some(names[found].tolist())}; {GROW}")

    def _tell_far(self, measured: dict[str, float]) -> None:
        """Say in a DataNotice that the model separates classes, as far as this party knows by metrics or by weights of
        its own."""
        if not self._unbounded:
            return
        if measured.get("auc") == 1.0:
            self._notice(f"the model ranks all rows that were measured right: classes may be separated; {GROW}")
        theta, rows = self._player.outcome().get("theta"), self.data.schedule.sample(MAX_FITTING_ROWS)
        names = np.array((self.party.preparation or FittedPreparation(self.party.columns)).features)
        if not isinstance(theta, np.ndarray) or theta.ndim != 2 or len(theta) < len(names):
            return
        if (found := columns_with_large_effect(theta[: len(names)], self.data.scaled(rows))).any():
            what = f"columns that by themselves move f by more than {FAR:g}: {some(names[found].tolist())}"
            self._notice(f"{what}; where they separate classes {GROW}")

    def _notice(self, what: str) -> None:
        descends = isinstance(self.job.optimizer, BlockDescent)
        remedy = "fewer epochs keep them small" if descends else "l2 in the model keeps them finite"
        warnings.warn(f"party {self.party.name}: {what}; {remedy}", DataNotice, stacklevel=3)

    def _after(self, done: Round) -> bool:
        """All that happens between two rounds; whether to stop."""
        stop = False
        self.rounds = done.number
        record = {"round": float(done.number), "epoch": float(done.epoch)}
        if done.loss is not None:
            record["batch_loss"] = done.loss
        measured = dict[str, float]()
        if self._every and done.number % self._every == 0:
            measured, stop = self._evaluate_and_decide()
            record |= measured
        if eventlog.LOGGER.isEnabledFor(logging.DEBUG):
            facts = {"bytes": self.context.channel.counters.bytes_sent()} | measured
            eventlog.emit(self.party.name, "at", facts, logging.DEBUG)
        if self._leads:
            clock = self.context.channel.clock
            clock.tick(Kind.LOCAL)
            record["seconds"] = float(clock.path()[: Stage.EVALUATE].sum())
            self._history.append(record)
        if self.on_round is not None:
            self.on_round(done.number, done.of)
        if self.save is not None:
            of = done.number if stop else done.of
            self.save(done.number, of, lambda: self._saved(done.number, over=done.number == of))
        return stop

    def _saved(self, rounds: int, *, over: bool) -> Saved:
        player, channel, prepared = self._player, self.context.channel, self.party.preparation
        steps = [] if prepared is None else prepared.plain()
        kept = player.state(), player.constant, steps, self._best
        return Saved(rounds, self.run, self._history, dict(channel.keys), *kept, channel.session.hex(), over)

    def _evaluate(self, *, last: bool = False) -> dict[str, float]:
        """Metrics on the held-out rows, or without any on the training rows; empty where not for this party."""
        rows: Group = "held out" if len(self.data.schedule.test) else "training"
        with self.context.channel.gate.about_rows(rows):
            return self._player.measure(self.job.model.loss, self.data, self.rounds, last=last)

    def _enough(self, measured: dict[str, float]) -> bool:
        """Whether the target is reached, or patience is at its end."""
        target, patience = self.job.target, self.job.patience
        if target is not None and metrics.reached(target.metric, measured[target.metric], target.value):
            return True
        if patience is None or patience.metric not in measured or self.rounds <= self.data.schedule.settled:
            return False
        now = [*self._past(patience.metric), measured[patience.metric]]
        return metrics.stale(patience.metric, now, patience.evaluations, patience.tolerance)

    def _is_lost(self, measured: dict[str, float]) -> bool:
        """Whether the loss says that the steps are too long; also where none is measured, so that nobody would see it
        rise."""
        losses = [record["loss"] for record in self._history if "loss" in record]
        return self._player.is_lost([*losses, measured.get("loss", math.inf)])

    def _improves(self, measured: dict[str, float]) -> bool:
        """Whether the model is better than at every evaluation before, by the metric that patience watches, or else by
        the loss."""
        metric = "loss" if self.job.patience is None else self.job.patience.metric
        if metric not in measured or self.rounds <= self.data.schedule.settled:
            return False
        return metrics.improves(metric, measured[metric], self._past(metric))

    def _past(self, metric: str) -> list[float]:
        """Return the values of this metric in the evaluations so far, of models whose last visit was to all rows or to
        the largest part of them: of models of fewer rows none is kept, nor does it end a training."""
        settled = self.data.schedule.settled
        return [record[metric] for record in self._history if metric in record and record["round"] > settled]

    def _evaluate_and_decide(self) -> tuple[dict[str, float], bool]:
        """Metrics, and whether to stop, which the leading party tells the others."""
        channel, roles = self.context.channel, self.context.roles
        channel.clock.tick(Kind.LOCAL)
        channel.clock.stage = Stage.EVALUATE
        measured, verdict = self._evaluate(), StopDecision(stop=False, is_best=False, roll_back=False)
        watched = self.job.stops_early or self._player.turns_back
        if watched and self._leads:
            back = self._player.turns_back and self._is_lost(measured)
            verdict = StopDecision(not back and self._enough(measured), not back and self._improves(measured), back)
            for name in roles.others(roles.lead):
                channel.send(name, verdict, permit=tell_verdict(channel, name))
        elif watched:
            verdict = channel.recv(roles.lead, StopDecision)
        if verdict.roll_back:
            self._player.turn_back(self._best)
        if watched and verdict.is_best:
            self._best = self._player.outcome()
        channel.clock.tick(Kind.LOCAL)
        channel.clock.stage = Stage.TRAIN
        return measured, verdict.stop


MOST = 1 << 31  # rows of a table, and numbers of a model, that a party may say it has
MOST_COLUMNS = 1 << 20
ROUNDED = 1 << 16  # rows by which it is judged what rounding does to coefficients


def take_part(
    job: Job,
    party: Party,
    channel: Channel,
    *,
    parties: Sequence[str],
    executor: Executor | None = None,
    workers: int = 1,
    on_round: Callable[[int, int], None] | None = None,
    checkpoints: Checkpoints | None = None,
    ledger: DisclosureLedger | None = None,
    ahead: Path | None = None,
    consent: Callable[[Sheet], None] | None = None,
    again: bool = True,
) -> ModelPart:
    """Trains with the others over `channel` and returns this party's part. `parties`: everyone, the leading one first.

    `on_round(done, of)` is called after every round. With checkpoints the run goes on from the last round that all
    parties have a state for, and the part is on disk when this returns (`Checkpoints.final`). With a ledger of this
    party what the run tells is entered there before it is told, and earlier runs count; without one the tables of all
    parties are in this one process. `ahead`: a folder of work that was done ahead (`make_ahead`). `consent` is given
    this party's sheet before anything of its data is told, and after all that can be refused by then; it raises to take
    no part. again: whether a training that
    is over for this party, and not for all, may begin anew; ConfigError if not.
    """
    table = party.digest
    key = _key(job, table)
    met = _met(job, party, channel, parties, key, checkpoints, ledger)
    party, schedule, sizes = met.party, met.schedule, met.sizes
    together = len({other.run for other in met.heard.values()}) == 1  # all states are of one training
    start = common_round([other.saved for other in met.heard.values()]) if together else None
    if checkpoints is not None and start == FINISHED and (whole := checkpoints.final(key)) is not None:
        whole.standing = Standing.CONFIRMED
        return whole
    if start is None:
        if not again and checkpoints is not None and checkpoints.final(key) is not None:
            raise ConfigError(
                f"{channel.me}: the training of this job on this table is over here and its model kept, the others "
                "have none that goes with it; to train anew, every party that has one runs join with --again"
            )
        if any(other.saved for other in met.heard.values()):
            why = "not all have states of one training: of this job, on a table that has not changed since"
            eventlog.warn(channel.me, "begins anew", {"reason": why})
    saved = None if checkpoints is None or start is None else checkpoints.load(key, start)
    if job.prepare.woe is None:  # labels, classes and exposures that do not fit are refused before consent
        _check_rounding(job, party.name, _data(job, party, schedule), len(parties))
    run = channel.session.hex() if saved is None else saved.run
    # A try that was cut off before all had a state is this very job to the ledger, whose entries are not another's.
    account = run if checkpoints is None else checkpoints.begin(key, run)
    sitting = Sitting(account, channel.session.hex())
    if saved is not None:  # how many visits are done, and in which session the model was trained if these are all
        done = (len(schedule), saved.session) if saved.over else (saved.round, "")
        sitting = Sitting(account, channel.session.hex(), *done)

    def asked() -> None:
        if consent is not None:
            consent(_sheet(job, met, ledger, "" if saved is None else saved.run))

    def save(rounds: int, of: int, state: Callable[[], Saved]) -> None:
        if checkpoints is not None and (checkpoints.due(rounds) or rounds == of):
            checkpoints.save(key, state())

    booking = Booking(ledger, party.name, party.register, job, sizes, channel.gate, sitting, asked)
    if checkpoints is not None:
        _take_up(checkpoints, key, saved, channel)
    meter = Meter(channel.clock, channel.counters, executor, workers)
    folder = _own_folder(ahead, party, key)
    resources = LocalResources(run, folder, simulated=True)
    if ledger is not None:
        resources = LocalResources(
            run, folder, ledger.chunks, ledger.scores, simulated=False, evaluations_reserved=ledger.reserved
        )
    context = _party_context(job, channel, met, meter, resources)
    before = channel.counters.messages_sent()
    try:
        party = _weighed(job, met, context, booking, saved)
        data = _data(job, party, schedule)
        trainee = Trainee(job, party, context, data, run, on_round, None if checkpoints is None else save, saved)
        channel.clock.stage = Stage.TRAIN
        trainee.train()
        channel.clock.stage = Stage.EVALUATE
        part = trainee.finish()
    except TransportError:
        booking.dropped()
        raise
    finally:
        booking.settle(silent=channel.counters.messages_sent() == before)
    part.data = table.hex()
    raw = met.raw.table  # what the training rows looked like, as they came
    looked = baselines(raw, schedule.sample(most(raw.X)))
    part.baseline = [*(each for each in looked if each.column in part.columns), *part.baseline]
    if checkpoints is not None:
        checkpoints.finish(key, part)
    return part


def _data(job: Job, party: Party, schedule: Schedule) -> TrainingData:
    return TrainingData(
        party,
        schedule,
        job.model.loss,
        scale=job.scaling,
        clip=job.method.clip(job),
        weights=job.weights,
        exposure=job.exposure,
        positive=job.positive,
    )


def _check_rounding(job: Job, who: str, data: TrainingData, parties: int) -> None:
    """Say, or refuse, how far coefficients of counts and amounts lie off by sums that are rounded at random."""
    loss, rounding = job.model.loss, job.method.rounding(job, len(data.schedule.train), parties)
    if not isinstance(loss, LogLinkLoss) or rounding is None or data.targets is None or data.counted is None:
        return
    rows = data.schedule.sample(ROUNDED)
    rated, units = data.rated(rows), float(len(rows) if data.offsets is None else np.exp(data.offsets[rows]).sum())
    assert rated is not None, "it has targets"
    start = math.log(max(float(data.targets[rows].sum()), 0.5) / units)
    mean = float(data.counted[1]) if loss.counts else None
    report_coefficient_error(who, coefficient_error(job.loss, rated, start, mean, rounding.deviation), rounding.remedy)


def make_ahead(
    job: Job,
    party: Party,
    channel: Channel,
    *,
    parties: Sequence[str],
    folder: Path,
    on_round: Callable[[int, int], None] | None = None,
) -> None:
    """Do together with the others all work that can be done ahead of a training, and keep this party's in `folder`.

    on_round(done, of) counts the rounds that it is done for. ConfigError for a method without any.
    """
    key = run_key(job, party)
    met = _met(job, party, channel, parties, key, None, None)
    resources = LocalResources(channel.session.hex(), _own_folder(folder, party, key))
    context = _party_context(job, channel, met, Meter(channel.clock, channel.counters), resources)
    player = job.method.player(job, context, met.party.X.shape[1], None)
    data = _data(job, met.party, met.schedule)
    for done in player.prepare(data):
        if on_round is not None:
            on_round(done.number, done.of)


@dataclass(frozen=True)
class _Met:
    """What is known once all have said who they are. raw: this party before its columns were prepared."""

    raw: Party
    party: Party
    heard: Mapping[str, RunHello]
    roles: Roles
    schedule: Schedule
    sizes: Sizes


def _met(
    job: Job,
    raw: Party,
    channel: Channel,
    parties: Sequence[str],
    key: bytes,
    checkpoints: Checkpoints | None,
    ledger: DisclosureLedger | None,
) -> _Met:
    """Meets the others, and checks that all fit together. key: that of this run, see `run_key`."""
    party, loss = prepare(job, raw, raw.register), job.model.loss
    own = RunHello(
        job=job.digest,
        role=job.method.role(party),
        rows=len(party),
        columns=party.X.shape[1],
        parameters=job.model.module_parameters(party.name, party.model),
        outputs=loss.outputs(loss.classes(party.y)) if party.y is not None else 0,
        order=hmac.digest(channel.session, party.order, hashlib.sha256) if party.order else b"",
        saved=checkpoints.rounds(key) if checkpoints is not None else (),
        run=checkpoints.run(key) if checkpoints is not None else "",
        content="" if ledger is None else ledger.tag(party),
    )
    heard = exchange_hellos(channel, parties, own)
    columns = {name: other.columns for name, other in heard.items()}
    roles = job.method.assigned(job, _check(job, channel.me, heard), {name: d for name, d in columns.items() if d})
    lead, tables = heard[roles.lead], [other for other in heard.values() if other.rows]
    by_ids = len(party) > 0 and all(other.order for other in tables)
    schedule = job.schedule(party.register if by_ids else lead.rows)
    if party.order and not by_ids:  # it has ids, others have none: rows are drawn by their numbers
        said, party = party, prepare(job, raw, Register.of_numbers(len(raw)))
        if party.columns != said.columns:
            raise IdError(
                f"ids at every party or at none were expected, {raw.name} has some and others have none; name the id "
                "column"
            )
    trusts = () if ledger is None else ledger.read().trusts  # whose columns it believes to be those of earlier jobs
    sizes = sizes_of(
        job,
        schedule,
        active=roles.lead,
        columns=columns,
        outputs=lead.outputs,
        brought={name: other.parameters for name, other in heard.items()},
        tables={name: other.content for name, other in heard.items() if other.columns and name in trusts},
        here=[party],
    )
    return _Met(raw, party, heard, roles, schedule, sizes)


class Foreseen(NamedTuple):
    """What a party knows of a job before its consent: its table as the job prepares it, which rows are held out, the
    sizes of all, and its sheet."""

    job: Job
    party: Party
    schedule: Schedule
    sizes: Sizes
    sheet: Sheet


def foreseen(job: Job, party: Party, channel: Channel, *, parties: Sequence[str], ledger: DisclosureLedger) -> Foreseen:
    """Meet the others for a job without training it, and return what is known of it then."""
    met = _met(job, party, channel, parties, run_key(job, party), None, ledger)
    _data(job, met.party, met.schedule)
    return Foreseen(job, met.party, met.schedule, met.sizes, _sheet(job, met, ledger, ""))


def _sheet(job: Job, met: _Met, ledger: DisclosureLedger | None, run: str) -> Sheet:
    heard = met.heard
    return own_sheet(
        job,
        met.party,
        Roles.of((name, other.role) for name, other in heard.items()),
        {name: other.columns for name, other in heard.items()},
        outputs=heard[met.roles.lead].outputs,
        brought={name: other.parameters for name, other in heard.items()},
        ledgers={} if ledger is None else {met.party.name: ledger},
        run=run,
    )


def _weighed(job: Job, met: _Met, context: PartyContext, booking: Booking, saved: Saved | None) -> Party:
    """Return the party with the weights of its bins, where the job asks for them: told anew, or as they were saved."""
    if job.prepare.woe is None:
        return met.party
    if saved is not None:
        return met.party.weighed(FittedPreparation.read(met.raw.columns, saved.preparation))
    party = weigh(job, met.party, met.schedule.flow, context)
    booking.check(replace(met.sizes, enough={party.name: enough(party.X[met.schedule.sample(ROWS)])}))
    return party


def _party_context(job: Job, channel: Channel, met: _Met, meter: Meter, resources: LocalResources) -> PartyContext:
    return PartyContext(
        channel=channel,
        roles=met.roles,
        meter=meter,
        outputs=met.heard[met.roles.lead].outputs,
        residual_bound=job.residual_bound,
        parameters=met.sizes.parameters,
        seed=job.seed,
        columns=met.sizes.columns,
        resources=resources,
        model=met.party.model,
    )


def _own_folder(ahead: Path | None, party: Party, key: bytes) -> Path | None:
    """Return the folder of work done ahead for this job and table; None without a folder `ahead`."""
    return None if ahead is None else ahead / f"{party.name}.{key.hex()[:16]}"


def run_key(job: Job, party: Party) -> bytes:
    """Return the key under which the states of a party are filed: a hash of the job and of the contents of the table it
    trains on, 32 bytes."""
    return _key(job, party.digest)


def _key(job: Job, table: bytes) -> bytes:
    """Return `run_key` from the digest of the table, which takes long where there are many values."""
    return hashlib.sha256(job.digest + table).digest()


def _check(job: Job, me: str, heard: Mapping[str, RunHello]) -> Roles:
    """Check that the meetings of all parties fit together, and return the role of each."""
    own = heard[me]
    whose = me if own.rows else next((name for name, other in heard.items() if other.rows), me)
    rows = heard[whose].rows
    for place, (peer, other) in enumerate(heard.items()):
        if other.job != own.job:
            raise ConfigError(f"{peer} runs another job than {me}; give both the same job file")
        if other.rows and rows and other.rows != rows:
            raise TableError(f"{peer} has {other.rows} rows, {whose} {rows}; align the tables first")
        if other.order and own.order and not hmac.compare_digest(other.order, own.order):
            raise IdError(f"{peer} and {me} hold their rows in different order; align the tables first")
        _check_sizes(job, peer, other)
        fits = bool(other.rows) == bool(other.columns) and (other.outputs > 0 or place > 0)
        if not fits or not job.method.admits(other.role, leads=place == 0):
            what = "lead" if place == 0 else "take part"
            raise ProtocolError(f"{peer} was expected to {what}, and says that it is {other.role}; check roles")
    return Roles.of((name, other.role) for name, other in heard.items())


def _check_sizes(job: Job, peer: str, other: RunHello) -> None:
    """ProtocolError unless a party's table can have the sizes that it says, from which memory is taken."""
    outputs = 1 if job.model.loss.single else max(1, other.rows)
    limits = {"rows": MOST, "columns": MOST_COLUMNS, "parameters": MOST, "outputs": outputs}
    for what, limit in limits.items():
        said: int = getattr(other, what)
        if not 0 <= said <= limit:
            raise ProtocolError(f"{peer} was expected to have 0 to {limit:,} {what}, it says {said:,}; ask it why")


def _take_up(checkpoints: Checkpoints, key: bytes, saved: Saved | None, channel: Channel) -> None:
    """Make the folder ready for a run that goes on from this state, or starts anew."""
    if saved is None:
        checkpoints.clear(key, anew=True)
        return
    checkpoints.reopen(key)
    if not saved.constant:
        checkpoints.forget_after(key, saved.round)
    # tell from where the run goes on, and whose certificate key is not the one of that state
    eventlog.emit(channel.me, "resumed", {"round": saved.round})
    for name, before in saved.identities.items():
        if channel.keys.get(name, before) != before:
            why = f"{name} shows another key than up to round {saved.round}; if it has not renewed it, stop and ask it"
            facts = {"peer": name, "before": before, "now": channel.keys[name], "reason": why}
            eventlog.emit(channel.me, "key changed", facts, logging.ERROR)

"""One party's whole run, whatever carries its messages and whatever its method: meet, check, count, play.

1. all <-> all        RunHello    (`securevfl.protocols.party_context`)
2. per round          what the method's player exchanges (`securevfl.families`)
3. where due          joint evaluation, then leading party -> all others: StopDecision, go on or stop
4. at the end         joint evaluation on the held-out rows
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from securevfl.base.roles import Roles
from securevfl.consent.consent_sheet import ConsentSheet, sheet_for_party
from securevfl.consent.ledger_session import LedgerSession, SessionId
from securevfl.data.baseline import baselines, max_baseline_rows
from securevfl.data.party import Party
from securevfl.data.preparation import FittedPreparation
from securevfl.data.schedule import Schedule
from securevfl.disclosure.column_recovery import MAX_SAMPLE_ROWS, numbers_for_recovery
from securevfl.disclosure.counts import RunShape
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import (
    ConfigError,
    TransportError,
)
from securevfl.families.training_data import TrainingData
from securevfl.families.weights_of_evidence import encode_evidence
from securevfl.job import Job
from securevfl.models.log_link_losses import LogLinkLoss
from securevfl.models.rounding_error import coefficient_error, report_coefficient_error
from securevfl.protocols.party_context import LocalResources, PartyContext
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Stage
from securevfl.runtime.meter import Meter
from securevfl.training.checkpoint import FINISHED_ROUND, Checkpoint, Checkpoints, common_round
from securevfl.training.model_part import ModelPart, PartStatus
from securevfl.training.run_setup import RunSetup, run_key, run_key_of, set_up_run
from securevfl.training.training_loop import TrainingLoop

MAX_ROUNDING_ROWS = 1 << 16  # rows by which it is judged what rounding does to coefficients


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
    consent: Callable[[ConsentSheet], None] | None = None,
    again: bool = True,
) -> ModelPart:
    """Trains with the others over `channel` and returns this party's part. `parties`: everyone, the leading one first.

    `on_round(done, of)` is called after every round. With checkpoints the run goes on from the last round that all
    parties have a state for, and the part is on disk when this returns (`Checkpoints.final`). With a ledger of this
    party what the run tells is entered there before it is told, and earlier runs count; without one the tables of all
    parties are in this one process. `ahead`: a folder of work that was done ahead (`run_offline_phase`). `consent`
    is given
    this party's sheet before anything of its data is told, and after all that can be refused by then; it raises to take
    no part. again: whether a training that
    is over for this party, and not for all, may begin anew; ConfigError if not.
    """
    table = party.digest
    key = run_key_of(job, table)
    met = set_up_run(job, party, channel, parties, key, checkpoints, ledger)
    party, schedule, sizes = met.party, met.schedule, met.sizes
    together = len({other.run for other in met.heard.values()}) == 1  # all states are of one training
    start = common_round([other.saved for other in met.heard.values()]) if together else None
    if checkpoints is not None and start == FINISHED_ROUND and (whole := checkpoints.final(key)) is not None:
        whole.status = PartStatus.CONFIRMED
        return whole
    if start is None:
        if not again and checkpoints is not None and checkpoints.final(key) is not None:
            raise ConfigError(
                f"{channel.me}: the training of this job on this table is over here and its model kept, the others "
                "have none that goes with it; to train anew, every party that has one runs join with --retrain"
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
    session_id = SessionId(account, channel.session.hex())
    if saved is not None:  # how many visits are done, and in which session the model was trained if these are all
        done = (len(schedule), saved.session) if saved.over else (saved.round, "")
        session_id = SessionId(account, channel.session.hex(), *done)

    def asked() -> None:
        if consent is not None:
            consent(_sheet(job, met, ledger, "" if saved is None else saved.run))

    def save(rounds: int, of: int, state: Callable[[], Checkpoint]) -> None:
        if checkpoints is not None and (checkpoints.due(rounds) or rounds == of):
            checkpoints.save(key, state())

    ledger_session = LedgerSession(ledger, party.name, party.register, job, sizes, channel.gate, session_id, asked)
    if checkpoints is not None:
        _take_up(checkpoints, key, saved, channel)
    meter = Meter(channel.clock, channel.counters, executor, workers)
    folder = _own_folder(ahead, party, key)
    resources = LocalResources(run, folder, simulated=True)
    if ledger is not None:
        resources = LocalResources(
            run, folder, ledger.chunks_path, ledger.scores_path, simulated=False, evaluations_reserved=ledger.reserved
        )
    context = _party_context(job, channel, met, meter, resources)
    before = channel.counters.messages_sent()
    try:
        party = _weighed(job, met, context, ledger_session, saved)
        data = _data(job, party, schedule)
        trainee = TrainingLoop(job, party, context, data, run, on_round, None if checkpoints is None else save, saved)
        channel.clock.stage = Stage.TRAIN
        trainee.train()
        channel.clock.stage = Stage.EVALUATE
        part = trainee.finish()
    except TransportError:
        ledger_session.record_disconnect()
        raise
    finally:
        ledger_session.settle(silent=channel.counters.messages_sent() == before)
    part.data = table.hex()
    raw = met.raw.table  # what the training rows looked like, as they came
    looked = baselines(raw, schedule.sample(max_baseline_rows(raw.X)))
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
        clip=job.family.column_clip(job),
        weights=job.weights,
        exposure=job.exposure,
        positive=job.positive,
    )


def _check_rounding(job: Job, who: str, data: TrainingData, parties: int) -> None:
    """Say, or refuse, how far coefficients of counts and amounts lie off by sums that are rounded at random."""
    loss, rounding = job.model.loss, job.family.sum_rounding(job, len(data.schedule.train), parties)
    if not isinstance(loss, LogLinkLoss) or rounding is None or data.targets is None or data.target_classes is None:
        return
    rows = data.schedule.sample(MAX_ROUNDING_ROWS)
    rated, units = (
        data.loss_targets(rows),
        float(len(rows) if data.offsets is None else np.exp(data.offsets[rows]).sum()),
    )
    assert rated is not None, "it has targets"
    start = math.log(max(float(data.targets[rows].sum()), 0.5) / units)
    mean = float(data.target_classes[1]) if loss.counts else None
    report_coefficient_error(who, coefficient_error(job.loss, rated, start, mean, rounding.deviation), rounding.remedy)


def run_offline_phase(
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
    met = set_up_run(job, party, channel, parties, key, None, None)
    resources = LocalResources(channel.session.hex(), _own_folder(folder, party, key))
    context = _party_context(job, channel, met, Meter(channel.clock, channel.counters), resources)
    player = job.family.participant(job, context, met.party.X.shape[1], None)
    data = _data(job, met.party, met.schedule)
    for done in player.precompute(data):
        if on_round is not None:
            on_round(done.number, done.of)


class PreConsentView(NamedTuple):
    """What a party knows of a job before its consent: its table as the job prepares it, which rows are held out, the
    sizes of all, and its sheet."""

    job: Job
    party: Party
    schedule: Schedule
    sizes: RunShape
    sheet: ConsentSheet


def view_before_consent(
    job: Job, party: Party, channel: Channel, *, parties: Sequence[str], ledger: DisclosureLedger
) -> PreConsentView:
    """Meet the others for a job without training it, and return what is known of it then."""
    met = set_up_run(job, party, channel, parties, run_key(job, party), None, ledger)
    _data(job, met.party, met.schedule)
    return PreConsentView(job, met.party, met.schedule, met.sizes, _sheet(job, met, ledger, ""))


def _sheet(job: Job, met: RunSetup, ledger: DisclosureLedger | None, run: str) -> ConsentSheet:
    heard = met.heard
    return sheet_for_party(
        job,
        met.party,
        Roles.of((name, other.role) for name, other in heard.items()),
        {name: other.columns for name, other in heard.items()},
        outputs=heard[met.roles.lead].outputs,
        module_parameters={name: other.parameters for name, other in heard.items()},
        ledgers={} if ledger is None else {met.party.name: ledger},
        run=run,
    )


def _weighed(
    job: Job, met: RunSetup, context: PartyContext, ledger_session: LedgerSession, saved: Checkpoint | None
) -> Party:
    """Return the party with the weights of its bins, where the job asks for them: told anew, or as they were saved."""
    if job.prepare.woe is None:
        return met.party
    if saved is not None:
        return met.party.with_woe_weights(FittedPreparation.read(met.raw.columns, saved.preparation))
    party = encode_evidence(job, met.party, met.schedule.batch_order, context)
    ledger_session.check(
        replace(
            met.sizes,
            recovery_thresholds={party.name: numbers_for_recovery(party.X[met.schedule.sample(MAX_SAMPLE_ROWS)])},
        )
    )
    return party


def _party_context(job: Job, channel: Channel, met: RunSetup, meter: Meter, resources: LocalResources) -> PartyContext:
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


def _take_up(checkpoints: Checkpoints, key: bytes, saved: Checkpoint | None, channel: Channel) -> None:
    """Make the folder ready for a run that goes on from this state, or starts anew."""
    if saved is None:
        checkpoints.clear(key, anew=True)
        return
    checkpoints.reopen(key)
    if not saved.constant:
        checkpoints.remove_after(key, saved.round)
    # tell from where the run goes on, and whose certificate key is not the one of that state
    eventlog.emit(channel.me, "resumed", {"round": saved.round})
    for name, before in saved.identities.items():
        if channel.keys.get(name, before) != before:
            why = f"{name} shows another key than up to round {saved.round}; if it has not renewed it, stop and ask it"
            facts = {"peer": name, "before": before, "now": channel.keys[name], "reason": why}
            eventlog.emit(channel.me, "key changed", facts, logging.ERROR)

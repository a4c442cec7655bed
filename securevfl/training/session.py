"""One party's run, from the hello messages to its part of the model, for any protocol family and transport.

The messages of a run are, in this order:

1. all <-> all        RunHello    (`securevfl.protocols.handshake`): public facts about jobs and tables
2. per round          the messages of the protocol family (`securevfl.families`)
3. after evaluations joint evaluation, then leading party -> all others: StopDecision
4. at the end         joint evaluation on the held-out rows

The *leading party* decides when the training ends; usually it is the party with labels. A party's *consent sheet*
states what the run would disclose, and its *ledger* is a file that records and limits its disclosures in all jobs.
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

from securevfl.base.disk_space import check_disks
from securevfl.consent.consent_sheet import ConsentSheet, sheet_of_run
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
from securevfl.families.facts import RunFacts
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
from securevfl.training.evaluation_records import EvaluationFile, KnownEvaluations
from securevfl.training.model_part import ModelPart, PartStatus
from securevfl.training.public_sizes import PublicSizes
from securevfl.training.run_setup import RunSetup, run_key, run_key_of, set_up_run
from securevfl.training.training_loop import TrainingLoop

MAX_ROUNDING_ROWS = 1 << 16
"""Maximum number of rows from which the effect of rounding on coefficients is estimated."""


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
    consent: Callable[[ConsentSheet], None] | PublicSizes | None = None,
    again: bool = True,
) -> ModelPart:
    """Train with the other parties over a channel, and return this party's part of the model.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        party: this party and its table.
        channel: the channel to the other parties.
        parties: names of all parties, the leading one first.
        executor: runs expensive calls; None runs them in this thread.
        workers: number of calls that the executor runs concurrently.
        on_round: called after every round with the number of rounds that are done, and of all rounds.
        checkpoints: this party's checkpoints. The run resumes from the last round of which all parties have one. When
            this function returns, the part of the model is on disk (`Checkpoints.final`).
        ledger: this party's ledger. Disclosures are entered before they are sent, and earlier runs count. None means
            that the tables of all parties are in this process.
        ahead: folder of random numbers that were computed in advance (`run_offline_phase`).
        consent: a function, or the public sizes that the party agreed to before this session. The function is called
            with this party's consent sheet, after all checks that are possible before the training, and before any
            message depends on the party's data. It raises an error if the party does not agree. If sizes are given,
            the sizes of the session must not differ from them.
        again: whether the training may start again if it is complete for this party but not for all parties.

    Returns:
        This party's part of the model.

    Raises:
        ConfigError: if the training is complete at this party, is not complete at another party, and `again` is False.
        ProtocolError: if the public sizes differ from the agreed ones.
    """
    table = party.digest
    key = run_key_of(job, table)
    setup = set_up_run(job, party, channel, parties, key, checkpoints, ledger)
    party, schedule, sizes = setup.party, setup.schedule, setup.sizes
    if isinstance(consent, PublicSizes):
        consent.check(channel.me, sizes)
    same_training = len({hello.run for hello in setup.hellos.values()}) == 1
    start = common_round([hello.saved for hello in setup.hellos.values()]) if same_training else None
    if checkpoints is not None and start == FINISHED_ROUND and (part := checkpoints.final(key)) is not None:
        part.status, part.outputs_of_run = PartStatus.CONFIRMED, setup.facts.outputs
        return part
    if start is None:
        if not again and checkpoints is not None and checkpoints.final(key) is not None:
            raise ConfigError(
                f"{channel.me}: this training is complete at this party, but at least one other party has no part of "
                f"its model",
                "to train again, run join with --retrain at every party that has a model",
                code="SVFL-TRAINING-FINISHED",
                party=channel.me,
            )
        if any(hello.saved for hello in setup.hellos.values()):
            reason = "there is no checkpoint of this job that all parties have with unchanged tables"
            eventlog.warn(channel.me, "training starts again", {"reason": reason})
    checkpoint = None if checkpoints is None or start is None else checkpoints.load(key, start)
    if (folder := material_folder(ahead, party, key)) is not None:
        _check_room(folder, job.family.stored_bytes(job, setup.facts))
    data = None
    # training data are created here so that unsuitable labels, classes and exposures are refused before consent
    if job.prepare.woe is None:
        data = _training_data(job, party, setup.facts)
        _check_rounding(job, party.name, data, len(parties))
    run = channel.session.hex() if checkpoint is None else checkpoint.run
    # if an attempt ended before all parties had a checkpoint, the ledger counts this attempt and that one as one run
    ledger_run = run if checkpoints is None else checkpoints.begin(key, run)
    session_id = SessionId(ledger_run, channel.session.hex())
    if checkpoint is not None:
        done = (len(schedule), checkpoint.session) if checkpoint.over else (checkpoint.round, "")
        session_id = SessionId(ledger_run, channel.session.hex(), *done)

    def ask_consent() -> None:
        if consent is not None and not isinstance(consent, PublicSizes):
            consent(_sheet(job, setup, ledger, "" if checkpoint is None else checkpoint.run))

    def save(rounds: int, of: int, state: Callable[[], Checkpoint]) -> None:
        if checkpoints is not None and (checkpoints.due(rounds) or rounds == of):
            checkpoints.save(key, state())

    ledger_session = LedgerSession(
        ledger, party.name, party.register, job, sizes, channel.gate, session_id, ask_consent
    )
    if checkpoints is not None:
        _prepare_folder(checkpoints, key, checkpoint, channel)
    evaluations = EvaluationFile(None) if checkpoints is None else checkpoints.evaluations(key)
    known = KnownEvaluations(evaluations)
    if checkpoint is not None:
        known = known.of(evaluations, setup.hellos, setup.roles.lead, has_final_weights=checkpoint.over)
    meter = Meter(channel.clock, channel.counters, executor, workers)
    resources = LocalResources(run, folder, simulated=True)
    if ledger is not None:
        resources = LocalResources(
            run, folder, ledger.path, simulated=False, use_reserved_evaluation=ledger.use_reserved_measurement
        )
    context = _party_context(job, channel, setup, meter, resources)
    messages_before = channel.counters.messages_sent()
    try:
        if data is None:
            party = _with_evidence(job, setup, context, ledger_session, checkpoint)
            data = _training_data(job, party, setup.facts)
        saves = None if checkpoints is None else save
        loop = TrainingLoop(job, party, context, data, run, on_round, saves, checkpoint, known)
        channel.clock.stage = Stage.TRAIN
        loop.train()
        channel.clock.stage = Stage.EVALUATE
        part = loop.finish()
    except TransportError:
        ledger_session.record_disconnect()
        raise
    finally:
        ledger_session.settle(silent=channel.counters.messages_sent() == messages_before)
    part.data, part.outputs_of_run = table.hex(), setup.facts.outputs
    raw = setup.raw.table
    column_baselines = baselines(raw, schedule.sample(max_baseline_rows(raw.X)))
    part.baseline = [*(item for item in column_baselines if item.column in part.columns), *part.baseline]
    if checkpoints is not None:
        checkpoints.finish(key, part)
    return part


def _training_data(job: Job, party: Party, facts: RunFacts) -> TrainingData:
    data = TrainingData(
        party,
        facts.schedule,
        job.model.loss,
        scale=job.scaling,
        clip=job.family.column_clip(job),
        weights=job.weights,
        exposure=job.exposure,
        positive=job.positive,
    )
    data.plan = facts.plan
    return data


def _check_rounding(job: Job, party: str, data: TrainingData, parties: int) -> None:
    """Warn or raise LabelError if random rounding changes the coefficients of a model of counts or amounts much."""
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
    error = coefficient_error(job.loss, rated, start, mean, rounding.deviation)
    report_coefficient_error(party, error, rounding.remedy)


def run_offline_phase(
    job: Job,
    party: Party,
    channel: Channel,
    *,
    parties: Sequence[str],
    folder: Path,
    on_round: Callable[[int, int], None] | None = None,
) -> None:
    """Compute, together with the other parties, the random material of a training, which does not depend on data.

    Args:
        job: the job. ConfigError is raised if its protocol family has no offline phase.
        party: this party and its table.
        channel: the channel to the other parties.
        parties: names of all parties, the leading one first.
        folder: folder of this party's material.
        on_round: called with the number of rounds whose material is complete, and the number of all rounds.
    """
    key = run_key(job, party)
    setup = set_up_run(job, party, channel, parties, key, None, None)
    if (material := material_folder(folder, party, key)) is not None:
        _check_room(material, job.family.stored_bytes(job, setup.facts, all_at_once=True))
    resources = LocalResources(channel.session.hex(), material)
    context = _party_context(job, channel, setup, Meter(channel.clock, channel.counters), resources)
    participant = job.family.participant(job, context, setup.party.X.shape[1], None)
    data = _training_data(job, setup.party, setup.facts)
    for done in participant.precompute(data):
        if on_round is not None:
            on_round(done.number, done.of)


class PreConsentView(NamedTuple):
    """The facts that a party knows about a job after the hello messages, before it consents.

    Attributes:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        party: the party, with its table as the job prepares it.
        schedule: which rows are held out and which make a batch.
        sizes: the public sizes of the run.
        sheet: the party's consent sheet.
    """

    job: Job
    party: Party
    schedule: Schedule
    sizes: RunShape
    sheet: ConsentSheet


def view_before_consent(
    job: Job, party: Party, channel: Channel, *, parties: Sequence[str], ledger: DisclosureLedger
) -> PreConsentView:
    """Exchange hello messages for a job, and return what this party knows then, without training the job.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        party: this party and its table.
        channel: the channel to the other parties.
        parties: names of all parties, the leading one first.
        ledger: this party's ledger.

    Returns:
        The facts that this party then knows.
    """
    setup = set_up_run(job, party, channel, parties, run_key(job, party), None, ledger)
    _training_data(job, setup.party, setup.facts)
    return PreConsentView(job, setup.party, setup.schedule, setup.sizes, _sheet(job, setup, ledger, ""))


def _sheet(job: Job, setup: RunSetup, ledger: DisclosureLedger | None, run: str) -> ConsentSheet:
    return sheet_of_run(
        job, setup.roles, setup.facts, ledgers={} if ledger is None else {setup.party.name: ledger}, run=run
    )


def _with_evidence(
    job: Job, setup: RunSetup, context: PartyContext, ledger_session: LedgerSession, checkpoint: Checkpoint | None
) -> Party:
    """Return the party with weights of evidence as columns, either computed now or restored from a checkpoint."""
    if checkpoint is not None:
        stored = FittedPreparation.read(setup.raw.columns, checkpoint.preparation)
        decided = {} if setup.party.preparation is None else setup.party.preparation.decided
        return setup.party.with_woe_weights(replace(stored, decided=decided))
    party = encode_evidence(job, setup.party, setup.schedule.batch_order, context)
    ledger_session.check(
        replace(
            setup.sizes,
            recovery_thresholds={party.name: numbers_for_recovery(party.X[setup.schedule.sample(MAX_SAMPLE_ROWS)])},
        )
    )
    return party


def _party_context(
    job: Job, channel: Channel, setup: RunSetup, meter: Meter, resources: LocalResources
) -> PartyContext:
    return PartyContext(
        channel=channel,
        roles=setup.roles,
        meter=meter,
        outputs=setup.hellos[setup.roles.lead].outputs,
        residual_bound=job.residual_bound,
        parameters=setup.sizes.parameters,
        seed=job.seed,
        columns=setup.sizes.columns,
        resources=resources,
        model=setup.party.model,
    )


def _check_room(folder: Path, needed: int) -> None:
    """Raise ConfigError if the disk cannot store `needed` bytes of material, minus the size of the folder's files."""
    stored = sum(path.stat().st_size for path in folder.glob("*"))
    check_disks({folder: max(0, needed - stored)})


def material_folder(ahead: Path | None, party: Party, key: bytes) -> Path | None:
    """Return the folder of random material that was generated in advance for this job and table."""
    return None if ahead is None else ahead / f"{party.name}.{key.hex()[:16]}"


def _prepare_folder(checkpoints: Checkpoints, key: bytes, checkpoint: Checkpoint | None, channel: Channel) -> None:
    """Remove the checkpoints that the run cannot use: those after `checkpoint`, or all if it is None (a new run).

    Log the round from which the run resumes, and warn of peers whose certificate key has changed since the checkpoint.
    """
    if checkpoint is None:
        checkpoints.clear(key, same_run=True)
        return
    checkpoints.reopen(key)
    if not checkpoint.constant:
        checkpoints.remove_after(key, checkpoint.round)
    eventlog.emit(channel.me, "resumed", {"round": checkpoint.round})
    for name, earlier_key in checkpoint.identities.items():
        if channel.keys.get(name, earlier_key) != earlier_key:
            reason = (
                f"{name} has another key than up to round {checkpoint.round}; unless {name} has renewed its "
                "certificate, stop and ask it"
            )
            facts = {"peer": name, "earlier_key": earlier_key, "key": channel.keys[name], "reason": reason}
            eventlog.emit(channel.me, "key changed", facts, logging.ERROR)

"""An audit of one job on real tables: transcript checks, simulators and attacks.

1. Two short runs of the job (two epochs, a few batches). Every message is compared with its declaration.
2. The real views of the job's protocols are compared with simulated views (`securevfl.audit.simulators`).
3. Attacks run on whole runs over several seeds. Each is scored on a party's *real view* (all that it received) and on
   an *ideal view*, which contains only the party's own gradients or the sums that it collects.
4. The report lists each party's possible inferences, their strength, and their remedies.

A finding of a check or simulator *exceeds the declaration*. So does an attack on sealed (encrypted) residuals that
scores higher on the real view, by more than MARGIN and three standard errors. A leak exceeds what the job *accepts* if
a leak check refuses it; attacks then name what they read. All runs here accept every leak, so that attacks can show
them.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Collection, Sequence
from copy import copy
from datetime import UTC, datetime

import numpy as np

from securevfl.audit import run_simulators, simulators
from securevfl.audit.attacks import ATTACKS, load_more
from securevfl.audit.attacks.base import Attack, AttackerRole, Score
from securevfl.audit.findings import Audit, Inference
from securevfl.audit.recording.party_record import PartyRecord
from securevfl.audit.recording.party_view import as_numbers, fields
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.audit.recording.transcript_recording import record_transcript
from securevfl.audit.transcript_checks import check_transcript
from securevfl.base.arrays import Floats
from securevfl.base.roles import Roles
from securevfl.base.version import __version__
from securevfl.consent.leak_check import leaks
from securevfl.consent.settle_job import settle_job
from securevfl.data.party import Party, check_parties
from securevfl.errors import SecureVFLError
from securevfl.families import leak_kinds
from securevfl.families.facts import RunFacts
from securevfl.families.message_declarations import run_roles
from securevfl.families.run_facts import pooled_run_facts
from securevfl.families.table_preparation import with_prepared_tables
from securevfl.job import Job
from securevfl.runtime.disclosure_gate import DisclosureRecord

MARGIN = 0.03
"""Minimum difference between the scores on the real and on the ideal view that counts."""

_FEW_SEEDS_MARGIN = 0.1
_MAX_SHORT_ROWS = 2000
_MAX_ATTACKERS = 4


def run_audit(
    job: Job,
    parties: Sequence[Party],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    on_step: Callable[[str], None] | None = None,
    noise_parties: Sequence[str] = (),
) -> Audit:
    """Audit the job on these tables. It takes as long as two trainings for each seed, plus the checks.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        parties: the parties with their tables.
        seeds: seeds of the runs that are attacked.
        on_step: called with a description of each step before it begins.
        noise_parties: names of the parties whose columns are noise.

    Returns:
        The result. An exception of `simulate` is raised if the job does not start at all.
    """
    started, notify = time.monotonic(), on_step or (lambda step: None)
    for name, extension in load_more().items():
        notify(f"attack {name} of {extension}")
    active, passives = check_parties(parties)
    unprepared_job = job = settle_job(job, parties)
    unprepared = [active, *passives]
    job, parties = with_prepared_tables(job, unprepared)
    active, *passives = parties
    roles = run_roles(job.family, job, parties)
    notify("transcripts")
    short_job, short_parties = _shortened(job.model_copy(update={"accepts": [*leak_kinds()]}), parties)
    outcome = check_transcript(*(record_transcript(short_job, short_parties)[0] for _ in range(2)))
    notify("simulators")
    for protocol in job.family.message_protocols(job, roles):
        outcome = outcome.merge(simulators.views(protocol, parties=len(roles.cast)))
    if job.family.reveals_only_outputs:
        outcome = outcome.merge(run_simulators.run_views(short_job, short_parties))
    known = pooled_run_facts(job, [active, *passives])
    declared = pooled_run_facts(unprepared_job, unprepared)
    leaking = leaks(unprepared_job, declared.shape)
    refused = {leak.name for leak in leaking if leak.name not in job.accepts}
    inferences, failed = _attacks(job, known, seeds, notify, (unprepared_job, unprepared), refused)
    real_tables = not {party.name for party in passives} & set(noise_parties)
    return Audit(
        label=f"{job.optimizer.label} on a {job.model.name} model, {job.family.title(job, roles)}, "
        f"batches of {known.shape.smallest_batch:,} rows",
        roles=dict(roles.cast),
        declared=job.family.declarations(job, roles),
        findings=outcome.findings,
        inferences=inferences,
        leaks=[f"accepted: {leak}" for leak in leaking if leak.name in job.accepts],
        refused=[str(leak) for leak in leaking if leak.name not in job.accepts],
        failed=[*failed, *unchecked(job, roles)],
        skipped=_skipped(unprepared_job, known),
        tests=outcome.tests,
        seeds=len(seeds),
        seconds=time.monotonic() - started,
        lead=active.name,
        facts={
            "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "job": unprepared_job.digest.hex()[:16],
            "tables": ", ".join(
                f"{party.name} ({len(party):,} rows x {len(party.columns)} columns)" for party in unprepared
            ),
            "versions": f"securevfl {__version__}, Python {platform.python_version()}, numpy {np.__version__}",
        },
        exposed_labels=_exposed_labels(job, roles, known if real_tables else None),
        outputs=declared.outputs,
    )


def _exposed_labels(job: Job, roles: Roles, known: RunFacts | None) -> dict[str, list[str]]:
    """Return the consent sheet's lines about labels that others' columns may disclose, by party with labels.

    Without `known` (if columns are noise), the lines state which party can answer.
    """
    disclosed = {name: job.family.statements(job, roles, name, known) for name in roles.parties}
    return {name: text.split("\n") for name, items in disclosed.items() for kind, text in items if kind == "opens"}


def _shortened(job: Job, parties: Sequence[Party]) -> tuple[Job, list[Party]]:
    """Return the job with at most two epochs, and the parties with rows for a few batches."""
    rows, size = len(parties[0]), _MAX_SHORT_ROWS if isinstance(job.batch_size, str) else job.batch_size
    count = min(rows, max(4 * size, 200), max(_MAX_SHORT_ROWS, size))
    optimizer = job.optimizer.without_early_stop()
    changes = {"epochs": min(2, job.epochs), "target": None, "patience": None, "optimizer": optimizer}
    short = job.model_copy(update=changes)
    if count == rows:
        return short, list(parties)
    chosen = np.sort(np.random.default_rng(job.seed).permutation(rows)[:count]).astype(np.intp)
    return short, [party.take(chosen) for party in parties]


def unchecked(job: Job, roles: Roles) -> list[str]:
    """Return a line for each disclosure of the job's protocol family that no attack or simulator examines."""
    family = job.family
    missing = [(kind.name, name) for kind in family.leak_kinds for name in kind.attacks if name not in ATTACKS]
    lines = [f"leak {leak} names the attack {name}, which is not in ATTACKS; add it" for leak, name in missing]
    if not family.reveals_only_outputs and not family.message_protocols(job, roles):
        missing_simulator = "return its message protocols, or set reveals_only_outputs"
        lines.append(f"no simulator covers the protocol family {family.name}; {missing_simulator}")
    return lines


def _attackers(known: RunFacts) -> tuple[list[str], list[str]]:
    """Return the passive parties with the most columns, from whose views attacks run, and a list of all others."""
    passives = [party for party in known.parties if party.columns and not party.active]
    names = [party.name for party in sorted(passives, key=lambda party: -len(party.columns))]
    return names[:_MAX_ATTACKERS], names[_MAX_ATTACKERS:]


def _skipped(job: Job, known: RunFacts) -> list[str]:
    """Return a line with the reason for each attack, leak and party that is skipped."""
    reasons = {name.replace("_", " "): attack.skip_reason(job, known) for name, attack in ATTACKS.items()}
    reasons |= {f"leak {kind.name}": "no attack carries it out" for kind in job.family.leak_kinds if not kind.attacks}
    if others := _attackers(known)[1]:
        reason = f"{_MAX_ATTACKERS} parties with as many columns or more attack"
        reasons[f"from the views of {', '.join(others)}"] = reason
    return [f"{name}: {reason}" for name, reason in reasons.items() if reason]


def _attacks(
    job: Job,
    known: RunFacts,
    seeds: Sequence[int],
    notify: Callable[[str], None],
    unprepared: tuple[Job, Sequence[Party]],
    refused: Collection[str],
) -> tuple[list[Inference], list[str]]:
    """Run every attack that applies; attacks of passive parties run from the view of each of them.

    Args:
        job: the job on prepared tables.
        known: facts about the run.
        seeds: seeds of the runs.
        notify: called with a description of each step.
        unprepared: the job and the parties before their tables were prepared.
        refused: names of the leaks for which a leak check refuses the job.

    Returns:
        The inferences, the most successful one first, and a line for each attack that failed to run.
    """
    passives, _ = _attackers(known)
    scores: dict[tuple[str, str], list[Score]] = {}
    failed: dict[str, str] = {}
    for seed in seeds:
        notify(f"attacks, seed {seed}")
        pair = RealIdealPair(job, known.parties, seed, unprepared=unprepared)
        pair.real_run, pair.ideal_run  # noqa: B018  run before the pair is copied for each attacker
        if unprepared[0].prepare.woe is not None:
            pair.bins_recording  # noqa: B018  as above
        failed |= {line: line for line in unrecorded(pair)}
        for name, attack in ATTACKS.items():
            if attack.skip_reason(unprepared[0], known) or name in failed:
                continue
            for attacker in passives if attack.attacker_role is AttackerRole.PASSIVE else [known.shape.active]:
                copied = copy(pair)
                copied.attacker = attacker
                try:
                    score = attack.score(copied)
                    scores.setdefault((name, attacker), []).append(score)
                except SecureVFLError as error:
                    failed[name] = f"{name}: {error}"
    inferences = [
        _inference(job, known, ATTACKS[name], by_seed, attacker, refused)
        for (name, attacker), by_seed in scores.items()
    ]
    return sorted(inferences, key=lambda inference: -inference.reach), list(failed.values())


def unrecorded(pair: RealIdealPair) -> list[str]:
    """Return a line for each disclosure to a party that the recorder has not seen at that party.

    An attack on an empty view would score like chance, even if the run disclosed something.
    """
    recording = pair.real_run[1]
    disclosures = [
        (sender, disclosure)
        for sender, record in recording.items()
        for disclosure in record.disclosures
        if disclosure.group == "training"
    ]
    lines = {
        f"{disclosure.to}: {sender} recorded that it discloses {disclosure.kind} of training rows to it, but the "
        "recorder saw none; let the protocol family use the roles of its protocols, which notify observers": None
        for sender, disclosure in disclosures
        if not _is_recorded(recording[disclosure.to], disclosure)
    }
    return list(lines)


def _is_recorded(record: PartyRecord, disclosure: DisclosureRecord) -> bool:
    """Return whether the receiving party's record contains values of this kind, or a message contains them."""
    noted: dict[str, Sequence[object]] = {
        "labels": record.opened_gradients,
        "columns": record.sums or record.opened_gradients or record.pulled_sums,
        "phases": record.phase_sums,
    }
    if disclosure.kind not in noted or noted[disclosure.kind]:
        return True
    values = (value for receipt in record.receipts for value in fields(receipt.message))
    return any(
        as_numbers(value, disclosure.numbers, 1) is not None
        or (isinstance(value, np.ndarray) and value.size == disclosure.numbers)
        for value in values
    )


def _inference(
    job: Job, known: RunFacts, attack: Attack, scores: list[Score], attacker: str, refused: Collection[str]
) -> Inference:
    """Summarise the scores of one attack over seeds; `refused` has the leaks for which a leak check refuses the job."""
    real, simulated, chance = (
        np.array([getattr(score, name) for score in scores]) for name in ("real", "simulated", "chance")
    )
    excess = real - simulated
    error, seed_error = (_standard_error(values) for values in (excess, real))
    noise = float(np.mean([score.noise for score in scores]))
    random_margin = 6 * noise * (2 / len(scores)) ** 0.5 if attack.randomized else 0.0
    allowed = max(random_margin, MARGIN + 3 * error if len(excess) > 2 else _FEW_SEEDS_MARGIN)
    carried_out = attack.unaccepted_leaks(job) if real.mean() > attack.leak_threshold else []
    beyond_declared = bool((carried_out or attack.target_hidden(job)) and excess.mean() > allowed)
    exceeds = beyond_declared or bool(set(carried_out) & set(refused))
    return Inference(
        attacker=attack.attacker_name(job, attacker, known.shape.active),
        name=attack.name.replace("_", " "),
        measures=attack.measures,
        paper=attack.paper,
        real=float(real.mean()),
        simulated=float(simulated.mean()),
        chance=float(chance.mean()),
        error=error,
        exceeds=exceeds,
        remedy=attack.remedy(job, known, attacker),
        detail=scores[-1].detail,
        noise=max(seed_error, noise),
        two_sided=attack.two_sided,
    )


def _standard_error(values: Floats) -> float:
    """Return the standard error of the mean over seeds; 0 for one seed."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0

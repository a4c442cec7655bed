"""An audit of one job on its own tables: checker, simulators and attacks, and one page that says what they found.

1. two short runs of the job (two epochs, a few batches), every message held against its declaration
2. the protocol's views, real against simulated
3. the attacks on whole runs over several seeds, each scored on the real view and on one that holds no more than the
   party's own gradients, or the sums it collects
4. for each party what it could infer, how strongly, and what would make it less

Something *exceeds the declaration* if the checker or a simulator finds it, or if an attack under a sealed residual does
better than on the simulated view by more than MARGIN and three standard errors (with fewer than three seeds: by .1; if
it ranks by what is drawn afresh, by six standard errors of the difference of two rankings of so many rows, too).
What a party is told by the declaration must be seen by the recorder: where it is not, the audit fails by that name. The
attacks that were not carried out are listed, each with its reason.
It exceeds what the job *accepts* if a guard would refuse it, or if an attack carries a leak out that the job does not
accept by name, on these tables, whatever the guards count. All runs here accept every leak, so that they can be seen.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
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
from securevfl.consent.leak_guard import leaks
from securevfl.consent.settle_job import settle_job
from securevfl.data.party import Party, check_parties
from securevfl.errors import SecureVFLError
from securevfl.families import leak_kinds
from securevfl.families.declarations import run_roles
from securevfl.families.run_facts import RunFacts, pooled_run_facts
from securevfl.families.table_preparation import with_prepared_tables
from securevfl.job import Job
from securevfl.runtime.disclosure_gate import DisclosureRecord

MARGIN = 0.03
_FEW_SEEDS_MARGIN = 0.1
_ROWS = 2000  # of the short runs at most
_MOST_ATTACKERS = 4  # passive parties whose view is attacked: those with the most columns


def run_audit(
    job: Job,
    parties: Sequence[Party],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    on_step: Callable[[str], None] | None = None,
    noise_parties: Sequence[str] = (),
) -> Audit:
    """Audits the job on these tables. Raises what `simulate` raises if the job does not start at all.

    noise_parties: parties whose columns are noise.

    `on_step` is told what begins. Takes as long as two trainings a seed, and the protocol's own checks.
    """
    started, say = time.monotonic(), on_step or (lambda step: None)
    for name, extension in load_more().items():
        say(f"attack {name} of {extension}")
    active, passives = check_parties(parties)
    asked = job = settle_job(job, parties)
    brought = [active, *passives]
    job, parties = with_prepared_tables(job, brought)
    active, *passives = parties
    roles = run_roles(job.family, job, parties)
    say("transcripts")
    short_job, short_parties = _short(job.model_copy(update={"accepts": [*leak_kinds()]}), parties)
    outcome = check_transcript(*(record_transcript(short_job, short_parties)[0] for _ in range(2)))
    say("simulators")
    for protocol in job.family.message_protocols(job, roles):
        outcome = outcome.merge(simulators.views(protocol, parties=len(roles.cast)))
    if job.family.reveals_only_outputs:
        outcome = outcome.merge(run_simulators.run_views(short_job, short_parties))
    known = pooled_run_facts(job, [active, *passives])
    inferences, failed = _attacks(job, known, seeds, say, (asked, brought))
    leaking = leaks(asked, pooled_run_facts(asked, brought).shape)
    return Audit(
        label=f"{job.optimizer.label} on a {job.model.name} model, {job.family.title(job, roles)}, "
        f"batches of {known.shape.smallest_batch} rows",
        roles=dict(roles.cast),
        declared=job.family.declarations(job, roles),
        findings=outcome.findings,
        inferences=inferences,
        leaks=[f"accepted: {leak}" for leak in leaking if leak.name in job.accepts],
        refused=[str(leak) for leak in leaking if leak.name not in job.accepts],
        failed=[*failed, *unlooked(job, roles)],
        skipped=_skipped(asked, known),
        tests=outcome.tests,
        seeds=len(seeds),
        seconds=time.monotonic() - started,
        lead=active.name,
        facts={
            "made": datetime.now(UTC).isoformat(timespec="minutes"),
            "job": asked.digest.hex()[:16],
            "tables": ", ".join(f"{each.name} ({len(each):,} rows x {len(each.columns)} columns)" for each in brought),
            "versions": f"securevfl {__version__}, Python {platform.python_version()}, numpy {np.__version__}",
        },
        opens=_opens(job, roles, known if not {party.name for party in passives} & set(noise_parties) else None),
    )


def _opens(job: Job, roles: Roles, known: RunFacts | None) -> dict[str, list[str]]:
    """Say to each party whose labels others' columns may open what its consent sheet says of them, a line each.

    Without `known`, as where columns are made up, it is whom to ask.
    """
    told = {name: job.family.statements(job, roles, name, known) for name in roles.parties}
    return {name: text.split("\n") for name, each in told.items() for word, text in each if word == "opens"}


def _short(job: Job, parties: Sequence[Party]) -> tuple[Job, list[Party]]:
    """Two epochs on rows for a few batches."""
    rows, size = len(parties[0]), _ROWS if isinstance(job.batch_size, str) else job.batch_size
    few = min(rows, max(4 * size, 200), max(_ROWS, size))
    short = job.model_copy(update={"epochs": min(2, job.epochs), "target": None, "patience": None})
    if few == rows:
        return short, list(parties)
    chosen = np.sort(np.random.default_rng(job.seed).permutation(rows)[:few]).astype(np.intp)
    return short, [party.take(chosen) for party in parties]


def unlooked(job: Job, roles: Roles) -> list[str]:
    """Say what of a method no simulator and no attack looks at, a line each."""
    family = job.family
    strange = [(kind.name, name) for kind in family.leak_kinds for name in kind.attacks if name not in ATTACKS]
    lines = [f"leak {leak}: attack {name} was expected in ATTACKS, where it is not; add it" for leak, name in strange]
    if not family.reveals_only_outputs and not family.message_protocols(job, roles):
        lines.append(f"method {family.name}: no simulator knows it; name its protocols, or let it be replayed")
    return lines


def _attackers(known: RunFacts) -> tuple[list[str], list[str]]:
    """List the passive parties whose view is attacked, those with the most columns, and the others."""
    without = [party for party in known.parties if party.columns and not party.active]
    names = [party.name for party in sorted(without, key=lambda party: -len(party.columns))]
    return names[:_MOST_ATTACKERS], names[_MOST_ATTACKERS:]


def _skipped(job: Job, known: RunFacts) -> list[str]:
    """List the attacks that are not carried out, each with its reason, and the parties whose view is not attacked."""
    reasons = {name.replace("_", " "): attack.skip_reason(job) for name, attack in ATTACKS.items()}
    reasons |= {f"leak {kind.name}": "no attack carries it out" for kind in job.family.leak_kinds if not kind.attacks}
    if others := _attackers(known)[1]:
        why = f"{_MOST_ATTACKERS} parties with as many columns or more are tried"
        reasons[f"from the views of {', '.join(others)}"] = why
    return [f"{name}: {why}" for name, why in reasons.items() if why]


def _attacks(
    job: Job, known: RunFacts, seeds: Sequence[int], say: Callable[[str], None], asked: tuple[Job, Sequence[Party]]
) -> tuple[list[Inference], list[str]]:
    """Every attack that applies; those that each passive party can carry out from the view of each in turn.

    asked: the job and the tables before they were prepared.
    """
    passives, _ = _attackers(known)
    scores: dict[tuple[str, str], list[Score]] = {}
    failed: dict[str, str] = {}
    for seed in seeds:
        say(f"attacks, seed {seed}")
        pair = RealIdealPair(job, known.parties, seed, asked=asked)
        pair.real_run, pair.ideal_run  # noqa: B018  made once, before the worlds is copied for each attacker
        if asked[0].prepare.woe is not None:
            pair.bins_recording  # noqa: B018  as above
        failed |= {line: line for line in unseen(pair)}
        for name, attack in ATTACKS.items():
            if attack.skip_reason(asked[0]) or name in failed:
                continue
            for attacker in passives if attack.attacker_role is AttackerRole.PASSIVE else [known.shape.active]:
                own = copy(pair)
                own.attacker = attacker
                try:
                    score = attack.score(own)
                    scores.setdefault((name, attacker), []).append(score)
                except SecureVFLError as error:
                    failed[name] = f"{name}: {error}"
    inferences = [_inference(job, known, ATTACKS[name], own, attacker) for (name, attacker), own in scores.items()]
    return sorted(inferences, key=lambda each: -each.reach), list(failed.values())


def unseen(pair: RealIdealPair) -> list[str]:
    """Say of which parties the recorder has not seen what others' doors say that they were told, a line each.

    An attack on a view that holds nothing ends at chance, whatever the run has told.
    """
    tape = pair.real_run[1]
    told = [(teller, entry) for teller, seen in tape.items() for entry in seen.disclosures if entry.group == "training"]
    lines = {
        f"{entry.to}: by its entries {teller} tells it {entry.kind} of training rows, and none was seen; a method "
        "asks for them by the roles of its protocols, which note them": None
        for teller, entry in told
        if not _is_seen(tape[entry.to], entry)
    }
    return list(lines)


def _is_seen(seen: PartyRecord, entry: DisclosureRecord) -> bool:
    """Whether something of the kind was noted at who was told it, or stands in a message as it is."""
    noted: dict[str, Sequence[object]] = {
        "labels": seen.opened_gradients,
        "columns": seen.totals or seen.opened_gradients or seen.told,
        "phases": seen.phases,
    }
    if entry.kind not in noted or noted[entry.kind]:
        return True
    values = (value for receipt in seen.receipts for value in fields(receipt.message))
    return any(
        as_numbers(value, entry.numbers, 1) is not None
        or (isinstance(value, np.ndarray) and value.size == entry.numbers)
        for value in values
    )


def _inference(job: Job, known: RunFacts, attack: Attack, scores: list[Score], attacker: str) -> Inference:
    real, simulated, chance = (
        np.array([getattr(score, name) for score in scores]) for name in ("real", "simulated", "chance")
    )
    excess = real - simulated
    error, spread = (_standard_error(each) for each in (excess, real))
    noise = float(np.mean([score.noise for score in scores]))
    by_luck = 6 * noise * (2 / len(scores)) ** 0.5 if attack.randomized else 0.0
    allowed = max(by_luck, MARGIN + 3 * error if len(excess) > 2 else _FEW_SEEDS_MARGIN)
    leaks = [kind.name for kind in job.family.leak_kinds if attack.name in kind.attacks]
    carried_out = bool(leaks) and not set(leaks) & set(job.accepts) and real.mean() > attack.leak_threshold
    exceeds = carried_out or bool(attack.target_hidden(job) and excess.mean() > allowed)
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
        noise=max(spread, noise),
        two_sided=attack.two_sided,
    )


def _standard_error(values: Floats) -> float:
    """Return the standard error of the mean over seeds; 0 for one."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0

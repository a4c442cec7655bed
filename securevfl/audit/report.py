"""An audit of one job on its own tables: checker, simulators and attacks, and one page that says what they found.

1. two short runs of the job (two epochs, a few batches), every message held against its declaration
2. the protocol's views, real against simulated
3. the attacks on whole runs over several seeds, each scored on the real view and on one that holds no more than the
   party's own gradients, or the sums it collects
4. for each party what it could infer, how strongly, and what would make it less

Something *exceeds the declaration* if the checker or a simulator finds it, or if an attack under a sealed residual does
better than on the simulated view by more than MARGIN and three standard errors (with fewer than three seeds: by .1).
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

from securevfl.audit.attacks import ATTACKS
from securevfl.audit.attacks.base import Attack, By, Score
from securevfl.audit.checks import simulators, simulators_shares
from securevfl.audit.checks.transcripts import Outcome, check_transcript
from securevfl.audit.findings import Audit, Inference
from securevfl.audit.recording.transcript import record
from securevfl.audit.recording.views import Worlds
from securevfl.data.party import Party, check_parties
from securevfl.errors import SecureVFLError
from securevfl.job import Job
from securevfl.methods.base import Known
from securevfl.methods.known import known_run
from securevfl.methods.prepared import as_prepared
from securevfl.privacy.allowance import settled
from securevfl.privacy.leaks import LEAKS, leaks
from securevfl.roles import Roles
from securevfl.version import __version__

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
) -> Audit:
    """Audits the job on these tables. Raises what `simulate` raises if the job does not start at all.

    `on_step` is told what begins. Takes as long as two trainings a seed, and the protocol's own checks.
    """
    started, say = time.monotonic(), on_step or (lambda step: None)
    active, passives = check_parties(parties)
    asked = job = settled(job, parties)
    brought = [active, *passives]
    job, parties = as_prepared(job, brought)
    active, *passives = parties
    roles = job.method.cast([active, *passives])
    roles = job.method.assigned(job, roles, {party.name: len(party.columns) for party in parties})
    say("transcripts")
    short_job, short_parties = _short(job.model_copy(update={"accepts": LEAKS}), parties)
    outcome = check_transcript(*(record(short_job, short_parties)[0] for _ in range(2)))
    say("simulators")
    outcome = outcome.merge(_simulators(job, roles))
    if job.protocol.shares is not None:
        outcome = outcome.merge(simulators_shares.views(short_job, short_parties))
    known = known_run(job, [active, *passives])
    inferences, failed = _attacks(job, known, seeds, say)
    found = leaks(asked, known_run(asked, brought).sizes)
    return Audit(
        label=f"{job.optimizer.label} on a {job.model.name} model, {job.method.title(job, roles)}, "
        f"batches of {known.sizes.smallest_batch} rows",
        roles=dict(roles.cast),
        declared=job.method.declares(job, roles),
        findings=outcome.findings,
        inferences=inferences,
        leaks=[f"accepted: {leak}" for leak in found if leak.name in job.accepts],
        refused=[str(leak) for leak in found if leak.name not in job.accepts],
        failed=failed,
        tests=outcome.tests,
        seeds=len(seeds),
        seconds=time.monotonic() - started,
        lead=active.name,
        facts=_facts(asked, brought),
    )


def _facts(job: Job, parties: Sequence[Party]) -> dict[str, str]:
    """When, of what and with what an audit was made."""
    tables = [f"{party.name} ({len(party):,} rows x {len(party.columns)} columns)" for party in parties]
    return {
        "made": datetime.now(UTC).isoformat(timespec="minutes"),
        "job": job.digest.hex()[:16],
        "tables": ", ".join(tables),
        "versions": f"securevfl {__version__}, Python {platform.python_version()}, numpy {np.__version__}",
    }


def _short(job: Job, parties: Sequence[Party]) -> tuple[Job, list[Party]]:
    """Two epochs on rows for a few batches."""
    rows, size = len(parties[0]), _ROWS if job.batch_size == "all" else job.batch_size
    few = min(rows, max(4 * size, 200), max(_ROWS, size))
    short = job.model_copy(update={"epochs": min(2, job.epochs), "target": None, "patience": None})
    if few == rows:
        return short, list(parties)
    chosen = np.sort(np.random.default_rng(job.seed).permutation(rows)[:few]).astype(np.intp)
    return short, [party.take(chosen) for party in parties]


def _simulators(job: Job, roles: Roles) -> Outcome:
    outcome = Outcome()
    for protocol in job.method.protocols(job, roles):
        outcome = outcome.merge(simulators.views(protocol, parties=len(roles.cast)))
    return outcome


def _attacks(
    job: Job, known: Known, seeds: Sequence[int], say: Callable[[str], None]
) -> tuple[list[Inference], list[str]]:
    """Every attack that applies; those that each passive party can carry out from the view of each in turn."""
    without = [party for party in known.parties if party.columns and not party.active]
    passives = [party.name for party in sorted(without, key=lambda party: -len(party.columns))][:_MOST_ATTACKERS]
    scores: dict[tuple[str, str], list[Score]] = {}
    failed: dict[str, str] = {}
    for seed in seeds:
        say(f"attacks, seed {seed}")
        worlds = Worlds(job, known.parties, seed)
        worlds.real_run, worlds.ideal_run  # noqa: B018  made once, before the worlds is copied for each attacker
        for name, attack in ATTACKS.items():
            if not attack.applies_to(job) or name in failed:
                continue
            for attacker in passives if attack.by is By.EACH else [known.sizes.active]:
                own = copy(worlds)
                own.attacker = attacker
                try:
                    score = attack.score(own)
                    scores.setdefault((name, attacker), []).append(score)
                except SecureVFLError as error:
                    failed[name] = f"{name}: {error}"
    found = [_inference(job, known, ATTACKS[name], own, attacker) for (name, attacker), own in scores.items()]
    return sorted(found, key=lambda each: each.chance - each.real), list(failed.values())


def _inference(job: Job, known: Known, attack: Attack, scores: list[Score], attacker: str) -> Inference:
    real, simulated, chance = (
        np.array([getattr(score, name) for score in scores]) for name in ("real", "simulated", "chance")
    )
    excess = real - simulated
    error = float(excess.std(ddof=1) / np.sqrt(len(excess))) if len(excess) > 1 else 0.0
    allowed = MARGIN + 3 * error if len(excess) > 2 else _FEW_SEEDS_MARGIN
    carried_out = attack.leak is not None and attack.leak not in job.accepts and real.mean() > attack.beyond
    exceeds = carried_out or bool(attack.hidden(job) and excess.mean() > allowed)
    return Inference(
        who=attack.who(job, attacker, known.sizes.active),
        name=attack.name.replace("_", " "),
        what=attack.measures,
        paper=attack.paper,
        real=float(real.mean()),
        simulated=float(simulated.mean()),
        chance=float(chance.mean()),
        error=error,
        exceeds=exceeds,
        remedy=attack.remedy(job, known, attacker),
        detail=scores[-1].detail,
    )

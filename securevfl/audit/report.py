"""An audit of one job on its own tables: checker, simulators and attacks, and one page that says what they found.

1. two short runs of the job (two epochs, a few batches), every message held against its declaration
2. the protocol's views, real against simulated
3. the attacks on whole runs over several seeds, each scored on the real view and on one that holds no more than the
   party's own gradients, or the sums it collects
4. for each party what it could infer, how strongly, and what would make it less

Something *exceeds the declaration* if the checker or a simulator finds it, or if an attack under a sealed residual does
better than on the simulated view by more than MARGIN and three standard errors (with fewer than three seeds: by .1).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from securevfl.audit import simulators
from securevfl.audit.attacks import ATTACKS
from securevfl.audit.attacks.base import Attack, LabelAttack, Score
from securevfl.audit.checker import Finding, Outcome, check_transcript
from securevfl.audit.curve import smallest_batch
from securevfl.audit.declarations import declared_of
from securevfl.audit.transcript import record
from securevfl.audit.views import Stage
from securevfl.errors import SecureVFLError
from securevfl.job import Job
from securevfl.leakage import leaks
from securevfl.models.kernel import Kernel
from securevfl.party import Party, check_parties
from securevfl.protocols.base import Declared
from securevfl.schedule import Schedule

MARGIN = 0.03
_FEW_SEEDS_MARGIN = 0.1
_STRONG, _WEAK = 0.8, 0.6  # label AUC from which an inference is called strong, and below which weak
_MODEST_LIMIT = 0.6  # label AUC that the proposed batch size keeps noise columns at
_ROWS = 2000  # of the short runs at most
_MOST_ATTACKERS = 4  # passive parties whose view is attacked: those with the most columns


@dataclass(frozen=True)
class Inference:
    """What one attack got over all seeds: means, and the standard error of real minus simulated."""

    who: str
    name: str
    what: str
    paper: str
    real: float
    simulated: float
    chance: float
    error: float
    exceeds: bool
    remedy: str

    @property
    def strength(self) -> str:
        """In words: how far the real score is from chance."""
        reach = (self.real - self.chance) / max(1e-9, 1.0 - self.chance)
        low, high = 2 * _WEAK - 1, 2 * _STRONG - 1
        return "strong" if reach >= high else "some" if reach >= low else "weak" if reach > 0.05 else "none"


@dataclass(frozen=True)
class Audit:
    """The outcome. `findings` and `inferences` that exceed make the exit code 1; `leaks` are accepted or refused."""

    label: str
    roles: dict[str, str]
    declared: list[Declared]
    findings: list[Finding]
    inferences: list[Inference]
    leaks: list[str]
    failed: list[str] = field(default_factory=list)
    tests: int = 0
    seeds: int = 0
    seconds: float = 0.0

    @property
    def exceeding(self) -> list[str]:
        """Everything beyond the declaration, a line each."""
        found = [str(finding) for finding in self.findings]
        return found + [
            f"{each.name}: {each.who}: {each.real:.3f} where the declared output gives {each.simulated:.3f}"
            for each in self.inferences
            if each.exceeds
        ]

    @property
    def exit_code(self) -> int:
        return 1 if self.exceeding or self.failed else 0

    @property
    def verdict(self) -> str:
        """One line."""
        if self.exceeding:
            return f"{len(self.exceeding)} things exceed the declaration"
        if self.failed:
            return "parts of the audit could not run"
        strong = sum(each.strength == "strong" for each in self.inferences)
        rest = f"; {strong} strong inferences are possible from what is declared" if strong else ""
        return f"nothing exceeds the declaration{rest}"


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
    active, passives = check_parties(parties, several_active=job.optimizer.several_active)
    names = [party.name for party in passives]
    say("transcripts")
    short_job, short_parties = _short(job, parties)
    outcome = check_transcript(*(record(short_job, short_parties)[0] for _ in range(2)))
    say("simulators")
    outcome = outcome.merge(_simulators(job, len(passives)))
    inferences, failed = _attacks(job, parties, seeds, say)
    rows, outputs = _batch(job, active)
    columns = {party.name: party.X.shape[1] for party in passives}
    return Audit(
        label=f"{job.optimizer.label} on a {job.model.name} model, {job.protocol.sum_for(len(names)).name} sum, "
        f"{job.protocol.label(len(names)).split('/')[-1]} residual, batches of {rows} rows",
        roles=_roles(active, passives),
        declared=[item for item in declared_of(job, names) if isinstance(job.model, Kernel) or not item.phases],
        findings=outcome.findings,
        inferences=inferences,
        leaks=[
            ("accepted: " if leak.name in job.accepts else "would be refused: ") + str(leak)
            for leak in leaks(job, columns, batch_rows=rows, outputs=outputs)
        ],
        failed=failed,
        tests=outcome.tests,
        seeds=len(seeds),
        seconds=time.monotonic() - started,
    )


def audit_command(job: Job, parties: Sequence[Party], html_path: Path | None = None) -> int:
    """Audits, prints the page and writes it as HTML too; the exit code: 1 if anything exceeds the declaration."""
    from securevfl.audit.page import html, text
    from securevfl.cli_show import console

    out = console()
    errors = console(err=True)
    audit = run_audit(job, parties, on_step=lambda step: errors.print(f"audit: {step}"))
    out.print(text(audit), soft_wrap=True)
    if html_path is not None:
        from securevfl.files import write_whole

        write_whole(html_path, html(audit).encode())
    return audit.exit_code


def _roles(active: Party, passives: Sequence[Party]) -> dict[str, str]:
    """By name: of several parties with labels each is active in sums of its own, passive in those of the others."""
    several = any(party.active for party in passives)
    roles = {active.name: "active and passive" if several else "active"}
    return roles | {party.name: "active and passive" if party.active else "passive" for party in passives}


def _short(job: Job, parties: Sequence[Party]) -> tuple[Job, list[Party]]:
    """Two epochs on rows for a few batches."""
    rows = len(parties[0])
    few = min(rows, max(4 * job.batch_size, 200), max(_ROWS, job.batch_size))
    short = job.model_copy(update={"epochs": min(2, job.epochs), "target": None})
    if few == rows:
        return short, list(parties)
    chosen = np.sort(np.random.default_rng(job.seed).permutation(rows)[:few]).astype(np.intp)
    return short, [party.take(chosen) for party in parties]


def _simulators(job: Job, passives: int) -> Outcome:
    outcome = Outcome()
    if passives > 1:
        chosen = job.protocol.sum_for(passives)
        outcome = outcome.merge(simulators.sum_views(chosen, rounds=3, sessions=1, passives=passives))
    if job.protocol.residual.name != "none":
        outcome = outcome.merge(simulators.residual_views(job.protocol.residual))
    return outcome


def _batch(job: Job, active: Party) -> tuple[int, int]:
    loss = job.model.loss
    assert active.y is not None
    schedule = Schedule(
        len(active),
        batch_size=job.batch_size,
        epochs=job.epochs,
        seed=job.seed,
        test_fraction=job.test_fraction,
        reshuffle=job.reshuffle,
    )
    return schedule.smallest_batch, loss.outputs(loss.classes(active.y))


def _attacks(
    job: Job, parties: Sequence[Party], seeds: Sequence[int], say: Callable[[str], None]
) -> tuple[list[Inference], list[str]]:
    """Every attack that applies; those on labels from the view of each passive party in turn."""
    active, passives = check_parties(parties, several_active=job.optimizer.several_active)
    without = [party.name for party in passives if not party.active]
    attackers = sorted(without, key=lambda name: -_columns(parties, name))[:_MOST_ATTACKERS]
    scores: dict[tuple[str, str], list[Score]] = {}
    failed: dict[str, str] = {}
    for seed in seeds:
        say(f"attacks, seed {seed}")
        stage = Stage(job, parties, seed)
        stage.real_run, stage.ideal_run  # noqa: B018  made once, before the stage is copied for each attacker
        for name, attack in ATTACKS.items():
            if not attack.applies_to(job) or name in failed:
                continue
            for attacker in attackers if _after_labels(attack) else [*attackers, passives[0].name][:1]:
                own = copy(stage)
                own.attacker = attacker
                try:
                    scores.setdefault((name, attacker), []).append(attack.score(own))
                except SecureVFLError as error:
                    failed[name] = f"{name}: {error}"
    found = [
        _inference(job, parties, ATTACKS[name], own, attacker, active.name) for (name, attacker), own in scores.items()
    ]
    return sorted(found, key=lambda each: each.chance - each.real), list(failed.values())


def _columns(parties: Sequence[Party], name: str) -> int:
    return int(next(party.X.shape[1] for party in parties if party.name == name))


def _after_labels(attack: Attack) -> bool:
    return isinstance(attack, LabelAttack) or attack.name == "rare_values"


def _inference(
    job: Job, parties: Sequence[Party], attack: Attack, scores: list[Score], attacker: str, active: str
) -> Inference:
    real, simulated, chance = (
        np.array([getattr(score, name) for score in scores]) for name in ("real", "simulated", "chance")
    )
    excess = real - simulated
    error = float(excess.std(ddof=1) / np.sqrt(len(excess))) if len(excess) > 1 else 0.0
    allowed = MARGIN + 3 * error if len(excess) > 2 else _FEW_SEEDS_MARGIN
    hides = job.protocol.residual.seals if isinstance(attack, LabelAttack) else True
    exceeds = bool(hides and excess.mean() > allowed)
    return Inference(
        who=_who(attack, attacker, active),
        name=attack.name.replace("_", " "),
        what=attack.measures,
        paper=attack.paper,
        real=float(real.mean()),
        simulated=float(simulated.mean()),
        chance=float(chance.mean()),
        error=error,
        exceeds=exceeds,
        remedy=_remedy(job, parties, attack, attacker),
    )


def _who(attack: Attack, attacker: str, active: str) -> str:
    """Whose view the attack starts from."""
    if _after_labels(attack):
        return attacker
    if attack.name in ("collusion", "masked_phases", "membership"):
        return "any party"
    return active


def _remedy(job: Job, parties: Sequence[Party], attack: Attack, attacker: str) -> str:
    party = next(party for party in parties if party.name == attacker)
    silent = job.protocol.residual.name == "none"
    if attack.name == "model_completion" or (attack.name == "transcript" and silent):
        return "none: it needs no message, only the party's own columns and a few labels; keep labels from it"
    if attack.name == "differencing":
        if getattr(job.optimizer, "mode", "parallel") == "sequential":
            return "the parallel mode, in which all parts move at once"
        return "more parties in the sum: it is in what the sum itself tells, and one part outweighs the others"
    if attack.name == "membership":
        return "stronger l2, fewer epochs"
    if attack.name == "rare_values":
        return "drop or group values that stand alone in a batch, or larger batches"
    if attack.name in ("collusion", "masked_phases"):
        return "a masked or encrypted sum among parties that do not pool what they hold"
    if attack.name in ("phases", "phase_map"):
        return "frequencies of one's own; scale columns so that phases wrap"
    if not job.protocol.residual.seals:
        return 'seal the residual: residual = "ckks" or "paillier"; or blur it with a defence'
    p, (rows, outputs) = party.X.shape[1], _batch(job, next(party for party in parties if party.active))
    needed = smallest_batch(p * outputs, outputs, job.epochs, job.reshuffle, _MODEST_LIMIT)
    if needed <= rows:
        return f"its gradient alone says little at {rows} rows a batch; columns that go with the label say the rest"
    return f"batches of {needed:,} rows or more, so that p / (n c) falls below {p / needed:.3f}; fewer columns"

"""FedBCD's Table 2: rounds, computation, communication and total of Credit-FTL, under CKKS and Paillier.

All numbers of local steps have one small step, as in the paper. Rounds to a share of the AUC that logistic regression
reaches with the host's columns are those of trainings in the open. A round under encryption is measured once for each
number of local steps: processor seconds of both parties and their worker processes, and virtual seconds of a line of
300 Mbps and 20 ms.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.papers.ftl_setting import Plan, job_of, regression_auc, shared_tables
from benchmarks.papers.study import DIVERGED, Curve, Rows, Runs, reached, rounds_figures
from securevfl.data.party import Party
from securevfl.job import Job
from securevfl.protocols.engines import Ckks, Paillier
from securevfl.protocols.residuals.base import ResidualProtocol
from securevfl.protocols.residuals.open_residual import OpenResidual
from securevfl.protocols.residuals.sealed_residual import SealedResidual
from securevfl.runtime.costs import Kind
from securevfl.training.simulate import simulate


@dataclass(frozen=True)
class Table2Plan:
    """The trainings of Table 2.

    Attributes:
        setting: tables and options of the trainings.
        held_out: number of held-out rows.
        l2: weight decay, with which transfer learning reaches the AUC of logistic regression (`--only overlap`).
        step: the step size.
        timed: for each encryption scheme, the number of timed rounds.
    """

    setting: Plan
    held_out: int = 3000
    l2: float = 0.03
    step: float = 1.0
    timed: tuple[tuple[Literal["open", "ckks", "paillier"], int], ...] = (("ckks", 4), ("paillier", 1))


FULL = Table2Plan(Plan("paper", rows=500, targets=(0.97, 0.985), most=100, splits=2))
UNDER_CKKS, UNDER_PAILLIER = (replace(FULL, timed=(timed,)) for timed in FULL.timed)
QUICK = Table2Plan(
    Plan("paper", 40, 2, (1, 2), (2,), (), (0.9, 0.95), 12, 1, starts=2),
    200,
    step=0.5,
    timed=(("open", 1), ("ckks", 1)),
)
OPEN_QUICK = replace(QUICK, timed=(("open", 1),))


def run(data: Path | None, plan: Table2Plan, runs: Runs) -> Rows:
    """Return rounds to each target by local steps, in the open."""
    setting, rows = plan.setting, []
    tables = [shared_tables(data, setting.table, setting.rows, split, plan.held_out) for split in range(setting.splits)]
    goals = [_goals(parties, plan) for parties in tables]
    for way, q in setting.ways():
        curves: list[tuple[list[float], Curve]] = []
        for split, (parties, goal) in enumerate(zip(tables, goals, strict=True)):
            for start in range(setting.starts):
                runs(f"Q = {q}{' on one opening' if way.one_opening else ''}, split {split + 1}, start {start + 1}")
                what = {"table": parties[0].digest.hex(), "plan": asdict(plan), "way": asdict(way), "q": q}
                training = partial(_curve, parties, plan, way, q, goal[-1], start)
                curves.append((goal, runs.once(what | {"start": start}, training)))
        for number, target in enumerate(setting.targets):
            rounds = [reached(curve, goal[number]) for goal, curve in curves]
            rows.append({"q": q, "one_opening": way.one_opening, "target": target, **rounds_figures(rounds)})
    return rows


def costs(data: Path | None, plan: Table2Plan, runs: Runs) -> Rows:
    """Return seconds and bytes of one round by engine and local steps."""
    setting, rows = plan.setting, []
    parties = shared_tables(data, setting.table, setting.rows, 0, plan.held_out)
    _a_round(parties, plan, setting, 1, "ckks", 1, 0.0)  # imports modules, which no round shall pay for
    for engine, rounds in plan.timed:
        runs(f"{engine}, setup")
        setup = _setup(parties, plan, engine)
        for way, q in setting.ways():
            runs(f"{engine}, Q = {q}{' on one opening' if way.one_opening else ''}")
            row = {"engine": engine, "q": q, "one_opening": way.one_opening}
            rows.append(row | _a_round(parties, plan, way, q, engine, rounds, setup))
    return rows


def _a_round(
    parties: Sequence[Party], plan: Table2Plan, way: Plan, q: int, engine: str, rounds: int, setup: float
) -> dict[str, float]:
    """Return processor seconds, virtual seconds of communication, and bytes of one round, from this number of rounds.

    Args:
        parties: the tables.
        plan: the plan.
        way: its setting, with an opening for each local step or with one.
        q: local steps.
        engine: the name of an engine.
        rounds: the number of rounds to run.
        setup: processor seconds before the first round, for keys and other preparations.
    """
    begun = _processor_seconds()
    costs = simulate(_job(parties, plan, way, q, _residual(engine), rounds), parties).costs
    spent = _processor_seconds() - begun - setup
    seconds = {"computation_s": spent / rounds, "communication_s": costs.seconds(Kind.COMMUNICATION) / rounds}
    return seconds | {"mb": costs.bytes / rounds / 1e6}


def _setup(parties: Sequence[Party], plan: Table2Plan, engine: str) -> float:
    """Return processor seconds that a training spends outside its rounds, from trainings of one and of two rounds."""
    one, two = (_a_round(parties, plan, plan.setting, 1, engine, rounds, 0.0)["computation_s"] for rounds in (1, 2))
    return max(0.0, 2 * one - 2 * two)


def _residual(engine: str) -> ResidualProtocol:
    residuals: dict[str, ResidualProtocol] = {
        "open": OpenResidual(),
        "ckks": SealedResidual(engine=Ckks()),
        "paillier": SealedResidual(engine=Paillier()),
    }
    return residuals[engine]


def _processor_seconds() -> float:
    """Return the processor seconds of this process and of all its worker processes, running and ended (Linux only)."""
    ended, ticks = resource.getrusage(resource.RUSAGE_CHILDREN), os.sysconf("SC_CLK_TCK")
    parents, spent = {}, {}
    for process in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = process.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        number = int(process.parent.name)
        parents[number], spent[number] = int(fields[1]), (int(fields[11]) + int(fields[12])) / ticks
    running, family = 0.0, {os.getpid()}
    while family:
        family = {number for number, parent in parents.items() if parent in family}
        running += sum(spent[number] for number in family)
    return time.process_time() + ended.ru_utime + ended.ru_stime + running


def _goals(parties: Sequence[Party], plan: Table2Plan) -> list[float]:
    """Return the AUCs to reach on the held-out rows."""
    job = _job(parties, plan, plan.setting, 1, OpenResidual(), 1)
    alone = regression_auc(parties[1:], np.asarray(parties[0].y), job, parties[0])
    return [share * alone for share in plan.setting.targets]


def _curve(parties: Sequence[Party], plan: Table2Plan, way: Plan, q: int, last: float, start: int) -> Curve:
    """Return rounds and held-out AUC from a random start, up to the AUC `last`; empty if it diverges."""
    goal = {"metric": "auc", "value": last}
    job = _job(parties, plan, way, q, OpenResidual(), way.most, evaluate_every=1, target=goal, seed=start)
    try:
        history = simulate(job, parties).history
    except DIVERGED:
        return []
    return [(record["round"], record["auc"]) for record in history]


def _job(
    parties: Sequence[Party], plan: Table2Plan, way: Plan, q: int, residual: ResidualProtocol, rounds: int, **keys: Any
) -> Job:
    job = job_of(way, q, plan.step, residual, rounds, **keys)
    model = job.model.model_copy(update={"l2": plan.l2})
    return job.model_copy(update={"model": model, "test_fraction": plan.held_out / len(parties[0])})

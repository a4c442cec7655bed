"""Transfer learning: FedBCD's Credit-FTL (Liu et al. 2019, Table 2) on Secure FTL (Liu et al. 2018), and its table.

    credit    rounds to an AUC by local steps, on the paper's split of default_credit: bills and payments with the
              labels on one side (18 columns), age, sex, marriage and education on the other (15 after encoding)
    small     the same at one small step for all Q
    fate      the same on the split of FATE (13 and 10 columns)
    many      AUC and rounds with many local steps, with and without a proximal term, on digits
    overlap   AUC by the number of shared rows and by weight decay, on training rows and on 10,000 held-out rows,
              compared with logistic regression on the guest's and the host's columns
    table2    Table 2: rounds at one small step (`ftl_table2`)
    costs     Table 2: seconds of computation and of communication, and bytes of a round, under CKKS
    paillier  the same under Paillier
    step      one local step at 500 shared rows: processor seconds of both sides, by engine and width

In transfer learning, the guest has the labels and the host has none, and they share only some rows. Networks map both
parties' columns to a common representation, so that the host's rows can be scored from the host's columns.

Targets are shares of the AUC that logistic regression reaches with the host's columns on the same rows. Step sizes are
chosen on validation rows of each split, by the rounds to all targets, from the first random start. `one_*` is the
result at the best step size of all numbers Q of local steps together. Every split is trained from several random
starts. Rounds are counted in runs without encryption that evaluate the model after every round. Seconds and bytes are
these rounds times those of one round under each encryption scheme, in virtual time: as if each party had a machine like
this one, with a link between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers import ftl_table2
from benchmarks.papers.ftl_setting import L2, Plan, job_of, regression_auc, shared_tables
from benchmarks.papers.study import (
    DIVERGED,
    Choice,
    Curve,
    Part,
    Rows,
    Runs,
    choose,
    development,
    mean,
    median,
    one_step,
    reached,
    rounds_figures,
    spread,
    toll,
)
from securevfl.base.extras import import_extra
from securevfl.data.party import Party
from securevfl.job import Job
from securevfl.models.metrics import area_under_curve
from securevfl.optim.fedbcd import FedBCD, FedPBCD
from securevfl.protocols.engines import Ckks
from securevfl.protocols.residuals.base import ResidualProtocol
from securevfl.protocols.residuals.open_residual import OpenResidual
from securevfl.protocols.residuals.sealed_residual import SealedResidual
from securevfl.runtime.costs import Kind
from securevfl.training.simulate import simulate


@dataclass(frozen=True)
class SmallPlan:
    """Trainings with one step size.

    Attributes:
        setting: tables and options of the trainings; its grid is not used.
        step: the step size.
    """

    setting: Plan
    step: float = 1.0


@dataclass(frozen=True)
class ManyPlan:
    """Trainings with many local steps.

    Attributes:
        rows: number of shared rows; the same number is held out.
        units: number of units of the hidden layer.
        local_steps: numbers Q of local steps.
        rounds: number of rounds.
        grid: step sizes from which one is chosen.
        mu: weight of the proximal term of FedPBCD.
        targets: the AUCs to reach.
        starts: number of random starts.
    """

    rows: int = 200
    units: int = 8
    local_steps: tuple[int, ...] = (1, 15, 25, 50, 100)
    rounds: int = 6
    grid: tuple[float, ...] = (1.0, 2.0, 4.0)
    mu: float = 0.1
    targets: tuple[float, ...] = (0.80, 0.82, 0.84)
    starts: int = 5


@dataclass(frozen=True)
class OverlapPlan:
    """Trainings with different numbers of shared rows.

    Attributes:
        overlaps: numbers of shared rows.
        held_out: number of held-out rows.
        decays: weight decays.
        table: name of the table.
        q: number of local steps.
        step: the step size.
        first: a number of rounds after which the AUC is reported, in addition to the last one.
        rounds: number of rounds.
        splits: number of random splits.
    """

    overlaps: tuple[int, ...] = (250, 500, 1000, 3000)
    held_out: int = 10_000
    decays: tuple[float, ...] = (L2, 0.03)
    table: str = "paper"
    q: int = 5
    step: float = 4.0
    first: int = 12
    rounds: int = 48
    splits: int = 5


@dataclass(frozen=True)
class StepPlan:
    """Single local steps that are timed.

    Attributes:
        rows: number of shared rows.
        units: numbers of units of the hidden layer.
    """

    rows: int = 500
    units: tuple[int, ...] = (8, 64)


def run(data: Path | None, plan: Plan, runs: Runs) -> Rows:
    """Return a row for each Q and target, and one for each engine of it."""
    tables = [shared_tables(data, plan.table, plan.rows, split) for split in range(plan.splits)]
    inner = [development(table, job_of(plan, 1, 1.0, OpenResidual(), 1)) for table in tables]
    inner_goals, reported = ([goals_of(table, plan) for table in item] for item in (inner, tables))
    choices: list[Choice] = []
    for way, q in plan.ways():

        def merit(eta: float, way: Plan = way, q: int = q) -> float:
            runs(f"{_named(way, q)}, step {eta:g}")
            return sum(
                toll(_once(runs, table, way, q, eta, goals[-1]), goals, plan.most)
                for table, goals in zip(inner, inner_goals, strict=True)
            )

        choices.append(choose(plan.grid, merit))
    together = one_step(choices)
    rows = []
    for (way, q), choice in zip(plan.ways(), choices, strict=True):
        table, same = (_finish(runs, tables, reported, way, q, eta) for eta in (choice.step, together))
        for number, target in enumerate(plan.targets):
            row = {
                "q": q,
                "one_opening": way.one_opening,
                "target": target,
                "aucs": [goals[number] for goals in reported],
                **choice.row(),
                "one_step": together,
                "splits": plan.splits,
            }
            for prefix, result in (("", table), ("one_", same)):
                rounds = _rounds(result["curves"], reported, number)
                row |= {f"{prefix}{key}": item for key, item in rounds_figures(rounds).items()}
                row |= {f"{prefix}{key}": _times(item, median(rounds)) for key, item in result["a_round"].items()}
            rows.append(row)
    return rows


def small(data: Path | None, plan: SmallPlan, runs: Runs) -> Rows:
    """Return rounds, bytes and seconds under CKKS for each number of local steps and target, at one step size."""
    local = plan.setting
    tables = [shared_tables(data, local.table, local.rows, split) for split in range(local.splits)]
    goals, rows = [goals_of(table, local) for table in tables], []
    for way, q in local.ways():
        result = _finish(runs, tables, goals, replace(way, most=local.most * q), q, plan.step)
        for number, target in enumerate(local.targets):
            rounds = _rounds(result["curves"], goals, number)
            row = {"q": q, "one_opening": way.one_opening, "target": target} | rounds_figures(rounds)
            rows.append(row | {key: _times(result["a_round"][key], median(rounds)) for key in ("ckks_mb", "ckks_s")})
    return rows


def _rounds(curves: Sequence[Sequence[Curve]], goals: Sequence[Sequence[float]], number: int) -> list[float | None]:
    """Return the rounds to one of the targets, of every start of every split; None for a start that misses it."""
    return [reached(curve, goal[number]) for starts, goal in zip(curves, goals, strict=True) for curve in starts]


def _named(way: Plan, q: int) -> str:
    return f"Q = {q}{' on one opening' if way.one_opening else ''}"


def _times(item: float, rounds: float | None) -> float | None:
    return None if rounds is None else item * rounds


def goals_of(parties: Sequence[Party], plan: Plan) -> list[float]:
    """Return the AUCs to reach on the rows that a job holds out."""
    alone = regression_auc(parties[1:], np.asarray(parties[0].y), job_of(plan, 1, 1.0, OpenResidual(), 1), parties[0])
    return [share * alone for share in plan.targets]


def _finish(
    runs: Runs, tables: Sequence[list[Party]], goals: Sequence[Sequence[float]], plan: Plan, q: int, eta: float
) -> dict[str, Any]:
    """Return curves of each start of each split on the reported rows, and seconds and bytes of a round by engine."""
    curves: list[list[Curve]] = []
    for split, (table, goal) in enumerate(zip(tables, goals, strict=True)):
        curves.append([])
        for start in range(plan.starts):
            runs(f"{_named(plan, q)}, step {eta:g}, split {split + 1}, start {start + 1} of {plan.starts}")
            curves[-1].append(_once(runs, table, plan, q, eta, goal[-1], start))
    a_round: dict[str, float] = {}
    engines: dict[str, ResidualProtocol] = {"open": OpenResidual()}
    if plan.sealed:
        engines["ckks"] = SealedResidual(engine=Ckks())
    for name, residual in engines.items():
        rounds = 3
        costs = simulate(job_of(plan, q, eta, residual, rounds), tables[0]).costs
        computed = costs.seconds(Kind.ENCRYPTION) + costs.seconds(Kind.LOCAL)
        a_round |= {f"{name}_s": costs.training / rounds, f"{name}_computing_s": computed / rounds}
        a_round[f"{name}_mb"] = costs.bytes / rounds / 1e6
    return {"curves": curves, "a_round": a_round}


def _once(runs: Runs, parties: Sequence[Party], plan: Plan, q: int, eta: float, last: float, start: int = 0) -> Curve:
    """Return a curve that is computed once for each table, plan, step and start."""
    key = {"table": parties[0].digest.hex(), "plan": asdict(plan), "q": q, "eta": eta, "last": last, "start": start}
    result = runs.once(key, lambda: curve(parties, plan, q, eta, last, start))
    return [(rounds, auc) for rounds, auc in result]


def curve(parties: Sequence[Party], plan: Plan, q: int, eta: float, last: float, start: int = 0) -> Curve:
    """Return rounds and held-out AUC from a random start, up to the AUC `last`; empty if it diverges."""
    goal = {"metric": "auc", "value": last}
    job = job_of(plan, q, eta, OpenResidual(), max(plan.most // q, 10), evaluate_every=1, target=goal, seed=start)
    return _history(parties, job)


def _history(parties: Sequence[Party], job: Job) -> Curve:
    """Return rounds and held-out AUC of a training; empty if it diverges."""
    try:
        history = simulate(job, parties).history
    except DIVERGED:
        return []
    return [(record["round"], record["auc"]) for record in history]


def many(data: Path | None, plan: ManyPlan, runs: Runs) -> Rows:
    """Return a row for each algorithm and Q: rounds to AUCs, the highest AUC, and that after the last round."""
    parties, rows = digit_halves(2 * plan.rows), []
    inner = development(parties, _many_job(plan, FedBCD(local_steps=1, lr=1.0), 0))
    for q in plan.local_steps:
        ways: dict[str, Callable[[float], FedBCD]] = {"FedBCD-p": lambda eta, q=q: FedBCD(local_steps=q, lr=eta)}
        if q > 1:
            ways["FedPBCD"] = lambda eta, q=q: FedPBCD(local_steps=q, lr=eta, mu=plan.mu)
        for name, way in ways.items():
            runs(f"{name}, Q = {q}")

            def auc(sides: Sequence[Party], eta: float, start: int, name: str = name, way: Any = way) -> Curve:
                what = {"rows": len(sides[0]), "plan": asdict(plan), "q": way(eta).local_steps, "name": name}
                job = _many_job(plan, way(eta), start)
                curve = runs.once(what | {"eta": eta, "start": start}, lambda: _history(sides, job))
                return [(rounds, value) for rounds, value in curve]

            step = max(plan.grid, key=lambda eta, auc=auc: _last(auc(inner, eta, 0)))
            curves = [auc(parties, step, start) for start in range(plan.starts)]
            highest = [max((value for _, value in curve), default=0.0) for curve in curves]
            final = [_last(curve) for curve in curves]
            rows.append(
                {
                    "algorithm": name,
                    "q": q,
                    "step": step,
                    "rounds_medians": [median([reached(curve, goal) for curve in curves]) for goal in plan.targets],
                    "highest": mean(highest),
                    "highest_sd": spread(highest),
                    "auc": mean(final),
                    "auc_sd": spread(final),
                }
            )
    return rows


def _many_job(plan: ManyPlan, optimizer: FedBCD, start: int) -> Job:
    setting = Plan("digits", rows=plan.rows, units=plan.units)
    job = job_of(setting, 1, 1.0, OpenResidual(), plan.rounds, evaluate_every=1, seed=start)
    return job.model_copy(update={"optimizer": optimizer})


def digit_halves(rows: int) -> list[Party]:
    """Return the left and the right halves of scikit-learn's digits; the label is whether the digit is odd."""
    X, y = import_extra("sklearn.datasets", "sklearn", "the digits").load_digits(return_X_y=True)
    X = X[:rows].reshape(rows, 8, 8)
    halves = [side.reshape(rows, 32) for side in (X[:, :, :4], X[:, :, 4:])]
    varying = [side[:, side.std(axis=0) > 0] for side in halves]
    return [Party("bank", varying[0], y[:rows] % 2, aligned=True), Party("shop", varying[1], aligned=True)]


def overlap(data: Path | None, plan: OverlapPlan, runs: Runs) -> Rows:
    """Return AUCs by the number of shared rows: transfer learning by weight decay, and logistic regression.

    The number of held-out rows is the same for every number of shared rows. A round has one opening (`linearised`).
    """
    rows: Rows = []
    for shared in plan.overlaps:
        figures: dict[tuple[str, float | None], list[dict[str, float]]] = {}
        for split in range(plan.splits):
            runs(f"{shared} shared rows, split {split + 1}")
            parties = shared_tables(data, plan.table, shared, split, plan.held_out)
            job = _overlap_job(plan, plan.decays[0], len(parties[0]))
            sides = {"guest's columns": parties[:1], "host's columns": parties[1:], "both": parties}
            for name, side in sides.items():
                auc = regression_auc(side, np.asarray(parties[0].y), job, parties[0])
                figures.setdefault((name, None), []).append({"auc": auc})
            for decay in plan.decays:
                what = {"table": parties[0].digest.hex(), "plan": asdict(plan), "decay": decay}
                result = runs.once(what, partial(_transferred, parties, plan, decay))
                figures.setdefault(("transfer", decay), []).append(result)
        for (name, l2), results in figures.items():
            row = {"shared": shared, "model": name, "l2": l2}
            for key in results[0]:
                values = [result[key] for result in results]
                row |= {key: mean(values), f"{key}_sd": spread(values)}
            rows.append(row)
    return rows


def _transferred(parties: Sequence[Party], plan: OverlapPlan, l2: float) -> dict[str, float]:
    """Return AUCs on held-out rows after the first rounds and after all, and on the training rows after all."""
    job = _overlap_job(plan, l2, len(parties[0]))
    run = simulate(job, parties)
    schedule, y = job.schedule(parties[0].register), np.asarray(parties[0].y)
    trained = [party.take(schedule.train) for party in parties]
    scores = run.decision({party.name: party.X for party in trained})
    early = next(record["auc"] for record in run.history if record["round"] == plan.first)
    last = area_under_curve(y[schedule.train] == 1, np.ravel(scores))
    return {"early_auc": early, "auc": run.metrics["auc"], "training_auc": last}


def _overlap_job(plan: OverlapPlan, l2: float, rows: int) -> Job:
    setting = Plan(plan.table, one_opening=True)
    job = job_of(setting, plan.q, plan.step, OpenResidual(), plan.rounds, evaluate_every=plan.first)
    model = job.model.model_copy(update={"l2": l2})
    return job.model_copy(update={"model": model, "test_fraction": plan.held_out / rows})


def _last(result: Curve) -> float:
    return result[-1][1] if result else 0.0


def one_local_step(data: Path | None, plan: StepPlan, on_row: Callable[[str], None]) -> Rows:
    """Return processor seconds of one sealed step, both sides and the exchange before it."""
    parties = shared_tables(data, "fate", plan.rows, 0)
    rows = []
    for units in plan.units:
        on_row(f"{units} units")
        transfer_plan = Plan("fate", rows=plan.rows, units=units)
        spent = {}
        for rounds in (1, 3):
            started = time.process_time()
            simulate(job_of(transfer_plan, 1, 1.0, SealedResidual(engine=Ckks()), rounds), parties)
            spent[rounds] = time.process_time() - started
        rows.append({"engine": "ckks", "rows": plan.rows, "units": units, "cpu_s": (spent[3] - spent[1]) / 2})
    return rows


PARTS = {
    "credit": Part(
        Plan("paper", targets=(0.94, 0.97, 0.985), splits=1, sealed=False),
        Plan("paper", 60, 2, (1, 3), (3,), (2.0,), (0.9, 0.95), 6, 1, False, starts=2),
        run,
    ),
    "small": Part(
        SmallPlan(Plan("paper", targets=(0.94, 0.97, 0.985), most=80, splits=2)),
        SmallPlan(Plan("paper", 60, 2, (1, 3), (3,), (2.0,), (0.9, 0.95), 6, 1, starts=2), 2.0),
        small,
    ),
    "fate": Part(
        Plan("fate", splits=1, sealed=False),
        Plan("fate", 60, 2, (1, 3), (3,), (2.0,), (0.9, 0.95), 6, 1, False, starts=2),
        run,
    ),
    "many": Part(ManyPlan(), ManyPlan(60, 2, (1, 3), 3, (1.0,), starts=1), many),
    "overlap": Part(OverlapPlan(), OverlapPlan((40, 80), 200, first=2, rounds=4, splits=1), overlap),
    "table2": Part(ftl_table2.FULL, ftl_table2.QUICK, ftl_table2.run),
    "costs": Part(ftl_table2.UNDER_CKKS, ftl_table2.QUICK, ftl_table2.costs),
    "paillier": Part(ftl_table2.UNDER_PAILLIER, ftl_table2.OPEN_QUICK, ftl_table2.costs),
    "step": Part(StepPlan(), StepPlan(40, (2,)), one_local_step),
}

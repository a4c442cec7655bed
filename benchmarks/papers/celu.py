"""CELU-VFL (Fu et al. 2022): rounds and virtual time to an AUC with cached exchanges and without.

    rounds    Figures 4 and 5 (?): rounds to AUCs with AdaGrad on generated clicks, by method
    steps     rounds to AUCs by step and method, in batches of 1,024 rows with Z of 256 numbers
    sweep     Table 2 (?): rounds by R, W and xi at the step of the method `celu`
    long      the same over at most 1,000 rounds of 128 rows, at the best step of plain training in `rounds`
    small     the same over at most 1,000 rounds of 1,024 rows, at steps as small as this number of rounds allows
    cosines   Figure 5d: quantiles of the rows' cosines, by the share of the training (`celu_cosines`)
    sealed    AUC of a linear model on a real table in the open and under CKKS (`celu_sealed`)
    seconds   Figure 6 (?): virtual seconds of a round with Z of 256 numbers, by method, with 8 and 4 bytes a number, on
              a half-duplex link as in the paper: at the paper's 4,096 rows, and at the rows of `long` on a link that is
              slower by the same factor, so that the ratio of transfer and computing is the paper's

Terms: an *exchange* is the outputs Z of the party without labels (Z numbers for each row) and the residual (the
derivatives of the loss by them), which the active party, the one with labels, sends back. An exchange is used for R
local steps; up to W exchanges are cached. A local step weights each row by the cosine of the angle by which its vector
has changed since the exchange, and by 0 beyond the angle xi. AUCs are of held-out rows. There are two parties, the
active one has a top model, and residuals are sent unencrypted. Methods:

    plain               one step on each exchange (FedSGD)
    pipeline            the same with DEPTH batches in flight: overlap without reuse
    fedbcd              R steps on each exchange
    celu W=1            each exchange used R times, rows weighted, only the newest exchange cached
    celu no xi          each exchange used R times, W of them cached, rows not weighted
    celu                each exchange used R times, W of them cached, rows weighted by the cosine of their change
    celu R=2            the same, each exchange used twice
    celu, pipeline      the same with DEPTH exchanges in flight
    celu, 2 in flight   the same with two: the next outputs are sent before the residual has arrived

The step of a method is the one with the fewest rounds to all AUCs together on validation rows, which are never
reported; `one_*` is its result at the best step of all methods together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.papers import celu_cosines, celu_sealed
from benchmarks.papers.celu_setting import XI, Plan, Precision, R, W, job_of, with_networks
from benchmarks.papers.clicks import clicks
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
    one_step,
    reached,
    rounds_figures,
    toll,
)
from securevfl.data.party import Party
from securevfl.models.torch_model import torch
from securevfl.optim.adagrad import AdaGrad
from securevfl.optim.celu import CeluVFL
from securevfl.optim.fedbcd import FedBCD, FedSGD
from securevfl.optim.optimizer import Optimizer
from securevfl.optim.pipeline import Pipeline
from securevfl.runtime.network import Network
from securevfl.training.simulate import simulate

DEPTH = 3
TWO_IN_FLIGHT = "celu, 2 in flight"
PRECISIONS: tuple[Precision, ...] = ("double", "single")
CELU_VARIANTS: dict[str, Callable[[float], Optimizer]] = {
    "plain": lambda lr: FedSGD(lr=lr, rule=AdaGrad()),
    "pipeline": lambda lr: Pipeline(lr=lr, rule=AdaGrad(), depth=DEPTH),
    "fedbcd": lambda lr: FedBCD(lr=lr, rule=AdaGrad(), local_steps=R),
    "celu W=1": lambda lr: CeluVFL(lr=lr, rule=AdaGrad(), R=R, W=1, xi=XI),
    "celu no xi": lambda lr: CeluVFL(lr=lr, rule=AdaGrad(), R=R, W=W),
    "celu": lambda lr: CeluVFL(lr=lr, rule=AdaGrad(), R=R, W=W, xi=XI),
    "celu R=2": lambda lr: CeluVFL(lr=lr, rule=AdaGrad(), R=2, W=W, xi=XI),
    "celu, pipeline": lambda lr: CeluVFL(lr=lr, rule=AdaGrad(), R=R, W=W, xi=XI, depth=DEPTH),
    TWO_IN_FLIGHT: lambda lr: CeluVFL(lr=lr, rule=AdaGrad(), R=R, W=W, xi=XI, depth=2),
}


@dataclass(frozen=True)
class SweepPlan:
    """The trainings of Table 2 (?): values of R, W and xi, of which one at a time is varied.

    Attributes:
        setting: tables and options of the trainings.
        R: numbers of local steps for each exchange.
        W: numbers of cached exchanges.
        xi: angles in degrees beyond which a row has the weight 0; None does not weight rows.
        step: the step size.
    """

    setting: Plan
    R: tuple[int, ...] = (1, 3, 5, 8)
    W: tuple[int, ...] = (1, 3, 5, 8)
    xi: tuple[float | None, ...] = (None, 30.0, 60.0, 90.0)
    step: float = 0.01


@dataclass(frozen=True)
class SecondsPlan:
    """The trainings of Figure 6 (?), whose rounds are timed.

    Attributes:
        batches: numbers of rows of a batch.
        width: number of outputs Z for each row.
        rounds: number of timed rounds.
        mbps: bandwidth in Mbit/s for the first number of rows; for the others it is scaled.
        rtt_ms: round-trip time in milliseconds for the first number of rows.
        methods: names of the methods.
    """

    batches: tuple[int, ...] = (4096, 1024, 128)
    width: int = 256
    rounds: int = 24
    mbps: float = 300.0
    rtt_ms: float = 20.0
    methods: tuple[str, ...] = ("plain", "pipeline", "celu", "celu, pipeline", TWO_IN_FLIGHT)


@dataclass(frozen=True)
class LongPlan:
    """Long trainings of all methods with given step sizes.

    Attributes:
        setting: tables and options of the trainings.
        steps: the step sizes.
    """

    setting: Plan
    steps: tuple[float, ...] = (0.02,)


def run(data: Path | None, plan: Plan, runs: Runs) -> Rows:
    """Return a row for each method and target."""
    torch().set_num_threads(1)
    parties = with_networks(clicks(plan.rows).parties(), plan.width)
    inner = development(parties, job_of(plan, CELU_VARIANTS["plain"](1.0), 0))
    choices: list[Choice] = []
    for method in plan.methods:

        def merit(lr: float, method: str = method) -> float:
            runs(f"{method}: step {lr:g}")
            return toll(_kept(runs, inner, plan, method, lr, 0, 0), plan.targets, _cap(plan))

        choices.append(choose(plan.grid, merit))
    together = one_step(choices)
    rows: Rows = []
    for method, choice in zip(plan.methods, choices, strict=True):
        runs(method)
        results = {lr: _all_starts(runs, parties, plan, method, lr) for lr in {choice.step, together}}
        for target in plan.targets:
            row: dict[str, Any] = {"method": method, "target": target, **choice.row(), "one_step": together}
            for prefix, lr in (("", choice.step), ("one_", together)):
                rounds = [reached(item, target) for item in results[lr]]
                row |= {f"{prefix}{name}": figure for name, figure in rounds_figures(rounds).items()}
            row["auc"] = _highest(results[choice.step])
            row["curve"] = [list(point) for point in results[choice.step][0]]
            rows.append(row)
    return rows


def sweep(data: Path | None, plan: SweepPlan, runs: Runs) -> Rows:
    """Return a row for each setting of R, W and xi, varied one at a time, and each target, on the first split."""
    torch().set_num_threads(1)
    setting = plan.setting
    parties = with_networks(clicks(setting.rows).parties(), setting.width)
    usual = {"R": R, "W": W, "xi": XI}
    points = [usual | {"R": item} for item in plan.R]
    points += [usual | {"W": item} for item in plan.W] + [usual | {"xi": item} for item in plan.xi]
    rows: Rows = []
    for point in [item for number, item in enumerate(points) if item not in points[:number]]:
        runs(f"R = {point['R']}, W = {point['W']}, xi = {point['xi']}")
        optimizer = CeluVFL(lr=plan.step, rule=AdaGrad(), **point)
        what = {"setting": asdict(setting), "step": plan.step, "point": point}
        results: list[Curve] = [
            runs.once(what | {"start": start}, partial(curve, parties, setting, optimizer, 0, start))
            for start in range(setting.starts)
        ]
        for target in setting.targets:
            rounds = [reached(result, target) for result in results]
            row = {**point, "step": plan.step, "target": target, **rounds_figures(rounds)}
            rows.append(row | {"auc": _highest(results)})
    return rows


def longer(data: Path | None, plan: LongPlan, runs: Runs) -> Rows:
    """Return a row for each step, method and target."""
    torch().set_num_threads(1)
    setting = plan.setting
    parties = with_networks(clicks(setting.rows).parties(), setting.width)
    rows: Rows = []
    for step in plan.steps:
        for method in setting.methods:
            runs(f"{method}: step {step:g}")
            results = _all_starts(runs, parties, setting, method, step)
            for target in setting.targets:
                rounds = [reached(item, target) for item in results]
                row = {"method": method, "step": step, "target": target, **rounds_figures(rounds)}
                rows.append(row | {"auc": _highest(results)})
    return rows


def _highest(results: Sequence[Curve]) -> float | None:
    """Return the mean of the highest AUCs up to the last target; 0 for a training that diverged."""
    return mean([max((auc for _, auc in item), default=0.0) for item in results])


def _all_starts(runs: Runs, parties: Sequence[Party], plan: Plan, method: str, step: float) -> list[Curve]:
    """Return the curves of all random starts of all splits."""
    pairs = [(split, start) for split in range(plan.splits) for start in range(plan.starts)]
    return [_kept(runs, parties, plan, method, step, split, start) for split, start in pairs]


def seconds(data: Path | None, plan: SecondsPlan, runs: Runs) -> Rows:
    """Return virtual seconds and bytes of a round, after the first ones."""
    torch().set_num_threads(1)
    rows: Rows = []
    for batch in plan.batches:
        parties = with_networks(clicks(batch * 6).parties(), plan.width)
        mbps = plan.mbps * batch / plan.batches[0]
        network = Network(mbps=mbps, rtt_ms=plan.rtt_ms, half_duplex=True)
        small = Plan(rows=0, test=0.0, batch=batch, width=plan.width, epochs=-(-plan.rounds // 6), every=0)
        for precision in PRECISIONS:
            for method in plan.methods:
                runs(f"{batch} rows, {method}, {precision}")
                job = job_of(replace(small, precision=precision), CELU_VARIANTS[method](0.01), 0)
                done = simulate(job, parties, network=network)
                at = [record["seconds"] for record in done.history]
                later = len(at) - len(at) // 2
                took = (at[-1] - at[len(at) // 2 - 1]) / later
                row = {"batch": batch, "mbps": mbps, "method": method, "precision": precision, "seconds": took}
                rows.append(row | {"mb": done.costs.bytes / len(at) / 1e6})
    return rows


def _kept(runs: Runs, parties: Sequence[Party], plan: Plan, method: str, step: float, split: int, start: int) -> Curve:
    """Return the result of one training, which is run only the first time."""
    what = {"setting": asdict(plan), "rows": len(parties[0]), "method": method, "step": step, "split": split}
    optimizer = CELU_VARIANTS[method](step)
    result = runs.once(what | {"start": start}, lambda: curve(parties, plan, optimizer, split, start))
    return [(rounds, auc) for rounds, auc in result]


def curve(parties: Sequence[Party], plan: Plan, optimizer: Optimizer, split: int, start: int) -> Curve:
    """Return rounds and held-out AUC of one training up to the last target; empty if it diverges."""
    job = job_of(plan, optimizer, split, start)
    try:
        history = simulate(job, parties).history
    except DIVERGED:
        return []
    return [(record["round"], record["auc"]) for record in history if "auc" in record]


def _cap(plan: Plan) -> float:
    return plan.epochs * plan.rows * (1 - plan.test) / plan.batch


SMALL_PLAN = Plan(3200, 0.25, 64, 4, 1, 1, (0.55, 0.6), (0.01,), 1, 1, ("plain", "celu, pipeline"))
LONG_PLAN = Plan(
    rows=131_000, test=0.02, batch=128, width=256, targets=(0.72, 0.74, 0.76), splits=1,
    methods=("plain", "fedbcd", "celu", "celu, pipeline"), precision="single",
)  # fmt: skip
STEPS_PLAN = Plan(
    rows=230_000, test=0.03, batch=1024, width=256, targets=(0.74, 0.76, 0.78, 0.80), splits=1, starts=3,
    methods=("plain", "pipeline", "fedbcd", "celu R=2", "celu", "celu, pipeline"), precision="single",
)  # fmt: skip
FINE = Plan(
    rows=1_035_000, test=0.01, batch=1024, width=256, targets=(0.76, 0.78, 0.80), splits=1, starts=3,
    methods=("plain", "pipeline", "fedbcd", "celu", TWO_IN_FLIGHT), precision="single",
)  # fmt: skip
PARTS = {
    "rounds": Part(Plan(), SMALL_PLAN, run),
    "steps": Part(LongPlan(STEPS_PLAN, (0.01, 0.02, 0.045, 0.09)), LongPlan(SMALL_PLAN, (0.04,)), longer),
    "long": Part(LongPlan(LONG_PLAN), LongPlan(SMALL_PLAN, (0.02,)), longer),
    "small": Part(LongPlan(FINE, (0.005, 0.02)), LongPlan(SMALL_PLAN, (0.01,)), longer),
    "sweep": Part(SweepPlan(Plan()), SweepPlan(SMALL_PLAN, (2,), (), ()), sweep),
    "sealed": Part(
        celu_sealed.SealedPlan(),
        celu_sealed.SealedPlan(batch=256, epochs=1, grid=(0.03,)),
        celu_sealed.run,
        lambda row: bool(row["residual"] != "open"),  # fresh keys and noise
    ),
    "cosines": Part(
        celu_cosines.CosinesPlan(),
        celu_cosines.CosinesPlan(1600, 64, 4, stages=2, starts=1),
        celu_cosines.run,
    ),
    "seconds": Part(SecondsPlan(), SecondsPlan((100, 50), 4, 6, methods=("celu, pipeline",)), seconds),
}

"""FedBCD (Liu et al. 2019): rounds to a held-out AUC by local steps Q, by the number of parties and by the rule.

    linear   Table 1 and Figure 3 (?), MIMIC-III, with logistic regression on support2 instead: FedSGD, FedBCD-p with Q
             of 1 to 25, FedBCD-s, two, five and seventeen parties, constant steps and steps eta0 / sqrt(t + 1). The
             target is 0.995 of the AUC that scikit-learn reaches on the pooled columns of the same rows
    mnist    Table 1 (MNIST), convolutional parties: see `mnist`
    rule     the same with one eta0 / sqrt(t + 1) for all
    turns    Table 1, FedBCD-s with Q of 1 to 50 on support2, next to FedSGD, and virtual seconds
    loss     Figure 2: loss on held-out rows by rounds at one constant step, on support2

In a round, the parties exchange outputs and the residual (the derivative of the loss by their sum) once, and then take
Q local steps: in parallel (FedBCD-p) or in turn (FedBCD-s). FedSGD has Q = 1.

The merit of a step size is the number of rounds to the target on validation rows, summed over splits. The step size
with the smallest merit is reported, on other rows and from several random starts, whose seeds draw the batches. `one_*`
is each algorithm's result at the best step size of all algorithms together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

import securevfl as vfl
from benchmarks.papers import mnist
from benchmarks.papers.study import (
    DIVERGED,
    Choice,
    Curve,
    Part,
    Rows,
    choose,
    development,
    mean,
    median,
    one_step,
    reached,
    spread,
    toll,
)
from benchmarks.tables import support2
from securevfl.base.extras import import_extra
from securevfl.models.metrics import area_under_curve
from securevfl.optim.fedbcd import FedBCD, FedSGD

SHARE = 0.995  # share of the pooled AUC
TEST_FRACTION = 0.25
Decay = Literal["none", "sqrt_t"]


@dataclass(frozen=True)
class Plan:
    """Trainings of which the rounds to an AUC are counted.

    Attributes:
        parties: for each number of parties, the numbers Q of parallel local steps.
        sequential: numbers Q of local steps in turn.
        decays: rules by which step sizes decrease.
        grid: step sizes from which one is chosen.
        splits: number of random splits.
        cap: maximum number of rounds.
        batch: number of rows of a batch.
        starts: number of random starts of each split.
    """

    parties: dict[int, tuple[int, ...]]
    sequential: tuple[int, ...]
    decays: tuple[Decay, ...]
    grid: tuple[float, ...]
    splits: int
    cap: int
    batch: int
    starts: int = 5


FULL = Plan(
    {2: (1, 3, 5, 10, 15, 25), 5: (1, 5), 17: (1, 5)}, (5,), ("sqrt_t", "none"), (0.1, 0.3, 1.0, 3.0), 3, 200, 256
)
TURNS = Plan({2: (1,)}, (1, 5, 50), ("sqrt_t", "none"), (0.1, 0.3, 1.0, 3.0), 1, 200, 256)
TURNS_QUICK = Plan({2: (1,)}, (1, 3), ("sqrt_t",), (1.0,), 1, 8, 128, 2)
QUICK = Plan({2: (1, 5), 3: (1,)}, (5,), ("sqrt_t",), (1.0,), 1, 8, 128, 2)


@dataclass(frozen=True)
class LossPlan:
    """Trainings of Figure 2, whose losses are reported.

    Attributes:
        parallel: numbers Q of parallel local steps.
        sequential: numbers Q of local steps in turn.
        step: the constant step size.
        rounds: number of rounds.
        every: number of rounds between two evaluations.
        batch: number of rows of a batch.
        starts: number of random starts.
    """

    parallel: tuple[int, ...] = (1, 5, 10, 25)
    sequential: tuple[int, ...] = (5,)
    step: float = 0.03
    rounds: int = 200
    every: int = 5
    batch: int = 256
    starts: int = 5


@dataclass(frozen=True)
class Algorithm:
    """One line of the table."""

    parties: int
    q: int
    decay: Decay
    sequential: bool = False

    def optimizer(self, eta: float) -> FedBCD:
        """Return the optimizer with this step size."""
        if self.q == 1 and not self.sequential:
            return FedSGD(lr=eta, decay=self.decay)
        mode: Literal["parallel", "sequential"] = "sequential" if self.sequential else "parallel"
        return FedBCD(lr=eta, decay=self.decay, local_steps=self.q, mode=mode)


def run(data: Path | None, plan: Plan, on_row: Callable[[str], None]) -> Rows:
    """Return all rows of the linear tables; without `data` the table is generated."""
    rows = []
    for parties in plan.parties:
        tables = made_up(parties) if data is None else support2(data, parties)
        for decay in plan.decays if parties == 2 else plan.decays[:1]:
            rows += linear(tables, parties, decay, plan, on_row)
    return rows


def linear(tables: Sequence[vfl.Party], parties: int, decay: Decay, plan: Plan, on_row: Callable[[str], None]) -> Rows:
    """Return the rows of one number of parties under one rule."""
    algorithms = [Algorithm(parties, q, decay) for q in plan.parties[parties]]
    algorithms += [Algorithm(parties, q, decay, True) for q in plan.sequential if parties == 2]
    jobs = [job_of(plan, split) for split in range(plan.splits)]
    inner = [development(tables, job) for job in jobs]
    goals = [SHARE * pooled_auc(split_tables, job_of(plan, split)) for split, split_tables in enumerate(inner)]
    choices: list[Choice] = []
    for algorithm in algorithms:
        on_row(f"{parties} parties, {algorithm.optimizer(1.0).label}, Q = {algorithm.q}, {decay}: steps")

        def merit(eta: float, algorithm: Algorithm = algorithm) -> float:
            curves = [
                curve(split_tables, algorithm, plan, eta, split, goals[split])
                for split, split_tables in enumerate(inner)
            ]
            return sum(toll(item, [goal], plan.cap) for item, goal in zip(curves, goals, strict=True))

        choices.append(choose(plan.grid, merit))
    together = one_step(choices)
    targets = [SHARE * pooled_auc(tables, job) for job in jobs]
    rows = []
    for algorithm, choice in zip(algorithms, choices, strict=True):
        on_row(f"{parties} parties, {algorithm.optimizer(1.0).label}, Q = {algorithm.q}, {decay}")
        finish = partial(_finish, tables, algorithm, plan, targets)
        finished, same = finish(choice.step), finish(together)
        rows.append(
            {
                "parties": parties,
                "algorithm": algorithm.optimizer(1.0).label,
                "q": algorithm.q,
                "decay": decay,
                **choice.row(),
                **finished,
                "one_step": together,
                **{f"one_{key}": value for key, value in same.items()},
                "splits": plan.splits,
                "target": mean(targets),
            }
        )
    return rows


def _finish(
    tables: Sequence[vfl.Party], algorithm: Algorithm, plan: Plan, targets: Sequence[float], eta: float
) -> dict[str, Any]:
    """Return rounds and virtual seconds to the target on the reported rows."""
    rounds, seconds = [], []
    for split, target in enumerate(targets):
        for start in range(plan.starts):
            seen: Curve = []
            result = curve(tables, algorithm, plan, eta, split, target, seconds=seen, start=start)
            rounds.append(reached(result, target))
            seconds.append(reached(seen, target))
    return {
        "rounds": mean(rounds),
        "rounds_sd": spread(rounds),
        "rounds_median": median(rounds),
        "seconds": median(seconds),
        "reached": sum(time is not None for time in rounds),
        "runs": rounds,
    }


def curve(
    tables: Sequence[vfl.Party],
    algorithm: Algorithm,
    plan: Plan,
    eta: float,
    split: int,
    target: float,
    *,
    seconds: Curve | None = None,
    start: int = 0,
) -> Curve:
    """Return rounds and held-out AUC up to the target; empty if it diverges. seconds: virtual seconds and AUC."""
    train = round(len(tables[0]) * (1 - TEST_FRACTION))
    keys = {"optimizer": algorithm.optimizer(eta), "epochs": max(1, plan.cap * plan.batch // train)}
    goal = vfl.Target(metric="auc", value=target)
    job = job_of(plan, split).model_copy(update={**keys, "target": goal, "evaluate_every": 1, "seed": start})
    try:
        history = vfl.simulate(job, tables).history
    except DIVERGED:
        return []
    if seconds is not None:
        seconds += [(float(record["seconds"]), record["auc"]) for record in history]
    return [(record["round"], record["auc"]) for record in history]


def losses(data: Path | None, plan: LossPlan, on_row: Callable[[str], None]) -> Rows:
    """Return a row for each algorithm, with the mean loss on held-out rows after every few rounds."""
    tables = made_up(2) if data is None else support2(data, 2)
    algorithms = [Algorithm(2, q, "none") for q in plan.parallel]
    algorithms += [Algorithm(2, q, "none", True) for q in plan.sequential]
    setting = Plan(
        {2: plan.parallel}, plan.sequential, ("none",), (plan.step,), 1, plan.rounds, plan.batch, plan.starts
    )
    train = round(len(tables[0]) * (1 - TEST_FRACTION))
    keys = {"epochs": max(1, round(plan.rounds * plan.batch / train)), "evaluate_every": plan.every}
    rows = []
    for algorithm in algorithms:
        optimizer = algorithm.optimizer(plan.step)
        on_row(f"{optimizer.label}, Q = {algorithm.q}: loss")
        starts = []
        for start in range(plan.starts):
            job = job_of(setting, 0).model_copy(update={**keys, "optimizer": optimizer, "seed": start})
            history = vfl.simulate(job, tables).history
            starts.append({int(record["round"]): record["loss"] for record in history if "loss" in record})
        rounds = sorted(set.intersection(*map(set, starts)))
        points = [[number, mean([losses[number] for losses in starts])] for number in rounds]
        row = {"algorithm": optimizer.label, "q": algorithm.q, "step": plan.step, "curve": points}
        rows.append(row | {f"loss_{name}": points[at][1] for name, at in (("middle", len(points) // 2), ("end", -1))})
    return rows


def job_of(plan: Plan, split: int) -> vfl.Job:
    """Return the job of a split; each algorithm replaces its optimizer and epochs."""
    return vfl.Job(
        model=vfl.Logistic(),
        optimizer=FedSGD(lr=1.0),
        protocol=vfl.Protocol(sum="direct", residual="open"),
        batch_size=plan.batch,
        epochs=1,
        seed=0,
        split=split,
        test_fraction=TEST_FRACTION,
        prepare=vfl.Preparation(tails="keep"),  # as the pooled reference uses the columns
        accepts=["columns", "sequential"],
    )


def pooled_auc(tables: Sequence[vfl.Party], job: vfl.Job) -> float:
    """Return the AUC of scikit-learn's logistic regression on all columns, on the job's held-out rows."""
    regression = import_extra("sklearn.linear_model", "sklearn", "the pooled reference").LogisticRegression
    rows, y = job.schedule(tables[0].register), np.asarray(tables[0].y)
    X = np.hstack([party.X for party in tables])
    X = (X - X[rows.train].mean(axis=0)) / X[rows.train].std(axis=0).clip(1e-9)
    model = regression(max_iter=5000).fit(X[rows.train], y[rows.train])
    return area_under_curve(y[rows.test] == 1, model.decision_function(X[rows.test]))


def made_up(parties: int, rows: int = 600) -> list[vfl.Party]:
    """Return a table whose label depends on the sum of all columns."""
    generator = np.random.default_rng(parties)
    columns = [generator.normal(size=(rows, 3)) for _ in range(parties)]
    y = sum(block.sum(axis=1) for block in columns) + 2 * generator.normal(size=rows) > 0
    return [vfl.Party(f"p{k}", block, None if k else y.astype(int), aligned=True) for k, block in enumerate(columns)]


PARTS = {
    "linear": Part(FULL, QUICK, run),
    "turns": Part(TURNS, TURNS_QUICK, run),
    "loss": Part(LossPlan(), LossPlan((1, 3), (3,), 0.3, 8, 4, 128, 1), losses),
    "mnist": Part(mnist.FULL, mnist.QUICK, mnist.run),
    "rule": Part(mnist.RULE, mnist.RULE_QUICK, mnist.at_one_rule),
}

"""Iterations and losses of trainings that stop early, compared with the default number of iterations, in floats.

    python -m benchmarks.early_stop --data ../shared/data [--tables breast adult] [--gain 0.0005]

The steps are those of the default job on secret shares, with its coefficients and its rows of each iteration. Residuals
(derivatives of the loss by the model's outputs) are computed exactly and not read from lookup tables, so that
differences of 0.0001 are visible. A training stops as soon as an evaluation does not improve the loss by at least the
smallest gain.

For each table the first line is the loss of the held-out rows after each evaluated number of iterations, minus the loss
after all iterations. `stop` is the number of iterations if losses are measured exactly. `gap` is how much larger the
loss of the returned model is than that of the default job. In the columns `rounded`, model outputs are rounded at
random before losses are measured, as in a training on shares: the mean number of iterations, and the mean and the 95th
percentile of the gap over random roundings. `threshold 1/(2n)` is the mean number of iterations for a smallest gain of
1 / (2 * training rows).
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

import securevfl as vfl
from benchmarks import real_tables
from benchmarks.real_tables import TABLES, two_files
from securevfl.base.arrays import Floats
from securevfl.consent.settle_job import settle_job
from securevfl.data.party import register_of
from securevfl.errors import DataNotice
from securevfl.families.score_results import TOLERATED_ROUNDINGS
from securevfl.families.shares.shares_job import SharesJob
from securevfl.families.shares.shares_plan import make_plan
from securevfl.families.table_preparation import prepare_parties
from securevfl.families.training_data import TrainingData
from securevfl.models import metrics
from securevfl.optim.block_descent import BlockDescent, early_stop_rounds
from securevfl.optim.curvature import preconditioner_of_rows
from securevfl.protocols.shares.opened_loss import rounding_deviation
from securevfl.protocols.shares.update_rules import FixedCoefficients

CLIP = 8.0
GAIN = 0.0005
ROUNDINGS = 100
DEMOGRAPHIC = ("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE")


def uci_credit(folder: Path) -> list[vfl.Party]:
    """Return bills and payments of 30,000 clients at the bank, and their demographic columns at the shop."""
    names, X = real_tables.read(folder / "UCI_Credit_Card.csv.gz")
    numbers, ids = X[:, 1:].astype(float), X[:, 0].tolist()
    other = [j for j, name in enumerate(names[1:]) if name in DEMOGRAPHIC]
    local = [j for j in range(len(names) - 2) if j not in other]
    return [vfl.Party("bank", numbers[:, local], numbers[:, -1].astype(int), ids=ids),
            vfl.Party("shop", numbers[:, other], ids=ids)]  # fmt: skip


def mnist(folder: Path) -> list[vfl.Party]:
    """Return the left and the right half of the digits, without pixels that never change."""
    with np.load(folder / "mnist.npz") as file:
        X, y = file["X"].reshape(len(file["y"]), -1).astype(float), file["y"].astype(int)
        halves = [X[:, file[side]] for side in ("g", "h")]
    halves = [half[:, half.std(axis=0) > 0] for half in halves]
    return [vfl.Party("bank", halves[0], y, ids=range(len(y))), vfl.Party("shop", halves[1], ids=range(len(y)))]


READERS: dict[str, tuple[Callable[[Path], list[vfl.Party]], str]] = {
    **{name: (read, "logistic") for name, read in TABLES.items()},
    "UCI_credit": (uci_credit, "logistic"),
    "epsilon_5k": (partial(two_files, "epsilon_5k"), "logistic"),
    "vehicle_scale": (partial(two_files, "vehicle_scale"), "one_vs_rest"),
    "mnist": (mnist, "one_vs_rest"),
}
"""Real tables with labels of classes, and their model. TABLES, UCI_credit and epsilon_5k have two classes."""


class Losses(NamedTuple):
    """The losses of one table's held-out rows.

    Attributes:
        rows: number of training rows.
        rounds: the evaluated numbers of iterations; the last one is that of the default job.
        exact: the loss after each of them.
        measured: losses that are measured with random rounding (roundings, evaluations).
        rounding: the bound of the standard deviation that rounding adds to the last of them.
    """

    rows: int
    rounds: tuple[int, ...]
    exact: Floats
    measured: Floats
    rounding: float


def losses(name: str, folder: Path) -> Losses:
    """Train the default job of a table in floats, and return its held-out losses."""
    read, model = READERS[name]
    parties = read(folder)
    job = settle_job(vfl.Job(model=model), parties)
    schedule, loss = job.schedule(register_of(parties)), job.model.loss
    prepared = prepare_parties(job, parties)
    tables = [TrainingData(party, schedule, loss, scale=job.scaling, clip=CLIP) for party in prepared]
    blocks = [np.clip(np.asarray(table.scaled(np.arange(len(parties[0])))), -CLIP, CLIP) for table in tables]
    blocks[0] = np.column_stack([blocks[0], np.ones(len(blocks[0]))])
    targets = tables[0].targets
    assert targets is not None, "the first party has the labels"
    assert isinstance(job.optimizer, BlockDescent), "the default optimizer of a linear model on shares"
    weights = _trained_models(job, blocks, targets, [iteration.rows for iteration in schedule.iterations()])
    rounds = early_stop_rounds(len(schedule), schedule.subset_iterations)
    outputs = [sum(X[schedule.test] @ theta for X, theta in zip(blocks, weights(t), strict=True)) for t in rounds]
    y, draw = targets[schedule.test], np.random.default_rng(0)
    plan = make_plan(cast(SharesJob, job), rows=len(schedule.train), batches=1, parties=2, inputs=_width(blocks))
    spacing = 2.0**plan.numbers.fine_step
    measured = [
        [loss.value(np.floor(f / spacing + draw.random(f.shape)) * spacing, y).mean() for f in outputs]
        for _ in range(ROUNDINGS)
    ]
    exact = np.array([loss.value(f, y).mean() for f in outputs])
    deviation = rounding_deviation(exact[-1], len(y), loss.curvature or 0.0, spacing)
    return Losses(len(schedule.train), rounds, exact, np.array(measured), deviation)


def _width(blocks: Sequence[Floats]) -> int:
    return sum(X.shape[1] for X in blocks)


def _trained_models(
    job: vfl.Job, blocks: Sequence[Floats], targets: Floats, batches: Sequence[np.ndarray]
) -> Callable[[int], list[Floats]]:
    """Return a function that maps a number of iterations to the weights of both parties' blocks of columns."""
    loss, train = job.model.loss, np.unique(np.concatenate(batches))
    plan = make_plan(cast(SharesJob, job), rows=len(train), batches=1, parties=len(blocks), inputs=_width(blocks))
    assert isinstance(plan.rule, FixedCoefficients), "block descent has momentum"
    assert isinstance(job.optimizer, BlockDescent), "the default optimizer of a linear model on shares"
    inverses = []
    for X in blocks:
        penalty = np.full((X.shape[1], 1), job.optimizer.ridge)
        inverses.append(
            preconditioner_of_rows([X[train]], lambda rows: rows.T @ rows, loss, penalty, who="", constant=None)
        )
    start = [np.zeros((X.shape[1], targets.shape[1])) for X in blocks]
    start[0][-1] = loss.constant_outputs(targets[train])
    changes: list[list[Floats]] = [[] for _ in blocks]

    def combined(coefficients: Sequence[float]) -> list[Floats]:
        return [
            theta - sum((c * u for c, u in zip(coefficients, done, strict=True)), np.zeros_like(theta))
            for theta, done in zip(start, changes, strict=True)
        ]

    for t, rows in enumerate(batches):
        point = combined(plan.rule.row(t))
        g = loss.residual(sum(X[rows] @ theta for X, theta in zip(blocks, point, strict=True)), targets[rows])
        for X, P, done in zip(blocks, inverses, changes, strict=True):
            done.append(plan.rate * P @ (X[rows].T @ g) / len(rows))
    rule = plan.rule

    def weights(t: int) -> list[Floats]:
        coefficients = rule.row(t) if rule.result_row is None else rule.result_row(t)
        return combined([*coefficients, *[0.0] * (len(batches) - t)])

    return weights


def stopped(values: Sequence[float], gain: float, rounding: float = 0.0) -> tuple[int, int]:
    """Apply the rule of an early stop.

    Args:
        values: the measured loss of each evaluation.
        gain: the smallest decrease of the loss with which the training continues.
        rounding: standard deviation that rounding adds to a loss.

    Returns:
        The numbers of the evaluation at which the training stops and of the evaluation whose model it returns.
    """
    best = 0
    for number in range(1, len(values)):
        if metrics.improves("loss", values[number] - gain - TOLERATED_ROUNDINGS * rounding, values[:number]):
            best = number
        if metrics.stale("loss", values[: number + 1], 1, gain):
            return number, best
    return len(values) - 1, best


def main() -> None:
    """Print the figures of each table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", default=list(READERS), choices=list(READERS))
    parser.add_argument("--gain", type=float, default=GAIN, help="the value of optimizer.early_stop")
    options = parser.parse_args()
    warnings.simplefilter("ignore", DataNotice)
    heads = "stop", "gap", "rounded: stop", "mean gap", "95 %", "1/(2n): stop", "mean gap", "95 %"
    print(f"{'table':<15}{'rows':>8}" + "".join(f"{head:>14}" for head in heads), flush=True)
    totals = dict[str, list[list[float]]]()
    for name in options.tables:
        table = losses(name, options.data)
        gaps = table.exact - table.exact[-1]
        end, best = stopped(table.exact.tolist(), options.gain)
        cells = [f"{table.rounds[end]}", f"{gaps[best]:+.5f}"]
        means = [float(table.rounds[end])]
        for gain in (options.gain, min(options.gain, 1 / (2 * table.rows))):
            stops = [stopped(values.tolist(), gain, table.rounding) for values in table.measured]
            remaining = np.array([gaps[best] for _, best in stops])
            means.append(float(np.mean([table.rounds[end] for end, _ in stops])))
            cells += [f"{means[-1]:.1f}", f"{remaining.mean():+.5f}", f"{np.percentile(remaining, 95):+.5f}"]
        totals.setdefault("two" if READERS[name][1] == "logistic" else "several", []).append(means)
        print(f"{name:<15}{table.rows:>8,}" + "".join(f"{cell:>14}" for cell in cells), flush=True)
        evaluated = ", ".join(f"{t}: {gap:+.5f}" for t, gap in zip(table.rounds, gaps, strict=True))
        deviation = (table.measured[:, 1:] - table.measured[:, :-1]).std(axis=0).mean()
        print(
            f"{'':<15}{evaluated}; standard error of a gain {deviation:.5f}, at most {table.rounding * 2**0.5:.5f}",
            flush=True,
        )
    for classes, iterations in totals.items():
        exact, rounded, strict = np.mean(iterations, axis=0)
        print(f"{classes} classes, mean iterations: {exact:.1f}, {rounded:.1f} rounded, {strict:.1f} with 1/(2n)")


if __name__ == "__main__":
    main()

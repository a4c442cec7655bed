"""FDSKL (Gu et al. 2020): test errors of kernel models, compared with kernel machines and linear models.

    errors     Figure 6 and Table 4: share of wrong test rows, processor seconds of all parties, bytes, by table
    scaling    Figure 5: processor seconds by the number of training rows and of parties
    progress   Figure 3: error by processor seconds, after each pass

FDSKL trains a kernel model on random features of the columns. phishing, ijcnn1 and default_credit are split at random,
with a quarter of the rows held out; a9a has fixed test rows, and only the seed varies. The width of the kernel, and the
step size of the paper's update (`precondition` off), are chosen on a fifth of the training rows of the first split. The
width and the cost of the kernel machines are chosen by the same rule. Linear algebra uses one core. Processor seconds
are those of the process, which runs all parties.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.papers.fdskl_baselines import (
    Baseline,
    BaselineOutcome,
    RowNumbers,
    Split,
    boosting,
    dsg,
    fd_svrg,
    libsvm,
    pp_svmv,
)
from benchmarks.papers.study import DIVERGED, NEVER, Choice, Part, Rows, Runs, choose, mean, spread
from benchmarks.tables import READERS, archive
from securevfl.base.arrays import Floats
from securevfl.data.party import Party
from securevfl.data.schedule import Schedule
from securevfl.errors import DataError
from securevfl.families.fdskl.fdskl_optimizer import FDSKL
from securevfl.families.fdskl.kernel_model import Kernel
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.optim.fedbcd import FedBCD
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.sums.tree_sum import TreeSum
from securevfl.training.run import Run
from securevfl.training.simulate import simulate

HELD_OUT = 0.25
PARTY_COUNT = 3
KERNEL_WIDTHS = (1 / 3, 1.0, 3.0)  # tried values of the kernel's parameter gamma, as multiples of the setting's gamma
STEP_SIZES = (0.03, 0.1, 0.3)  # eta of the paper's update
MACHINE_COSTS = (0.3, 1.0, 3.0)  # C of the kernel machines


@dataclass(frozen=True)
class Setting:
    """The training of one table.

    Attributes:
        model: the kernel model, at whose kernel width the search begins.
        batch_size: number of rows of a batch.
        epochs: number of epochs.
        scale: how columns are scaled.
        widths: kernel widths to try, relative to that of the model.
        step_sizes: step sizes to try.
    """

    model: Kernel
    batch_size: int
    epochs: int
    scale: Literal["standard", "none"] = "none"
    widths: tuple[float, ...] = KERNEL_WIDTHS
    step_sizes: tuple[float, ...] = STEP_SIZES


TABLE_SETTINGS = {
    "phishing": Setting(Kernel(gamma=0.1, loss="smooth_hinge", blocks=8), 1024, 40),
    "a9a": Setting(Kernel(gamma=0.03, loss="logistic", blocks=4), 1024, 15),
    "ijcnn1": Setting(Kernel(kernel="laplace", gamma=0.1, loss="smooth_hinge", blocks=4), 2048, 20, "standard"),
    "default_credit": Setting(Kernel(gamma=0.03, loss="logistic", blocks=4), 1024, 15, "standard"),
}
SMALL_SETTING = Setting(
    Kernel(gamma=0.3, loss="smooth_hinge", blocks=4, block_size=64), 128, 12, widths=(1.0,), step_sizes=(0.1,)
)
"""The setting of the generated table. It has one value of each option: a choice by errors of few rows would be
random."""


@dataclass(frozen=True)
class Plan:
    """Tables and splits, and the sizes of the two kernel machines, SVC and PP-SVMV.

    Attributes:
        tables: names of the tables.
        splits: number of splits, and of seeds for a table with fixed test rows.
        machine_splits: number of splits of the SVC. PP-SVMV runs on one split.
        tuned: largest number of rows on which a kernel machine's width and cost are chosen.
        pooled: largest number of training rows of both. A party of PP-SVMV stores n^2 numbers, 8.7 GB for 33,000 rows,
            and the SVC's time grows as n^2.
    """

    tables: tuple[str, ...] = ("phishing", "a9a", "default_credit", "ijcnn1")
    splits: int = 10
    machine_splits: int = 3
    tuned: int = 8000
    pooled: int = 33_000


@dataclass(frozen=True)
class ScalingPlan:
    """Trainings of Figure 5, whose time is measured.

    Attributes:
        table: name of the table.
        rows: numbers of training rows.
        parties: numbers of parties among which the columns are divided.
    """

    table: str = "ijcnn1"
    rows: tuple[int, ...] = (2500, 5000, 10_000, 20_000)
    parties: tuple[int, ...] = (2, 3, 5, 8)


@dataclass(frozen=True)
class ProgressPlan:
    """The training of Figure 3.

    Attributes:
        table: name of the table.
        step: step size of the paper's update.
    """

    table: str = "phishing"
    step: float = 0.1


@dataclass(frozen=True)
class Table:
    """One real table: labels of 0 and 1, and the columns of the party with labels and of the other."""

    name: str
    X: Floats
    y: RowNumbers
    sides: tuple[RowNumbers, RowNumbers]
    n_train: int | None

    def owners(self, parties: int) -> list[RowNumbers]:
        """Return the columns of each party: side g, and side h in one part for each other party."""
        return [self.sides[0], *np.array_split(self.sides[1], parties - 1)]

    def rows(self, seed: int) -> tuple[RowNumbers, RowNumbers]:
        """Return training and test rows."""
        if self.n_train is not None:
            return np.arange(self.n_train), np.arange(self.n_train, len(self.y))
        order = self.shuffled(seed)
        split = Schedule(len(order), batch_size=1, epochs=1, seed=seed, test_fraction=HELD_OUT, reshuffle=False)
        return order[split.train], order[split.test]

    def shuffled(self, seed: int) -> RowNumbers:
        """Return all rows in another order for each seed, so that, without ids, other rows are held out."""
        return np.random.default_rng(seed).permutation(len(self.y))

    def split(self, seed: int, scale: str) -> Split:
        """Return scaled training and test rows of a split."""
        train, test = self.rows(seed)
        X, test_X = self.X[train], self.X[test]
        if scale == "standard":
            mean, deviation = X.mean(axis=0), X.std(axis=0)
            X, test_X = (X - mean) / deviation, (test_X - mean) / deviation
        signs = np.where(self.y > 0, 1.0, -1.0)
        return Split(X, signs[train], test_X, signs[test])


def read(data: Path | None, name: str) -> Table:
    """Read one of the tables. DataError if its file is missing."""
    if data is None:
        X = np.random.default_rng(0).integers(0, 2, (1200, 8)).astype(float)
        return Table(name, X, (X[:, 0] != X[:, 4]).astype(np.intp), (np.arange(4), np.arange(4, 8)), None)
    if name == "default_credit":
        parties = READERS[name](data)
        local, others = (len(party.columns) for party in parties)
        X, y = np.hstack([party.X for party in parties]), np.asarray(parties[0].y).astype(np.intp)
        return Table(name, X, y, (np.arange(local), np.arange(local, local + others)), None)
    file = archive(data / f"{name}.npz")
    X, y = file["X"].astype(np.float64), (file["y"] > 0).astype(np.intp)
    n_train = int(file["n_train"]) if name == "a9a" else None
    varies = X[:n_train].std(axis=0) > 0
    sides = tuple(side[varies[side]].astype(np.intp) for side in (file["g"], file["h"]))
    return Table(name, X, y, (sides[0], sides[1]), n_train)


def federated(
    table: Table,
    setting: Setting,
    model: Kernel,
    optimizer: FDSKL,
    seed: int,
    *,
    batch_size: int | None = None,
    parties: int = PARTY_COUNT,
) -> dict[str, float]:
    """Run FDSKL between parties: error, processor seconds, virtual seconds and bytes.

    The sum is a tree sum, or direct between two parties, because a sum of one party's numbers hides nothing.
    """
    owners = table.owners(parties)
    train, test = table.rows(seed)
    tables = [
        Party(f"p{k}", table.X[train][:, c], None if k else table.y[train], aligned=True) for k, c in enumerate(owners)
    ]
    job = Job(
        model=model,
        optimizer=optimizer,
        protocol=Protocol(sum=TreeSum() if parties > 2 else "direct"),
        batch_size=batch_size or setting.batch_size,
        epochs=setting.epochs,
        seed=seed,
        scale=setting.scale,
    )
    started = time.process_time()
    run = simulate(job, tables)
    spent = time.process_time() - started
    error = _missed(run, table, owners, test)
    return {"error": error, "cpu_s": spent, "virtual_s": run.costs.training, "bytes": float(run.costs.bytes)}


def logistic(table: Table, parties: int, seed: int, epochs: int = 20) -> BaselineOutcome:
    """Run logistic regression by FedBCD, in the open."""
    owners = table.owners(parties)
    train, test = table.rows(seed)
    tables = [
        Party(f"p{k}", table.X[train][:, c], None if k else table.y[train], aligned=True) for k, c in enumerate(owners)
    ]
    job = Job(
        model=Logistic(),
        optimizer=FedBCD(local_steps=5, lr=0.1),
        protocol=Protocol(residual="open"),
        batch_size=256,
        epochs=epochs,
        seed=seed,
        accepts=("columns",),  # few columns for each party, all in the open
    )
    started = time.process_time()
    run = simulate(job, tables)
    spent = time.process_time() - started
    return BaselineOutcome(_missed(run, table, owners, test), spent, rows=len(train))


def _missed(run: Run, table: Table, local: Sequence[RowNumbers], test: RowNumbers) -> float:
    new = {f"p{k}": table.X[test][:, columns] for k, columns in enumerate(local)}
    return float(np.mean(run.predict(new) != table.y[test]))


def inner(table: Table) -> Table:
    """Return the training rows of the first split, with a fifth of them at the end to choose by."""
    train, _ = table.rows(0)
    order = np.random.default_rng(0).permutation(train)
    stored = len(order) - round(len(order) / 5)
    return Table(table.name, table.X[order], table.y[order], table.sides, stored)


def choices(table: Table, setting: Setting, runs: Runs) -> tuple[Choice, Choice]:
    """Choose the kernel's width by our step, and for it the step of the paper's update, on training rows."""
    rows = inner(table)

    def error(gamma: float, optimizer: FDSKL) -> float:
        runs(f"{table.name}: gamma {gamma:g}, {optimizer.label}, eta {optimizer.lr:g}")
        model = setting.model.model_copy(update={"gamma": gamma})
        result = _split(rows, setting, model, optimizer, 0, runs)
        return NEVER if result is None else result["error"]

    grid = [float(f"{setting.model.gamma * width:.3g}") for width in setting.widths]
    width = choose(grid, lambda gamma: error(gamma, FDSKL(rho=1.0)))
    return width, choose(setting.step_sizes, lambda eta: error(width.step, FDSKL(lr=eta, precondition=False)))


def run(data: Path | None, plan: Plan, runs: Runs) -> Rows:
    """Return a row for each table and method. DataError if a table is missing."""
    rows: Rows = []
    for name in plan.tables:
        table, setting = read(data, name), SMALL_SETTING if data is None else TABLE_SETTINGS[name]
        width, step = choices(table, setting, runs)
        model = setting.model.model_copy(update={"gamma": width.step})
        for label, precondition, chosen in (
            ("FDSKL, preconditioned", True, width),
            ("FDSKL, the paper's step", False, step),
        ):
            runs(f"{name}: {label}")
            steps = [FDSKL().lr] if precondition else sorted(chosen.tried, key=chosen.tried.__getitem__)
            eta, result = _first_that_stays(table, setting, model, steps, precondition, plan.splits, runs)
            errors = [item["error"] for item in result]
            row = {"dataset": name, "method": label, "gamma": width.step, **chosen.row(), "eta": eta}
            row |= {"error": mean(errors), "error_sd": spread(errors)}
            rows.append(row | {key: min(item[key] for item in result) for key in ("cpu_s", "virtual_s", "bytes")})
        rows += _baselines(table, setting, model, plan, runs)
    return rows


def _split(
    table: Table, setting: Setting, model: Kernel, optimizer: FDSKL, seed: int, runs: Runs
) -> dict[str, float] | None:
    """Return the result of FDSKL on one split, trained only once. None if it diverges."""

    def made() -> dict[str, float] | None:
        try:
            return federated(table, setting, model, optimizer, seed)
        except DIVERGED:
            return None

    training = {"batch": setting.batch_size, "epochs": setting.epochs, "scale": setting.scale, "n_train": table.n_train}
    what = {"table": table.name, "model": model.model_dump(), "optimizer": optimizer.model_dump(), "seed": seed}
    result: dict[str, float] | None = runs.once(what | training, made)
    return result


def _first_that_stays(
    table: Table, setting: Setting, model: Kernel, steps: Sequence[float], precondition: bool, splits: int, runs: Runs
) -> tuple[float, list[dict[str, float]]]:
    """Return the results of all splits for the first of these step sizes with which no training diverges."""
    for eta in steps:
        results: list[dict[str, float]] = []
        for seed in range(splits):
            item = _split(table, setting, model, FDSKL(lr=eta, rho=1.0, precondition=precondition), seed, runs)
            if item is None:
                break
            runs(f"{table.name}: split {seed + 1} of {splits}, {item['error']:.4f} missed")
            results.append(item)
        if len(results) == splits:
            return eta, results
    raise DataError(f"{table.name}: the training diverges at each of the steps {list(steps)}")


def _baselines(table: Table, setting: Setting, model: Kernel, plan: Plan, runs: Runs) -> Rows:
    sides, full = table.owners(2), len(table.y)
    keys = {"batch_size": setting.batch_size, "epochs": setting.epochs, "seed": 0}

    def central(split: Split, columns: RowNumbers | None = None) -> BaselineOutcome:
        local = split if columns is None else split.columns(columns)
        return dsg(local, model, FDSKL(rho=1.0), **keys)

    gamma, C = machine_options(table, setting, plan.tuned, runs)
    machine = {"gamma": gamma, "C": C}
    fitted = partial(pp_svmv, sides=sides, **machine)
    plans: list[tuple[str, int, int, dict[str, float], Baseline]] = [
        ("centralised", full, plan.splits, {}, central),
        ("SecureBoost, as boosting of pooled columns", full, plan.splits, {}, boosting),
        ("the labelled party alone", full, plan.splits, {}, partial(central, columns=table.sides[0])),
        ("the other party's columns alone", full, plan.splits, {}, partial(central, columns=table.sides[1])),
        (
            "SVC on pooled columns",
            plan.pooled,
            min(plan.splits, plan.machine_splits),
            machine,
            partial(libsvm, **machine),
        ),
        ("PP-SVMV", plan.pooled, 1, machine, fitted),
        ("FD-SVRG (linear)", full, plan.splits, {}, partial(fd_svrg, sides=sides)),
    ]
    generated: Rows = []
    for label, most, splits, chosen, baseline in plans:

        def once(seed: int, baseline: Baseline = baseline, most: int = most) -> BaselineOutcome:
            return baseline(table.split(seed, setting.scale).first(most, seed))

        what = keys | {"model": model.model_dump()} | chosen
        generated.append(_row(table.name, label, once, splits, what, runs) | chosen)
    linear = partial(logistic, table, 2, epochs=5)
    generated.append(_row(table.name, "logistic, FedBCD", linear, plan.splits, {}, runs))
    return generated


def machine_options(table: Table, setting: Setting, most: int, runs: Runs) -> tuple[float, float]:
    """Choose the width gamma of a kernel machine, and for it the cost C, by the rule of FDSKL's width and step.

    The machine trains on `most` rows of those that remain when a fifth of the training rows of the first split is held
    out, and that fifth has the errors. Without a grid, the defaults of scikit-learn remain.
    """
    rows = inner(table).split(0, setting.scale).first(most, 0)
    scale = float(1 / (rows.X.shape[1] * rows.X.var()))
    if len(setting.widths) == 1:
        return scale, 1.0

    def error(gamma: float, C: float) -> float:
        runs(f"{table.name}: SVC, gamma {gamma:g}, C {C:g}")
        what = {"table": table.name, "method": "SVC", "gamma": gamma, "C": C, "rows": most}
        return float(runs.once(what, lambda: libsvm(rows, gamma, C).error))

    width = choose([float(f"{scale * width:.3g}") for width in setting.widths], lambda gamma: error(gamma, 1.0)).step
    return width, choose(MACHINE_COSTS, lambda C: error(width, C)).step


def _row(
    table: str, method: str, baseline: Callable[[int], BaselineOutcome], splits: int, what: dict[str, Any], runs: Runs
) -> dict[str, Any]:
    """Return a row of a baseline's results on this number of splits, each run once."""
    results = []
    for seed in range(splits):
        runs(f"{table}: {method}, split {seed + 1} of {splits}")

        def made(seed: int = seed) -> dict[str, float]:
            outcome = baseline(seed)
            return {
                **{"error": outcome.error, "cpu_s": outcome.cpu_s, "rows": outcome.rows},
                **{"bytes": outcome.bytes, "memory_bytes": outcome.memory_bytes},
            }

        results.append(runs.once({"table": table, "method": method, "seed": seed, "setting": what}, made))
    errors = [item["error"] for item in results]
    cpu = min(item["cpu_s"] for item in results)
    row = {"dataset": table, "method": method, "error": mean(errors), "error_sd": spread(errors), "cpu_s": cpu}
    return (
        row
        | {"splits": splits}
        | {key: results[0][key] for key in ("rows", "bytes", "memory_bytes") if results[0][key]}
    )


def scaling(data: Path | None, plan: ScalingPlan, runs: Runs) -> Rows:
    """Return processor seconds of training by rows: FDSKL between parties and by one owner, and a kernel machine."""
    table, setting = read(data, plan.table), SMALL_SETTING if data is None else TABLE_SETTINGS[plan.table]
    split = table.split(0, setting.scale)
    keys = {"batch_size": min(setting.batch_size, min(plan.rows)), "epochs": setting.epochs, "seed": 0}
    methods: dict[str, Baseline] = {
        "FDSKL": lambda local: dsg(local, setting.model, FDSKL(rho=1.0), **keys),
        "SVC": libsvm,
    }
    libsvm(split.first(50, 0))  # modules are loaded before the time of a row
    rows: Rows = []
    for number in plan.rows:
        for name, method in methods.items():
            runs(f"{name}, {number} rows")
            result = method(split.first(number, 0))
            rows.append({"method": name, "rows": number, "cpu_s": result.cpu_s, "error": result.error})
        for parties in plan.parties:
            name = f"FDSKL, {parties} parties"
            runs(f"{name}, {number} rows")
            outcome = federated(
                *(_first(table, number), setting, setting.model, FDSKL(rho=1.0), 0),
                batch_size=keys["batch_size"],
                parties=parties,
            )
            rows.append({"method": name, "rows": number, "parties": parties, **outcome})
    return rows


def _first(table: Table, number: int) -> Table:
    """Return the table with this number of training rows of the first split, and all its test rows."""
    train, test = table.rows(0)
    order = np.concatenate([np.random.default_rng(0).permutation(train)[:number], test])
    return Table(table.name, table.X[order], table.y[order], table.sides, number)


def progress(data: Path | None, plan: ProgressPlan, runs: Runs) -> Rows:
    """Return processor seconds and error after each pass, at one owner of all columns (Figure 3)."""
    table, setting = read(data, plan.table), SMALL_SETTING if data is None else TABLE_SETTINGS[plan.table]
    split = table.split(0, setting.scale)
    rows: Rows = []
    for name, optimizer in (
        ("preconditioned", FDSKL(rho=1.0)),
        ("the paper's step", FDSKL(lr=plan.step, precondition=False)),
    ):
        runs(name)
        result = dsg(
            split, setting.model, optimizer, batch_size=setting.batch_size, epochs=setting.epochs, seed=0, curve=True
        )
        rows += [
            {"method": name, "epoch": number + 1, "cpu_s": spent, "error": error}
            for number, (spent, error) in enumerate(result.curve)
        ]
    return rows


PARTS = {
    # the frequencies of an FDSKL training follow from a key that its parties draw
    "errors": Part(Plan(), Plan(("phishing",), 1, 1, 100, 80), run, lambda row: str(row["method"]).startswith("FDSKL")),
    "scaling": Part(
        ScalingPlan(), ScalingPlan("phishing", (100, 200), (2, 3)), scaling, lambda row: "parties" in str(row["method"])
    ),
    "progress": Part(ProgressPlan(), ProgressPlan(), progress),
}

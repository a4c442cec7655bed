"""Trees on secret shares on real tables: their quality compared with boosting, their cost, and mixed trees.

    auc           AUC of test rows, by the scores that the party with labels receives
    auc_float     the same trees and linear terms, with weights by 12 safe steps in floating point with exact residuals
    auc_linear    logistic regression on all columns in one place
    auc_boosting  scikit-learn's gradient boosting on all columns in one place; each tree uses the columns of one party
    difference    auc - auc_boosting
    auc_mixed     the same boosting with trees that use all columns; `auc_mixed - auc_boosting` is what is lost by
                  trees of one party each
    auc_xgboost   XGBoost; each tree uses the columns of one party; null if it is not installed

`ahead_s` and `visits_s` are seconds of encrypted work and transfers over all parties, in the offline phase and in
iterations. `clock_s` and `cpu_s` are those of the whole training, by the clock and of all processes. `virtual_s` are
those on the critical path over 300 Mbps and 20 ms, offline phase included. Clock and processor times depend on other
work of the machine: `load` is the number of processes that wanted a core when the training began.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import tables as bench_tables
from benchmarks.shares import read
from securevfl.base.arrays import Floats
from securevfl.base.extras import import_extra, is_installed
from securevfl.data.party import Party
from securevfl.families.table_preparation import prepare_parties
from securevfl.job import Job
from securevfl.models.forest_inputs import ForestInputs
from securevfl.models.inputs import FittingData, InputShape
from securevfl.models.metrics import area_under_curve
from securevfl.models.trees import Trees
from securevfl.runtime.costs import Stage
from securevfl.training.run import Run
from securevfl.training.simulate import simulate

TREES_SCHEMA = "securevfl.bench.trees/1"
Progress = Callable[[str], None]
Rows = NDArray[np.intp]

SPLIT: dict[str, Callable[[int], int]] = {  # number of training rows, and of all rows
    "default_credit": lambda rows: 22_500,
    "a9a": lambda rows: 32_561,
    "ijcnn1": lambda rows: 30_000,
    "phishing": lambda rows: 8_291,
    "support2": lambda rows: rows * 3 // 4,
    "breast": lambda rows: rows * 3 // 4,
    "adult": lambda rows: rows * 3 // 4,
    "heavy": lambda rows: 150_000,
    "large": lambda rows: 100_000,
}
TABLE_NAMES = "ijcnn1", "default_credit", "a9a", "phishing", "support2"
HELD_OUT = 0.1  # share of the training rows whose loss decides when to stop
MOST_SCORED = 10_000


def run(
    data: Path, names: Sequence[str], on_row: Progress, *, trees: int | None = None, seeds: int = 1, shares: bool = True
) -> list[dict[str, Any]]:
    """Run each table and seed, and return a row for each; without `shares` only AUCs of floats and of others."""
    rows = []
    for name in names:
        for seed in range(seeds):
            on_row(f"{name}, {seed + 1} of {seeds}")
            rows.append(table(data, name, trees, seed, shares=shares))
    return rows


def table(data: Path, name: str, trees: int | None, seed: int, *, shares: bool = True) -> dict[str, Any]:
    """Run one table, split by the seed."""
    parties = parties_of(data, name)
    train, test = _split(name, len(parties[0]), seed)
    model, selected = Trees(trees=trees), [party.take(train) for party in parties]
    job = Job.from_dict({"model": model, "test_fraction": HELD_OUT})
    test = _filled(job, selected, parties, test)
    new: dict[str, Any] = {party.name: party.take(test).table for party in parties}
    y, labels = np.asarray(parties[0].y)[train], np.asarray(parties[0].y)[test]
    lines: dict[str, Any] = {
        "table": name,
        "seed": seed,
        "rows": len(train),
        "columns": [len(party.columns) for party in parties],
        "parties": len(parties),
        "trees": trees,
        "depth": model.depth,
        "visits": job.epochs,
    }
    result = None
    if shares:
        figures, result = _trained(job, selected)
        lines |= figures | {"auc": area_under_curve(labels == labels.max(), result.decision(new)[:, 0])}
    lines["auc_float"] = in_floats(job, selected, new, labels, result)
    lines |= beside(job, selected, new, y, labels)
    return lines | ({"difference": lines["auc"] - lines["auc_boosting"]} if shares else {})


def parties_of(data: Path, name: str) -> list[Party]:
    """Read the parties of a table, the first one with labels."""
    if name == "heavy":
        return made_up(160_000, 5, 5)
    if name == "large":
        return made_up(101_000, 30, 300, tails=False)
    if name in ("adult", "support2"):
        return _raw(data / f"{name}.csv.gz")
    return read(data, name)


def made_up(rows: int, count: int, other: int, *, tails: bool = True) -> list[Party]:
    """Return numbers of both parties, optionally with gaps and heavy tails, and labels that depend on some of each."""
    rng = np.random.default_rng([rows, count, other])
    sides = [rng.standard_t(2, size=(rows, d)) if tails else rng.normal(size=(rows, d)) for d in (count, other)]
    f = sum((np.abs(X[:, 0]) < 0.8) * 2.0 + np.tanh(X[:, 1]) + np.sign(X[:, 2]) for X in sides)
    y = (f + rng.logistic(size=rows) > np.median(f)).astype(int)
    if tails:
        for X in sides:
            X[rng.random(X.shape) < 0.05] = np.nan
    return [Party("bank", sides[0], y, aligned=True), Party("shop", sides[1], aligned=True)]


def in_floats(job: Job, local: Sequence[Party], new: dict[str, Any], labels: NDArray[Any], result: Run | None) -> float:
    """Return the AUC of steps in floating point, on the trees of a run, or on fresh trees without a run."""
    model, prepared = job.model, prepare_parties(job, local)
    assert isinstance(model, Trees), "the job is of trees"
    y, blocks, later = np.where(local[0].y == np.max(labels), 1.0, -1.0)[:, None], list[Floats](), list[Floats]()
    for place, party in enumerate(prepared):
        assert party.preparation is not None, "it has been prepared"
        n = len(party)
        seen = FittingData(
            party.name, party.X, tuple(party.preparation.sources), None if place else y, None, os.urandom(32)
        )
        spread = InputShape(place == 0, party.X.shape[1], 1, len(local), n)
        stored = None if result is None else result.parts[party.name].state["inputs"]
        inputs = model.inputs(spread, stored if place else None, partial(_same, seen))
        blocks.append(inputs.trained(party.X, np.arange(n)))
        later.append(inputs(party.preparation.apply(new[party.name])))
    n, at = len(y), [np.zeros((X.shape[1], 1)) for X in blocks]
    ridge, before = model.ridge_of(n), [theta.copy() for theta in at]
    assert ridge is not None, "trees have one of their own"
    turns = [np.linalg.inv(X.T @ X / (4 * n) + ridge * np.eye(X.shape[1])) for X in blocks]
    for t in range(1, model.defaults["epochs"] + 1):
        g = model.loss.residual(_sums(blocks, at), y)
        after = [theta - P @ (X.T @ g) / (n * len(local)) for X, P, theta in zip(blocks, turns, at, strict=True)]
        at = [a + (t - 1) / (t + 2) * (a - b) for a, b in zip(after, before, strict=True)]
        before = after
    return float(area_under_curve(labels == labels.max(), _sums(later, at)[:, 0]))


def _same(seen: FittingData) -> FittingData:
    return seen


def _sums(blocks: Sequence[Floats], at: Sequence[Floats]) -> Floats:
    return np.asarray(sum(X @ theta for X, theta in zip(blocks, at, strict=True)))


def beside(
    job: Job, local: Sequence[Party], new: dict[str, Any], y: NDArray[Any], labels: NDArray[Any]
) -> dict[str, float | None]:
    """Return AUCs of models that are trained on all columns in one place."""
    import_extra("sklearn", "sklearn", "the models beside trees")
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    prepared = prepare_parties(job, local)
    X = np.hstack([party.X for party in prepared])
    Z = np.hstack([party.preparation.apply(new[party.name]) for party in prepared if party.preparation is not None])
    edges = np.cumsum([0, *(party.X.shape[1] for party in prepared)]).tolist()
    sides = [set(range(a, b)) for a, b in pairwise(edges)]
    truth, later = y == labels.max(), labels == labels.max()
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(X, truth)
    apart = HistGradientBoostingClassifier(random_state=0, interaction_cst=sides).fit(X, truth)
    mixed = HistGradientBoostingClassifier(random_state=0).fit(X, truth)
    results: dict[str, float | None] = {
        "auc_linear": area_under_curve(later, linear.decision_function(Z)),
        "auc_boosting": area_under_curve(later, apart.decision_function(Z)),
        "auc_mixed": area_under_curve(later, mixed.decision_function(Z)),
        "auc_xgboost": None,
    }
    if is_installed("xgboost"):
        fitted = (
            import_module("xgboost")
            .XGBClassifier(
                n_estimators=100,
                max_depth=5,
                learning_rate=0.1,
                interaction_constraints=[sorted(side) for side in sides],
            )
            .fit(X, truth)
        )
        results["auc_xgboost"] = area_under_curve(later, fitted.predict_proba(Z)[:, 1])
    return results


def _trained(job: Job, local: Sequence[Party]) -> tuple[dict[str, Any], Run]:
    load, before, started = os.getloadavg()[0], _spent(), time.perf_counter()
    result = simulate(job, local)
    costs = result.costs
    inputs = {name: ForestInputs.read(part.state["inputs"]) for name, part in result.parts.items()}
    return {
        "trees": [len(item.forest) for item in inputs.values()],
        "widths": list(result.active.state["sizes"]["columns"].values()),
        "ahead_s": sum(counters.seconds(Stage.OFFLINE) for counters in costs.counters.values()),
        "visits_s": sum(counters.seconds(Stage.TRAIN) for counters in costs.counters.values()),
        "clock_s": time.perf_counter() - started,
        "cpu_s": _spent() - before,
        "virtual_s": costs.total,
        "bytes": costs.bytes,
        "peak_mib": _peak(),
        "load": load,
    }, result


def _split(name: str, rows: int, seed: int) -> tuple[Rows, Rows]:
    """Return rows to train on and rows to score; a9a's as in its source."""
    count = SPLIT[name](rows)
    order = np.arange(rows) if name == "a9a" else np.random.default_rng([seed, 5]).permutation(rows)
    return np.sort(order[:count]), np.sort(order[count:][:MOST_SCORED])


def _filled(job: Job, local: Sequence[Party], parties: Sequence[Party], test: Rows) -> Rows:
    """Return rows without a missing value in columns that have none in training, which models reject."""
    full = np.ones(len(test), bool)
    for prepared, party in zip(prepare_parties(job, local), parties, strict=True):
        assert prepared.preparation is not None, "it has been prepared"
        full &= np.isfinite(prepared.preparation.apply(party.take(test).table)).all(axis=1)
    return test[full]


def _raw(path: Path) -> list[Party]:
    """Return numbers and texts with missing values, as the file splits them."""
    columns, generated = bench_tables.read(path), []
    y = np.array(columns["y"], float).astype(int)
    for k, side in enumerate("gh"):
        names = [name for name in columns if name.startswith(f"{side}_")]
        X = np.column_stack([np.array([value or None for value in columns[name]], object) for name in names])
        generated.append(Party(bench_tables.NAMES[k], X, None if k else y, columns=names, aligned=True))
    return generated


def _spent() -> float:
    """Return processor seconds of this process and of its ended child processes."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _peak() -> int:
    """Return the peak memory of this process with all parties, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

"""FDSKL on real tables: test error, CPU seconds over all parties, virtual seconds and bytes, beside the baselines.

phishing and ijcnn1 are split at random three times, a quarter held out; a9a keeps its own test rows and varies the
seed. SETTINGS were chosen by `choose`, on a fifth of the training rows of the first split, never on test rows. One
core is used by linear algebra, and CPU seconds are of the process, hence of all parties. `cpu_s` and the curve include
an evaluation after each pass; `train_cpu_s`, `virtual_s` and `bytes` are from runs of the first split without.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from securevfl.bench.fdskl_baselines import Baseline, Outcome, Rows, Split, dsg, fd_svrg, libsvm, pp_svmv
from securevfl.bench.tables import archive
from securevfl.crypto.scheme import Floats
from securevfl.data.party import Party
from securevfl.data.schedule import Schedule
from securevfl.extras import extra
from securevfl.job import Job, Protocol
from securevfl.models.kernel import Kernel
from securevfl.models.linear import Logistic
from securevfl.optim.base import Optimizer
from securevfl.optim.fdskl import FDSKL
from securevfl.optim.fedbcd import FedBCD
from securevfl.protocols.base import SumProtocol
from securevfl.protocols.direct_sum import DirectSum
from securevfl.protocols.pairwise_sum import PairwiseSum
from securevfl.protocols.tree_sum import TreeSum
from securevfl.training.run import Run
from securevfl.training.simulate import simulate

SCHEMA = "securevfl.bench.fdskl/1"
SPLITS = 3
REPEATS = 2  # of what is timed without evaluation; the least counts
HELD_OUT = 0.25


@dataclass(frozen=True)
class Setting:
    """How one table is learned; `target` is the error whose CPU seconds are told."""

    model: Kernel
    optimizer: FDSKL
    batch_size: int
    epochs: int
    target: float
    scale: Literal["standard", "none"] = "none"


SETTINGS = {
    "phishing": Setting(Kernel(gamma=0.1, loss="smooth_hinge", blocks=8), FDSKL(rho=1.0), 1024, 40, 0.055),
    "ijcnn1": Setting(
        Kernel(kernel="laplace", gamma=0.1, loss="smooth_hinge", blocks=4), FDSKL(rho=1.0), 2048, 20, 0.040, "standard"
    ),
    "a9a": Setting(Kernel(gamma=0.03, loss="logistic", blocks=4), FDSKL(rho=1.0), 1024, 15, 0.157),
}


@dataclass(frozen=True)
class Table:
    """One real table: labels of 0 and 1, and the columns of the party with labels and of the other."""

    name: str
    X: Floats
    y: Rows
    sides: tuple[Rows, Rows]
    n_train: int | None

    def owners(self, parties: int) -> list[Rows]:
        """Columns of each party: side g, and side h in as many parts as there are others."""
        return [self.sides[0], *np.array_split(self.sides[1], parties - 1)]

    def rows(self, seed: int) -> tuple[Rows, Rows]:
        """Training and test rows."""
        if self.n_train is not None:
            return np.arange(self.n_train), np.arange(self.n_train, len(self.y))
        order = self.shuffled(seed)
        split = Schedule(len(order), batch_size=1, epochs=1, seed=seed, test_fraction=HELD_OUT, reshuffle=False)
        return order[split.train], order[split.test]

    def shuffled(self, seed: int) -> Rows:
        """All rows in another order for each seed, and so, without ids, with other rows held out."""
        return np.random.default_rng(seed).permutation(len(self.y))

    def split(self, seed: int, scale: str) -> Split:
        train, test = self.rows(seed)
        X, test_X = self.X[train], self.X[test]
        if scale == "standard":
            mean, deviation = X.mean(axis=0), X.std(axis=0)
            X, test_X = (X - mean) / deviation, (test_X - mean) / deviation
        signs = np.where(self.y > 0, 1.0, -1.0)
        return Split(X, signs[train], test_X, signs[test])


def read(data: Path, name: str) -> Table:
    """One of the tables. DataError if its file is missing."""
    file = archive(data / f"{name}.npz")
    X, y = file["X"].astype(np.float64), (file["y"] > 0).astype(np.intp)
    n_train = int(file["n_train"]) if name == "a9a" else None
    varies = X[:n_train].std(axis=0) > 0
    sides = tuple(side[varies[side]].astype(np.intp) for side in (file["g"], file["h"]))
    return Table(name, X, y, (sides[0], sides[1]), n_train)


def federated(
    table: Table, setting: Setting, chosen: SumProtocol, parties: int, seed: int, *, alone: bool = False
) -> tuple[Outcome, float, int]:
    """FDSKL between parties: outcome, virtual seconds, bytes. `alone`: training only, nothing is evaluated before."""
    own = table.owners(parties)
    train, test = table.rows(seed)
    whole = table.n_train is None and not alone
    rows = table.shuffled(seed) if whole else train
    tables = [
        Party(f"p{k}", table.X[rows][:, c], None if k else table.y[rows], aligned=True) for k, c in enumerate(own)
    ]
    batches = -(-len(train) // setting.batch_size)
    job = Job(
        model=setting.model,
        optimizer=setting.optimizer,
        protocol=Protocol(sum=chosen),
        batch_size=setting.batch_size,
        epochs=setting.epochs,
        seed=seed,
        scale=setting.scale,
        test_fraction=HELD_OUT if whole else 0.0,
        evaluate_every=batches if whole else 0,
    )
    started, at = time.process_time(), []
    run = simulate(job, tables, on_round=lambda done, of: at.append(time.process_time() - started))
    if whole:
        curve = tuple((at[t], record["error"]) for t, record in enumerate(run.history) if "error" in record)
        error = curve[-1][1]
    else:
        curve = ()
        error = float("nan") if alone else _missed(run, table, own, test)
    return Outcome(error, at[-1], rows=len(train), curve=curve), run.costs.total, run.costs.bytes


def logistic(table: Table, parties: int, seed: int, epochs: int = 20) -> tuple[Outcome, float, int]:
    """Logistic regression by FedBCD, in the open."""
    own = table.owners(parties)
    train, test = table.rows(seed)
    tables = [
        Party(f"p{k}", table.X[train][:, c], None if k else table.y[train], aligned=True) for k, c in enumerate(own)
    ]
    optimizer: Optimizer = FedBCD(local_steps=5, lr=0.1)
    job = Job(
        model=Logistic(),
        optimizer=optimizer,
        protocol=Protocol(residual="open"),
        batch_size=256,
        epochs=epochs,
        accepts=("columns",),  # few to a party, and all of them in the open
    )
    started = time.process_time()
    run = simulate(job, tables)
    spent = time.process_time() - started
    return Outcome(_missed(run, table, own, test), spent, rows=len(train)), run.costs.total, run.costs.bytes


def _missed(run: Run, table: Table, own: Sequence[Rows], test: Rows) -> float:
    new = {f"p{k}": table.X[test][:, columns] for k, columns in enumerate(own)}
    return float(np.mean(run.predict(new) != table.y[test]))


def choose(table: Table, setting: Setting, grid: dict[str, Sequence[Any]], *, fraction: float = 0.2) -> list[Any]:
    """Error on a fifth of the training rows of the first split for each point of the grid, best first.

    Grid keys are options of the model, or `rho`. Runs the centralised loop.
    """
    whole = table.split(0, setting.scale)
    order = np.random.default_rng(0).permutation(len(whole.X))
    cut = round(len(order) * fraction)
    held, kept = order[:cut], order[cut:]
    inner = Split(whole.X[kept], whole.y[kept], whole.X[held], whole.y[held])
    found = []
    for point in itertools.product(*grid.values()):
        options = dict(zip(grid, point, strict=True))
        rho = options.pop("rho", setting.optimizer.rho)
        base = setting.model.model_dump(by_alias=True) | options
        outcome = dsg(
            inner,
            Kernel(**base),
            FDSKL(rho=rho),
            batch_size=setting.batch_size,
            epochs=setting.epochs,
            seed=0,
        )
        found.append((outcome.error, options | {"rho": rho}))
    return sorted(found, key=lambda item: item[0])


def row(
    table: str,
    method: str,
    outcomes: Sequence[Outcome],
    *,
    protocol: str = "",
    parties: int = 1,
    target: float | None = None,
    virtual: Sequence[float] = (),
    sent: Sequence[int] = (),
    train_cpu_s: float | None = None,
) -> dict[str, Any]:
    """Means over the splits; the deviation of the error is a sample's."""
    errors = [outcome.error for outcome in outcomes]
    hits = [next((at for at, error in o.curve if target is not None and error <= target), None) for o in outcomes]
    sends = list(sent) or [outcome.bytes for outcome in outcomes]
    return {
        "dataset": table,
        "method": method,
        "protocol": protocol,
        "parties": parties,
        "test_error": float(np.mean(errors)),
        "test_error_sd": float(np.std(errors, ddof=1)) if len(errors) > 1 else 0.0,
        "cpu_s": float(np.mean([outcome.cpu_s for outcome in outcomes])),
        "virtual_s": float(np.mean(virtual)) if virtual else None,
        "bytes": int(np.mean(sends)),
        "memory_bytes": outcomes[0].memory_bytes,
        "rows": outcomes[0].rows,
        "splits": len(outcomes),
        "target": target,
        "cpu_to_target_s": None if None in hits or not hits[0] else float(np.max([hit for hit in hits if hit])),
        "train_cpu_s": train_cpu_s,
        "curve": [list(point) for point in outcomes[0].curve],
    }


def run(
    data: Path, *, quick: bool = False, on_row: Callable[[str], None] = lambda _: None, names: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """All rows. `quick` takes one split, phishing alone and few rows for the kernel matrices. DataError if a table is
    missing."""
    rows: list[dict[str, Any]] = []
    splits = 1 if quick else SPLITS
    with threadpool_limits(1):
        for name in names or (["phishing"] if quick else list(SETTINGS)):
            table, setting = read(data, name), SETTINGS[name]
            rows += _fdskl(table, setting, splits, on_row)
            rows += _dsg(table, setting, splits, on_row)
            rows += _baselines(table, setting, splits, 2000 if quick else 20_000, on_row)
    return rows


def _fdskl(table: Table, setting: Setting, splits: int, on_row: Callable[[str], None]) -> list[dict[str, Any]]:
    made = []
    for chosen, parties in ((DirectSum(), 2), (DirectSum(), 3), (TreeSum(), 3), (PairwiseSum(), 3)):
        on_row(f"{table.name}: FDSKL over a {chosen.name} sum of {parties} parties")
        outcomes = [federated(table, setting, chosen, parties, seed)[0] for seed in range(splits)]
        trained = [federated(table, setting, chosen, parties, 0, alone=True) for _ in range(REPEATS)]
        made.append(
            row(
                table.name,
                setting.optimizer.label,
                outcomes,
                protocol=chosen.name,
                parties=parties,
                target=setting.target,
                virtual=[min(virtual for _, virtual, _ in trained)],
                sent=[trained[0][2]],
                train_cpu_s=min(outcome.cpu_s for outcome, _, _ in trained),
            )
        )
    return made


def _dsg(table: Table, setting: Setting, splits: int, on_row: Callable[[str], None]) -> list[dict[str, Any]]:
    made = []
    both = np.concatenate(table.sides)
    for label, columns in (("dsg", both), ("dsg, side g", table.sides[0]), ("dsg, side h", table.sides[1])):
        on_row(f"{table.name}: {label}")

        def once(seed: int, curve: bool, columns: Rows = columns) -> Outcome:
            keys = {"batch_size": setting.batch_size, "epochs": setting.epochs, "seed": seed}
            return dsg(
                table.split(seed, setting.scale).columns(columns),
                setting.model,
                setting.optimizer,
                curve=curve,
                **keys,
            )

        outcomes = [once(seed, True) for seed in range(splits)]
        trained = min(once(0, False).cpu_s for _ in range(REPEATS)) if label == "dsg" else None
        made.append(row(table.name, label, outcomes, target=setting.target, train_cpu_s=trained))
    return made


def _baselines(
    table: Table, setting: Setting, splits: int, most: int, on_row: Callable[[str], None]
) -> list[dict[str, Any]]:
    sides = table.owners(2)
    plans: list[tuple[str, int, Baseline]] = [("libsvm", most, libsvm)]
    kernel: Baseline = partial(pp_svmv, sides=sides, gamma=setting.model.gamma)
    plans += [(f"pp-svmv, {n} rows", n, kernel) for n in (1000, 2000, 4000)]
    plans.append(("fd-svrg (linear)", len(table.y), partial(fd_svrg, sides=sides)))
    made = []
    for label, most_rows, baseline in plans:
        on_row(f"{table.name}: {label}")
        outcomes = [baseline(table.split(seed, setting.scale).first(most_rows, seed)) for seed in range(splits)]
        parties = 1 if label == "libsvm" else 2
        made.append(row(table.name, label, outcomes, parties=parties))
    on_row(f"{table.name}: logistic regression")
    found, virtual, sent = zip(*[logistic(table, 2, seed) for seed in range(splits)], strict=True)
    made.append(
        row(table.name, "logistic, FedBCD", found, protocol="direct/open", parties=2, virtual=virtual, sent=sent)
    )
    return made


def picture(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Test error against CPU seconds, one panel a table. Needs matplotlib: pip install securevfl[bench]."""
    Figure = extra("matplotlib.figure", "bench", "a picture").Figure
    drawn = [item for item in rows if item["curve"]]
    names = list(dict.fromkeys(item["dataset"] for item in drawn))
    figure = Figure(figsize=(5 * max(1, len(names)), 4), layout="constrained")
    for i, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), i + 1)
        for item in drawn:
            if item["dataset"] == name:
                at, error = zip(*item["curve"], strict=True)
                who = f", {item['parties']} parties, {item['protocol']}" if item["protocol"] else ""
                axes.plot(at, error, label=item["method"] + who, linewidth=1.2)
        for item in rows:
            if item["dataset"] == name and item["method"] in ("libsvm", "logistic, FedBCD"):
                style = ":" if item["method"] == "libsvm" else "--"
                axes.axhline(item["test_error"], color="grey", linestyle=style, linewidth=1, label=item["method"])
        axes.set(title=name, xlabel="CPU seconds, all parties", ylabel="test error")
        axes.set_xlim(left=0)
        axes.legend(fontsize=7)
    figure.savefig(path, dpi=130)

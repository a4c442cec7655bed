"""Rounds and virtual time to an AUC with local steps and without: CELU-VFL 2022, Figures 4 to 6 and Table 2.

Two parties, a top model at the active one, Z of `WIDTH` numbers a row, residuals in the open, AdaGrad. Methods:

plain          one step on each exchange (FedSGD)
pipeline       the same with `DEPTH` batches in flight: overlap without reuse
fedbcd         R steps on each exchange
celu W=1       each exchange used R times, rows weighed, none kept beside the newest
celu no xi     each exchange used R times, W of them kept, all rows in full
celu           each exchange used R times, W of them kept, rows weighed by the cosine of how far they have turned

Every method has every step of one grid. A run goes through all its epochs and notes the held-out AUC every EVERY
rounds; `rounds` is the first of these at which a target is reached, `auc` the last of all. The step of a method is the
one with the fewest rounds to all targets together in the run of seed 0; with it all other seeds are run. Means and
standard deviations are over the seeds; `rounds` is None unless all of them get there.

`virtual_s` is `rounds` times the seconds of a round in virtual time, on the network given: the mean over the later half
of a run without evaluations, whose transfers would hold up those of the rounds around them.

What has been run is kept line by line in a file beside the rows, by which an interrupted benchmark goes on.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from securevfl.bench.tables import adult, default_credit
from securevfl.data.clicks import clicks
from securevfl.data.party import Party, align
from securevfl.data.preparation import Preparation
from securevfl.errors import ConfigError, DivergenceError
from securevfl.job import Job
from securevfl.models.neural import Neural
from securevfl.models.torch_model import TorchModel, torch
from securevfl.optim.adagrad import AdaGrad
from securevfl.optim.base import Optimizer
from securevfl.optim.celu import CeluVFL
from securevfl.optim.fedbcd import FedBCD, FedSGD
from securevfl.optim.pipeline import Pipeline
from securevfl.protocols.choice import Protocol
from securevfl.protocols.open_residual import OpenResidual
from securevfl.runtime.clock import Network
from securevfl.training.simulate import simulate

SCHEMA = "securevfl.bench.celu/1"
WIDTH = 256  # numbers a row that a party feeds
BATCH = 4096
R, W, XI, DEPTH = 5, 5, 60.0, 3
GRID = 0.01, 0.02, 0.04
EVERY = 1  # rounds between evaluations
TIMED = 24  # rounds of the run whose seconds are taken
NETWORKS = "wide_deep", "dssm"
METHODS: dict[str, Callable[[float], Optimizer]] = {
    "plain": lambda lr: FedSGD(lr=lr, rule=AdaGrad()),
    "pipeline": lambda lr: Pipeline(lr=lr, rule=AdaGrad(), depth=DEPTH),
    "fedbcd": lambda lr: FedBCD(lr=lr, rule=AdaGrad(), local_steps=R),
    "celu W=1": lambda lr: CeluVFL(lr=lr, rule=AdaGrad(), R=R, W=1, xi=XI),
    "celu no xi": lambda lr: CeluVFL(lr=lr, rule=AdaGrad(), R=R, W=W),
    "celu": lambda lr: CeluVFL(lr=lr, rule=AdaGrad(), R=R, W=W, xi=XI),
}


@dataclass(frozen=True)
class Table:
    """A table of the benchmark: its two parties, the epochs of a run, the share held out, and the AUCs to reach."""

    parties: Callable[[Path | None, int], list[Party]]
    epochs: int
    test: float
    targets: tuple[float, ...]


TABLES: dict[str, Table] = {
    "clicks": Table(lambda data, rows: clicks(rows).parties(), 1, 0.045, (0.72, 0.74, 0.76)),
    "default_credit": Table(lambda data, rows: align(default_credit(_folder(data)))[0], 10, 0.25, (0.74, 0.76)),
    "adult": Table(lambda data, rows: adult(_folder(data)), 6, 0.25, (0.88, 0.90)),
}


class Runs:
    """What has been run, by what was run: kept in a file of one JSON object a line, or in memory without one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Any] = {}
        if path is not None and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._known |= json.loads(line)

    def __call__(self, what: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """What `make` gives, or gave before."""
        key = json.dumps(what, sort_keys=True)
        if key not in self._known:
            self._known[key] = make()
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({key: self._known[key]}) + "\n")
        return self._known[key]


@dataclass(frozen=True)
class Setting:
    """What is run: a table by name, so many rows of made-up clicks, a kind of network, the batch and the epochs."""

    data: Path | None
    table: str
    network: str
    rows: int
    seeds: int
    batch: int = BATCH
    width: int = WIDTH

    def parties(self) -> list[Party]:
        """Both, with their networks."""
        found = TABLES[self.table].parties(self.data, self.rows)
        return with_networks(found, self.network, self.width)

    def job(self, method: str, lr: float, seed: int, *, epochs: int, every: int) -> Job:
        """One training."""
        return Job(
            model=Neural(joint="top", width=self.width),
            optimizer=METHODS[method](lr),
            protocol=Protocol(sum="direct", residual=OpenResidual()),
            prepare=Preparation(texts="codes", missing="fill", rare=0.0),
            batch_size=self.batch,
            epochs=epochs,
            seed=seed,
            test_fraction=TABLES[self.table].test,
            evaluate_every=every,
            accepts=("columns",),
        )

    @property
    def name(self) -> dict[str, Any]:
        """What tells one setting from another."""
        own = {"table": self.table, "network": self.network, "batch": self.batch, "width": self.width}
        return own | ({"rows": self.rows} if self.table == "clicks" else {})


def run(
    data: Path | None,
    tables: Sequence[str] = ("clicks",),
    networks: Sequence[str] = NETWORKS,
    *,
    rows: int = 180_000,
    seeds: int = 3,
    kept: Path | None = None,
    network: Network | None = None,
    on_row: Callable[[str], None] = lambda what: None,
) -> list[dict[str, Any]]:
    """The rows of these tables and kinds of networks. ConfigError for a name that is not known, DataError for a table
    that is missing."""
    for what, names, known in (("table", tables, tuple(TABLES)), ("network", networks, NETWORKS)):
        if unknown := [name for name in names if name not in known]:
            raise ConfigError(f"{what} must be one of {', '.join(known)}, {unknown[0]} came; choose one of these")
    torch().set_num_threads(1)
    runs = Runs(kept)
    found = []
    for name in tables:
        for kind in networks:
            found += rows_of(Setting(data, name, kind, rows, seeds), runs, network or Network(), on_row)
    return found


def rows_of(setting: Setting, runs: Runs, network: Network, on_row: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each target and method."""
    parties, table = setting.parties(), TABLES[setting.table]
    seconds, curves, grids = {}, {}, {}

    def curve(method: str, lr: float, seed: int) -> list[tuple[int, float]]:
        on_row(f"{setting.table}, {setting.network}, {method}, step {lr:g}, seed {seed}")
        what = setting.name | {"method": method, "lr": lr, "seed": seed, "epochs": table.epochs}
        return [(int(t), auc) for t, auc in runs(what, partial(trained, setting, parties, method, lr, seed))]

    steps: dict[str, float] = {}
    for method in METHODS:
        tried = {lr: curve(method, lr, 0) for lr in GRID}
        best = steps[method] = min(GRID, key=lambda lr: toll(tried[lr], table.targets))
        curves[method] = [tried[best], *(curve(method, best, seed) for seed in range(1, setting.seeds))]
        grids[method] = tried
    rows = []
    for target in table.targets:
        for method in METHODS:
            found = {lr: reached(own, target) for lr, own in grids[method].items()}
            rows.append(_row(setting, method, target, steps[method], found, curves[method]))
    for method in METHODS:
        on_row(f"{setting.table}, {setting.network}, {method}: seconds of a round")
        what = setting.name | {"method": method, "mbps": network.mbps, "rtt_ms": network.rtt_ms}
        seconds[method] = runs(what, partial(round_seconds, setting, parties, method, network))
    for row in rows:
        row["round_s"] = seconds[row["method"]]
        row["virtual_s"] = None if row["rounds"] is None else row["rounds"] * row["round_s"]
    for row in rows:
        plain = next(each for each in rows if (each["target"], each["method"]) == (row["target"], "plain"))
        there = row["rounds"] is not None and plain["rounds"] is not None
        row["rounds_of_plain"] = row["rounds"] / plain["rounds"] if there else None
        row["times_plain"] = plain["virtual_s"] / row["virtual_s"] if there else None
    return rows


def _row(
    setting: Setting,
    method: str,
    target: float,
    lr: float,
    tried: Mapping[float, int | None],
    curves: Sequence[Sequence[tuple[int, float]]],
) -> dict[str, Any]:
    needed = [reached(own, target) for own in curves]
    all_there = [each for each in needed if each is not None]
    rounds, spread = _mean(all_there) if len(all_there) == len(needed) else (None, None)
    auc, auc_sd = _mean([_last(own) for own in curves])
    return {
        "method": method,
        "network": setting.network,
        "setting": f"R = {R}, W = {W}, xi = {XI:g}, depth = {DEPTH}",
        "dataset": setting.table,
        "target": target,
        "lr": lr,
        "auc": auc,
        "auc_sd": auc_sd,
        "rounds": rounds,
        "rounds_sd": spread,
        "tried": {f"{each:g}": number for each, number in tried.items()},
    }


def trained(setting: Setting, parties: Sequence[Party], method: str, lr: float, seed: int) -> list[tuple[int, float]]:
    """Rounds and held-out AUC of one training; empty if it diverges."""
    job = setting.job(method, lr, seed, epochs=TABLES[setting.table].epochs, every=EVERY)
    try:
        history = simulate(job, parties).history
    except DivergenceError:
        return []
    return [(int(record["round"]), record["auc"]) for record in history if "auc" in record]


def round_seconds(setting: Setting, parties: Sequence[Party], method: str, network: Network) -> float:
    """Seconds of a round in virtual time, once the first ones are over."""
    batches = setting.job(method, GRID[0], 0, epochs=1, every=0).schedule(len(parties[0])).batches
    job = setting.job(method, GRID[0], 0, epochs=-(-TIMED // batches), every=0)
    at = [record["seconds"] for record in simulate(job, parties, network=network).history]
    return float((at[-1] - at[len(at) // 2 - 1]) / (len(at) - len(at) // 2))


def reached(curve: Sequence[tuple[int, float]], target: float) -> int | None:
    """The first round at which the AUC is at least the target."""
    return next((t for t, auc in curve if auc >= target), None)


def toll(curve: Sequence[tuple[int, float]], targets: Sequence[float]) -> int:
    """Rounds to all targets together; one that is not reached counts as a run twice as long."""
    if not curve:
        return sys.maxsize
    return sum(reached(curve, target) or 2 * curve[-1][0] for target in targets)


def with_networks(parties: list[Party], kind: str, width: int) -> list[Party]:
    """The parties, each with a network of this kind for its columns."""
    from securevfl.models import towers

    top, bottom = (towers.WideDeepTop, towers.WideDeep) if kind == "wide_deep" else (towers.DssmTop, towers.Dssm)
    for party in parties:
        make, own = (top if party.active else bottom), towers.Fields.of(party)
        party.model = TorchModel(partial(make, own, width))
    return parties


def _folder(data: Path | None) -> Path:
    if data is None:
        raise ConfigError("--data: the folder of the tables was expected, none came; name it, or take clicks alone")
    return data


def _last(curve: Sequence[tuple[int, float]]) -> float:
    return curve[-1][1] if curve else 0.0


def _mean(values: Sequence[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0

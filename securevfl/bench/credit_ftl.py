"""Credit-FTL (FedBCD 2019, Table 2, Figure 4): transfer learning, rounds and time to AUC by engine and local steps.

On default_credit the bank has the labels and its own columns, the other party further columns of the same people; on
mnist each has one half of the pixels of a digit, and the label is whether it is even. A few thousand rows overlap, and
as many others are held out to take the AUC on. Every Q gets the step size of one grid that reaches the highest
target in the fewest rounds, which is found in the open with an evaluation after every round. Each engine then trains
that many rounds without one, and its time to a lower target is its time a round times the rounds that took; `auc` is
what the sealed model reaches itself. Times are virtual: each party has a machine like this one and a line between them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.bench.tables import READERS, archive
from securevfl.data.party import Party
from securevfl.errors import ConfigError, DataError
from securevfl.job import Job, Protocol
from securevfl.models import taylor
from securevfl.models.transfer import Transfer
from securevfl.optim.fedbcd import FedBCD, FedPBCD
from securevfl.options import LeakName
from securevfl.protocols.base import ResidualProtocol
from securevfl.protocols.engines import Ckks, Paillier
from securevfl.protocols.open_residual import OpenResidual
from securevfl.protocols.sealed_residual import SealedResidual
from securevfl.runtime.clock import Kind
from securevfl.training.run import Run
from securevfl.training.simulate import simulate

SCHEMA = "securevfl.bench.credit_ftl/1"
ENGINES: dict[str, Callable[[int], ResidualProtocol]] = {
    "open": lambda bits: OpenResidual(),
    "ckks": lambda bits: SealedResidual(engine=Ckks()),
    "paillier": lambda bits: SealedResidual(engine=Paillier(bits=bits)),
}
LOCAL_STEPS = 1, 5, 10
ETAS = 2.0, 4.0, 8.0, 16.0
TARGETS = 0.70, 0.73, 0.74
MOST = 60  # local steps after which a step size has failed
GAMMA, L2, MU = 0.005, 1e-4, 0.1
FEWEST = 6  # rounds at least
ACCEPTED: tuple[LeakName, ...] = ("rank", "columns", "fresh_equations")


@dataclass(frozen=True)
class Setting:
    """How wide the networks are and how many rows overlap; as many are held out."""

    rows: int = 3000
    units: int = 64
    hidden: tuple[int, ...] = ()

    @property
    def model(self) -> Transfer:
        return Transfer(units=self.units, hidden=self.hidden, gamma=GAMMA, l2=L2)


@dataclass(frozen=True)
class Tuned:
    """The step size of one algorithm, and the held-out AUC after each round with it."""

    algorithm: str
    local_steps: int
    eta: float
    mu: float
    aucs: tuple[float, ...]

    def rounds(self, target: float) -> int | None:
        """To this AUC; None where it is not reached."""
        return next((number for number, auc in enumerate(self.aucs, 1) if auc >= target), None)


def run(
    data: Path,
    setting: Setting,
    engines: Sequence[str],
    *,
    targets: Sequence[float] = TARGETS,
    local_steps: Sequence[int] = LOCAL_STEPS,
    table: str = "default_credit",
    proximal: bool = False,
    bits: int = 2048,
    on_row: Callable[[str], None],
) -> list[dict[str, Any]]:
    """One row for each engine, algorithm, Q and target that was reached. proximal: FedPBCD beside FedBCD."""
    unknown = [name for name in engines if name not in ENGINES]
    if unknown:
        raise ConfigError(f"engines among {', '.join(ENGINES)} were expected, {', '.join(unknown)} came; correct them")
    if table not in TABLES:
        raise ConfigError(f"a table among {', '.join(TABLES)} was expected, {table} came; correct it")
    parties = TABLES[table](data, setting.rows)
    rows = []
    for q, mu in itertools.product(local_steps, [0.0, MU] if proximal else [0.0]):
        on_row(f"step sizes for Q = {q}")
        tuned = tune(parties, setting, q, targets, mu)
        for engine in engines:
            on_row(f"{engine}, Q = {q}")
            rows += _rows(parties, setting, tuned, engine, targets, bits)
    return rows


def credit(data: Path, rows: int) -> list[Party]:
    """The bank and its partner, twice as many rows. DataError without the files."""
    parties = READERS["default_credit"](data)
    chosen = _chosen(len(parties[0]), rows)
    return [party.take(chosen) for party in parties]


def digits(data: Path, rows: int) -> list[Party]:
    """The left and the right halves of twice as many digits, those pixels that vary among them."""
    file = archive(data / "mnist.npz")
    chosen = _chosen(len(file["y"]), rows)
    pixels, even = file["X"][chosen].reshape(-1, 28, 28).astype(np.float64), file["y"][chosen] % 2 == 0
    halves = [half.reshape(len(chosen), -1) for half in np.split(pixels, 2, axis=2)]
    left, right = (half[:, half.std(axis=0) > 0] for half in halves)
    return [Party("left", left, even.astype(int), aligned=True), Party("right", right, aligned=True)]


def _chosen(there: int, rows: int) -> NDArray[np.intp]:
    """Twice `rows` of so many, the same ones always. DataError if there are fewer."""
    if there < 2 * rows:
        raise DataError(f"{2 * rows} shared rows were expected, {there} came; ask for fewer")
    return np.random.default_rng(0).permutation(there)[: 2 * rows]


TABLES = {"default_credit": credit, "mnist": digits}


def tune(parties: Sequence[Party], setting: Setting, q: int, targets: Sequence[float], mu: float = 0.0) -> Tuned:
    """The step size of the grid that reaches the highest targets, and these in the fewest rounds."""
    found = [_trial(parties, setting, q, eta, mu) for eta in ETAS]

    def merit(tuned: Tuned) -> list[float]:
        return [-(tuned.rounds(target) or np.inf) for target in sorted(targets, reverse=True)]

    return max(found, key=merit)


def _trial(parties: Sequence[Party], setting: Setting, q: int, eta: float, mu: float) -> Tuned:
    job = _job(setting, q, eta, OpenResidual(), max(MOST // q, FEWEST), mu=mu, evaluate_every=1)
    history = simulate(job, parties).history
    return Tuned(job.optimizer.label, q, eta, mu, tuple(entry["auc"] for entry in history))


def _job(
    setting: Setting, q: int, eta: float, residual: ResidualProtocol, rounds: int, *, mu: float = 0.0, **keys: Any
) -> Job:
    optimizer = FedPBCD(local_steps=q, lr=eta, mu=mu) if mu else FedBCD(local_steps=q, lr=eta)
    return Job(
        model=setting.model,
        optimizer=optimizer,
        protocol=Protocol(residual=residual),
        batch_size="all",
        epochs=rounds,
        test_fraction=0.5,
        accepts=ACCEPTED,
        **keys,
    )


def _rows(
    parties: Sequence[Party], setting: Setting, tuned: Tuned, engine: str, targets: Sequence[float], bits: int
) -> list[dict[str, Any]]:
    reached = [(target, rounds) for target in targets if (rounds := tuned.rounds(target)) is not None]
    if not reached:
        return []
    most = max(rounds for _, rounds in reached)
    residual = ENGINES[engine](bits)
    done = simulate(_job(setting, tuned.local_steps, tuned.eta, residual, most, mu=tuned.mu), parties)
    return [_row(setting, tuned, engine, target, rounds, done, most) for target, rounds in reached]


def _row(
    setting: Setting, tuned: Tuned, engine: str, target: float, rounds: int, done: Run, most: int
) -> dict[str, Any]:
    costs, part = done.costs, rounds / most
    computed = costs.seconds(Kind.ENCRYPTION) + costs.seconds(Kind.LOCAL)
    return {
        "engine": engine,
        "algorithm": "FedSGD" if tuned.local_steps == 1 else tuned.algorithm,
        "q": tuned.local_steps,
        "eta": tuned.eta,
        "overlap": setting.rows,
        "units": setting.units,
        "auc_target": target,
        "rounds": rounds,
        "comp_s": computed * part,
        "comm_s": costs.seconds(Kind.COMMUNICATION) * part,
        "total_s": costs.total * part,
        "bytes": int(costs.bytes * part),
        "values_sent_per_round": taylor.length(setting.rows, setting.units),
        "auc": done.metrics["auc"],
    }

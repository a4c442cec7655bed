"""Rounds to the AUC of the pooled columns and their cost: BlockNewton on all rows, FedBCD, FedSGD on minibatches.

For each table, logistic regression with a quarter of the rows held out:

    auc_pooled    of scikit-learn on the columns of all parties, with the same objective and rows
    rounds        the first one after which the AUC stays within `AUC_TOLERANCE` of it; for minibatches, the first
                  evaluation there
    costs         of a run of that number of rounds, in virtual time: encryption, local work, network, bytes
    opened        number of equations about labels that the passive party with the most columns learned in that run,
                  and the AUC with which it ranks the labels by least squares from all of them and from its columns
    gap           distance of BlockNewton's objective from its minimum after LAST rounds
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import READERS
from securevfl.base.arrays import Floats
from securevfl.base.extras import import_extra
from securevfl.data.party import Party
from securevfl.data.preparation import Preparation
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.models.linear_block import Linear
from securevfl.models.metrics import area_under_curve
from securevfl.optim.block_newton import BlockNewton
from securevfl.optim.fedbcd import FedBCD, FedSGD
from securevfl.optim.optimizer import Training
from securevfl.options import Target
from securevfl.protocols.engines import Ckks, Paillier
from securevfl.protocols.observations import GradientLearned
from securevfl.protocols.protocol_options import Protocol
from securevfl.runtime.costs import Kind
from securevfl.runtime.network import Network
from securevfl.runtime.observer import Event, Observer
from securevfl.training.run import Run
from securevfl.training.simulate import simulate

ROUNDS_SCHEMA = "securevfl.bench.rounds/1"
AUC_TOLERANCE = 1e-3  # distance from the pooled AUC
L2 = 1e-3
TEST_FRACTION = 0.25
NEWTON_ROUNDS = 20  # rounds of BlockNewton
LAST = 60
EPOCHS = 10  # rounds of minibatches at most
EVERY = 5  # rounds of minibatches between evaluations
MEASURED_RESIDUALS: dict[str, Any] = {"open": "open", "ckks": Ckks(), "paillier": Paillier(bits=2048)}
MINIBATCHES: dict[str, Training] = {
    "fedsgd": FedSGD(lr=3.0, decay="sqrt_t"),  # best steps on support2
    "fedbcd": FedBCD(local_steps=5, lr=1.0, decay="sqrt_t"),
}


@dataclass
class OpenedGradients(Observer):
    """Gradients that one passive party learned, by batch: J (n, d), and the sum of J^T g (d, 1) so far."""

    name: str
    matrix: dict[int, Floats] = field(default_factory=dict)
    total: dict[int, Floats] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        pass

    def note(self, me: str, fact: object) -> None:
        """Record a learned gradient."""
        if me == self.name and isinstance(fact, GradientLearned):
            assert isinstance(fact.J.matrix, np.ndarray), "these tables are in memory"
            self.matrix[fact.index] = fact.J.matrix
            self.total[fact.index] = self.total.get(fact.index, 0.0) + fact.gradient

    @property
    def equations(self) -> int:
        """The number of linear equations about residuals; equations that later iterations repeat count once."""
        return sum(matrix.shape[1] for matrix in self.matrix.values())

    def label_auc(self, positive: Mapping[int, Any]) -> float:
        """Return the AUC of least squares on each batch, over all batches, against `positive` labels (n,)."""
        guess = {index: np.linalg.lstsq(self.matrix[index].T, total)[0] for index, total in self.total.items()}
        scores = np.concatenate([-guess[index][:, 0] for index in guess])
        return area_under_curve(np.concatenate([positive[index] for index in guess]), scores)


def run(
    data: Path,
    tables: Sequence[str] = (),
    *,
    residuals: Sequence[str] = ("ckks",),
    against: Sequence[str] = (),
    network: Network | None = None,
    on_row: Callable[[str], None] = lambda what: None,
) -> list[dict[str, Any]]:
    """Run the named tables, or all of them, and return their rows; ConfigError or DataError for a missing one."""
    known = {"table": READERS, "residual": MEASURED_RESIDUALS, "algorithm": MINIBATCHES}
    for what, names in (("table", tables), ("residual", residuals), ("algorithm", against)):
        if unknown := [name for name in names if name not in known[what]]:
            raise ConfigError(
                f"unknown {what} {unknown[0]!r}",
                f"choose from {', '.join(known[what])}",
                code="SVFL-COMMAND-USAGE",
                option=what,
            )
    rows = []
    for name in tables or READERS:
        parties = READERS[name](data)
        pooled, least = reference(parties)
        for residual in residuals:
            on_row(f"{name}, {len(parties)} parties, BlockNewton, {residual}")
            rows.append(_few(name, parties, residual, pooled, least, network))
            for other in against:
                on_row(f"{name}, {len(parties)} parties, {other}, {residual}")
                rows.append(_many(name, parties, other, residual, pooled, network))
    return rows


def reference(parties: Sequence[Party]) -> tuple[float, float]:
    """Return the held-out AUC of scikit-learn on the pooled columns, and the minimum of the objective."""
    regression = import_extra("sklearn.linear_model", "sklearn", "the pooled reference").LogisticRegression
    X, y, split = _pooled(parties)
    fitted = regression(C=1 / (L2 * len(split.train)), tol=1e-8, max_iter=10_000).fit(X[split.train], y[split.train])
    auc = area_under_curve(y[split.test], fitted.decision_function(X[split.test]))
    return auc, _objective(fitted.decision_function(X[split.train]), y[split.train], float((fitted.coef_**2).sum()))


def _few(
    name: str, parties: Sequence[Party], residual: str, pooled: float, least: float, network: Network | None
) -> dict[str, Any]:
    options: dict[str, Any] = {"batch_size": "all"}
    opened, engine = OpenedGradients(_widest(parties)), MEASURED_RESIDUALS[residual]
    looked = "open" if isinstance(engine, Paillier) else residual  # a round takes seconds
    seen = simulate(
        _job(BlockNewton(tolerance=0), looked, epochs=NEWTON_ROUNDS, evaluate_every=1, **options),
        parties,
        observe=opened,
    )
    rounds = settled([record["auc"] for record in seen.history], pooled)
    costs = simulate(_job(BlockNewton(tolerance=0), residual, epochs=rounds, **options), parties, network=network)
    last = simulate(_job(BlockNewton(tolerance=0), "open", epochs=LAST, **options), parties)
    return _row(name, parties, residual, costs, pooled, opened) | {"gap": _reached(last, parties) - least}


def _many(
    name: str, parties: Sequence[Party], algorithm: str, residual: str, pooled: float, network: Network | None
) -> dict[str, Any]:
    job = _job(
        MINIBATCHES[algorithm],
        residual,
        batch_size=256,
        epochs=EPOCHS,
        evaluate_every=EVERY,
        target=Target(metric="auc", value=pooled - AUC_TOLERANCE),
    )
    costs, opened = simulate(job, parties, network=network), OpenedGradients(_widest(parties))
    simulate(job, parties, observe=opened)
    return _row(name, parties, residual, costs, pooled, opened) | {"gap": None}


def settled(aucs: Sequence[float], pooled: float) -> int:
    """Return the first round, from 1, after which the AUC stays above `pooled` - AUC_TOLERANCE; else the last one."""
    short = [number for number, auc in enumerate(aucs, 1) if auc < pooled - AUC_TOLERANCE]
    return min(len(aucs), short[-1] + 1 if short else 1)


def _row(
    name: str, parties: Sequence[Party], residual: str, run: Run, pooled: float, opened: OpenedGradients
) -> dict[str, Any]:
    costs, schedule, y = run.costs, run.job.schedule(parties[0].register), np.asarray(parties[0].y)
    return {
        "table": name,
        "parties": len(parties),
        "algorithm": costs.algorithm,
        "residual": residual,
        "rounds": costs.rounds,
        "auc": run.metrics["auc"],
        "auc_pooled": pooled,
        "encrypt_s": costs.seconds(Kind.ENCRYPTION),
        "local_s": costs.seconds(Kind.LOCAL),
        "network_s": costs.seconds(Kind.COMMUNICATION),
        "total_s": costs.training,
        "bytes": costs.bytes,
        "opened_equations": opened.equations,
        "attack_auc": opened.label_auc({index: y[rows] == 1 for index, rows in enumerate(schedule.partition(0))}),
    }


def _job(optimizer: Training, residual: str, **options: Any) -> Job:
    return Job(
        model=Logistic(l2=L2),
        optimizer=optimizer,
        protocol=Protocol(residual=MEASURED_RESIDUALS[residual]),
        test_fraction=TEST_FRACTION,
        prepare=Preparation(tails="keep"),  # as the pooled optimum uses the columns
        accepts=("columns",),
        **options,
    )


def _widest(parties: Sequence[Party]) -> str:
    return max(parties[1:], key=lambda party: len(party.columns)).name


def _pooled(parties: Sequence[Party]) -> tuple[Floats, Any, Any]:
    """Return the pooled columns, scaled by the training rows, whether each label is 1, and the split."""
    split = _job(BlockNewton(), "open", batch_size="all").schedule(parties[0].register)
    X = np.hstack([party.X for party in parties])
    mean, deviation = X[split.train].mean(axis=0), X[split.train].std(axis=0)
    return (X - mean) / np.where(deviation > 0, deviation, 1.0), np.asarray(parties[0].y) == 1, split


def _reached(run: Run, parties: Sequence[Party]) -> float:
    """Return the objective on the training rows at the weights of a run."""
    X, y, split = _pooled(parties)
    theta = np.vstack([part.theta[: len(part.columns)] for part in run.parts.values()])
    full = Linear(np.vstack([theta, run.active.theta[-1:]]), l2=L2, intercept=True)
    return _objective(full.forward(X[split.train])[:, 0], y[split.train], float((theta**2).sum()))


def _objective(f: Floats, positive: Any, squares: float) -> float:
    loss = Logistic().loss
    return float(loss.value(f[:, None], np.where(positive, 1.0, -1.0)[:, None]).mean()) + L2 / 2 * squares

"""CELU-VFL under a sealed residual: the AUC of a linear model in the open and under CKKS, with and without weights.

The columns of default_credit in FATE's split, logistic regression, AdaGrad. The step is the one with the best AUC on
validation rows, in the open and without weights; all others use it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.papers.study import DIVERGED, NEVER, Rows, Runs, choose, development
from benchmarks.tables import READERS
from securevfl.data.datasets import loans
from securevfl.data.party import Party
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.optim.adagrad import AdaGrad
from securevfl.optim.celu import CeluVFL
from securevfl.protocols.protocol_options import Protocol
from securevfl.training.simulate import simulate

RESIDUAL_NAMES = "open", "ckks"


@dataclass(frozen=True)
class SealedPlan:
    """Trainings of a linear model in the open and under CKKS.

    Attributes:
        batch: number of rows of a batch.
        epochs: number of epochs.
        test: share of held-out rows.
        R: number of local steps for each exchange.
        W: number of cached exchanges.
        xi: angles in degrees beyond which a row has the weight 0; None does not weight rows.
        grid: step sizes from which one is chosen.
    """

    batch: int = 2048
    epochs: int = 5
    test: float = 0.25
    R: int = 5
    W: int = 5
    xi: tuple[float | None, ...] = (None, 60.0)
    grid: tuple[float, ...] = (0.03, 0.1, 0.3)


def run(data: Path | None, plan: SealedPlan, runs: Runs) -> Rows:
    """Return a row for each residual and angle. DataError if the table is missing."""
    parties = loans() if data is None else READERS["default_credit"](data)

    def job(step: float, residual: str, xi: float | None) -> Job:
        return Job(
            model=Logistic(l2=1e-3),
            optimizer=CeluVFL(lr=step, rule=AdaGrad(), R=plan.R, W=plan.W, xi=xi),
            protocol=Protocol(sum="direct", residual=residual),
            batch_size=plan.batch,
            epochs=plan.epochs,
            test_fraction=plan.test,
            accepts=("columns", "rank", "fresh_equations", "label_auc"),
        )

    def auc(tables: Sequence[Party], step: float, residual: str, xi: float | None) -> tuple[float, int]:
        runs(f"{residual}, xi = {xi}, step {step:g}")
        result = simulate(job(step, residual, xi), tables)
        return result.metrics["auc"], result.history[-1]["round"]

    def missing(step: float) -> float:
        try:
            return 1 - auc(inner, step, RESIDUAL_NAMES[0], None)[0]
        except DIVERGED:
            return NEVER

    inner = development(parties, job(1.0, RESIDUAL_NAMES[0], None))
    choice = choose(plan.grid, missing)
    rows: Rows = []
    for residual in RESIDUAL_NAMES:
        for xi in plan.xi:
            result, rounds = auc(parties, choice.step, residual, xi)
            rows.append({"residual": residual, "xi": xi, "rounds": rounds, "auc": result} | choice.row())
    return rows

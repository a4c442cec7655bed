"""The setting of transfer learning's experiments: tables, jobs, and logistic regression as the baseline."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import READERS
from securevfl.base.extras import import_extra
from securevfl.data.party import Party
from securevfl.errors import DataError
from securevfl.families.transfer.transfer_model import Transfer
from securevfl.job import Job
from securevfl.models.metrics import area_under_curve
from securevfl.optim.fedbcd import FedBCD
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.residuals.base import ResidualProtocol

GAMMA, L2 = 0.005, 1e-4
TEST_FRACTION = 0.5
ACCEPTED: tuple[str, ...] = ("rank", "columns", "fresh_equations")
CODED = ("SEX", "EDUCATION", "MARRIAGE")


@dataclass(frozen=True)
class Plan:
    """Trainings by transfer learning, of which the rounds to an AUC are counted. An opening is one decrypted gradient.

    Attributes:
        table: name of the table.
        rows: number of shared rows; the same number is held out.
        units: number of units of the hidden layer.
        local_steps: numbers Q of local steps with an opening for each step.
        linearised: numbers Q of local steps with one opening for all.
        grid: step sizes from which one is chosen.
        targets: the AUCs to reach, as shares of the AUC of logistic regression on the host's columns.
        most: maximum number of local steps of a training.
        splits: number of random splits.
        sealed: whether the trainings are also timed under CKKS.
        one_opening: whether networks are linearised between exchanges, so that a round has one opening.
        starts: number of random starts of each split.
    """

    table: str
    rows: int = 3000
    units: int = 8
    local_steps: tuple[int, ...] = (1, 5, 10)
    linearised: tuple[int, ...] = (5, 10)
    grid: tuple[float, ...] = (4.0, 8.0, 16.0)
    targets: tuple[float, ...] = (0.97, 1.0, 1.02)
    most: int = 48
    splits: int = 3
    sealed: bool = True
    one_opening: bool = False
    starts: int = 5

    def ways(self) -> list[tuple[Plan, int]]:
        """Return the plan with an opening for each step and with a single one, and the local steps of each."""
        one = replace(self, one_opening=True)
        return [*((self, q) for q in self.local_steps), *((one, q) for q in self.linearised)]


def job_of(plan: Plan, q: int, eta: float, residual: ResidualProtocol, rounds: int, **keys: Any) -> Job:
    return Job(
        model=Transfer(units=plan.units, hidden=(), gamma=GAMMA, l2=L2, linearised=plan.one_opening),
        optimizer=FedBCD(local_steps=q, lr=eta),
        protocol=Protocol(residual=residual),
        batch_size="all",
        epochs=rounds,
        test_fraction=TEST_FRACTION,
        accepts=ACCEPTED,
        **keys,
    )


def regression_auc(side: Sequence[Party], y: Any, job: Job, lead: Party) -> float:
    """Return the AUC of scikit-learn's logistic regression on these columns."""
    regression = import_extra("sklearn.linear_model", "sklearn", "the baselines").LogisticRegression
    schedule, X = job.schedule(lead.register), np.hstack([party.X for party in side])
    X = (X - X[schedule.train].mean(axis=0)) / X[schedule.train].std(axis=0).clip(1e-9)
    model = regression(max_iter=2000).fit(X[schedule.train], y[schedule.train])
    return area_under_curve(y[schedule.test] == 1, model.decision_function(X[schedule.test]))


def shared_tables(data: Path | None, table: str, rows: int, split: int, held_out: int | None = None) -> list[Party]:
    """Return tables with `rows` training rows and `held_out` held-out rows (by default also `rows`) for this split.

    Raises:
        DataError: the table has fewer rows.
    """
    needed = rows + (rows if held_out is None else held_out)
    if data is None:
        parties = made_up(needed)
    else:
        parties = READERS["default_credit"](data) if table == "fate" else paper_split(data)
    if len(parties[0]) < needed:
        raise DataError(f"the tables share {len(parties[0])} rows, and the plan needs {needed}", "choose fewer rows")
    chosen = np.random.default_rng(split).permutation(len(parties[0]))[:needed]
    return [party.take(chosen) for party in parties]


def paper_split(data: Path) -> list[Party]:
    """Return default_credit in FedBCD's split: bills and payments (18 columns), and the client (15, one a category).

    Amounts are logarithms, because they span five orders of magnitude.
    """
    with gzip.open(data / "UCI_Credit_Card.csv.gz", "rt") as file:
        head, *lines = csv.reader(file)
    table = {name: np.array(values, float) for name, values in zip(head, zip(*lines, strict=True), strict=True)}
    y = table.pop("default.payment.next.month").astype(int)
    paid = [name for name in table if name.startswith(("PAY", "BILL"))]
    guest = np.column_stack([_logged(table[name]) if "AMT" in name else table[name] for name in paid])
    kinds = [(name, kind) for name in CODED for kind in np.unique(table[name])]
    host = np.column_stack(
        [_logged(table["LIMIT_BAL"]), table["AGE"], *(table[name] == kind for name, kind in kinds)]
    ).astype(float)
    return [Party("bank", guest, y, columns=paid, aligned=True), Party("shop", host, aligned=True)]


def _logged(amounts: Any) -> Any:
    return np.sign(amounts) * np.log1p(np.abs(amounts))


def made_up(rows: int) -> list[Party]:
    """Return two parties' views of one hidden number, on which the label depends."""
    generator = np.random.default_rng(0)
    hidden = generator.normal(size=(rows, 1))
    columns = [hidden @ np.ones((1, d)) + generator.normal(size=(rows, d)) for d in (5, 4)]
    y = (hidden[:, 0] + 0.3 * generator.normal(size=rows) > 0).astype(int)
    return [Party("bank", columns[0], y, aligned=True), Party("shop", columns[1], aligned=True)]

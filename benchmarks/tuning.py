"""The choice of l2 by a search on secret shares, compared with the choice on the pooled table.

    python -m benchmarks.tuning --data ../shared/data [--tables breast support2 phishing] [--json FILE]

For each value of l2, scikit-learn trains on all columns, prepared and scaled as the job does it. The figures are its
mean losses on the same held-out rows. The excess is the loss for the value that the search on shares has chosen minus
the loss for the best value. It is printed next to the standard error of the latter.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

import securevfl as vfl
from benchmarks.real_tables import TABLES
from securevfl.base.arrays import Floats
from securevfl.data.party import register_of
from securevfl.errors import DataNotice
from securevfl.families.table_preparation import prepare_parties
from securevfl.families.training_data import TrainingData

VALUES = (0.001, 0.01, 0.1, 1.0, 10.0)
CLIP = 8.0


def pooled_losses(job: vfl.Job, parties: Sequence[vfl.Party], l2: float) -> Floats:
    """Return the loss (n,) of each held-out row after scikit-learn has trained with this penalty on all columns."""
    schedule = job.schedule(register_of(parties))
    tables = [
        TrainingData(party, schedule, job.model.loss, scale=job.scaling, clip=CLIP)
        for party in prepare_parties(job, parties)
    ]
    X = np.hstack([np.clip(table.scaled(np.arange(len(parties[0]))), -CLIP, CLIP) for table in tables])
    targets = tables[0].targets
    assert targets is not None, "the first party has the labels"
    y, train, test = targets[:, 0] > 0, schedule.train, schedule.test
    model = LogisticRegression(C=1 / (l2 * len(train)), max_iter=5000, tol=1e-8).fit(X[train], y[train])
    f = model.decision_function(X[test])
    return np.asarray(np.logaddexp(0, np.where(y[test], -f, f)))


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Return the figures of one table."""
    parties, job = TABLES[name](folder), vfl.Job(model=vfl.Logistic(), accepts=("small_metrics",))
    tuning = vfl.tune(job, {"l2": VALUES}, parties)
    pooled = {f"l2 = {l2:g}": pooled_losses(job, parties, l2) for l2 in VALUES}
    means = {alternative: float(losses.mean()) for alternative, losses in pooled.items()}
    best = min(means, key=lambda alternative: means[alternative])
    error = float(pooled[best].std() / np.sqrt(len(pooled[best])))
    excess = means[tuning.chosen] - means[best]
    return {
        "table": name,
        "held_out": tuning.rows,
        "chosen": tuning.chosen,
        "pooled_best": best,
        "excess": excess,
        "std_error": error,
        "within": excess <= error,
        "losses": {item.name: item.loss for item in tuning.alternatives},
        "pooled": means,
        "opened_bits": tuning.opened_bits,
    }


def main() -> None:
    """Print the figures of each table, and write them to a file if one is named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", default=["breast", "support2", "phishing"], choices=list(TABLES))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", DataNotice)
    results = []
    for name in arguments.tables:
        results.append(measure(name, arguments.data))
        print(json.dumps(results[-1]), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

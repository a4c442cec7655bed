"""Rounds to a target AUC: FedSGD against FedBCD with Q local steps, step size tuned for each on one grid.

    python benchmarks/step_sizes.py --data ../shared/data --json out/step_sizes.json

The setting of FedBCD 2019, Table 1, with logistic regression on support2 in place of MIMIC-III. The target is a share
of the AUC that scikit-learn reaches on the pooled columns of the same split. Every cell is a mean over seeds; a seed
that misses the target within the cap makes the cell empty. Rows: algorithm, Q, parties, decay, lr, rounds, target.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import securevfl as vfl
from securevfl.bench.tables import shuffled, support2
from securevfl.data.schedule import Schedule
from securevfl.optim.base import Optimizer
from securevfl.training.costs import format_table

GRID = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
CAP = 500  # rounds
TEST = 0.25


def pooled_auc(parties: Sequence[vfl.Party]) -> float:
    """Test AUC of scikit-learn's logistic regression on all columns."""
    y = parties[0].y
    assert y is not None
    split = Schedule(len(y), batch_size=len(y), epochs=1, seed=0, test_fraction=TEST, reshuffle=False)
    X = np.hstack([party.X for party in parties])
    X = (X - X[split.train].mean(axis=0)) / X[split.train].std(axis=0).clip(1e-9)
    model = LogisticRegression(max_iter=5000).fit(X[split.train], y[split.train])
    return float(roc_auc_score(y[split.test], model.decision_function(X[split.test])))


def rounds_to(parties: Sequence[vfl.Party], optimizer: Optimizer, batch: int, target: float, seed: int) -> int | None:
    """Exchanges until the held-out AUC reaches the target; None if it does not within CAP."""
    train = round(len(parties[0]) * (1 - TEST))
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=optimizer,
        protocol=vfl.Protocol(residual="open"),
        batch_size=batch,
        epochs=max(1, CAP * batch // train),
        seed=seed,
        test_fraction=TEST,
        target=vfl.Target(metric="auc", value=target),
        accepts=["columns", "sequential"],
    )
    run = vfl.simulate(job, parties)
    return run.costs.rounds if run.history[-1]["auc"] >= target else None


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, default=Path("../shared/data"))
    options.add_argument("--json", type=Path, default=Path("out/step_sizes.json"))
    options.add_argument("--parties", type=int, default=2)
    options.add_argument("--batch", type=int, default=256)
    options.add_argument("--share", type=float, default=0.995, help="of the pooled AUC")
    options.add_argument("--seeds", type=int, default=3)
    given = options.parse_args()

    tables = [shuffled(support2(given.data, given.parties), seed) for seed in range(given.seeds)]
    targets = [given.share * pooled_auc(parties) for parties in tables]
    rows: list[dict[str, str | int | float]] = []
    for Q in (1, 5, 10):
        for decay in ("none", "sqrt_t"):
            for lr in GRID:
                optimizer = vfl.FedSGD(lr=lr, decay=decay) if Q == 1 else vfl.FedBCD(lr=lr, decay=decay, local_steps=Q)
                counts = [
                    rounds_to(parties, optimizer, given.batch, target, seed)
                    for seed, (parties, target) in enumerate(zip(tables, targets, strict=True))
                ]
                reached = [count for count in counts if count is not None]
                mean = float(np.mean(reached)) if len(reached) == len(counts) else float("nan")
                rows.append(
                    {
                        "algorithm": optimizer.label,
                        "Q": Q,
                        "parties": given.parties,
                        "decay": decay,
                        "lr": lr,
                        "rounds": mean,
                        "target_auc": float(np.mean(targets)),
                    }
                )
    print(format_table(rows))
    best = {
        Q: min((r for r in rows if r["Q"] == Q and r["rounds"] == r["rounds"]), key=lambda r: r["rounds"])
        for Q in (1, 5, 10)
    }
    print("\nbest of the grid for each Q")
    print(format_table(list(best.values())))
    given.json.parent.mkdir(parents=True, exist_ok=True)
    machine = {"platform": platform.platform(), "python": platform.python_version()}
    given.json.write_text(
        json.dumps({"schema": "securevfl.bench.step_sizes/1", "machine": machine, "rows": rows}, indent=1)
    )


if __name__ == "__main__":
    main()

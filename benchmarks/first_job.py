"""The quality of the job that names only its model, compared with logistic regression on the pooled columns.

    python -m benchmarks.first_job --data ../shared/data [--tables a9a phishing] [--bins] [--json FILE]

Without --bins, scikit-learn gets the columns as the job prepares and scales them. With --bins the job cuts columns into
ten bins, and scikit-learn gets the weights of evidence of these bins, which no party of a real run could pool.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import securevfl as vfl
from benchmarks.real_tables import SIX, TABLES
from securevfl.errors import DataNotice
from securevfl.families.table_preparation import prepare_parties, with_prepared_tables

BINS = 10
SPLITS = (0, 1, 2)


def alone(split: int, *, bins: bool = False) -> vfl.Job:
    """Return a job that names only its model, this split of the rows, and, if `bins` is True, bins of columns."""
    return vfl.Job(model=vfl.Logistic(), split=split, **({"prepare": {"bins": BINS}} if bins else {}))


def pooled_auc(parties: Sequence[vfl.Party], job: vfl.Job) -> float:
    """Return the held-out AUC of scikit-learn's logistic regression on all columns, prepared in the same way."""
    if job.prepare.bins is not None:
        rows = {"test_fraction": job.test_fraction, "split": job.split}
        job = vfl.Job(
            model=vfl.Logistic(), protocol="open", accepts=["columns"], prepare={"woe": {"bins": BINS}}, **rows
        )
    _, prepared = with_prepared_tables(job, parties)
    y, schedule = prepared[0].y, job.schedule(prepared[0].register)
    assert y is not None
    X = np.hstack([party.X for party in prepared])
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X[schedule.train], y[schedule.train])
    return float(roc_auc_score(y[schedule.test], model.decision_function(X[schedule.test])))


def measured(name: str, folder: Path, split: int, *, bins: bool) -> dict[str, Any]:
    """Train the job on one table and split, and describe it next to the pooled model."""
    parties = TABLES[name](folder)
    job = alone(split, bins=bins)
    start = time.process_time()
    run = vfl.simulate(job, parties)
    seconds = time.process_time() - start
    auc, reference = run.metrics["auc"], pooled_auc(parties, job)
    prepared = prepare_parties(job, parties)
    sizes = {
        "rows": len(job.schedule(prepared[0].register).train),
        "columns": sum(party.X.shape[1] for party in prepared),
    }
    return {
        "table": name, "bins": bins, "split": split, **sizes,
        "auc": auc, "pooled": reference, "difference": auc - reference, "cpu_seconds": seconds,
    }  # fmt: skip


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of all rows as Markdown, with the smallest and the mean difference."""
    lines = [
        "| table | training rows | columns | AUC less that of the pooled model, a split each | AUC |",
        "|---|--:|--:|---|---|",
    ]
    for name in dict.fromkeys(row["table"] for row in rows):
        selected = [row for row in rows if row["table"] == name]
        apart = ", ".join(f"{row['difference']:+.4f}" for row in selected)
        aucs = ", ".join(f"{row['auc']:.4f}" for row in selected)
        lines.append(f"| {name} | {selected[0]['rows']:,} | {selected[0]['columns']} | {apart} | {aucs} |")
    differences = [row["difference"] for row in rows]
    return "\n".join([*lines, "", f"least {min(differences):+.4f}, mean {np.mean(differences):+.5f}"])


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tables", nargs="+", default=SIX, choices=TABLES)
    parser.add_argument("--splits", nargs="+", type=int, default=SPLITS)
    parser.add_argument("--bins", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", DataNotice)
    rows = []
    for name in arguments.tables:
        for split in arguments.splits:
            rows.append(measured(name, arguments.data, split, bins=arguments.bins))
            print(json.dumps(rows[-1]), flush=True)
    print(page(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

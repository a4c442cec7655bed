"""The duration of the job that names only its model, from a fresh process, in wall-clock and processor seconds.

    python -m benchmarks.first_speed --data ../shared/data [--json FILE]

The output has one row for default_credit (22,500 training rows of 23 columns) and one for 200,000 generated training
rows of 60 columns. Wall-clock times are meaningful only on an idle machine; *wanted* is their limit on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import securevfl as vfl
from benchmarks.real_tables import TABLES

ROWS, COLUMNS = 266_667, 60  # a quarter of them is held out
WANTED = {"default_credit": 8.0, "made up": 60.0}  # seconds


def made_up() -> list[vfl.Party]:
    """Return two parties with half of the columns each; the label depends on some of them."""
    draw = np.random.default_rng(0)
    X = draw.normal(size=(ROWS, COLUMNS))
    y = (X[:, ::4].sum(axis=1) + 3 * draw.logistic(size=ROWS) > 0).astype(int)
    half = COLUMNS // 2
    return [vfl.Party("bank", X[:, :half], y, aligned=True), vfl.Party("shop", X[:, half:], aligned=True)]


def once(name: str, folder: Path) -> dict[str, Any]:
    """Train the job on one table in this process."""
    parties = made_up() if name == "made up" else TABLES[name](folder)
    used, started = time.process_time(), time.perf_counter()
    run = vfl.simulate(vfl.Job(model=vfl.Logistic()), parties)
    return {
        "table": name,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - used,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "wanted": WANTED[name],
        "load": os.getloadavg()[0],
        "auc": run.metrics["auc"],
    }


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--once", choices=WANTED, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(once(arguments.once, arguments.data)))
        return
    rows = []
    print(f"{'table':<16}{'seconds':>9}{'wanted':>8}{'cpu s':>8}{'MB':>7}{'load':>6}{'auc':>8}")
    for name in WANTED:
        words = [sys.executable, "-m", "benchmarks.first_speed", "--data", str(arguments.data), "--once", name]
        done = subprocess.run(words, capture_output=True, text=True, check=True)  # noqa: S603
        row = json.loads(done.stdout)
        rows.append(row)
        print(
            f"{name:<16}{row['seconds']:>9.1f}{row['wanted']:>8.0f}{row['cpu_seconds']:>8.1f}{row['megabytes']:>7.0f}"
            f"{row['load']:>6.1f}{row['auc']:>8.4f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

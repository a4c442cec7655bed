"""Memory and processor time of `securevfl train`, measured in a separate process and as `explain` estimates them.

    python -m benchmarks.estimates --rows 100000 --columns 60
    python -m benchmarks.estimates --rows 100000 --columns 60 --texts 32

Tables are read from CSV, from Parquet, and as frames of pandas. The peak of the resident memory and the processor time
are those that the operating system counts for the process, so other work on the machine changes them little.

The constants of `securevfl.families.shares.shares_estimates` are fitted to 20,000 to 300,000 rows of 60 columns, to CSV
files whose 60 columns become 476 prepared columns (--texts 32), and to the memory of 1,000,000 rows of 490 columns.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

KINDS = "csv", "parquet", "frame"
EPOCHS = 5
LEVELS = 15
"""Number of different texts of a column of texts, which becomes about as many prepared columns."""
FRAMES = """
import pandas as pd
import securevfl as vfl

tables = [pd.read_parquet(f"{name}.parquet").set_index("id") for name in ("bank", "shop")]
parties = [vfl.Party("bank", tables[0].drop(columns="y"), tables[0]["y"]), vfl.Party("shop", tables[1])]
del tables
vfl.simulate(vfl.Job.load("job.toml"), vfl.align(parties))
"""
MEASURED = """
import resource, subprocess, sys

subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime)
"""
ESTIMATE = re.compile(r"\(train\) about ([\d.]+) (GB|MB) of memory and ([\d,]+) s")


class Usage(NamedTuple):
    """Bytes of memory and seconds of processor time of a process."""

    memory: float
    seconds: float


def write_tables(folder: Path, rows: int, columns: int, texts: int) -> None:
    """Write the tables of two parties as CSV and Parquet, and a job.

    Args:
        folder: the folder to write to.
        rows: the number of rows.
        columns: the number of columns of both parties together.
        texts: how many of these columns contain texts.
    """
    draw = np.random.default_rng(1)
    X = draw.normal(size=(rows, columns)).round(4)
    y = (X[:, :3].sum(axis=1) + X[:, -3:].sum(axis=1) + draw.normal(size=rows) > 0).astype(int)
    ids = pa.array([f"c{row:07d}" for row in range(rows)])
    half = columns // 2
    for name, start, stop, labels in (("bank", 0, half, {"y": pa.array(y)}), ("shop", half, columns, {})):
        table = pa.table(
            {"id": ids}
            | labels
            | {f"{name}{j}": _as_texts(X[:, j]) if j - start < texts // 2 else X[:, j] for j in range(start, stop)}
        )
        pyarrow.csv.write_csv(table, folder / f"{name}.csv")
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
    (folder / "job.toml").write_text(f'model = "logistic"\nepochs = {EPOCHS}\n')


def _as_texts(values: np.ndarray) -> pa.Array:
    """Return a column of numbers (n,) as texts with LEVELS different values, equally frequent."""
    levels = np.searchsorted(np.quantile(values, np.arange(1, LEVELS) / LEVELS), values)
    return pa.array([f"level {level}" for level in levels.tolist()])


def _command(kind: str, verb: str) -> list[str]:
    if kind == "frame" and verb == "train":
        return [sys.executable, "-W", "ignore", "-c", FRAMES]
    suffix = "parquet" if kind == "frame" else kind
    details = ["--details"] if verb == "explain" else []
    files = [f"--data={name}={name}.{suffix}" for name in ("bank", "shop")]
    return [sys.executable, "-W", "ignore", "-m", "securevfl.cli.main", verb, "job.toml", *details, *files]


def _run(folder: Path, command: list[str]) -> str:
    where = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(command, cwd=folder, env=where, check=True, capture_output=True, text=True).stdout  # noqa: S603


def measure(folder: Path, kind: str) -> Usage:
    """Return the memory and processor time of a training on these tables."""
    memory, seconds = _run(folder, [sys.executable, "-c", MEASURED, *_command(kind, "train")]).split()
    return Usage(float(memory), float(seconds))


def estimate(folder: Path, kind: str) -> Usage:
    """Return what `explain` states for the same training."""
    match = ESTIMATE.search(" ".join(_run(folder, _command(kind, "explain")).split()))
    assert match is not None, "the consent sheet has no estimate"
    return Usage(float(match[1]) * {"GB": 1e9, "MB": 1e6}[match[2]], float(match[3].replace(",", "")))


def main() -> None:
    """Print a line for each kind of table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=60)
    parser.add_argument("--texts", type=int, default=0, help="How many of the columns contain texts.")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tables(folder, arguments.rows, arguments.columns, arguments.texts)
        for kind in arguments.kinds:
            measured, estimated = measure(folder, kind), estimate(folder, kind)
            print(
                f"{kind:8} memory {measured.memory / 1e6:,.0f} MB, estimated {estimated.memory / 1e6:,.0f} MB "
                f"({estimated.memory / measured.memory - 1:+.0%}); processor time {measured.seconds:.1f} s, estimated "
                f"{estimated.seconds:.0f} s ({estimated.seconds / measured.seconds - 1:+.0%})"
            )


if __name__ == "__main__":
    main()

"""Memory and speed with tables larger than memory: two parties, a process each, over mutual TLS on this machine.

    python benchmarks/scale.py --rows 5000000 --columns 100 --json out/scale.json

Each party has a Parquet file (float32, the second one in another order of rows), stores it with `securevfl.data.store`
in the order of the job's batches, and trains by `securevfl.organisations.join` until the epoch or --seconds are over. A
finished epoch ends with the evaluation of all held-out rows. A finished model then predicts the whole files by the
command `predict`: the bank's file directly, the shop's by a copy in the bank's order. With --batch 0 it trains on all
rows at once, two rounds of BlockNewton, and reports the duration of each, the first one with everything before it.
There is one row for each step and party, and each step runs in a separate process: rows a second, and the largest
resident memory of the process, after imports and at its end. Files are created in a temporary folder and removed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import securevfl as vfl
from securevfl.bench.result_file import file_content
from securevfl.cli.main import app
from securevfl.data.row_order import write_rows
from securevfl.data.store import open_table, store_table
from securevfl.errors import TransportError
from securevfl.organisations.join import join
from securevfl.organisations.kit import init_certs, write_kit
from securevfl.transport.peers import Peers

PARTIES = ("bank", "shop")
ROWS_PER_GROUP = 250_000  # rows of Parquet written at a time
ROUNDS = 2  # training on all rows at once
MAX_WAIT_SECONDS = 1800.0  # seconds a party waits for the other


class TimeIsUp(Exception):
    """Raised to end a training when its time, --seconds, is over."""


def generate(folder: Path, rows: int, columns: int) -> None:
    """Write a Parquet file for each party, and the row order of the second one."""
    weights = np.random.default_rng(0).normal(size=columns, scale=2 / columns**0.5).astype(np.float32)
    order = np.random.default_rng(1).permutation(rows)  # the id of each row of the second file
    ids = {"bank": np.arange(rows), "shop": order}
    names = [f"c{j}" for j in range(columns)]
    for place, name in enumerate(PARTIES):
        labels = [("y", pa.int8())] if name == "bank" else []
        schema = pa.schema([("id", pa.int64()), *labels, *((column, pa.float32()) for column in names)])
        generator = np.random.default_rng([2, place])
        with parquet.ParquetWriter(
            folder / f"{name}.parquet", schema, compression="NONE", use_dictionary=False
        ) as file:
            for start in range(0, rows, ROWS_PER_GROUP):
                X = generator.standard_normal((min(ROWS_PER_GROUP, rows - start), columns), dtype=np.float32)
                y = [(X @ weights + generator.logistic(size=len(X)) > 0).astype(np.int8)] if labels else []
                local = ids[name][start : start + ROWS_PER_GROUP]
                file.write_table(pa.table([local, *y, *np.ascontiguousarray(X.T)], schema=schema))
    np.save(folder / "bank.npy", np.arange(rows))
    np.save(folder / "shop.npy", np.argsort(order))


def job(residual: str, batch: int) -> vfl.Job:
    """Return the job of the measurement."""
    return vfl.Job(
        model=vfl.Logistic(l2=1e-4),
        optimizer=vfl.FedBCD(lr=0.1, local_steps=5) if batch else vfl.BlockNewton(),
        protocol=vfl.Protocol(residual=vfl.Ckks() if residual == "ckks" else "open"),
        batch_size=batch or "all",
        epochs=1 if batch else ROUNDS,
        test_fraction=0.1,
        accepts=["columns", "rank", "fresh_equations"],  # with few rows, the leak checks report these
    )


def megabytes() -> float:
    """Return the peak memory of this process. Linux only: getrusage would include the parent's memory at the fork."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return round(int(status["VmHWM"].split()[0]) / 1024, 1)


def store(folder: Path, name: str, batch: int) -> dict[str, Any]:
    """Store one party's table."""
    rows = np.load(folder / f"{name}.npy")
    started = time.perf_counter()
    store_table(name, folder / f"{name}.parquet", folder / f"{name}.table", rows=rows, job=job("open", batch))
    seconds = time.perf_counter() - started
    return {"seconds": round(seconds, 1), "rows_per_s": round(len(rows) / seconds)}


def train(folder: Path, name: str, residual: str, batch: int, seconds: float) -> dict[str, Any]:
    """Run one party's part of a training. Only the active party counts rounds."""
    times = [time.perf_counter()]

    def on_round(done: int, of: int) -> None:
        times.append(time.perf_counter())
        if times[-1] - times[1] > seconds and done < of:
            raise TimeIsUp

    results: dict[str, Any] = {"epoch": "not over"}
    try:
        party = open_table(name, folder / f"{name}.table")
        part = join(
            job(residual, batch),
            party,
            folder / f"kit-{name}" / "peers.toml",
            timeout=MAX_WAIT_SECONDS,
            save=folder / f"{name}.json",
            ledger=folder / f"{name}.ledger",
            on_round=on_round,
        )
        results = {"epoch": "over", "seconds": round(time.perf_counter() - times[0], 1)}
        results |= {"auc": round(part.metrics["auc"], 4)} if part.metrics else {}
    except TimeIsUp:
        pass
    except TransportError:
        if name == "bank":
            raise
    if not batch:
        results |= {"rounds_s": [round(after - before, 1) for before, after in pairwise(times)]}
    elif len(times) > 2:
        results |= {"rounds": len(times) - 1, "rows_per_s": round((len(times) - 2) * batch / (times[-1] - times[1]))}
    return results


def predict(folder: Path, name: str) -> dict[str, Any]:
    """Run one party's part of a prediction of its whole file."""
    data = folder / f"{name}.parquet"
    if name == "shop":
        write_rows(data, np.load(folder / "shop.npy"))
    started = time.perf_counter()
    kit = folder / f"kit-{name}"
    files = {"--data": data, "--peers": kit / "peers.toml", "--certs": kit}
    files |= {"--out": folder / "bank.csv"} if name == "bank" else {}  # only this party receives the scores
    options = [text for flag, path in files.items() for text in (flag, str(path))]
    options += ["--ledger", str(folder / f"{name}.ledger"), "--timeout", str(MAX_WAIT_SECONDS)]
    app(["predict", str(folder / f"{name}.json"), *options], standalone_mode=False)
    seconds = time.perf_counter() - started
    rows = parquet.ParquetFile(data).metadata.num_rows
    return {"seconds": round(seconds, 1), "rows_per_s": round(rows / seconds)}


ROOT = Path(__file__).parents[1]  # where a process finds the module


def measure(folder: Path, step: str, head: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
    """Run one step at both parties concurrently and return their rows."""
    command = [sys.executable, "-m", "benchmarks.scale", "--play", step, "--folder", str(folder.resolve())]
    command += ["--batch", str(head["batch"]), "--seconds", str(seconds)]
    running = {
        name: subprocess.Popen([*command, "--party", name], stdout=subprocess.PIPE, text=True, cwd=ROOT)  # noqa: S603
        for name in PARTIES
    }
    results = []
    for name, process in running.items():
        text, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"{name} ended with {process.returncode}")
        results.append(head | {"step": step, "party": name} | json.loads(text.splitlines()[-1]))
        print(results[-1], flush=True)
    return results


def kits(folder: Path) -> None:
    """Create certificates and addresses of both parties."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        ports = one.getsockname()[1], other.getsockname()[1]
    address = {name: f"127.0.0.1:{port}" for name, port in zip(PARTIES, ports, strict=True)}
    peers = Peers(active="bank", passives=("shop",), address=address)
    init_certs(folder / "ca", peers)
    for name in PARTIES:
        write_kit(folder / f"kit-{name}", name, job("open", 256), peers, folder / "ca")


def main() -> None:
    """Run the benchmark from the command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=400_000)
    options.add_argument("--columns", type=int, default=50)
    options.add_argument("--batch", type=int, default=4096, help="rows a batch; 0 takes all at once, by BlockNewton")
    options.add_argument("--no-predict", action="store_true", help="ends with the training")
    options.add_argument("--seconds", type=float, default=150, help="of training, per protocol")
    options.add_argument("--residual", nargs="+", choices=("open", "ckks"), default=("open", "ckks"))
    options.add_argument("--json", type=Path, default=Path("out/scale.json"))
    options.add_argument("--folder", type=Path, help="where the temporary files go")
    options.add_argument("--play", help=argparse.SUPPRESS)
    options.add_argument("--party", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.play:
        base = megabytes()
        if arguments.play == "store":
            result = store(arguments.folder, arguments.party, arguments.batch)
        elif arguments.play == "predict":
            result = predict(arguments.folder, arguments.party)
        else:
            result = train(arguments.folder, arguments.party, arguments.play, arguments.batch, arguments.seconds)
        print(json.dumps(result | {"imports_mb": base, "peak_mb": megabytes()}))
        return
    needed = arguments.rows * arguments.columns * 4 * 6  # each party: Parquet, table, and a copy while it is written
    if shutil.disk_usage(arguments.folder or tempfile.gettempdir()).free < 2 * needed:
        raise SystemExit(f"this needs {2 * needed >> 20} MB of free disk; choose another --folder")
    rows: list[dict[str, Any]] = []
    head = {"rows": arguments.rows, "columns": arguments.columns, "batch": arguments.batch}
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        generate(Path(name), arguments.rows, arguments.columns)
        for step in ("store", *arguments.residual, "predict"):
            if step == "predict" and arguments.no_predict:
                break
            if step == "predict" and not (Path(name) / "bank.json").exists():
                break
            kits(Path(name))
            rows += measure(Path(name), step, head, arguments.seconds)
            arguments.json.write_text(json.dumps(file_content("securevfl.bench.scale/1", rows), indent=1) + "\n")


if __name__ == "__main__":
    main()

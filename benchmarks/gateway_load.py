"""Load on the scoring service with a real HTTP client: answers per second, quantiles of their times, refusals.

    python -m benchmarks.gateway_load --rows 1000000 --requests 20000 --concurrent 100 --rtt-ms 20

Two parties train a model on secret shares and get a generated table of new rows each. `securevfl serve` and `securevfl
score --http` run as an operator runs them, on an artificially slow link (`benchmarks.delay`), with ledgers that are
flushed to disk before they count. Applications request one row at a time, many concurrently: some at a fixed rate, the
others as fast as answers arrive. Of a hundred rows, one was requested before and one is unknown to the other party. The
output also has threads and resident memory of both processes after the first tenth and at the end. Needs httpx.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
from pyarrow import parquet

import securevfl as vfl
from benchmarks.delay import SlowLine, free_port
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.limits import Limit
from securevfl.organisations.join import join
from securevfl.organisations.kit import init_certs, write_kit
from securevfl.transport.peers import Peers

TOKEN = "a token of the benchmark"  # noqa: S105
TRAINED, COLUMNS, FIRST = 4000, 10, 1_000_000  # rows and columns of the training; id of the first new row
NAMES = ("bank", "shop")


async def load(url: str, ids: Sequence[int], concurrent: int, rate: float = 0.0) -> dict[str, Any]:
    """Request each id alone, `concurrent` at a time, at most `rate` a second unless that is 0; return the figures."""
    seconds, states, left = list[float](), Counter[str](), iter(ids)
    headers = {"Authorization": f"Bearer {TOKEN}"}

    async def ask() -> None:
        # one client each: searching a pool of 100 connections takes longer than the gateway does
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120, verify=False) as client:  # noqa: S501
            for item in left:
                if rate:
                    await asyncio.sleep(max(0.0, start + next(turn) / rate - time.monotonic()))
                began = time.monotonic()
                answer = await client.post("/v1/scores", json={"rows": [{"id": item}]})
                seconds.append(time.monotonic() - began)
                ok = answer.status_code == 200
                states[answer.json()["scores"][0]["state"] if ok else f"HTTP {answer.status_code}"] += 1

    turn, start = count(), time.monotonic()
    await asyncio.gather(*(ask() for _ in range(concurrent)))
    full = time.monotonic() - start
    p50, p99 = np.quantile(seconds, [0.5, 0.99]) * 1e3
    figures = {"answers a second": round(len(seconds) / full, 1), "p50 ms": round(p50, 1), "p99 ms": round(p99, 1)}
    return {"requests": len(seconds), "concurrent": concurrent} | figures | {"states": dict(states)}


def table(name: str, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a party's columns (n, d) of rows with these ids, and their labels."""
    X = np.random.default_rng([int(ids[0]), NAMES.index(name)]).standard_normal((len(ids), COLUMNS))
    return X, (X[:, 0] + np.random.default_rng(int(ids[0])).standard_normal(len(ids)) > 0).astype(int)


def write(folder: Path, rows: int, slow: int, near: int) -> None:
    """Train in this process, and write each party's folder: certificates, model, ledger and table of new rows."""
    job = vfl.Job(model=vfl.Logistic())
    peers = Peers(active="bank", passives=("shop",), address={"shop": f"127.0.0.1:{near}"})
    init_certs(folder / "ca", peers)
    kits = {name: write_kit(folder / name, name, job, peers, folder / "ca") for name in NAMES}

    def train(name: str) -> None:
        X, y = table(name, np.arange(TRAINED))
        party = vfl.Party(name, X, y if name == "bank" else None, ids=np.arange(TRAINED))
        join(job, party, kits[name] / "peers.toml", save=kits[name] / "part.json", ledger=kits[name] / "ledger")

    threads = [threading.Thread(target=train, args=(name,)) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, kit in kits.items():
        ids = np.arange(FIRST, FIRST + rows)
        X, _ = table(name, ids)
        stored = (
            ids % 100 != 1 if name == "shop" else np.ones(rows, bool)
        )  # one of a hundred is unknown to the other party
        columns = {"id": ids[stored], **{f"x{j}": X[stored, j] for j in range(COLUMNS)}}
        parquet.write_table(pa.table(columns), kit / "rows.parquet")
    ledger = DisclosureLedger(kits["shop"] / "ledger", "shop")
    for kind in ("scores", "ids"):
        ledger.set_limit(kind, Limit(1 << 40))
    (kits["bank"] / "token").write_text(TOKEN)
    listed = (kits["bank"] / "peers.toml").read_text()
    (kits["bank"] / "peers.toml").write_text(listed.replace(f":{near}", f":{slow}"))


def started(folder: Path, name: str, command: str, *words: str) -> subprocess.Popen[bytes]:
    """Start a command of a party as its operator does."""
    kit = folder / name
    selected = [str(kit / "part.json"), "--data", str(kit / "rows.parquet"), "--peers", str(kit / "peers.toml")]
    line = [sys.executable, "-m", "securevfl.cli.main", command, *selected, "--ledger", str(kit / "ledger"), *words]
    return subprocess.Popen(line, stderr=(folder / f"{name}.log").open("wb"))  # noqa: S603


def carry(port: int, to: int, delay: float, rate: float) -> None:
    """Relay connections to a port over a slow link, until this process ends."""
    SlowLine(port, to, delay=delay, rate=rate)
    threading.Event().wait()


def memory_of(process: subprocess.Popen[bytes]) -> str:
    """Return the number of threads of a process and its resident memory."""
    status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    text = dict(line.split(":", 1) for line in status)
    return f"{text['Threads'].strip()} threads, {int(text['VmRSS'].split()[0]) >> 10} MB"


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the service under load; return the figures."""
    near, slow, port = free_port(), free_port(), free_port()
    write(folder, arguments.rows, slow, near)
    line = multiprocessing.get_context("spawn").Process(
        target=carry, args=(slow, near, arguments.rtt_ms / 2e3, arguments.mbps * 125_000), daemon=True
    )
    line.start()  # a separate process, so that it waits for no application
    words = ["--http", f"127.0.0.1:{port}", "--http-token", str(folder / "bank" / "token")]
    words += ["--sessions", str(arguments.sessions)]
    parties = {"shop": started(folder, "shop", "serve"), "bank": started(folder, "bank", "score", *words)}
    url, result = f"http://127.0.0.1:{port}", dict[str, Any]()
    try:
        wait_for(url, parties)
        fresh = np.random.default_rng(0).permutation(arguments.rows)[: arguments.requests] + FIRST
        before = fresh[: -(-arguments.requests // 100)]
        asyncio.run(load(url, before.tolist(), arguments.concurrent))  # rows that were requested before
        requested = np.random.default_rng(1).permutation(fresh).tolist()
        first = requested[: len(requested) // 10]
        result["warm"] = asyncio.run(load(url, first, arguments.concurrent))
        memory_before = {name: memory_of(process) for name, process in parties.items()}
        result["at rate"] = asyncio.run(
            load(url, requested[len(first) : 5 * len(first)], arguments.concurrent, arguments.rate)
        )
        result |= asyncio.run(load(url, requested[5 * len(first) :], arguments.concurrent))
        for name, process in parties.items():
            result[name] = f"{memory_before[name]}; at the end {memory_of(process)}"
    finally:
        for process in parties.values():
            process.terminate()
        for process in parties.values():
            process.wait(60)
        line.terminate()
    return result


def wait_for(url: str, parties: dict[str, subprocess.Popen[bytes]]) -> None:
    """Wait until the gateway has connected to the serving party."""
    for _ in range(6000):
        if any(party.poll() is not None for party in parties.values()):
            raise SystemExit("a party has ended; see its log")
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise SystemExit("the gateway has not met the party that serves")


def main() -> None:
    """Print the figures of one load as JSON."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=100_000, help="of the tables that are served")
    options.add_argument("--requests", type=int, default=5000)
    options.add_argument("--concurrent", type=int, default=100, help="number of requests under way at a time")
    options.add_argument("--rate", type=float, default=120.0, help="requests a second of a part of them")
    options.add_argument("--sessions", type=int, default=4)
    options.add_argument("--rtt-ms", type=float, default=20.0)
    options.add_argument("--mbps", type=float, default=1000.0)
    options.add_argument("--folder", type=Path, help="where files go, and logs stay; a temporary one")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        print(json.dumps(measure(folder, arguments), indent=1))


if __name__ == "__main__":
    main()

"""The default mode on large tables: one process for each party over mutual TLS on this machine, with a Parquet file.

    python -m benchmarks.many_rows --rows 5000000 --columns 50 --json out/many_rows.json
    python -m benchmarks.many_rows --rows 1000000 --columns 20 --parties 3 --classes 4
    python -m benchmarks.many_rows --rows 1000000 --columns 20 --trees
    python -m benchmarks.many_rows --rows 2000000 --columns 50 --workers 2
    python -m benchmarks.many_rows --rows 2000000 --columns 50 --workers 16 --virtual

Tables are generated, the same in every call: columns with a common factor, every third skewed and every fifth binary,
and labels by a logistic model of all columns. A party does what `securevfl join` does: it reads its file in the order
of an alignment (a copy on disk if it is large), and trains with precomputed random numbers on disk (the offline phase),
a ledger and checkpoints. A tenth of the rows is held out. The output for each party is the seconds from its start,
processor seconds, the largest resident memory, bytes sent, and the AUC. If the parties' shares of the weights can be
added up, the AUC of all held-out rows follows, next to that of the pooled optimum, which Newton's method finds in
floating point.

With --workers each party's rows are at processes (workers) of its Dask cluster. Then the output also has the processor
seconds of all workers and of the busiest, the memory of the largest, and the bytes that the workers sent after they had
loaded their rows; these contain no row (`tests/families/test_shares_at_workers.py`). With --virtual all parties train
in one process, and times are computed for a link of 300 Mbps and 20 ms; the slowest worker of a party counts. The
output for each stage is the seconds of cryptography (including workers), of other work, and of the link.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

import securevfl as vfl
from benchmarks.scale import megabytes
from securevfl.base.arrays import Floats
from securevfl.base.machine import use_one_heap
from securevfl.bench.result_file import file_content
from securevfl.crypto.share_ring import ShareRing
from securevfl.data.id_keys import id_keys
from securevfl.data.load import delete_table_copy, read_aligned
from securevfl.data.read_options import ReadOptions
from securevfl.data.readers import read_ids
from securevfl.data.register import Register
from securevfl.data.row_order import read_rows, write_rows
from securevfl.data.store import store_table
from securevfl.families.shares.shares_facts import SharesFacts
from securevfl.families.shares.shares_job import SharesJob
from securevfl.models.metrics import area_under_curve
from securevfl.organisations.join import join
from securevfl.organisations.kit import init_certs, write_kit
from securevfl.protocols.shares.shares_params import ROWS_PER_BLOCK
from securevfl.runtime.costs import Kind, Stage
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.model_part import ModelPart
from securevfl.transport.peers import Peers

ROWS_PER_GROUP = 1 << 17  # rows of Parquet written and read at a time
PASSES = 8  # of Newton's method
MAX_WAIT_SECONDS = 3600.0  # seconds a party waits for the others
NAMES = ("bank", "shop", "telco", "grid", "post", "club", "rail", "lab")


def columns(folder: Path, name: str, d: int) -> Iterator[tuple[Floats, Any]]:
    """Read a party's columns (m, d) and labels, some rows at a time; None in place of labels for other parties."""
    with parquet.ParquetFile(folder / f"{name}.parquet") as file:
        for group in range(file.num_row_groups):
            read = file.read_row_group(group)
            y = read["y"].to_numpy() if "y" in read.column_names else None
            yield np.column_stack([read[f"c{j}"].to_numpy() for j in range(d)]).astype(np.float64), y


def generate(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Write a Parquet file for each party, and the row order of an alignment."""
    d, parties, outputs = arguments.columns, arguments.parties, max(1, arguments.classes)
    drawn = np.random.default_rng(0)
    weights = drawn.normal(size=(parties, d, outputs), scale=1.2 / (parties * d) ** 0.5).astype(np.float32)
    names, writers = [f"c{j}" for j in range(d)], list[parquet.ParquetWriter]()
    schemas = [
        pa.schema([("id", pa.int64()), *[("y", pa.int8())] * (not k), *((name, pa.float32()) for name in names)])
        for k in range(parties)
    ]
    for name, schema in zip(NAMES, schemas, strict=False):
        file = folder / f"{name}.parquet"
        writers.append(parquet.ParquetWriter(file, schema, compression="NONE", use_dictionary=False))
    for start in range(0, arguments.rows, ROWS_PER_GROUP):
        n = min(ROWS_PER_GROUP, arguments.rows - start)
        drawn = np.random.default_rng([1, start])
        common, f, tables = drawn.standard_normal((n, 1), np.float32), np.zeros((n, outputs), np.float32), []
        for weight in weights:
            X = drawn.standard_normal((n, d), np.float32) + 0.5 * common
            f += X @ weight
            X[:, ::3] = np.exp(X[:, ::3] / 2)
            X[:, ::5] = X[:, ::5] > 1
            tables.append(X)
        noise = drawn.gumbel(size=f.shape) if arguments.classes else drawn.logistic(size=f.shape)
        y = (f + noise).argmax(axis=1) if arguments.classes else (f + noise)[:, 0] > 1
        ids = np.arange(start, start + n)
        for k, X in enumerate(tables):
            labels = [pa.array(y.astype(np.int8))] * (not k)
            writers[k].write_table(pa.table([ids, *labels, *np.ascontiguousarray(X.T)], schema=schemas[k]))
    for name, writer in zip(NAMES, writers, strict=False):
        writer.close()
        write_rows(folder / f"{name}.parquet", np.arange(arguments.rows))
    return {"rows": arguments.rows}


def job(arguments: argparse.Namespace) -> vfl.Job:
    """Return the default job with a tenth of the rows held out, and with joint scores of several classes."""
    loss = "one_vs_rest" if arguments.classes else "logistic"
    model = {"name": "trees", "loss": loss} if arguments.trees else {"name": loss}
    lines = {"model": model, "test_fraction": 0.1, "accepts": ["scores"] * bool(arguments.classes)}
    shares = {"protocol": {"shares": {"chunk": arguments.chunk}}} if arguments.chunk else {}
    return vfl.Job.from_dict(lines | shares)


def train(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one party, as `securevfl join` does."""
    use_one_heap()
    name, data, began = arguments.play, folder / f"{arguments.play}.parquet", time.perf_counter()
    spent = time.process_time()
    local, client = (
        placed(name, data, arguments)
        if arguments.workers
        else (read_aligned(name, data, job(arguments), ReadOptions(id_column="id", label_column="y")), None)
    )
    read, base = time.perf_counter() - began, megabytes()
    part = join(
        job(arguments),
        local,
        folder / f"kit-{name}" / "peers.toml",
        timeout=MAX_WAIT_SECONDS,
        save=folder / f"{name}.json",
        ledger=folder / f"{name}.ledger",
        preprocessing=folder / f"{name}.ahead",
        checkpoints=Checkpoints(folder / f"{name}.states", name, every=10),
    )
    if client is None:
        delete_table_copy(local, data)
    results = {"seconds": time.perf_counter() - began, "of these reading": read, "cpu_s": time.process_time() - spent}
    results |= {"reading_mb": base, "peak_mb": megabytes(), "sent_mb": part.counters.bytes_sent() / 1e6}
    results |= {"rounds": part.rounds, **part.metrics} | at_workers(client)
    return {key: round(value, 5) for key, value in results.items()}


def stored(name: str, data: Path, arguments: argparse.Namespace) -> vfl.Party:
    """Return a party that reads from its stored table."""
    return store_table(
        name, data, data.with_suffix(".table"), rows=read_rows(data, of=arguments.rows), job=job(arguments)
    )


def placed(name: str, data: Path, arguments: argparse.Namespace) -> tuple[vfl.Party, Any]:
    """Return a party whose rows are at its workers, and the client of these."""
    from distributed import Client, LocalCluster

    from securevfl.data.partitions import partition_party
    from securevfl.runtime.dask_backend import DaskBackend

    stored(name, data, arguments)
    cluster = LocalCluster(
        n_workers=arguments.workers,
        threads_per_worker=1,
        dashboard_address=None,
        local_directory=str(data.parent / f"{name}.workers"),
        memory_limit=0,
    )
    client = Client(cluster)
    return partition_party(name, data.with_suffix(".table"), DaskBackend(client), rows=ROWS_PER_BLOCK), client


def at_workers(client: Any) -> dict[str, float]:
    """Stop the workers of a client, and return their time and sent bytes; empty without a client."""
    if client is None:
        return {}
    spent, sent = (list(client.run(item).values()) for item in (time.process_time, outgoing))
    largest = max(client.run(megabytes).values())
    client.shutdown()
    return {"workers_cpu_s": sum(spent), "busiest_cpu_s": max(spent), "worker_mb": largest, "left_mb": sum(sent) / 1e6}


def outgoing(dask_worker: Any) -> int:
    """Return the bytes that have left a worker."""
    return int(dask_worker.transfer_outgoing_bytes_total)


def virtual(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train all parties in this process, in virtual time."""
    parties, clients = list[vfl.Party](), list[Any]()
    for name in NAMES[: arguments.parties]:
        data = folder / f"{name}.parquet"
        if arguments.workers:
            party, client = placed(name, data, arguments)
            clients.append(client)
        else:
            party = stored(name, data, arguments)
        parties.append(party)
    run = vfl.simulate(job(arguments), parties)
    results: dict[str, Any] = {"virtual_s": float(run.costs.path.sum()), "peak_mb": megabytes(), **run.metrics}
    for stage in Stage:
        spent = run.parts[NAMES[0]].path[stage].tolist()
        results |= {f"{stage.name.lower()}_{kind.name.lower()}_s": s for kind, s in zip(Kind, spent, strict=True) if s}
    for name, part in run.parts.items():
        for op in ("encrypt", "encode", "compute", "decrypt", "transfer", "elsewhere"):
            results[f"{name}_{op}_s"] = sum(tally.amount for (_, of), tally in part.counters.ops.items() if of == op)
    for name, client in zip(NAMES, clients, strict=False):
        results |= {f"{name}_{key}": value for key, value in at_workers(client).items()}
    return {key: round(value, 5) for key, value in results.items()}


def measure(folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Train with one process for each party; return a row for each."""
    names = NAMES[: arguments.parties]
    peers = Peers(active=names[0], passives=names[1:], address=addresses(names))
    init_certs(folder / "ca", peers)
    for name in names:
        write_kit(folder / f"kit-{name}", name, job(arguments), peers, folder / "ca")
    running = {name: started(folder, name) for name in names}
    return [{"party": name} | figures(name, process) for name, process in running.items()]


ROOT = Path(__file__).parents[1]  # where a process finds the module


def started(folder: Path, what: str) -> subprocess.Popen[str]:
    """Start a separate process for a party, or for another step."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.many_rows",
        *sys.argv[1:],
        "--play",
        what,
        "--folder",
        str(folder.resolve()),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)  # noqa: S603


def figures(what: str, process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a process, and return and print its figures."""
    text, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{what} ended with {process.returncode}")
    result: dict[str, Any] = json.loads(text.splitlines()[-1])
    print(what, result, flush=True)
    return result


def addresses(names: Sequence[str]) -> dict[str, str]:
    """Return an address on this machine for each party."""
    with ExitStack() as held_out:
        sockets = [held_out.enter_context(socket.socket()) for _ in names]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return {name: f"127.0.0.1:{item.getsockname()[1]}" for name, item in zip(names, sockets, strict=True)}


def compare(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the AUC of all held-out rows by the trained weights and by the pooled optimum."""
    ids = read_ids(folder / "bank.parquet")
    held_out = job(arguments).schedule(Register.of_ids(id_keys("bank", [ids]))).test
    trains = np.ones(len(ids), bool)
    trains[held_out] = False
    f, y, best = opened(folder, arguments), labels(folder), pooled(folder, arguments, trains)
    trained, optimum = (area_under_curve(y[held_out] == 1, item[held_out]) for item in (f, best))
    return {"auc": round(trained, 5), "pooled_auc": round(optimum, 5), "lost": round(optimum - trained, 5)}


def opened(folder: Path, arguments: argparse.Namespace) -> Floats:
    """Return f of all rows by the sum of both parts' weights."""
    names = NAMES[: arguments.parties]
    parts = {name: ModelPart.load(folder / f"{name}.json") for name in names}
    weights = trained_weights(job(arguments), parts)
    total = np.zeros(arguments.rows)
    for name, part in parts.items():
        start = 0
        for X, _ in columns(folder, name, arguments.columns):
            total[start : start + len(X)] += part.scaling(X) @ weights[name][: arguments.columns, 0]
            start += len(X)
    return total


def trained_weights(job: vfl.Job, parts: Mapping[str, ModelPart]) -> dict[str, Floats]:
    """Return the weights (d, c) of each party's columns, from all parties' shares; the leading party is first.

    Args:
        job: the job of the training.
        parts: the parts of the model by party.

    Returns:
        The weights by party; those of the leading party have one more row, the intercept.
    """
    weights = {}
    for name, part in parts.items():
        sizes, iterations = part.state["sizes"], part.state["visits"]
        plan = SharesFacts.restore(cast(SharesJob, job), sizes, len(parts)).plan
        rule = plan.rule.with_intercept() if part.leads else plan.rule
        shares = [part.state["own"], *(item.state["others"][name] for item in parts.values() if item is not part)]
        words = np.stack([rule.result(share, iterations) for share in shares]).sum(axis=0)
        weights[name] = plan.numbers.decode_weights(ShareRing(plan.numbers.bits).reduce(words))
    return weights


def labels(folder: Path) -> Floats:
    """Return the labels of all rows."""
    y: Floats = parquet.read_table(folder / "bank.parquet", columns=["y"])["y"].to_numpy()
    return y


def pooled(folder: Path, arguments: argparse.Namespace, trains: NDArray[np.bool_]) -> Floats:
    """Return f of all rows by the optimum of the pooled training rows, found by Newton's method."""
    from scipy.special import expit  # not in the measured processes

    names = NAMES[: arguments.parties]
    theta = np.zeros(arguments.columns * arguments.parties + 1)

    def pieces() -> Iterator[tuple[Floats, Any, NDArray[np.bool_]]]:
        start = 0
        for read in zip(*(columns(folder, name, arguments.columns) for name in names), strict=True):
            X = np.column_stack([*(X for X, _ in read), np.ones(len(read[0][0]))])
            yield X, read[0][1], trains[start : start + len(X)]
            start += len(X)

    for _ in range(PASSES):
        gradient, H = np.zeros(len(theta)), 1e-9 * np.eye(len(theta))
        for X, y, train in pieces():
            p = expit(X @ theta)
            gradient += X.T @ ((p - y) * train)
            H += X.T @ (X * (p * (1 - p) * train)[:, None])
        theta -= (step := np.linalg.solve(H, gradient))
        if np.abs(step).max() < 1e-4:
            break
    return np.concatenate([X @ theta for X, _, _ in pieces()])


def main() -> None:
    """Print and write the figures of one training."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=300_000)
    options.add_argument("--columns", type=int, default=50, help="of each party")
    options.add_argument("--parties", type=int, default=2)
    options.add_argument("--classes", type=int, default=0, help="classes, one against the rest; two by one output if 0")
    options.add_argument("--trees", action="store_true", help="train the default job of trees")
    options.add_argument("--workers", type=int, default=0, help="processes that hold each party's rows")
    options.add_argument("--virtual", action="store_true", help="all parties in one process, in virtual time")
    options.add_argument(
        "--chunk", type=int, help="iterations of one chunk of the offline phase (protocol.shares.chunk)"
    )
    options.add_argument("--json", type=Path, default=Path("out/many_rows.json"))
    options.add_argument("--folder", type=Path, help="where the tables lie, and stay for another run; a temporary one")
    options.add_argument("--play", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.play:
        plays = {"generate": generate, "compare": compare, "virtual": virtual}
        print(json.dumps(plays.get(arguments.play, train)(arguments.folder, arguments)))
        return
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        needed = arguments.rows * (
            arguments.columns * arguments.parties * 24 + 4000
        )  # table, copy, integers, and offline phase
        if shutil.disk_usage(folder).free < needed:
            raise SystemExit(f"this needs {needed >> 20} MB of free disk; choose another --folder")
        if not (folder / "bank.parquet").exists():
            figures("generate", started(folder, "generate"))
        rows = [figures("virtual", started(folder, "virtual"))] if arguments.virtual else measure(folder, arguments)
        if not (arguments.trees or arguments.classes or arguments.virtual):
            rows.append(figures("compare", started(folder, "compare")))
    arguments.json.write_text(json.dumps(file_content("securevfl.bench.many_rows/1", rows), indent=1) + "\n")


if __name__ == "__main__":
    main()

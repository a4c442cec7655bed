"""Training on all rows at once, of a table with the shape of a published benchmark: 100,000 x (30 + 300).

    python benchmarks/full_batch.py --json out/full_batch.json
    python benchmarks/full_batch.py --workers 2              # the shop's rows at two processes of a Dask cluster

The job trains by BlockNewton under CKKS on a generated table, with a quarter of the rows held out. Times are computed
for a link of 300 Mbps and 20 ms (virtual time). Rounds count until the held-out AUC stays within 0.001 of that of the
optimum, which Newton's method finds on the pooled columns. Seconds count until the same round, including preparation,
in total and by kind of work. The distance from the optimal loss is a separate benchmark (`python -m benchmarks
rounds`). Memory is that of the process with both parties, and of the largest worker.
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import securevfl as vfl
from securevfl.bench.result_file import file_content
from securevfl.data.partitions import partition_party
from securevfl.data.store import store_table
from securevfl.models.metrics import evaluate
from securevfl.runtime.costs import Kind, Stage

L2 = 1e-3
NEAR = 1e-3  # of the AUC


def megabytes() -> float:
    """Return the largest resident memory of this process so far. Linux only."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return round(int(status["VmHWM"].split()[0]) / 1024, 1)


def drawn(rows: int, count: int, others: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return correlated columns X (rows, columns of both parties), and labels that depend on them."""
    generator = np.random.default_rng(0)
    X = generator.standard_normal((rows, count + others))
    X[:, 1:] += 0.5 * X[:, :-1]
    weights = generator.normal(size=count + others, scale=2 / (count + others) ** 0.5)
    return X, (X @ weights + generator.logistic(size=rows) > 0).astype(np.int8)


def optimum(X: np.ndarray[Any, Any], y: np.ndarray[Any, Any], schedule: Any) -> float:
    """Return the held-out AUC of the minimum on the pooled columns, by Newton's method."""
    train, test = schedule.train, schedule.test
    mean, deviation = X[train].mean(axis=0), X[train].std(axis=0)
    Z = np.column_stack([(X[train] - mean) / deviation, np.ones(len(train))])
    signs, theta, decay = 2.0 * y[train] - 1, np.zeros(Z.shape[1]), np.full(Z.shape[1], L2)
    decay[-1] = 0
    for _ in range(8):
        p = 1 / (1 + np.exp(signs * (Z @ theta)))
        gradient = -Z.T @ (signs * p) / len(train) + decay * theta
        hessian = (Z * (p * (1 - p))[:, None]).T @ Z / len(train) + np.diag(decay)
        theta -= np.linalg.solve(hessian, gradient)
    f = ((X[test] - mean) / deviation) @ theta[:-1] + theta[-1]
    return float(evaluate(vfl.Logistic().loss, f[:, None], y[test], np.array([0, 1]))["auc"])


def at_workers(shop: vfl.Party, workers: int, stack: ExitStack) -> tuple[vfl.Party, Any]:
    """Return the shop with its rows at a number of processes, and the client of these."""
    from distributed import Client, LocalCluster

    folder = Path(stack.enter_context(TemporaryDirectory()))
    columns = {name: shop.X[:, j].astype(np.float32) for j, name in enumerate(shop.columns)}
    parquet.write_table(pa.table({"id": np.arange(len(shop)), **columns}), folder / "shop.parquet")
    store_table("shop", folder / "shop.parquet", folder / "shop.table")
    cluster = LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address=None, local_directory=str(folder), memory_limit=0
    )
    client = stack.enter_context(Client(stack.enter_context(cluster)))
    from securevfl.runtime.dask_backend import DaskBackend

    return partition_party("shop", folder / "shop.table", DaskBackend(client)), client


def main() -> None:
    """Run the benchmark from the command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=100_000)
    options.add_argument("--columns", type=int, nargs=2, default=(30, 300), help="of the bank, of the shop")
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--workers", type=int, default=0, help="processes that hold the shop's rows")
    options.add_argument("--json", type=Path, default=Path("out/full_batch.json"))
    arguments = options.parse_args()
    local, others = arguments.columns
    job = vfl.Job(
        model=vfl.Logistic(l2=L2),
        optimizer=vfl.BlockNewton(),
        protocol=vfl.Protocol(residual=vfl.Ckks()),
        batch_size="all",
        epochs=arguments.rounds,
        test_fraction=0.25,
        evaluate_every=1,
        accepts=["columns"],
    )
    X, y = drawn(arguments.rows, local, others)
    with ExitStack() as stack:
        bank = vfl.Party("bank", X[:, :local].copy(), y, ids=np.arange(arguments.rows))
        shop = vfl.Party("shop", X[:, local:].copy(), ids=np.arange(arguments.rows))
        best = optimum(X, y, job.schedule(bank.register))
        del X
        client = None
        if arguments.workers:
            shop, client = at_workers(shop, arguments.workers, stack)
        before = megabytes()
        run = vfl.simulate(job, [bank, shop])
        held_out = max(client.run(megabytes).values()) if client is not None else 0.0
    away = [abs(record["auc"] - best) > NEAR for record in run.history]
    near = max((k for k, far in enumerate(away) if far), default=-1) + 1
    met = near < len(away)
    if not met:
        print(f"AUC {best:.4f} was to be met, {run.history[-1]['auc']:.4f} was; more --rounds may do")
    last = run.history[near if met else -1]
    path = run.parts["bank"].path
    columns = {"encrypt_s": Kind.ENCRYPTION, "local_s": Kind.LOCAL, "network_s": Kind.COMMUNICATION}
    kinds = {name: round(float(path[Stage.TRAIN, kind]), 2) for name, kind in columns.items()}
    row = {
        "rows": arguments.rows,
        "columns": [local, others],
        "workers": arguments.workers,
        "auc": round(last["auc"], 5),
        "auc_pooled": round(best, 5),
        "rounds": near + 1 if met else None,
        "seconds": round(last["seconds"], 2),
        "first_round_s": round(run.history[0]["seconds"], 2),
        "all_rounds": len(run.history),
        **kinds,
        "before_mb": before,
        "peak_mb": megabytes(),
        "worker_mb": held_out,
        "shop_ops": {op: round(tally.amount, 2) for (_, op), tally in run.parts["shop"].counters.ops.items()},
    }
    print(json.dumps(row, indent=1))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(file_content("securevfl.bench.full_batch/1", [row]), indent=1) + "\n")


if __name__ == "__main__":
    main()

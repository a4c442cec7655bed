"""One sealed gradient of a two-layer network: seconds of encryption and of its Jacobian, and memory; or one epoch.

    python benchmarks/neural.py --rows 256 --columns 57 --hidden 25
    python benchmarks/neural.py --epoch --rows 100000 --columns 300 --own 30 --hidden 4 --batch 10000

A step is the work of a passive party and the key holder for one local step on CKKS. The key holder encrypts g, the
derivatives of the loss by the network's outputs. The passive party multiplies it by its Jacobian, block of rows by
block of rows, and blinds the product with random numbers. The key holder decrypts it, and the passive party subtracts
the random numbers. Seconds are processor time of one core. The Jacobian is computed while the product reads it, so it
is timed separately and subtracted.
"""

from __future__ import annotations

import argparse
import resource
import time
from functools import partial

import numpy as np
import torch
from torch import nn

import securevfl as vfl
from securevfl.base.chunked_matrix import ChunkedMatrix
from securevfl.crypto.scheme import OpeningShape
from securevfl.models.torch_block import LazyJacobian, TorchBlock
from securevfl.protocols.residuals.sealed_residual import product_of
from securevfl.runtime.costs import Kind
from securevfl.training.text_table import format_table


def step(part: TorchBlock, rows: int, columns: int) -> dict[str, str | int | float]:
    """Time one step."""
    generator = np.random.default_rng(0)
    X, g = generator.normal(size=(rows, columns)), generator.uniform(-1, 1, size=(rows, 1))
    scheme = vfl.Ckks().scheme()
    holder = scheme.keygen(columns=part.parameters)
    evaluator = scheme.evaluator(holder.public)
    J = LazyJacobian(part, X, 1)
    start = time.process_time()
    prepared = evaluator.prepare(ChunkedMatrix.local(J), max_bytes=0)
    product = product_of(evaluator, prepared, (piece for piece, _ in holder.encrypt_pieces(g, bound=1.0)))
    blinded, mask = evaluator.blind(product)
    opened = holder.open(blinded, OpeningShape(rows, 1, part.parameters))
    gradient = evaluator.unblind(opened, mask)
    full = time.process_time() - start
    start = time.process_time()
    for block in range(0, rows, 64):
        J[block : block + 64]
    jacobian = 2 * (time.process_time() - start)  # read for the scales and for the products
    exact = part.vjp(X, g)
    return {
        "rows": rows,
        "p": part.parameters,
        "encryption_s": round(full - jacobian, 3),
        "jacobian_s": round(jacobian, 3),
        "sent_MB": round(len(blinded) / 1e6, 2),
        "relative_error": f"{np.linalg.norm(gradient[:, 0] - exact) / np.linalg.norm(exact):.1e}",
        "peak_MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def epoch(options: argparse.Namespace) -> dict[str, str | int | float]:
    """Run one epoch of two parties on generated rows, by the clock."""
    generator = np.random.default_rng(0)
    tables = [generator.normal(size=(options.rows, columns)) for columns in (options.own, options.columns)]
    y = (sum(np.tanh(X[:, :3]).sum(axis=1) for X in tables) > 0).astype(int)
    parties = []
    for name, X in zip(("guest", "host"), tables, strict=True):
        make = partial(network, X.shape[1], options.hidden)
        local = y if name == "guest" else None
        parties.append(vfl.Party(name, X, local, ids=np.arange(len(X)), model=vfl.TorchModel(make)))
    job = vfl.Job(
        model=vfl.Neural(),
        optimizer=vfl.FedSGD(lr=0.5),
        protocol=vfl.Protocol(residual="ckks"),
        batch_size=options.batch,
        epochs=1,
        accepts=["columns", "rank"],  # with few rows
    )
    start = time.perf_counter()
    run = vfl.simulate(job, parties)
    took = time.perf_counter() - start
    return {
        "rows": options.rows,
        "p": len(run.parts["host"].theta),
        "by_clock_s": round(took, 1),
        "rounds": run.costs.rounds,
        "encryption_s": round(run.costs.seconds(Kind.ENCRYPTION), 1),
        "auc": round(run.metrics["auc"], 4),
        "peak_MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def network(columns: int, hidden: int) -> nn.Module:
    """Return two dense layers."""
    return nn.Sequential(nn.Linear(columns, hidden), nn.Tanh(), nn.Linear(hidden, 1))


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--columns", type=int, default=57)
    parser.add_argument("--hidden", type=int, default=25)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--epoch", action="store_true")
    parser.add_argument("--own", type=int, default=30)
    parser.add_argument("--batch", type=int, default=10_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.epoch:
        print(format_table([epoch(options)]))
        return
    module = vfl.TorchModel(network(options.columns, options.hidden))
    part = TorchBlock("shop", module, options.columns, 1, l2=0.0)
    print(format_table([step(part, options.rows, options.columns) for _ in range(options.steps)]))


if __name__ == "__main__":
    main()

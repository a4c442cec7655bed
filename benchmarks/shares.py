"""A training on additive shares in one process, step by step: the oracle of the mode that opens nothing, and its costs.

    python benchmarks/shares.py train --data ../shared/data [--table breast default_credit]
    python benchmarks/shares.py costs [--json out/shares.json]

`train` runs two parties with real ciphertexts and transfers and compares AUC and weights with FedSGD in floats with the
exact sigmoid on the same batches. `costs` measures the steps of a visit beside the round of a sealed residual.
Everything that would cross a line is passed as the bytes that would; nothing else goes from one party to the other.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

from securevfl.crypto import base_ot
from securevfl.crypto.lattice import LatticeScheme
from securevfl.crypto.lattice_shares import LatticeShares
from securevfl.crypto.ot_rows import Chooser, Offerer, fresh_secret
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import Factor, ShareRing
from securevfl.crypto.share_scheme import common_coin
from securevfl.models.losses import LOSSES
from securevfl.protocols.share_numbers import LookUp, Numbers

LOSS = LOSSES["logistic"]


class Costs:
    """CPU milliseconds by step, and bytes by kind."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = defaultdict(float)
        self.bytes: dict[str, int] = defaultdict(int)

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        started = time.thread_time()
        yield
        self.ms[step] += 1e3 * (time.thread_time() - started)


@dataclass
class Side:
    """What one party holds: its columns by batch, its share s of its weights and the other's r."""

    X: list[np.ndarray]
    numbers: Numbers
    rate: float
    s: np.ndarray = field(init=False)
    r_other: np.ndarray | None = None
    factors: list[tuple[Factor, Factor]] = field(init=False)
    integers: list[tuple[np.ndarray, np.ndarray]] = field(init=False)

    def __post_init__(self) -> None:
        ring = ShareRing(self.numbers.bits)
        self.s = np.zeros((self.X[0].shape[1], 1), np.uint64)
        self.integers = [(self.numbers.columns(X), self.numbers.steps(X, self.rate)) for X in self.X]
        self.factors = [(Factor(ring, X), Factor(ring, W)) for X, W in self.integers]


def meet(bits: int) -> tuple[Offerer, Chooser]:
    """A (the offerer, with the table) and B after their base transfers."""
    secret, choices = fresh_secret()
    base, coin = base_ot.Offerer(), os.urandom(32)
    points, seeds = base_ot.choose(base.offer, choices)
    return Offerer(secret, seeds, coin, bits), Chooser(base.pairs(points), coin, bits)


class Training:
    """Chunks of E epochs over the same batches, two parties. `opened` keeps g for the tests of this file's users."""

    def __init__(self, A: Side, B: Side, y: list[np.ndarray], numbers: Numbers, uses: int = 1) -> None:
        """uses: for how many chunks the plaintexts are kept."""
        self.uses = uses
        self.A, self.B, self.numbers = A, B, numbers
        self.scheme, self.ring = LatticeShares(numbers.bits), ShareRing(numbers.bits)
        self.tables = [LookUp(numbers, LOSS.residual, each) for each in y]
        self.offerer, self.chooser = meet(numbers.table_bits)
        self.at_a, self.at_b = Prg.fresh("A"), Prg.fresh("B")
        self.costs = Costs()
        self.r_a, self.r_b = np.zeros_like(A.s), np.zeros_like(B.s)  # r_A is at B, r_B at A
        self.opened: list[np.ndarray] = []
        self.prepared: dict[tuple[str, int], Any] = {}
        self.chunks = 0

    def product(self, name: str, V: list[np.ndarray], W: list[np.ndarray]) -> Any:
        """Shares of W^T V for every batch under one new key: those of the evaluator, those of the holder."""
        costs, coin = self.costs, common_coin(os.urandom(32), os.urandom(32), self.chunks, name)
        with costs.of("key"):
            holder = self.scheme.keygen(coin)
            evaluator = self.scheme.evaluator(holder.public, coin)
        costs.bytes["key"] += len(holder.public)
        own, theirs = [], []
        for k, (values, factor) in enumerate(zip(V, W, strict=True)):
            with costs.of("encrypt"):
                sealed = holder.encrypt(values, columns=factor.shape[1], uses=self.uses)
            with costs.of("product"):
                prepared = self.prepared.get((name, k)) or evaluator.prepare(factor)
                reply, share = evaluator.product(prepared, sealed)
            if self.uses > 1:
                self.prepared[name, k] = prepared
            with costs.of("open"):
                opened = holder.open(reply)
            costs.bytes["HE"] += len(sealed) + len(reply)
            own.append(share)
            theirs.append(opened)
        return own, theirs

    def chunk(self, order: list[list[int]]) -> None:
        """E epochs, order[e] the batches of epoch e."""
        A, B, ring, costs = self.A, self.B, self.ring, self.costs
        self.chunks += 1
        sizes, E = [len(X) for X in A.X], len(order)
        psi = [ring.uniform(self.at_a, (n, E)) for n in sizes]
        gamma = [ring.uniform(self.at_b, (n, E)) for n in sizes]
        beta, v_b = self.product("psi", psi, [W for _, W in B.integers])  # 1
        alpha, v_a = self.product("gamma", gamma, [W for _, W in A.integers])  # 2
        r_a, r_b = ([np.empty((len(side.s), E), np.uint64) for _ in sizes] for side in (A, B))
        for e, batches in enumerate(order):  # 3
            for k in batches:
                r_a[k][:, e], r_b[k][:, e] = self.r_a[:, 0], self.r_b[:, 0]
                self.r_a = ring.reduce(self.r_a - v_a[k][:, e : e + 1])
                self.r_b = ring.reduce(self.r_b - v_b[k][:, e : e + 1])
        b2, a2 = self.product("r_B", r_b, [X.T for X, _ in B.integers])  # 4
        a1, b1 = self.product("r_A", r_a, [X.T for X, _ in A.integers])  # 5
        visits = [(e, k) for e, batches in enumerate(order) for k in batches]
        starts = np.cumsum([0, *(sizes[k] for _, k in visits)])
        with costs.of("transfers"):
            message, chosen = self.chooser.extend(int(starts[-1]))  # 6
            offered = self.offerer.extend(int(starts[-1]), message)
        costs.bytes["transfers"] += len(message)
        for (e, k), start, stop in zip(visits, starts, starts[1:], strict=False):
            with costs.of("pads"):
                pads = offered.pads(start, stop) + psi[k][:, e]
            own = (chosen.choices[start:stop], ring.reduce(chosen.pads[start:stop]))
            ahead = (psi[k][:, e], gamma[k][:, e], alpha[k][:, e : e + 1], beta[k][:, e : e + 1])
            sums = (ring.reduce(a1[k][:, e] + a2[k][:, e]), ring.reduce(b1[k][:, e] + b2[k][:, e]))
            with costs.of("visit"):
                self.visit(k, ahead, sums, pads, *own)

    def visit(self, k: int, ahead: Any, sums: Any, pads: np.ndarray, chi: np.ndarray, pad: np.ndarray) -> None:
        A, B, ring, numbers = self.A, self.B, self.ring, self.numbers
        psi, gamma, alpha, beta = ahead
        X_b, W_b = B.factors[k]
        X_a, W_a = A.factors[k]
        i_b = numbers.index(ring.reduce(X_b.times(B.s)[:, 0] + sums[1]))
        c = (i_b - chi) & np.uint8(numbers.entries - 1)  # 7, B to A
        i_a = numbers.index(ring.reduce(X_a.times(A.s)[:, 0] + sums[0]))
        values = self.tables[k].entries(i_a + c, self.at_a).view(np.uint64)
        entries = ring.pack(values - pads)  # 8, A to B
        mine = ring.unpack(entries, pads.shape, (chi, np.arange(len(chi))))
        g_b = ring.reduce(mine + pad)
        B.s = ring.reduce(B.s - beta - W_b.transpose_times(g_b[:, None]))
        delta = ring.pack(g_b - gamma)  # 9, B to A
        g = ring.reduce(psi + ring.unpack(delta, gamma.shape))[:, None]
        A.s = ring.reduce(A.s - alpha - W_a.transpose_times(g))
        self.costs.bytes["visit"] += len(c) + len(entries) + len(delta)
        self.opened.append(ring.reduce(psi + g_b))

    @property
    def weights(self) -> np.ndarray:
        """theta of both parties, opened by whoever runs this file."""
        return np.concatenate(
            [self.numbers.weights(self.ring.reduce(s + r)) for s, r in ((self.A.s, self.r_a), (self.B.s, self.r_b))]
        )


def in_floats(X: np.ndarray, y: np.ndarray, batches: list[np.ndarray], order: list[int], rate: float) -> np.ndarray:
    """FedSGD with the exact sigmoid on pooled columns, the same visits."""
    theta = np.zeros((X.shape[1], 1))
    for k in order:
        rows = batches[k]
        g = LOSS.residual(X[rows] @ theta, y[rows, None])
        theta -= rate / len(rows) * X[rows].T @ g
    return theta


def load(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns of A and of B and labels -1, +1."""
    if (folder / f"{name}.npz").exists():
        with np.load(folder / f"{name}.npz", allow_pickle=False) as file:
            X, y = file["X"].astype(np.float64), file["y"]
            return X[:, file["g"]], X[:, file["h"]], np.where(y == y.max(), 1.0, -1.0)
    tables = {}
    for side in ("guest", "host"):
        with gzip.open(folder / f"{name}_hetero_{side}.csv.gz", "rt") as file:
            head, *rows = csv.reader(file)
        found = np.array(rows, dtype=np.float64)
        tables[side] = (head, found[np.argsort(found[:, 0])])
    head, guest = tables["guest"]
    return guest[:, 2:], tables["host"][1][:, 1:], np.where(guest[:, head.index("y")] > 0, 1.0, -1.0)


def split(X_a: np.ndarray, X_b: np.ndarray, y: np.ndarray, test: float, seed: int) -> Any:
    """Scaled training and test columns; A has a column of ones."""
    order = np.random.default_rng(seed).permutation(len(y))
    held = round(test * len(y))
    parts = []
    for X in (X_a, X_b):
        mean, deviation = X[order[held:]].mean(axis=0), X[order[held:]].std(axis=0).clip(1e-9)
        parts.append((X - mean) / deviation)
    parts[0] = np.hstack([parts[0], np.ones((len(y), 1))])
    return parts, order[held:], order[:held]


def train(
    folder: Path, name: str, batch: int, rate: float, epochs: int, chunk: int, table_bits: int, step: int
) -> dict[str, Any]:
    """One run on shares and one in floats, and how far they are apart."""
    X_a, X_b, y = load(folder, name)
    (X_a, X_b), rows, held = split(X_a, X_b, y, 0.25, 0)
    count = max(1, -(-len(rows) // batch))
    batches = [np.sort(part) for part in np.array_split(rows, count)]
    numbers = Numbers(max(map(len, batches)), rate, table_bits=table_bits, step=step)
    sides = [Side([X[part] for part in batches], numbers, rate) for X in (X_a, X_b)]
    run = Training(*sides, [y[part] for part in batches], numbers)
    orders = [np.random.default_rng([1, e]).permutation(count).tolist() for e in range(epochs)]
    started = time.process_time()
    for first in range(0, epochs, chunk):
        run.chunk(orders[first : first + chunk])
    seconds = time.process_time() - started
    X = np.clip(np.hstack([X_a, X_b]), -numbers.clip, numbers.clip)
    order = [k for each in orders for k in each]
    exact = in_floats(X, y, batches, order, rate)
    same = replayed(run, X, batches, order, rate)
    scores = {"shares": X[held] @ run.weights, "float": X[held] @ exact}
    visits = len(order)
    return {
        "table": name,
        "batch": batch,
        "eta": rate,
        "visits": visits,
        "L": numbers.bits,
        "b": table_bits,
        "step": 2.0**step,
        **{f"auc_{key}": round(roc_auc_score(y[held], f[:, 0]), 5) for key, f in scores.items()},
        **{f"loss_{key}": round(log_loss(y[held] > 0, 1 / (1 + np.exp(-f[:, 0]))), 5) for key, f in scores.items()},
        "to_same_outcomes": float(np.abs(run.weights - same).max()),
        "to_float": float(np.abs(run.weights - exact).max()),
        "largest_H": float(np.abs(X @ run.weights).max()),
        "cpu_ms_a_visit_both": round(1e3 * seconds / visits, 2),
        "ms": {key: round(value / visits, 3) for key, value in run.costs.ms.items()},
        "kB": {key: round(value / visits / 1e3, 1) for key, value in run.costs.bytes.items()},
    }


def replayed(run: Training, X: np.ndarray, batches: list[np.ndarray], order: list[int], rate: float) -> np.ndarray:
    """Weights in floats, given the residuals that the table gave."""
    theta = np.zeros((X.shape[1], 1))
    for k, g in zip(order, run.opened, strict=True):
        values = np.ldexp(run.ring.signed(g).astype(float), -run.numbers.f_g)[:, None]
        theta -= rate / len(batches[k]) * X[batches[k]].T @ values
    return theta


def visit_costs(n: int, d: int, E: int, batches: int, chunks: int, repetitions: int = 3) -> dict[str, Any]:
    """Milliseconds of CPU a visit, least of some runs, beside one round of a sealed residual at the same size.

    Everything counts: keys, plaintexts, products, transfers, pads and the visits, of `chunks` chunks of E visits to
    each of the batches. The sealed round has its plaintexts and keys for nothing.
    """
    rng = np.random.default_rng(n)
    numbers = Numbers(n, 0.1)
    y = [rng.choice([-1.0, 1.0], n) for _ in range(batches)]
    visits = chunks * batches * E
    best: dict[str, float] = {}
    both, sealed = np.inf, [sealed_round(n, d)]
    for _ in range(repetitions):
        sides = [Side([rng.normal(size=(n, d)) for _ in y], numbers, 0.1) for _ in range(2)]
        run = Training(*sides, y, numbers, uses=chunks)
        for _ in range(chunks):
            run.chunk([list(range(batches))] * E)
        sealed.append(sealed_round(n, d))
        if sum(run.costs.ms.values()) / visits < both:
            best = {key: value / visits for key, value in run.costs.ms.items()}
            both = sum(best.values())
    kB = {key: round(value / visits / 1e3, 1) for key, value in run.costs.bytes.items()}
    today = min(sealed)
    return {
        "n": n,
        "d": d,
        "E": E,
        "batches": batches,
        "chunks": chunks,
        "L": numbers.bits,
        **{key: round(value, 2) for key, value in best.items()},
        "both_ms": round(both, 2),
        "sealed_ms": round(today, 2),
        "ratio_both": round(both / today, 2),
        "ratio_party": round(both / today / 2, 2),
        "kB": kB,
        "kB_all": round(sum(kB.values()), 1),
    }


def sealed_round(n: int, d: int) -> float:
    """Milliseconds of CPU of one J^T [[g]], both ends, plaintexts kept."""
    rng = np.random.default_rng(0)
    J, g = rng.normal(size=(n, d)), rng.uniform(-1, 1, (n, 1))
    scheme = LatticeScheme(columns=d)
    holder = scheme.keygen()
    evaluator = scheme.evaluator(holder.public)
    prepared = evaluator.prepare(J)
    times = []
    for _ in range(5):
        started = time.thread_time()
        blinded, mask = evaluator.blind(evaluator.transpose_product(prepared, holder.encrypt(g, bound=1.0)))
        evaluator.unblind(holder.open(blinded), mask)
        times.append(time.thread_time() - started)
    return 1e3 * min(times[1:])


RUNS: dict[str, list[dict[str, Any]]] = {
    "breast": [
        {"batch": 128, "rate": 0.1, "epochs": 12, "chunk": 12, "table_bits": 6, "step": 0},
        {"batch": 128, "rate": 0.3, "epochs": 12, "chunk": 6, "table_bits": 6, "step": 0},
        {"batch": 128, "rate": 0.3, "epochs": 12, "chunk": 12, "table_bits": 7, "step": -1},
    ],
    "phishing": [{"batch": 256, "rate": 0.1, "epochs": 10, "chunk": 10, "table_bits": 6, "step": 0}],
    "a9a": [{"batch": 256, "rate": 0.1, "epochs": 10, "chunk": 10, "table_bits": 6, "step": 0}],
    "ijcnn1": [{"batch": 1024, "rate": 0.4, "epochs": 10, "chunk": 10, "table_bits": 6, "step": 0}],
    "default_credit": [{"batch": 256, "rate": 0.1, "epochs": 10, "chunk": 10, "table_bits": 6, "step": 0}],
}
SIZES = [(256, 15, 16, 8, 1), (256, 100, 16, 8, 1), (4096, 100, 16, 1, 1), (4096, 100, 16, 1, 3)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["train", "costs"])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--table", nargs="*", default=list(RUNS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    work: list[Callable[[], dict[str, Any]]]
    if arguments.what == "train":
        work = [
            lambda n=name, keys=keys: train(arguments.data, n, **keys)
            for name in arguments.table
            for keys in RUNS[name]
        ]
    else:
        work = [lambda s=size: visit_costs(*s) for size in SIZES]
    rows = []
    for each in work:
        rows.append(each())
        print(json.dumps(rows[-1]), flush=True)
    if arguments.json:
        head = {"schema": "securevfl.bench.shares/1", "machine": platform.processor() or platform.machine()}
        arguments.json.write_text(json.dumps({**head, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()

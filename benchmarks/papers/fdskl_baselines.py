"""The baselines of FDSKL. None of them protects data unless stated.

dsg       the centralised doubly stochastic gradient: the optimizer's arithmetic on pooled columns, no parties
boosting  SecureBoost's trees on pooled columns: it is lossless, so its errors are those of boosting in one place
libsvm    scikit-learn's SVC with the RBF kernel on pooled columns
pp-svmv   Yu, Vaidya and Jiang 2006: local distance matrices summed around a ring, then SVC on the kernel; n^2 numbers
fd-svrg   Zhang et al. 2018: linear logistic regression, inner products summed over the parties, variance reduced
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from securevfl.base.arrays import Floats
from securevfl.base.extras import import_extra
from securevfl.data.schedule import Schedule
from securevfl.families.fdskl.fdskl_optimizer import FDSKL, PRECONDITIONER_ROWS, block_order
from securevfl.families.fdskl.kernel_model import Kernel
from securevfl.families.fdskl.random_features import KernelExpansion, RandomFrequencies, cosines
from securevfl.models.losses import LOSSES

RowNumbers = NDArray[np.intp]
_ME = "pooled"


def _svc(**options: Any) -> Any:
    return import_extra("sklearn.svm", "sklearn", "the baseline libsvm").SVC(**options)


@dataclass(frozen=True)
class BaselineOutcome:
    """Share of wrong test rows, CPU seconds of training, bytes that all parties would send."""

    error: float
    cpu_s: float
    bytes: int = 0
    memory_bytes: int = 0
    rows: int = 0
    curve: tuple[tuple[float, float], ...] = ()  # CPU seconds and test error after each pass


@dataclass(frozen=True)
class Split:
    """Scaled tables and labels of -1 and +1."""

    X: Floats
    y: Floats
    test_X: Floats
    test_y: Floats

    def missed(self, f: Floats) -> float:
        """Return the share of test rows with a wrong sign of f."""
        return float(np.mean((f > 0) != (self.test_y > 0)))

    def columns(self, keep: RowNumbers) -> Split:
        """Return the split with these columns only."""
        return Split(self.X[:, keep], self.y, self.test_X[:, keep], self.test_y)

    def first(self, rows: int, seed: int) -> Split:
        """Return this number of random training rows, or all."""
        elapsed = np.random.default_rng(seed).permutation(len(self.X))[:rows]
        return Split(self.X[elapsed], self.y[elapsed], self.test_X, self.test_y)


def dsg(
    split: Split, model: Kernel, optimizer: FDSKL, *, batch_size: int, epochs: int, seed: int, curve: bool = False
) -> BaselineOutcome:
    """Run the loop of `securevfl.families.fdskl.fdskl_family` with all columns at one owner."""
    started, apart = time.process_time(), 0.0
    frequencies, expansion = (
        RandomFrequencies(model, seed.to_bytes(32, "little"), split.X.shape[1]),
        KernelExpansion(model),
    )
    loss, y = LOSSES[model.loss_name], split.y[:, None]
    schedule = Schedule(len(y), batch_size=batch_size, epochs=epochs, seed=seed, test_fraction=0, reshuffle=False)
    parts, turns, P = schedule.partition(0), block_order(model.blocks, seed, 0), {}

    def keep(name: Hashable, X: Floats) -> None:
        for k in range(model.blocks):
            phases = frequencies.phases(X, _ME, k, 32) + frequencies.offset(_ME, k)
            expansion.keep(name, k, cosines(phases, 32))

    def error() -> float:
        return split.missed(np.concatenate([expansion.forward(("test", i))[:, 0] for i in range(len(tests))]))

    for index, part in enumerate(parts):
        keep(index, split.X[part])
    tests = [slice(start, start + 4096) for start in range(0, len(split.test_X), 4096)]
    paused = time.process_time()
    for i, rows in enumerate(tests):
        keep(("test", i), split.test_X[rows])
    apart += time.process_time() - paused
    sample = range(min(len(parts), -(-PRECONDITIONER_ROWS // len(parts[-1]))))
    seen = []
    for t, visit in enumerate(schedule.iterations()):
        k = next(turns)
        if optimizer.precondition and k not in P:
            phi = np.concatenate([expansion.phi(index, k) for index in sample])
            assert loss.curvature is not None, "every loss of a kernel model here states it"
            gram = loss.curvature / len(phi) * (phi.T @ phi)
            P[k] = np.linalg.inv(gram + optimizer.rho * np.eye(model.block_size)).astype(np.float32)
        g = loss.residual(expansion.forward(visit.index), y[visit.rows])[:, 0].astype(np.float32)
        move = g @ expansion.phi(visit.index, k) / np.float32(len(g)) + np.float32(model.l2) * expansion.alpha[k]
        expansion.alpha[k] -= np.float32(optimizer.eta(visit.epoch, 1)) * (P[k] @ move if k in P else move)
        if curve and (t + 1) % len(parts) == 0:
            paused = time.process_time()
            seen.append((paused - started - apart, error()))
            apart += time.process_time() - paused
    spent = time.process_time() - started - apart
    return BaselineOutcome(error(), spent, memory_bytes=2 * len(y) * model.features, rows=len(y), curve=tuple(seen))


def boosting(split: Split) -> BaselineOutcome:
    """Run scikit-learn's histogram gradient boosting with its defaults: at most 100 trees of 31 leaves."""
    name = "sklearn.ensemble"
    model = import_extra(name, "sklearn", "the baseline boosting").HistGradientBoostingClassifier(random_state=0)
    with threadpool_limits(1):  # scikit-learn's own threads, which exist since the import
        started = time.process_time()
        model.fit(split.X, split.y)
        spent = time.process_time() - started
    return BaselineOutcome(split.missed(model.decision_function(split.test_X)), spent, rows=len(split.X))


def libsvm(split: Split, gamma: float | Literal["scale"] = "scale", C: float = 1.0) -> BaselineOutcome:
    """Run scikit-learn's SVC; its defaults are C = 1 and gamma = 1 / (d var)."""
    started = time.process_time()
    machine = _svc(cache_size=1000, gamma=gamma, C=C).fit(split.X, split.y)
    spent = time.process_time() - started
    return BaselineOutcome(split.missed(machine.decision_function(split.test_X)), spent, rows=len(split.X))


def pp_svmv(split: Split, sides: Sequence[RowNumbers], gamma: float, C: float = 1.0) -> BaselineOutcome:
    """Let each party add its squared distances around a ring; the first one masks them and takes the kernel.

    A party stores one matrix of n^2 numbers. Here the parties share one, which is filled a few rows at a time.
    """
    started, n = time.process_time(), len(split.X)
    kernel = np.empty((n, n))
    for rows in _chunks(n):
        kernel[rows] = _kernel(split.X[rows], split.X, sides, gamma)
    machine = _svc(kernel="precomputed", cache_size=1000, C=C).fit(kernel, split.y)
    spent = time.process_time() - started
    del kernel
    tests = (_kernel(split.test_X[rows], split.X, sides, gamma) for rows in _chunks(len(split.test_X)))
    f = np.concatenate([machine.decision_function(block) for block in tests])
    return BaselineOutcome(split.missed(f), spent, bytes=8 * n * n * len(sides), memory_bytes=8 * n * n, rows=n)


def _chunks(n: int) -> list[slice]:
    return [slice(start, start + 1000) for start in range(0, n, 1000)]


def _kernel(X: Floats, Z: Floats, sides: Sequence[RowNumbers], gamma: float) -> Floats:
    """Return the kernel (n, m) of rows X and Z from the sum of the sides' squared distances."""
    total: Floats = squared(X[:, sides[0]], Z[:, sides[0]])
    for side in sides[1:]:
        total += squared(X[:, side], Z[:, side])
    total *= -gamma
    return np.exp(total, out=total)


def squared(X: Floats, Z: Floats) -> Floats:
    """Return squared distances between rows (n, m)."""
    distances: Floats = (X**2).sum(axis=1)[:, None] + (Z**2).sum(axis=1) - 2 * X @ Z.T
    return distances


def fd_svrg(
    split: Split, sides: Sequence[RowNumbers], *, batch: int = 256, epochs: int = 20, seed: int = 0
) -> BaselineOutcome:
    """Step 1 / L for L = max |x|^2 / 4; a pass sums n inner products, an inner step those of its batch, twice."""
    started = time.process_time()
    loss, y = LOSSES["logistic"], split.y[:, None]
    X = np.column_stack([split.X, np.ones(len(y))])
    w = np.zeros((X.shape[1], 1))
    eta = 4 / float((X**2).sum(axis=1).max())
    generator, sums = np.random.default_rng(seed), 0
    for _ in range(epochs):
        anchor = w.copy()
        g = loss.residual(X @ anchor, y)
        full = X.T @ g / len(y)
        sums += len(y)
        order = generator.permutation(len(y))
        for rows in np.array_split(order, max(1, len(y) // batch)):
            change = loss.residual(X[rows] @ w, y[rows]) - g[rows]
            w -= eta * (X[rows].T @ change / len(rows) + full)
            sums += len(rows)
    spent = time.process_time() - started
    f = np.column_stack([split.test_X, np.ones(len(split.test_y))]) @ w
    return BaselineOutcome(split.missed(f[:, 0]), spent, bytes=8 * sums * 2 * (len(sides) - 1), rows=len(y))


Baseline = Callable[[Split], BaselineOutcome]

"""Theorems of the papers as programs: FedBCD's bounds on a step and on gradients, FDSKL's rate, and its l2."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import pytest

import securevfl as vfl
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Schedule
from securevfl.errors import DivergenceError
from securevfl.families.fdskl.fdskl_optimizer import FDSKL, block_order
from securevfl.families.fdskl.kernel_model import Kernel
from securevfl.families.fdskl.random_features import KernelExpansion, RandomFrequencies, cosines
from securevfl.families.rounds.rounds_participant import INITIAL_WEIGHT_ROWS
from securevfl.models.linear_block import starting_weights
from securevfl.protocols.residuals.base import Batch

ROWS = 200


def alike(parties: int) -> list[vfl.Party]:
    """Return parties with similar columns, for which simultaneous steps add up most."""
    generator = np.random.default_rng(parties)
    shared = generator.normal(size=(ROWS, 2))
    blocks = [shared + 0.1 * generator.normal(size=(ROWS, 2)) for _ in range(parties)]
    y = sum(block.sum(axis=1) for block in blocks) + generator.normal(size=ROWS)
    return [vfl.Party(f"p{k}", block, None if k else y / y.std(), aligned=True) for k, block in enumerate(blocks)]


def step_bound(parties: list[vfl.Party], Q: int) -> float:
    """The largest constant step of Theorem 2 of FedBCD-p, sqrt(2) / (2 Q sqrt(sum_k L_k^2 + 2 K L^2)).

    L and L_k bound the curvature of the objective in all weights and in those of party k.
    """
    X = scaled_columns(parties)
    joint = curvature(np.hstack(X))
    return float(np.sqrt(2) / (2 * Q * np.sqrt(sum(curvature(block) ** 2 for block in X) + 2 * len(X) * joint**2)))


def scaled_columns(parties: list[vfl.Party]) -> list[Floats]:
    """Return every party's scaled columns; those of the first one have an intercept."""
    X = [(party.X - party.X.mean(axis=0)) / party.X.std(axis=0) for party in parties]
    return [np.column_stack([X[0], np.ones(len(X[0]))]), *X[1:]]


def curvature(block: Floats) -> float:
    """Return the largest curvature of the mean square loss in the weights of these columns."""
    c = vfl.Square().loss.curvature
    assert c is not None
    return float(c * np.linalg.eigvalsh(block.T @ block / len(block))[-1])


@pytest.mark.parametrize("Q", [1, 5, 20])
@pytest.mark.parametrize("parties", [2, 4])
def test_fedbcd_converges_at_its_step_bound_and_not_at_ten_times(parties: int, Q: int) -> None:
    tables = alike(parties)

    def losses(eta: float) -> list[float]:
        job = vfl.Job(
            model=vfl.Square(),
            optimizer=vfl.FedBCD(lr=eta, local_steps=Q),
            protocol=vfl.Protocol(residual="open"),
            batch_size="all",
            epochs=60,
            accepts=["columns"],
        )
        return [record["batch_loss"] for record in vfl.simulate(job, tables).history]

    bound = step_bound(tables, Q)
    at = losses(bound)
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(at))
    assert at[-1] < 0.5 * at[0]
    try:
        beyond = losses(10 * bound)
    except DivergenceError:
        return
    assert beyond[-1] > 10 * beyond[0]


BATCH_ROWS = 1024


def divided(parties: int) -> list[vfl.Party]:
    """Return one table of 16 noisy columns, divided among this number of parties."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(BATCH_ROWS, 16)) + 0.5 * generator.normal(size=(BATCH_ROWS, 1))
    y = X.sum(axis=1) / 4 + 2 * generator.normal(size=BATCH_ROWS)
    hands = np.array_split(np.arange(16), parties)
    return [vfl.Party(f"p{k}", X[:, hand], None if k else y, aligned=True) for k, hand in enumerate(hands)]


@dataclass(frozen=True)
class Descent:
    """A training of FedBCD-p by a plain loop over minibatches.

    Attributes:
        gradient: mean over the iterations of the squared gradient of the loss of all rows, at the latest exchange.
        first: 2 (first loss - last loss) / (eta T), the term of the paper's bound that has no variance.
        noise: (2 eta^2 (K + 3) Q^2 sum_k L_k^2 + 4 K) sigma^2 / S, the terms of the bound that have one.
        fall: the first loss minus the last one.
        weights: every party's last weights.
    """

    gradient: float
    first: float
    noise: float
    fall: float
    weights: list[Floats]


def descent(parties: list[vfl.Party], T: int, *, S: int, Q: int) -> Descent:
    """Run T iterations at the step of Theorem 2: T / Q exchanges, each on a minibatch of S rows."""
    loss, labels = vfl.Square().loss, parties[0].y
    assert labels is not None
    X, y, K = scaled_columns(parties), loss.targets(labels, loss.classes(labels)), len(parties)
    pooled, eta = np.hstack(X), step_bound(parties, Q)
    theta = [np.zeros((block.shape[1], 1)) for block in X]
    theta[0] = starting_weights(parties[0].X[:INITIAL_WEIGHT_ROWS], X[0][:INITIAL_WEIGHT_ROWS, :-1], y, 0)
    edges = np.cumsum([0, *(block.shape[1] for block in X)])
    gradients, variances = [], []

    def mean_loss() -> float:
        return float(loss.value(pooled @ np.vstack(theta), y).mean())

    begun = mean_loss()
    schedule = Schedule(len(y), batch_size=S, epochs=T, seed=0, test_fraction=0.0, reshuffle=False)
    for visit in islice(schedule.iterations(), T // Q):
        by_row = pooled * loss.residual(pooled @ np.vstack(theta), y)
        gradient = by_row.mean(axis=0)
        gradients.append(float((gradient**2).sum()))
        deviations = ((by_row - gradient) ** 2).mean(axis=0)
        variances.append(max(float(deviations[start:stop].sum()) for start, stop in pairwise(edges)))
        rows = [block[visit.rows] for block in X]
        parts = [block @ weights for block, weights in zip(rows, theta, strict=True)]
        f = sum(parts)
        for k, block in enumerate(rows):
            for _ in range(Q):  # the party with labels computes the residual again, the others do not
                outputs = f - parts[k] + block @ theta[k] if k == 0 else f
                theta[k] = theta[k] - eta * block.T @ loss.residual(outputs, y[visit.rows]) / len(block)
    fall = begun - mean_loss()
    squares = sum(curvature(block) ** 2 for block in X)
    noise = (2 * eta**2 * (K + 3) * Q**2 * squares + 4 * K) * max(variances) / S
    return Descent(float(np.mean(gradients)), 2 * fall / (eta * T), noise, fall, theta)


def test_fedbcd_gradients_fall_as_the_root_of_t() -> None:
    """Theorem 2 with S = Q = sqrt(T): sqrt(T) exchanges, and the mean squared gradient is O(1 / sqrt(T)).

    Here the first term of the bound alone is above the mean, and at most three times as large.
    """
    roots = (8, 16, 32, 64)
    runs = [descent(divided(4), root**2, S=root, Q=root) for root in roots]
    for run in runs:
        assert run.first / 3 < run.gradient < run.first < run.first + run.noise
    slope = np.polyfit(np.log(roots), np.log([run.gradient for run in runs]), 1)[0] / 2
    assert -0.6 < slope < -0.4, slope


def test_fedbcd_gradients_need_batches_that_grow() -> None:
    """With S = 4 rows the mean squared gradient stays above the first term of the bound: the variance limits it."""
    short, long = (descent(divided(4), root**2, S=4, Q=root) for root in (64, 128))
    assert long.gradient > 0.7 * short.gradient
    assert long.first < long.gradient < long.first + long.noise


def test_fedbcd_gradients_grow_as_the_root_of_k() -> None:
    """The step of Theorem 2 falls as 1 / sqrt(K), so the mean squared gradient, by the fall of the loss, rises so."""
    numbers = (2, 4, 8, 16)
    runs = [descent(divided(K), 1024, S=32, Q=32) for K in numbers]
    slope = np.polyfit(np.log(numbers), np.log([run.gradient / run.fall for run in runs]), 1)[0]
    assert 0.3 < slope < 0.6, slope


def test_the_descent_is_fedbcds() -> None:
    tables, Q = divided(4), 32
    job = vfl.Job(
        model=vfl.Square(),
        optimizer=vfl.FedBCD(lr=step_bound(tables, Q), local_steps=Q),
        protocol=vfl.Protocol(residual="open"),
        batch_size=Q,
        epochs=Q * Q // BATCH_ROWS,
        accepts=["columns"],
    )
    run = vfl.simulate(job, tables)
    assert run.costs.rounds == Q
    for part, weights in zip(run.parts.values(), descent(tables, Q * Q, S=Q, Q=Q).weights, strict=True):
        np.testing.assert_allclose(part.theta, weights, rtol=1e-9, atol=1e-12)


def kept_features(model: Kernel, X: Floats, rows: int) -> tuple[KernelExpansion, list[Batch], Floats]:
    """Return a worker that stores the features of the rows X, batches of `rows` rows, and phi (n x M)."""
    drawn, expansion = RandomFrequencies(model, bytes(32), X.shape[1]), KernelExpansion(model)
    batches = [Batch(i, 0, X[start : start + rows], None) for i, start in enumerate(range(0, len(X), rows))]
    for batch in batches:
        for k in range(model.blocks):
            phases = drawn.phases(batch.X, "p", k, 32) + drawn.offset("p", k)
            expansion.keep(batch.index, k, cosines(phases, 32))
    phi = np.vstack([np.hstack([expansion.phi(b.index, k) for k in range(model.blocks)]) for b in batches])
    return expansion, batches, phi.astype(np.float64)


def wave() -> tuple[Floats, Floats]:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(ROWS, 3))
    return X, np.sin(2 * X.sum(axis=1)) + 0.3 * generator.normal(size=ROWS)


def fdskl_errors(eta: Callable[[int], float], iterations: Collection[int]) -> list[float]:
    """Return the mean of (f_t - f*)^2 over the rows after each of these iterations t, for the step sizes eta(t)."""
    X, y = wave()
    model = Kernel(gamma=0.5, loss="square", blocks=3, block_size=16, l2=0.5)
    expansion, batches, phi = kept_features(model, X, 20)
    best = phi @ np.linalg.solve(phi.T @ phi / ROWS + model.l2 * np.eye(model.features), phi.T @ y / ROWS)
    optimizer, turns = FDSKL(lr=0.05, precondition=False), block_order(model.blocks, 0, 0)
    generator, errors = np.random.default_rng(1), []
    for t in range(1, max(iterations) + 1):
        batch, k = batches[generator.integers(len(batches))], next(turns)
        f = expansion.forward(batch.index)
        g = f - y[20 * batch.index : 20 * (batch.index + 1), None]
        optimizer._step(expansion, batch, k, g, eta(t), None)
        if t in iterations:
            errors.append(float(np.mean((phi @ expansion.theta[:, 0] - best) ** 2)))
    return errors


def test_errors_of_the_papers_fdskl_step_fall_as_one_over_t() -> None:
    """Theorem 4: E |f_t - f*|^2 = O(1 / t) for a step that decreases as theta / t and a strongly convex loss."""
    iterations = (500, 1000, 2000, 4000, 8000, 16_000, 32_000)
    errors = fdskl_errors(lambda t: min(0.02, 8 / t), iterations)  # 4 / (t * l2)
    slope = np.polyfit(np.log(iterations), np.log(errors), 1)[0]
    assert -1.5 < slope < -0.75, errors


@pytest.mark.slow
def test_errors_at_a_constant_fdskl_step_end_in_proportion_to_it() -> None:
    """Theorem 4 with a constant step eta: the error falls geometrically, and then stays at O(eta)."""
    late = range(6000, 12_001, 20)
    ends = {eta: float(np.mean(fdskl_errors(lambda t, eta=eta: eta, late))) for eta in (0.04, 0.02, 0.01)}
    assert 1.6 < ends[0.04] / ends[0.02] < 2.5, ends
    assert 1.6 < ends[0.02] / ends[0.01] < 2.5, ends
    first, later, much_later = fdskl_errors(lambda t: 0.01, (1, 150, 300))
    assert later < 0.5 * first
    assert much_later < 0.7 * later


def test_shrinking_one_block_equals_shrinking_all_by_a_share() -> None:
    """The paper's step shrinks every coefficient by eta lambda; with K blocks this equals l2 = K lambda here."""
    X, y = wave()
    K, l2 = 4, 0.2
    model = Kernel(gamma=0.5, loss="square", blocks=K, block_size=16, l2=l2)
    ours, (batch,), phi = kept_features(model, X, ROWS)
    optimizer, turns = FDSKL(lr=0.02, precondition=False), block_order(K, 0, 0)
    alpha, theirs = np.zeros((K, model.block_size)), block_order(K, 0, 0)
    for _ in range(4000):
        optimizer._step(ours, batch, next(turns), ours.forward(0) - y[:, None], 0.02, None)
        g, k = phi @ alpha.ravel() - y, next(theirs)
        move = phi[:, 16 * k : 16 * (k + 1)].T @ g / ROWS
        alpha *= 1 - 0.02 * l2 / K
        alpha[k] -= 0.02 * move
    np.testing.assert_allclose(ours.theta[:, 0], alpha.ravel(), atol=0.02 * np.abs(alpha).max())

"""FedBCD against a plain loop over all parties' columns in one table (FedBCD 2019, Algorithm 1)."""

import numpy as np
import pytest
from numpy.typing import NDArray

import securevfl as vfl
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Schedule
from securevfl.families.rounds.rounds_participant import INITIAL_WEIGHT_ROWS
from securevfl.models.linear_block import starting_weights
from securevfl.models.losses import LOSSES
from securevfl.optim.optimizer import Optimizer
from securevfl.runtime.costs import Stage


def fedbcd_parties(parties: int, loss: str, rows: int = 90) -> list[vfl.Party]:
    generator = np.random.default_rng(parties)
    blocks = [generator.normal(size=(rows, 2 + k)) for k in range(parties)]
    f = sum(block.sum(axis=1) for block in blocks)
    y = f if loss == "square" else np.digitize(f, [-1, 1]) if loss == "softmax" else (f > 0).astype(int)
    return [vfl.Party(f"p{k}", block, y if k == 0 else None, aligned=True) for k, block in enumerate(blocks)]


def pooled(job: vfl.Job, parties: list[vfl.Party], mode: str, Q: int, mu: float) -> list[Floats]:
    """Return all parties' theta by a plain loop."""
    loss, y = LOSSES[job.model.name], parties[0].y
    assert y is not None
    t_y = loss.targets(y, loss.classes(y))
    n, K = len(y), len(parties)
    schedule = Schedule(
        n, batch_size=job.batch_size, epochs=job.epochs, seed=job.seed, test_fraction=0.0, reshuffle=False
    )
    X = [(party.X - party.X.mean(0)) / party.X.std(0) for party in parties]
    X[0] = np.column_stack([X[0], np.ones(n)])
    theta = [np.zeros((block.shape[1], t_y.shape[1])) for block in X]
    theta[0] = starting_weights(parties[0].X[:INITIAL_WEIGHT_ROWS], X[0][:INITIAL_WEIGHT_ROWS, :-1], t_y, job.seed)
    decay = [np.full((block.shape[1], 1), job.model.l2) for block in X]
    decay[0][-1] = 0
    for t, batch in enumerate(schedule.iterations()):
        rows = batch.rows
        eta = job.optimizer.eta(t, K)

        def others(k: int, at: list[Floats], rows: NDArray[np.intp] = rows) -> Floats:
            return sum(X[j][rows] @ at[j] for j in range(K) if j != k)

        def update(k: int, g_of: object, rows: NDArray[np.intp] = rows, eta: float = eta) -> None:
            anchor = theta[k].copy()
            for _ in range(Q):
                g = g_of(theta[k]) if callable(g_of) else g_of
                gradient = X[k][rows].T @ g / len(rows) + decay[k] * theta[k] + mu * (theta[k] - anchor)
                theta[k] = theta[k] - eta * gradient

        def fresh(outputs: Floats, fixed: Floats, rows: NDArray[np.intp] = rows) -> Floats:
            return loss.residual(X[0][rows] @ outputs + fixed, t_y[rows])

        at = [weights.copy() for weights in theta]
        fixed = others(0, at)
        g = fresh(theta[0], fixed)
        update(0, lambda outputs, fixed=fixed: fresh(outputs, fixed))
        for k in range(1, K):
            update(k, g if mode == "parallel" else fresh(theta[0], others(0, theta)))
    return theta


TESTED_OPTIMIZERS: list[tuple[Optimizer, str, int, float]] = [
    (vfl.FedSGD(lr=0.3), "parallel", 1, 0.0),
    (vfl.FedBCD(local_steps=4, lr=0.2), "parallel", 4, 0.0),
    (vfl.FedBCD(local_steps=3, lr=0.2, mode="sequential", decay="sqrt_t"), "sequential", 3, 0.0),
    (vfl.FedPBCD(local_steps=3, lr=0.2, mu=0.7, decay="sqrt_tk"), "parallel", 3, 0.7),
]


@pytest.mark.parametrize(
    ("optimizer", "mode", "Q", "mu"), TESTED_OPTIMIZERS, ids=[o.label for o, *_ in TESTED_OPTIMIZERS]
)
@pytest.mark.parametrize("model", [vfl.Logistic(l2=0.01), vfl.SmoothHinge(), vfl.Square(l2=0.1), vfl.Softmax()])
@pytest.mark.parametrize("parties", [2, 3])
def test_equals_the_pooled_loop(
    optimizer: Optimizer, mode: str, Q: int, mu: float, model: vfl.Logistic, parties: int
) -> None:
    job = vfl.Job(
        model=model,
        optimizer=optimizer,
        protocol=vfl.Protocol(residual="open"),
        batch_size=32,
        epochs=2,
        seed=3,
        accepts=["columns", "sequential"],
    )
    data = fedbcd_parties(parties, model.name)
    run = vfl.simulate(job, data)
    for part, theta in zip(run.parts.values(), pooled(job, data, mode, Q, mu), strict=True):
        np.testing.assert_allclose(part.theta, theta, rtol=1e-9, atol=1e-12)


def test_rounds_are_exchanges() -> None:
    data = fedbcd_parties(4, "logistic")
    for mode, a_pass in (("parallel", 1), ("sequential", 3)):
        job = vfl.Job(
            model=vfl.Logistic(),
            optimizer=vfl.FedBCD(lr=0.1, mode=mode),  # type: ignore[arg-type]
            protocol=vfl.Protocol(residual="open"),
            batch_size=30,
            epochs=2,
            accepts=["columns", "sequential"],
        )
        assert vfl.simulate(job, data).costs.rounds == 2 * 3 * a_pass


@pytest.mark.parametrize(
    ("decay", "etas"), [("none", [0.6, 0.6, 0.6]), ("sqrt_t", [0.6, 0.6 / 2**0.5]), ("sqrt_tk", [0.3, 0.3 / 2**0.5])]
)
def test_step_sizes(decay: str, etas: list[float]) -> None:
    optimizer = vfl.FedSGD(lr=0.6, decay=decay)  # type: ignore[arg-type]
    assert [optimizer.eta(t, 4) for t in range(len(etas))] == pytest.approx(etas)


def test_the_target_stops_the_run_and_evaluation_is_booked_apart() -> None:
    data = vfl.datasets.breast_cancer()
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.1),
        protocol=vfl.Protocol(residual="open"),
        batch_size=64,
        test_fraction=0.25,
        target=vfl.Target(metric="auc", value=0.99),
        accepts=["columns"],
    )
    run = vfl.simulate(job, data)
    assert run.history[-1]["auc"] >= 0.99
    assert all(record["auc"] < 0.99 for record in run.history[:-1])
    assert run.costs.rounds == len(run.history) < 70
    counters = run.parts["shop"].counters
    assert counters.messages_sent(Stage.TRAIN) == run.costs.rounds
    assert counters.messages_sent(Stage.EVALUATE) == run.costs.rounds + 1


def test_seventeen_parties_run() -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(200, 34))
    y = X.sum(axis=1) > 0
    data = [vfl.Party(f"p{k}", X[:, 2 * k : 2 * k + 2], y if k == 0 else None, aligned=True) for k in range(17)]
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.2),
        protocol=vfl.Protocol(residual=vfl.Ckks()),
        batch_size=100,
        epochs=5,
    )
    assert vfl.simulate(job, data).metrics["auc"] > 0.95

"""BlockNewton against numpy: its solver, its rounds and its end."""

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from builders import raises_code
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

import securevfl as vfl
from securevfl.base.arrays import Floats
from securevfl.errors import ConfigError, DataNotice, TableError
from securevfl.families.rounds.rounds_participant import INITIAL_WEIGHT_ROWS
from securevfl.models.linear_block import Linear, starting_weights
from securevfl.models.log_link_losses import MAX_COUNT_MEAN, MAX_LOG_MEAN
from securevfl.models.loss import Loss
from securevfl.models.losses import LOSSES
from securevfl.optim.block_newton import INITIAL_MULTIPLE, MAX_FLAT_ITERATIONS, MULTIPLE_DECAY, BlockMemory
from securevfl.optim.block_solver import solve
from securevfl.optim.curvature import MIN_RELATIVE_CURVATURE, preconditioner
from securevfl.protocols.residuals.pace import Pace
from securevfl.training.checkpoint import Checkpoints

TESTED_MODELS = [vfl.Logistic(l2=0.01), vfl.SmoothHinge(l2=0.02), vfl.Square(l2=0.1), vfl.Softmax(l2=0.01)]


def newton_parties(parties: int, loss: str, rows: int = 240) -> list[vfl.Party]:
    generator = np.random.default_rng(parties)
    shared = generator.normal(size=(rows, 1))
    blocks = [0.5 * shared + generator.normal(size=(rows, 2 + k)) for k in range(parties)]
    f = sum(block.sum(axis=1) for block in blocks) + 2 * generator.normal(size=rows)
    y = f if loss == "square" else np.digitize(f, [-1, 1]) if loss == "softmax" else (f > 0).astype(int)
    return [vfl.Party(f"p{k}", block, y if k == 0 else None, aligned=True) for k, block in enumerate(blocks)]


def newton_job(**keys: object) -> vfl.Job:
    defaults: dict[str, object] = {"model": vfl.Logistic(l2=0.01), "optimizer": vfl.BlockNewton(), "batch_size": "all"}
    defaults |= {"protocol": vfl.Protocol(residual="open"), "epochs": 30, "seed": 3, "accepts": ["columns"]}
    return vfl.Job(**(defaults | keys))  # type: ignore[arg-type]


def targets(loss: Loss, y: NDArray[np.generic]) -> Floats:
    return loss.targets(y, loss.classes(y))


# losses that no number bounds for all labels: theirs is for a label of the mean, and f so far from it
AT_THE_MEAN = {"gamma": math.log(4), "tweedie": MAX_LOG_MEAN, "negative_binomial": MAX_LOG_MEAN}
# the largest mean, where labels are not scaled to a mean of 1
LARGEST_MEAN = {"negative_binomial": MAX_COUNT_MEAN}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
def test_the_bound_of_a_loss_holds_everywhere_and_is_reached(loss: Loss) -> None:
    """Return second differences of the residual along random directions at many f."""
    generator = np.random.default_rng(0)
    c, n = (1 if loss.single else 3), 40_000
    f, d = generator.normal(size=(2, n, c)) * 3
    d /= np.linalg.norm(d, axis=1, keepdims=True)
    labels = generator.integers(0, 3 if c > 1 else 2, n).astype(float)
    h = 1e-4
    if loss.name in AT_THE_MEAN:
        f = np.clip(f, -AT_THE_MEAN[loss.name], AT_THE_MEAN[loss.name])
        y = np.full((n, 1), LARGEST_MEAN.get(loss.name, 1.0))
    else:
        y = targets(loss, labels)
    bend = ((loss.residual(f + h * d, y) - loss.residual(f - h * d, y)) * d).sum(axis=1) / (2 * h)
    assert loss.curvature is not None
    assert bend.max() <= loss.curvature + 1e-6
    assert bend.max() > 0.8 * loss.curvature


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
@pytest.mark.parametrize("l2", [0.0, 0.01])
def test_a_block_is_solved_to_its_end(loss: Loss, l2: float) -> None:
    generator = np.random.default_rng(1)
    c = 1 if loss.single else 3
    X = generator.normal(size=(400, 4)) @ generator.normal(size=(4, 4))
    scores = X[:, 0] + 2 * generator.normal(size=400)
    positive = loss.name in AT_THE_MEAN
    y = targets(loss, np.exp(scores / 4) if positive else np.digitize(scores, [0] if c == 1 else [-1, 1]))
    others, model = generator.normal(size=(400, c)), Linear(generator.normal(size=(5, c)), l2=l2, intercept=True)
    assert loss.curvature is not None
    P = preconditioner(model.gram(X), len(X), loss.curvature, model.decay, who="p")
    f = solve(model, loss, X, y, others, P, within=1e-12)
    np.testing.assert_allclose(f, model.forward(X) + others, atol=1e-9)
    gradient = model.regularised(model.vjp(X, loss.residual(f, y)) / len(X))
    assert np.abs(gradient).max() < 1e-5
    if loss.name == "logistic" and l2:
        free = Linear(np.zeros((5, 1)), l2=l2, intercept=True)
        solve(free, loss, X, y, np.zeros((400, 1)), P, within=1e-14)
        known = LogisticRegression(C=1 / (l2 * 400), tol=1e-10, max_iter=10_000).fit(X, y[:, 0])
        np.testing.assert_allclose(free.theta[:-1, 0], known.coef_[0], atol=1e-5)
        np.testing.assert_allclose(free.theta[-1], known.intercept_, atol=1e-5)


def pooled(vfl_job: vfl.Job, parties: list[vfl.Party], rounds: int) -> tuple[list[Floats], list[float]]:
    """Return all parties' theta and the active party's losses after some rounds, by dense linear algebra."""
    loss, y = vfl_job.model.loss, np.asarray(parties[0].y)
    t, n, K, l2 = targets(loss, y), len(y), len(parties), vfl_job.model.l2
    batches = vfl_job.schedule(n).iterations()
    X = [(party.X - party.X.mean(0)) / party.X.std(0) for party in parties]
    first = Linear(
        starting_weights(parties[0].X[:INITIAL_WEIGHT_ROWS], X[0][:INITIAL_WEIGHT_ROWS], t, vfl_job.seed),
        l2=l2,
        intercept=True,
    )
    theta = [np.zeros((block.shape[1], t.shape[1])) for block in X]
    before, a, m, last, losses = [block.copy() for block in theta], [0] * K, INITIAL_MULTIPLE, {}, []
    c = loss.curvature
    assert c is not None
    for scheduled in batches:
        i = scheduled.rows
        z = [theta[k] + a[k] / (a[k] + 3) * (theta[k] - before[k]) for k in range(K)]
        others = sum(X[k][i] @ z[k] for k in range(1, K))
        own_P = preconditioner(first.gram(X[0][i]), len(i), c, first.decay, who="p")
        f = solve(first, loss, X[0][i], t[i], others, own_P, within=1e-7 * last.get(scheduled.index, 1.0))
        if len(losses) == rounds:  # it has ended by itself
            return [first.theta, *z[1:]], losses
        value = loss.value(f, t[i]).mean() + l2 / 2 * (first.theta[:-1] ** 2).sum()
        if value > last.get(scheduled.index, np.inf) * (1 + 1e-9):
            m = max(1.0, MULTIPLE_DECAY * m)
        last[scheduled.index] = value
        losses.append(value)
        g = loss.residual(f, t[i])
        for k in range(1, K):
            B = c * X[k][i].T @ X[k][i] / len(i) + l2 * np.eye(len(theta[k]))
            gradient = X[k][i].T @ g / len(i) + l2 * z[k]
            new = z[k] - m / (K - 1) * np.linalg.solve(B, gradient)
            a[k] = 0 if (gradient * (new - theta[k])).sum() > 0 else a[k] + 1
            before[k], theta[k] = theta[k], new
    return [first.theta, *theta[1:]], losses


@pytest.mark.parametrize("batch_size", ["all", 90])
@pytest.mark.parametrize("model", TESTED_MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("parties", [2, 4])
def test_equals_the_pooled_loop(model: vfl.Logistic, parties: int, batch_size: object) -> None:
    parts = newton_parties(parties, model.name)
    job = newton_job(model=model, batch_size=batch_size, epochs=6, optimizer=vfl.BlockNewton(tolerance=1e-4))
    run = vfl.simulate(job, parts)
    theta, losses = pooled(job, parts, len(run.history))
    for part, expected in zip(run.parts.values(), theta, strict=True):
        np.testing.assert_allclose(part.theta, expected, rtol=1e-6, atol=1e-8)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("model", TESTED_MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("parties", [2, 3, 5])
def test_it_ends_by_itself_at_the_optimum(model: vfl.Logistic, parties: int) -> None:
    parts = newton_parties(parties, model.name, rows=600)
    run = vfl.simulate(newton_job(model=model, epochs=100, optimizer=vfl.BlockNewton(tolerance=1e-6)), parts)
    assert MAX_FLAT_ITERATIONS < len(run.history) < 60
    assert run.costs.rounds == len(run.history) + 1  # the last exchange has no residual
    X = np.hstack([(party.X - party.X.mean(0)) / party.X.std(0) for party in parts])
    t = targets(model.loss, np.asarray(parts[0].y))
    best = Linear(np.zeros((X.shape[1] + 1, t.shape[1])), l2=model.l2, intercept=True)
    assert model.loss.curvature is not None
    P = preconditioner(best.gram(X), len(X), model.loss.curvature, best.decay, who="all")
    f = solve(best, model.loss, X, t, np.zeros_like(t), P, within=1e-14)
    least = model.loss.value(f, t).mean() + best.penalty()
    weights = [part.theta for part in run.parts.values()]
    outputs = sum(x @ theta for x, theta in zip(blocks(parts), weights, strict=True))
    value = model.loss.value(outputs, t).mean() + model.l2 / 2 * (
        sum((w**2).sum() for w in weights) - (weights[0][-1] ** 2).sum()
    )
    assert least - 1e-9 < value < least + 1e-4


@pytest.mark.parametrize(("tolerance", "near"), [(0.0, 1e-6), (1e-2, 1e-1)])
def test_the_active_block_is_solved_to_the_tolerance(tolerance: float, near: float) -> None:
    """With a fixed precision of 1e-7 of the loss, the weights would stay 7e-4 off for any number of rounds."""
    parts = newton_parties(3, "logistic", rows=600)
    run = vfl.simulate(newton_job(epochs=120, optimizer=vfl.BlockNewton(tolerance=tolerance)), parts)
    X = np.hstack([(party.X - party.X.mean(0)) / party.X.std(0) for party in parts])
    best = LogisticRegression(C=1 / (0.01 * 600), tol=1e-12, max_iter=10_000).fit(X, np.asarray(parts[0].y))
    theta = np.vstack([part.theta[: len(part.columns)] for part in run.parts.values()])[:, 0]
    assert np.abs(theta - best.coef_[0]).max() < near
    assert (len(run.history) == 120) == (tolerance == 0)


def blocks(parts: list[vfl.Party]) -> list[Floats]:
    scaled = [(party.X - party.X.mean(0)) / party.X.std(0) for party in parts]
    return [np.column_stack([scaled[0], np.ones(len(scaled[0]))]), *scaled[1:]]


def test_pace_falls_after_increases_and_ends_without_progress() -> None:
    memory = BlockMemory(Linear(np.zeros((2, 1)), l2=0.0, intercept=False), None)
    seen = [memory.decide(0, loss, 0.01) for loss in (1.0, 0.8, 0.9, 0.7, 0.75, 0.6999, 0.6998)]
    assert [pace.multiple for pace in seen] == [
        INITIAL_MULTIPLE,
        INITIAL_MULTIPLE,
        MULTIPLE_DECAY * INITIAL_MULTIPLE,
        MULTIPLE_DECAY * INITIAL_MULTIPLE,
        1.0,
        1.0,
        1.0,
    ]
    assert [pace.stop for pace in seen] == [False] * 6 + [True]
    again = BlockMemory(Linear(np.zeros((2, 1)), l2=0.0, intercept=False), memory.state)
    assert again.decide(0, 0.5, 0.01) == Pace(1.0, False)
    two = BlockMemory(Linear(np.zeros((2, 1)), l2=0.0, intercept=False), None)
    flat = [two.decide(batch, 1.0, 0.01).stop for _ in range(5) for batch in (0, 1)]
    assert flat.index(True) == 2 + 2 * MAX_FLAT_ITERATIONS - 1


def test_all_parties_stop_in_the_same_round() -> None:
    kinds: list[str] = []
    run = vfl.simulate(
        newton_job(protocol=vfl.Protocol(sum="pairwise", residual="open")),
        newton_parties(3, "logistic"),
        observe=lambda e: kinds.append(type(e.message).__name__) if e.direction == "recv" else None,
    )
    rounds = len(run.history)
    assert rounds < 30
    assert kinds.count("Pace") == 2 * (rounds + 1)
    assert kinds.count("Residual") == 2 * rounds


@pytest.mark.parametrize("at", [1, 2, 4])
@pytest.mark.parametrize("batch_size", ["all", 200])
def test_a_resumed_run_ends_with_identical_bits(at: int, batch_size: object, tmp_path: Path) -> None:
    parts = vfl.datasets.breast_cancer(3)
    protocol = vfl.Protocol(sum="pairwise", residual="open")
    job = newton_job(protocol=protocol, epochs=7, test_fraction=0.2, batch_size=batch_size)

    def states() -> dict[str, Checkpoints]:
        return {party.name: Checkpoints(tmp_path / party.name, party.name, every=1) for party in parts}

    def cut(done: int, of: int) -> None:
        if done == at:
            raise KeyboardInterrupt

    uninterrupted = vfl.simulate(job, parts)
    with pytest.raises(KeyboardInterrupt):
        vfl.simulate(job, parts, checkpoints=states(), on_round=cut)
    again = vfl.simulate(job, parts, checkpoints=states())
    for name, part in uninterrupted.parts.items():
        np.testing.assert_array_equal(again.parts[name].theta, part.theta)
    assert again.metrics == uninterrupted.metrics
    assert again.costs.rounds == uninterrupted.costs.rounds


def test_early_stopping_and_evaluation_are_as_everywhere() -> None:
    parts = vfl.datasets.breast_cancer(3)
    target_job = newton_job(test_fraction=0.25, target=vfl.Target(metric="auc", value=0.98))
    run = vfl.simulate(target_job, parts)
    assert run.history[-1]["auc"] >= 0.98
    assert all(record["auc"] < 0.98 for record in run.history[:-1])


@pytest.mark.exact_outputs
def test_collinear_columns_are_held_by_a_ridge_on_the_step() -> None:
    X = np.random.default_rng(0).normal(size=(50, 3))
    gram = np.hstack([X, X[:, :1]]).T @ np.hstack([X, X[:, :1]])
    P = preconditioner(gram, 50, 0.25, np.zeros((4, 1)), who="shop")
    steepest = 0.25 / 50 * np.linalg.eigvalsh(gram)[-1]
    assert np.linalg.eigvalsh(P)[-1] == pytest.approx(1 / (MIN_RELATIVE_CURVATURE * steepest))
    parts = newton_parties(2, "logistic")
    twice = vfl.Party("p1", np.hstack([parts[1].X, parts[1].X[:, ::-1]]), aligned=True)
    one, other = (
        vfl.simulate(newton_job(model=vfl.Logistic(), protocol=vfl.Protocol(residual=vfl.Ckks())), [parts[0], passive])
        for passive in (parts[1], twice)
    )
    assert other.metrics["loss"] == pytest.approx(one.metrics["loss"], abs=1e-4)
    assert np.abs(other.parts["p1"].theta).max() < 10


def test_invalid_combinations_are_rejected_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(LOSSES["smooth_hinge"]), "curvature", None)
    with raises_code(ConfigError, "SVFL-JOB-OPTION"):
        newton_job(model=vfl.SmoothHinge())
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="optimizer"):
        newton_job(model=vfl.Kernel(gamma=0.1))
    generator = np.random.default_rng(0)
    wide = vfl.Party("shop", generator.normal(size=(40, 60)), aligned=True)
    bank = vfl.Party("bank", generator.normal(size=(40, 3)), generator.integers(0, 2, 40), aligned=True)
    with raises_code(TableError, "SVFL-TABLE-TOO-FEW-ROWS"):
        vfl.simulate(newton_job(model=vfl.Logistic()), [bank, wide])
    assert vfl.simulate(newton_job(model=vfl.Logistic(l2=0.1)), [bank, wide]).metrics["auc"] > 0.9
    few = vfl.Party("shop", wide.X[:, :2], aligned=True)
    with raises_code(TableError, "SVFL-TABLE-TOO-FEW-ROWS"):
        vfl.simulate(newton_job(model=vfl.Logistic(), batch_size=3), [bank, few])
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="optimizer.lr"):
        vfl.Job.from_dict(newton_job().to_dict() | {"optimizer": {"name": "block_newton", "lr": 0.1}})


def hard_tables() -> list[vfl.Party]:
    """Tables whose columns are nearly equal at both parties, so that few rounds do not reach the optimum."""
    draw = np.random.default_rng(6)
    X = draw.normal(size=(1500, 4))
    Z = X + 0.3 * draw.normal(size=X.shape)
    y = (3 * (X - Z).sum(axis=1) + X[:, 0] + draw.logistic(size=1500) > 0).astype(int)
    return [vfl.Party("bank", X, y, ids=range(1500)), vfl.Party("shop", Z, ids=range(1500))]


@pytest.mark.parametrize("protocol", ["open", "ckks"])
def test_a_training_out_of_rounds_reports_no_convergence(protocol: str) -> None:
    job = vfl.Job(model="logistic", protocol=protocol, accepts=["columns", "rank", "label_auc", "fresh_equations"])
    with pytest.warns(DataNotice, match=r"has not converged.* still decreased by .* Increase epochs"):
        short = vfl.simulate(job.model_copy(update={"epochs": 3}), hard_tables())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*has not converged.*")
        full = vfl.simulate(job, hard_tables())
    assert full.costs.rounds > 10
    assert full.metrics["loss"] < short.metrics["loss"]

"""The pipeline against a plain loop, depth 1 against FedSGD, the benefit of overlap, and resumed runs."""

from pathlib import Path

import numpy as np
import pytest

import securevfl as vfl
from securevfl.base.arrays import Floats
from securevfl.families.rounds.rounds_participant import INITIAL_WEIGHT_ROWS
from securevfl.models.linear_block import starting_weights
from securevfl.training.checkpoint import Checkpoints


class Cut(Exception):
    """The error of an interrupted process."""


def pipeline_parties(count: int, rows: int = 96) -> list[vfl.Party]:
    generator = np.random.default_rng(count)
    blocks = [generator.normal(size=(rows, 3 + k)) for k in range(count)]
    y = (sum(block.sum(axis=1) for block in blocks) > 0).astype(int)
    return [vfl.Party(f"p{k}", block, None if k else y, aligned=True) for k, block in enumerate(blocks)]


def pipeline_job(optimizer: object, residual: object = "open", sums: str = "auto", **keys: object) -> vfl.Job:
    defaults: dict[str, object] = {"model": vfl.Logistic(l2=0.01), "batch_size": 16, "epochs": 2, "seed": 3}
    defaults |= {"protocol": vfl.Protocol(sum=sums, residual=residual), "accepts": ["columns", "label_auc", "rank"]}  # type: ignore[arg-type]
    return vfl.Job(**(defaults | keys), optimizer=optimizer)


def pooled(work: vfl.Job, parties: list[vfl.Party], depth: int) -> list[Floats]:
    """Return all parties' theta by a plain loop, with H_k of a batch at the weights of depth - 1 rounds earlier."""
    y = parties[0].y
    assert y is not None
    t_y, n = np.where(y == 1, 1.0, -1.0)[:, None], len(y)
    X = [(party.X - party.X.mean(0)) / party.X.std(0) for party in parties]
    X[0] = np.column_stack([X[0], np.ones(n)])
    theta = [np.zeros((block.shape[1], 1)) for block in X]
    theta[0] = starting_weights(parties[0].X[:INITIAL_WEIGHT_ROWS], X[0][:INITIAL_WEIGHT_ROWS, :-1], t_y, work.seed)
    history = [[block.copy() for block in theta]]
    for t, scheduled in enumerate(work.schedule(n).iterations()):
        rows, old = scheduled.rows, history[max(0, t - depth + 1)]
        f = X[0][rows] @ theta[0] + sum(X[k][rows] @ old[k] for k in range(1, len(X)))
        g = work.loss.residual(f, t_y[rows])
        for k, block in enumerate(X):
            decay = np.full((block.shape[1], 1), work.model.l2)
            decay[-1] = decay[-1] if k else 0.0
            theta[k] = theta[k] - work.optimizer.lr * (block[rows].T @ g / len(rows) + decay * theta[k])  # type: ignore[attr-defined]
        history.append([block.copy() for block in theta])
    return theta


@pytest.mark.parametrize("depth", [1, 2, 4, 40])
@pytest.mark.parametrize("count", [2, 3])
def test_equals_the_plain_loop(depth: int, count: int) -> None:
    data, work = pipeline_parties(count), pipeline_job(vfl.Pipeline(lr=0.5, depth=depth))
    for part, theta in zip(vfl.simulate(work, data).parts.values(), pooled(work, data, depth), strict=True):
        np.testing.assert_allclose(part.theta, theta, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", ["sgd", "adagrad", "momentum"])
def test_depth_one_is_fedsgd_bit_for_bit(rule: str) -> None:
    data = pipeline_parties(3)
    one, other = (
        vfl.simulate(pipeline_job(kind(lr=0.3, rule=rule)), data)
        for kind in (vfl.FedSGD, lambda **k: vfl.Pipeline(depth=1, **k))
    )
    for name, part in one.parts.items():
        np.testing.assert_array_equal(other.parts[name].theta, part.theta)
    assert one.costs.rounds == other.costs.rounds == 12


@pytest.mark.exact_outputs
@pytest.mark.parametrize(
    ("residual", "sums"),
    [("open", "direct"), ("open", "tree"), ("open", "pairwise"), ("open", "cipher"), (vfl.Ckks(), "auto")],
)
def test_every_sum_and_residual_gives_one_model(residual: object, sums: str) -> None:
    data = pipeline_parties(3)
    reference = vfl.simulate(pipeline_job(vfl.Pipeline(lr=0.3, depth=3)), data)
    run = vfl.simulate(pipeline_job(vfl.Pipeline(lr=0.3, depth=3), residual, sums, evaluate_every=1), data)
    for name, part in reference.parts.items():
        np.testing.assert_allclose(run.parts[name].theta, part.theta, atol=2e-3)


@pytest.mark.parametrize("every", [1, 5])
def test_evaluations_in_between_change_nothing(every: int) -> None:
    data, optimizer = pipeline_parties(2), vfl.Pipeline(lr=0.3, depth=3)
    plain, looked = (
        vfl.simulate(pipeline_job(optimizer), data),
        vfl.simulate(pipeline_job(optimizer, evaluate_every=every), data),
    )
    for name, part in plain.parts.items():
        np.testing.assert_array_equal(looked.parts[name].theta, part.theta)
    assert len([record for record in looked.history if "auc" in record]) == 12 // every
    assert [record["batch_loss"] for record in looked.history] == [record["batch_loss"] for record in plain.history]
    assert looked.costs.rounds == plain.costs.rounds


@pytest.mark.parametrize("at", [2, 7, 11])
@pytest.mark.parametrize("sums", ["direct", "pairwise"])
def test_a_resumed_run_uses_the_outputs_in_flight(at: int, sums: str, tmp_path: Path) -> None:
    data = pipeline_parties(3)
    work = pipeline_job(vfl.Pipeline(lr=0.3, depth=4), "open", sums)
    folders = {party.name: Checkpoints(tmp_path / party.name, party.name, every=2) for party in data}

    def cut(done: int, of: int) -> None:
        if done == at:
            raise Cut

    with pytest.raises(Cut):
        vfl.simulate(work, data, checkpoints=folders, on_round=cut)
    again = vfl.simulate(work, data, checkpoints=folders)
    for name, part in vfl.simulate(work, data).parts.items():
        np.testing.assert_array_equal(again.parts[name].theta, part.theta)
    assert again.costs.rounds == 12
    assert [record["round"] for record in again.history] == [*range(1, 13)]


def test_an_early_stop_leaves_nobody_waiting() -> None:
    data = pipeline_parties(2)
    for residual in ("open", vfl.Ckks()):
        work = pipeline_job(vfl.Pipeline(lr=0.5, depth=3), residual, target=vfl.Target(metric="auc", value=0.6))
        run = vfl.simulate(work, data)
        assert run.metrics["auc"] >= 0.6
        assert len(run.history) < 12


def test_overlap_shortens_rounds_in_virtual_time() -> None:
    """With a round-trip time of 200 ms, a round of a pipeline of depth four takes a quarter of that of FedSGD."""
    data, line = pipeline_parties(2), vfl.Network(mbps=1e6, rtt_ms=200, message_ms=0)
    seconds = {
        depth: vfl.simulate(pipeline_job(vfl.Pipeline(lr=0.3, depth=depth), epochs=4), data, network=line).history[-1][
            "seconds"
        ]
        - line.connecting
        for depth in (1, 2, 4)
    }
    assert seconds[1] == pytest.approx(24 * 0.2, rel=0.1)
    assert seconds[2] == pytest.approx(12 * 0.2, rel=0.2)
    assert seconds[4] == pytest.approx(6 * 0.2, rel=0.3)

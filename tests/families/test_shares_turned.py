"""Steps of twice the safe length: if the loss rises, all parties roll back to an earlier state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selfcheck.whole_weights import whole_weights

import securevfl as vfl
from securevfl.families.shares.shares_job import trains_on_shares
from securevfl.families.shares.shares_plan import make_plan
from securevfl.optim.block_descent import heavy_ball
from securevfl.protocols.handshake import StopDecision
from securevfl.protocols.shares.share_products import Products
from securevfl.runtime.observer import Event
from securevfl.training.checkpoint import Checkpoints

ROWS = 2000


def alike(count: int = 2, f: float = 0.0) -> list[vfl.Party]:
    """Return parties with nearly equal columns that barely predict the labels, whose mean log odds are `f`."""
    draw = np.random.default_rng(5)
    X = draw.normal(size=(ROWS, 3))
    y = (draw.random(ROWS) < 1 / (1 + np.exp(-f - 0.15 * X.sum(axis=1)))).astype(int)
    tables = [X + 1e-3 * draw.normal(size=X.shape) for _ in range(count)]
    return [
        vfl.Party(name, Z, y if name == "a" else None, aligned=True) for name, Z in zip("abc", tables, strict=False)
    ]


def oscillating_job(**keys: Any) -> vfl.Job:
    fine = vfl.Protocol(shares=vfl.Shares(chunk=4, table_bits=8, step=0.125))  # rounding moves weights by some .004
    defaults = {"optimizer": vfl.BlockDescent(lr=2.0), "batch_size": "all", "epochs": 12, "evaluate_every": 6}
    defaults |= {"patience": {"evaluations": 1}, "test_fraction": 0.3, "protocol": fine}
    return vfl.Job(**({"model": vfl.Logistic()} | defaults | keys))


def weights(run: vfl.Run) -> Any:
    """Return the weights of all parties, which no party has, in one column."""
    states = {name: part.state for name, part in run.parts.items()}
    return np.concatenate(list(whole_weights(run.job, states, run.active.name).values()))


@pytest.mark.long
@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_an_oscillating_training_restarts_with_half_the_step(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The final model equals that of a run with the safe step and the remaining iterations.

    No public coin of a key repeats in a session, even if a preprocessed chunk was discarded.
    """
    parties, events, noted_keys, keys = (
        alike(count),
        list[Event](),
        list[tuple[str, int, tuple[str, ...]]](),
        Products.send_keys,
    )

    def noted(self: Products, number: int, purposes: Sequence[str], *schemes: Any) -> Any:
        noted_keys.append((self.context.me + self.context.subchannel, number, tuple(purposes)))
        return keys(self, number, purposes, *schemes)

    monkeypatch.setattr(Products, "send_keys", noted)
    run = vfl.simulate(oscillating_job(), parties, observe=events.append)
    losses = [record["loss"] for record in run.history if "loss" in record]
    assert losses[0] > np.log(2) > losses[1] == run.metrics["loss"]
    assert [part.state["sizes"]["rollbacks"] for part in run.parts.values()] == [[[6, 0]]] * count
    received = [event for event in events if event.direction == "recv"]
    verdicts = [event.message for event in received if isinstance(event.message, StopDecision)]
    assert [decision.roll_back for decision in verdicts] == [True] * (count - 1) + [False] * (count - 1)
    assert not verdicts[0].is_best
    assert len(set(noted_keys)) == len(noted_keys) >= 2 * 4
    safe = oscillating_job(optimizer=vfl.BlockDescent(lr=1.0), epochs=6, evaluate_every=6)
    np.testing.assert_allclose(weights(run), weights(vfl.simulate(safe, parties)), atol=0.05)


def test_a_loss_above_that_of_the_starting_model_restores_it() -> None:
    """The training starts from the best constant, whose loss is far below that of the zero model: 0.49 of 0.69."""
    parties = alike(f=-1.5)
    run = vfl.simulate(oscillating_job(optimizer=vfl.BlockDescent(lr=3.0)), parties)
    y = np.asarray(parties[0].y)
    train, test = (y[rows].mean() for rows in (run.job.schedule(ROWS).train, run.job.schedule(ROWS).test))
    start_loss = -test * np.log(train) - (1 - test) * np.log(1 - train)
    losses = [record["loss"] for record in run.history if "loss" in record]
    assert start_loss < losses[0] < np.log(2)
    assert losses[1] < start_loss
    assert [part.state["sizes"]["rollbacks"] for part in run.parts.values()] == [[[6, 0]]] * 2


def test_a_training_that_does_well_never_turns_back() -> None:
    run = vfl.simulate(oscillating_job(protocol="shares"), vfl.datasets.breast_cancer())
    assert run.active.state["sizes"]["rollbacks"] == []


class Cut(Exception):
    """Raised in place of a lost process."""


@pytest.mark.parametrize("at", [6, pytest.param(9, marks=pytest.mark.slow)])
def test_a_run_interrupted_after_a_rollback_resumes(at: int, tmp_path: Path) -> None:
    parties = alike()
    checkpoints = {party.name: Checkpoints(tmp_path / party.name, party.name, every=1) for party in parties}

    def on_round(done: int, of: int) -> None:
        if done == at:
            raise Cut

    with pytest.raises(Cut):
        vfl.simulate(oscillating_job(), parties, checkpoints=checkpoints, on_round=on_round)
    checkpoints = {party.name: Checkpoints(tmp_path / party.name, party.name, every=1) for party in parties}
    again, uninterrupted = (
        vfl.simulate(oscillating_job(), parties, checkpoints=checkpoints),
        vfl.simulate(oscillating_job(), parties),
    )
    assert [part.state["sizes"]["rollbacks"] for part in again.parts.values()] == [[[6, 0]]] * 2
    np.testing.assert_allclose(weights(again), weights(uninterrupted), atol=0.05)


@pytest.mark.parametrize("warm_up", [0, 1, 4, 12])
@pytest.mark.parametrize("turned", [(), ((3, 0),), ((6, 3),), ((3, 0), (8, 5)), ((12, 6),)])
def test_the_rule_continues_from_an_earlier_state(turned: tuple[tuple[int, int], ...], warm_up: int) -> None:
    """Compared with the same steps in floats; the first `warm_up` steps have at most the safe size."""
    swinging_job = oscillating_job(optimizer=vfl.BlockDescent(lr=8.0, warm_up=warm_up))
    assert trains_on_shares(swinging_job)
    rule = make_plan(swinging_job, rows=100, batches=1, parties=2, rollbacks=turned).rule
    changes = np.random.default_rng(0).integers(-1000, 1000, 12)
    state, turns = rule.start(np.zeros((1, 1), np.uint64)), dict(turned)
    before = point = 0.0
    points, step, start = [0.0], 1.0, 0
    for visit, change in enumerate(changes):
        if visit in turns:
            before = point = points[visit] = points[turns[visit]]
            step, start = step / 2, visit
        size = min(step, 1 / 8) if visit < warm_up else step
        after, t = point - size * change, visit - start + 1
        before, point = after, after + (t - 1) / (t + 2) * (after - before)
        points.append(point)
        state = rule.step(state, np.array([[change]]).view(np.uint64), visit)
    if len(changes) in turns:
        points[-1] = points[turns[len(changes)]]
    for visits, expected in enumerate(points):
        theta = rule.theta(state[: visits + 1], visits).view(np.int64)[0, 0] / 2**rule.m
        assert abs(theta - expected) <= np.abs(changes).sum() / 2 ** (rule.m + 1)


@pytest.mark.parametrize("turned", [(), ((4, 2),), ((6, 0), (9, 6))])
def test_safe_steps_restart_heavy_ball_after_a_rollback(
    turned: tuple[tuple[int, int], ...],
) -> None:
    """Compared with the same steps in floats; the model after any number of steps is the mean of the last fifth."""
    safe_job = oscillating_job(optimizer=vfl.BlockDescent(lr=1.0))
    assert trains_on_shares(safe_job)
    rule = make_plan(safe_job, rows=100, batches=1, parties=2, rollbacks=turned).rule
    changes, turns = np.random.default_rng(1).integers(-1000, 1000, 12), dict(turned)
    state, points, step, start = rule.start(np.zeros((1, 1), np.uint64)), [0.0], 1.0, 0
    before, pairs, models = 0.0, heavy_ball(12), [0.0]
    for visit, change in enumerate(changes):
        if visit in turns:
            before = points[visit] = points[turns[visit]]
            step, start, pairs = step / 2, visit, heavy_ball(12 - visit)
            models[visit] = points[visit]
        length, factor = pairs[visit - start]
        points.append(points[visit] - step * length * change + factor * (points[visit] - before))
        before = points[visit]
        latest = max(1, (visit + 1 - start) // 5)
        models.append(float(np.mean(points[-latest:])))
        state = rule.step(state, np.array([[change]]).view(np.uint64), visit)
    for visits, (point, model) in enumerate(zip(points, models, strict=True)):
        for words, expected in ((rule.theta, point), (rule.result, model)):
            combined = words(state[: visits + 1], visits).view(np.int64)[0, 0] / 2**rule.m
            assert abs(combined - expected) <= np.abs(changes).sum() / 2 ** (rule.m + 1)


def test_default_steps_of_linear_models_are_safe() -> None:
    """Only models that end early take longer steps, and only if evaluations detect that they are too long."""
    assert {vfl.Job(model=name).optimizer.lr for name in ("logistic", "square", "one_vs_rest", "huber")} == {1}
    assert vfl.Job(model="trees").optimizer == vfl.BlockDescent(lr=2, warm_up=10)
    assert vfl.Job(model="trees", test_fraction=0).optimizer.lr == 1
    sheet = "whether the training returns to an earlier model and halves its step"
    assert sheet in vfl.explain(vfl.Job(model="logistic", optimizer=vfl.BlockDescent(lr=2), evaluate_every=10))
    assert sheet not in vfl.explain(vfl.Job(model="logistic"))

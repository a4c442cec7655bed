"""Models with pairs: trainings of two and three parties, interrupted, rolled back, stored and refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import securevfl as vfl
from securevfl.errors import ConfigError
from securevfl.families.shares import shares_facts
from securevfl.families.shares.shares_facts import SharesFacts
from securevfl.families.shares.shares_plan import can_roll_back, make_plan, pair_params
from securevfl.models import pair_components
from securevfl.protocols.shares.iteration import MaskedGradient
from securevfl.protocols.shares.pair_weights import PairParams
from securevfl.protocols.shares.update_rules import FixedCoefficients
from securevfl.runtime.observer import Event
from securevfl.training.checkpoint import Checkpoints
from tests.builders import make_job, parties_of, raises_code
from tests.families.pair_oracle import pair_scores, shared_exclusive_or

BASE: dict[str, Any] = {"protocol": {"shares": {}}, "batch_size": "all"}
SHORT = BASE | {"epochs": 10, "test_fraction": 0.25}


class Cut(Exception):
    """Raised in place of the end of all processes."""


def exclusive_or(rows: int = 1200, count: int = 2, seed: int = 0) -> tuple[list[vfl.Party], list[np.ndarray]]:
    blocks, y = shared_exclusive_or(rows, seed)
    blocks += [np.random.default_rng(9).normal(size=(rows, 2)) for _ in range(count - 2)]
    return parties_of(blocks, y), blocks


def auc(run: vfl.Run, parties: list[vfl.Party]) -> float:
    test = run.job.schedule(len(parties[0].X)).test
    scores = run.decision({party.name: party.X[test] for party in parties})
    return float(roc_auc_score(np.asarray(parties[0].y)[test], scores[:, 0]))


@pytest.mark.parametrize("model", [vfl.Logistic(pairs=9), vfl.Trees(pairs=9, trees=4, depth=2, boosted_score=False)])
def test_an_exclusive_or_of_two_parties_is_learned(model: Any) -> None:
    parties, _ = exclusive_or(2000)
    run = vfl.simulate(make_job({}, model=model, **BASE), parties)
    alone = vfl.simulate(make_job({}, model=model.model_copy(update={"pairs": 0}), **BASE), parties)
    assert run.metrics["auc"] > alone.metrics["auc"] + 0.12
    assert run.metrics["auc"] == pytest.approx(auc(run, parties), abs=0.02)


def test_scores_are_those_of_floats() -> None:
    parties, blocks = exclusive_or(3000)
    job = make_job({}, model=vfl.Logistic(pairs=9), **SHORT)
    run = vfl.simulate(job, parties)
    train, test = (getattr(run.job.schedule(3000), name) for name in ("train", "test"))
    y = np.asarray(parties[0].y)
    expected = pair_scores(run.job, blocks[:2], 2.0 * y - 1, train)
    scores = run.decision({party.name: party.X for party in parties})[:, 0]
    assert np.corrcoef(scores[test], expected[test])[0, 1] > 0.996
    assert abs(roc_auc_score(y[test], scores[test]) - roc_auc_score(y[test], expected[test])) < 0.004


def test_one_seed_gives_one_model_up_to_rounding() -> None:
    parties, _ = exclusive_or(3000)
    job = make_job({}, model=vfl.Logistic(pairs=9), **SHORT)
    columns = {party.name: party.X[:500] for party in parties}
    one, other = (vfl.simulate(job, parties).decision(columns)[:, 0] for _ in range(2))
    # residuals and scores are rounded at random: over pairs of 14 runs, the largest difference of scores has a mean of
    # 0.096 and a deviation of 0.02, and 1 - r a mean of 0.0011 and a deviation of 0.0005
    assert np.abs(one - other).max() < 0.25
    assert np.corrcoef(one, other)[0, 1] > 0.995


def test_a_third_party_takes_no_part_in_pairs() -> None:
    parties, _ = exclusive_or(1500, 3)
    events: list[Event] = []
    job = make_job({}, model=vfl.Logistic(pairs=6), **SHORT)
    run = vfl.simulate(job, parties, observe=events.append)
    pairs = [event for event in events if isinstance(event.message, MaskedGradient) and event.direction == "send"]
    holders = {name for name, part in run.parts.items() if "pairs" in part.state}
    assert len(holders) == 2
    assert {event.me for event in pairs} == holders
    assert run.metrics["auc"] > 0.7


@pytest.mark.parametrize(
    ("chunk", "cut"),
    [
        (None, 4),
        (3, 10),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((None, 1), (None, 10), (3, 1), (3, 4))),
    ],
)
def test_an_interrupted_training_resumes(chunk: int | None, cut: int, tmp_path: Path) -> None:
    parties, _ = exclusive_or()
    shares = {"shares": {} if chunk is None else {"chunk": chunk}}
    job = make_job({}, model=vfl.Logistic(pairs=6), **(SHORT | {"protocol": shares, "evaluate_every": 5}))

    def on_round(done: int, of: int) -> None:
        if done == cut:
            raise Cut

    def checkpoints() -> dict[str, Checkpoints]:
        return {party.name: Checkpoints(tmp_path / party.name, party.name, every=1) for party in parties}

    with pytest.raises(Cut):
        vfl.simulate(job, parties, checkpoints=checkpoints(), on_round=on_round)
    run = vfl.simulate(job, parties, checkpoints=checkpoints())
    assert {len(part.state["pairs"]["opened"]) for part in run.parts.values()} == {10}
    assert run.metrics["auc"] > 0.68


def correlated(rows: int, noise: float) -> list[vfl.Party]:
    """Return two parties with the same four columns up to noise, whose products are correlated."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(rows, 4))
    y = (X[:, 0] + X[:, 0] * X[:, 1] + rng.logistic(size=rows) > 0).astype(int)
    return parties_of([X, X + noise * rng.normal(size=X.shape)], y)


@pytest.mark.parametrize(
    ("rows", "noise", "rollback", "first"),
    [
        (800, 1.0, [20, 10], 2.0),
        (4000, 0.01, [10, 0], 1.0),
        pytest.param(800, 1.0, [20, 10], 1.0, marks=pytest.mark.slow),
        pytest.param(4000, 0.01, [10, 0], 2.0, marks=pytest.mark.slow),
    ],
)
def test_a_training_on_correlated_columns_rolls_back_and_learns(
    rows: int, noise: float, rollback: list[int], first: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With similar columns at both parties, products are correlated, and long steps of pairs increase the loss."""
    monkeypatch.setattr(pair_components, "PAIR_RIDGE", 300 / 144)  # the steps of pairs are nearly as long as others
    parties = correlated(rows, noise)
    keys = BASE if first == 2 else BASE | {"optimizer": {"name": "block_descent"}, "epochs": 30, "evaluate_every": 10}
    run, alone = (
        vfl.simulate(make_job({}, model=vfl.Logistic(pairs=pairs), **keys | {"test_fraction": 0.25}), parties)
        for pairs in (12, 0)
    )
    assert run.active.state["sizes"]["rollbacks"] == [rollback]
    assert run.metrics["loss"] < alone.metrics["loss"] + 0.01
    assert run.metrics["auc"] > alone.metrics["auc"] - 0.01


@pytest.mark.parametrize(("rows", "noise"), [(800, 1.0), (4000, 0.01), pytest.param(8000, 0.0, marks=pytest.mark.slow)])
def test_the_loss_falls_on_small_tables_of_correlated_columns(rows: int, noise: float) -> None:
    """With few rows for each product, the steps of pairs are so short that a job without evaluations learns as well."""
    parties = correlated(rows, noise)
    keys = BASE | {"test_fraction": 0.25, "evaluate_every": 0}
    run, alone = (vfl.simulate(make_job({}, model=vfl.Logistic(pairs=pairs), **keys), parties) for pairs in (12, 0))
    assert run.metrics["loss"] < alone.metrics["loss"] + 0.005


@pytest.mark.parametrize("model", ["trees", "logistic"])
@pytest.mark.parametrize("rows", [1_000, 20_000, 32_000, 500_000, 1_000_000])
def test_steps_after_a_rollback_are_not_rounded_to_nothing(model: str, rows: int) -> None:
    job = vfl.Job.from_dict({"model": {"name": model, "pairs": 16}} | BASE)
    assert can_roll_back(job)  # type: ignore[arg-type]
    plan = make_plan(job, rows=rows, batches=1, parties=2, rollbacks=((10, 0),))  # type: ignore[arg-type]
    assert isinstance(plan.rule, FixedCoefficients)
    exact = np.asarray(plan.rule.coefficients(30, result=True))
    rounded = pair_params(job, plan, (16, 16), rows).integers(exact).view(np.int64)  # type: ignore[arg-type]
    assert rounded.sum() == pytest.approx(exact.sum() * pair_params(job, plan, (16, 16), rows).scale, rel=0.02)  # type: ignore[arg-type]


def test_a_stored_model_keeps_its_numbers() -> None:
    """Another version may choose another ring or other factors, which do not fit the stored gradients."""
    parties, _ = exclusive_or(900)
    job = make_job({}, model=vfl.Logistic(pairs=4), **SHORT)
    sizes = vfl.simulate(job, parties).active.state["sizes"]
    trained = SharesFacts.restore(job, sizes, 2).pair_params  # type: ignore[arg-type]
    assert trained is not None
    assert sizes["pair_numbers"] == [trained.bits, trained.scale]
    bits, scale = trained.bits + 4, trained.scale / 3
    restored = SharesFacts.restore(job, sizes | {"pair_numbers": [bits, scale]}, 2).pair_params  # type: ignore[arg-type]
    assert restored == replace(trained, bits=bits, scale=scale, shift=trained.shift - 4)


def test_a_resumed_training_keeps_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first iterations are those of a version that chooses another ring and other factors."""
    parties, _ = exclusive_or(900)
    job = make_job({}, model=vfl.Logistic(pairs=4), **SHORT)

    def on_round(done: int, of: int) -> None:
        if done == 4:
            raise Cut

    def checkpoints() -> dict[str, Checkpoints]:
        return {party.name: Checkpoints(tmp_path / party.name, party.name, every=1) for party in parties}

    def of_another_version(*facts: Any) -> PairParams:
        params = pair_params(*facts)
        return replace(params, bits=params.bits + 8, shift=params.shift - 8, scale=256 * params.scale)

    with pytest.raises(Cut):
        vfl.simulate(job, parties, checkpoints=checkpoints(), on_round=on_round)
    with monkeypatch.context() as patch:
        patch.setattr(shares_facts, "pair_params", of_another_version)
        run = vfl.simulate(job, parties, checkpoints=checkpoints())
        resumed = SharesFacts.restore(job, run.active.state["sizes"], 2).pair_params  # type: ignore[arg-type]
    assert resumed is not None
    assert resumed.bits == 40
    assert run.metrics["auc"] > 0.68


def test_pairs_keep_their_weights_after_the_second_rollback() -> None:
    """From then on, the training takes only steps that are safe for all columns."""
    job = vfl.Job.from_dict({"model": {"name": "logistic", "pairs": 4}} | BASE)
    rollbacks = ((10, 0), (20, 10))
    assert [can_roll_back(job, rollbacks[:number]) for number in range(3)] == [True, True, False]  # type: ignore[arg-type]
    rule = make_plan(job, rows=900, batches=1, parties=2, rollbacks=rollbacks).rule  # type: ignore[arg-type]
    assert isinstance(rule, FixedCoefficients)
    assert not np.any(rule.coefficients(30))
    assert np.all(np.array(rule.row(30))[20:] > 0)


def test_several_batches_train_pairs() -> None:
    parties, _ = exclusive_or(1500)
    job = make_job({}, model=vfl.Logistic(pairs=6), **(SHORT | {"batch_size": 400, "epochs": 4}))
    assert vfl.simulate(job, parties).metrics["auc"] > 0.68


def test_stored_parts_score_as_the_run_does(tmp_path: Path) -> None:
    parties, _ = exclusive_or()
    run = vfl.simulate(make_job({}, model=vfl.Trees(pairs=6, trees=2, depth=2), **SHORT), parties)
    columns = {party.name: party.X[:200] for party in parties}
    expected = run.decision(columns)
    run.save(tmp_path)
    np.testing.assert_allclose(vfl.Run.load(tmp_path).decision(columns), expected, atol=2e-2)
    part = vfl.Run.load(tmp_path).active
    with raises_code(ConfigError, "SVFL-MODEL-NO-WEIGHTS") as refused:
        part.explain(parties[0].X[:3])
    assert "pairs" in str(refused.value)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "square loss": ({"model": {"name": "trees", "pairs": 4, "loss": "square"}}, "logistic loss"),
    "several classes": ({"model": {"name": "trees", "pairs": 4, "loss": "one_vs_rest"}}, "logistic loss"),
    "counts": ({"model": {"name": "poisson", "pairs": 4}}, "pairs"),
    "an open residual": ({"protocol": "ckks"}, "model.pairs"),
    "FedSGD": ({"optimizer": {"name": "fedsgd", "lr": 0.1}}, "block_descent"),
    "a penalty": ({"model": {"name": "logistic", "pairs": 4, "l2": 0.1}}, "l2"),
    "opened weights": ({"protocol": {"shares": {"open_weights": ["bank"]}}}, "open_weights"),
    "too many components": ({"model": {"name": "logistic", "pairs": 17}}, "pairs"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_pairs_cannot_do_is_refused(kind: str) -> None:
    keys, words = REFUSED[kind]
    with raises_code(ConfigError, "SVFL-JOB-OPTION") as refused:
        vfl.Job.from_dict({"model": {"name": "logistic", "pairs": 4}} | keys)
    assert words in str(refused.value)


def test_too_many_products_are_refused() -> None:
    parties, _ = exclusive_or()
    job = vfl.simulate(make_job({}, model=vfl.Logistic(pairs=2), **(SHORT | {"epochs": 1})), parties).job
    plan = make_plan(job, rows=900, batches=1, parties=2)  # type: ignore[arg-type]
    with raises_code(ConfigError, "SVFL-JOB-TOO-LARGE") as refused:
        pair_params(job, plan, (16, 16), 10_000_000)  # type: ignore[arg-type]
    assert "et pairs to at most 7" in str(refused.value)


def test_explain_prints_memory_and_the_requesters_choice() -> None:
    parties, _ = exclusive_or()
    printed = str(vfl.explain(make_job({}, model=vfl.Logistic(pairs=9), **SHORT), parties))
    assert "pairs: 9 x 9 products of 900 rows" in printed
    assert "it can choose which mixture of the columns of shop the score of a row shows" in " ".join(printed.split())
    assert re.search(r"It refuses requests that would exceed [\d,]+ bits", " ".join(printed.split()))

"""Trees on shares compared with the same trees in floating point; refusals, storage, resumption and notices."""

from __future__ import annotations

import importlib
import json
import math
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import raises_code
from selfcheck.whole_weights import whole_weights
from sklearn.metrics import roc_auc_score

import securevfl as vfl
from securevfl.errors import ConfigError, DataError, DataNotice, LabelError, LeakageError
from securevfl.families.state import State
from securevfl.models import boosted_score, trees
from securevfl.models.boosted_score import Boosted, out_of_fold
from securevfl.models.forest_inputs import ForestInputs
from securevfl.models.inputs import InputShape
from securevfl.options import Patience
from securevfl.training.checkpoint import Checkpoints

sys.path.insert(0, str(Path(__file__).parent))
oracle = importlib.import_module("forest_oracle")

SMALL_TREES: dict[str, Any] = {"trees": 6, "depth": 3}


def trees_job(model: vfl.Trees | None = None, **keys: Any) -> vfl.Job:
    defaults: dict[str, Any] = {
        "model": model or vfl.Trees(**SMALL_TREES),
        "protocol": vfl.Protocol(shares=vfl.Shares()),
    }
    return vfl.Job(**(defaults | {"test_fraction": 0.3} | keys))


def mixed_parties(count: int = 2, rows: int = 600, *, gaps: bool = True) -> list[vfl.Party]:
    """Return numbers with missing values and heavy tails, and texts; labels depend
    non-linearly on columns of all parties.
    """
    rng = np.random.default_rng(count)
    tables, f = [], np.zeros(rows)
    for _ in range(count):
        X = rng.standard_t(3, size=(rows, 3))
        f += 4.0 * (np.abs(X[:, 0]) < 0.7) + X[:, 1] - 0.8
        texts = rng.choice(["red", "green", "blue"], rows)
        f += texts == "red"
        X[rng.random(rows) < 0.1, 2] = np.nan if gaps else 0.0
        tables.append(np.column_stack([X.astype(object), texts]))
    y = (f + rng.logistic(size=rows) > f.mean()).astype(int)
    names = ("bank", "shop", "telco")
    return [vfl.Party(names[k], table, y if k == 0 else None, ids=np.arange(rows)) for k, table in enumerate(tables)]


def inputs_of(run: vfl.Run, tables: list[vfl.Party]) -> tuple[list[Any], Any, Any]:
    """Return every party's model inputs by a slow version, and the training and held-out rows."""
    schedule = run.job.schedule(tables[0].register)
    train, test, matrices = schedule.train, schedule.test, []
    for party in tables:
        part = run.parts[party.name]
        stored = ForestInputs.read(part.state["inputs"])
        X = part.preparation.apply(party.table)
        blocks = [oracle.leaves(X, stored.forest), oracle.lines(X, X[train], run.job.model.linear)]
        if stored.cosines is not None:
            blocks.append(stored.cosines(X))
        if stored.intercept:
            blocks.append(np.ones((len(X), 1)))
        matrices.append(np.hstack(blocks))
    return matrices, train, test


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 3])
def test_a_run_is_that_of_floats(count: int) -> None:
    """Table entries are at distance 1/8, because random rounding has a larger effect on few rows."""
    tables, fine = mixed_parties(count), vfl.Protocol(shares=vfl.Shares(table_bits=8, step=0.125))
    steps: dict[str, Any] = {"optimizer": vfl.BlockDescent(), "batch_size": "all", "epochs": 12}
    run = vfl.simulate(
        trees_job(vfl.Trees(**SMALL_TREES, boosted_score=False), protocol=fine, **steps), tables, workers=1
    )
    matrices, train, test = inputs_of(run, tables)
    y = np.where(tables[0].y == 1, 1.0, -1.0)[:, None]
    knots = np.arange(-128.0, 129.0) / 8

    def residual(f: Any) -> Any:
        at = [np.interp(f[:, 0], knots, -label / (1 + np.exp(label * knots))) for label in (1.0, -1.0)]
        return np.where(y[train][: len(f)] > 0, at[0][:, None], at[1][:, None])

    # a party without the intercept changes no mean
    about = [matrices[0], *(X - X[train].mean(axis=0) for X in matrices[1:])]
    at = oracle.descend([X[train] for X in about], residual, 0.25, 60 / len(train), 12)
    exact = sum(X[test] @ theta for X, theta in zip(about, at, strict=True))[:, 0]
    theta = whole_weights(run.job, {name: part.state for name, part in run.parts.items()}, "bank")
    f = sum(X[test] @ theta[party.name] for X, party in zip(matrices, tables, strict=True))[:, 0]
    assert np.abs(f - exact).mean() <= 0.03
    assert abs(roc_auc_score(y[test], f) - roc_auc_score(y[test], exact)) <= 0.004
    # randomly rounded scores: the metric has a standard deviation of 0.0011
    assert run.metrics["auc"] == pytest.approx(roc_auc_score(y[test], f), abs=0.008)
    assert run.costs.rounds == 12


def test_of_many_rows_trees_and_the_own_score_are_made_by_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows to which trees were fitted are scored by trees of other folds, all other training rows like new ones."""
    features, tables = dict[int, Any](), mixed_parties(rows=400)
    trained = ForestInputs.trained

    def noted(self: ForestInputs, X: Any, rows: Any) -> Any:
        if self.score is not None:
            assert len(self.score.trained) == 100
            features.update(zip(rows.tolist(), X, strict=True))
        return trained(self, X, rows)

    monkeypatch.setattr("securevfl.data.schedule.MAX_FITTING_ROWS", 100)
    monkeypatch.setattr(ForestInputs, "trained", noted)
    run = vfl.simulate(trees_job(), tables)
    part, seen = run.parts["bank"], run.job.schedule(tables[0].register).fitting_rows
    X = part.preparation.apply(tables[0].table)[seen]
    assert sorted(features) == list(range(100))
    np.testing.assert_array_equal(np.stack([features[at] for at in range(100)]), X)
    assert ForestInputs.read(part.state["inputs"]).forest.counts.sum(axis=1).tolist() == [100] * 3
    assert run.metrics["auc"] > 0.7


def test_only_the_party_with_labels_moves_the_mean() -> None:
    """Otherwise, steps of two parties along their leaves would together be twice too long,
    and the mean would oscillate.
    """
    tables = mixed_parties(rows=400)
    keys: dict[str, Any] = {"optimizer": vfl.BlockDescent(lr=2), "batch_size": "all", "epochs": 10}
    run = vfl.simulate(trees_job(vfl.Trees(**SMALL_TREES, boosted_score=False), **keys), tables, workers=1)
    matrices, train, _ = inputs_of(run, tables)
    theta = whole_weights(run.job, {name: part.state for name, part in run.parts.items()}, "bank")["shop"]
    H = matrices[1][train] @ theta
    assert abs(H.mean()) < 0.01 < 0.1 < H.std()  # W is rounded


def test_the_model_is_that_of_the_least_loss_of_rows_held_out() -> None:
    """With hardly any penalty, the loss rises from the first evaluation on."""
    run = vfl.simulate(trees_job(vfl.Trees(trees=20, boosted_score=False, ridge=2e-3)), mixed_parties())
    losses = [record["loss"] for record in run.history if "loss" in record]
    assert run.metrics["loss"] == min(losses) < losses[-1]


def test_trees_bend_where_lines_cannot() -> None:
    tables = mixed_parties()
    line = vfl.simulate(trees_job(vfl.Logistic(), optimizer=vfl.BlockDescent(), batch_size="all", epochs=12), tables)
    assert vfl.simulate(trees_job(), tables).metrics["auc"] > line.metrics["auc"] + 0.05


def test_an_exclusive_or_of_two_parties_is_not_learnt() -> None:
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(2, 2000, 3))
    y = ((A[:, 0] > 0) ^ (B[:, 0] > 0)).astype(int)
    tables = [vfl.Party("bank", A, y, ids=np.arange(2000)), vfl.Party("shop", B, ids=np.arange(2000))]
    assert vfl.simulate(trees_job(epochs=12), tables).metrics["auc"] < 0.58
    assert "such as an exclusive or, are not learned" in vfl.explain(trees_job(), tables)


@pytest.mark.slow
def test_other_losses() -> None:
    tables = mixed_parties()
    X = tables[0].X
    number = [vfl.Party("bank", X[:, :2], 3 * np.abs(X[:, 0]) + X[:, 1], ids=tables[0].ids), tables[1]]
    assert vfl.simulate(trees_job(vfl.Trees(**SMALL_TREES, loss="square")), number).metrics["r2"] > 0.5
    several = [vfl.Party("bank", X[:, 1:2], np.digitize(X[:, 0], [-0.7, 0.7]), ids=tables[0].ids), tables[1]]
    both = vfl.Trees(**SMALL_TREES, loss="one_vs_rest")
    run = vfl.simulate(trees_job(both), several)
    assert run.active.outputs == 3
    hinge = vfl.Trees(**SMALL_TREES, loss="smooth_hinge", boosted_score=False)
    assert vfl.simulate(trees_job(hinge, epochs=12), tables).metrics["auc"] > 0.75


class Cut(Exception):
    """Raised in place of a lost process."""


def resumed_job(score: bool) -> vfl.Job:
    return trees_job(vfl.Trees(**SMALL_TREES, boosted_score=score), epochs=12)


@cache
def undisturbed_auc(score: bool) -> float:
    return vfl.simulate(resumed_job(score), mixed_parties(rows=300)).metrics["auc"]


@pytest.mark.parametrize(("at", "score"), [(2, True), (10, False), (11, False)])
def test_a_run_goes_on_with_the_trees_it_had(at: int, score: bool, tmp_path: Path) -> None:
    tables, work = mixed_parties(rows=300), resumed_job(score)

    def kept() -> dict[str, Checkpoints]:
        return {party.name: Checkpoints(tmp_path / party.name, party.name, every=1) for party in tables}

    def on_round(done: int, of: int) -> None:
        if done == at:
            raise Cut

    with pytest.raises(Cut):
        vfl.simulate(work, tables, checkpoints=kept(), on_round=on_round)
    (state,) = (tmp_path / "shop").glob(f"*.round-{at}.json")
    before = State.read(json.loads(state.read_text())["state"])["inputs"]
    run = vfl.simulate(work, tables, checkpoints=kept())
    assert [record["round"] for record in run.history if "loss" in record] == [10]
    assert run.costs.rounds == 12
    # scores of 75 rows are rounded at random, which changes the AUC by up to 0.01
    assert run.metrics["auc"] == pytest.approx(undisturbed_auc(score), abs=0.05)
    after = run.parts["shop"].state["inputs"]
    for name in ("cuts", "columns", "sides", "merged"):
        np.testing.assert_array_equal(after["forest"][name], before["forest"][name])


def test_a_saved_part_predicts_and_has_no_training_row(tmp_path: Path) -> None:
    members = mixed_parties()
    run = vfl.simulate(trees_job(epochs=2), members)
    run.save(tmp_path)
    tables = {party.name: party.table for party in mixed_parties(rows=40)}
    again = vfl.Run.load(tmp_path)
    np.testing.assert_allclose(again.decision(tables), run.decision(tables), atol=1e-3)
    score = ForestInputs.read(again.active.state["inputs"]).score
    assert score is not None
    assert not len(score.trained)
    with raises_code(DataError, "SVFL-MODEL-NO-WEIGHTS"):
        again.active.coefficients()


def test_a_fold_is_scored_by_weighted_fits_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is scored once, by trees that were fitted to other rows, and folds are dealt by the key."""
    fits, place = list[tuple[list[int], list[float]]](), np.arange(53.0)
    X, weights = place[:, None], 1 + place / 10

    class Fitted:
        """Record which rows it scores."""

        @classmethod
        def fit(cls, X: Any, targets: Any, *, classifies: bool, weights: Any) -> Fitted:
            fits.append((X[:, 0].astype(int).tolist(), weights.tolist()))
            return cls()

        def __call__(self, X: Any) -> Any:
            assert not set(X[:, 0].astype(int).tolist()) & set(fits[-1][0])
            return X

    monkeypatch.setattr(boosted_score, "Boosted", Fitted)
    dealt = []
    for key in (bytes(32), bytes(31) + b"1"):
        fits.clear()
        scores, _ = out_of_fold(X, np.where(place % 3, 1.0, -1.0)[:, None], key, classifies=True, weights=weights)
        np.testing.assert_array_equal(scores, X)
        assert [len(rows) for rows, _ in fits] == [42, 42, 42, 43, 43, 53]
        assert all(fold_weights == weights[rows].tolist() for rows, fold_weights in fits)
        dealt.append([sorted(rows) for rows, _ in fits])
    assert dealt[0][:5] != dealt[1][:5]


def test_the_own_score_is_out_of_fold_and_of_plain_numbers() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4))
    noise = np.where(rng.random(400) < 0.5, 1.0, -1.0)[:, None]
    scores, trees = out_of_fold(X, noise, bytes(32), classifies=True)
    assert abs(roc_auc_score(noise, scores) - 0.5) < 0.08
    assert roc_auc_score(noise, trees(X)) > 0.9
    again = Boosted.read(trees.state())
    np.testing.assert_array_equal(again(X), trees(X))
    from sklearn.ensemble import HistGradientBoostingClassifier

    same = HistGradientBoostingClassifier(max_iter=60, early_stopping=False, random_state=0).fit(X, noise[:, 0] > 0)
    np.testing.assert_allclose(trees(X)[:, 0], same.decision_function(X), atol=1e-9)


def test_held_out_labels_are_not_in_the_own_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inputs of the score are identical to the bit, whatever labels the held-out rows have."""
    tables = mixed_parties(rows=300)
    test = trees_job().schedule(tables[0].register).test
    y = tables[0].y.copy()
    y[test] = 1 - y[test]
    turned, fits = [vfl.Party("bank", tables[0].table, y, ids=tables[0].ids), tables[1]], list[list[Any]]()

    def noted(X: Any, targets: Any, key: bytes, *, weights: Any = None, **keywords: Any) -> Any:
        fits.append([X, targets, np.zeros(0) if weights is None else weights])
        return out_of_fold(X, targets, key, weights=weights, **keywords)

    monkeypatch.setattr(trees, "out_of_fold", noted)
    for variant in (tables, turned):
        vfl.simulate(trees_job(weights={"classes": "balanced", "max_weight": 6.0}, epochs=1), variant)
    one, other = fits
    for own_part, other_part in zip(one, other, strict=True):
        np.testing.assert_array_equal(own_part, other_part)
    assert len(one[1]) == len(one[2]) == 300 - len(test)


def test_a_score_of_no_use_keeps_its_column() -> None:
    model = vfl.Trees(**SMALL_TREES)
    spread = InputShape(active=True, columns=5, outputs=1, parties=2, rows=300)
    assert model.breadth(spread) == 3 * 8 + 5 + 1 + 1
    assert vfl.Trees(**SMALL_TREES, boosted_score=False).breadth(spread) == 6 * 8 + 5 + 16 + 1
    passive = InputShape(active=False, columns=5, outputs=1, parties=2, rows=300)
    assert model.breadth(passive) == 9 * 8 + 5 + 24
    assert vfl.Trees(**SMALL_TREES, cosines=7).breadth(passive) == 9 * 8 + 5 + 7
    assert model.breadth(replace(passive, opened=True)) == 9 * 8 + 5
    assert vfl.Trees().count(passive) == 150
    assert [vfl.Trees(boosted_score=False).count(InputShape(False, 5, 1, 2, n)) for n in (10_000, 50_000, 60_000)] == [
        100,
        50,
        25,
    ]


@pytest.mark.parametrize(
    ("keys", "remedy"),
    [
        ({"protocol": "ckks"}, "add a section [protocol.shares]"),
        ({"protocol": "open"}, "add a section [protocol.shares]"),
        ({"protocol": vfl.Protocol(sum="pairwise", residual="ckks")}, "add a section [protocol.shares]"),
        ({"scale": "robust"}, "leave scale out"),
        ({"optimizer": vfl.BlockDescent(ridge=0.1)}, "set model.ridge"),
        ({"prepare": {"texts": "codes"}}, 'use "one_hot"'),
    ],
)
def test_what_does_not_fit_is_refused_with_a_remedy(keys: dict[str, Any], remedy: str) -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION") as refused:
        trees_job(**keys)
    assert remedy in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "remedy"),
    [
        ({"trees": 400}, "at most 341 for depth 4"),
        ({"trees": 513, "boosted_score": False}, "at most 512 for depth 4"),
        ({"depth": 9}, "less than or equal to 8"),
        ({"bins": 256}, "less than or equal to 255"),
        ({"ridge": 0.0}, "from 0.0001 to 1000"),
    ],
)
def test_sizes_beyond_the_limits_are_refused_with_what_fits(keys: dict[str, Any], remedy: str) -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION") as refused:
        vfl.Trees(**keys)
    assert remedy in str(refused.value)


def test_as_many_weights_as_labels_are_not_opened() -> None:
    tables, opened = mixed_parties(rows=100), vfl.Protocol(shares=vfl.Shares(open_weights=("shop",)))
    from securevfl.consent.leak_check import check_leaks
    from securevfl.families.run_facts import pooled_run_facts

    work = trees_job(protocol=opened)
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED"):
        check_leaks(work, pooled_run_facts(work, tables).shape)
    few = trees_job(vfl.Trees(trees=2, depth=2), protocol=opened, accepts=("small_metrics", "scores", "opened_weights"))
    check_leaks(few, pooled_run_facts(few, tables).shape)
    run = vfl.simulate(few, tables)
    forest = ForestInputs.read(run.parts["shop"].state["inputs"]).forest
    for into, counts in zip(forest.merged.astype(int), forest.counts, strict=True):
        leaf_rows = np.bincount(into, counts)
        assert leaf_rows[leaf_rows > 0].min() >= 20
    assert "theta" in run.parts["shop"].state
    assert "theta" not in run.active.state


def test_a_job_file(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('model = { name = "trees", trees = 4, depth = 2 }\n[protocol.shares]\n')
    read = vfl.Job.load(path)
    assert vfl.Job(model="trees", optimizer=vfl.FedSGD(lr=0.1)).batch_size == "all"
    assert (read.optimizer.name, read.optimizer.lr, read.batch_size, read.epochs) == ("block_descent", 2, "growing", 30)
    assert (read.evaluate_every, read.patience, read.test_fraction) == (10, Patience(evaluations=1), 0.25)
    for keys in ({"test_fraction": 0.0}, {"evaluate_every": 0}, {"epochs": 10}):
        safe = vfl.Job(model="trees", **keys)
        assert (safe.optimizer.lr, safe.evaluate_every, safe.patience) == (1, 0, None)
        assert safe.epochs == keys.get("epochs", 12)
    assert vfl.Job.from_dict(read.to_dict()) == read


def test_rare_classes_may_weigh_as_much() -> None:
    tables = mixed_parties(rows=300)
    rare = (tables[0].y == 1) & (np.arange(300) % 4 == 0)
    table = [vfl.Party("bank", tables[0].table, rare.astype(int), ids=tables[0].ids), tables[1]]
    small = vfl.Trees(trees=4, depth=2, boosted_score=False)
    plain, even = (
        vfl.simulate(trees_job(small, weights=class_weights), table)
        for class_weights in (None, {"classes": "balanced", "max_weight": 6.0})
    )
    later = [run.predict_proba({party.name: party.table for party in table})[:, 1].mean() for run in (plain, even)]
    assert later[1] > later[0] + 0.1


def test_classes_are_one_against_the_rest_unless_a_loss_is_named() -> None:
    tables = vfl.datasets.breast_cancer()
    y = np.digitize(tables[0].X[:, 0], np.quantile(tables[0].X[:, 0], [0.25, 0.5, 0.75]))
    labelled = [vfl.Party("bank", tables[0].X, y, aligned=True), vfl.Party("shop", tables[1].X, aligned=True)]
    job = vfl.Job(model=vfl.Trees(trees=4, depth=2, boosted_score=False), epochs=4)
    with pytest.warns(DataNotice, match="trees learn each class against all others"):
        run = vfl.simulate(job, labelled)
    assert run.job.model.loss.name == "one_vs_rest"
    assert run.predict_proba({"bank": tables[0].X[:5], "shop": tables[1].X[:5]}).shape == (5, 4)
    assert run.metrics["auc"] > 0.65  # 0.90 over 20 runs, whose trees are drawn afresh, with a deviation of 0.036
    with raises_code(LabelError, "SVFL-LABEL-CLASSES", classes=4):
        vfl.simulate(vfl.Job(model=vfl.Trees(trees=4, depth=2, loss="logistic"), epochs=4), labelled)


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_class_with_one_row_has_similar_scores_in_all_folds(outputs: int, sign: float) -> None:
    """The other folds contain no row of the class, or all others, so no tree can be fitted to them."""
    rng, rows = np.random.default_rng(0), 1000
    X, y = rng.normal(size=(rows, 3)), np.where(rng.random((rows, outputs)) < 0.5, 1.0, -1.0)
    y[:, -1] = -sign
    y[17, -1] = sign
    scores, _ = out_of_fold(X, y, bytes(32), classifies=True)
    others, of_its_fold = np.delete(scores[:, -1], 17) * sign, float(scores[17, -1]) * sign
    assert of_its_fold == pytest.approx(-math.log(2 * 800 + 1), abs=0.01)
    assert others.min() < of_its_fold < others.max()
    assert abs(np.median(others) - of_its_fold) < 6

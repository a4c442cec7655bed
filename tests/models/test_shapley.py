"""Shapley values of a party's trees against all orders of its columns, and who may ask for them."""

from __future__ import annotations

from itertools import combinations
from math import factorial
from typing import Any

import numpy as np
import pytest
from builders import raises_code

import securevfl as vfl
from securevfl.data.columns import columns_of
from securevfl.data.forest import Forest
from securevfl.data.linear_features import LinearFeatures
from securevfl.data.preparation import FittedPreparation, Preparation, fit_preparation
from securevfl.errors import ConfigError, DataError, PartiesError
from securevfl.models.boosted_score import Boosted, BoostedTree, ScoreColumn, out_of_fold
from securevfl.models.forest_inputs import ForestInputs
from securevfl.models.shapley import shapley_values


def by_subsets(worth: Any, players: int) -> Any:
    """The Shapley values of a game, by its definition."""
    values = [0.0] * players
    for i in range(players):
        others = [j for j in range(players) if j != i]
        for size in range(players):
            weight = factorial(size) * factorial(players - size - 1) / factorial(players)
            for S in combinations(others, size):
                values[i] += weight * (worth({*S, i}) - worth(set(S)))
    return np.array(values)


def expected(forest: Forest, tree: int, values: Any, bits: int, known: set[int]) -> float:
    """Return the value of a tree if the answers of known columns are those of `bits`."""

    def walk(level: int, leaf: int, leaf_values: Any) -> float:
        if level == forest.depth:
            return float(values[leaf])
        pair = leaf_values.reshape(-1, 2).sum(axis=0)
        shares = pair / pair.sum() if pair.sum() else np.array([0.5, 0.5])
        if int(forest.columns[tree, level]) in known:
            shares = np.eye(2)[bits >> level & 1]
        return sum(
            shares[bit] * walk(level + 1, leaf | bit << level, leaf_values[bit::2]) for bit in (0, 1) if shares[bit]
        )

    return walk(0, 0, forest.counts[tree])


def of_tree(tree: BoostedTree, row: Any, known: set[int], node: int = 0) -> float:
    if tree.left[node] == 0:
        return float(tree.value[node])
    low, high = int(tree.left[node]), int(tree.right[node])
    if int(tree.column[node]) in known:
        return of_tree(tree, row, known, low if row[tree.column[node]] <= tree.threshold[node] else high)
    share = tree.rows[low] / tree.rows[node]
    return share * of_tree(tree, row, known, low) + (1 - share) * of_tree(tree, row, known, high)


@pytest.fixture
def inputs() -> tuple[ForestInputs, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    X[:, 2] = rng.integers(0, 3, 300)
    # some nodes have no training row, because the trees are drawn from a few
    forest = Forest.draw(X[:40], FittedPreparation(["a", "b", "c"]).sources, bytes(32), trees=6, depth=4, bins=8)
    y = np.where(X[:, 0] * X[:, 1] + X[:, 2] > 1, 1.0, -1.0)[:, None]
    scores, trees = out_of_fold(X, y, bytes(32), classifies=True)
    few = Boosted(trees.base, (trees.trees[0][:4],))
    score = ScoreColumn(few, scores, scores.mean(axis=0), scores.std(axis=0))
    return ForestInputs(forest, LinearFeatures.fit(X, 0.3), score, None, intercept=True), X


def test_values_are_those_of_all_orders(inputs: tuple[ForestInputs, Any]) -> None:
    """At training rows, and at new rows in nodes without any training row."""
    forest_inputs, X = inputs
    theta = np.random.default_rng(1).normal(size=(forest_inputs(X).shape[1], 1))
    leaves, forest = forest_inputs.forest.numbers(X).astype(np.intp), forest_inputs.forest
    is_new = (forest.counts[np.arange(6), leaves] == 0).any(axis=1)
    rows = np.vstack([X[:5], X[is_new][:5]])
    assert len(rows) == 10
    attribution = shapley_values(forest_inputs, theta, rows)
    np.testing.assert_allclose(attribution.total, forest_inputs(rows) @ theta, atol=1e-9)
    numbers, lines, score = forest_inputs.forest.numbers(rows), forest_inputs.lines, forest_inputs.score
    assert lines is not None
    assert score is not None
    trees = score.trees.trees[0]
    per = 0.3 / score.deviation[0] * theta[99, 0]
    for i, row in enumerate(rows):

        def worth(known: set[int], i: int = i, row: Any = row) -> float:
            total = 0.0
            for tree in range(6):
                values = forest_inputs.value * theta[tree * 16 : (tree + 1) * 16, 0]
                total += expected(forest_inputs.forest, tree, values, int(numbers[i, tree]), known)
            straight = np.where([j in known for j in range(3)], lines(row[None])[0], lines.centre)
            total += float(straight @ theta[96:99, 0])
            return total + per * sum(of_tree(tree, row, known) for tree in trees)

        exact = by_subsets(worth, 3)
        alone = by_subsets(lambda known, row=row: per * sum(of_tree(tree, row, known) for tree in trees), 3)
        straight = per * (score.trees(row[None])[0, 0] - score.mean[0])
        lost = score.scaled(score.trees(row[None]))[0, 0] * theta[99, 0] - straight  # on the grid of columns
        exact += lost * np.abs(alone) / np.abs(alone).sum()
        np.testing.assert_allclose([attribution.columns[name][i, 0] for name in "abc"], exact, atol=1e-9)


def test_all_features_of_a_column_count_for_it() -> None:
    """A column with missing values has two features. One of them marks these values."""
    draw = np.random.default_rng(3)
    table = draw.normal(size=(300, 4))
    table[:, 3] = draw.integers(0, 3, 300)
    for column in (1, 2):
        table[draw.random(300) < 0.2, column] = np.nan
    rows = np.arange(300, dtype=np.intp)
    columns = columns_of("bank", table, list("abcd"))
    fitted = fit_preparation("bank", columns, rows, Preparation(tails="keep"))
    X = fitted.apply(columns)
    missing = [source.missing for source in fitted.sources]
    assert missing[0] is None
    assert None not in missing[1:3]
    forest = Forest.draw(X, fitted.sources, bytes(32), trees=3, depth=2, bins=8)
    inputs = ForestInputs(forest, LinearFeatures.fit(X, 0.3), None, None, intercept=True)
    lines, theta = inputs.lines, np.zeros((inputs(X).shape[1], 1))
    assert lines is not None
    theta[12 : 12 + X.shape[1], 0] = draw.normal(size=X.shape[1])  # the leaves of trees have the weight 0
    attribution, counted = shapley_values(inputs, theta, X), 0
    for source in fitted.sources:
        features = [*source.at] + ([] if source.missing is None else [source.missing])
        of_source = (lines(X) - lines.centre)[:, features] @ theta[12:][features]
        np.testing.assert_allclose(attribution.columns[source.name], of_source, atol=1e-12)
        counted += len(features)
    assert counted == X.shape[1] == 6


def run(opened: tuple[str, ...] = ("shop",)) -> tuple[vfl.Run, list[vfl.Party]]:
    tables = vfl.datasets.breast_cancer()
    shares = vfl.Protocol(shares=vfl.Shares(open_weights=opened))
    return vfl.simulate(vfl.Job(model=vfl.Trees(trees=4, depth=2), protocol=shares, test_fraction=0.25), tables), tables


def test_a_party_that_has_its_weights_may_ask() -> None:
    trained, tables = run()
    attribution = trained.explain("shop", tables[1].X[:7])
    assert set(attribution.columns) == set(tables[1].columns)
    assert attribution.total.shape == (7, 1)
    importance = trained.importance("shop")
    assert set(importance) == set(tables[1].columns)
    assert max(importance_value for (importance_value,) in importance.values()) > 0
    tree = trained.parts["shop"].trees[0]
    assert tree.weights is not None
    assert str(tree).count("rows") == 4
    assert "<svg" in tree._repr_svg_()
    assert f"{tree.weights[0, 0]:+.3f}" in tree._repr_svg_()


def test_others_are_refused_with_the_remedy(tmp_path: Any) -> None:
    trained, tables = run()
    for ask in (lambda: trained.explain("bank", tables[0].X[:7]), lambda: trained.importance("bank")):
        with raises_code(ConfigError, "SVFL-MODEL-NO-WEIGHTS"):
            ask()
    assert trained.active.trees[0].weights is None
    assert "+" not in str(trained.active.trees[0])
    with raises_code(PartiesError, "SVFL-PARTIES-NAME"):
        trained.explain("telco", tables[0].X[:7])
    trained.save(tmp_path)
    again = vfl.Run.load(tmp_path)
    assert again.importance("shop") == trained.importance("shop")
    line = vfl.Job(model=vfl.Logistic(), optimizer=vfl.FedSGD(lr=0.3), protocol="shares", epochs=1)
    with raises_code(DataError, "SVFL-MODEL-UNSUPPORTED"):
        _ = vfl.simulate(line, tables).active.trees

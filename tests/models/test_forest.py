"""A party's random trees: leaves equal those of a slow version, cuts depend only on
training rows, sizes reveal nothing.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl.data.columns import columns_of
from securevfl.data.forest import Forest, _merged, question_values
from securevfl.data.linear_features import LinearFeatures
from securevfl.data.preparation import FittedPreparation, Preparation, fit_preparation
from securevfl.families.state import State

sys.path.insert(0, str(Path(__file__).parent))
oracle = importlib.import_module("forest_oracle")

KEY = bytes(range(32))


def mixed(rows: int, seed: int) -> Any:
    """Return columns with missing values, heavy tails, repeated and constant values, and texts."""
    rng = np.random.default_rng(seed)
    tails = rng.standard_cauchy(rows)
    gaps = rng.normal(size=rows)
    gaps[rng.random(rows) < 0.2] = np.nan
    texts = rng.choice(["north", "east", "south", "west"], rows, p=[0.4, 0.3, 0.2, 0.1])
    few = rng.integers(0, 3, rows).astype(float)
    return np.column_stack(
        [
            np.asarray(column, object)
            for column in (tails, gaps, texts, few, few, np.full(rows, 7.0), rng.normal(size=rows))
        ]
    )


def prepared(table: Any, train: Any) -> tuple[FittedPreparation, Any]:
    columns = columns_of("bank", table)
    by = fit_preparation("bank", columns, train, Preparation())
    return by, by.apply(columns)


def drawn(X: Any, by: FittedPreparation, trees: int = 9, depth: int = 4, **keys: Any) -> Forest:
    return Forest.draw(X, by.sources, keys.pop("key", KEY), trees=trees, depth=depth, bins=8, **keys)


@pytest.mark.parametrize("seed", range(3))
def test_leaves_are_those_of_loops(seed: int) -> None:
    table, train = mixed(300, seed), np.arange(200)
    by, X = prepared(table, train)
    forest = drawn(X[train], by, key=bytes([seed] * 32))
    new = by.apply(columns_of("bank", np.vstack([mixed(40, seed + 50), [[1e9, None, "nowhere", 5.0, 5.0, 0.0, -1e9]]])))
    for rows in (X, new):
        features = forest.leaves(rows)
        assert features.dtype == np.uint8
        for i, row in enumerate(rows):
            assert features[i].tolist() == [oracle.leaf(row, forest, tree) for tree in range(9)]
        assert (oracle.leaves(rows, forest) > 0).sum(axis=1).tolist() == [9] * len(rows)
    assert (
        np.isnan(question_values(X, forest.sources, forest.orders)).sum(axis=0) > 0
    ).sum() == 1  # only the column with missing values


def test_lines_are_those_of_loops() -> None:
    by, X = prepared(mixed(300, 4), np.arange(200))
    features = LinearFeatures.fit(X[:200], 0.3)(X)
    np.testing.assert_allclose(features, oracle.lines(X, X[:200], 0.3), atol=1e-12)
    assert np.abs(features).max() <= 0.9 + 1e-12
    assert len(by.features) == X.shape[1]


def test_held_out_rows_move_no_cut() -> None:
    table, train = mixed(300, 1), np.arange(200)
    by, X = prepared(table, train)
    forest, lines = drawn(X[train], by), LinearFeatures.fit(X[train], 0.3)
    other = table.copy()
    other[200:] = mixed(100, 77)
    again, Z = prepared(other, train)
    assert again == by
    same = drawn(Z[train], again)
    np.testing.assert_array_equal(same.cuts, forest.cuts)
    np.testing.assert_array_equal(LinearFeatures.fit(Z[train], 0.3).mean, lines.mean)


def test_the_draw_is_of_the_key_and_sizes_are_of_no_table() -> None:
    by, X = prepared(mixed(200, 1), np.arange(200))
    one, same, other = drawn(X, by), drawn(X, by), drawn(X, by, key=bytes(32))
    np.testing.assert_array_equal(one.columns, same.columns)
    assert (one.columns != other.columns).any()
    for table in (np.zeros((50, 3)), np.ones((50, 3)) * np.arange(50)[:, None], np.eye(50)[:, :3]):
        flat = Forest.draw(table, FittedPreparation(["a", "b", "c"]).sources, KEY, trees=5, depth=3, bins=8)
        assert flat.merged.shape == (5, 8)
    assert set(drawn(X, by, depth=8).leaves(X)[:, 0].tolist()) <= set(range(256))


def test_no_column_comes_twice_in_a_tree_while_there_are_others() -> None:
    X = np.random.default_rng(0).normal(size=(100, 4))
    forest = Forest.draw(X, FittedPreparation(list("abcd")).sources, KEY, trees=30, depth=4, bins=8)
    assert all(sorted(row) == [0, 1, 2, 3] for row in forest.columns.tolist())
    alone = Forest.draw(X[:, :1], FittedPreparation(["a"]).sources, KEY, trees=5, depth=4, bins=8)
    assert not alone.columns.any()
    assert len(np.unique(alone.cuts)) > 1


def test_constant_columns_are_never_asked_about() -> None:
    X = np.column_stack([np.full(100, 3.0), np.random.default_rng(0).normal(size=100)])
    forest = Forest.draw(X, FittedPreparation(["same", "x"]).sources, KEY, trees=20, depth=2, bins=8)
    assert set(forest.columns.ravel().tolist()) == {1}
    idle = Forest.draw(X[:, :1], FittedPreparation(["same"]).sources, KEY, trees=3, depth=2, bins=8)
    assert not idle.leaves(np.array([[9.0], [-9.0]])).any()


def test_no_leaf_holds_a_row_fewer_than_the_fewest() -> None:
    """For all counts, one row less than the minimum is too few, and the minimum is enough."""
    draw = np.random.default_rng(0)
    for depth in (1, 2, 4):
        for counts in draw.integers(0, 25, (40, 2**depth)):
            into = _merged(counts, 20)
            leaf_rows = np.bincount(into, counts, minlength=2**depth)
            enough = counts.sum() >= 20
            assert (leaf_rows[leaf_rows > 0] >= 20).all() if enough else (leaf_rows > 0).sum() <= 1
    assert _merged(np.array([20, 19]), 20).tolist() == [0, 0]
    assert _merged(np.array([20, 20]), 20).tolist() == [0, 1]


def test_every_question_of_a_tree_is_drawn_by_itself() -> None:
    """Columns with equal numbers have equal cuts, and a tree draws one of the columns for each question."""
    X = np.tile(np.arange(500.0)[:, None], 4)
    forest = Forest.draw(X, FittedPreparation(list("abcd")).sources, KEY, trees=40, depth=4, bins=255)
    assert len(np.unique(forest.cuts)) > 90  # 120 of 254 on average, 40 if a tree had one place for all
    assert (forest.sides.sum(axis=0) % 40 > 0).all()


def test_small_leaves_count_as_a_neighbour() -> None:
    by, X = prepared(mixed(200, 3), np.arange(200))
    forest = drawn(X, by, min_leaf_rows=20)
    features = forest.leaves(X)
    for tree in range(len(forest)):
        counts = np.bincount(features[:, tree], minlength=16)
        into = forest.merged[tree].astype(int)
        np.testing.assert_array_equal(counts, np.bincount(into, forest.counts[tree], minlength=16))
        assert counts[counts > 0].min() >= 20


def test_it_comes_back_as_it_was_kept() -> None:
    by, X = prepared(mixed(200, 3), np.arange(200))
    forest, lines = drawn(X, by), LinearFeatures.fit(X, 0.3)
    stored = State.read(State(forest=forest.state(), lines=lines.state()).plain())
    np.testing.assert_array_equal(Forest.read(stored["forest"]).leaves(X), forest.leaves(X))
    np.testing.assert_array_equal(LinearFeatures.read(stored["lines"])(X), lines(X))
    assert "3" not in repr(forest).replace("9 trees", "")

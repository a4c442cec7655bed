"""Weights of rows and classes, names of classes, separation and printed tables, with rare classes and exact ties."""

from __future__ import annotations

import math
import warnings
from itertools import permutations

import numpy as np
import pytest

from securevfl.errors import ClassError, DataNotice, LabelError, TableError
from securevfl.models.class_labels import class_names, find_classes
from securevfl.models.exposure import LARGE_EXPOSURE, MAX_EXPOSURE_RATIO, offsets
from securevfl.models.losses import LOSSES
from securevfl.models.row_weights import WeightedLoss, Weights, next_power_of_two, row_weights, with_max_weight
from securevfl.models.separation import MAX_COLUMN_EFFECT, columns_with_large_effect, separating_columns
from securevfl.training.text_table import format_table
from tests.builders import raises_code
from tests.hard_tables import scored_rows

LOGISTIC, CLASSES = LOSSES["logistic"], np.array([0, 1])


def test_row_weights_have_mean_one_over_training_rows() -> None:
    y = (np.arange(200) < 2).astype(int)  # 1 %
    train = np.arange(0, 200, 2)
    column = np.arange(200.0) % 3
    for options, raw in (
        (Weights(column="w", max_weight=100), column),
        (Weights(classes={"0": 1.0, "1": 5.0}, max_weight=100), np.where(y == 1, 5.0, 1.0)),
        (Weights(classes="balanced", max_weight=100), np.where(y == 1, 1 / 1, 1 / 99)),
        (Weights(classes={"0": 2.0, "1": 5.0}, column="w", max_weight=100), column * np.where(y == 1, 5.0, 2.0)),
    ):
        given = column if options.column else None
        weights = row_weights("bank", options, LOGISTIC, y, CLASSES, given, train)
        np.testing.assert_allclose(weights, raw / raw[train].mean())
        assert weights[train].mean() == pytest.approx(1)
    balanced = row_weights("bank", Weights(classes="balanced", max_weight=100), LOGISTIC, y, CLASSES, None, train)
    assert balanced[train][y[train] == 1].sum() == pytest.approx(balanced[train][y[train] == 0].sum())


def test_a_weight_exactly_at_its_limit_is_allowed() -> None:
    column = np.array([4.0, 0.0, 0.0, 0.0])
    rows = np.arange(4)
    y = np.array([0, 1, 0, 1])
    assert row_weights("bank", Weights(column="w", max_weight=4), LOGISTIC, y, CLASSES, column, rows).tolist() == [
        4,
        0,
        0,
        0,
    ]
    with raises_code(TableError, "SVFL-TABLE-WEIGHTS"):
        row_weights("bank", Weights(column="w", max_weight=3.999), LOGISTIC, y, CLASSES, column, rows)
    for wrong in ([-1.0, 1, 1, 1], [np.nan, 1, 1, 1], [0.0, 0, 0, 0], [np.inf, 1, 1, 1]):
        with raises_code(TableError, "SVFL-TABLE-WEIGHTS"):
            row_weights("bank", Weights(column="w"), LOGISTIC, y, CLASSES, np.array(wrong), rows)
    for weights, power in (([1.0], 1), ([0.3], 1), ([2.0], 2), ([2.0001], 4), ([4.0, 3.0], 4), ([5.0], 8)):
        assert next_power_of_two(np.array(weights)) == power
    filled = with_max_weight(
        "bank", Weights(classes="balanced"), LOGISTIC, (np.arange(100) < 1).astype(int), CLASSES, np.arange(100)
    )
    assert filled.max_weight == 64  # 50 times the mean
    assert (
        with_max_weight("bank", Weights(classes="balanced", max_weight=3), LOGISTIC, y, CLASSES, rows).max_weight == 3
    )
    for classes, error in (
        ({"0": 1.0}, ClassError),
        ({"0": 1.0, "1": 1.0, "2": 1.0}, ClassError),
        ({"0": 0.0, "1": 1.0}, LabelError),
    ):
        with pytest.raises(error):
            row_weights("bank", Weights(classes=classes), LOGISTIC, y, CLASSES, None, rows)


def test_exposures_at_their_limits_are_allowed() -> None:
    """An exposure may be a thousand times as large as the mean or as small, and just beyond that it is refused."""
    for exact, beyond in ((MAX_EXPOSURE_RATIO, np.inf), (1 / MAX_EXPOSURE_RATIO, 0.0)):
        exposure = np.array([1.0, 1.0, exact])
        logarithms, mean = offsets("bank", "years", exposure, np.arange(2))
        assert mean == 1
        np.testing.assert_allclose(logarithms, np.log(exposure))
        with raises_code(TableError, "SVFL-TABLE-WEIGHTS"):
            offsets("bank", "years", np.array([1.0, 1.0, np.nextafter(exact, beyond)]), np.arange(2))
    for wrong in (0.0, -1.0, np.nan, np.inf):
        for row in range(3):
            exposure = np.ones(3)
            exposure[row] = wrong
            with raises_code(TableError, "SVFL-TABLE-WEIGHTS"):
                offsets("bank", "years", exposure, np.arange(2))


@pytest.mark.parametrize(("factor", "noticed"), [(1 - 1e-9, False), (1 + 1e-9, True)])
def test_large_exposures_of_training_rows_are_noticed(factor: float, noticed: bool) -> None:
    exposure = np.append(np.ones(999), 30 * 999 / 970)  # 30 times the mean
    assert exposure[-1] == pytest.approx(LARGE_EXPOSURE * exposure.mean())
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always", DataNotice)
        offsets("bank", "years", exposure * np.append(np.ones(999), factor), np.arange(1000))
        offsets("bank", "years", np.append(exposure[:-1], 900.0), np.arange(999))  # a held-out row has no residual
    assert len(notices) == noticed


@pytest.mark.parametrize("name", LOSSES)
def test_a_weighted_loss_is_the_loss_times_the_weight(name: str) -> None:
    loss = LOSSES[name]
    f, y, classes, w = scored_rows(loss, 60)
    targets = loss.targets(y, classes)
    weighted, with_weights = WeightedLoss(loss, 3.0), np.column_stack([targets, w])
    np.testing.assert_allclose(weighted.value(f, with_weights), w * loss.value(f, targets))
    np.testing.assert_allclose(weighted.residual(f, with_weights), w[:, None] * loss.residual(f, targets))
    assert weighted.bound == 3 * loss.bound
    assert weighted.curvature == (None if loss.curvature is None else 3 * loss.curvature)


@pytest.mark.parametrize(
    ("labels", "positive"),
    [
        (["yes", "no"], "yes"), ([1, 0], "1"), ([1, -1], "1"), ([1.0, 0.0], "1"), ([True, False], "True"),
        (["True", "false"], "True"), (["b", "a"], None), ([1, 2], None), (["yes", "maybe"], None), ([0, 2], None),
    ],
    ids=str,
)  # fmt: skip
def test_the_positive_class_is_the_usual_or_the_rarer_one(labels: list[object], positive: str | None) -> None:
    for first, second in permutations(labels):
        for few in (2, 30):
            y = np.array([first] * few + [second] * 30)
            names = class_names(find_classes("bank", LOGISTIC, y))
            if positive is not None:
                assert names[1] == positive
            elif few < 30:
                assert names[1] == class_names(np.array([first]))[0]  # the rarer class
            else:
                assert names[1] == class_names(np.unique(y))[1]  # of equal classes the later one
            for chosen in names:
                assert class_names(find_classes("bank", LOGISTIC, y, chosen))[1] == chosen
    with pytest.raises(ClassError):
        find_classes("bank", LOGISTIC, np.array(labels * 5), "another")


def test_columns_that_separate_touch_at_most() -> None:
    marked = np.array([[True], [True], [False], [False]])
    X = np.array([[1, 2, 0, 1, 3.0], [2, 1, 0, 1, 1], [2, 0, 0, 1, 2], [3, 1, 0, 1, 2]])
    assert separating_columns(X, marked).tolist() == [True, True, False, False, False]
    assert not separating_columns(X, np.ones((4, 1), bool)).any()
    effects = np.array([[MAX_COLUMN_EFFECT], [math.nextafter(MAX_COLUMN_EFFECT, 99)], [-MAX_COLUMN_EFFECT - 1]])
    columns = np.array([[0.0, 0, 0], [1, 1, 1]])
    assert columns_with_large_effect(effects, columns).tolist() == [False, True, True]


def test_a_printed_table_aligns_words_left_and_figures_right() -> None:
    rows = [
        {"model": "trees", "rows": 12345, "wall_s": 1.5, "class": None},
        {"model": "b", "rows": 7, "wall_s": 0.12345, "class": 1},
    ]
    assert format_table(rows).split("\n") == [
        "model    rows  wall s  class",
        "-----  ------  ------  -----",
        "trees  12,345   1.500      -",
        "b           7   0.123      1",
    ]

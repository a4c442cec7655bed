"""Quantities that are fitted to training rows do not depend on held-out rows.

Each case fits something to some rows of a table. The result must equal that of a table of these rows alone. The
held-out rows come first, have other values and other shares of each class, and are not half of the table, so that no
prefix, no sample and no share of the table coincides with that of its training rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.base.arrays import Floats
from securevfl.data.baseline import baselines
from securevfl.data.columns import Columns
from securevfl.data.location_scale import moments, quartiles
from securevfl.data.preparation import Preparation, fit_preparation
from securevfl.data.schedule import Rows
from securevfl.models.class_labels import classes_of
from securevfl.models.exposure import offsets
from securevfl.models.losses import LOSSES
from securevfl.models.row_weights import Weights, row_weights, with_max_weight

HELD_OUT, TRAINING = 170, 230
CLASSES = np.array(["bad", "good"])
TOWNS = ("Ulm", "Bonn", "Jena", "Trier")


def numbers() -> Floats:
    """Return a column (n,) whose held-out rows are larger and vary more."""
    draw = np.random.default_rng(4)
    return np.append(draw.normal(40, 9, HELD_OUT), draw.gamma(2.0, size=TRAINING) + 0.5)


def columns() -> Columns:
    """Return columns of numbers, of flags and of texts, whose distributions in the held-out rows are others."""
    draw, held_out = np.random.default_rng(5), np.arange(HELD_OUT + TRAINING) < HELD_OUT
    share = np.where(held_out, 0.9, 0.2)
    gaps = np.where(draw.random(len(share)) < share / 2, np.nan, numbers() * 3)
    texts = np.where(held_out, 3, draw.choice(3, len(share), p=[0.6, 0.3, 0.1]))
    X = np.column_stack([numbers(), numbers() ** 6, gaps, draw.random(len(share)) < share, texts])
    return Columns(X.astype(float), ["a", "heavy", "gaps", "flag", "town"], {"town": TOWNS})


def labels() -> np.ndarray:
    """Return classes (n,) whose rarer one is another one among the held-out rows."""
    return CLASSES[np.append(np.arange(HELD_OUT) % 17 == 0, np.arange(TRAINING) % 23 > 4).astype(int)]


def weigh(classes: Any, column: bool) -> Callable[[Rows, Rows], Any]:
    def weights(selected: Rows, train: Rows) -> Floats:
        options = Weights(classes=classes, column="w" if column else None, max_weight=100)
        exact = numbers()[selected] if column else None
        return row_weights("bank", options, LOSSES["logistic"], labels()[selected], CLASSES, exact, train)[train]

    return weights


def limit(selected: Rows, train: Rows) -> float | None:
    options = Weights(classes="balanced")
    return with_max_weight("bank", options, LOSSES["logistic"], labels()[selected], CLASSES, train).max_weight


def relative_exposures(selected: Rows, train: Rows) -> tuple[Floats, float]:
    exposures, mean = offsets("bank", "years", numbers()[selected], train)
    return exposures[train], mean


def class_order(selected: Rows, train: Rows) -> list[str]:
    y = labels()[selected]
    return list(
        classes_of(vfl.Party("bank", numbers()[selected, None], y, aligned=True), LOSSES["logistic"], train).tolist()
    )


def prepare(**options: Any) -> Callable[[Rows, Rows], Any]:
    def fitted(selected: Rows, train: Rows) -> list[dict[str, Any]]:
        table = columns()
        table = Columns(table.X[selected], table.names, table.categories)
        return fit_preparation("bank", table, train, Preparation(**options)).plain()

    return fitted


def summarise(selected: Rows, train: Rows) -> list[dict[str, Any]]:
    table = columns()
    return [item.model_dump() for item in baselines(Columns(table.X[selected], table.names, table.categories), train)]


CASES: dict[str, Callable[[Rows, Rows], Any]] = {
    "moments": lambda selected, train: moments(numbers()[selected, None], train),
    "quartiles": lambda selected, train: quartiles(numbers()[selected, None], train),
    "baselines": summarise,
    "a column of weights": weigh(None, True),
    "balanced classes": weigh("balanced", False),
    "weights of classes and rows": weigh({"bad": 3.0, "good": 1.0}, True),
    "the limit of weights": limit,
    "exposures": relative_exposures,
    "the order of classes": class_order,
    "fills": prepare(),
    "clips": prepare(clip=0.05),
    "bins": prepare(bins=6),
    "codes": prepare(texts="codes"),
    "evidence": prepare(woe={"rows": 20}),
}


def flat(result: Any) -> list[Any]:
    """Return the values of nested lists, tuples, dicts and arrays in one list."""
    if isinstance(result, dict):
        result = list(result.items())
    if isinstance(result, np.ndarray):
        result = result.tolist()
    return [value for item in result for value in flat(item)] if isinstance(result, list | tuple) else [result]


@pytest.mark.parametrize("name", CASES)
def test_held_out_rows_change_nothing_that_is_fitted(name: str) -> None:
    fit, everything = CASES[name], np.arange(HELD_OUT + TRAINING)
    train = everything[HELD_OUT:]
    expected, fitted = flat(fit(train, np.arange(TRAINING))), flat(fit(everything, train))
    assert len(expected) == len(fitted)
    for value, other in zip(expected, fitted, strict=True):
        assert value == (pytest.approx(other, rel=1e-12) if isinstance(other, float) else other)
    assert flat(fit(everything, everything)) != fitted


@pytest.mark.parametrize("weight", [99.0, 5.0])
def test_only_training_rows_must_be_within_the_limit_of_weights(weight: float) -> None:
    """A held-out row has no residual, and its weight counts in metrics only."""
    column, y = np.array([1.0, 1, 1, 1, weight]), np.array([0, 1, 0, 1, 1])
    options = Weights(column="w", max_weight=2)
    weights = row_weights("bank", options, LOSSES["logistic"], y, np.array([0, 1]), column, np.arange(4))
    assert weights.tolist() == column.tolist()

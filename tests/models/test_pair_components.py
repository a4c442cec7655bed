"""Components of a party's columns, whose products with another party's are interactions."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial import legendre
from scipy.stats import rankdata

from securevfl.models.pair_components import (
    COMPONENT_STEP,
    DEGREES,
    MAX_COMPONENT,
    PairComponents,
    component_count,
)

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("levels", [0, 2, 7, 400])
def test_polynomials_are_those_of_the_ranks_by_definition(levels: int) -> None:
    X = RNG.normal(size=(3000, 2)) ** 3
    if levels:
        X = np.floor(X * levels / 8)
    polynomials = PairComponents.fit(X, 6).polynomials(X)
    ranks = (2 * np.column_stack([rankdata(column) for column in X.T]) - 1) / len(X) - 1
    expected = np.hstack([legendre.legval(ranks, np.eye(DEGREES + 1)[degree]).T.T for degree in range(1, DEGREES + 1)])
    # between 256 stored ranks others are interpolated; the third polynomial has a slope of at most 6
    assert np.abs(polynomials - expected).max() < (6 * 2 / 255 if levels in (0, 400) else 1e-9)


def test_components_have_variance_1_and_are_uncorrelated() -> None:
    mixing = RNG.normal(size=(6, 6))
    X = RNG.normal(size=(5000, 6)) @ mixing
    components = PairComponents.fit(X, 16).transform(X) * COMPONENT_STEP
    assert components.shape == (5000, 16)
    assert np.abs(components.mean(axis=0)).max() < 0.05
    assert np.abs(np.cov(components.T) - np.eye(16)).max() < 0.1


def test_new_rows_are_transformed_by_the_ranks_of_training_rows() -> None:
    X = RNG.normal(size=(1000, 3))
    fitted = PairComponents.fit(X, 9)
    far = np.array([[-1e9] * 3, [1e9] * 3])
    ends = np.stack([X.min(axis=0), X.max(axis=0)])
    assert (fitted.transform(far) == fitted.transform(ends)).all()
    alone = np.vstack([fitted.transform(row[None]) for row in X])
    assert (alone == fitted.transform(X)).all()


def test_columns_without_variance_yield_components_of_0() -> None:
    X = np.column_stack([np.ones(500), RNG.integers(0, 2, 500)])
    fitted = PairComponents.fit(X, 16)
    components = fitted.transform(X)
    assert components.shape[1] == len(fitted) == component_count(16, 2) == 6
    assert np.abs(components[:, 0]).min() > 0
    assert not components[:, 2:].any()
    assert np.abs(components).max() <= MAX_COMPONENT


def test_stored_components_are_restored() -> None:
    X = RNG.normal(size=(200, 4))
    fitted = PairComponents.fit(X, 5)
    restored = PairComponents.read(fitted.state())
    assert (restored.transform(X) == fitted.transform(X)).all()
    assert "secret" in repr(fitted)

"""Ranks of columns and variances along components, compared with QR and singular value decompositions."""

from __future__ import annotations

import numpy as np
import pytest

from securevfl.disclosure import column_recovery

RNG = np.random.default_rng(0)
NOISE = RNG.normal(size=(200, 6))
ONE_HOT_COLUMNS = np.eye(4)[RNG.integers(0, 4, 200)]
COLUMN_PATTERNS = {
    "independent": NOISE,
    "a one-hot group": np.hstack([NOISE[:, :2], ONE_HOT_COLUMNS]),
    "a sum of others": np.column_stack([NOISE, NOISE[:, 0] + 2 * NOISE[:, 1]]),
    "nearly a sum of others": np.column_stack([NOISE, NOISE[:, 0] + NOISE[:, 1] + 1e-6 * RNG.normal(size=200)]),
    "a sum to rounding": np.column_stack([NOISE, NOISE[:, 0] + NOISE[:, 1] + 1e-12 * RNG.normal(size=200)]),
    "a column that does not vary": np.column_stack([NOISE, np.ones(200)]),
    "equal numbers of rows and columns": NOISE[:6],
    "fewer rows than columns": NOISE[:4],
}


@pytest.mark.parametrize("name", COLUMN_PATTERNS)
def test_independent_columns_are_those_that_qr_finds(name, monkeypatch):
    X = COLUMN_PATTERNS[name]
    independent = column_recovery.independent_columns(X)
    monkeypatch.setattr(column_recovery, "_clearly_independent", lambda scaled: False)
    np.testing.assert_array_equal(independent, column_recovery.independent_columns(X))


def test_columns_that_are_far_from_each_other_are_not_decomposed(monkeypatch):
    def refused(*args, **kwargs):
        raise AssertionError("QR takes long where there are many columns")

    monkeypatch.setattr(np.linalg, "qr", refused)
    assert column_recovery.independent_columns(NOISE).shape == NOISE.shape
    with pytest.raises(AssertionError):
        column_recovery.independent_columns(COLUMN_PATTERNS["nearly a sum of others"])


@pytest.mark.parametrize("name", COLUMN_PATTERNS)
def test_variances_are_the_squares_of_singular_values(name):
    X = COLUMN_PATTERNS[name]
    squares = np.linalg.svd(column_recovery.standardised_columns(X), compute_uv=False) ** 2
    np.testing.assert_allclose(column_recovery.component_variances(X), squares / max(1.0, squares.sum()), atol=1e-12)

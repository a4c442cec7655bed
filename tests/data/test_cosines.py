"""Cosine features of a party's columns: what they are, what they come near, and what moves them."""

from __future__ import annotations

import json
import math

import numpy as np

from securevfl.data.cosine_features import GAMMA_PER_COLUMN, CosineFeatures
from securevfl.families.state import State

RNG = np.random.default_rng(5)
X = np.column_stack([RNG.normal(3, 2, 400), RNG.normal(size=400), np.full(400, 7.0), RNG.normal(-1, 0.1, 400)])
KEY = bytes(range(32))


def test_they_are_those_of_loops() -> None:
    made = CosineFeatures.draw(X, KEY, count=6, weight=0.5)
    found = made(X[:20])
    low, high = np.quantile(X, [0.01, 0.99], axis=0)
    cut = np.clip(X, low, high)
    for i, row in enumerate(X[:20]):
        for j in range(6):
            angle = made.phases[j]
            for k in (0, 1, 3):  # the one that does not vary has no part
                value = min(max(row[k], low[k]), high[k])
                angle += made.directions[k, j] * min(max((value - cut[:, k].mean()) / cut[:, k].std(), -3), 3)
            assert abs(found[i, j] - 0.5 * math.sqrt(2 / 6) * math.cos(angle)) <= 2.0**-9 + 1e-9


def test_their_products_come_near_a_gaussian_kernel() -> None:
    """Of 8,192 features each product is off by at most 1 / sqrt(8192) = 0.011 in the mean square; six times that."""
    made = CosineFeatures.draw(X, KEY, count=8192, weight=1.0)
    rows = made.columns.scaled(X[:30])[:, [0, 1, 3]]
    apart = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    features = made.size * np.cos(made.columns.scaled(X[:30]) @ made.directions + made.phases)
    np.testing.assert_allclose(features @ features.T, np.exp(-GAMMA_PER_COLUMN / 3 * apart), atol=0.066)


def test_another_key_draws_others_and_the_same_comes_back() -> None:
    made, other = (CosineFeatures.draw(X, key, count=5, weight=1.0) for key in (KEY, bytes(32)))
    assert not np.allclose(made.directions, other.directions)
    kept = json.loads(json.dumps(State(made.state()).plain()))
    np.testing.assert_array_equal(CosineFeatures.read(State.read(kept))(X), made(X))
    assert "secret" in repr(made)
    assert CosineFeatures.draw(X[:, 2:3], KEY, count=3, weight=1.0)(X[:, 2:3]).shape == (400, 3)

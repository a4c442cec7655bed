"""Cosine features of a party's columns: their definition, the kernel that they approximate, and their key."""

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
    features = CosineFeatures.draw(X, KEY, count=6, weight=0.5)
    computed = features(X[:20])
    low, high = np.quantile(X, [0.01, 0.99], axis=0)
    cut = np.clip(X, low, high)
    for i, row in enumerate(X[:20]):
        for j in range(6):
            angle = features.phases[j]
            for k in (0, 1, 3):  # the one that does not vary has no part
                value = min(max(row[k], low[k]), high[k])
                angle += features.directions[k, j] * min(max((value - cut[:, k].mean()) / cut[:, k].std(), -3), 3)
            assert abs(computed[i, j] - 0.5 * math.sqrt(2 / 6) * math.cos(angle)) <= 2.0**-9 + 1e-9


def test_their_products_come_near_a_gaussian_kernel() -> None:
    """Of 8,192 features each product is off by at most 1 / sqrt(8192) = 0.011 in the mean square; six times that."""
    cosines = CosineFeatures.draw(X, KEY, count=8192, weight=1.0)
    rows = cosines.columns.scaled(X[:30])[:, [0, 1, 3]]
    apart = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    features = cosines.size * np.cos(cosines.columns.scaled(X[:30]) @ cosines.directions + cosines.phases)
    np.testing.assert_allclose(features @ features.T, np.exp(-GAMMA_PER_COLUMN / 3 * apart), atol=0.066)


def test_another_key_draws_others_and_the_same_comes_back() -> None:
    features, other = (CosineFeatures.draw(X, key, count=5, weight=1.0) for key in (KEY, bytes(32)))
    assert not np.allclose(features.directions, other.directions)
    plain = json.loads(json.dumps(State(features.state()).plain()))
    np.testing.assert_array_equal(CosineFeatures.read(State.read(plain))(X), features(X))
    assert "secret" in repr(features)
    assert CosineFeatures.draw(X[:, 2:3], KEY, count=3, weight=1.0)(X[:, 2:3]).shape == (400, 3)

"""Steps of a party whose columns sum to a constant, while another party has the intercept."""

from __future__ import annotations

import numpy as np
import pytest

from securevfl.models.losses import LOSSES
from securevfl.optim.curvature import preconditioner, preconditioner_of_rows


@pytest.mark.parametrize("seed", range(3))
def test_constant_gives_the_steps_of_centred_columns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    leaves = np.hstack([np.eye(4)[rng.integers(0, 4, 90)] for _ in range(3)]) * 0.5
    X = np.hstack([leaves, rng.normal(size=(90, 2))])
    constant = np.append(np.full(12, 1 / (0.5 * 3)), np.zeros(2))
    np.testing.assert_allclose(X @ constant, 1.0)
    decay, g = np.full((14, 1), 0.01), rng.normal(size=90)

    def gram(rows: np.ndarray) -> np.ndarray:
        return np.asarray(rows.T @ rows)

    P = preconditioner_of_rows([X[:50], X[50:]], gram, LOSSES["logistic"], decay, who="shop", constant=constant)
    about = X - X.mean(axis=0)
    slow = about @ preconditioner(gram(about), 90, 0.25, decay, who="shop") @ about.T @ g
    np.testing.assert_allclose(X @ P @ X.T @ g, slow, atol=1e-9)
    assert abs((X @ P @ X.T @ g).mean()) < 1e-9

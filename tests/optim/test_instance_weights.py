"""Instance weights against J with rows scaled one by one, for every kind and size of J."""

import numpy as np
import pytest

import securevfl as vfl
from securevfl.base import chunked_matrix
from securevfl.models.block import Block, BlockSpec
from securevfl.optim.instance_weights import WeightedModel, cosines

N, D = 40, 5
TESTED_MODELS = {
    "linear": (vfl.Logistic(), 1),
    "three classes": (vfl.Softmax(), 3),
    "network": (vfl.Neural(), 2),
    "slot of a top model": (vfl.Neural(joint="top", width=2), 1),
}


def block(name: str) -> Block:
    model, outputs = TESTED_MODELS[name]
    built = model.build(BlockSpec("shop", False, D, outputs, passives=3, index=1))
    built.theta = np.random.default_rng(1).normal(size=built.theta.shape)
    return built


@pytest.mark.parametrize(
    "rows_in_memory", [chunked_matrix.MAX_MATERIALIZED_NUMBERS, 30], ids=["small", "made when it is read"]
)
@pytest.mark.parametrize("name", TESTED_MODELS)
def test_a_weighted_gradient_is_one_of_scaled_rows(
    name: str, rows_in_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_matrix, "MAX_MATERIALIZED_NUMBERS", rows_in_memory)
    generator = np.random.default_rng(0)
    model = block(name)
    X, weights = generator.normal(size=(N, D)), generator.uniform(size=N)
    g = generator.normal(size=model.forward(X).shape)
    weighed = WeightedModel(model, weights)
    expected = sum(weight * model.vjp(X[[i]], g[[i]]) for i, weight in enumerate(weights))
    np.testing.assert_allclose(weighed.vjp(X, g), expected, rtol=1e-4, atol=1e-6)
    J = weighed.jacobian(X)
    assert isinstance(J.matrix, chunked_matrix.ChunkedMatrix) == (rows_in_memory == 30 and not model.static_jacobian)
    np.testing.assert_allclose(J.vjp(g), expected, rtol=1e-4, atol=1e-6)
    assert (weighed.parameters, weighed.shares_outputs) == (model.parameters, model.shares_outputs)
    assert not weighed.static_jacobian


def test_weights_are_cosines_down_to_xi() -> None:
    then = np.array([[1.0, 0.0]] * 5 + [[0.0, 0.0]] * 2)
    angles = np.radians([0.0, 59.0, 61.0, 90.0, 180.0])
    now = np.vstack([np.column_stack([np.cos(angles), np.sin(angles)]) * 3, [[0.0, 0.0], [1.0, 0.0]]])
    np.testing.assert_allclose(cosines(then, now, 60.0), [1, np.cos(angles[1]), 0, 0, 0, 1, 0], atol=1e-12)


def test_one_number_a_row_has_a_sign_and_no_angle() -> None:
    then, now = np.array([[0.3], [-2.0], [1.0], [1e-200]]), np.array([[7.0], [0.1], [0.0], [1e-200]])
    assert cosines(then, now, 60.0).tolist() == [1.0, 0.0, 0.0, 1.0]

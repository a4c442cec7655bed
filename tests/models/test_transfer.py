"""The networks of transfer learning against differences, and the objective against torch's gradients of the pooled
model."""

from __future__ import annotations

import numpy as np
import pytest

from securevfl.crypto.scheme import Floats
from securevfl.models.transfer import Network, Transfer

N, COLUMNS = 9, 4


def made(units: int, hidden: tuple[int, ...], X: Floats) -> Network:
    network = Transfer(units=units, hidden=hidden, l2=0.1).build(COLUMNS, None)
    network.start(X, seed=3)
    return network


@pytest.fixture
def X() -> Floats:
    return np.random.default_rng(5).normal(size=(N, COLUMNS))


@pytest.mark.parametrize("hidden", [(), (5,), (5, 3)])
def test_derivatives_are_those_of_the_outputs(hidden: tuple[int, ...], X: Floats) -> None:
    network, step = made(3, hidden, X), 1e-6
    assert network.parameters == Transfer(units=3, hidden=hidden).parameters(COLUMNS, 1)
    theta, columns = network.theta, []
    for unit in np.eye(len(theta)):
        sides = []
        for sign in (1, -1):
            network.theta = theta + sign * step * unit
            sides.append(network.forward(X).T.ravel())
        columns.append((sides[0] - sides[1]) / (2 * step))
    network.theta = theta
    J = network.derivatives(X)[:]
    np.testing.assert_allclose(J, np.column_stack(columns), atol=1e-8)
    V = np.random.default_rng(6).normal(size=(N, 3))
    np.testing.assert_allclose(network.vjp(X, V), J.T @ V.T.ravel(), atol=1e-12)


@pytest.mark.parametrize("hidden", [(), (5, 3)])
def test_parts_leave_out_nothing_but_zeros(hidden: tuple[int, ...], X: Floats) -> None:
    network = made(4, hidden, X)
    J = network.derivatives(X)
    rows = J[:]
    for start, stop in ((0, N), (N - 2, N + 3), (2, 3), (0, 4 * N), (3 * N, 4 * N)):
        columns, part = J.part(start, stop)
        found = np.zeros((stop - start, J.shape[1]))
        found[:, columns] = part
        np.testing.assert_allclose(found, rows[start:stop], atol=1e-15)
    assert len(J.part(0, N)[0]) < J.shape[1]


def test_a_start_follows_the_data_and_the_seed(X: Floats) -> None:
    first = made(3, (5,), X).theta
    np.testing.assert_array_equal(first, made(3, (5,), X).theta)
    assert np.abs(first - made(3, (5,), X + 1e-9).theta).max() > 0.1
    network = made(3, (), X)
    zero = np.zeros(network.parameters)
    decay = network.regularised(zero).reshape(3, COLUMNS + 1)
    np.testing.assert_allclose(decay[:, :-1], 0.1 * network.theta.reshape(3, COLUMNS + 1)[:, :-1])
    assert not decay[:, -1].any()

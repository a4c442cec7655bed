"""The formulas of transfer learning (a second-order Taylor series) are compared with numeric derivatives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import SparseRows
from securevfl.families.transfer import local_quadratic, taylor
from securevfl.families.transfer.local_quadratic import LocalQuadratic

N, D, COLUMNS, GAMMA = 7, 3, 4, 0.3


class Rows(SparseRows):
    """A matrix in memory with the interface of one that is computed."""

    def __init__(self, matrix: Floats) -> None:
        self._matrix = matrix

    @property
    def shape(self) -> tuple[int, int]:
        return self._matrix.shape[0], self._matrix.shape[1]

    def part(self, start: int, stop: int) -> tuple[NDArray[np.intp], Floats]:
        return self.columns(start, stop), self._matrix[start:stop]

    def columns(self, start: int, stop: int) -> NDArray[np.intp]:
        return np.arange(self.shape[1])


def network(X: Floats, theta: Floats) -> Floats:
    """Return U = tanh(X W) (n x d)."""
    return np.tanh(X @ theta.reshape(COLUMNS, D))


def by_steps(function: Callable[[Floats], Floats], theta: Floats, step: float = 1e-6) -> Floats:
    """Return derivatives (outputs x p) by central differences."""
    moved = [
        (np.ravel(function(theta + step * unit)) - np.ravel(function(theta - step * unit))) / (2 * step)
        for unit in np.eye(len(theta))
    ]
    return np.column_stack(moved)


def objective(y: Floats, further: tuple[Floats, Floats], XA: Floats, XB: Floats, a: Floats, b: Floats) -> Floats:
    """Return the loss of each row, with Phi over the shared rows and further rows (labels, columns) of the guest."""
    UA, UB = network(XA, a), network(XB, b)
    everyone, labels = np.vstack([UA, network(further[1], a)]), np.append(y, further[0])
    phi = (labels[:, None] * everyone).mean(axis=0)
    total = 0.0
    for i in range(len(y)):
        f = float(phi @ UB[i])
        total += np.log(2) - y[i] * f / 2 + f**2 / 8 + GAMMA * float(((UA[i] - UB[i]) ** 2).sum())
    return np.array([total / len(y)])


@pytest.fixture
def both() -> dict[str, Floats]:
    rng = np.random.default_rng(7)
    arrays = {name: rng.normal(size=(N, COLUMNS)) for name in ("XA", "XB", "more")}
    arrays |= {name: rng.normal(size=COLUMNS * D) for name in ("a", "b")}
    return arrays | {name: np.sign(rng.normal(size=N)) for name in ("y", "further")}


def test_products_with_received_terms_give_gradients_and_loss(both: dict[str, Floats]) -> None:
    XA, XB, a, b, y = (both[name] for name in ("XA", "XB", "a", "b", "y"))
    further = both["further"], both["more"]
    UA, UB = network(XA, a), network(XB, b)
    labels, rows = np.append(y, further[0]), np.vstack([XA, further[1]])

    def mean(theta: Floats) -> Floats:
        return np.asarray((labels[:, None] * network(rows, theta)).mean(axis=0))

    JA, JB = (Rows(by_steps(lambda t, X=X: network(X, t).T, theta)) for X, theta in ((XA, a), (XB, b)))
    phi = mean(a)
    sent, back = taylor.guest_vector(y, phi, UA, GAMMA), taylor.host_vector(UB)
    assert len(sent) == len(back) == taylor.vector_length(N, D) == N * D + D * (D + 1) // 2

    host = taylor.HostJacobian(JB, UB)[:].T @ sent + taylor.host_local_gradient(JB, UB, GAMMA)
    np.testing.assert_allclose(host, by_steps(lambda t: objective(y, further, XA, XB, a, t), b)[0], atol=1e-8)

    guest = taylor.GuestJacobian(JA, by_steps(mean, a), phi, y, UA, GAMMA)
    product = guest[:].T @ back + taylor.guest_local_gradient(JA, UA, GAMMA)
    np.testing.assert_allclose(product[:-1], by_steps(lambda t: objective(y, further, XA, XB, t, b), a)[0], atol=1e-8)
    np.testing.assert_allclose(product[-1], objective(y, further, XA, XB, a, b)[0], atol=1e-12)


def test_local_steps_on_one_opening_match_a_linear_network(both: dict[str, Floats]) -> None:
    """If u is linear in the weights, the second-order series equals the objective at all weights."""
    XA, XB, a, b, y = (both[name] for name in ("XA", "XB", "a", "b", "y"))
    rows, labels = np.vstack([XA, both["more"]]), np.append(y, both["further"])

    def linear(X: Floats, theta: Floats) -> Floats:
        return X @ theta.reshape(COLUMNS, D)

    def loss(a: Floats, b: Floats) -> Floats:
        UA, UB, phi = linear(XA, a), linear(XB, b), labels @ linear(rows, a) / len(labels)
        f = UB @ phi
        return np.array([(-y * f / 2 + f**2 / 8 + GAMMA * ((UA - UB) ** 2).sum(axis=1)).mean()])

    UB, phi = linear(XB, b), labels @ linear(rows, a) / len(labels)
    JA, JB = (Rows(by_steps(lambda t, X=X: linear(X, t).T, a)) for X in (XA, XB))
    mean = by_steps(lambda t: labels @ linear(rows, t) / len(labels), a)
    S, M = (
        local_quadratic.symmetric_matrix(taylor.upper_half(matrix), D) for matrix in (UB.T @ UB / N, np.outer(phi, phi))
    )
    cases: list[tuple[LocalQuadratic, Callable[[Floats], Floats], Floats, Floats]] = []
    for X, weights, objective, further in (
        (XA, a, lambda t: loss(t, b), {"moments": S, "mean": mean}),
        (XB, b, lambda t: loss(a, t), {"moments": M}),
    ):
        J, gradient = (JA if X is XA else JB), by_steps(objective, weights)[0]
        cases.append(
            (LocalQuadratic(J, linear(X, weights), weights, gradient, GAMMA, **further), objective, X, weights)
        )
    for quadratic, objective, X, weights in cases:
        moved = weights + np.random.default_rng(2).normal(size=len(weights))
        gradient_found = quadratic.gradient(moved, linear(X, moved))
        assert gradient_found is not None
        np.testing.assert_allclose(gradient_found, by_steps(objective, moved)[0], atol=1e-7)
        hessian = by_steps(lambda t, f=objective: by_steps(f, t, 1e-3)[0], weights, 1e-3)
        assert quadratic.max_step_size(1e9) == pytest.approx(1 / np.linalg.eigvalsh(hessian)[-1], rel=0.05)
        assert quadratic.max_step_size(1e-3) == 1e-3
        off = linear(X, moved) - linear(X, weights)
        assert quadratic.gradient(moved, linear(X, moved) + 0.4 * off) is not None
        assert quadratic.gradient(moved, linear(X, moved) + 0.6 * off) is None


def test_rows_are_the_same_however_they_are_read(both: dict[str, Floats]) -> None:
    UA, UB = network(both["XA"], both["a"]), network(both["XB"], both["b"])
    J = Rows(np.random.default_rng(1).normal(size=(N * D, 5)))
    for matrix in (
        taylor.HostJacobian(J, UB),
        taylor.GuestJacobian(J, np.ones((D, 5)), np.ones(D), both["y"], UA, GAMMA),
    ):
        n = matrix.shape[0]
        for step in (1, 4, N * D, n):
            parts = [matrix[start : start + step] for start in range(0, n, step)]
            np.testing.assert_array_equal(np.vstack(parts), matrix[:])


def test_no_number_exceeds_the_bound(both: dict[str, Floats]) -> None:
    U, y = np.sign(both["XA"][:, :D]), both["y"]
    phi = (y[:, None] * U).mean(axis=0)
    for largest in (0.5, 1.0, 3.0):
        sent = [taylor.guest_vector(y, largest * phi, largest * U, GAMMA), taylor.host_vector(largest * U)]
        assert max(np.abs(v).max() for v in sent) <= taylor.largest_entry(largest, GAMMA) + 1e-12

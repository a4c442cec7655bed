"""Transfer learning: networks compared with numeric derivatives, and the objective with torch's pooled gradients."""

from __future__ import annotations

import numpy as np
import pytest

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import ChunkedMatrix
from securevfl.crypto.lattice.lattice_gradient import LatticeGradient
from securevfl.crypto.lattice.polynomial_ring import SealRing
from securevfl.crypto.scheme import OpeningShape
from securevfl.families.transfer import taylor
from securevfl.families.transfer.dense_network import DenseNetwork
from securevfl.families.transfer.pair_rows import unit_pairs
from securevfl.families.transfer.transfer_model import Transfer

N, COLUMNS = 9, 4


def made(units: int, hidden: tuple[int, ...], X: Floats) -> DenseNetwork:
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
        dense = np.zeros((stop - start, J.shape[1]))
        dense[:, columns] = part
        np.testing.assert_allclose(dense, rows[start:stop], atol=1e-15)
    assert len(J.part(0, N)[0]) < J.shape[1]


def test_a_start_follows_the_data_and_the_seed(X: Floats) -> None:
    first = made(3, (5,), X).theta
    np.testing.assert_array_equal(first, made(3, (5,), X).theta)
    assert np.abs(first - made(3, (5,), X + 0.01).theta).max() > 0.1
    network = made(3, (), X)
    zero = np.zeros(network.parameters)
    decay = network.regularised(zero).reshape(3, COLUMNS + 1)
    np.testing.assert_allclose(decay[:, :-1], 0.1 * network.theta.reshape(3, COLUMNS + 1)[:, :-1])
    assert not decay[:, -1].any()


@pytest.mark.parametrize("hidden", [(), (5,)])
@pytest.mark.parametrize("guest", [False, True])
def test_rows_of_pairs_are_zero_where_neither_unit_is_moved(hidden: tuple[int, ...], guest: bool, X: Floats) -> None:
    d = 40
    network = made(d, hidden, X)
    derivatives, U = network.derivatives(X), network.forward(X)
    y, phi = np.sign(X[:, 0]), np.linspace(-1, 1, d)
    by_unit = derivatives[:].reshape(d, N, -1)
    if guest:
        mean = np.einsum("i,kip->kp", y, by_unit) / N
        J: taylor.GuestJacobian | taylor.HostJacobian = taylor.GuestJacobian(derivatives, mean, phi, y, U, 0.1)
        moved = np.einsum("j,kp->jkp", phi, np.column_stack([mean, phi / 2])) / 4
        moved[np.arange(d), np.arange(d), -1] += 0.1
    else:
        J = taylor.HostJacobian(derivatives, U)
        moved = np.einsum("ij,kip->jkp", U, by_unit) / (4 * N)
    rows = J[N * d :]
    few = []
    for row, (j, k) in enumerate(zip(*unit_pairs(d), strict=True)):
        np.testing.assert_allclose(rows[row], moved[j, k] + (j != k) * moved[k, j], atol=1e-12)
        few.append(len(J.columns(N * d + row, N * d + row + 1)))
    assert sorted(zip(*unit_pairs(d), strict=True)) == list(zip(*np.triu_indices(d), strict=True))
    if not hidden:
        assert max(few) <= 2 * (COLUMNS + 1) + guest
        start = N * d
        assert len(J.columns(start, start + 36)) < J.shape[1] / 2


def test_products_are_of_pieces_that_may_have_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, encode = [], SealRing.plaintext
    monkeypatch.setattr(SealRing, "plaintext", lambda *arguments: encoded.append(1) or encode(*arguments))
    rows, d = np.random.default_rng(8).normal(size=(250, COLUMNS)), 24
    network = made(d, (), rows)
    U = network.forward(rows)
    J, v, scheme = taylor.HostJacobian(network.derivatives(rows), U), taylor.host_vector(U)[:, None], LatticeGradient()
    holder = scheme.keygen(columns=network.parameters)
    evaluator = scheme.evaluator(holder.public)
    counts = []
    for matrix in (ChunkedMatrix.local(J), J[:]):
        encoded.clear()
        product, prepared = None, evaluator.prepare(matrix, max_bytes=0)
        pieces = [piece for piece, _ in holder.encrypt_pieces(v, bound=1.0)]
        sealed = sum(encoded)
        for piece in pieces:
            product = evaluator.transpose_product(prepared, piece, product)
        blinded, mask = evaluator.blind(product)
        opened = holder.open(blinded, OpeningShape(len(v), 1, network.parameters))
        np.testing.assert_allclose(evaluator.unblind(opened, mask)[:, 0], J[:].T @ v[:, 0], atol=1e-3)
        # products with check values, in both directions
        counts.append(sum(encoded) - sealed - product.scale.layout.sample_blocks)
    assert counts[0] < counts[1] / 3

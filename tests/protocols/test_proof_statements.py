"""Statements of docs/proof.md that a small computation confirms: rounding, collusion, transfers and hints."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from securevfl.protocols.shares.fixed_point import FixedPointEncoding

ENCODING = FixedPointEncoding(rows=4, rate=1.0, table_bits=6)


@pytest.mark.parametrize("eighths", [0, 1, 5, 7])
@pytest.mark.parametrize("floor", [0, 3, 62])
def test_an_index_is_the_floor_or_one_less(floor: int, eighths: int) -> None:
    """Over all fractions of h_A, in eighths: the floor in (eighths + 1) of 8 cases, and one less in the others."""
    unit = np.uint64(1 << (ENCODING.shift - 3))
    mask = np.uint64((1 << ENCODING.bits) - 1)
    H = np.uint64(8 * floor + eighths) * unit
    counts: Counter[int] = Counter()
    for fraction in range(8):
        h_A = np.uint64(8 * 17 + fraction) * unit
        h_B = (H - h_A) & mask
        counts[(int(ENCODING.index(h_A)) + int(ENCODING.index(h_B))) % 64] += 1
    assert counts == Counter({floor % 64: eighths + 1, (floor - 1) % 64: 7 - eighths})
    lower, upper = ENCODING.knots[(floor - 1) % 64], ENCODING.knots[floor % 64]
    assert upper - lower in (1.0, -63.0)  # entry i belongs to the sum i + 1


def test_pooled_holders_find_the_columns_of_a_third_party() -> None:
    """The sums of d iterations span its columns, a 0/1 column is found in them, and products of its rows follow."""
    draw = np.random.default_rng(3)
    n, d, rate = 400, 5, 0.05
    X = draw.normal(size=(n, d))
    X[:, 0] = draw.integers(0, 2, n)
    theta, sums, residuals = draw.normal(size=d), list[np.ndarray](), list[np.ndarray]()
    for _ in range(d + 1):
        sums.append(X @ theta)
        residuals.append(draw.normal(size=n))
        theta = theta - rate * X.T @ residuals[-1]
    H = np.stack(sums, axis=1)
    basis = np.linalg.svd(H, full_matrices=False)[0][:, :d]
    assert np.linalg.matrix_rank(H) == d
    assert np.abs(X - basis @ (basis.T @ X)).max() < 1e-9
    true = X[:, 0]
    known = np.concatenate([np.flatnonzero(true == value)[: d + 1] for value in (0, 1)])
    weights = np.linalg.lstsq(basis[known], true[known], rcond=None)[0]
    assert np.array_equal(np.rint(basis @ weights), true)
    G, KG = np.stack(residuals[:d], axis=1), -np.diff(H, axis=1) / rate
    K = KG @ np.linalg.inv(G.T @ KG) @ KG.T
    np.testing.assert_allclose(K, X @ X.T, atol=1e-6)


def test_the_bound_of_transfers_reaches_one_at_2_to_the_95() -> None:
    def log_bound(log_queries: int, log_calls: float = 26 + math.log2(64)) -> float:
        return math.log2(2 * 2.0 ** (log_calls + log_queries) + 2.0 ** (2 * log_calls)) - 128

    assert [round(log_bound(queries)) for queries in (34, 64, 95)] == [-61, -31, 0]
    assert round(log_bound(34, 25)) == -68  # of an alignment
    assert [round(log_bound(queries, 25)) for queries in (64, 102)] == [-38, 0]


@pytest.mark.parametrize(("log_rows", "deviation"), [(21, 1.9), (16, 2.2), (12, 2.2)])
def test_hints_leave_most_of_the_deviation_of_errors(log_rows: int, deviation: float) -> None:
    """The information of all choices of entries about one error, with d columns that may all be equal."""
    smallest, variance, clip, columns = 2.0**-10, 42 / 4, 8.0, 1
    mean_information = 2 * math.log((1 - smallest) / smallest)
    information = mean_information * smallest**2 * 2**log_rows / (variance * columns * clip**2)
    assert 13.8 < mean_information < 14
    left = (2 * (1 / variance + information)) ** -0.5
    assert left > deviation
    assert math.log2(math.sqrt(variance) / left) < 0.8

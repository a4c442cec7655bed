"""Summaries of columns, drift, correlations, scales and types of texts against loops and scipy, at exact boundaries."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import stats

from securevfl.credit import correlations, drift, two_samples
from securevfl.credit.correlations import Correlations, OwnColumns, standardised
from securevfl.credit.drift import measure_drift
from securevfl.data import location_scale
from securevfl.data.baseline import categorical_baseline, counts_at_points, numeric_baseline
from securevfl.data.columns import columns_of
from securevfl.data.location_scale import Moments, clip_free, merge_moments, moments, quartiles
from securevfl.data.scaling import GRID_BITS, Scaling, on_grid
from securevfl.data.text_types import MAX_NUMERIC_CATEGORIES, decide_type
from tests.hard_tables import around, discrete_column


@pytest.mark.parametrize("seed", range(3))
def test_a_numeric_summary_counts_rows_up_to_each_point(seed: int) -> None:
    values = discrete_column(203, np.random.default_rng(seed))
    summary = numeric_baseline("a", values)
    present = values[~np.isnan(values)]
    assert (summary.rows, summary.missing) == (203, 203 - len(present))
    assert summary.points == tuple(sorted(set(present.tolist())))
    for point, below, under in zip(summary.points, summary.below, summary.under, strict=True):
        assert (below, under) == ((present <= point).sum(), (present < point).sum())
    new = around(summary.points)
    at, under = counts_at_points(new, summary.points)
    assert at.tolist() == [(new <= point).sum() for point in summary.points]
    assert under.tolist() == [(new < point).sum() for point in summary.points]
    empty = numeric_baseline("a", np.full(5, np.nan))
    assert (empty.rows, empty.missing, empty.points) == (5, 5, ())


def test_a_text_summary_counts_frequent_texts_and_the_others() -> None:
    positions = np.array([0.0, 1, 1, 2, 2, 2, 3, np.nan])
    summary = categorical_baseline("a", positions, ("w", "x", "y", "z", "unused"), max_categories=2)
    assert (summary.categories, summary.others, summary.missing, summary.rows) == ({"y": 3, "x": 2}, 2, 1, 8)


def psi(old: Any, new: Any) -> float:
    cells = [(a + 0.5, b + 0.5) for a, b in zip(old, new, strict=True) if a or b]
    totals = [sum(cell[side] for cell in cells) for side in (0, 1)]
    return sum((b / totals[1] - a / totals[0]) * math.log(b / totals[1] / (a / totals[0])) for a, b in cells)


@pytest.mark.parametrize("seed", range(3))
def test_drift_of_discrete_numbers_is_that_of_their_counts(seed: int) -> None:
    generator = np.random.default_rng(seed)
    old, new = discrete_column(400, generator), discrete_column(150, generator, gaps=0.2)
    new[:5] = [9.0, 9.0, -9.0, 0.5, 0.5]
    (measured,) = measure_drift([numeric_baseline("a", old)], columns_of("bank", new[:, None], ["a"]))
    values = sorted(set(old[~np.isnan(old)].tolist()))
    edges = [-np.inf, *(value for value in values for _ in (0, 1)), np.inf]
    cells = []
    for k, (low, high) in enumerate(pairwise(edges)):
        inside = (lambda v, low=low: v == low) if k % 2 else (lambda v, low=low, high=high: (v > low) & (v < high))
        cells.append((int(inside(old).sum()), int(inside(new).sum())))
    gaps = (int(np.isnan(old).sum()), int(np.isnan(new).sum()))
    assert measured.psi == pytest.approx(psi(*zip(*cells, gaps, strict=True)))
    present = [column[~np.isnan(column)] for column in (old, new)]
    ks = max(abs((present[0] <= v).mean() - (present[1] <= v).mean()) for v in np.concatenate(present))
    assert measured.ks <= ks + 1e-12  # at the points of the summary alone
    assert (measured.missing, measured.was_missing) == (gaps[1] / 150, gaps[0] / 400)


def test_count_tables_are_compared_like_scipy_with_pooled_cells() -> None:
    old, new = np.array([60.0, 30, 10, 4, 0, 3, 0]), np.array([50.0, 40, 6, 6, 1, 0, 0])
    share = old.sum() / (old.sum() + new.sum())
    rare = (old + new) * min(share, 1 - share) < 5
    assert rare.tolist() == [False, False, False, True, True, True, True]
    table = np.array([[*old[~rare], old[rare].sum()], [*new[~rare], new[rare].sum()]])
    expected = stats.chi2_contingency(table, correction=False)
    assert two_samples.chi_square_p(old, new) == pytest.approx(expected.pvalue, abs=5e-3)  # a normal approximation
    even = np.array([50.0, 10.0, 5.0])  # 5 expected rows of a cell are enough, one row fewer is not
    assert two_samples.chi_square_p(even, even) > two_samples.chi_square_p(even, np.array([45.0, 10.0, 10.0]))
    assert two_samples.chi_square_p(np.array([50.0, 5.0]), np.array([50.0, 5.0])) < 1.0
    assert two_samples.chi_square_p(np.array([50.0, 0.0]), np.array([50.0, 0.0])) == 1.0


@pytest.mark.parametrize(("n", "m"), [(50, 50), (1000, 60), (80, 900)])
def test_the_p_value_of_a_ks_distance_follows_kolmogorov(n: int, m: int) -> None:
    """A distance of the rows' own sizes: the correction is of Stephens, the distribution that of Kolmogorov."""
    root = math.sqrt(n * m / (n + m))
    for distance in (0.02, 0.1, 0.15, 0.2, 0.3):
        expected = stats.kstwobign.sf((root + 0.12 + 0.11 / root) * distance)
        assert two_samples.kolmogorov_p(distance, n, m) == pytest.approx(expected, abs=1e-9)
    assert two_samples.kolmogorov_p(0.0, n, m) == 1.0


@pytest.mark.parametrize(("a", "n", "b", "m"), [(5, 100, 5, 60), (40, 100, 10, 60), (1, 500, 9, 40), (99, 100, 50, 60)])
def test_two_shares_are_compared_by_their_pooled_deviation(a: int, n: int, b: int, m: int) -> None:
    pooled = (a + b) / (n + m)
    z = (a / n - b / m) / math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    assert two_samples.share_difference_p(a, n, b, m) == pytest.approx(2 * stats.norm.sf(abs(z)), rel=1e-9)
    assert two_samples.share_difference_p(n - a, n, m - b, m) == pytest.approx(2 * stats.norm.sf(abs(z)), rel=1e-9)
    assert two_samples.share_difference_p(4, 100, 5, 60) == 1.0
    assert two_samples.share_difference_p(0, 100, 0, 60) == two_samples.share_difference_p(100, 100, 60, 60) == 1.0


def test_words_for_the_size_of_a_drift_change_at_the_limits() -> None:
    def size(psi: float) -> str:
        return drift.Drift("a", psi, None, 1.0, 0.0, 0.0, 0.0, False).size

    assert [size(value) for value in around([drift.STABLE, drift.SHIFTED])] == [
        *("stable", "some", "some", "some", "large", "large")
    ]


def test_standardised_columns_and_inflation_match_regressions() -> None:
    """Each factor is 1 / (1 - R^2) of a regression of the column on all others, computed column by column."""
    generator = np.random.default_rng(3)
    X = generator.normal(size=(300, 4))
    X[:, 1] += 0.8 * X[:, 0]
    X[:, 2] = np.round(X[:, 2])
    X[::9, 3] = np.nan
    table = np.column_stack([X, np.full(300, 5.0)])
    own = OwnColumns.of("bank", columns_of("bank", table, ["a", "b", "c", "d", "constant"]))
    assert own.names == ("a", "b", "c", "d")
    filled = np.where(np.isnan(X), np.nanmean(X, axis=0), X)
    Z = (filled - filled.mean(axis=0)) / filled.std(axis=0)
    np.testing.assert_allclose(own.Z, Z, atol=1e-12)
    np.testing.assert_allclose(own.Q.T @ own.Q / 300, np.eye(4), atol=1e-9)

    def inflation(j: int, others: Any) -> float:
        fitted = others @ np.linalg.lstsq(others, Z[:, j], rcond=None)[0]
        return 1 / (1 - (fitted**2).mean())

    np.testing.assert_allclose(own.local_inflation, [inflation(j, np.delete(Z, j, axis=1)) for j in range(4)])
    other = generator.normal(size=(300, 3)) + 0.7 * Z[:, :3]
    Zo, varies = standardised(other)
    assert varies.all()
    values, vectors = np.linalg.eigh(Zo.T @ Zo / 300)
    K = own.Q.T @ (Zo @ vectors / np.sqrt(values)) / 300
    expected = [inflation(j, np.column_stack([np.delete(Z, j, axis=1), Zo])) for j in range(4)]
    np.testing.assert_allclose(own.joint_inflation(K, 0.0), expected, rtol=1e-8)
    noise = 1 / 30**2 / 6  # rounding adds its variance to each eigenvalue, once for each column of the other party
    rounded = [
        own.joint_inflation(K + generator.normal(scale=math.sqrt(noise), size=K.shape), noise) for _ in range(300)
    ]
    np.testing.assert_allclose(np.mean(rounded, axis=0), expected, rtol=0.02)


def test_close_pairs_start_at_the_limit_closest_first() -> None:
    limit = correlations.MIN_LISTED_CORRELATION
    R = np.array([[limit, -0.9, math.nextafter(limit, 0)], [-limit, 0.1, 0.7]])
    listed = Correlations("bank", "shop", ("a", "b"), R, np.ones(2), np.ones(2))
    assert listed.high() == [("a", 2, -0.9), ("b", 3, 0.7), ("a", 1, limit), ("b", 1, -limit)]
    assert [row[3:] for row in listed.cells()] == [["column 2", -0.9], ["column 3", 0.7]]


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_moments_of_two_sets_are_those_of_all_rows(rows: int) -> None:
    X = np.random.default_rng(rows).normal(loc=[3, -5], size=(rows + 4, 2))

    def of(part: Any) -> Moments:
        return Moments(
            len(part),
            part.mean(axis=0),
            ((part - part.mean(axis=0)) ** 2).sum(axis=0),
            part.min(axis=0),
            part.max(axis=0),
        )

    for merged, whole in zip(merge_moments(of(X[:rows]), of(X[rows:])), of(X), strict=True):
        np.testing.assert_allclose(merged, whole)
    columns = moments(X, np.arange(len(X)))
    np.testing.assert_allclose(columns.mean, X.mean(axis=0))
    np.testing.assert_allclose(columns.deviation, X.std(axis=0))
    np.testing.assert_allclose(columns.low, X.min(axis=0))
    np.testing.assert_allclose(columns.high, X.max(axis=0))


def test_two_valued_columns_are_seen_and_quartiles_match_numpy() -> None:
    generator = np.random.default_rng(1)
    X = np.column_stack(
        [generator.random(99) < 0.1, generator.integers(0, 3, 99), np.full(99, 2.0), generator.normal(size=99)]
    )
    for columns in (moments(X, np.arange(99)), quartiles(X, np.arange(99))):
        assert columns.two_valued.tolist() == [True, False, False, False]
    low, median, high = np.quantile(X, [0.25, 0.5, 0.75], axis=0)
    robust = quartiles(X, np.arange(99))
    np.testing.assert_allclose(robust.mean, median)
    expected = np.where(high > low, (high - low) / location_scale.QUARTILES, X.std(axis=0))
    np.testing.assert_allclose(robust.deviation, expected)


def test_a_scale_that_spares_the_clip_changes_no_value() -> None:
    generator = np.random.default_rng(2)
    rare = np.where(np.arange(4000) % 500 == 0, 7.0, 3.0)
    wide = generator.normal(size=4000)
    wide[0] = 6 + location_scale.MAX_WIDENING
    X = np.column_stack([rare, wide, 1 - rare, generator.integers(0, 5, 4000)])
    before = moments(X, np.arange(4000))
    after = clip_free(before, 8.0)
    scaled = Scaling(after.mean, after.deviation)(X)
    assert np.abs(scaled).max() <= 8 + 1e-9
    for j in (0, 2):  # two values lie on the grid, so that rounding changes nothing
        np.testing.assert_allclose(on_grid(scaled[:, j], 8.0), scaled[:, j], atol=1e-12)
        steps = np.ptp(scaled[:, j]) * 2**GRID_BITS
        assert steps == pytest.approx(round(steps))
    assert after.deviation[3] == before.deviation[3]
    far = np.append(np.zeros(4000), 1e6) + np.append(wide, 0.0)
    single = moments(far[:, None], np.arange(4001))
    assert clip_free(single, 8.0).deviation[0] == single.deviation[0]  # too far out: the scale stays


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "2.5", "abc"], "category"),
        ([str(k) for k in range(MAX_NUMERIC_CATEGORIES)] + ["abc"], "category"),
        ([str(k) for k in range(MAX_NUMERIC_CATEGORIES + 1)] + ["abc"], "number"),
        ([str(k) for k in range(40)] + [f"x{k}" for k in range(40)], "number"),
        ([str(k) for k in range(40)] + [f"x{k}" for k in range(41)], "category"),
        (["2020-01-01", "2020-01-02"], "date"),
        (["2020-01-01", "x"], "category"),
        (["2020-01-01", "2020-01-02", "x"], "date"),
        (["5%", "7%"], "percent"),
        (["5%", "x"], "category"),
        (["5%", "7%", "x"], "percent"),
        (["007", "012"], "category"),
        (["0.5", "0"], "number"),
        (["?", "1", "2"], "number"),
    ],
    ids=str,
)  # fmt: skip
def test_types_of_texts_at_exactly_half_of_the_values(texts: list[str], kind: str) -> None:
    decided = decide_type(texts, "csv").type
    assert decided is not None
    assert decided.kind == kind

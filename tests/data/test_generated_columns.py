"""Properties of bins, weights of evidence, summaries and ranks over generated columns and labels."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from securevfl.data.baseline import numeric_baseline
from securevfl.data.bin_edges import MIN_BIN_ROWS, find_bin_edges
from securevfl.data.column_transforms import BinTransform
from securevfl.data.columns import columns_of
from securevfl.data.preparation import Preparation, fit_preparation
from securevfl.data.woe import Woe, number_bins
from securevfl.models.metrics import area_under_curve, average_precision, kolmogorov_smirnov, lift
from tests.builders import labels_for, random_blocks
from tests.hard_tables import discrete_columns, rare_labels

FEW = settings(max_examples=25)


@FEW
@given(discrete_columns(), st.integers(2, 12))
def test_bins_have_enough_rows_and_cut_between_values(column: NDArray[np.float64], bins: int) -> None:
    present = column[~np.isnan(column)]
    edges = find_bin_edges(present, bins)
    assert edges == sorted(set(edges))
    counts = np.bincount(np.digitize(present, edges), minlength=len(edges) + 1)
    assert len(edges) == 0 or counts.min() >= MIN_BIN_ROWS
    features = BinTransform(column="a", edges=tuple(edges)).apply(present, ()) if edges else np.empty((len(present), 0))
    assert features.sum(axis=1).tolist() == [sum(value >= edge for edge in edges) for value in present]
    options = Woe(bins=bins, rows=20)
    fitted = number_bins("a", column, bool(np.isnan(column).any()), options)
    numbers = fitted.bin_numbers(column, ())
    assert len(fitted.edges) + 1 <= bins
    assert not np.isnan(numbers).any()
    assert fitted.bins <= options.slots
    for low, high in pairwise([-np.inf, *fitted.edges, np.inf]):
        inside = (present >= low) & (present < high)
        assert len(fitted.edges) == 0 or inside.sum() >= options.rows
        assert len(set(numbers[~np.isnan(column)][inside])) == 1


@FEW
@given(st.integers(2, 50), st.integers(0, 500), st.booleans())
def test_no_number_of_rows_gives_more_bins_than_wanted(bins: int, more: int, gaps: bool) -> None:
    """Without ties, the number of bins is limited by the number of rows that a bin must have."""
    column, options = np.arange(20.0 * bins + more), Woe(bins=bins, rows=20)
    fitted = number_bins("a", np.r_[column, [np.nan] * gaps], gaps, options)
    assert len(fitted.edges) + 1 <= bins
    assert fitted.bins <= options.slots
    counts = np.bincount(np.digitize(column, fitted.edges))
    assert counts.min() >= options.rows
    assert (counts[:-1] * bins >= len(column)).all()


@FEW
@given(discrete_columns())
def test_a_preparation_leaves_no_gap_and_states_every_row(column: NDArray[np.float64]) -> None:
    table = columns_of("bank", np.column_stack([column, np.arange(len(column)) % 7]), ["a", "b"])
    prepared = fit_preparation("bank", table, np.arange(len(column)), Preparation(tails="keep"))
    X = prepared.apply(table)
    assert X.shape == (len(column), len(prepared.features))
    assert not np.isnan(X).any()
    gaps = np.isnan(column)
    np.testing.assert_array_equal(X[~gaps, 0], column[~gaps])
    assert set(X[gaps, 0]) <= {float(np.median(column[~gaps]))}
    summary = numeric_baseline("a", column)
    assert summary.missing == gaps.sum()
    assert list(summary.below) == [int((column <= point).sum()) for point in summary.points]


@FEW
@given(st.data(), discrete_columns(40, 80))
def test_ranks_of_tied_scores_and_rare_labels(data: st.DataObject, column: NDArray[np.float64]) -> None:
    score = np.nan_to_num(column)
    positive = data.draw(rare_labels(len(score)))
    area, turned = area_under_curve(positive, score), area_under_curve(positive, -score)
    if positive.all() or not positive.any():
        assert np.isnan(area)
        assert np.isnan(kolmogorov_smirnov(positive, score))
        return
    pairs = score[positive][:, None] - score[~positive]
    assert abs(area - ((pairs > 0).mean() + (pairs == 0).mean() / 2)) < 1e-12
    assert abs(area + turned - 1) < 1e-12
    distances = [abs((score[positive] >= t).mean() - (score[~positive] >= t).mean()) for t in set(score.tolist())]
    assert abs(kolmogorov_smirnov(positive, score) - max(distances)) < 1e-12
    assert average_precision(positive, score) >= positive.mean() * positive.sum() / len(positive) / 2
    assert 0 <= lift(positive, score) <= 10 + 1e-9
    assert abs(lift(positive, score, top=1.0) - 1) < 1e-12


def test_generated_tables_have_ties_zeros_and_rare_classes() -> None:
    for count, rows in ((2, 240), (3, 60)):
        blocks = random_blocks(count, rows, 3)
        for block in blocks:
            values = set(block[:, 0].tolist())
            assert 0.0 in values
            assert values <= {-2.0, -1.0, 0.0, 1.0, 2.0}
            np.testing.assert_array_equal(block[-(rows // 10) :], block[: rows // 10])
        for classes in (2, 3, 5):
            sizes = np.bincount(labels_for(blocks, classes)) / rows
            assert len(sizes) == classes
            assert sizes.argmin() == classes - 1
            assert sizes[-1] < 0.75 / classes


def test_a_column_without_values_has_no_edges() -> None:
    for bins in (2, 10):
        assert find_bin_edges(np.array([]), bins) == []

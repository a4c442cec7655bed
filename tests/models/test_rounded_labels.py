"""Metrics of counts and amounts from rounded labels agree with those of the labels within their standard errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import mean_squared_error, r2_score

from securevfl.base.arrays import Floats
from securevfl.models.metrics import gini
from securevfl.models.rounded_labels import MIN_CODE_ROWS, RankedMetrics, choose_knots, ranked_metrics, round_labels

SPACING = 0.125  # 64 levels from -4 to 4, with two bits for the label: words of 8 bits
CASES = [
    *((kind, spread, 20_000) for kind in ("counts", "rare", "amounts") for spread in (0.25, 0.6)),
    *(("counts", spread, 2500) for spread in (0.25, 0.6)),
]


def drawn(kind: str, spread: float, rows: int, seed: int) -> tuple[Floats, Floats, float]:
    """Return scores, labels and the mean label."""
    draw = np.random.default_rng([seed, rows])
    f = spread * draw.normal(size=rows) - spread**2 / 2
    mean = 0.15 if kind == "rare" else 2.0
    mu = mean * np.exp(f)
    return f, draw.gamma(2, mu / 2) if kind == "amounts" else draw.poisson(mu).astype(float), mean


def measured(f: Floats, y: Floats, mean: float, draw: np.random.Generator) -> RankedMetrics:
    """Return the metrics of pairs in random order, with randomly rounded scores and labels."""
    knots = choose_knots(y, 4)
    assert knots is not None
    codes, order = round_labels(y, knots, draw.random(len(y))), draw.permutation(len(y))
    rounded = SPACING * np.floor(np.clip(f, -3, 3) / SPACING + draw.random(len(f)))
    return ranked_metrics(rounded[order], mean * np.exp(rounded[order]), knots[codes][order], y, SPACING)


@pytest.mark.parametrize(("kind", "spread", "rows"), CASES)
def test_metrics_are_within_three_printed_errors(kind: str, spread: float, rows: int) -> None:
    draw, ratios, exact = np.random.default_rng(7), [], {}
    for seed in range(12):
        f, y, mean = drawn(kind, spread, rows, seed)
        mu = mean * np.exp(f)
        exact = {"gini": gini(y, f), "r2": r2_score(y, mu), "rmse": math.sqrt(mean_squared_error(y, mu))}
        result = measured(f, y, mean, draw)
        ratios += [(name, (value - exact[name]) / result.errors[name]) for name, value in result.values.items()]
    assert {"gini"} <= {name for name, _ in ratios} <= exact.keys()
    assert max(abs(ratio) for _, ratio in ratios) < 3
    for name in {name for name, _ in ratios}:
        assert (
            abs(np.mean([ratio for of, ratio in ratios if of == name])) < 0.7
        )  # the bias is small compared with the error


def test_the_mean_label_of_each_tenth_is_unbiased() -> None:
    draw = np.random.default_rng(3)
    f, y, mean = drawn("amounts", 0.6, 20_000, 1)
    curve = np.mean([measured(f, y, mean, draw).curve for _ in range(20)], axis=0)
    expected = [y[rows].mean() for rows in np.array_split(np.argsort(f), 10)]
    np.testing.assert_allclose(curve[:, 1], expected, rtol=0.08)
    assert curve[:, 2].sum() == len(y)


def test_every_code_has_enough_rows() -> None:
    for kind in ("counts", "rare", "amounts"):
        _, y, _ = drawn(kind, 0.6, 20_000, 5)
        knots = choose_knots(y, 4)
        assert knots is not None
        assert (knots[0], knots[-1]) == (y.min(), y.max())
        counts = np.bincount(round_labels(y, knots, np.random.default_rng(1).random(len(y))))
        assert len(counts) == len(knots)
        assert counts.min() > MIN_CODE_ROWS - 3 * math.sqrt(MIN_CODE_ROWS)
    assert choose_knots(np.append(np.zeros(999), 1.0), 4) is None  # one row would be recognised


@pytest.mark.parametrize("kind", ["counts", "rare", "amounts"])
def test_knots_are_those_of_a_loop_over_rows(kind: str) -> None:
    """No usable choice of knots, of a few tried ones, adds less variance."""
    _, y, _ = drawn(kind, 0.6, 3000, 4)

    def variance(knots: Floats) -> float:
        lower = np.clip(np.searchsorted(knots, y, side="right") - 1, 0, len(knots) - 2)
        return float(((y - knots[lower]) * (knots[lower + 1] - y)).sum())

    def rarest(knots: Floats) -> float:
        lower = np.clip(np.searchsorted(knots, y, side="right") - 1, 0, len(knots) - 2)
        share = (y - knots[lower]) / (knots[lower + 1] - knots[lower])
        return float(min(((lower == k) * (1 - share) + (lower == k - 1) * share).sum() for k in range(len(knots))))

    chosen = choose_knots(y, 4)
    if chosen is None:
        assert rarest(np.array([y.min(), y.max()])) < MIN_CODE_ROWS
        return
    assert rarest(chosen) >= MIN_CODE_ROWS - 1e-6
    inner = np.unique(np.quantile(y, [0.1, 0.3, 0.5, 0.7, 0.9], method="nearest"))
    inner = inner[(inner > y.min()) & (inner < y.max())]
    for a in inner:
        for b in inner[inner > a]:
            knots = np.array([y.min(), a, b, y.max()])
            if rarest(knots) >= MIN_CODE_ROWS:
                assert variance(chosen) <= 1.02 * variance(knots)  # the candidates are 48 quantiles


def test_equal_labels_have_no_knots() -> None:
    assert choose_knots(np.full(3000, 2.0), 4) is None

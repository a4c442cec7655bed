"""Tests of randomness with one false-alarm rate for the whole test suite.

A check fails if a p-value is below LEVEL = SUITE_FALSE_ALARM / MAX_TESTS (Bonferroni). With at most MAX_TESTS p-values
and all hypotheses true, the probability that any check fails is at most SUITE_FALSE_ALARM. The test suite checks that
it computes no more p-values (tests/selfcheck/suite/budget.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from securevfl.base.arrays import Floats

SUITE_FALSE_ALARM = 1e-6
MAX_TESTS = 10_000
TEST_LEVEL = SUITE_FALSE_ALARM / MAX_TESTS

MIN_SAMPLES = 40
"""Minimum number of samples for a test."""
_CELL = 20  # minimum expected count of a cell of a chi-square test


@dataclass
class Battery:
    """The results of several tests: p-values by name, the smallest if several have one name; the length counts all."""

    values: dict[str, float] = field(default_factory=dict)
    count: int = 0

    def add(self, name: str, p: float) -> None:
        """Add a p-value; the smallest one of a name is stored."""
        self.values[name] = min(p, self.values.get(name, 1.0))
        self.count += 1

    def failures(self) -> list[str]:
        """Return a line for each p-value below LEVEL."""
        return [f"{name} (p = {p:.1e})" for name, p in self.values.items() if p < TEST_LEVEL]

    def __len__(self) -> int:
        return self.count


def add_uniformity_tests(battery: Battery, name: str, fractions: Floats, low: NDArray[np.uint8]) -> None:
    """Add tests that `fractions` are uniform on [0, 1), and the bytes `low` on 0..255 and in each bit."""
    if len(fractions) >= MIN_SAMPLES:
        # computes the statistic of scipy's kstest, which would take ten times as long for a million numbers
        ranked, steps = np.sort(fractions), np.arange(len(fractions) + 1) / len(fractions)
        distance = max((steps[1:] - ranked).max(), (ranked - steps[:-1]).max())
        battery.add(f"{name}: KS on residues", float(stats.kstwo.sf(distance, len(fractions))))
        cells = min(256, len(fractions) // _CELL)
        counts = np.bincount((fractions * cells).astype(int).clip(0, cells - 1), minlength=cells)
        battery.add(f"{name}: chi-square on residues", float(stats.chisquare(counts).pvalue))
    if len(low) >= MIN_SAMPLES:
        cells = 256 if len(low) >= 256 * _CELL else 16
        if len(low) >= cells * _CELL:
            counts = np.bincount(low >> np.uint8(0 if cells == 256 else 4), minlength=cells)
            battery.add(f"{name}: chi-square on bytes", float(stats.chisquare(counts).pvalue))
        ones = np.unpackbits(low[:, None], axis=1).sum(axis=0)
        squares = ((ones - len(low) / 2) ** 2 / (len(low) / 4)).sum()
        battery.add(f"{name}: chi-square on bits", float(stats.chi2.sf(squares, 8)))


def add_two_sample_tests(battery: Battery, name: str, real: Floats, simulated: Floats) -> None:
    """Add two-sample tests of fractions in [0, 1): Kolmogorov-Smirnov, and chi-square of cells and of low bits."""
    if min(len(real), len(simulated)) < MIN_SAMPLES:
        return
    battery.add(f"{name}: KS", float(stats.ks_2samp(real, simulated, method="asymp").pvalue))
    for sample, shift in (("residues", 1.0), ("low bits", 2.0**16)):
        cells = max(2, min(64, len(real) // _CELL))
        table = np.stack(
            [np.bincount(((x * shift % 1.0) * cells).astype(int), minlength=cells)[:cells] for x in (real, simulated)]
        )
        table = table[:, table.sum(axis=0) >= _CELL]
        if table.shape[1] >= 2 and table.sum(axis=1).all():
            battery.add(f"{name}: chi-square on {sample}", float(stats.chi2_contingency(table).pvalue))


def add_classifier_tests(battery: Battery, name: str, real: Floats, simulated: Floats, seed: int = 0) -> None:
    """Add tests of whether trained classifiers (logistic, gradient boosting) separate two samples.

    Half of the rows train a classifier. The p-value is the rank-sum test of its scores on the other half.

    Args:
        battery: receives the p-values.
        name: name of the p-values.
        real: one row of statistics (n, k) for each real message.
        simulated: one row of statistics (m, k) for each simulated message.
        seed: seed of the split and of the classifiers.
    """
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    count = min(len(real), len(simulated))
    if count < MIN_SAMPLES:
        return
    both = np.concatenate([real, simulated])
    kind = np.repeat([1, 0], [len(real), len(simulated)])
    order = np.random.default_rng(seed).permutation(len(both))
    half = len(order) // 2
    train, test = order[:half], order[half:]
    for label, model in (
        ("logistic", make_pipeline(StandardScaler(), LogisticRegression(solver="liblinear"))),
        ("boosting", GradientBoostingClassifier(n_estimators=20, max_depth=2, random_state=seed)),
    ):
        scores = model.fit(both[train], kind[train]).predict_proba(both[test])[:, 1]
        ranked = stats.mannwhitneyu(scores[kind[test] == 1], scores[kind[test] == 0], alternative="greater")
        battery.add(f"{name}: {label} classifier", float(ranked.pvalue))

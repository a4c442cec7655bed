"""Gains in AUC of trainings on secret shares: most are stated if columns are informative, few if they are not."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

import securevfl as vfl
from securevfl.errors import DataNotice
from securevfl.training.comparison import Comparison, alone, build_comparison, compared_jobs, joint_row, pooled_party

ROWS = 2500
"""Number of training rows, and of held-out rows."""
JOBS = {"logistic": compared_jobs(vfl.Job(model="logistic", test_fraction=0.5))["logistic"]}


def two_parties(seed: int, worth: float) -> list[vfl.Party]:
    """Return a bank with labels and a shop.

    Args:
        seed: number of the sample.
        worth: weight of each of the shop's columns in the labels.
    """
    draw = np.random.default_rng([seed, ROWS])
    X = draw.normal(size=(2 * ROWS, 8))
    f = X[:, :4] @ [1.0, -0.7, 0.5, 0.3] + worth * X[:, 4:].sum(axis=1) + draw.logistic(size=2 * ROWS)
    y = (f > np.quantile(f, 0.7)).astype(int)
    return [vfl.Party("bank", X[:, :4], y, ids=range(2 * ROWS)), vfl.Party("shop", X[:, 4:], ids=range(2 * ROWS))]


def compared_on_shares(seed: int, worth: float) -> Comparison:
    """Compare logistic models of the bank's columns with those of all columns, trained on shares."""
    parties = two_parties(seed, worth)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        models = list(alone(JOBS, parties[0], lambda name: None))
        run = vfl.simulate(JOBS["logistic"], parties)
    models.append(joint_row("bank, shop", "logistic", run.active, run.costs.total))
    return build_comparison(models, JOBS["logistic"], parties[0])


def compared_in_one_table(seed: int, worth: float) -> Comparison:
    """Compare the same models, the joint one trained on one table with all columns."""
    parties = two_parties(seed, worth)
    models = list(alone(JOBS, parties[0], lambda name: None))
    [pooled] = alone(JOBS, pooled_party(parties), lambda name: None)
    models.append(pooled._replace(row=replace(pooled.row, columns="bank, shop"), f=None))
    return build_comparison(models, JOBS["logistic"], parties[0])


def test_a_large_gain_is_stated_and_none_is_within_chance() -> None:
    """Without a gain, 5 % of samples have a certain one; 6.2 standard errors are exceeded once in 10^9."""
    assert compared_on_shares(0, 0.5).is_certain
    none = compared_on_shares(0, 0.0)
    assert none.gain < 6.2 * none.gain_error
    assert none.gain < 0.01


@pytest.mark.slow
def test_gains_on_shares_are_those_of_one_table() -> None:
    on_shares = [compared_on_shares(seed, 0.2) for seed in range(10)]
    in_one_table = [compared_in_one_table(seed, 0.2) for seed in range(10)]
    for shared, pooled in zip(on_shares, in_one_table, strict=True):
        assert shared.gain == pytest.approx(pooled.gain, abs=pooled.gain_error / 2)
        assert shared.gain_error == pytest.approx(pooled.gain_error, rel=0.15)
    assert sum(result.is_certain for result in on_shares) >= 9


@pytest.mark.slow
def test_the_error_is_the_deviation_over_samples() -> None:
    """The standard deviation of 200 gains has a standard error of 5 %."""
    comparisons = [compared_in_one_table(seed, 0.2) for seed in range(200)]
    deviation = np.std([result.gain for result in comparisons], ddof=1)
    assert np.mean([result.gain_error for result in comparisons]) == pytest.approx(deviation, rel=0.2)


@pytest.mark.slow
def test_few_gains_are_stated_in_20_samples_without_any() -> None:
    """At a level of 5 %, more than 10 of 20 are certain once in 10^10."""
    comparisons = [compared_on_shares(seed, 0.0) for seed in range(20)]
    assert sum(result.is_certain for result in comparisons) <= 10

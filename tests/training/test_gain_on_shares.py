"""Gains in AUC of trainings on secret shares: stated if they are three standard errors, and not if there is none."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import securevfl as vfl
from securevfl.errors import DataNotice
from securevfl.training.comparison import Comparison, alone, build_comparison, compared_jobs, joint_row

ROWS = 2500
"""Number of training rows, and of held-out rows."""


def compared_on_shares(seed: int, worth: float) -> Comparison:
    """Compare logistic models of the bank's columns with those of all columns.

    Args:
        seed: number of the sample.
        worth: weight of each of the shop's columns in the labels.
    """
    draw = np.random.default_rng([seed, ROWS])
    X = draw.normal(size=(2 * ROWS, 8))
    f = X[:, :4] @ [1.0, -0.7, 0.5, 0.3] + worth * X[:, 4:].sum(axis=1) + draw.logistic(size=2 * ROWS)
    y = (f > np.quantile(f, 0.7)).astype(int)
    bank = vfl.Party("bank", X[:, :4], y, ids=range(2 * ROWS))
    shop = vfl.Party("shop", X[:, 4:], ids=range(2 * ROWS))
    jobs = {"logistic": compared_jobs(vfl.Job(model="logistic", test_fraction=0.5))["logistic"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        models = list(alone(jobs, bank, lambda name: None))
        run = vfl.simulate(jobs["logistic"], [bank, shop])
    models.append(joint_row("bank, shop", "logistic", run.active, run.costs.total))
    return build_comparison(models, jobs["logistic"], bank)


def test_a_large_gain_is_stated_and_none_is_not() -> None:
    assert compared_on_shares(0, 0.5).is_certain
    assert not compared_on_shares(0, 0.0).is_certain


@pytest.mark.slow
def test_gains_of_three_errors_are_stated_in_9_of_10_samples() -> None:
    comparisons = [compared_on_shares(seed, 0.2) for seed in range(10)]
    assert np.mean([result.gain / result.gain_error for result in comparisons]) == pytest.approx(3, abs=0.6)
    assert sum(result.is_certain for result in comparisons) >= 9


@pytest.mark.slow
def test_no_gain_is_stated_in_20_samples_without_any() -> None:
    comparisons = [compared_on_shares(seed, 0.0) for seed in range(20)]
    assert sum(result.is_certain for result in comparisons) == 0

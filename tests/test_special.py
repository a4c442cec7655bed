"""Special functions equal those of scipy, which the package does not require because it is large."""

import numpy as np
import pytest
from scipy import special as oracle

from securevfl.base.normal_distribution import normal_cdf, normal_quantile
from securevfl.models.loss import log_sum_exp, logistic, softmax
from securevfl.models.metrics import area_under_curve

GENERATOR = np.random.default_rng(0)
LOW = 10.0 ** -GENERATOR.uniform(0, 300, 5000)
PROBABILITIES = np.concatenate(
    [GENERATOR.random(20_000), LOW, 1 - LOW[LOW > 1e-15], [0.075, 0.925, 0.5, 2.0**-54, 5e-324]]
)


def test_the_normal_quantile_is_right_everywhere() -> None:
    inside = PROBABILITIES[(PROBABILITIES > 0) & (PROBABILITIES < 1)]
    np.testing.assert_allclose(normal_quantile(inside), oracle.ndtri(inside), rtol=4e-15, atol=1e-16)
    assert normal_quantile(PROBABILITIES[:35].reshape(5, 7)).shape == (5, 7)
    last = (np.array(2.0**53 - 1) + 0.5) * 2.0**-53  # the largest uniform number that is drawn
    assert normal_quantile(last) == normal_quantile(np.array(1.0)) < 8.3


def test_the_normal_distribution() -> None:
    for z in (-8.0, -1.0, 0.0, 0.3, 5.0):
        assert normal_cdf(z) == pytest.approx(float(oracle.ndtr(z)), rel=1e-12)


def test_the_logistic_function_keeps_its_digits_at_both_ends() -> None:
    x = np.concatenate([GENERATOR.normal(size=1000) * 100, [-700.0, 700.0, -1e4, 1e4, 0.0]])
    with np.errstate(under="ignore"):
        np.testing.assert_allclose(logistic(x), oracle.expit(x), rtol=1e-14, atol=1e-300)


def test_sums_of_exponentials() -> None:
    f = GENERATOR.normal(size=(200, 5)) * 300
    with np.errstate(under="ignore"):
        np.testing.assert_allclose(log_sum_exp(f), oracle.logsumexp(f, axis=1), rtol=1e-14)
        np.testing.assert_allclose(softmax(f), oracle.softmax(f, axis=1), rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("levels", [3, 40, 10**9])
def test_the_area_under_the_curve_is_scikit_learn_s(levels: int) -> None:
    from sklearn.metrics import roc_auc_score

    score = GENERATOR.integers(0, levels, 500) / levels
    positive = GENERATOR.random(500) < 0.3 + 0.4 * score
    assert area_under_curve(positive, score) == pytest.approx(roc_auc_score(positive, score), abs=1e-12)
    assert np.isnan(area_under_curve(np.ones(3, dtype=bool), score[:3]))

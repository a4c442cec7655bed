"""Noise on local predictions: its privacy parameter compared with a closed form, its size, and its randomness."""

from math import erf, exp, sqrt

import numpy as np
import pytest

import securevfl as vfl
from securevfl.errors import ConfigError
from securevfl.families.fdml.local_noise import LocalNoiseSampler
from securevfl.protocols.residuals.defences import clip_rows
from tests.builders import raises_code

dp = pytest.importorskip("dp_accounting")


def delta_of(epsilon: float, mu: float) -> float:
    """Return the exact delta of a Gaussian mechanism of sensitivity / sigma = mu (Balle and Wang 2018, theorem 8)."""

    def phi(x: float) -> float:
        return (1 + erf(x / sqrt(2))) / 2

    return phi(mu / 2 - epsilon / mu) - exp(epsilon) * phi(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(("epsilon", "visits"), [(0.5, 1), (1.0, 10), (8.0, 40)])
def test_accounting_equals_the_library_and_exceeds_exact_delta(epsilon: float, visits: int) -> None:
    noise = vfl.LocalNoise(epsilon=epsilon, delta=1e-5, clip=3.0)
    multiplier = noise.sigma(visits) / 6.0
    accountant = dp.rdp.RdpAccountant()
    accountant.compose(dp.GaussianDpEvent(multiplier), visits)
    assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon, rel=1e-3)
    exact = delta_of(
        epsilon, sqrt(visits) / multiplier
    )  # all pushes together are one Gaussian mechanism with mu sqrt(visits)
    assert 1e-7 < exact <= 1e-5
    for resumed in range(4):
        assert noise.after(visits, resumed) == pytest.approx(_epsilon(multiplier, visits + 2 * resumed), rel=1e-6)


def _epsilon(multiplier: float, pushes: int) -> float:
    accountant = dp.rdp.RdpAccountant()
    accountant.compose(dp.GaussianDpEvent(multiplier), pushes)
    return float(accountant.get_epsilon(1e-5))


def test_no_row_moves_a_push_further_than_the_sensitivity() -> None:
    generator = np.random.default_rng(0)
    noise = vfl.LocalNoise(epsilon=1, delta=1e-5, clip=2.5)
    farthest = 0.0
    for size in (0.1, 1.0, 10.0, 1e6):
        H, other = (generator.normal(scale=size, size=(400, 3)) for _ in range(2))
        farthest = max(farthest, float(np.linalg.norm(clip_rows(H, 2.5) - clip_rows(other, 2.5), axis=1).max()))
        farthest = max(farthest, float(np.linalg.norm(clip_rows(H, 2.5) - clip_rows(-H, 2.5), axis=1).max()))
    assert farthest <= noise.sensitivity + 1e-12
    assert farthest > 0.999 * noise.sensitivity
    small = generator.uniform(-0.1, 0.1, (5, 2))
    np.testing.assert_array_equal(clip_rows(small, 2.5), small)


def test_noise_has_the_computed_size_and_never_repeats() -> None:
    noise = vfl.LocalNoise(epsilon=1, delta=1e-5, clip=1.0)
    blur, H = LocalNoiseSampler(noise, 4), np.zeros((20_000, 1))
    one, other = blur(H), blur(H)
    assert one.std() == pytest.approx(noise.sigma(4), rel=0.035)  # tolerance of seven standard errors
    assert abs(np.corrcoef(one[:, 0], other[:, 0])[0, 1]) < 0.05  # tolerance of seven standard errors
    assert abs(np.corrcoef(one[:, 0], LocalNoiseSampler(noise, 4)(H)[:, 0])[0, 1]) < 0.05


def test_jobs_name_noise_with_its_keys() -> None:
    optimizer = vfl.FDML(lr=0.1, stored={"name": "masks", "noise": {"epsilon": 1, "delta": 1e-5, "clip": 2}})
    assert optimizer.stored == vfl.StoredMasks(noise=vfl.LocalNoise(epsilon=1, delta=1e-5, clip=2))
    for wrong in ({"epsilon": 1, "delta": 1e-5}, {"epsilon": 0, "delta": 1e-5, "clip": 1}, {"epsilon": 1, "delta": 1}):
        with raises_code(ConfigError, "SVFL-JOB-OPTION"):
            vfl.FDML(lr=0.1, stored={"name": "masks", "noise": wrong})
    for visits in (10, 0):  # 0 if the run has yet to determine its epochs
        assert "epsilon 1 at delta 1e-05" in vfl.LocalNoise(epsilon=1, delta=1e-5, clip=2).promise(visits)

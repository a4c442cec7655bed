"""Defences (noise or clipping) of residuals g: their effect, their privacy accounting,
and the secrecy of their noise.
"""

import numpy as np
import pytest
from builders import raises_code
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import kstest, norm

import securevfl as vfl
from securevfl.crypto.prg import Prg
from securevfl.errors import ConfigError
from securevfl.protocols.residuals.defences import (
    DEFENCES,
    Gaussian,
    Marvell,
    MaxNorm,
    Noise,
    Rounding,
    normals,
    uniforms,
)
from securevfl.protocols.residuals.open_residual import Residual

G = np.random.default_rng(0).uniform(-1, 1, size=(4000, 1))


def prg() -> Prg:
    return Prg.fresh("test")


def exact_epsilon(sigma: float, sensitivity: float, releases: int, delta: float) -> float:
    """Return the exact epsilon of composed Gaussian mechanisms (Balle and Wang 2018, theorem 8; Dong et al. 2019)."""
    mu = sensitivity * np.sqrt(releases) / sigma

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta)

    return float(brentq(excess, 0, 500)) if excess(0) > 0 else 0.0


@given(st.floats(0.5, 50), st.integers(1, 200), st.sampled_from([1e-3, 1e-5, 1e-8]))
def test_epsilon_is_a_tight_upper_bound(sigma: float, releases: int, delta: float) -> None:
    defence = Gaussian(sigma=sigma, clip=0.5)
    if defence.rho(releases) > 50:
        return
    exact = exact_epsilon(sigma, 1.0, releases, delta)
    assert exact <= defence.epsilon(releases, delta) + 1e-9
    assert defence.epsilon(releases, delta) <= 1.15 * exact + 0.1


def test_releases_compose_as_less_noise_does() -> None:
    assert Gaussian(sigma=4, clip=1).rho(16) == pytest.approx(Gaussian(sigma=1, clip=1).rho(1))
    assert Gaussian(sigma=2, clip=1).sensitivity == 2


def test_clipping_bounds_the_sensitivity() -> None:
    """The mean of many noisy g is the clipped g: no row is longer than `clip`, so no
    label changes it by more than 2.
    """
    g = np.array([[30.0, 40.0], [0.3, 0.4]])
    defence = Gaussian(sigma=1e-9, clip=1.0)
    np.testing.assert_allclose(defence.apply(g, prg()), [[0.6, 0.8], [0.3, 0.4]], atol=1e-6)


def test_noise_is_normal_of_the_stated_size() -> None:
    """Each test fails by chance once in 1e9; a standard deviation that is wrong by 6 % does not pass."""
    stream, g = prg(), np.tile(G, (12, 1))
    assert kstest(normals(stream, (50000,)), "norm").pvalue > 1e-9
    assert kstest(uniforms(stream, (50000,)), "uniform").pvalue > 1e-9
    noise = Gaussian(sigma=3.0).apply(g, stream) - g
    assert kstest(noise[:, 0] / 3, "norm").pvalue > 1e-9


@pytest.mark.parametrize("defence", [Gaussian(sigma=1), Marvell(), MaxNorm(), Rounding(step=0.4)], ids=repr)
def test_noise_is_fresh_every_time_and_keeps_the_mean(defence: object) -> None:
    stream = prg()
    draws = [defence.apply(G, stream) for _ in range(200)]  # type: ignore[attr-defined]
    assert not np.array_equal(draws[0], draws[1])
    spread = np.std(draws, axis=0)
    off = np.mean(draws, axis=0) - G  # 4,000 rows: Student's t with 199 degrees of freedom exceeds 8 once in 1e13
    assert np.all(np.abs(off) < 8 * np.maximum(spread, 0.2) / np.sqrt(200))


def test_rounding_lands_on_the_grid_next_to_the_value() -> None:
    rounded = Rounding(step=0.25).apply(G, prg())
    np.testing.assert_allclose(rounded / 0.25, np.rint(rounded / 0.25))
    assert np.abs(rounded - G).max() < 0.25


def test_max_norm_evens_out_the_norms() -> None:
    g = np.array([[1.0]] + [[0.1]] * 3000)
    assert np.mean(MaxNorm().apply(g, prg())[1:] ** 2) == pytest.approx(1.0, rel=0.2)
    assert MaxNorm().apply(g, prg())[0, 0] == 1.0


def test_marvell_uses_its_power_and_hides_the_classes() -> None:
    g = np.where(np.arange(20000) % 5 == 0, -0.8, 0.2)[:, None]
    blurred = Marvell(power=4.0).apply(g, prg())
    noise = (blurred - g)[:, 0]
    assert np.mean(noise**2) == pytest.approx(4.0, rel=0.1)  # power times the squared gap, which is 1
    few, many = noise[g[:, 0] < 0].var(), noise[g[:, 0] > 0].var()
    # for classes without spread equal noise is best; 6 % more is found, and 2.7 % are a standard error
    assert few == pytest.approx(many, rel=0.25)


@pytest.mark.parametrize("values", [[0.2] * 40, [-0.8] * 40, [-0.8], [0.2], [-0.3, 0.7]])
def test_a_batch_of_one_class_or_row_gets_noise(values: list[float]) -> None:
    """A defence that lets such a batch pass unchanged would show its labels."""
    g = np.array(values)[:, None]
    sizes = {Gaussian(sigma=1): 1.0, Marvell(power=4.0): 4 * (np.mean(g**2) if np.ptp(g) == 0 else 1.0)}
    for defence, variance in sizes.items():
        noise = np.array([defence.apply(g, prg()) - g for _ in range(400 // len(g))])
        # a chi-squared number with 400 degrees of freedom is outside of these bounds once in 1e9
        assert 0.6 * variance < np.mean(noise**2) < 1.5 * variance
    assert len({Rounding(step=1.0).apply(g, prg())[0, 0] for _ in range(200)}) == 2  # 0.8^200 < 1e-19


def test_each_release_has_a_stream_of_its_own() -> None:
    """No two trainings, subchannels or releases share noise, and a resumed training draws the noise that follows."""

    def drawn(noise: Noise, number: int | None = None) -> float:
        return float(normals(noise.take(number), (1,))[0])

    keys = (bytes(32), bytes(31) + b"x")
    cases = [(key, subchannel, first) for key in keys for subchannel in ("", "a", "b") for first in (0, 1, 256)]
    assert len({drawn(Noise(*case)) for case in cases}) == len(cases)
    noise = Noise(keys[0], "a", 0)
    releases = [drawn(noise) for _ in range(5)]
    for finished in range(1, 5):
        resumed = Noise(keys[0], "a", finished)
        assert [drawn(resumed, number) for number in range(finished)] == releases[:finished]
        assert drawn(resumed) == releases[finished]
    assert drawn(Noise(b"", "a", 0)) != drawn(Noise(b"", "a", 0))


def test_marvell_is_for_two_classes() -> None:
    protocol = vfl.Protocol(residual=vfl.OpenResidual(defence=Marvell()))
    job = vfl.Job(model=vfl.Softmax(), optimizer=vfl.FedBCD(lr=0.1), protocol=protocol, epochs=1, accepts=["columns"])
    with raises_code(ConfigError, "SVFL-JOB-UNSUPPORTED"):
        vfl.simulate(job, vfl.datasets.digits())


def test_only_bounded_defences_go_under_encryption() -> None:
    with raises_code(ConfigError, "SVFL-JOB-COMBINATION"):
        vfl.SealedResidual(engine=vfl.Ckks(), defence=MaxNorm())
    assert normals(prg(), (10**6,)).max() < 9
    assert Gaussian(sigma=1).apply(G, prg()).max() < Gaussian(sigma=1).output_bound(1.0)


@pytest.mark.parametrize("name", DEFENCES)
def test_a_job_can_name_its_defence(name: str) -> None:
    keys = {"sigma": 0.5} if name == "gaussian" else {}
    job = vfl.Job.from_dict(
        {
            "model": "logistic",
            "optimizer": {"name": "fedbcd", "lr": 0.3},
            "protocol": {"residual": {"name": "open", "defence": {"name": name, **keys}}},
            "epochs": 2,
        }
    )
    assert vfl.Job.from_dict(job.to_dict()) == job
    assert "g of every row with noise" in vfl.explain(job)
    sent: list[np.ndarray] = []
    run = vfl.simulate(
        job,
        vfl.datasets.breast_cancer(),
        observe=lambda event: sent.append(event.message.g) if isinstance(event.message, Residual) else None,
    )
    assert run.metrics["auc"] > 0.9
    if name == "gaussian":
        assert np.abs(sent[0]).max() > 0.6  # clean residuals are 1/2 at first


def test_noise_is_added_before_encryption() -> None:
    defence = Gaussian(sigma=0.5)
    protocol = vfl.Protocol(residual=vfl.SealedResidual(engine=vfl.Ckks(), defence=defence))
    job = vfl.Job(model=vfl.Logistic(), optimizer=vfl.FedBCD(lr=0.3), protocol=protocol, epochs=2)
    parties = vfl.datasets.breast_cancer()
    first, second = (vfl.simulate(job, parties).parts["shop"].theta for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    assert vfl.Job.from_dict(job.to_dict()) == job

"""Trainings with default options against statsmodels and scikit-learn, in standard errors: open, CKKS, shares.

`python tests/models/test_right_numbers.py` prints the table of all of them, with the bounds that tests hold them to.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from selfcheck.whole_weights import whole_weights

import securevfl as vfl
from securevfl.errors import DataNotice, LabelError
from securevfl.models.log_link_losses import MAX_LOG_MEAN
from securevfl.training import session

N = 1500
DRAW = np.random.default_rng(7)
OWN, OTHER = DRAW.normal(size=(N, 3)), DRAW.normal(size=(N, 3))
OTHER[:, 0] += 0.6 * OWN[:, 0]
MU = np.exp(np.hstack([OWN, OTHER]) @ [0.4, -0.3, 0.2, 0.3, 0.2, 0.0])
EXPOSED = np.minimum(np.exp(1.6 * DRAW.normal(size=N)), 60.0)
EXPOSED[5] = 250.0
EXPOSED /= EXPOSED.mean()
COUNTED = DRAW.uniform(0.2, 3.0, N)
COUNTED /= COUNTED.mean()


def tweedie(mu: Any) -> Any:
    """Draw amounts of a variance of about mu^1.5: as a compound sum, a Poisson number of gamma amounts."""
    return np.array([DRAW.gamma(2.0, 0.5, k).sum() for k in DRAW.poisson(mu)])


def binomial(mu: Any) -> Any:
    return DRAW.negative_binomial(2, 2 / (2 + mu)).astype(float)


# results by family, and further columns of the table
LABELS: dict[str, Any] = {
    "poisson": DRAW.poisson(2 * MU).astype(float),
    "poisson, exposed": DRAW.poisson(2 * MU * EXPOSED).astype(float),
    "gamma, weighted": DRAW.gamma(1.2, 1000 * MU / 1.2),
    "tweedie, exposed": tweedie(2 * MU * EXPOSED),
    "negative_binomial, exposed, weighted": binomial(MU * EXPOSED),
}
MORE: dict[str, Any] = {  # only printed, not tested
    "poisson, weighted": LABELS["poisson"],
    "gamma": LABELS["gamma, weighted"],
    "gamma, exposed": LABELS["gamma, weighted"] * EXPOSED,
    "tweedie": tweedie(2 * MU),
    "tweedie, weighted": tweedie(2 * MU),
    "negative_binomial": binomial(MU),
}
LARGE = DRAW.poisson(1e5 * MU**0.05).astype(float)
TESTED_MODELS: dict[str, Any] = {
    "poisson": vfl.Poisson(),
    "gamma": vfl.Gamma(),
    "tweedie": vfl.Tweedie(power=1.5),
    "negative_binomial": vfl.NegativeBinomial(dispersion=0.5),
}
SEALED = ["columns", "rank", "fresh_equations", "label_auc"]
PROTOCOLS: dict[str, dict[str, Any]] = {
    "open": {"protocol": "open", "accepts": SEALED},
    "ckks": {"protocol": "ckks", "accepts": SEALED},
    "shares": {},
}
BAR = 0.035  # largest distance, in standard errors
ERROR_LEFT = 0.014
"""Standard errors by which a training stops before the optimum."""
LOSS = 0.005  # largest excess, as a share of the optimum's deviance


def family(name: str) -> Any:
    api = pytest.importorskip("statsmodels.api")
    kinds, log = api.families, api.families.links.Log()
    return {
        "poisson": kinds.Poisson(),
        "gamma": kinds.Gamma(log),
        "tweedie": kinds.Tweedie(var_power=1.5, link=log),
        "negative_binomial": kinds.NegativeBinomial(alpha=0.5),
    }[name]


def job_of(case: str, kind: str) -> vfl.Job:
    keys = PROTOCOLS[kind] | ({"exposure": "e"} if "exposed" in case else {})
    keys = keys | ({"weights": {"column": "w"}} if "weighted" in case else {})
    return vfl.Job(model=TESTED_MODELS[case.split(",")[0]], test_fraction=0.0, **keys)


def parties_of(case: str, y: Any) -> list[vfl.Party]:
    extra_columns = {"e": EXPOSED} if "exposed" in case else {}
    extra_columns |= {"w": COUNTED} if "weighted" in case else {}
    columns = np.column_stack([OWN, *extra_columns.values()])
    bank = vfl.Party("bank", columns, y, columns=["a", "b", "c", *extra_columns], ids=range(N))
    return [bank, vfl.Party("shop", OTHER, ids=range(N))]


def found(case: str, kind: str, y: Any) -> tuple[float, float, float]:
    """Return the largest distance of a coefficient from statsmodels', in standard errors, and two bounds.

    The second value is two deviations as they are forecast; the third is the excess of the deviance.
    """
    api = pytest.importorskip("statsmodels.api")
    job, parties, foreseen = job_of(case, kind), parties_of(case, y), [0.0]
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore", DataNotice)
        patch.setattr(session, "report_coefficient_error", lambda who, apart, remedy: foreseen.append(apart))
        run = vfl.simulate(job, parties)
    states = {name_of_party: part.state for name_of_party, part in run.parts.items()}
    theta = {name_of_party: part.theta for name_of_party, part in run.parts.items()} if kind != "shares" else {}
    theta = theta or whole_weights(run.job, states, "bank")
    X = np.hstack([run.parts["bank"].scaling(OWN), run.parts["shop"].scaling(OTHER)])
    beta = np.concatenate([theta["bank"][:3, 0], theta["shop"][:, 0]])
    offset = np.log(EXPOSED) if "exposed" in case else np.zeros(N)
    counts = COUNTED if "weighted" in case else np.ones(N)
    kind_of = family(case.split(",")[0])
    oracle = api.GLM(y, api.add_constant(X), family=kind_of, offset=offset, freq_weights=counts).fit(tol=1e-12)
    f = (X @ beta + theta["bank"][-1, 0])[:, None]
    mu = run.job.model.loss.mean(f, run.active.label_classes) * np.exp(offset)
    apart = np.abs((beta - oracle.params[1:]) / oracle.bse[1:]).max()
    above = kind_of.deviance(y, mu, freq_weights=counts) / oracle.deviance - 1
    return float(apart), foreseen[-1], float(above)


def bound(foreseen: float) -> float:
    """Return the largest accepted error, in standard errors.

    Sums are rounded at random on shares and under CKKS, so a coefficient is normally distributed over runs. The bound
    is seven of the deviations that `securevfl.models.rounding_error` predicts (P < 6 x 2.6e-12 in a case), plus the
    error because the training stops early.
    """
    return max(BAR, 3.5 * foreseen + ERROR_LEFT)


IN_EVERY_RUN = {*((case, "open") for case in LABELS), ("poisson, exposed", "shares"), ("gamma, weighted", "ckks")}
"""Each case once, and each protocol with an exposure or with weights; `make soak` runs the whole product."""
CASES = [
    pytest.param(case, kind, marks=[] if (case, kind) in IN_EVERY_RUN else pytest.mark.slow)
    for case in LABELS
    for kind in PROTOCOLS
]


@pytest.mark.parametrize(("case", "kind"), CASES)
def test_coefficients_match_statsmodels_within_standard_errors(case: str, kind: str) -> None:
    apart, foreseen, above = found(case, kind, LABELS[case])
    assert apart <= bound(foreseen)
    assert above <= LOSS


@pytest.mark.parametrize(("kind", "remedy"), [("ckks", "secret sharing"), ("shares", "protocol.shares.step")])
def test_counts_moved_by_rounding_beyond_chance_are_refused(kind: str, remedy: str) -> None:
    with pytest.raises(LabelError, match=rf"off by \d.* standard errors; at most 1 .*{remedy}"):
        vfl.simulate(job_of("poisson", kind), parties_of("poisson", LARGE))


@pytest.mark.exact_outputs
@pytest.mark.parametrize("case", LABELS)
def test_under_ckks_rounded_outputs_are_all_that_moves_them(case: str) -> None:
    apart, _, above = found(case, "ckks", LABELS[case])
    assert apart <= BAR
    assert above <= LOSS


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", ["poisson", "gamma", "tweedie"])
def test_an_exposure_is_the_same_as_its_share_of_rows(name: str, sign: float) -> None:
    """A row of exposure e has e^(2 - p) times the loss of its label per unit, however large e is; residuals are the
    derivative of the loss, and end at its bound."""
    job = vfl.Job(model=TESTED_MODELS[name], exposure="e", protocol="open", accepts=SEALED)
    f, h = np.linspace(-MAX_LOG_MEAN, MAX_LOG_MEAN, 25)[:, None], 1e-5
    for exposed in (1e-3, 0.2, 1.0, 30.0, 900.0):
        y = np.column_stack([np.full(25, 1.5 + sign), np.full(25, np.log(exposed))])
        slope = (job.loss.value(f + h, y) - job.loss.value(f - h, y)) / (2 * h)
        g = job.loss.residual(f, y)[:, 0]
        inside = np.abs(slope) < job.loss.bound
        np.testing.assert_allclose(g[inside], slope[inside], rtol=1e-4, atol=1e-4)
        assert np.abs(g).max() <= job.loss.bound


def report_lines() -> Iterator[str]:
    yield f"{'case':<37}{'protocol':<9}{'standard errors':>15}{'foreseen':>9}{'bound':>7}{'deviance above':>15}"
    for case, y in (LABELS | MORE).items():
        for kind in PROTOCOLS:
            apart, foreseen, above = found(case, kind, y)
            yield f"{case:<37}{kind:<9}{apart:>15.4f}{foreseen:>9.3f}{bound(foreseen):>7.2f}{above:>15.2e}"


if __name__ == "__main__":
    for line in report_lines():
        print(line, flush=True)

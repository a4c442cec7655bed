"""Losses of counts, amounts and quantiles: with every protocol, models equal scikit-learn's and statsmodels'."""

from __future__ import annotations

import csv
import gzip
from functools import cache
from typing import Any

import numpy as np
import pytest
from builders import REAL_TABLES, raises_code
from scipy import integrate, optimize, special
from selfcheck.whole_weights import whole_weights
from sklearn import linear_model as linear
from sklearn.metrics import mean_pinball_loss, mean_tweedie_deviance

import securevfl as vfl
from securevfl import errors
from securevfl.data.party import register_of
from securevfl.families.shares.shares_plan import make_plan
from securevfl.families.shares.shares_statements import table_error
from securevfl.models import metrics
from securevfl.models.log_link_losses import MAX_LOG_MEAN, LogLinkLoss
from securevfl.models.losses import LOSSES
from securevfl.protocols.shares.residual_tables import ResidualTables

N = 1500
DRAW = np.random.default_rng(7)
OWN = DRAW.normal(size=(N, 2)) * [1, 30] + [5, -20]
OTHER = DRAW.normal(size=(N, 3)) * [0.1, 4, 1] + [1, 100, 0]
BOTH = np.hstack([OWN, OTHER])
SCALED = (BOTH - BOTH.mean(axis=0)) / BOTH.std(axis=0)
MU = np.exp(SCALED @ [0.4, -0.3, 0.3, 0.2, 0.0] + 0.7)
EXPOSED = DRAW.uniform(0.2, 3.0, N)
LABELS = {
    "poisson": DRAW.poisson(MU).astype(float),
    "gamma": DRAW.gamma(2.0, 1000 * MU / 2.0),
    "tweedie": np.array([DRAW.gamma(2.0, 500.0, k).sum() for k in DRAW.poisson(MU / 2)]),
    "negative_binomial": DRAW.negative_binomial(2, 2 / (2 + MU)).astype(float),
    "quantile": 40 + 9 * SCALED @ [1, -1, 0.5, 0.2, 0.0] + 5 * DRAW.standard_t(3, N),
    "huber": 40 + 9 * SCALED @ [1, -1, 0.5, 0.2, 0.0] + 5 * DRAW.standard_t(2, N),
}
TESTED_MODELS: dict[str, Any] = {
    "poisson": vfl.Poisson(),
    "gamma": vfl.Gamma(),
    "tweedie": vfl.Tweedie(power=1.6),
    "negative_binomial": vfl.NegativeBinomial(dispersion=0.5),
    "quantile": vfl.Quantile(quantile=0.8),
    "huber": vfl.Huber(width=0.5),
}
PROTOCOLS = {"open": "open", "sealed": "ckks", "shares": vfl.Protocol(shares=vfl.Shares())}


def number_parties(
    y: np.ndarray, bank_columns: np.ndarray = OWN, other: np.ndarray = OTHER, **named: Any
) -> list[vfl.Party]:
    ids = range(len(y))
    return [vfl.Party("bank", bank_columns, y, ids=ids, **named), vfl.Party("shop", other, ids=ids)]


def train(name: str, members: list[vfl.Party], kind: str = "open", **keys: Any) -> vfl.Run:
    steps = {"optimizer": vfl.BlockDescent(ridge=1e-3)} if kind == "shares" else {}
    options: dict[str, Any] = {"batch_size": "all", "epochs": 60, "accepts": ["columns", "rank"], "seed": 3}
    options |= steps | {"model": TESTED_MODELS[name], "protocol": PROTOCOLS[kind]}
    return vfl.simulate(vfl.Job(**(options | keys)), members)


def oracle(name: str, Z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the predictions of the same model by scikit-learn, statsmodels or scipy, on equally scaled columns."""
    if name == "negative_binomial":
        api = pytest.importorskip("statsmodels.api")
        family = api.families.NegativeBinomial(alpha=TESTED_MODELS[name].dispersion)
        return np.asarray(api.GLM(y, api.add_constant(Z), family=family).fit().mu)
    if name == "huber":
        X, width = np.column_stack([Z, np.ones(len(Z))]), TESTED_MODELS[name].width * y.std()
        fit = optimize.minimize(lambda theta: special.huber(width, X @ theta - y).sum(), np.zeros(X.shape[1]))
        return np.asarray(X @ fit.x)
    kinds = {
        "poisson": linear.PoissonRegressor(alpha=0, tol=1e-9, max_iter=5000),
        "gamma": linear.GammaRegressor(alpha=0, tol=1e-9, max_iter=5000),
        "tweedie": linear.TweedieRegressor(power=1.6, link="log", alpha=0, tol=1e-9, max_iter=5000),
        "quantile": linear.QuantileRegressor(quantile=0.8, alpha=0, solver="highs"),
    }
    unit = y.mean() if name in {"gamma", "tweedie"} else 1.0  # these do not scale labels
    return np.asarray(kinds[name].fit(Z, y / unit).predict(Z) * unit)


def badness(name: str, y: np.ndarray, mu: np.ndarray) -> float:
    """Return the error measure of the model, in the units of the labels."""
    powers = {"poisson": 1, "gamma": 2, "tweedie": 1.6}
    if name in powers:
        return float(mean_tweedie_deviance(y, mu, power=powers[name]))
    if name == "negative_binomial":
        families = pytest.importorskip("statsmodels.api").families
        return float(families.NegativeBinomial(alpha=TESTED_MODELS[name].dispersion).deviance(y, mu) / len(y))
    if name == "quantile":
        return float(mean_pinball_loss(y, mu, alpha=0.8))
    return float(special.huber(TESTED_MODELS[name].width * y.std(), mu - y).mean())


@cache
def pooled_badness(name: str) -> float:
    """Return the error measure of the same model by a library, which is trained once for all protocols."""
    return badness(name, LABELS[name], oracle(name, SCALED, LABELS[name]))


MOST = {"open": 0.002, "sealed": 0.002, "shares": 0.005}
# rounded outputs change the coefficients of this loss: in 14 runs by .0016 in the mean, with a deviation of .0023 and
# by at most .0096; an exponential distribution of mean .0023 exceeds .05 in one run of 1e9
MOVED = {("negative_binomial", "sealed"): 0.05}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        # on shares, test_lifted_training.py trains Gamma and Huber, and test_shares_deviance.py all with a log link
        pytest.param(name, kind, marks=[pytest.mark.slow] * (kind == "shares" and name not in ("poisson", "quantile")))
        for name in LABELS
        for kind in MOST
    ],
)
def test_models_are_those_of_the_pooled_table(name: str, kind: str) -> None:
    y = LABELS[name]
    run = train(name, number_parties(y), kind, **({"test_fraction": 0.0} if kind != "shares" else {"epochs": 40}))
    if kind == "shares":  # scores of training rows are disclosed to nobody
        theta = whole_weights(run.job, {name_of_party: part.state for name_of_party, part in run.parts.items()}, "bank")
        f = SCALED @ np.vstack([theta["bank"][:-1], theta["shop"]]) + theta["bank"][-1]
        assert np.isfinite(run.metrics["loss"])
    else:
        f = run.decision({"bank": OWN, "shop": OTHER})
    reached = badness(name, y, run.job.model.loss.mean(f, run.active.classes))
    most = MOVED.get((name, kind), MOST[kind])
    assert reached <= pooled_badness(name) * (1 + most)


@pytest.mark.parametrize("sums", ["pairwise", "cipher", "tree"])
@pytest.mark.parametrize("steps", [vfl.FedBCD(lr=0.05, local_steps=2), vfl.BlockNewton()])
def test_any_sum_and_optimizer_gives_one_model(sums: str, steps: Any) -> None:
    y, third = LABELS["poisson"], vfl.Party("telco", OTHER[:, 2:], ids=range(N))
    members = [*number_parties(y, other=OTHER[:, :2]), third]
    keys: dict[str, Any] = {"optimizer": steps, "epochs": 5}
    plain = train("poisson", members, protocol=vfl.Protocol(residual="open"), **keys)
    other = train("poisson", members, protocol=vfl.Protocol(sum=sums, residual="open"), **keys)
    for name_of_party, part in plain.parts.items():
        np.testing.assert_allclose(other.parts[name_of_party].theta, part.theta, atol=1e-5)


@pytest.mark.exact_outputs
@pytest.mark.parametrize("kind", ["open", "sealed", "shares"])
def test_exposure_is_that_of_statsmodels(kind: str) -> None:
    api = pytest.importorskip("statsmodels.api")
    y = np.random.default_rng(1).poisson(MU * EXPOSED).astype(float)
    design = api.add_constant(SCALED)
    fitted = api.GLM(y, design, family=api.families.Poisson(), exposure=EXPOSED).fit()
    members = number_parties(y, np.column_stack([OWN, EXPOSED]), columns=["a", "b", "years"])
    split = {"test_fraction": 0.3} if kind == "shares" else {}
    run = train("poisson", members, kind, exposure="years", epochs=40, **split)
    rate = run.predict({"bank": OWN, "shop": OTHER})  # for one unit of exposure
    mu = np.asarray(fitted.predict(design, exposure=np.ones(N)))
    if kind == "shares":
        rows = run.job.schedule(register_of(members)).batch_order  # the same that it was trained on
        glm = api.GLM(y[rows], design[rows], family=api.families.Poisson(), exposure=EXPOSED[rows])
        mu = np.asarray(glm.fit().predict(design, exposure=np.ones(N)))
        assert np.abs(np.log(rate / mu)).mean() < 0.06
    else:
        np.testing.assert_allclose(rate, mu, rtol=0.05)
        assert run.metrics["deviance"] <= float(fitted.deviance) / N * 1.002
        exact = run.evaluate({"bank": OWN, "shop": OTHER}, y, exposure=EXPOSED)
        assert exact.keys() == run.metrics.keys() - {"loss"}
        assert exact == pytest.approx({name: run.metrics[name] for name in exact}, rel=0.02)
        with raises_code(errors.ConfigError, "SVFL-COMMAND-USAGE"):
            run.evaluate({"bank": OWN, "shop": OTHER}, y)
    assert list(run.parts["bank"].columns) == ["a", "b"]


@pytest.mark.parametrize("kind", ["open", "shares"])
def test_weights_of_rows_are_scikit_learns(kind: str) -> None:
    y = LABELS["poisson"]
    members = number_parties(y, np.column_stack([OWN, EXPOSED]), columns=["a", "b", "w"])
    run = train("poisson", members, kind, weights={"column": "w", "max_weight": 2.5}, epochs=80)
    fitted = linear.PoissonRegressor(alpha=0, tol=1e-9, max_iter=5000).fit(SCALED, y, sample_weight=EXPOSED)
    if kind == "open":
        theta = {name_of_party: part.theta for name_of_party, part in run.parts.items()}
    else:
        theta = whole_weights(run.job, {name_of_party: part.state for name_of_party, part in run.parts.items()}, "bank")
    coefficients = np.vstack([theta["bank"][:-1], theta["shop"]])[:, 0]
    np.testing.assert_allclose(coefficients, fitted.coef_, atol=0.01 if kind == "open" else 0.04)


@pytest.mark.parametrize("loss", [loss for loss in LOSSES.values() if not loss.classifies], ids=lambda loss: loss.name)
def test_a_loss_is_the_integral_of_its_residual(loss: Any) -> None:
    """This also holds where exp is clipped."""
    for label in (0.4, 1.0, 3.0):
        y = np.array([[label]])

        def g(f: float, y: np.ndarray = y) -> float:
            return float(loss.residual(np.array([[f]]), y)[0, 0])

        for low, high in ((-MAX_LOG_MEAN - 2, -MAX_LOG_MEAN + 1), (-1.0, 1.0), (MAX_LOG_MEAN - 1, MAX_LOG_MEAN + 2)):
            area = integrate.quad(g, low, high, points=[-MAX_LOG_MEAN, MAX_LOG_MEAN], limit=200)[0]
            ends = [float(loss.value(np.array([[f]]), y)[0]) for f in (low, high)]
            assert ends[1] - ends[0] == pytest.approx(area, abs=1e-5)
        if isinstance(loss, LogLinkLoss):
            at = np.array([[np.log(label)]])
            assert float(loss.residual(at, y)[0, 0]) == pytest.approx(0, abs=1e-9)
            assert float(loss.value(at, y)[0]) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", ["poisson", "gamma", "tweedie", "negative_binomial"])
def test_deviance_is_that_of_the_libraries(name: str) -> None:
    loss = TESTED_MODELS[name].loss
    y = LABELS[name]
    assert float(loss.deviance(y, MU).mean()) == pytest.approx(badness(name, y, MU), rel=1e-9)
    measured = metrics.evaluate(loss, np.log(MU)[:, None] - 1, y, loss.classes(y))
    assert list(measured) == ["deviance", "gini", "r2", "rmse", "loss"]


def test_gini_is_twice_auc_minus_one_for_two_classes() -> None:
    y, score = (DRAW.random(400) < 0.3).astype(float), np.round(DRAW.normal(size=400), 1)
    assert metrics.gini(y, score) == pytest.approx(2 * metrics.area_under_curve(y == 1, score) - 1)
    assert metrics.gini(y, y) == 1
    run = train("poisson", number_parties(LABELS["poisson"]), epochs=20)
    parts = np.array(run.calibration)
    assert parts.shape == (10, 3)
    assert parts[:, 2].sum() == N
    assert np.average(parts[:, 1], weights=parts[:, 2]) == pytest.approx(LABELS["poisson"].mean())
    assert np.abs(parts[:, 0] / parts[:, 1] - 1).mean() < 0.15


def test_concordance_counts_pairs_with_a_known_order() -> None:
    time, happened, risk = (np.round(DRAW.random(60), 1), DRAW.random(60) < 0.6, np.round(DRAW.normal(size=60), 1))
    good, pairs = 0.0, 0
    for i in range(60):
        for j in range(60):
            if happened[i] and (time[i] < time[j] or (time[i] == time[j] and not happened[j])):
                pairs += 1
                good += (risk[i] > risk[j]) + (risk[i] == risk[j]) / 2
    assert metrics.concordance(time, happened, risk) == pytest.approx(good / pairs)
    assert metrics.concordance(time, np.ones(60, bool), -time) == 1


@pytest.mark.parametrize("name", list(LABELS))
def test_tabulated_residuals_are_within_their_stated_error(name: str) -> None:
    job = vfl.Job(
        model=TESTED_MODELS[name], optimizer=vfl.BlockDescent(), protocol=PROTOCOLS["shares"], batch_size="all"
    )
    loss, numbers = job.loss, make_plan(job, rows=N, batches=1, parties=2).numbers
    f = np.linspace(-1, 1, 401)[:, None]
    y = np.array([[1.0 if isinstance(loss, LogLinkLoss) else 0.0]])
    table = ResidualTables(numbers, loss.residual, y)._tables / 2.0 ** (numbers.f_g + 16)
    order = np.argsort(numbers.knots)
    read = np.interp(f[:, 0], numbers.knots[order], table[order])
    error = np.abs(read - loss.residual(f, np.broadcast_to(y, f.shape))[:, 0]).max()
    assert error <= table_error(loss, 2.0**numbers.step) + 1e-6
    assert f"{table_error(loss, 2.0**numbers.step):.2g}" in vfl.explain(job, number_parties(LABELS[name]))


def test_labels_that_cannot_be_used_are_told() -> None:
    with raises_code(errors.LabelError, "SVFL-LABEL-VALUES"):
        train("gamma", number_parties(LABELS["poisson"]))
    with raises_code(errors.LabelError, "SVFL-LABEL-VALUES"):
        train("poisson", number_parties(LABELS["quantile"] - 100))
    with raises_code(errors.LabelError, "SVFL-LABEL-RANGE"):
        train("negative_binomial", number_parties(LABELS["poisson"] * 100))
    far = LABELS["gamma"].copy()
    far[0] = far.mean() * 1400
    with raises_code(errors.LabelError, "SVFL-LABEL-RANGE"):
        train("gamma", number_parties(far), "sealed", epochs=2)
    with raises_code(errors.DataError, "SVFL-TABLE-WEIGHTS"):
        train("poisson", number_parties(LABELS["poisson"], columns=["a", "b"]), exposure="b")
    with raises_code(errors.ConfigError, "SVFL-JOB-OPTION"):
        vfl.Job(model=vfl.Square(), protocol="open", exposure="years")


@pytest.mark.parametrize("name", ["poisson", "gamma", "quantile", "huber"])
@pytest.mark.parametrize(("texts", "row"), [({5: "secret"}, 6), ({7: "secret", 9: "$1.00"}, 8), ({}, 1)])
def test_text_labels_name_a_row_and_no_value(name: str, texts: dict[int, str], row: int) -> None:
    labels = LABELS[name].astype(str).astype(object)
    for position, text in texts.items():
        labels[position] = text
    with raises_code(errors.LabelError, "SVFL-LABEL-CLASSES", row=row, texts=len(texts) or len(labels)) as caught:
        train(name, number_parties(labels))
    assert f"row {row} " in str(caught.value)
    assert "plain number" in str(caught.value.remedy)
    assert not any(text in str(caught.value) for text in (*texts.values(), labels[0]))


def test_an_open_residual_reveals_the_sum_of_the_peer() -> None:
    """Half the labels are 0 or so: for these g of a count is mu itself."""
    for name in ("poisson", "tweedie", "negative_binomial"):
        loss, y = TESTED_MODELS[name].loss, LABELS[name]
        targets = loss.targets(y, loss.classes(y))
        local_sum, others = SCALED[:, :1] * 0.3, SCALED[:, 1:2] * 0.4
        inferred = loss.invert_residual(loss.residual(local_sum + others, targets)).sums - local_sum
        zero = y == 0
        assert zero.mean() > 0.05
        np.testing.assert_allclose(inferred[zero], others[zero], atol=1e-6)


real = [pytest.mark.realdata, pytest.mark.skipif(not REAL_TABLES.is_dir(), reason="needs the real tables")]


@cache
def real_numbers(name: str) -> np.ndarray:
    with gzip.open(REAL_TABLES / f"{name}.csv.gz", "rt") as file:
        return np.array(list(csv.reader(file))[1:], dtype=np.float64)


def visits_and_speeds(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts of dvisits; speeds of motor as amounts above 0 for gamma, as they are for others."""
    source = "dvisits" if name in {"poisson", "tweedie", "negative_binomial"} else "motor"
    guest, host = real_numbers(f"{source}_hetero_guest"), real_numbers(f"{source}_hetero_host")
    y = guest[:, 1] if source == "dvisits" or name != "gamma" else guest[:, 1] + 2
    return y, guest[:, 2:], host[:, 1:]


@cache
def pooled_badness_of_real_table(name: str) -> float:
    y, columns, other = visits_and_speeds(name)
    Z = np.hstack([columns, other])
    return badness(name, y, oracle(name, (Z - Z.mean(axis=0)) / Z.std(axis=0), y))


ROUNDED = (
    0.015  # motor's labels are within .2 deviations of the fit: .0073 in 19 runs, deviation .0012, so six of these
)


SLOW = {
    # seconds on shares, as Poisson, which is in every run
    "shares": {"negative_binomial", "tweedie", "gamma", "quantile", "huber"},
    # two of a log link on the same table as Poisson
    "sealed": {"negative_binomial", "tweedie"},
    "open": set[str](),
}
# on shares, where steps by curvature take fewer for counts; of gamma .0006 is left of the deviance then, of Huber .0003
VISITS = {"huber": 60, "gamma": 96, "quantile": 120}


@pytest.mark.exact_outputs
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=[*real, pytest.mark.slow] if name in SLOW[kind] else real)
        for name in LABELS
        for kind in MOST
    ],
)
def test_real_counts_and_amounts(name: str, kind: str) -> None:
    y, columns, other = visits_and_speeds(name)
    Z = np.hstack([columns, other])
    Z = (Z - Z.mean(axis=0)) / Z.std(axis=0)
    step = 0.125 if name == "tweedie" else 0.0625  # sums are within 3
    wide = 7 if name == "tweedie" else 8  # at the end of 8 bits g of nine visits, 30 times their mean, is beyond 512
    finer = {"protocol": vfl.Protocol(shares=vfl.Shares(table_bits=wide, step=step))} if kind == "shares" else {}
    visits = VISITS.get(name, 40) if kind == "shares" else 120
    run = train(
        name, number_parties(y, columns, other), kind, epochs=visits, prepare={"tails": "keep"}, **finer
    )  # as for the reference model
    if kind == "shares":
        theta = whole_weights(run.job, {name_of_party: part.state for name_of_party, part in run.parts.items()}, "bank")
        f = Z @ np.vstack([theta["bank"][:-1], theta["shop"]]) + theta["bank"][-1]
    else:
        f = run.decision({"bank": columns, "shop": other})
    reached = badness(name, y, run.job.model.loss.mean(f, run.active.classes))
    over = reached / pooled_badness_of_real_table(name) - 1
    print(f"{name} {kind}: {100 * over:.3f} % above, {run.costs.rounds} rounds, {run.costs.row()}")
    assert over <= (ROUNDED if name == "quantile" else MOST[kind])

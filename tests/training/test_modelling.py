"""Options and results of modelling apart from the protocol: weights, splits, early stopping, coefficients, metrics."""

from pathlib import Path

import numpy as np
import pytest
from builders import raises_code
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score

import securevfl as vfl
from securevfl import errors
from securevfl.models.class_labels import class_names, find_classes
from securevfl.models.losses import LOSSES
from securevfl.training.checkpoint import Checkpoints

N = 400
GENERATOR = np.random.default_rng(11)
OWN = GENERATOR.normal(size=(N, 2)) * [1, 30] + [5, -20]
OTHER = GENERATOR.normal(size=(N, 2)) * [0.1, 4] + [1, 100]
BOTH = np.hstack([OWN, OTHER])
SCORE = (BOTH - BOTH.mean(axis=0)) / BOTH.std(axis=0) @ [1.0, -1.0, 0.7, 0.4]
Y = np.where(SCORE + GENERATOR.logistic(size=N) > 1.6, "yes", "no")
ROW_WEIGHTS = GENERATOR.uniform(0.2, 3.0, N)
L2 = 1e-2


def fedbcd_job(model: object = None, **options: object) -> vfl.Job:
    return vfl.Job(
        **{
            "model": model or vfl.Logistic(l2=L2),
            "optimizer": vfl.FedBCD(lr=0.5),
            "protocol": "open",
            "batch_size": "all",
            "epochs": 400,
            "accepts": ["columns", "rank"],
        }
        | options
    )


def weighted_parties(y: np.ndarray = Y, weights: bool = False) -> list[vfl.Party]:
    columns = np.column_stack([OWN, ROW_WEIGHTS]) if weights else OWN
    bank = vfl.Party("bank", columns, y, columns=["a", "b", "w"][: columns.shape[1]], ids=range(N))
    return [bank, vfl.Party("shop", OTHER, columns=["c", "d"], ids=range(N))]


@pytest.mark.parametrize(
    ("weights", "class_weight", "rows"),
    [
        (None, None, None),
        ({"classes": "balanced"}, "balanced", None),
        ({"classes": {"no": 1, "yes": 5}}, {"no": 1, "yes": 5}, None),
        ({"classes": "balanced", "column": "w", "max_weight": 8}, "balanced", ROW_WEIGHTS),
    ],
)
def test_weighted_models_and_coefficients_are_scikit_learns(
    weights: object, class_weight: object, rows: object
) -> None:
    run = vfl.simulate(fedbcd_job(weights=weights), weighted_parties(weights=rows is not None))
    scaled = (BOTH - BOTH.mean(axis=0)) / BOTH.std(axis=0)
    total = (np.ones(N) if rows is None else ROW_WEIGHTS) * (
        np.ones(N) if class_weight is None else _of_class(class_weight)
    )
    sample = total / total.mean()
    expected = LogisticRegression(C=1 / (N * L2), tol=1e-10, max_iter=1000).fit(scaled, Y, sample_weight=sample)
    theta = np.vstack([run.parts["bank"].theta[:2], run.parts["shop"].theta])[:, 0]
    np.testing.assert_allclose(theta, expected.coef_[0], atol=2e-4)
    units = expected.coef_[0] / BOTH.std(axis=0)
    coefficients = [value for part in run.coefficients.values() for weights in part.values() for value in weights]
    np.testing.assert_allclose(coefficients, units, rtol=2e-3)
    assert list(run.coefficients["bank"]) == ["a", "b"]
    f = run.decision({"bank": OWN, "shop": OTHER})[:, 0]
    np.testing.assert_allclose(BOTH @ coefficients + run.intercept[0], f, atol=1e-9)


def _of_class(class_weight: object) -> np.ndarray:
    if isinstance(class_weight, dict):
        return np.array([class_weight[label] for label in Y])
    return np.where(Y == "yes", N / (2 * (Y == "yes").sum()), N / (2 * (Y == "no").sum()))


def test_coefficients_of_a_regression_are_in_units_of_the_label() -> None:
    y = 7 * SCORE + 1000
    run = vfl.simulate(fedbcd_job(vfl.Square(), optimizer=vfl.FedBCD(lr=0.2)), weighted_parties(y))
    expected = Ridge(alpha=1e-9).fit(BOTH, y)
    coefficients = [value for part in run.coefficients.values() for weights in part.values() for value in weights]
    np.testing.assert_allclose(coefficients, expected.coef_, rtol=1e-3)
    assert run.intercept[0] == pytest.approx(expected.intercept_, rel=1e-3)


@pytest.mark.slow
def test_rare_balanced_classes_on_shares_match_scikit_learn() -> None:
    """The range is the least power of two that fits; a notice names it, and iterations suffice for its steps."""
    draw, rows = np.random.default_rng(8), 6000
    bank_columns, other = draw.normal(size=(rows, 2)), draw.normal(size=(rows, 2))
    f = bank_columns @ [1.5, -1.0] + other @ [1.0, 0.0] + draw.logistic(size=rows)
    y = (f >= np.sort(f)[-60]).astype(int)
    both = [vfl.Party("bank", bank_columns, y, ids=range(rows)), vfl.Party("shop", other, ids=range(rows))]
    opened = vfl.Protocol(shares=vfl.Shares(open_weights=("bank", "shop")))
    open_job = vfl.Job(model=vfl.Logistic(), protocol=opened, weights={"classes": "balanced"}, test_fraction=0.0)
    with pytest.warns(errors.DataNotice):
        run = vfl.simulate(open_job, both)
    assert run.job.weights is not None
    assert run.job.weights.max_weight == 64
    assert run.job.epochs == 4 * open_job.epochs
    sheet = vfl.explain(open_job, both)
    assert "no row counts more than 64 times the mean, and that its classes count the same" in sheet
    assert "1 of 128 rows" in sheet
    X = np.hstack([run.parts["bank"].rows(bank_columns), run.parts["shop"].rows(other)])
    oracle = LogisticRegression(C=1e6, class_weight="balanced", tol=1e-10, max_iter=1000).fit(X, y)
    theta = np.concatenate([run.parts["bank"].theta[:2, 0], run.parts["shop"].theta[:, 0]])
    weight = np.where(y == 1, rows / 120, rows / (2 * (rows - 60)))
    p = oracle.predict_proba(X)[:, 1]
    spread = np.sqrt(np.diag(np.linalg.inv((X * (weight * p * (1 - p))[:, None]).T @ X)))
    assert (
        np.abs((theta - oracle.coef_[0]) / np.maximum(spread, 1e-9)).max() < 4.5
    )  # over 20 runs 1.0, with a deviation of 0.43
    assert run.metrics["auc"] == pytest.approx(roc_auc_score(y, oracle.decision_function(X)), abs=2e-3)
    for weights, sizes in (({"classes": "balanced", "max_weight": 64}, 160), ({"classes": "balanced"}, 40)):
        assert vfl.Job(model=vfl.Logistic(), weights=weights, test_fraction=0.0).epochs == sizes


@pytest.mark.exact_outputs
def test_weights_are_sealed_like_any_residual() -> None:
    """Encryption gives the same model, although g exceeds the loss's bound."""
    options = {"weights": {"classes": {"no": 1, "yes": 9}}, "epochs": 3}
    sealed, plain = (
        vfl.simulate(fedbcd_job(**options, protocol=protocol), weighted_parties()) for protocol in ("ckks", "open")
    )
    np.testing.assert_allclose(sealed.parts["shop"].theta, plain.parts["shop"].theta, atol=1e-4)


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({"classes": {"no": 1, "yes": 500}, "max_weight": 2}, "a row weighs more than 2 times the mean"),
        ({"classes": {"no": 1, "yes": 500}, "max_weight": 2}, "Set weights.max_weight to 8,"),
        ({"classes": {"no": 1}}, "no weight for the classes yes"),
        ({"classes": {"no": 1, "Yes": 5}}, "weights.classes names Yes, and the labels have the classes no, yes"),
        ({"column": "z"}, "column 'z' cannot be used as weights"),
    ],
)
def test_weights_that_cannot_be_used_are_told(weights: object, says: str) -> None:
    with pytest.raises(errors.DataError) as refused:
        vfl.simulate(fedbcd_job(weights=weights, epochs=1), weighted_parties())
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("labels", "positive"),
    [
        (("late", "paid"), "late"),  # the rarer one, although it is listed first
        (("a", "b"), "a"),
        ((True, False), "True"),
        (("Yes", "No"), "Yes"),
        ((0, 1), "1"),  # this class has more rows
        ((-1.0, 1.0), "1"),
        ((2, 1), "2"),  # class 1 against 2 does not state which; the rarer one is meant
    ],
)
def test_of_two_classes_one_is_the_positive_one(labels: tuple[object, object], positive: str) -> None:
    y = np.where(Y == "yes", *labels)
    assert (Y == "yes").sum() < N / 2
    assert class_names(find_classes("bank", LOSSES["logistic"], y))[1] == positive


@pytest.mark.parametrize(("protocol", "within"), [({"shares": {}}, 0.04), ("open", 1e-3)])  # shares round at random
def test_a_job_names_the_positive_class(protocol: object, within: float) -> None:
    """The model is the same with another sign; probabilities, rates and points are of the class that is named."""
    keys = {"protocol": protocol, "optimizer": vfl.FedBCD(local_steps=1, lr=2.0), "epochs": 20}
    runs = {name: vfl.simulate(fedbcd_job(**keys, positive=name), weighted_parties()) for name in (None, "no")}
    tables = {"bank": OWN[:50], "shop": OTHER[:50]}
    usual, named = runs[None], runs["no"]
    assert (usual.positive, named.positive) == ("yes", "no")
    first, second = (run.predict_proba(tables)[:, 1] for run in (usual, named))
    np.testing.assert_allclose(first, 1 - second, atol=within)
    assert (usual.predict(tables) == named.predict(tables)).mean() > 0.95
    assert usual.metrics["auc"] == pytest.approx(named.metrics["auc"], abs=within)
    rate = (Y == "yes").mean()
    assert usual.metrics["pr_auc"] != pytest.approx(named.metrics["pr_auc"], abs=0.05)
    assert usual.metrics["lift"] <= 1 / rate + 0.1
    assert named.metrics["lift"] <= 1 / (1 - rate) + 0.1
    assert named.summary()["positive"] == "no"


def test_a_class_that_is_none_is_told_at_home_and_not_to_others() -> None:
    with raises_code(errors.ClassError, "SVFL-LABEL-CLASSES") as caught:
        vfl.simulate(fedbcd_job(positive="late"), weighted_parties())
    assert errors.stop_reason_of(caught.value) == "refused"
    assert "yes" not in errors.STOP_REASONS["refused"]
    with raises_code(errors.ConfigError, "SVFL-JOB-OPTION"):
        fedbcd_job(vfl.Square(), positive="yes")


def test_weights_are_for_linear_models() -> None:
    with raises_code(errors.ConfigError, "SVFL-JOB-OPTION"):
        vfl.Job(model=vfl.Kernel(gamma=1.0), optimizer=vfl.FDSKL(), protocol={}, weights={"classes": "balanced"})


def test_a_training_stops_when_a_metric_gets_no_better() -> None:
    run = vfl.simulate(
        fedbcd_job(test_fraction=0.25, patience={"metric": "loss", "evaluations": 3}), weighted_parties()
    )
    losses = [record["loss"] for record in run.history]
    assert 4 < len(losses) < 400
    assert all(min(losses[: k - 3]) - min(losses[k - 3 : k]) > 1e-4 for k in range(4, len(losses)))
    assert min(losses[:-3]) - min(losses[-3:]) <= 1e-4
    with raises_code(errors.ConfigError, "SVFL-JOB-OPTION"):
        fedbcd_job(patience={"metric": "r2"})


@pytest.mark.parametrize("sums", ["direct", "pairwise"])
def test_patience_keeps_the_best_model_at_every_party(sums: str, tmp_path: Path) -> None:
    """Steps so large that the loss oscillates: the model is that of the round with the lowest loss."""
    three = vfl.datasets.breast_cancer(3)
    options = {"optimizer": vfl.FedBCD(lr=0.8), "protocol": vfl.Protocol(sum=sums, residual="open"), "batch_size": 64}
    options |= {"epochs": 2, "test_fraction": 0.25, "accepts": ["columns"], "model": vfl.Logistic()}
    patient = {"patience": {"metric": "loss", "evaluations": 50}}
    run = vfl.simulate(vfl.Job(**options, **patient), three)
    losses = [record["loss"] for record in run.history]
    best = int(np.argmin(losses)) + 1
    assert 1 < best < len(losses)
    assert run.metrics["loss"] == pytest.approx(min(losses), rel=1e-6)
    checkpoints: dict[str, Checkpoints] = {
        party.name: Checkpoints(tmp_path / party.name, party.name, every=1) for party in three
    }

    def cut(done: int, of: int) -> None:
        if done == best + 1:
            raise RuntimeError("cut")

    with pytest.raises(RuntimeError, match="cut"):
        vfl.simulate(vfl.Job(**options, **patient), three, checkpoints=checkpoints, on_round=cut)
    again = vfl.simulate(vfl.Job(**options, **patient), three, checkpoints=checkpoints)
    for name, part in again.parts.items():
        np.testing.assert_array_equal(part.theta, run.parts[name].theta)


def test_classes_are_held_out_evenly() -> None:
    rare = np.where(np.arange(N) % 40 == 0, "rare", "common")
    bank, shop = weighted_parties(rare)
    even = vfl.stratified(fedbcd_job(test_fraction=0.3, epochs=1), bank)
    test = even.schedule(bank.register).test
    assert (rare[test] == "rare").sum() == 3
    assert len(test) == 120
    assert set(test) != set(fedbcd_job(test_fraction=0.3).schedule(bank.register).test)
    run = vfl.simulate(even, [bank, shop])
    assert run.metrics["auc"] > 0
    with raises_code(errors.PartiesError, "SVFL-PARTIES-LABELS"):
        vfl.stratified(even, shop)


def test_other_rows_are_evaluated_against_their_labels(tmp_path: Path) -> None:
    run = vfl.simulate(fedbcd_job(epochs=20), weighted_parties())
    metrics = run.evaluate({"bank": OWN, "shop": OTHER}, Y)
    assert metrics == pytest.approx(run.metrics)
    calibration = np.array(run.calibration)
    assert calibration.shape == (10, 3)
    assert calibration[:, 2].sum() == N
    assert (calibration[:, 1] @ calibration[:, 2]) / N == pytest.approx((Y == "yes").mean())
    run.save(tmp_path)
    assert vfl.Run.load(tmp_path).calibration == run.calibration
    with raises_code(errors.LabelError, "SVFL-LABEL-CLASSES"):
        run.evaluate({"bank": OWN, "shop": OTHER}, np.where(Y == "yes", "maybe", "no"))

"""scikit-learn takes the estimators for its own: its checks, cross-validation, grid search, frames."""

import warnings

import numpy as np
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import securevfl as vfl
from securevfl.training.estimators import EXACT, _say_exact

X, Y = load_breast_cancer(return_X_y=True)
PARTIES = {"bank": list(range(15)), "shop": list(range(15, 30))}
UNPICKLED = "a fitted model holds what every party has learned, and goes to a file a party"


APART = "weights of 1 to 10,000,000 make block_newton overshoot: it is told, and no model comes out"


SCALED = "columns are scaled by rows, each of which counts once there: a weight of two is not two rows"


def fails(estimator: object) -> dict[str, str]:
    return {
        "check_estimators_pickle": UNPICKLED,
        "check_class_weight_classifiers": APART,
        "check_sample_weight_equivalence_on_dense_data": SCALED,
    }


OPEN = {"protocol": "open", "accepts": ("columns", "rank"), "epochs": 30}  # quick, and as exact as scikit-learn


@parametrize_with_checks([vfl.VerticalClassifier(**OPEN), vfl.VerticalRegressor(**OPEN)], expected_failed_checks=fails)
def test_checks_of_scikit_learn(estimator: object, check: object) -> None:
    check(estimator)


def test_cross_validation_scores_as_the_pooled_model_does() -> None:
    model = vfl.VerticalClassifier(PARTIES, **OPEN)
    found = cross_val_score(model, X, Y, cv=3, scoring="roc_auc")
    pooled = cross_val_score(make_pipeline(StandardScaler(), LogisticRegression()), X, Y, cv=3, scoring="roc_auc")
    np.testing.assert_allclose(found, pooled, atol=0.01)


def test_a_grid_search_takes_its_parameters() -> None:
    model = vfl.VerticalClassifier(PARTIES, **OPEN | {"epochs": 3})
    search = GridSearchCV(model, {"l2": [1e-2, 1e3]}, cv=2, scoring="neg_log_loss")
    search.fit(X[:200], Y[:200])
    assert search.best_params_ == {"l2": 1e-2}
    assert clone(search.best_estimator_).get_params()["parties"] == PARTIES


def test_a_grid_search_takes_options_of_the_optimizer() -> None:
    model = vfl.VerticalClassifier(PARTIES, optimizer=vfl.FedBCD(lr=0.1), **OPEN | {"epochs": 2})
    search = GridSearchCV(model, {"optimizer__lr": [1e-6, 0.3]}, cv=2, scoring="neg_log_loss", error_score="raise")
    search.fit(X[:200], Y[:200])
    assert search.best_params_ == {"optimizer__lr": 0.3}
    assert search.best_estimator_.run_.job.optimizer == vfl.FedBCD(lr=0.3)
    named = vfl.VerticalClassifier(optimizer="fedsgd").set_params(optimizer__lr=0.2, l2=1.0)
    assert (named.optimizer, named.l2) == (vfl.FedSGD(lr=0.2), 1.0)
    assert vfl.VerticalRegressor().set_params(optimizer__ridge=0.1).optimizer == vfl.BlockDescent(ridge=0.1)
    with pytest.raises(ValueError, match="speed: is no option here"):
        model.set_params(optimizer__speed=1)


def test_the_default_is_that_of_a_job() -> None:
    """Shares, which leave no leak to accept but the exact scores, of which a notice speaks once."""
    half = slice(0, None, 2)
    few = {"bank": [0, 1, 2], "shop": [20, 21, 22]}
    _say_exact.cache_clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = vfl.VerticalClassifier(few).fit(X[half], Y[half])
        other = vfl.VerticalClassifier(few, epochs=1).fit(X[half], np.digitize(X[half, 0], [12, 15]))
    assert [str(each.message) for each in told if "scores" in str(each.message)] == [EXACT]
    job = vfl.Job(model=vfl.Logistic(l2=1e-3))
    assert job.protocol.shares is not None
    for key in ("optimizer", "epochs", "batch_size", "test_fraction", "patience"):
        assert getattr(model.run_.job, key) == getattr(job, key)
    assert model.run_.job.protocol.shares.scores == "exact"
    assert all("exact_scores" in leak or "small_metrics" in leak for leak in model.leaks_), model.leaks_
    columns = [each for own in few.values() for each in own]
    pooled = make_pipeline(StandardScaler(), LogisticRegression(C=1)).fit(X[half][:, columns], Y[half])
    found = model.predict_proba(X)[:, 1]
    assert np.corrcoef(found, pooled.predict_proba(X[:, columns])[:, 1])[0, 1] > 0.98
    assert isinstance(other.run_.job.model, vfl.OneVsRest)
    assert other.predict_proba(X[:5]).shape == (5, 3)


def test_leaks_are_refused_unless_they_are_accepted_by_name() -> None:
    with pytest.raises(ValueError, match='accepts = \\["columns"\\]'):
        vfl.VerticalClassifier(PARTIES, protocol="open", epochs=30).fit(X, Y)
    with pytest.raises(ValueError, match="each column at one party was expected, dealt twice: x3"):
        vfl.VerticalClassifier({"bank": [0, 3], "shop": [3, 4]}).fit(X, Y)


def test_frames_with_texts_keep_their_names_and_unknown_columns_are_told() -> None:
    city = np.where(Y == 1, "Rome", "Oslo").tolist()
    city[::7] = ["Bern"] * len(city[::7])
    frame = pa.table({"size": X[:, 0], "city": city})
    model = vfl.VerticalClassifier({"bank": ["size"], "shop": ["city"]}, **OPEN).fit(frame, Y)
    assert model.score(frame, Y) > 0.9
    assert list(model.run_.coefficients["shop"]) == ["city=Bern", "city=Oslo"]
    assert any("columns" in leak for leak in model.leaks_)
    with pytest.raises(ValueError, match="unknown: age"):
        vfl.VerticalClassifier({"bank": ["size"], "shop": ["age"]}).fit(frame, Y)


def test_a_regression_is_ridges() -> None:
    table = np.random.default_rng(0).normal(size=(200, 4)) * [1, 10, 0.1, 3]
    y = table @ [1.0, -2.0, 0.5, 0.1] + 50
    model = vfl.VerticalRegressor(l2=1e-6, **OPEN).fit(table, y)
    np.testing.assert_allclose(model.predict(table), Ridge(1e-6).fit(table, y).predict(table), atol=0.1)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_of_other_libraries(library: str) -> None:
    module = pytest.importorskip(library)
    frame = module.DataFrame({"size": X[:, 0], "city": np.where(Y == 1, "Rome", "Oslo")})
    model = vfl.VerticalClassifier({"bank": ["size"], "shop": ["city"]}, **OPEN).fit(frame, Y)
    assert list(model.feature_names_in_) == ["size", "city"]
    assert model.score(frame, Y) > 0.9


@pytest.mark.parametrize("count", [2, 3])
def test_weights_of_rows_count_as_in_scikit_learn(count: int) -> None:
    generator = np.random.default_rng(3)
    y = Y if count == 2 else np.digitize(X[:, 0], [12, 15])
    weights = generator.uniform(0.5, 2.0, len(y))
    Z = StandardScaler().fit_transform(X[:, [1, 4, 5, 8, 9, 14]])
    model = vfl.VerticalClassifier(l2=0.05, **OPEN | {"epochs": 60}).fit(Z, y, sample_weight=weights)
    pooled = LogisticRegression(C=1 / (0.05 * weights.sum()), max_iter=2000).fit(Z, y, sample_weight=weights)
    np.testing.assert_allclose(model.predict_proba(Z), pooled.predict_proba(Z), atol=0.02)
    plain = vfl.VerticalClassifier(l2=0.05, **OPEN | {"epochs": 60}).fit(Z, y)
    assert np.abs(plain.predict_proba(Z) - model.predict_proba(Z)).max() > 1e-3
    number = vfl.VerticalRegressor(l2=0.05, **OPEN | {"epochs": 60}).fit(Z, X[:, 0], weights)
    ridge = Ridge(0.05 * weights.sum()).fit(Z, X[:, 0], sample_weight=weights)
    np.testing.assert_allclose(number.predict(Z), ridge.predict(Z), atol=0.1)
    assert "(weight of the row)" not in model.run_.coefficients["first"]
    both = vfl.VerticalClassifier(class_weight="balanced", **OPEN).fit(Z, y, weights)
    assert both.score(Z, y) > 0.6

"""scikit-learn takes the estimators for its own: its checks, cross-validation, grid search, frames."""

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


@parametrize_with_checks([vfl.VerticalClassifier(), vfl.VerticalRegressor()], expected_failed_checks=fails)
def test_checks_of_scikit_learn(estimator: object, check: object) -> None:
    check(estimator)


def test_cross_validation_scores_as_the_pooled_model_does() -> None:
    model = vfl.VerticalClassifier(PARTIES)
    found = cross_val_score(model, X, Y, cv=3, scoring="roc_auc")
    pooled = cross_val_score(make_pipeline(StandardScaler(), LogisticRegression()), X, Y, cv=3, scoring="roc_auc")
    np.testing.assert_allclose(found, pooled, atol=0.01)


def test_a_grid_search_takes_its_parameters() -> None:
    search = GridSearchCV(vfl.VerticalClassifier(PARTIES, epochs=3), {"l2": [1e-2, 1e3]}, cv=2, scoring="neg_log_loss")
    search.fit(X[:200], Y[:200])
    assert search.best_params_ == {"l2": 1e-2}
    assert clone(search.best_estimator_).get_params()["parties"] == PARTIES


def test_frames_with_texts_keep_their_names_and_unknown_columns_are_told() -> None:
    city = np.where(Y == 1, "Rome", "Oslo").tolist()
    city[::7] = ["Bern"] * len(city[::7])
    frame = pa.table({"size": X[:, 0], "city": city})
    model = vfl.VerticalClassifier({"bank": ["size"], "shop": ["city"]}).fit(frame, Y)
    assert model.score(frame, Y) > 0.9
    assert list(model.run_.coefficients["shop"]) == ["city=Bern", "city=Oslo"]
    assert any("columns" in leak for leak in model.leaks_)
    with pytest.raises(ValueError, match="unknown: age"):
        vfl.VerticalClassifier({"bank": ["size"], "shop": ["age"]}).fit(frame, Y)


def test_a_regression_is_ridges() -> None:
    table = np.random.default_rng(0).normal(size=(200, 4)) * [1, 10, 0.1, 3]
    y = table @ [1.0, -2.0, 0.5, 0.1] + 50
    model = vfl.VerticalRegressor(l2=1e-6).fit(table, y)
    np.testing.assert_allclose(model.predict(table), Ridge(1e-6).fit(table, y).predict(table), atol=0.1)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_of_other_libraries(library: str) -> None:
    module = pytest.importorskip(library)
    frame = module.DataFrame({"size": X[:, 0], "city": np.where(Y == 1, "Rome", "Oslo")})
    model = vfl.VerticalClassifier({"bank": ["size"], "shop": ["city"]}).fit(frame, Y)
    assert list(model.feature_names_in_) == ["size", "city"]
    assert model.score(frame, Y) > 0.9


@pytest.mark.parametrize("count", [2, 3])
def test_weights_of_rows_count_as_in_scikit_learn(count: int) -> None:
    generator = np.random.default_rng(3)
    y = Y if count == 2 else np.digitize(X[:, 0], [12, 15])
    weights = generator.uniform(0.5, 2.0, len(y))
    Z = StandardScaler().fit_transform(X[:, [1, 4, 5, 8, 9, 14]])
    model = vfl.VerticalClassifier(l2=0.05, epochs=60).fit(Z, y, sample_weight=weights)
    pooled = LogisticRegression(C=1 / (0.05 * weights.sum()), max_iter=2000).fit(Z, y, sample_weight=weights)
    np.testing.assert_allclose(model.predict_proba(Z), pooled.predict_proba(Z), atol=0.02)
    plain = vfl.VerticalClassifier(l2=0.05, epochs=60).fit(Z, y)
    assert np.abs(plain.predict_proba(Z) - model.predict_proba(Z)).max() > 1e-3
    number = vfl.VerticalRegressor(l2=0.05, epochs=60).fit(Z, X[:, 0], weights)
    ridge = Ridge(0.05 * weights.sum()).fit(Z, X[:, 0], sample_weight=weights)
    np.testing.assert_allclose(number.predict(Z), ridge.predict(Z), atol=0.1)
    assert "(weight of the row)" not in model.run_.coefficients["first"]
    both = vfl.VerticalClassifier(class_weight="balanced").fit(Z, y, weights)
    assert both.score(Z, y) > 0.6

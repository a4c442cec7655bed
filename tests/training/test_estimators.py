"""Estimators in scikit-learn's form: its own checks, its tools, and the same results as `simulate`."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import securevfl as vfl
from securevfl import VerticalClassifier, VerticalRegressor

OPEN = {"protocol": "open", "accepts": ["columns"]}
PARTIES = {"bank": ["income", "grade"], "shop": ["visits", "basket"]}
ROUNDED = "shares are rounded at random, so that two fits or two predictions differ in the fifth digit"
EXPECTED_ON_SHARES = {
    "check_estimators_pickle": ROUNDED,
    "check_methods_sample_order_invariance": ROUNDED,
    "check_methods_subset_invariance": ROUNDED,
    "check_fit_idempotent": ROUNDED,
    "check_pipeline_consistency": ROUNDED,
    "check_classifier_data_not_an_array": ROUNDED,
    "check_regressor_data_not_an_array": ROUNDED,
    "check_regressors_int": ROUNDED,
    "check_supervised_y_2d": ROUNDED,
}


def loans(rows: int = 400, classes: int = 2) -> tuple[pd.DataFrame, np.ndarray[Any, Any]]:
    """Return a table with numbers, a text and gaps, and labels of several classes."""
    rng = np.random.default_rng(5)
    hidden = rng.normal(size=rows)
    table = pd.DataFrame(
        {
            "income": hidden + rng.normal(size=rows),
            "visits": hidden + rng.normal(size=rows),
            "grade": np.where(hidden + rng.normal(size=rows) > 0, "good", "bad"),
            "basket": rng.normal(size=rows),
        }
    )
    table.loc[::17, "visits"] = np.nan
    names = np.array(["late", "paid", "early", "never"])[:classes]
    edges = np.quantile(hidden, np.arange(1, classes) / classes)
    return table, names[np.digitize(hidden + 0.3 * rng.normal(size=rows), edges)]


@pytest.mark.long
@pytest.mark.parametrize("kind", [VerticalClassifier, VerticalRegressor])
def test_all_checks_of_scikit_learn_pass_without_encryption(kind: type) -> None:
    results = check_estimator(kind(job=OPEN), on_skip=None)
    assert len(results) > 40
    assert {result["status"] for result in results} <= {"passed", "skipped"}


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("kind", [VerticalClassifier, VerticalRegressor])
def test_on_shares_only_checks_of_equal_digits_fail(kind: type) -> None:
    results = check_estimator(kind(), expected_failed_checks=EXPECTED_ON_SHARES, on_skip=None, on_fail="raise")
    assert len(results) > 40


def test_a_fit_equals_a_simulation_of_the_same_parties() -> None:
    table, y = loans()
    model = VerticalClassifier(job=OPEN, parties=PARTIES).fit(table, y)
    late = (y == model.classes_[1]).astype(int)
    parties = [
        vfl.Party("bank", table[PARTIES["bank"]], late, aligned=True),
        vfl.Party("shop", table[PARTIES["shop"]], aligned=True),
    ]
    run = vfl.simulate(vfl.Job.from_dict({"model": "logistic", **OPEN}), parties)
    tables = {name: table[columns] for name, columns in PARTIES.items()}
    assert np.allclose(model.predict_proba(table), run.predict_proba(tables), atol=1e-9)
    assert list(model.classes_) == ["late", "paid"]
    assert set(model.predict(table)) == {"late", "paid"}
    assert model.score(table, y) > 0.7
    shuffled = table[["visits", "basket", "income", "grade"]]
    assert np.allclose(model.predict_proba(shuffled), model.predict_proba(table), atol=1e-9)


@pytest.mark.parametrize(
    "keys", [{"positive": "late"}, {"positive": "paid"}, {"weights": {"classes": {"late": 2, "paid": 1}}}]
)
def test_a_job_names_classes_as_the_labels_do(keys: dict[str, Any]) -> None:
    table, y = loans()
    model = VerticalClassifier({**OPEN, **keys}, parties=PARTIES).fit(table, y)
    assert model.run_.active.label_classes[1] == keys.get("positive", "paid")
    assert list(model.classes_) == ["late", "paid"]
    assert model.score(table, y) > 0.7
    assert ((model.decision_function(table) > 0) == (model.predict(table) == "paid")).all()
    numbers = (y == "paid").astype(int)
    for positive in ("0", "1"):
        fitted = VerticalClassifier({**OPEN, "positive": positive}, parties=PARTIES).fit(table, numbers)
        assert (fitted.predict(table) == fitted.predict_proba(table).argmax(axis=1)).all()
        assert fitted.score(table, numbers) > 0.7


@pytest.mark.parametrize("classes", [2, pytest.param(3, marks=pytest.mark.slow), 4])
def test_the_default_job_trains_several_classes_on_shares(classes: int) -> None:
    table, y = loans(600, classes)
    model = VerticalClassifier(parties=PARTIES, label_party="shop").fit(table, y)
    probabilities = model.predict_proba(table)
    assert probabilities.shape == (600, classes)
    assert np.allclose(probabilities.sum(axis=1), 1)
    assert model.run_.active.name == "shop"
    assert model.job_.protocol.shares is not None
    assert model.score(table, y) > 1.3 / classes
    assert model.decision_function(table).shape == ((600,) if classes == 2 else (600, classes))


def test_a_search_chooses_a_key_of_the_job() -> None:
    table, y = loans()
    model = VerticalClassifier(job={"model": {"name": "logistic", "l2": 0.1}, **OPEN}, parties=PARTIES)
    search = GridSearchCV(model, {"job__model__l2": [0.01, 300.0]}, cv=3, scoring="roc_auc").fit(table, y)
    assert search.best_params_ == {"job__model__l2": 0.01}
    assert search.best_estimator_.job_.model.l2 == 0.01
    assert search.cv_results_["mean_test_score"][0] > search.cv_results_["mean_test_score"][1] - 1e-9
    assert model.job["model"]["l2"] == 0.1, "the estimator that was passed is unchanged"
    scores = cross_val_score(VerticalRegressor(job=OPEN), table[["income", "basket"]], table["income"] * 2, cv=3)
    assert scores.min() > 0.99


def test_keys_of_a_job_object_can_be_replaced() -> None:
    model = VerticalClassifier(job=vfl.Job(model=vfl.Logistic(l2=0.5), protocol="open"))
    assert model.get_params()["job__model__l2"] == 0.5
    assert clone(model).set_params(job__model__l2=0.25).get_params()["job__model__l2"] == 0.25
    assert model.job.model.l2 == 0.5
    assert VerticalClassifier(job={"model": "logistic"}).set_params(job__model__l2=2.0).job == {
        "model": {"name": "logistic", "l2": 2.0}
    }
    assert VerticalRegressor().set_params(job__seed=3).job == {"seed": 3}


def test_arrays_pipelines_and_pickles() -> None:
    table, y = loans()
    X = table[["income", "visits", "basket"]].fillna(0).to_numpy()
    dealt = {"bank": [0], "shop": [2, 1]}
    model = make_pipeline(StandardScaler(), VerticalClassifier(job=OPEN, parties=dealt)).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert np.allclose(again.predict_proba(X), model.predict_proba(X), atol=1e-9)
    named = make_pipeline(StandardScaler(), VerticalClassifier(job=OPEN, parties={"a": ["income"], "b": ["visits"]}))
    named.set_output(transform="pandas").fit(table[["income", "visits"]].fillna(0), y)
    assert named.score(table[["income", "visits"]].fillna(0), y) > 0.7


@pytest.mark.parametrize(
    ("parties", "label_party", "problem"),
    [
        ({"bank": ["income", "salary"], "shop": ["visits", "grade", "basket"]}, None, "are not in the table"),
        ({"bank": ["income", "grade"], "shop": ["visits"]}, None, "belong to no party"),
        ({"bank": ["income", "grade", "visits"], "shop": ["visits", "basket"]}, None, "belong to several parties"),
        (PARTIES, "insurer", "is not a party"),
        ({"bank": ["income", "grade", "visits", "basket"]}, None, "part"),
    ],
)
def test_columns_belong_to_one_party_each(parties: Any, label_party: str | None, problem: str) -> None:
    table, y = loans()
    with pytest.raises(ValueError, match=problem):
        VerticalClassifier(parties=parties, label_party=label_party).fit(table, y)


def test_new_rows_need_the_columns_of_the_training() -> None:
    table, y = loans()
    model = VerticalClassifier(job=OPEN, parties=PARTIES).fit(table, y)
    with pytest.raises(ValueError, match="features"):
        model.predict(table[["income", "visits"]])
    with pytest.raises(ValueError, match="logistic"):
        VerticalClassifier(job={"model": "logistic", **OPEN}).fit(*loans(classes=3))

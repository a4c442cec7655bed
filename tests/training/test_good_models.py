"""Every family is as good on held-out rows as a model of the pooled table, for every loss and number of parties.

The columns of every party matter, and some are whole numbers with ties; labels of two classes have 30 % of one class. A
model that leaves out a party's columns, a step or the intercept is far from its oracle, which scikit-learn fits to all
columns of the training rows.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

import securevfl as vfl
from securevfl.data.party import Helper, register_of
from securevfl.families import FAMILIES, leak_kinds
from securevfl.models.metrics import area_under_curve
from tests.builders import labels_for, parties_of, random_blocks

ROWS = 500
LEAKS = sorted({*leak_kinds()} - {"fresh_equations"})


def columns_and_labels(parties: int, kind: str | int) -> tuple[list[Any], Any]:
    blocks = random_blocks(parties, ROWS, 3, seed=5)
    if kind == 2:
        score = sum(block @ [0.9, -0.7, 0.8] for block in blocks)
        noise = np.random.default_rng(6).logistic(size=ROWS)
        return blocks, (score + noise > np.quantile(score + noise, 0.7)).astype(int)
    return blocks, labels_for(blocks, kind, seed=5)


def pooled(model: Any, job: vfl.Job, parties: list[Any], predict: str) -> tuple[Any, Any]:
    """Fit a model of scikit-learn to all columns of the training rows; its predictions and the labels of the others."""
    tables = [party for party in parties if not isinstance(party, Helper)]
    X, y = np.hstack([np.asarray(party.X) for party in tables]), np.asarray(parties[0].y)
    schedule = job.schedule(register_of(tables))
    model.fit(X[schedule.train], y[schedule.train])
    return getattr(model, predict)(X[schedule.test]), y[schedule.test]


def trained(job: vfl.Job, parties: list[Any]) -> vfl.Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return vfl.simulate(job, parties)


LINEAR: dict[str, tuple[str | int, Any, str, str]] = {
    "logistic": (2, LogisticRegression(C=1e4), "decision_function", "auc"),
    "smooth_hinge": (2, LogisticRegression(C=1e4), "decision_function", "auc"),
    "square": ("numbers", LinearRegression(), "predict", "r2"),
    "one_vs_rest": (3, OneVsRestClassifier(LogisticRegression(C=1e4)), "predict_proba", "auc"),
    "softmax": (3, LogisticRegression(C=1e4), "predict_proba", "auc"),
}
"""For each loss the labels, the oracle, the method of its predictions, and the metric that is compared. Losses of
counts, amounts and quantiles have their oracles in tests/models/test_numbers.py."""


def quality(metric: str, predicted: Any, y: Any) -> float:
    if metric == "r2":
        return float(1 - ((predicted - y) ** 2).mean() / y.var())
    if predicted.ndim == 1:
        return area_under_curve(y == 1, predicted)
    return float(np.mean([area_under_curve(y == label, predicted[:, label]) for label in range(predicted.shape[1])]))


@pytest.mark.parametrize(
    ("loss", "protocol", "parties"),
    [
        ("logistic", "shares", 3), ("logistic", "open", 3), ("smooth_hinge", "shares", 2),
        ("square", "shares", 2), ("square", "open", 3), ("one_vs_rest", "shares", 2), ("softmax", "open", 2),
        pytest.param("logistic", "shares", 2, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_default_linear_models_are_as_good_as_pooled_ones(loss: str, protocol: str, parties: int) -> None:
    kind, oracle, predict, metric = LINEAR[loss]
    blocks, y = columns_and_labels(parties, kind)
    accepts = [] if protocol == "shares" else LEAKS
    job = vfl.Job(model=loss, protocol=protocol, test_fraction=0.3, accepts=accepts)
    members = parties_of(blocks, y, ids=range(ROWS))
    run = trained(job, members)
    # pairs contain each class's score separately, not divided by the sum over classes
    if protocol == "shares" and kind == 3:
        predict = "decision_function"
    predicted, labels = pooled(oracle, job, members, predict)
    expected = quality(metric, predicted, labels)
    assert expected > (0.8 if metric == "auc" else 0.25)
    assert run.metrics[metric] == pytest.approx(expected, abs=0.02 if metric == "auc" else 0.06)


@pytest.mark.parametrize("boosted", [True, False])
def test_trees_beat_single_parties_and_approach_pooled_ones(boosted: bool) -> None:
    """Labels depend non-linearly on columns of both parties; the boosted score is measured on held-out rows as well."""
    generator = np.random.default_rng(8)
    blocks = [np.round(generator.normal(size=(1200, 3)), 1) for _ in range(2)]
    score = sum(2.0 * (np.abs(block[:, 0]) > 0.8) - 1.5 * (block[:, 1] > 0.3) + block[:, 2] for block in blocks)
    y = (score + generator.logistic(size=1200) > np.quantile(score, 0.6)).astype(int)
    members = parties_of(blocks, y, ids=range(1200))
    job = vfl.Job(model=vfl.Trees(boosted_score=boosted, trees=30, depth=3), test_fraction=0.3)
    run = trained(job, members)
    together, labels = pooled(HistGradientBoostingClassifier(max_iter=60), job, members, "decision_function")
    alone, _ = pooled(HistGradientBoostingClassifier(max_iter=60), job, members[:1], "decision_function")
    oracle, single = area_under_curve(labels == 1, together), area_under_curve(labels == 1, alone)
    assert oracle > single + 0.08
    assert run.metrics["auc"] > oracle - 0.03
    assert run.metrics["auc"] > single + 0.05
    if boosted:  # on held-out rows, the label party's score is as good as its own boosted trees, and not better
        inputs = run.parts["bank"].state["inputs"]
        assert inputs["score"] is not None


def test_trees_of_numbers_have_the_mean_of_the_labels() -> None:
    generator = np.random.default_rng(9)
    blocks = [generator.normal(size=(600, 2)) for _ in range(2)]
    y = 50 + sum(3 * np.abs(block[:, 0]) + block[:, 1] for block in blocks) + generator.normal(size=600)
    members = parties_of(blocks, y, ids=range(600))
    job = vfl.Job(model=vfl.Trees(loss_name="square", trees=10, depth=3), test_fraction=0.3)
    run = trained(job, members)
    predicted, labels = pooled(HistGradientBoostingRegressor(max_iter=60), job, members, "predict")
    assert run.metrics["r2"] > quality("r2", predicted, labels) - 0.08


def examples() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return one example of each family, model and optimizer; those with open residuals cost least."""
    cheapest = {
        (family, options["model"].name, options["optimizer"].name, "prepare" in options): (name, (family, options))
        for family, kind in FAMILIES.items()
        for name, options in sorted(kind().example_jobs().items(), key=lambda item: "open" in item[0])
        if family != "shares"
    }
    return dict(cheapest.values())


EXAMPLES = examples()
EPOCHS = {"phases": 6, "transfer": 30, "fdml": 15, "rounds": 10}
WEAKER = {"neural": 0.1, "kernel": 0.06, "transfer": 0.09}
"""How much below a pooled logistic regression a model may be that is not linear, or has columns in bins."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * name.startswith("neural")) for name in EXAMPLES]
)
def test_every_other_family_is_as_good_as_a_pooled_model(name: str) -> None:
    family, options = EXAMPLES[name]
    parties = min(3 if "tree" in name or "pairwise" in name else 2, FAMILIES[family]().max_parties or 3)
    blocks, y = columns_and_labels(parties, 2)
    keys = {"batch_size": 70, "epochs": EPOCHS[family], "test_fraction": 0.3} | options
    keys["accepts"] = sorted({*leak_kinds()})
    if "kernel" in name:
        keys["model"] = options["model"].model_copy(update={"gamma": 0.05})
    job = vfl.Job(**keys)
    members: list[Any] = [
        *parties_of(blocks, y, ids=range(ROWS)),
        *(Helper(*helper) for helper in job.family.example_helpers),
    ]
    run = trained(job, members)
    predicted, labels = pooled(LogisticRegression(C=1e4), job, members, "decision_function")
    expected = area_under_curve(labels == 1, predicted)
    assert run.metrics["auc"] > expected - (0.08 if "prepare" in options else WEAKER.get(job.model.name, 0.02))

"""Metrics by group equal scikit-learn's for each group; small groups are not reported."""

from __future__ import annotations

import numpy as np
import pytest
from builders import raises_code
from sklearn.metrics import confusion_matrix, roc_auc_score

import securevfl as vfl
from securevfl.errors import TableError

N = 900
DRAW = np.random.default_rng(8)
OWN, OTHER = DRAW.normal(size=(N, 2)), DRAW.normal(size=(N, 2))
GROUP = np.where(np.arange(N) < 99, "few", np.where(np.arange(N) < 400, "north", "south"))
Y = (OWN[:, 0] - OTHER[:, 1] + 0.5 * (GROUP == "north") + DRAW.normal(size=N) > 0.3).astype(int)


def run(model: object, y: np.ndarray) -> vfl.Run:
    job = vfl.Job(model=model, protocol="open", batch_size="all", epochs=5, accepts=["columns", "rank"])
    return vfl.simulate(job, [vfl.Party("bank", OWN, y, ids=range(N)), vfl.Party("shop", OTHER, ids=range(N))])


def test_rates_are_by_group_without_small_groups() -> None:
    trained, tables = run(vfl.Logistic(), Y), {"bank": OWN, "shop": OTHER}
    by_group = trained.evaluate_by_group(tables, Y, GROUP)
    assert set(by_group) == {"north", "south"}  # 99 rows are too few, 301 are not
    proba = trained.predict_proba(tables)[:, 1]
    for name, metrics in by_group.items():
        rows = name == GROUP
        (tn, fp), (fn, tp) = confusion_matrix(Y[rows], proba[rows] > 0.5)
        assert metrics["rows"] == rows.sum()
        assert metrics["true_positive"] == pytest.approx(tp / (tp + fn))
        assert metrics["false_positive"] == pytest.approx(fp / (fp + tn))
        assert metrics["selected"] == pytest.approx((tp + fp) / rows.sum())
        assert metrics["rate"] == pytest.approx(Y[rows].mean())
        assert metrics["predicted"] == pytest.approx(proba[rows].mean())
        assert metrics["auc"] == pytest.approx(roc_auc_score(Y[rows], proba[rows]))
    with raises_code(TableError, "SVFL-TABLE-SHAPE"):
        trained.evaluate_by_group(tables, Y, GROUP[:5])


def test_numbers_have_means() -> None:
    y = DRAW.poisson(np.exp(0.3 * OWN[:, 0])).astype(float)
    by_group = run(vfl.Poisson(), y).evaluate_by_group({"bank": OWN, "shop": OTHER}, y, GROUP)
    assert by_group["north"]["label"] == pytest.approx(y[GROUP == "north"].mean())
    assert abs(by_group["north"]["predicted"] / by_group["north"]["label"] - 1) < 0.2
    assert "deviance" in by_group["south"]

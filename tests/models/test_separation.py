"""Classes that columns separate have no finite weights: every mode reports it, at each party that can know it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.models.separation import separating_columns

N = 240
DRAW = np.random.default_rng(3)
X, Z = DRAW.normal(size=(2, N, 2))
OVERLAPPING_LABELS = (X[:, 0] + Z[:, 0] + DRAW.normal(size=N) > 0).astype(int)
SEALED = ["columns", "rank", "label_auc", "fresh_equations", "small_metrics"]
MODES: dict[str, dict[str, Any]] = {
    "open": {"protocol": "open", "batch_size": "all", "epochs": 200, "optimizer": vfl.BlockNewton(), "accepts": SEALED},
    "shares": {"epochs": 12, "accepts": ["small_metrics"]},
}


def notices(y: Any, columns: Any, mode: str, model: Any) -> list[str]:
    """Return the notices about separated classes at both parties."""
    parties = [
        vfl.Party("bank", columns, y, columns=["a", "b", "c"][: columns.shape[1]], ids=range(N)),
        vfl.Party("shop", Z, columns=["d", "e"], ids=range(N)),
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        vfl.simulate(vfl.Job(model=model, **MODES[mode]), parties)
    return [str(warning.message) for warning in caught if "are not estimates" in str(warning.message)]


@pytest.mark.parametrize("mode", MODES)
def test_a_column_that_separates_is_named_before_the_training(mode: str) -> None:
    rare = (np.arange(N) % 16 == 3) & (OVERLAPPING_LABELS == 1)
    columns = np.column_stack([X, rare])
    printed = notices(OVERLAPPING_LABELS, columns, mode, vfl.Logistic())
    assert any(notice.startswith("party bank: columns that separate the labels: c;") for notice in printed)
    assert not notices(OVERLAPPING_LABELS, X, mode, vfl.Logistic())
    assert not notices(OVERLAPPING_LABELS, columns, mode, vfl.Logistic(l2=1e-3))
    assert not notices(OVERLAPPING_LABELS, columns, mode, vfl.SmoothHinge())


@pytest.mark.parametrize("mode", MODES)
def test_metrics_report_classes_that_joint_columns_separate(mode: str) -> None:
    total = X[:, 0] + Z[:, 0]
    shift = np.where(np.abs(total) < 0.4, np.sign(total) * 2, 0)
    columns = X + np.column_stack([shift, np.zeros(N)])
    printed = notices((total > 0).astype(int), columns, mode, vfl.Logistic())
    assert any("party bank: the model ranks all measured rows correctly" in notice for notice in printed)
    if mode == "open":
        assert any(
            "party shop: columns whose weights change the model's output by more than 20: d;" in notice
            for notice in printed
        )


def test_separating_columns_are_those_that_a_threshold_parts() -> None:
    """Separating columns are compared with a loop over thresholds."""
    columns = np.round(DRAW.normal(size=(9, 400)), 1)
    marked = DRAW.random((9, 2)) < 0.4
    expected = [
        len(np.unique(x)) > 1
        and any(
            0 < m.sum() < 9 and ((sign * (x[m] - t)).min() >= 0 >= (sign * (x[~m] - t)).max())
            for m in marked.T
            for t in x
            for sign in (1, -1)
        )
        for x in columns.T
    ]
    assert 0 < sum(expected) < 400
    np.testing.assert_array_equal(separating_columns(columns, marked), expected)

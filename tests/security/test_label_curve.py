"""The curve of label AUC from opened gradients: its table measured again, its limits, and its use by a job."""

from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.special import ndtr

import securevfl as vfl
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Schedule
from securevfl.disclosure.label_auc import TABLE_SHARES, expected_label_auc, smallest_batch
from securevfl.errors import ConfigError, LeakageError
from securevfl.models.metrics import area_under_curve
from tests.builders import raises_code


@lru_cache(maxsize=32)
def simulate_label_auc(share: float, epochs: int, reshuffle: bool, seed: int, batch: int = 256) -> float:
    """Measure one point of the table: the label AUC after a number of epochs over 10 batches."""
    rows, d = 10 * batch, max(1, round(share * batch))
    generator = np.random.default_rng(seed)
    columns, noise = generator.normal(size=(rows, 5)), generator.normal(size=(rows, d))
    y = columns.sum(axis=1) + generator.normal(size=rows) > 0
    theta = np.zeros(5)
    schedule = Schedule(rows, batch_size=batch, epochs=epochs, seed=seed, test_fraction=0.0, reshuffle=reshuffle)
    equations: list[Any] = []
    answers: list[Floats] = []
    by_batch: dict[int, tuple[np.ndarray, Floats]] = {}
    for visit in schedule.iterations():
        i = visit.rows
        g = 1 / (1 + np.exp(-columns[i] @ theta)) - y[i]
        theta -= 0.05 * columns[i].T @ g / len(i)
        opened = noise[i].T @ g
        if reshuffle:
            places = (np.repeat(range(d), len(i)), np.tile(i, d))
            equations.append(sparse.coo_array((noise[i].T.ravel(), places), (d, rows)))
            answers.append(opened)
        else:
            total = by_batch[visit.index][1] if visit.index in by_batch else np.zeros(d)
            by_batch[visit.index] = (i, total + opened)
    if reshuffle:
        guess = sparse.linalg.lsqr(sparse.vstack(equations).tocsr(), np.concatenate(answers), iter_lim=60)[0]
    else:
        guess = np.zeros(rows)
        for i, total in by_batch.values():
            guess[i] = np.linalg.lstsq(noise[i].T, total)[0]
    return area_under_curve(y, -guess)


@pytest.mark.parametrize(
    ("share", "epochs", "reshuffle"),
    [(16 / 256, 1, False), (64 / 256, 10, False), (128 / 256, 1, False), (8 / 256, 10, True), (16 / 256, 20, True)],
)
@pytest.mark.long
def test_the_table_measured_again(share: float, epochs: int, reshuffle: bool) -> None:
    measured = np.mean([simulate_label_auc(share, epochs, reshuffle, seed) for seed in (10, 11)])
    expected = expected_label_auc(round(share * 256), 256, 1, epochs, reshuffle)
    assert measured == pytest.approx(expected, abs=0.02)


def test_the_curve_holds_between_its_points() -> None:
    for share, epochs, reshuffle in [(24 / 256, 1, False), (12 / 256, 7, True)]:
        measured = np.mean([simulate_label_auc(share, epochs, reshuffle, seed) for seed in range(2)])
        expected = expected_label_auc(round(share * 256), 256, 1, epochs, reshuffle)
        assert measured == pytest.approx(expected, abs=0.02)


def test_one_batch_follows_the_formula() -> None:
    for share in TABLE_SHARES[TABLE_SHARES < 0.6]:
        formula = ndtr(np.sqrt(2 * share / (1 - share)))
        assert expected_label_auc(round(share * 256), 256, 1, 1, False) == pytest.approx(formula, abs=0.011)


def test_the_curve_rises_only_with_share_and_equations() -> None:
    shares = [expected_label_auc(p, 500, 2, 5, True) for p in range(1, 1001, 37)]
    assert all(low <= high + 1e-12 for low, high in pairwise(shares))
    assert expected_label_auc(15, 256, 1, 100, False) == expected_label_auc(15, 256, 1, 1, False)
    epochs = [expected_label_auc(15, 256, 1, e, True) for e in (1, 3, 10, 40, 80, 500)]
    assert all(low < high for low, high in pairwise(epochs))
    assert expected_label_auc(500, 250, 2, 1, False) == 1.0
    assert expected_label_auc(1, 10**9, 1, 1, False) < 0.501


@pytest.mark.parametrize("reshuffle", [False, True])
@pytest.mark.parametrize("limit", [0.51, 0.6, 0.9])
def test_the_smallest_batch_is_the_smallest(reshuffle: bool, limit: float) -> None:
    rows = smallest_batch(10, 1, 5, reshuffle, limit)
    assert expected_label_auc(10, rows, 1, 5, reshuffle) <= limit
    assert expected_label_auc(10, rows - 1, 1, 5, reshuffle) > limit


def limited(limit: float | None, **keys: object) -> vfl.Job:
    defaults: dict[str, object] = {"model": vfl.Logistic(), "optimizer": vfl.FedBCD(lr=0.1), "epochs": 1}
    defaults |= {"protocol": vfl.Protocol(residual=vfl.Ckks()), "max_label_auc": limit}
    return vfl.Job(**(defaults | keys))


def test_a_limit_names_the_smallest_batch_size() -> None:
    parties = vfl.datasets.breast_cancer()
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("label_auc",)) as refused:
        vfl.simulate(limited(0.7, batch_size=64), parties)
    assert "batch_size >= 143" in str(refused.value)
    with pytest.raises(LeakageError):
        vfl.simulate(limited(0.7, batch_size=142), parties)
    assert vfl.simulate(limited(0.7, batch_size=143), parties)
    assert "would be refused" not in vfl.explain(limited(0.7, batch_size=143), parties)


def test_unreachable_limits_and_open_residuals_are_refused() -> None:
    parties = vfl.datasets.breast_cancer()
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("label_auc",)):
        vfl.simulate(limited(0.52), parties)
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("label_auc",)):
        vfl.simulate(limited(0.9, protocol=vfl.Protocol(residual="open")), parties)
    assert vfl.simulate(limited(0.52, accepts=["label_auc"]), parties)
    with raises_code(ConfigError, "SVFL-JOB-OPTION") as refused:
        limited(0.5)
    assert "max_label_auc" in str(refused.value)


def test_the_sheet_states_the_auc_of_columns_of_noise() -> None:
    sheet = vfl.explain(limited(None, batch_size=143), vfl.datasets.breast_cancer())
    assert "columns of pure noise they would rank labels with an AUC of 0.69" in sheet

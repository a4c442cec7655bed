"""The grid of a search, the penalty of its models, and cross-validation on one party's columns."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selfcheck.whole_weights import whole_weights

import securevfl as vfl
from securevfl.base.arrays import Floats
from securevfl.data.party import register_of
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.limits import Limit
from securevfl.errors import ConfigError, DataNotice, DivergenceError, LeakageError, PartiesError
from securevfl.training.local_baseline import fit_local
from securevfl.training.search_sheet import explain_search
from securevfl.training.tuning_grid import alternative_jobs, final_job, read_grid, tunable_options, tuned_job
from tests.builders import raises_code
from tests.training.test_comparison import tables

sklearn = pytest.importorskip("sklearn.linear_model")
model_selection = pytest.importorskip("sklearn.model_selection")
LOGISTIC = vfl.Job(model=vfl.Logistic())
SMALL = {"epochs": 6, "evaluate_every": 0, "test_fraction": 0.25}


def scaled(run: vfl.Run, parties: list[vfl.Party]) -> Floats:
    """Return the columns of all parties as the training scales them."""
    return np.hstack([np.clip(run.parts[party.name].scaling(party.X), -8, 8) for party in parties])


@pytest.mark.slow
@pytest.mark.parametrize(("l2", "parties"), [(0.03, 2), (0.3, 3)])
def test_l2_of_block_descent_on_shares_is_that_of_scikit_learn(l2: float, parties: int) -> None:
    all_parties = tables(1200, parties=parties)
    run = vfl.simulate(vfl.Job(model=vfl.Logistic(l2=l2)), all_parties)
    weights = whole_weights(run.job, {name: part.state for name, part in run.parts.items()}, "bank")
    train, y = run.job.schedule(register_of(all_parties)).train, all_parties[0].y
    expected = sklearn.LogisticRegression(C=1 / (l2 * len(train)), tol=1e-9).fit(
        scaled(run, all_parties)[train], y[train]
    )
    weights_on_shares = np.concatenate([weights["bank"][:-1], *(weights[party.name] for party in all_parties[1:])])[
        :, 0
    ]
    np.testing.assert_allclose(weights_on_shares, expected.coef_[0], atol=0.02)
    assert weights["bank"][-1, 0] == pytest.approx(expected.intercept_[0], abs=0.02)


def test_l2_needs_columns_of_variance_one_and_enough_iterations() -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION"):
        vfl.Job(model=vfl.Logistic(l2=0.1), scale="robust", protocol="shares")
    assert vfl.Job(model=vfl.Logistic(l2=0.1)).epochs == 100
    with pytest.warns(DataNotice) as notices:
        vfl.simulate(vfl.Job(model=vfl.Logistic(l2=1e-5), **SMALL), tables(400))
    assert any("l2 = 1e-05 is small" in str(notice.message) for notice in notices)


def test_alternatives_differ_in_values_and_open_one_sum() -> None:
    job = vfl.Job(
        model=vfl.Logistic(),
        protocol=vfl.Protocol(shares=vfl.Shares(open_weights=("shop",))),
        accepts=("opened_weights",),
    )
    alternatives = alternative_jobs(job, {"l2": (0.1, 1), "epochs": (50, 60)})
    assert list(alternatives) == [f"l2 = {l2}, epochs = {epochs}" for l2 in ("0.1", "1") for epochs in (50, 60)]
    for alternative in alternatives.values():
        shares = alternative.protocol.shares
        assert shares is not None
        assert (shares.metrics, shares.open_weights, shares.scores, alternative.evaluate_every) == (
            "loss",
            (),
            "none",
            0,
        )
        final = final_job(tuned_job(job), alternative)
        assert final.protocol == job.protocol
        assert (final.model, final.epochs) == (alternative.model, alternative.epochs)


@pytest.mark.parametrize(
    ("job", "grid"),
    [
        (LOGISTIC, {"split": (1, 2)}),
        (LOGISTIC, {"depth": (1, 2)}),
        (LOGISTIC, {"l2": (1,)}),
        (LOGISTIC, {"l2": (1, 1)}),
        (LOGISTIC, {"l2": (1, 2), "model.l2": (1, 2)}),
        (LOGISTIC, {"drop": ("none", "x0")}),
        (LOGISTIC, {"l2": tuple(range(65))}),
        (vfl.Job(model=vfl.Trees()), {"l2": (1, 2)}),
        (vfl.Job(model=vfl.Logistic(), protocol="ckks", test_fraction=0.25), {"l2": (1, 2)}),
        (vfl.Job(model=vfl.Logistic(), patience={"metric": "loss"}, test_fraction=0.25), {"l2": (1, 2)}),
        (vfl.Job(model=vfl.Logistic(), test_fraction=0), {"l2": (1, 2)}),
    ],
    ids=lambda value: "" if isinstance(value, vfl.Job) else ",".join(value),
)
def test_what_cannot_be_tuned_is_refused(job: vfl.Job, grid: Any) -> None:
    with raises_code(ConfigError, "SVFL-JOB-UNSUPPORTED"):
        alternative_jobs(job, grid)


def test_alternatives_do_not_stop_early() -> None:
    """They are measured once, at their end, and so is the chosen one, so that all are compared after equal work."""
    job = vfl.Job(model="logistic", optimizer=vfl.BlockDescent(early_stop=0.001))
    for alternative in alternative_jobs(job, {"l2": (0.1, 1)}).values():
        for trained in (alternative, final_job(tuned_job(job), alternative)):
            assert (trained.optimizer.early_stop, trained.evaluate_every, trained.stops_early) == (None, 0, False)
    assert "optimizer.early_stop" not in tunable_options(job)
    with raises_code(ConfigError, "SVFL-JOB-UNSUPPORTED"):
        alternative_jobs(job, {"early_stop": (0.1, 1)})


def test_trees_are_tuned_with_safe_steps() -> None:
    job = vfl.Job(model=vfl.Trees())
    assert job.patience is not None
    for alternative in alternative_jobs(job, {"depth": (1, 2), "bins": (8, 16)}).values():
        assert alternative.patience is None
        assert alternative.optimizer.lr == 1
        assert alternative.prepare.bins is None
    assert "model.l2" not in tunable_options(job)


@pytest.mark.parametrize("item", ["l2", "l2=", "=1", "l2=a", "l2=1,,2", "drop="])
def test_a_grid_that_is_no_list_of_numbers_is_refused(item: str) -> None:
    with raises_code(ConfigError, "SVFL-COMMAND-USAGE"):
        read_grid([item])
    assert read_grid(["l2=0.1,1", "drop=none,age"]) == {"l2": (0.1, 1), "drop": ("none", "age")}


def test_a_search_counts_what_it_opens_and_the_second_is_refused(tmp_path: Path) -> None:
    parties = tables(1600)
    job = vfl.Job(model=vfl.Logistic(), protocol=vfl.Protocol(shares=vfl.Shares(scores="none")), **SMALL)
    ledgers = {party.name: DisclosureLedger(tmp_path / f"{party.name}.ledger", party.name) for party in parties}
    forecast = explain_search(job, {"bins": (3, 6, 9)}, parties, ledgers=ledgers)
    assert not forecast.refusals
    tuning = vfl.tune(job, {"bins": (3, 6, 9)}, parties, ledgers=ledgers)
    stated = re.search(r"At most ([\d,]+) bits about columns", forecast.sheet)
    assert stated is not None
    assert int(stated.group(1).replace(",", "")) >= tuning.opened_bits
    losses = {item.name: item.loss for item in tuning.alternatives}
    assert not any(item.diverged for item in tuning.alternatives)
    assert tuning.chosen == min(losses, key=lambda name: losses[name])
    entered = sum(entry.disclosure.count for entry in ledgers["shop"].read().entries)
    assert 0 < entered <= tuning.opened_bits
    assert tuning.part.metrics["auc"] > 0.8
    assert "4 measurements" in str(tuning)
    assert tuning.chosen in tuning.page()
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        vfl.tune(job, {"bins": (3, 6, 9)}, parties, ledgers=ledgers)


def test_a_search_with_too_few_rows_is_named_beforehand() -> None:
    forecast = explain_search(LOGISTIC, {"l2": (0.01, 0.1, 1, 10)}, tables(1600))
    assert "400 held-out rows may be measured 4 times, and the search measures them 5 times" in forecast.refusals[0]
    accepting = vfl.Job(model=vfl.Logistic(), accepts=("small_metrics",))
    assert not explain_search(accepting, {"l2": (0.01, 0.1, 1, 10)}, tables(1600)).refusals


PERMUTED: dict[str, tuple[vfl.Job, dict[str, tuple[float, ...]]]] = {
    "bins and epochs": (vfl.Job(model=vfl.Logistic(), test_fraction=0.25), {"bins": (3, 6, 9), "epochs": (5, 9)}),
    "weights opened to the partner": (
        vfl.Job(
            model=vfl.Logistic(),
            protocol=vfl.Protocol(shares=vfl.Shares(open_weights=("shop",))),
            accepts=("small_metrics",),
            reason_codes=1,
        ),
        {"bins": (2, 12, 30), "l2": (0.1, 1)},
    ),
    "trees": (vfl.Job(model=vfl.Trees(trees=3), accepts=("scores",)), {"depth": (1, 2), "bins": (4, 16)}),
}


def forecast_of(name: str, grid: Any, folder: Path, limit: Limit | None) -> tuple[Any, ...]:
    """Return the refusals, the lines of the sheet in any order, and all numbers that a search would open."""
    parties = tables(400)
    ledgers = {party.name: DisclosureLedger(folder / f"{party.name}.ledger", party.name) for party in parties}
    for ledger in ledgers.values():
        ledger.set_limit("columns", limit)
    forecast = explain_search(PERMUTED[name][0], grid, parties, ledgers=ledgers)
    words = Counter(re.split(r"[\s,:;()]+", forecast.sheet))
    return sorted(" ".join(sorted(text.split())) for text in forecast.refusals), words


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        *((name, Limit(0.001, share=True)) for name in PERMUTED),
        *(
            pytest.param(name, limit, marks=[pytest.mark.slow] * (name != "trees" or limit is None))
            for name in PERMUTED
            for limit in (Limit(0.02, share=True), None)
        ),
    ],
    ids=str,
)
def test_the_order_of_the_grid_changes_nothing(name: str, limit: Limit | None, tmp_path: Path) -> None:
    grid = PERMUTED[name][1]
    expected = forecast_of(name, grid, tmp_path, limit)
    backwards = {option: grid[option][::-1] for option in reversed(grid)}
    rotated = {option: (*values[1:], values[0]) for option, values in grid.items()}
    for permuted in (backwards, rotated):
        assert forecast_of(name, permuted, tmp_path, limit) == expected


def test_every_alternative_that_may_be_chosen_is_checked(tmp_path: Path) -> None:
    """All alternatives open the same bits about columns. With many bins, opened weights
    have as many bits as the labels.
    """
    job = PERMUTED["weights opened to the partner"][0]
    parties = tables(2400)
    ledgers = {party.name: DisclosureLedger(tmp_path / f"{party.name}.ledger", party.name) for party in parties}
    for bins in ((2, 3, 30), (30, 3, 2)):
        forecast = explain_search(job, {"bins": bins}, parties, ledgers=ledgers)
        assert any("its weights, which are opened to it" in text for text in forecast.refusals)
    allowed = explain_search(job, {"bins": (2, 3)}, parties, ledgers=ledgers)
    assert not any("weights" in text for text in allowed.refusals)


def test_cross_validation_equals_that_of_scikit_learn() -> None:
    bank = tables(800)[0]
    validation = vfl.cross_validate(LOGISTIC, {"l2": (0.01, 0.1, 1.0)}, bank, scoring="neg_log_loss")
    rows = LOGISTIC.schedule(bank.register).train
    X = (bank.X[rows] - bank.X[rows].mean(axis=0)) / bank.X[rows].std(axis=0)
    folds = model_selection.StratifiedKFold(5, shuffle=True, random_state=0)
    for item, l2 in zip(validation.alternatives, (0.01, 0.1, 1.0), strict=True):
        model = sklearn.LogisticRegression(C=1 / (l2 * 0.8 * len(rows)), tol=1e-9)
        scores = model_selection.cross_val_score(model, X, bank.y[rows], cv=folds, scoring="neg_log_loss")
        assert item.score == pytest.approx(scores.mean(), abs=2e-3)
    assert validation.rows == len(rows)
    assert "nothing was sent" in str(validation)


@pytest.mark.parametrize("folds", [2, 3, 5])
@pytest.mark.parametrize("model", [vfl.Logistic(), vfl.Square()], ids=["classes", "numbers"])
def test_scores_and_their_errors_are_those_of_a_loop_over_folds(model: Any, folds: int) -> None:
    job, bank = vfl.Job(model=model, test_fraction=0.25, seed=3), tables(240)[0]
    if not job.model.loss.classifies:
        bank = vfl.Party("bank", bank.X, bank.X[:, 0] + 0.5 * bank.y, ids=range(240))
    grid = {"l2": (0.01, 1.0)}
    validation = vfl.cross_validate(job, grid, bank, folds=folds)
    schedule, y = job.schedule(bank.register), np.asarray(bank.y)
    kind = model_selection.StratifiedKFold if job.model.loss.classifies else model_selection.KFold
    splits = list(kind(folds, shuffle=True, random_state=3).split(schedule.train[:, None], y[schedule.train]))
    assert len(validation.alternatives) == 2
    for item, alternative in zip(
        validation.alternatives, alternative_jobs(job, grid, alone=True).values(), strict=True
    ):
        scores = []
        for train, test in splits:
            fold_rows = schedule.train[test]
            local = fit_local(alternative, bank, schedule.with_training_rows(schedule.train[train]))
            loss = job.model.loss.value(local.outputs(fold_rows), job.model.loss.targets(y[fold_rows], local.classes))
            scores.append(-float(loss.mean()))
        assert item.score == pytest.approx(statistics.mean(scores))
        assert item.std_error == pytest.approx(statistics.stdev(scores) / folds**0.5)


@cache
def best_score_of_zero_and_one(scoring: str) -> float:
    job = vfl.Job(model="logistic", positive="1")
    return vfl.cross_validate(job, {"l2": (0.01, 1.0)}, tables(400)[0], folds=2, scoring=scoring).best.score


@pytest.mark.parametrize("scoring", ["roc_auc", "average_precision", "f1", "recall", "accuracy", "neg_log_loss"])
@pytest.mark.parametrize("names", [("no", "yes"), ("on time", "late"), (1, 2), (2, 1)], ids=str)
def test_scores_do_not_depend_on_the_names_of_classes(names: tuple[Any, Any], scoring: str) -> None:
    bank, job = tables(400)[0], vfl.Job(model="logistic", positive=str(names[1]))
    renamed = vfl.Party("bank", bank.X, np.where(np.asarray(bank.y) == 1, names[1], names[0]), ids=range(400))
    score = vfl.cross_validate(job, {"l2": (0.01, 1.0)}, renamed, folds=2, scoring=scoring).best.score
    assert score == pytest.approx(best_score_of_zero_and_one(scoring))
    assert scoring == "neg_log_loss" or score > 0.5


def test_columns_numbers_and_trees_are_cross_validated() -> None:
    bank = tables(800)[0]
    dropped = vfl.cross_validate(LOGISTIC, {"drop": ("none", "x0")}, bank, scoring="roc_auc")
    assert dropped.best.name == "drop = none"
    trees = vfl.cross_validate(vfl.Job(model=vfl.Trees()), {"depth": (1, 2)}, bank, folds=2)
    assert len(trees.alternatives) == 2
    numbers = vfl.datasets.diabetes()[0]
    assert vfl.cross_validate(vfl.Job(model=vfl.Square()), {"l2": (0.1, 10.0)}, numbers, scoring="r2").best.score > 0.2


def test_cross_validation_refuses_what_it_cannot_do() -> None:
    bank, shop = tables(400)
    with raises_code(PartiesError, "SVFL-PARTIES-LABELS"):
        vfl.cross_validate(LOGISTIC, {"l2": (0.1, 1)}, shop)
    for options in ({"folds": 1}, {"folds": 10_000}, {"scoring": "max_error_of_nothing"}):
        with raises_code(ConfigError, "SVFL-COMMAND-USAGE"):
            vfl.cross_validate(LOGISTIC, {"l2": (0.1, 1)}, bank, **options)
    with raises_code(ConfigError, "SVFL-COMMAND-USAGE"):
        vfl.cross_validate(LOGISTIC, {"drop": ("none", "income")}, bank)


def test_a_diverging_alternative_is_reported_and_not_chosen() -> None:
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedSGD(lr=0.1),
        batch_size="all",
        epochs=20,
        evaluate_every=0,
        test_fraction=0.25,
        seed=2,
    )
    tuning = vfl.tune(job, {"lr": (1e4, 0.1)}, tables(1600))
    assert [item.diverged for item in tuning.alternatives] == [True, False]
    assert tuning.chosen == "lr = 0.1"
    assert [item["diverged"] for item in tuning.plain()["alternatives"]] == [True, False]
    with raises_code(DivergenceError, "SVFL-TRAINING-DIVERGED"):
        vfl.tune(job, {"lr": (1e4, 1e5)}, tables(1600))

"""Printed metrics: weighted if rows have weights, with standard errors, or reported as missing."""

from __future__ import annotations

import warnings
from io import StringIO
from typing import Any

import numpy as np
import pytest
from builders import raises_code
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

import securevfl as vfl
from securevfl.cli.run_output import print_metrics
from securevfl.cli.show import console
from securevfl.display import html
from securevfl.errors import DataNotice, TableError
from securevfl.training.metric_words import label_of

N = 400
DRAW = np.random.default_rng(6)
OWN, OTHER = DRAW.normal(size=(N, 2)), DRAW.normal(size=(N, 2))
Y = (OWN[:, 0] + OTHER[:, 0] + DRAW.normal(size=N) > 0).astype(int)
COUNTS = np.where(OWN[:, 1] > 0, 3.0, 0.5)
SEALED = ["columns", "rank", "label_auc", "fresh_equations", "small_metrics"]
OPEN: dict[str, Any] = {"protocol": "open", "accepts": SEALED, "epochs": 3, "optimizer": vfl.FedSGD(lr=0.3)}
SHARES_KEYS: dict[str, Any] = {"epochs": 11, "accepts": SEALED[-1:]}


def trained(rows: int, counts: Any, **keys: Any) -> tuple[vfl.Run, list[str]]:
    """Return a run and its notices."""
    bank_columns = np.column_stack([OWN[:rows], counts[:rows]])
    bank = vfl.Party("bank", bank_columns, Y[:rows], columns=["a", "b", "count"], ids=range(rows))
    job = vfl.Job(model="logistic", test_fraction=0.25, weights={"column": "count", "max_weight": 8.0}, **keys)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = vfl.simulate(job, [bank, vfl.Party("shop", OTHER[:rows], ids=range(rows))])
    return run, [str(warning.message) for warning in caught if warning.category is DataNotice]


def printed(run: vfl.Run) -> str:
    """Return what a command prints about the metrics of a run, with single blanks."""
    out: Any = console()
    out.file = StringIO()
    print_metrics(out, run.active, None)
    return " ".join(out.file.getvalue().split())


def test_a_weighted_run_weights_rows_in_its_metrics() -> None:
    run, _ = trained(N, COUNTS, **OPEN)
    schedule = run.job.schedule(vfl.Party("bank", OWN, Y, ids=range(N)).register)
    rows = schedule.test
    tables = {"bank": np.column_stack([OWN, COUNTS])[rows], "shop": OTHER[rows]}
    proba = run.predict_proba({"bank": tables["bank"][:, :2], "shop": tables["shop"]})[:, 1]
    assert run.metrics["auc"] == pytest.approx(roc_auc_score(Y[rows], proba, sample_weight=COUNTS[rows]))
    assert run.metrics["log_loss"] == pytest.approx(log_loss(Y[rows], proba, sample_weight=COUNTS[rows]))
    again = run.evaluate({"bank": tables["bank"][:, :2], "shop": tables["shop"]}, Y[rows], COUNTS[rows])
    assert again == pytest.approx(run.metrics)
    assert run.evaluated_on == "held-out rows, counted by count"
    assert "held-out rows, counted by count" in run._repr_html_()


def test_on_shares_it_is_said_that_rows_count_alike() -> None:
    run, notices = trained(N, COUNTS, **SHARES_KEYS)
    assert run.evaluated_on == "held-out rows, each counted once"
    assert any("metrics count every row equally" in notice for notice in notices)


@pytest.mark.parametrize("keys", [OPEN, SHARES_KEYS], ids=["open", "shares"])
def test_metrics_have_their_standard_errors_beside_them(keys: dict[str, Any], tmp_path: Any) -> None:
    run, _ = trained(N, np.linspace(1, 2, N), **keys)
    assert set(run.metric_std_errors) == set(run.metrics)
    assert 0.02 < run.metric_std_errors["auc"] < 0.08  # the standard error for 100 rows
    assert f"AUC {html.with_error(run.metrics['auc'], run.metric_std_errors['auc'])}" in printed(run)
    assert html.with_error(run.metrics["auc"], run.metric_std_errors["auc"]) in run._repr_html_()
    run.save(tmp_path)
    assert vfl.Run.load(tmp_path).metric_std_errors == run.metric_std_errors


@pytest.mark.parametrize(("rows", "held_out", "share"), [(6000, 0.5, 0.01), (600, 0.25, 0.5)])
def test_metrics_of_levels_are_within_their_printed_spread(
    rows: int, held_out: float, share: float, tmp_path: Any
) -> None:
    """The log, the report and the notebook print a standard error next to each figure.

    At 1 % positives and 150 rows it is well above the error of levels.
    """
    draw = np.random.default_rng(8)
    X, other = draw.normal(size=(rows, 2)), draw.normal(size=(rows, 2))
    f = X[:, 0] + other[:, 0] + draw.normal(size=rows)
    y = (f >= np.quantile(f, 1 - share)).astype(int)
    bank, shop = vfl.Party("bank", X, y, ids=range(rows)), vfl.Party("shop", other, ids=range(rows))
    job = vfl.Job(model="logistic", test_fraction=held_out, accepts=SEALED[-1:], evaluate_every=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        run = vfl.simulate(job, [bank, shop])
    assert run.active.held_out == rows * held_out
    test = job.schedule(bank.register).test
    scores = run.decision({"bank": X[test], "shop": other[test]})[:, 0]
    for name, right in (("auc", roc_auc_score(y[test], scores)), ("pr_auc", average_precision_score(y[test], scores))):
        assert abs(run.metrics[name] - right) < run.metric_std_errors[name]
    run.report(tmp_path / "run.html")
    page, cell = (tmp_path / "run.html").read_text(), run._repr_html_()
    text = printed(run)
    for name in ("auc", "pr_auc", "log_loss", "ks"):
        value, error = run.metrics[name], run.metric_std_errors[name]
        assert f"{label_of(name)} {html.with_error(value, error)}" in text
        assert f">{html.with_error(value, error)}</td>" in page
        assert f">{html.with_error(value, error)}</td>" in cell


def test_metrics_of_too_few_rows_are_said_to_be_missing() -> None:
    run, notices = trained(60, COUNTS, **SHARES_KEYS)
    assert run.metrics == {}
    assert any("metrics need at least 20 rows and there are 15" in notice for notice in notices)
    assert printed(run).startswith("No metrics, because there are too few rows.")


def test_rows_of_no_weight_give_no_metrics() -> None:
    register = vfl.Party("bank", OWN, Y, ids=range(N)).register
    counts = np.ones(N)
    counts[vfl.Job(model="logistic", test_fraction=0.25, **OPEN).schedule(register).test] = 0
    with raises_code(TableError, "SVFL-TABLE-WEIGHTS"):
        trained(N, counts, **OPEN)

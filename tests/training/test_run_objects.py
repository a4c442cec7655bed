"""Runs and model parts can be pickled, show their metrics first, and refuse objects that are not parties."""

from __future__ import annotations

import copy
import io
import pickle
import shutil
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from builders import raises_code

import securevfl as vfl
from securevfl import errors
from securevfl.data.columns import columns_of
from securevfl.data.load import read_parties
from securevfl.display import html
from securevfl.display.printable import printable

CANCER = vfl.datasets.breast_cancer()
JOB = vfl.Job(
    model=vfl.Logistic(l2=0.01),
    protocol="open",
    batch_size="all",
    epochs=1,
    accepts=["columns", "rank"],
    test_fraction=0.3,
)


@pytest.fixture(scope="module")
def run() -> vfl.Run:
    return vfl.simulate(JOB, CANCER)


def through_joblib(value: Any) -> Any:
    file = io.BytesIO()
    joblib.dump(value, file)
    file.seek(0)
    return joblib.load(file)


@pytest.mark.parametrize("store", [lambda value: pickle.loads(pickle.dumps(value)), copy.deepcopy, through_joblib])
def test_runs_and_parts_are_stored_and_copied(run: vfl.Run, store: Any) -> None:
    tables = {party.name: party.X for party in CANCER}
    again = store(run)
    np.testing.assert_array_equal(again.predict_proba(tables), run.predict_proba(tables))
    assert (again.metrics, again.costs.row()) == (run.metrics, run.costs.row())
    part = store(run.parts["bank"])
    np.testing.assert_array_equal(part.table(tables["bank"]), run.parts["bank"].table(tables["bank"]))
    part.counters.add_message(0, "more", 1)  # counters still work


def test_a_run_is_shown_by_its_metrics(run: vfl.Run) -> None:
    assert repr(run).startswith("Run(auc 0.") or repr(run).startswith(f"Run({next(iter(run.metrics))} ")
    assert len(repr(run)) < 400
    assert "on the held-out rows; bank, shop" in repr(run)


def test_what_is_no_party_is_named() -> None:
    table = columns_of("shop", {"a": [1.0, 2.0]})
    for call in (lambda: vfl.describe(table), lambda: vfl.simulate(JOB, [table, table]), lambda: vfl.describe([[1]])):  # type: ignore[arg-type,list-item]
        with raises_code(errors.PartiesError, "SVFL-PARTIES-ROLE") as caught:
            call()
        assert "vfl.Party(" in str(caught.value)
    with raises_code(errors.PartiesError, "SVFL-PARTIES-ROLE"):
        vfl.align([table, table])  # type: ignore[list-item]
    for call in (vfl.align, lambda party: vfl.simulate(JOB, party), lambda party: vfl.explain(JOB, party)):
        with raises_code(errors.PartiesError, "SVFL-PARTIES-COUNT"):
            call(CANCER[0])  # type: ignore[arg-type]


LABELS = {"amount": "${}.00", "percent of text": "{} of 9", "class": "a{}"}


@pytest.mark.parametrize("model", ["square", "poisson", "gamma"])
@pytest.mark.parametrize("form", LABELS)
def test_labels_that_are_texts_are_refused_without_a_value(model: str, form: str, tmp_path: Path) -> None:
    generator, n = np.random.default_rng(0), 60
    lines = [f"k{k},{LABELS[form].format(236285 + k)},{generator.normal()}" for k in range(n)]
    (tmp_path / "bank.csv").write_text("\n".join(["id,y,b", *lines]))
    (tmp_path / "shop.csv").write_text("\n".join(["id,s", *(f"k{k},{generator.normal()}" for k in range(n))]))
    parties, _ = read_parties({name: tmp_path / f"{name}.csv" for name in ("bank", "shop")})
    with pytest.raises(errors.LabelError) as caught:
        vfl.simulate(vfl.Job(model=model), parties)
    assert "2362" not in str(caught.value)


def test_labels_with_separators_are_numbers(tmp_path: Path) -> None:
    lines = [f'k{k},"1,23{k % 10},5{k % 7}0.50",{k}' for k in range(40)]
    (tmp_path / "bank.csv").write_text("\n".join(["id,y,b", *lines]))
    (tmp_path / "shop.csv").write_text("\n".join(["id,s", *(f"k{k},{k * k}" for k in range(40))]))
    (bank, _), _ = read_parties({name: tmp_path / f"{name}.csv" for name in ("bank", "shop")})
    assert bank.labels[:2].tolist() == [1_230_500.5, 1_231_510.5]


def test_a_missing_label_column_names_the_flag_and_the_columns(tmp_path: Path) -> None:
    for name, head in (("bank", "id,target,b0"), ("shop", "id,s0,s1")):
        (tmp_path / f"{name}.csv").write_text(f"{head}\n1,0,2.5\n2,1,3.5\n")
    with raises_code(errors.PartiesError, "SVFL-PARTIES-LABELS") as caught:
        read_parties({name: tmp_path / f"{name}.csv" for name in ("bank", "shop")})
    assert "--label" in str(caught.value)
    assert "bank: target, b0" in str(caught.value)


ODD = "\x1b[31mred\x1b[0m\x07", "\U0001f600 \u202eevil", "spent\n(EUR)", "\u0627\u0644\u0633\u0646"


def test_names_control_no_terminal_and_no_page(tmp_path: Path) -> None:
    (tmp_path / "shop.csv").write_text("id," + ",".join(f'"{name}"' for name in ODD) + "\n1,2,3,4,5\n2,3,4,5,7\n")
    from securevfl.data.readers import read_party

    for party in (
        read_party("shop", tmp_path / "shop.csv"),
        vfl.Party("shop", {name: [1.0 + j, 2] for j, name in enumerate(ODD[::2])} | {ODD[1]: [4, 5]}, ids=[1, 2]),
    ):
        shown = "".join(party.columns) + vfl.describe(party).page() + repr(party.columns)
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    assert "spent (EUR)" in party.columns
    assert party.columns[0] == "\\x1b[31mred\\x1b[0m\\x07"
    assert html.escape("a\u202eb<") == "a\\u202eb&lt;"
    assert printable(ODD[3]) == ODD[3]


@pytest.mark.parametrize("protocol", ["open", "shares"])
def test_parts_of_different_trainings_are_refused(protocol: str, tmp_path: Path) -> None:
    """As after an interrupted `save`, or a copy of one newer file."""
    for folder in ("first", "second"):
        job = vfl.Job(model="logistic", protocol=protocol, epochs=8, seed=len(folder), accepts=["columns", "rank"])
        vfl.simulate(job, CANCER).save(tmp_path / folder)
    for name in ("bank", "shop"):
        mixed = tmp_path / f"newer {name}"
        shutil.copytree(tmp_path / "first", mixed)
        shutil.copy(tmp_path / "second" / f"{name}.json", mixed)
        with raises_code(errors.PartiesError, "SVFL-MODEL-MISMATCH", path=str(mixed)) as caught:
            vfl.Run.load(mixed)
        assert "different trainings" in str(caught.value)


def test_files_of_other_runs_are_named(run: vfl.Run, tmp_path: Path) -> None:
    vfl.simulate(JOB, vfl.datasets.breast_cancer(3)).save(tmp_path)
    run.save(tmp_path)
    with raises_code(errors.PartiesError, "SVFL-MODEL-MISMATCH") as caught:
        vfl.Run.load(tmp_path)
    assert "Remove telco.json" in str(caught.value)
    (tmp_path / "telco.json").unlink()
    assert list(vfl.Run.load(tmp_path).parts) == ["bank", "shop"]
    (tmp_path / "shop.json").unlink()
    with raises_code(errors.PartiesError, "SVFL-MODEL-MISMATCH") as caught:
        vfl.Run.load(tmp_path)
    assert "present: bank" in str(caught.value)


ROWS = len(CANCER[0].X)
UNUSABLE_WEIGHTS: dict[str, tuple[Any, str]] = {
    "negative": (np.where(np.arange(ROWS) % 5, 1.0, -1.0), "SVFL-TABLE-WEIGHTS"),
    "all negative": (np.full(ROWS, -1.0), "SVFL-TABLE-WEIGHTS"),
    "missing": (np.where(np.arange(ROWS) == 3, np.nan, 1.0), "SVFL-TABLE-WEIGHTS"),
    "infinite": (np.where(np.arange(ROWS) == 3, np.inf, 1.0), "SVFL-TABLE-WEIGHTS"),
    "zeros": (np.zeros(ROWS), "SVFL-TABLE-WEIGHTS"),
    "texts": (["heavy"] * ROWS, "SVFL-TABLE-WEIGHTS"),
    "too few": (np.ones(ROWS - 1), "SVFL-TABLE-SHAPE"),
    "a table": (np.ones((ROWS, 2)), "SVFL-TABLE-SHAPE"),
}


@pytest.mark.parametrize("name", UNUSABLE_WEIGHTS)
def test_weights_that_are_none_are_refused(name: str, run: vfl.Run) -> None:
    weights, code = UNUSABLE_WEIGHTS[name]
    with raises_code(errors.TableError, code) as caught:
        run.evaluate({party.name: party.X for party in CANCER}, CANCER[0].y, weights=weights)  # type: ignore[arg-type]
    assert "weights" in str(caught.value)


def test_weights_of_an_evaluation_count_rows(run: vfl.Run) -> None:
    tables, y = {party.name: party.X for party in CANCER}, np.asarray(CANCER[0].y)
    twice = np.repeat(np.arange(ROWS), np.arange(ROWS) % 3)
    weighted = run.evaluate(tables, y, weights=np.arange(ROWS) % 3)
    repeated = run.evaluate({name: X[twice] for name, X in tables.items()}, y[twice])
    assert weighted == pytest.approx(repeated)

"""Runs and model parts can be pickled, show their metrics first, and refuse objects that are not parties."""

from __future__ import annotations

import copy
import io
import pickle
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

"""Predictions between parties equal those of a run in one process; model parts or rows that do not fit are refused."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger, total_to
from securevfl.disclosure.limits import Limit
from securevfl.errors import (
    ConfigError,
    IdError,
    LeakageError,
    PartiesError,
    TableError,
    TransportError,
)
from securevfl.families import FAMILIES
from securevfl.organisations.predict import answer_rows, predict_with
from securevfl.runtime.clock import WallClock
from securevfl.runtime.party_threads import run_threads
from securevfl.training import new_rows
from securevfl.training.model_part import ModelPart
from tests.builders import raises_code
from tests.transport.processes import each


def asked(meeting: Any, run: vfl.Run, tables: dict[str, Any], **options: Any) -> dict[str, Any]:
    row_ids = options.pop("ids", {})
    return each(
        meeting,
        lambda name: predict_with(
            run.parts[name],
            tables[name],
            meeting.kit(name) / "peers.toml",
            ids=row_ids.get(name),
            timeout=20,
            patience=5,
        ),
    )


@pytest.fixture(scope="module")
def run() -> vfl.Run:
    job = vfl.Job(
        model=vfl.Logistic(l2=1e-3),
        optimizer=vfl.FedBCD(lr=0.3),
        protocol=vfl.Protocol(sum="pairwise", residual="open"),
        batch_size=200,
        epochs=2,
    )
    return vfl.simulate(job, vfl.datasets.breast_cancer(3))


@pytest.fixture
def first_rows() -> dict[str, Any]:
    return {party.name: party.X[:30] for party in vfl.datasets.breast_cancer(3)}


def test_many_rows_and_one(meet: Any, run: vfl.Run, first_rows: dict[str, Any]) -> None:
    meeting = meet(3)
    results = asked(meeting, run, first_rows)
    np.testing.assert_allclose(results["bank"].proba, run.predict_proba(first_rows), rtol=0, atol=1e-9)
    np.testing.assert_array_equal(results["bank"].label, run.predict(first_rows))
    assert results["shop"] is None
    one = asked(meeting, run, {name: table[4] for name, table in first_rows.items()})
    # BLAS rounds differently for other shapes
    np.testing.assert_allclose(one["bank"].proba[0], results["bank"].proba[4], rtol=0, atol=1e-9)


@pytest.mark.parametrize("block", [16_384, 7])
def test_a_kernel_model(meet: Any, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_rows, "SCORED_ROWS_PER_BLOCK", block)
    parties = vfl.datasets.breast_cancer(3)
    job = vfl.Job(
        model=vfl.Kernel(gamma=0.05, blocks=2, block_size=16),
        optimizer=vfl.FDSKL(),
        protocol=vfl.Protocol(sum="tree"),
        batch_size=200,
        epochs=2,
    )
    run = vfl.simulate(job, parties)
    tables = {party.name: party.X[:30] for party in parties}
    results = asked(meet(3, "bank"), run, tables)
    rounding = 2e-6 if block < 30 else 1e-9  # float32 sums of f depend on the order of the rows
    np.testing.assert_allclose(results["bank"].proba, run.predict_proba(tables), rtol=0, atol=rounding)


@pytest.mark.parametrize("block", [7, 15])
def test_blocks_of_rows(
    meet: Any, run: vfl.Run, first_rows: dict[str, Any], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_rows, "SCORED_ROWS_PER_BLOCK", block)
    ids = {name: np.arange(30) for name in first_rows}
    predicted = asked(meet(3), run, first_rows, ids=ids)["bank"]
    np.testing.assert_allclose(predicted.proba, run.predict_proba(first_rows), rtol=0, atol=1e-9)
    np.testing.assert_array_equal(predicted.label, run.predict(first_rows))
    assert predicted.decision.shape == (30, 1)


def test_parts_of_another_training(meet: Any, run: vfl.Run, first_rows: dict[str, Any]) -> None:
    other = vfl.simulate(run.job, vfl.datasets.breast_cancer(3))
    mixed = vfl.Run(run.job, run.parts | {"shop": other.parts["shop"]})
    at_home = asked(meet(3), mixed, first_rows).values()
    assert all(isinstance(error, ConfigError | TransportError) for error in at_home)
    assert any("parts of different trainings" in str(error) for error in at_home)


def test_rows_that_do_not_fit(meet: Any, run: vfl.Run, first_rows: dict[str, Any]) -> None:
    meeting = meet(3)
    shorter = asked(meeting, run, first_rows | {"telco": first_rows["telco"][:29]}).values()
    assert all(isinstance(error, TableError | TransportError) for error in shorter)
    assert any("29" in str(error) for error in shorter)
    ids = {name: np.arange(30) for name in first_rows} | {"telco": np.arange(30)[::-1]}
    turned = asked(meeting, run, first_rows, ids=ids).values()
    assert all(isinstance(error, IdError | TransportError) for error in turned)
    assert any("different order" in str(error) for error in turned)
    ids["telco"] = np.array([str(k) for k in range(30)])
    assert len(asked(meeting, run, first_rows, ids=ids)["bank"].label) == 30


def test_who_does_not_belong(meet: Any, run: vfl.Run, first_rows: dict[str, Any]) -> None:
    with raises_code(PartiesError, "SVFL-PEERS-FILE"):
        predict_with(run.parts["bank"], first_rows["bank"], meet(2).peers)
    with raises_code(TableError, "SVFL-TABLE-COLUMNS", party="bank", columns=10):
        predict_with(run.parts["bank"], first_rows["bank"][:, :3], meet(3).peers)


def told(folder: Path, parts: dict[str, ModelPart], X: dict[str, np.ndarray], ids: np.ndarray) -> int:
    """Request these rows in a new session, with ledgers read again; return the scores in the shop's ledger."""
    ledgers = {name: DisclosureLedger(folder / name, name) for name in parts}

    def answer(name: str, channel: Any) -> None:
        rows = new_rows.rows_of_array(parts[name], X[name], ids)
        answer_rows(parts[name], rows, channel, ledgers[name], on_block=lambda *_: None)

    run_threads({name: partial(answer, name) for name in parts}, WallClock)
    return total_to(ledgers["shop"].read().entries, "scores", "bank").count


def test_the_same_rows_again_count_once_where_they_tell_the_same(tmp_path: Path) -> None:
    """Scores count in every session, up to the limit; other columns, rows or orders of the
    requesting party add nothing.
    """
    job = vfl.Job(
        model=vfl.Logistic(), optimizer=vfl.FedBCD(lr=0.3), protocol=vfl.Protocol(sum="pairwise", residual="open")
    )
    parties = vfl.datasets.breast_cancer(3)
    parts = vfl.simulate(job.model_copy(update={"epochs": 1}), parties).parts
    X, ids = {party.name: np.array(party.X[:20]) for party in parties}, np.arange(20)
    assert told(tmp_path, parts, X, ids) == 20
    DisclosureLedger(tmp_path / "shop", "shop").set_limit("scores", Limit(20))
    assert told(tmp_path, parts, X, ids) == 20
    assert told(tmp_path, parts, X | {"bank": X["bank"] + 1}, ids) == 20  # the shop discloses the same values
    X["shop"][3, 0] += 1e-9
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party="shop"):
        told(tmp_path, parts, X, ids)
    DisclosureLedger(tmp_path / "shop", "shop").set_limit("scores", None)
    assert told(tmp_path, parts, X, ids) == 40
    assert told(tmp_path, parts, {name: columns[::-1] for name, columns in X.items()}, ids[::-1]) == 60
    assert {name for name, kind in FAMILIES.items() if kind.repeatable_scores} == {"rounds"}
    assert {name for name, kind in FAMILIES.items() if kind.admits_rows_itself} == {"shares"}

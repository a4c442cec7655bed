"""Weights of evidence in a training equal those of the pooled table: for every residual, resumed, and on new rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import raises_code

import securevfl as vfl
from securevfl.data.store import store_table
from securevfl.errors import DataError, LabelError, ProtocolError, TableError
from securevfl.families.table_preparation import with_prepared_tables
from securevfl.protocols import bin_classes
from securevfl.protocols.residuals.open_residual import OpenActive
from securevfl.protocols.residuals.sealed_residual import ResidualCiphertext
from securevfl.runtime.observer import Event
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.model_part import ModelPart
from tests.small_keys import SMALL

CANCER_PARTIES = vfl.datasets.breast_cancer(3)
CANCER_COLUMNS = {party.name: party.X for party in CANCER_PARTIES}


def woe_job(residual: Any = "open", **keys: Any) -> vfl.Job:
    defaults: dict[str, Any] = {"model": vfl.Logistic(l2=1e-3), "optimizer": vfl.FedBCD(lr=0.3), "batch_size": 128}
    defaults |= {"protocol": vfl.Protocol(residual=residual), "epochs": 2, "test_fraction": 0.2, "accepts": ["columns"]}
    return vfl.Job(**defaults | {"prepare": {"woe": {"bins": 2, "rows": 60}}} | keys)


@pytest.mark.exact_outputs
@pytest.mark.parametrize("residual", ["open", vfl.Ckks(), SMALL], ids=["open", "ckks", "paillier"])
def test_it_is_that_of_the_pooled_table(residual: Any) -> None:
    run = vfl.simulate(woe_job(residual), CANCER_PARTIES)
    plain, pooled = with_prepared_tables(woe_job(), CANCER_PARTIES)
    for party in pooled:
        np.testing.assert_array_equal(run.parts[party.name].table(CANCER_COLUMNS[party.name]), party.X)
        assert run.parts[party.name].information.keys() == set(party.columns)
    expected = vfl.simulate(plain, pooled)
    assert run.metrics["auc"] == pytest.approx(expected.metrics["auc"], abs=1e-3)
    rows = {name: X[:7] for name, X in CANCER_COLUMNS.items()}
    np.testing.assert_allclose(
        run.predict_proba(rows), expected.predict_proba({party.name: party.X[:7] for party in pooled}), atol=1e-3
    )


def test_a_part_that_was_saved_weighs_new_rows_as_it_did(tmp_path: Path) -> None:
    run = vfl.simulate(woe_job(), CANCER_PARTIES)
    run.save(tmp_path)
    again = vfl.Run.load(tmp_path)
    np.testing.assert_array_equal(again.decision(CANCER_COLUMNS), run.decision(CANCER_COLUMNS))
    part = ModelPart.load(tmp_path / "shop.json")
    assert part.information == run.parts["shop"].information
    assert part.features == list(CANCER_PARTIES[1].columns)


@pytest.mark.exact_outputs
def test_a_training_that_goes_on_asks_for_no_class_again(tmp_path: Path) -> None:
    recorded: list[list[Event]] = [[], []]

    def cut(done: int, of: int) -> None:
        if done == 3:
            raise RuntimeError("cut")

    states = {party.name: Checkpoints(tmp_path / party.name, party.name, every=1) for party in CANCER_PARTIES}
    with pytest.raises(RuntimeError, match="cut"):
        vfl.simulate(woe_job(vfl.Ckks()), CANCER_PARTIES, checkpoints=states, on_round=cut, observe=recorded[0].append)
    run = vfl.simulate(woe_job(vfl.Ckks()), CANCER_PARTIES, checkpoints=states, observe=recorded[1].append)
    subchannels = [
        {event.subchannel for event in events if isinstance(event.message, ResidualCiphertext)} for events in recorded
    ]
    assert f"{bin_classes.EVIDENCE_SUBCHANNEL}/residual" in subchannels[0]
    assert subchannels[1] == {"/residual"}
    undisturbed = vfl.simulate(woe_job(vfl.Ckks()), CANCER_PARTIES)
    for name, part in run.parts.items():
        assert part.preparation == undisturbed.parts[name].preparation
        np.testing.assert_allclose(part.theta, undisturbed.parts[name].theta, atol=1e-3)


def test_class_weights_and_gaps_go_with_it() -> None:
    bank, shop, telco = CANCER_PARTIES
    X = shop.X.copy()
    X[::5, 0] = np.nan
    gaps = vfl.Party("shop", X, ids=shop.ids)
    run = vfl.simulate(woe_job(weights={"classes": "balanced"}), [bank, gaps, telco])
    assert run.metrics["auc"] > 0.95
    assert run.parts["shop"].table(X[:5]).shape == (5, 10)
    with raises_code(TableError, "SVFL-TABLE-MISSING-VALUES"):
        run.parts["telco"].table(np.full((2, 10), np.nan))


def test_labels_of_three_classes_are_refused_in_words() -> None:
    bank, *others = CANCER_PARTIES
    three = vfl.Party("bank", bank.X, np.arange(len(bank)) % 3, ids=bank.ids)
    with raises_code(LabelError, "SVFL-LABEL-CLASSES"):
        vfl.simulate(woe_job(), [three, *others])


def test_rows_of_one_class_are_refused_before_any_count() -> None:
    bank, *others = CANCER_PARTIES
    y = np.zeros(len(bank), int)
    y[woe_job().schedule(bank.register).test] = 1
    seen: list[Event] = []
    with raises_code(LabelError, "SVFL-LABEL-SPLIT"):
        vfl.simulate(woe_job(vfl.Ckks()), [vfl.Party("bank", bank.X, y, ids=bank.ids), *others], observe=seen.append)
    assert not [event for event in seen if isinstance(event.message, ResidualCiphertext)]


def test_a_table_on_disk_is_refused_with_the_way_out(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    bank, shop, _ = CANCER_PARTIES
    table = pa.table({"id": bank.ids} | dict(zip(shop.columns, shop.X.T, strict=True)))
    parquet.write_table(table, tmp_path / "shop.parquet")
    stored = store_table("shop", tmp_path / "shop.parquet", tmp_path / "shop.rows", job=woe_job())
    with raises_code(DataError, "SVFL-TABLE-ON-DISK"):
        vfl.simulate(woe_job(), [bank, stored])


def test_what_is_no_count_of_rows_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = OpenActive.publish
    monkeypatch.setattr(OpenActive, "publish", lambda self, g, **to: publish(self, 0.9 * g, **to))
    with raises_code(ProtocolError, "SVFL-PROTOCOL-VALUES"):
        vfl.simulate(woe_job(), CANCER_PARTIES)

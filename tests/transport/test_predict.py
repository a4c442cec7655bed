"""Prediction between parties: what the run in one process says, and clear words where parts or rows do not fit."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.errors import ConfigError, IdError, PartiesError, SecureVFLError, TableError, TransportError
from securevfl.organisations.predict import predict_with
from securevfl.training import new_rows


def each(meeting: Any, ask: Callable[[str], Any]) -> dict[str, Any]:
    """What `ask` returns or raises at every party, all at the same time."""
    results: dict[str, Any] = {}

    def play(name: str) -> None:
        try:
            results[name] = ask(name)
        except SecureVFLError as error:
            results[name] = error

    roles = [threading.Thread(target=play, args=(name,)) for name in meeting.peers.parties]
    for role in roles:
        role.start()
    for role in roles:
        role.join(240)
        assert not role.is_alive()
    return results


def asked(meeting: Any, run: vfl.Run, tables: dict[str, Any], **options: Any) -> dict[str, Any]:
    own = options.pop("ids", {})
    return each(
        meeting,
        lambda name: predict_with(
            run.parts[name], tables[name], meeting.kit(name) / "peers.toml", ids=own.get(name), timeout=20, patience=5
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
def tables() -> dict[str, Any]:
    return {party.name: party.X[:30] for party in vfl.datasets.breast_cancer(3)}


def test_many_rows_and_one(meet: Any, run: vfl.Run, tables: dict[str, Any]) -> None:
    meeting = meet(3)
    results = asked(meeting, run, tables)
    np.testing.assert_allclose(results["bank"].proba, run.predict_proba(tables), rtol=0, atol=1e-9)
    np.testing.assert_array_equal(results["bank"].label, run.predict(tables))
    assert results["shop"] is None
    one = asked(meeting, run, {name: table[4] for name, table in tables.items()})
    np.testing.assert_allclose(one["bank"].proba[0], results["bank"].proba[4], rtol=0, atol=1e-9)  # BLAS by shape


@pytest.mark.parametrize("block", [16_384, 7])
def test_a_kernel_model(meet: Any, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_rows, "BLOCK", block)
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
    rounding = 2e-6 if block < 30 else 1e-9  # f is added up in float32, in an order that goes by the rows at hand
    np.testing.assert_allclose(results["bank"].proba, run.predict_proba(tables), rtol=0, atol=rounding)


@pytest.mark.parametrize("block", [7, 15])
def test_blocks_of_rows(
    meet: Any, run: vfl.Run, tables: dict[str, Any], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_rows, "BLOCK", block)
    ids = {name: np.arange(30) for name in tables}
    found = asked(meet(3), run, tables, ids=ids)["bank"]
    np.testing.assert_allclose(found.proba, run.predict_proba(tables), rtol=0, atol=1e-9)
    np.testing.assert_array_equal(found.label, run.predict(tables))
    assert found.decision.shape == (30, 1)


def test_parts_of_another_training(meet: Any, run: vfl.Run, tables: dict[str, Any]) -> None:
    other = vfl.simulate(run.job, vfl.datasets.breast_cancer(3))
    mixed = vfl.Run(run.job, run.parts | {"shop": other.parts["shop"]})
    for error in asked(meet(3), mixed, tables).values():
        assert isinstance(error, ConfigError | TransportError)
        assert "parts of different trainings" in str(error)


def test_rows_that_do_not_fit(meet: Any, run: vfl.Run, tables: dict[str, Any]) -> None:
    meeting = meet(3)
    for error in asked(meeting, run, tables | {"telco": tables["telco"][:29]}).values():
        assert isinstance(error, TableError | TransportError)
        assert "29" in str(error)
    ids = {name: np.arange(30) for name in tables} | {"telco": np.arange(30)[::-1]}
    for error in asked(meeting, run, tables, ids=ids).values():
        assert isinstance(error, IdError | TransportError)
        assert "different order" in str(error)
    ids["telco"] = np.array([str(k) for k in range(30)])
    assert len(asked(meeting, run, tables, ids=ids)["bank"].label) == 30


def test_who_does_not_belong(meet: Any, run: vfl.Run, tables: dict[str, Any]) -> None:
    with pytest.raises(PartiesError, match="bank, shop, telco was expected"):
        predict_with(run.parts["bank"], tables["bank"], meet(2).peers)
    with pytest.raises(TableError, match="rows of 10 columns were expected"):
        predict_with(run.parts["bank"], tables["bank"][:, :3], meet(3).peers)

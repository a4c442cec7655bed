"""A gateway takes an application's own values and ids: texts, dates and units, and ids that are composed of columns."""

from __future__ import annotations

import csv
import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builders import raises_code

import securevfl as vfl
from securevfl.cli.prediction_output import predict_files, write_predictions
from securevfl.crypto.identifiers import canonical_id
from securevfl.data.column_types import read_types
from securevfl.data.load import read_parties
from securevfl.data.read_options import ReadOptions
from securevfl.errors import IdError, TableError
from securevfl.organisations import gateway
from securevfl.organisations.gateway import Gateway
from securevfl.organisations.gateway_rows import RequestedRow
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.prediction import prediction_of
from securevfl.training.new_rows import IndexedRows, rows_of_file
from securevfl.transport.peers import Peers

N = 2000
GENERATOR = np.random.default_rng(4)
GRADES, RATES = GENERATOR.integers(0, 5, N), GENERATOR.integers(0, 400, N) / 4
SINCE = [datetime.date(2020, 1, 1) + datetime.timedelta(days=int(day)) for day in GENERATOR.integers(0, 900, N)]
TOWNS = GENERATOR.choice(["Bonn", "Jena", "Ulm"], N)
Y = (GRADES + GENERATOR.normal(size=N) > 2).astype(int)
CUSTOMER_NAMES, BORN = [f"Ann-{k} Löw" for k in range(N)], [f"19{50 + k % 40}-05-01" for k in range(N)]
CONTRACT_NUMBERS = [f"KD-{k:05}" for k in range(N)]


def write_tables(folder: Path) -> dict[str, Path]:
    bank = zip(
        CONTRACT_NUMBERS, CUSTOMER_NAMES, BORN, Y, GRADES, TOWNS, SINCE, [f"{rate} %" for rate in RATES], strict=True
    )
    shop = zip(
        [n.lower() for n in CONTRACT_NUMBERS],
        [n.upper() for n in CUSTOMER_NAMES],
        BORN,
        GENERATOR.normal(size=N),
        strict=True,
    )
    paths = {name: folder / f"{name}.csv" for name in ("bank", "shop")}
    for path, head, rows in (
        (paths["bank"], ["Kunden-Nr", "name", "born", "y", "grade", "town", "since", "rate"], bank),
        (paths["shop"], ["Kunden-Nr", "name", "born", "s"], shop),
    ):
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([head, *rows])
    return paths


JOB = vfl.Job(
    model=vfl.Logistic(l2=1e-3),
    optimizer=vfl.FedBCD(lr=0.3),
    protocol=vfl.Protocol(residual="open"),
    batch_size=500,
    epochs=1,
    accepts=("columns",),
    prepare={"drop": ("Kunden-Nr", "name", "born")},
)


def gateway_of(part: Any, rows: IndexedRows, folder: Path) -> Gateway:
    address = {name: f"127.0.0.1:{7000 + at}" for at, name in enumerate(part.parties)}
    peers = Peers(active="bank", passives=part.parties[1:], address=address)
    made = Gateway(part, rows, PeerSettings(peers, folder), ledger=folder / "bank.ledger", max_sessions=1)
    made._connected.add(0)
    return made


@pytest.mark.parametrize("id_column", ["Kunden-Nr", "Kunden-Nr,", "name,born"])
def test_an_application_sends_its_own_values_and_ids(
    id_column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_tables(tmp_path)
    job = JOB.model_copy(update={"prepare": {"drop": tuple({"Kunden-Nr", "name", "born"} - set(id_column.split(",")))}})
    if id_column == "Kunden-Nr":
        paths["shop"].write_text(paths["shop"].read_text().replace("kd-", "KD-"))
    declared = {"bank": read_types({"grade": "category"})}
    parties, missing = read_parties(
        paths,
        {name: ReadOptions(id_column, drop=job.prepare.drop, declared=declared.get(name, {})) for name in paths},
    )
    assert not any(missing.values())
    run = vfl.simulate(job, parties)
    part = run.parts["bank"]
    rows = IndexedRows.of("bank", rows_of_file(part, paths["bank"], ReadOptions(id_column=id_column)))
    requested: list[tuple[list[Any], np.ndarray]] = []

    def ask(ids: Any, X: np.ndarray) -> Any:
        requested.append((list(ids), X))
        return SimpleNamespace(f=np.zeros((len(ids), part.outputs)), states=["scored"] * len(ids), reasons={})

    client = SimpleNamespace(max_ids=N, ask=ask, stay=lambda: None, end=lambda: None)
    monkeypatch.setattr(gateway, "ScoreClient", lambda *arguments: client)
    asked = gateway_of(part, rows, tmp_path)
    single = id_column.startswith("K")
    ids: list[Any] = (
        CONTRACT_NUMBERS if single else [{"name": n, "born": b} for n, b in zip(CUSTOMER_NAMES, BORN, strict=True)]
    )
    columns = [
        {"grade": int(grade), "town": str(town), "since": str(day), "rate": f"{rate} %"}
        for grade, town, day, rate in zip(GRADES, TOWNS, SINCE, RATES, strict=True)
    ]
    answers = []
    for k in range(0, N, 2):  # every second row is requested by its id, the others with columns
        sent = [RequestedRow(ids[k]), RequestedRow(ids[k + 1], columns[k + 1])]
        answers += asked.ask(sent)
    asked._queue.put(None)
    asked._talk(0, None)  # type: ignore[arg-type]
    results = [answer.result(0) for answer in answers]
    assert [result.id for result in results] == ids  # no key of the rule reaches the application
    joined = [row_id for block, _ in requested for row_id in block]
    assert joined == list(map(canonical_id, rows.ids))
    np.testing.assert_allclose(np.concatenate([X for _, X in requested]), rows.X, rtol=1e-12)
    if not single:
        with raises_code(IdError, "SVFL-ID-INVALID"):
            asked.ask([RequestedRow("Ann")])
    for wrong, code in (
        ({"town": "Bonn"}, "SVFL-TABLE-COLUMNS"),
        (columns[0] | {"extra": 1}, "SVFL-TABLE-COLUMNS"),
        (columns[0] | {"rate": 12.5}, "SVFL-TABLE-TYPE"),
        (columns[0] | {"since": "Xanadu"}, "SVFL-TABLE-TYPE"),
        (columns[0] | {"since": 3}, "SVFL-TABLE-TYPE"),
        (columns[0] | {"town": ["Bonn"]}, "SVFL-TABLE-TYPE"),
        (3, "SVFL-TABLE-COLUMNS"),
    ):
        with raises_code(TableError, code) as caught:
            asked.ask([RequestedRow(ids[0], wrong)])
        assert "Xanadu" not in str(caught.value)
        assert caught.value.fields["row"] == 1


@pytest.mark.parametrize("id_column", ["Kunden-Nr,", "name,born"])
def test_predictions_join_back_to_the_file(id_column: str, tmp_path: Path) -> None:
    paths = write_tables(tmp_path)
    job = JOB.model_copy(update={"prepare": {"drop": tuple({"Kunden-Nr", "name", "born"} - set(id_column.split(",")))}})
    parties, _ = read_parties(paths, ReadOptions(id_column, drop=job.prepare.drop))
    run = vfl.simulate(job, parties)
    out = tmp_path / "predictions.csv"
    predict_files(run, paths, out, options=dict.fromkeys(paths, ReadOptions(id_column)))
    rows = list(csv.DictReader(out.open(encoding="utf-8")))
    names = id_column.split(",") if id_column == "name,born" else ["id"]
    written = [tuple(row[name] for name in names) for row in rows]
    assert written == (
        list(zip(CUSTOMER_NAMES, BORN, strict=True)) if len(names) > 1 else [(number,) for number in CONTRACT_NUMBERS]
    )
    assert "|" not in out.read_text(encoding="utf-8")
    part = run.parts["bank"]
    new = rows_of_file(part, paths["bank"], ReadOptions(id_column=id_column))
    unscored = tmp_path / "unscored.csv"
    with write_predictions(part, tmp_path / "again.csv", unscored=unscored, rows=new) as callbacks:
        for ids, X in new.blocks():
            callbacks["on_block"](ids, prediction_of(part, np.zeros((len(X), part.outputs))))
            assert ids is not None
            assert callbacks["on_unscored"] is not None
            callbacks["on_unscored"](ids[0], "unknown")
    assert [row[names[0]] for row in csv.DictReader(unscored.open(encoding="utf-8"))] == [written[0][0]]
    assert [row[names[0]] for row in csv.DictReader((tmp_path / "again.csv").open(encoding="utf-8"))] == [
        row[0] for row in written
    ]

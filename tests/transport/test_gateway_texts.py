"""Applications ask a gateway with the texts, dates and ids of their own table, over HTTP, and get predictions.csv."""

from __future__ import annotations

import csv
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import securevfl as vfl
from securevfl.cli.prediction_output import predict_files
from securevfl.data.load import read_parties
from securevfl.data.read_options import ReadOptions
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.organisations.gateway import Gateway
from securevfl.organisations.http_api import application
from securevfl.organisations.http_server import HttpAddress, HttpServer, running
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.serve import Server
from securevfl.training.new_rows import IndexedRows, rows_of_file
from tests.described_http import checks_replies
from tests.organisations.test_gateway_types import JOB, N, write_tables
from tests.transport.test_serve import limits

TOKEN = "a token of an application"
ROWS_A_REQUEST = 50


@contextmanager
def gateway_of_a_run(
    meeting: Any, port: int, run: vfl.Run, paths: dict[str, Path], id_column: str
) -> Iterator[httpx.Client]:
    """Run the shop's server and the bank's gateway. Return a client that checks the answers
    which an application receives.
    """
    rows = {
        name: IndexedRows.of(name, rows_of_file(run.parts[name], path, ReadOptions(id_column=id_column)))
        for name, path in paths.items()
    }
    settings = {name: PeerSettings.of(meeting.kit(name) / "peers.toml", timeout=30, patience=5) for name in paths}
    ledger = limits(DisclosureLedger(meeting.folder / "shop.ledger", "shop"))
    server = Server(run.parts["shop"], rows["shop"], settings["shop"], ledger=ledger)
    gateway = Gateway(
        run.parts["bank"], rows["bank"], settings["bank"], ledger=meeting.folder / "bank.ledger", max_sessions=2
    )
    ended = threading.Event()
    serving = threading.Thread(target=server.run, args=(ended.is_set,), daemon=True)
    address = HttpAddress(f"127.0.0.1:{port}", TOKEN)
    serving.start()
    gateway.start()
    try:
        with running(HttpServer(application(gateway, TOKEN), address.listen), "gateway"):
            deadline = time.monotonic() + 60
            while not gateway.connected:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            url, headers = f"http://{address.address}", {"Authorization": f"Bearer {TOKEN}"}
            checks = checks_replies(httpx.get(f"{url}/openapi.json").json(), set())
            with httpx.Client(base_url=url, headers=headers, timeout=60, event_hooks={"response": [checks]}) as client:
                yield client
    finally:
        gateway.stop()
        ended.set()
        serving.join(60)


@pytest.mark.parametrize(("id_column", "names"), [("Kunden-Nr,", ["id"]), ("name,born", ["name", "born"])])
def test_2000_rows_get_the_predictions_of_the_file(id_column: str, names: list[str], meet: Any, tmp_path: Path) -> None:
    paths = write_tables(tmp_path)
    dropped = {"Kunden-Nr", "name", "born"} - set(id_column.split(","))
    job = JOB.model_copy(update={"prepare": {"drop": tuple(dropped)}})
    parties, _ = read_parties(paths, ReadOptions(id_column, drop=job.prepare.drop))
    run, meeting = vfl.simulate(job, parties), meet(2, None, job)
    predict_files(run, paths, tmp_path / "predictions.csv", options=dict.fromkeys(paths, ReadOptions(id_column)))
    with (tmp_path / "predictions.csv").open(encoding="utf-8", newline="") as file:
        predicted = {tuple(row[name] for name in names): row for row in csv.DictReader(file)}
    with paths["bank"].open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    columns = run.parts["bank"].columns
    in_file = ["Kunden-Nr"] if len(names) == 1 else names
    # both files have the same columns and rows
    assert {tuple(row[name] for name in in_file) for row in table} == set(predicted)
    count = N if len(names) == 1 else 200

    def row_of(number: int) -> dict[str, Any]:
        row = table[number]
        row_id = row["Kunden-Nr"] if len(names) == 1 else {name: row[name] for name in names}
        return {"id": row_id} if number % 2 else {"id": row_id, "columns": {name: row[name] for name in columns}}

    with gateway_of_a_run(meeting, meet.free_port(), run, paths, id_column) as client, ThreadPoolExecutor(8) as pool:

        def ask(first: int) -> list[dict[str, Any]]:
            rows = [row_of(number) for number in range(first, first + ROWS_A_REQUEST)]
            reply = client.post("/v1/scores", json={"rows": rows})
            assert reply.status_code == 200, reply.text
            return list(reply.json()["scores"])

        answers = [answer for chunk in pool.map(ask, range(0, count, ROWS_A_REQUEST)) for answer in chunk]
        metrics = client.get("/metrics").text
        wrong = row_of(0) | {"columns": {name: table[0][name] for name in columns} | {"since": "Xanadu"}}
        refused = client.post("/v1/scores", json={"rows": [row_of(1), wrong]})
    probability = next(name for name in predicted[next(iter(predicted))] if name.startswith("probability"))
    for number, answer in enumerate(answers):
        key = tuple(table[number][name] for name in in_file)
        assert answer["state"] == "scored"
        assert answer["id"] == row_of(number)["id"]
        assert str(answer["prediction"]) == predicted[key]["prediction"]
        assert answer["probability"] == pytest.approx(float(predicted[key][probability]), abs=1e-9)
    assert f'securevfl_gateway_rows_total{{state="scored"}} {count}.0' in metrics
    assert refused.status_code == 422
    assert (refused.json()["row"], refused.json()["column"]) == (2, "since")
    assert "Xanadu" not in refused.text
    assert "|" not in str(answers)  # no key of the rule

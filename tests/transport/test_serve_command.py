"""`securevfl serve` as a service: status and metrics on a local port, one line of JSON
for each event, an orderly end.
"""

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

import securevfl as vfl
from securevfl.data.row_order import write_rows
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.limits import Limit
from tests.forked import Forked

MANY = 6_000  # ids, enough to interrupt a request in the middle


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def until(true: Any, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def command(*words: str) -> "subprocess.Popen[str]":
    return Forked(
        [sys.executable, "-m", "securevfl.cli.main", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def shop(meet: Any, running: list[Any]) -> Any:
    """The shop's process, the port that shows its state, and the bank's side of the kit."""
    meeting, port = meet(2), meet.free_port()
    parties = vfl.datasets.breast_cancer(2)
    run = vfl.simulate(vfl.Job.from_dict(meeting.job.to_dict() | {"reason_codes": 3}), parties)
    for party in parties:
        run.parts[party.name].save(meeting.kit(party.name) / "part.json")
        X = np.resize(party.X, (MANY, party.X.shape[1]))
        table = {"id": np.arange(MANY), **dict(zip(party.columns, X.T, strict=True))}
        csv.write_csv(pa.table(table), meeting.kit(party.name) / "rows.csv")
        # the row order of an alignment before the training
        write_rows(meeting.kit(party.name) / "rows.csv", np.arange(MANY // 2))
    ledger = DisclosureLedger(meeting.kit("shop") / "shop.ledger", "shop")
    for kind, most in (("scores", 2 * MANY), ("ids", MANY)):  # the codes of a row count as another score
        ledger.set_limit(kind, Limit(most))
    kit = meeting.kit("shop")
    arguments = (
        "--data",
        str(kit / "rows.csv"),
        "--peers",
        str(kit / "peers.toml"),
        "--ledger",
        str(kit / "shop.ledger"),
    )
    (kit / "codes.json").write_text(json.dumps({name: f"R{k}" for k, name in enumerate(parties[1].columns)}))
    arguments += (
        "--monitor",
        f"127.0.0.1:{port}",
        "--patience",
        "6",
        "--reasons",
        "3",
        "--codes",
        str(kit / "codes.json"),
    )
    process = command("serve", str(kit / "part.json"), *arguments)
    running.append(process)
    until(lambda: process.poll() is not None or get(port, "/health")[0] == 200)
    assert process.poll() is None, process.communicate()
    return process, port, meeting.kit("bank")


def ask(bank: Path) -> "subprocess.Popen[str]":
    arguments = "--data", str(bank / "rows.csv"), "--peers", str(bank / "peers.toml"), "--out", str(bank / "scores.csv")
    return command("score", str(bank / "part.json"), *arguments, "--timeout", "30")


def figures(port: int) -> dict[str, float]:
    lines = get(port, "/metrics")[1].splitlines()
    return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


@pytest.mark.long
def test_a_service_answers_shows_and_ends(shop: Any, running: list[Any]) -> None:
    process, port, bank = shop
    assert json.loads(get(port, "/health")[1])["status"] == "ok"
    assert get(port, "/ids")[0] == 404
    status, page = get(port, "/")
    assert status == 200
    assert "<h1>Scoring service of shop</h1>" in page
    assert "Drift of the served rows" in page
    assert figures(port)["securevfl_rows_scored_total"] == 0
    running.append(asker := ask(bank))
    until(lambda: json.loads(get(port, "/health")[1])["busy"])
    process.send_signal(signal.SIGTERM)  # in the middle of a request, which is answered to its end
    printed, errors = asker.communicate(timeout=240)
    assert asker.returncode == 0, errors
    assert f"{MANY:,} of {MANY:,} rows are scored" in printed
    told_rows = csv.read_csv(bank / "scores.csv")
    assert told_rows.num_rows == MANY
    assert set(told_rows["reason shop 3"].to_pylist()) <= {f"R{k}" for k in range(100)}
    _, log = process.communicate(timeout=240)
    assert process.returncode == 0
    events = [json.loads(line) for line in log.splitlines()]
    assert [event["event"] for event in events if event["event"] in ("serving", "answered", "service ended")] == [
        "serving", "answered", "service ended",
    ]  # fmt: skip
    assert all(event["party"] == "shop" for event in events)


@pytest.mark.long
def test_a_waiting_service_ends_at_once(shop: Any) -> None:
    process, _, _ = shop
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=240)
    assert time.monotonic() - began < 45  # on a busy machine; it would wait for requests for ever
    assert process.returncode == 0
    events = [json.loads(line)["event"] for line in log.splitlines()]
    assert [event for event in events if event != "listening"] == ["serving", "service ended"]  # it may not listen yet
    assert "Traceback" not in log


@pytest.mark.long
def test_refusals_and_killed_askers_are_counted_and_survived(shop: Any, running: list[Any]) -> None:
    process, port, bank = shop
    running.append(killed := ask(bank))
    until(lambda: DisclosureLedger(bank.parent / "shop" / "shop.ledger", "shop").read().entries)
    killed.kill()
    until(lambda: figures(port)['securevfl_requests_total{outcome="failed"}'] == 1)
    running.append(again := ask(bank))  # the ids of the first request were recorded before it was killed
    _, errors = again.communicate(timeout=240)
    assert again.returncode == 2
    assert "shop has stopped: the request would exceed a limit that its operator has set" in errors
    counters = figures(port)
    assert counters['securevfl_requests_total{outcome="refused"}'] == 1
    assert counters["securevfl_certificate_expiry_timestamp_seconds"] > time.time()
    assert process.poll() is None

"""`securevfl serve` as a service: health and figures on a local port, one line of JSON an event, an orderly end."""

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
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.limits import Limit

MANY = 6_000  # ids: enough for a request to be caught in the middle


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def until(true: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def command(*words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "securevfl.cli.main", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def shop(meet: Any, running: list[Any]) -> Any:
    """The shop's process, the port that shows its state, and the bank's side of the kit."""
    meeting, port = meet(2), meet.free_port()
    parties = vfl.datasets.breast_cancer(2)
    run = vfl.simulate(meeting.job, parties)
    for party in parties:
        run.parts[party.name].save(meeting.kit(party.name) / "part.json")
        X = np.resize(party.X, (MANY, party.X.shape[1]))
        table = {"id": np.arange(MANY), **dict(zip(party.columns, X.T, strict=True))}
        csv.write_csv(pa.table(table), meeting.kit(party.name) / "rows.csv")
    ledger = DisclosureLedger(meeting.kit("shop") / "shop.ledger", "shop")
    for kind in ("scores", "ids"):
        ledger.set_limit(kind, Limit(MANY))
    kit = meeting.kit("shop")
    own = "--data", str(kit / "rows.csv"), "--peers", str(kit / "peers.toml"), "--ledger", str(kit / "shop.ledger")
    process = command("serve", str(kit / "part.json"), *own, "--monitor", f"127.0.0.1:{port}", "--patience", "2")
    running.append(process)
    until(lambda: get(port, "/health")[0] == 200)
    return process, port, meeting.kit("bank")


def ask(bank: Path) -> "subprocess.Popen[str]":
    own = "--data", str(bank / "rows.csv"), "--peers", str(bank / "peers.toml"), "--out", str(bank / "scores.csv")
    return command("score", str(bank / "part.json"), *own, "--timeout", "30")


def figures(port: int) -> dict[str, float]:
    lines = get(port, "/metrics")[1].splitlines()
    return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_a_service_answers_shows_and_ends(shop: Any, running: list[Any]) -> None:
    process, port, bank = shop
    assert json.loads(get(port, "/health")[1])["status"] == "ok"
    assert get(port, "/ids")[0] == 404
    assert figures(port)["securevfl_rows_scored_total"] == 0
    running.append(asker := ask(bank))
    until(lambda: json.loads(get(port, "/health")[1])["answering"])
    process.send_signal(signal.SIGTERM)  # in the middle of a request, which is answered to its end
    told, errors = asker.communicate(timeout=60)
    assert asker.returncode == 0, errors
    assert f"{MANY:,} of {MANY:,} rows are known to all and were scored" in told
    assert csv.read_csv(bank / "scores.csv").num_rows == MANY
    _, log = process.communicate(timeout=30)
    assert process.returncode == 0
    events = [json.loads(line) for line in log.splitlines()]
    assert [each["event"] for each in events if each["event"] in ("serving", "scored", "ended")] == [
        "serving", "scored", "ended",
    ]  # fmt: skip
    assert all(each["party"] == "shop" for each in events)


def test_a_waiting_service_ends_at_once(shop: Any) -> None:
    process, _, _ = shop
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert process.returncode == 0
    assert json.loads(log.splitlines()[-1])["event"] == "ended"
    assert "Traceback" not in log


def test_refusals_and_killed_askers_are_counted_and_survived(shop: Any, running: list[Any]) -> None:
    process, port, bank = shop
    running.append(killed := ask(bank))
    until(lambda: DisclosureLedger(bank.parent / "shop" / "shop.ledger", "shop").read().entries)
    killed.kill()
    until(lambda: figures(port)['securevfl_requests_total{outcome="failed"}'] == 1, 90)
    running.append(again := ask(bank))  # the ids of the first were entered before it was killed
    _, errors = again.communicate(timeout=60)
    assert again.returncode == 2
    assert "its ledger lets bank be told 6,000 answers to whether an id is in the table at most" in errors
    found = figures(port)
    assert found['securevfl_requests_total{outcome="refused"}'] == 1
    assert found["securevfl_certificate_expiry_timestamp_seconds"] > time.time()
    assert process.poll() is None

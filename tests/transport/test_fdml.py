"""FDML between processes over mutual TLS: a server without a table, asynchronous workers, killed and resumed."""

import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.predict import predict_rows
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import no_rows, rows_of_array
from tests.forked import Forked

COUNT = 4  # three with columns; the last is the server
PROCESS = """
import sys, time
from pathlib import Path
import securevfl as vfl
from securevfl.runtime import eventlog
from securevfl.training.checkpoint import Checkpoints

kit, pause = Path(sys.argv[1]), float(sys.argv[2])
eventlog.write_to(kit / "log.jsonl")


def on_round(*_):
    time.sleep(pause)
    while (kit / "hold").exists():
        if (kit / "log.jsonl").read_text().count('"event": "round"') < int((kit / "hold").read_text()):
            break
        time.sleep(0.02)


tables = {party.name: party for party in vfl.datasets.breast_cancer(3)}
vfl.join(
    vfl.Job.load(kit / "job.toml"),
    tables.get(kit.name) or vfl.Helper(kit.name, "server"),
    kit / "peers.toml",
    timeout=60,
    patience=20,
    save=kit / "part.json",
    checkpoints=Checkpoints(kit / "states", kit.name, every=3),
    on_round=on_round,
)
"""


def spawn(meeting: Any, party: str, pause: float) -> "subprocess.Popen[str]":
    options = [str(meeting.kit(party)), str(pause)]
    return Forked([sys.executable, "-c", PROCESS, *options], stderr=subprocess.PIPE, text=True)


def until(meeting: Any, party: str, done: int) -> None:
    deadline = time.monotonic() + 240
    while meeting.log(party).count('"event": "round"') < done:
        assert time.monotonic() < deadline, meeting.log(party)
        time.sleep(0.02)


@pytest.mark.long
@pytest.mark.parametrize(
    ("residual", "kills"),
    [
        pytest.param("open", ["shop", "server"], id="labels at one", marks=pytest.mark.slow),
        pytest.param(None, ["bank"], id="labels at all", marks=pytest.mark.slow),
    ],
)
def test_killed_and_taken_up(meet: Any, running: list[Any], residual: str | None, kills: list[str]) -> None:
    job = vfl.Job(
        model=vfl.Logistic(l2=1e-3),
        optimizer=vfl.FDML(lr=0.3, tau=3, shows_labels=residual is None),
        protocol=vfl.Protocol(residual=residual),
        batch_size=64,
        epochs=12,
        test_fraction=0.2,
        seed=3,
        accepts=["columns"],
    )
    meeting = meet(COUNT, None, job)
    names = {"server": meeting.peers.parties[-1]} | {name: name for name in meeting.peers.parties[:-1]}
    pauses = {"bank": 0.01, "shop": 0.03, "telco": 0.01, "server": 0.0}
    meeting.hold(names["shop"], 15)
    processes = {name: spawn(meeting, names[name], pauses[name]) for name in names}
    running += processes.values()
    for number, victim in enumerate(kills, 1):
        until(meeting, names["shop"], 15 * number)
        processes[victim].send_signal(signal.SIGKILL)
        processes[victim].wait()
        meeting.hold(names["shop"], 15 * (number + 1) if number < len(kills) else 10**6)
        processes[victim] = spawn(meeting, names[victim], pauses[victim])
        running.append(processes[victim])
    for name, process in processes.items():
        assert process.wait(240) == 0, (name, process.stderr.read())
    parts = {name: ModelPart.load(meeting.kit(names[name]) / "part.json") for name in names}
    assert parts["bank"].metrics["auc"] > 0.98
    assert len({part.run for part in parts.values()}) == 1
    assert '"event": "resumed"' in meeting.log("telco")
    undisturbed = vfl.simulate(job, [*vfl.datasets.breast_cancer(3), vfl.Helper(names["server"], "server")])
    for name in ("bank", "shop", "telco"):
        trained, expected = parts[name].theta, undisturbed.parts[name].theta
        assert np.linalg.norm(trained - expected) < 0.2 * np.linalg.norm(expected)


def test_predictions_with_the_server_there(meet: Any) -> None:
    """The server takes part in the prediction, but sends and receives no outputs."""
    job = vfl.Job(
        model=vfl.Logistic(l2=1e-3),
        optimizer=vfl.FDML(lr=0.3, tau=2),
        protocol=vfl.Protocol(residual="open"),
        batch_size=128,
        epochs=1,
        accepts=["columns"],
    )
    meeting = meet(3, None, job)
    lead, other, server = meeting.peers.parties
    tables = {party.name: party for party in vfl.datasets.breast_cancer(2)} | {server: vfl.Helper(server, "server")}
    predicted: dict[str, Any] = {}

    def play(name: str) -> None:
        peers, table = meeting.kit(name) / "peers.toml", tables[name]
        part = vfl.join(job, table, peers, timeout=20, patience=5, ledger=meeting.kit(name) / "ledger.json")
        blocks, ledger = list[Any](), meeting.kit(name) / "ledger.json"
        rows = rows_of_array(part, table.X[:20], None) if len(table) else no_rows()  # a server has no table
        venue = PeerSettings.of(peers, timeout=20)
        predict_rows(part, rows, venue, on_block=lambda _, block: blocks.append(block), ledger=ledger)
        predicted[name] = blocks[0] if blocks else None

    threads = [threading.Thread(target=play, args=(name,)) for name in tables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert set(predicted) == set(tables)
    assert predicted[server] is None
    assert predicted[other] is None
    assert (predicted[lead].label == tables[lead].y[:20]).mean() > 0.8

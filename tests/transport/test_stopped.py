"""If `securevfl join` is stopped, lacks disk space or finds an earlier model, both parties print one line at once."""

import json
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import raises_code

import securevfl as vfl
from securevfl.data.readers import read_party
from securevfl.errors import ConfigError, TransportError
from securevfl.organisations.join import join
from securevfl.organisations.toml_writer import to_toml
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.model_part import ModelPart, PartStatus
from tests.forked import Forked

Start = Callable[..., "subprocess.Popen[str]"]


def write(party: vfl.Party, path: Path) -> None:
    labels = [] if party.y is None else ["y"]
    lines = [",".join(["id", *labels, *party.columns])]
    for row in range(len(party)):
        y = [] if party.y is None else [str(party.y[row])]
        lines.append(",".join([str(row), *y, *map(repr, party.X[row].tolist())]))
    path.write_text("\n".join(lines))


@pytest.fixture
def meeting(meet: Any) -> Any:
    prepared = meet(2, job=meet.job(epochs=4000, batch_size=64))
    for party in vfl.datasets.breast_cancer(2):
        write(party, prepared.kit(party.name) / "own.csv")
    return prepared


@pytest.fixture
def start(meeting: Any, running: list[Any]) -> Start:
    """Start `join` at a party."""

    def begin(name: str, *options: str, again: bool = False) -> "subprocess.Popen[str]":
        kit = meeting.kit(name)
        accepted = meeting.accepts(read_party(name, kit / "own.csv"), vfl.Job.load(kit / "job.toml"), again=again)
        arguments = [*accepted, *options]
        arguments = ["join", "job.toml", "--party", name, "--data", "own.csv", "--log", "log.jsonl", *arguments]
        module = ["-m", "securevfl.cli.main", *arguments]
        options = {"cwd": kit, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = Forked([sys.executable, *module], **options)
        running.append(process)
        return process

    return begin


def until_round(meeting: Any, done: int) -> None:
    deadline = time.monotonic() + 240
    while meeting.log("bank").count('"event": "round"') < done:
        assert time.monotonic() < deadline, meeting.log("bank")
        time.sleep(0.01)


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.long
def test_who_is_stopped_says_how_to_go_on_and_the_peer_reads_why(meeting: Any, start: Start, by: int) -> None:
    bank, shop = start("bank"), start("shop")
    until_round(meeting, 12)
    shop.send_signal(by)
    _, printed = shop.communicate(timeout=240)
    _, heard = bank.communicate(timeout=240)
    assert (shop.returncode, bank.returncode) == (128 + by, 2)
    name = signal.Signals(by).name
    assert printed.startswith(f"stopped by {name}; the checkpoint after ")
    assert "rounds is in own.csv.states. Run the same command again at every party to resume.\n" in printed
    assert heard.startswith("shop has stopped: its operator has stopped it; run the same command again at every party")
    assert printed.count("\n") == heard.count("\n") == 1
    assert not (meeting.kit("shop") / "shop.model.json").exists()


@pytest.mark.long
def test_who_is_stopped_before_anyone_has_come_says_so(meeting: Any, start: Start) -> None:
    shop = start("shop")
    deadline = time.monotonic() + 240
    while '"listening"' not in meeting.log("shop"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    shop.send_signal(signal.SIGTERM)
    _, printed = shop.communicate(timeout=240)
    assert (shop.returncode, printed) == (
        143,
        "stopped by SIGTERM. Run the same command again at every party to start again.\n",
    )
    assert '"event": "stopped"' in meeting.log("shop")
    assert "KeyboardInterrupt" not in meeting.log("shop")


@pytest.mark.parametrize(("full", "other"), [("shop", "bank"), ("bank", "shop")])
@pytest.mark.long
def test_a_disk_without_room_is_a_line_at_both_ends(meeting: Any, start: Start, full: str, other: str) -> None:
    """The disk becomes full during the training; a disk that is full earlier is noticed before the party connects."""
    peer, party = start(other), start(full)
    until_round(meeting, 12)
    resource.prlimit(party.pid, resource.RLIMIT_FSIZE, (1500, 1500))
    _, printed = party.communicate(timeout=240)
    _, heard = peer.communicate(timeout=240)
    assert (party.returncode, peer.returncode) == (2, 2)
    assert "File too large" in printed
    assert heard.startswith(f"{full} has stopped: one of its files could not be written or read;")
    assert heard.count("\n") == 1
    assert str(meeting.folder) not in heard
    lines = [line for line in printed.splitlines() if "the log cannot be written" not in line]
    assert len(lines) == 1, printed


@pytest.mark.slow
def test_an_earlier_model_is_returned_only_for_the_same_table(meeting: Any) -> None:
    job = vfl.Job.from_dict(meeting.job.to_dict() | {"epochs": 2})
    bank, shop = vfl.datasets.breast_cancer(2)

    def own(party: vfl.Party, **options: Any) -> dict[str, Any]:
        kit = meeting.kit(party.name)
        return {"peers": kit / "peers.toml", "save": kit / "part.json", "checkpoints": kit / "states"} | options

    parts: dict[str, ModelPart] = {}

    def play(party: vfl.Party) -> None:
        parts[party.name] = join(job, party, **own(party, timeout=20, patience=5))

    roles = [threading.Thread(target=play, args=(party,)) for party in (bank, shop)]
    for role in roles:
        role.start()
    for role in roles:
        role.join(240)
    assert {part.status for part in parts.values()} == {PartStatus.NEW}
    assert {part.rounds for part in parts.values()} == {parts["bank"].rounds}
    assert parts["bank"].rounds > 0
    written = (meeting.kit("bank") / "part.json").stat().st_mtime_ns
    alone = join(job, bank, **own(bank, timeout=10, patience=2))
    assert alone.status is PartStatus.UNCONFIRMED
    assert (meeting.kit("bank") / "part.json").stat().st_mtime_ns == written
    for change in (
        lambda party: party.X.__setitem__((3, 1), 7.0),
        lambda party: party.y.__setitem__(3, 1 - party.y[3]),
    ):
        edited = vfl.datasets.breast_cancer(2)[0]
        change(edited)
        assert edited.digest != bank.digest
        assert edited.order == bank.order
        with raises_code(ConfigError, "SVFL-FILE-EXISTS"):  # before the party waits for anybody
            join(job, edited, **own(edited, timeout=3, patience=60))
        with raises_code(TransportError, "SVFL-PEER-AWAY", peer="shop"):
            join(job, edited, **own(edited, timeout=3, patience=60, replace=True))
        assert (meeting.kit("bank") / "part.json").stat().st_mtime_ns == written


@pytest.mark.slow
def test_states_of_a_table_that_was_edited_are_not_taken_up(meeting: Any, start: Start) -> None:
    bank, shop = start("bank"), start("shop")
    until_round(meeting, 12)
    shop.send_signal(signal.SIGTERM)
    for process in (bank, shop):
        process.communicate(timeout=240)
    path = meeting.kit("shop") / "own.csv"
    path.write_text(path.read_text().replace(path.read_text().splitlines()[5], "4," + ",".join(["1.5"] * 15)))
    (meeting.kit("bank") / "log.jsonl").unlink()
    bank, shop = start("bank", again=True), start("shop", again=True)
    until_round(meeting, 3)
    events = [json.loads(line) for line in meeting.log("bank").splitlines()]
    assert next(event["round"] for event in events if event["event"] == "round") == 1
    assert any(event["event"] == "training starts again" for event in events)


@pytest.mark.long
def test_the_command_says_that_its_model_is_an_earlier_one(meeting: Any, start: Start) -> None:
    job = meeting.job.to_dict() | {"epochs": 1}
    for name in meeting.peers.parties:
        (meeting.kit(name) / "job.toml").write_text(to_toml(job))
    for process in [start("bank"), start("shop")]:
        out, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        assert "earlier" not in out
    out, errors = (bank := start("bank", "--patience", "2")).communicate(timeout=240)
    assert bank.returncode == 2
    assert out.startswith(
        "Nothing was trained, because job and table are the same as before. This model is from an earlier run; the "
        "other parties could not be reached to confirm it. Use --retrain to train again.\nmetric "
    )
    path = meeting.kit("bank") / "own.csv"
    path.write_text(path.read_text().replace("\n3,", "\n3000,"))
    out, errors = (bank := start("bank", "--timeout", "3")).communicate(timeout=240)
    assert (bank.returncode, out) == (2, "")
    assert "belongs to another job, or to another table" in errors
    assert "SVFL-FILE-EXISTS" in errors
    out, errors = (bank := start("bank", "--timeout", "3", "--replace")).communicate(timeout=240)
    assert (bank.returncode, out) == (2, "")
    assert "has waited 3 s for shop" in errors


@pytest.mark.long
def test_a_port_of_another_program_is_named(meeting: Any, start: Start) -> None:
    port = int(meeting.peers.address["shop"].rpartition(":")[2])
    for host in ("127.0.0.1", "0.0.0.0"):
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind((host, port))
            other.listen()
            out, errors = (shop := start("shop", "--listen", f"[::]:{port}")).communicate(timeout=240)
            assert (shop.returncode, out) == (2, "")
            assert f"another program listens on port {port} of" in errors
            assert '"listening"' not in meeting.log("shop")


@pytest.mark.long
def test_the_log_of_recovery_gives_no_advice_that_is_not_meant(meeting: Any, start: Start) -> None:
    _, shop = start("bank"), start("shop")
    until_round(meeting, 12)
    shop.kill()
    shop.wait()
    shop = start("shop")
    done = meeting.log("bank").count('"event": "round"')
    until_round(meeting, done + 3)
    log = meeting.log("bank") + meeting.log("shop")
    assert '"event": "connection lost"' in log
    assert "run the same command" not in log
    assert "anew everywhere" not in log
    assert Checkpoints(meeting.kit("bank") / "own.csv.states", "bank").folder.exists()

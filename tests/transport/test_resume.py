"""Real processes that are killed and restarted by the same command train the model of an uninterrupted run."""

import subprocess
import sys
import time
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

import securevfl as vfl
from securevfl.data.row_order import read_rows
from securevfl.training.model_part import ModelPart
from tests.forked import Forked


def rounds(meeting: Any, party: str) -> int:
    return int(meeting.log(party).count('"event": "round"'))


def until(meeting: Any, party: str, done: int, within: float = 240) -> None:
    deadline = time.monotonic() + within
    while rounds(meeting, party) < done:
        assert time.monotonic() < deadline, meeting.log(party)
        time.sleep(0.02)


def through(processes: dict[str, Any], within: float = 240) -> None:
    for name, process in processes.items():
        assert process.wait(within) == 0, (name, process.stderr.read())


@pytest.mark.parametrize(
    ("residual", "sums", "count", "hub", "kills", "bound"),
    [
        pytest.param("open", "auto", 2, None, [("shop", 2), ("bank", 5), ("shop", 9)], 0.0, marks=pytest.mark.slow),
        pytest.param("open", "pairwise", 3, "bank", [("telco", 4), ("bank", 8)], 0.0, marks=pytest.mark.slow),
        pytest.param(vfl.Paillier(bits=2048), "auto", 2, None, [("shop", 3)], 0.0, marks=pytest.mark.slow),
        pytest.param(vfl.Ckks(), "tree", 3, None, [("bank", 3), ("shop", 6)], 1e-3, marks=pytest.mark.slow),
        (None, "pairwise", 3, "bank", [("shop", 3), ("bank", 6)], 0.0),
    ],
    ids=["open", "masked through a hub", "paillier", "ckks over trees", "kernel"],
)
@pytest.mark.exact_outputs
@pytest.mark.long
def test_killed_and_started_again(
    meet: Any,
    running: list[Any],
    residual: Any,
    sums: Any,
    count: int,
    hub: str | None,
    kills: list[tuple[str, int]],
    bound: float,
) -> None:
    changes: dict[str, Any] = {"protocol": vfl.Protocol(sum=sums, residual=residual)}
    if residual is None:
        changes |= {"model": vfl.Kernel(gamma=0.05, blocks=3, block_size=16), "optimizer": vfl.FDSKL()}
    job = meet.job(epochs=3).model_copy(update=changes)
    meeting = meet(count, hub, job)
    start = {"patience": 20, "pause": 0.05, "every": 2}
    meeting.hold(*kills[0])
    processes = {name: meeting.spawn(name, **start) for name in meeting.peers.parties}
    running += processes.values()
    for (victim, done), following in zip_longest(kills, kills[1:]):
        meeting.kill(processes[victim], victim, done)
        if following:
            meeting.hold(*following)
        processes[victim] = meeting.spawn(victim, **start)
        running.append(processes[victim])
    through(processes)
    meeting.compare(bound)
    assert '"event": "connection lost"' in "".join(map(meeting.log, meeting.peers.parties))
    assert not list(meeting.folder.glob("*/states"))
    assert len({ModelPart.load(meeting.kit(name) / "part.json").run for name in processes}) == 1


@pytest.mark.slow
def test_who_stays_away_ends_the_job_everywhere(meet: Any, running: list[Any]) -> None:
    meeting = meet(3, job=meet.job(epochs=60))
    start = {"patience": 1, "timeout": 3, "pause": 0.05, "every": 2}
    processes = {name: meeting.spawn(name, **(start | {"timeout": 200})) for name in meeting.peers.parties[1:]}
    processes["bank"] = meeting.spawn("bank", **start)
    running += processes.values()
    until(meeting, "bank", 3)
    processes.pop("shop").kill()
    struck = time.monotonic()
    for name, process in processes.items():
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 1
        assert "TransportError: " in errors or "PeerStopped: " in errors
        assert "shop" in errors, name
        assert not (meeting.kit(name) / "part.json").exists()
    assert time.monotonic() - struck < 150  # shorter than the others would wait for a reconnection


@pytest.mark.slow
def test_without_states_a_loss_ends_the_job(meet: Any, running: list[Any]) -> None:
    meeting = meet(2, job=meet.job(epochs=60))
    processes = {name: meeting.spawn(name, patience=1, pause=0.05) for name in meeting.peers.parties}
    running += processes.values()
    until(meeting, "bank", 3)
    processes["shop"].kill()
    _, errors = processes["bank"].communicate(timeout=240)
    assert "PeerLost: " in errors


@pytest.mark.long
def test_an_alignment_goes_on(meet: Any, running: list[Any]) -> None:
    meeting = meet(2)
    ids = np.arange(40_000)
    party_ids = {"bank": ids[:30_000], "shop": ids[::-1][:30_000]}
    for name, column in party_ids.items():
        csv.write_csv(pa.table({"id": column, "x": column % 7}), meeting.folder / f"{name}.csv")

    def align(name: str) -> "subprocess.Popen[str]":
        options = ["--party", name, "--data", f"{name}.csv", "--peers", f"{name}/peers.toml"]
        process = Forked(
            [sys.executable, "-m", "securevfl.cli.main", "align", *options],
            cwd=meeting.folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    processes = {name: align(name) for name in party_ids}
    deadline = time.monotonic() + 240
    while len(list(meeting.folder.glob("shop.csv.align/*.chunk"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    processes["shop"].kill()
    processes["shop"].wait()
    assert not (meeting.folder / "bank.csv.rows.npy").exists()
    processes["shop"] = align("shop")
    through(processes)
    rows = {name: read_rows(meeting.folder / f"{name}.csv", of=30_000) for name in party_ids}
    common = party_ids["bank"][rows["bank"]]
    assert (common == party_ids["shop"][rows["shop"]]).all()
    assert sorted(common) == list(range(10_000, 30_000))
    assert not list(meeting.folder.glob("*.align"))


@pytest.mark.slow
def test_a_relay_waits_for_who_comes_back(meet: Any, running: list[Any]) -> None:
    meeting = meet(3, "relay", meet.job(epochs=3))
    options = ["--party", "relay", "--peers", str(meeting.kit("relay") / "peers.toml")]
    running.append(Forked([sys.executable, "-m", "securevfl.cli.main", "relay", *options], stderr=subprocess.PIPE))
    start = {"patience": 20, "pause": 0.05, "every": 2}
    meeting.hold("telco", 4)
    processes = {name: meeting.spawn(name, **start) for name in meeting.peers.parties}
    running += processes.values()
    meeting.kill(processes["telco"], "telco", 4)
    processes["telco"] = meeting.spawn("telco", **start)
    running.append(processes["telco"])
    through(processes)
    assert running[0].wait(120) == 0
    meeting.compare()

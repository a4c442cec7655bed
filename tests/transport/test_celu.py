"""CELU-VFL between organisations: the model of a simulation, also where processes are killed and started again."""

import signal
import time
from typing import Any

import pytest

import securevfl as vfl


def until(meeting: Any, party: str, done: int) -> None:
    deadline = time.monotonic() + 90
    while meeting.log(party).count('"event": "round"') < done:
        assert time.monotonic() < deadline, meeting.log(party)
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("residual", "count", "hub", "kills", "bound"),
    [
        ("open", 2, None, [("shop", 3), ("bank", 8)], 0.0),
        (vfl.Ckks(), 3, "bank", [("telco", 5)], 1e-3),
    ],
    ids=["open", "ckks through a hub"],
)
def test_killed_and_started_again(
    meet: Any,
    running: list[Any],
    residual: Any,
    count: int,
    hub: str | None,
    kills: list[tuple[str, int]],
    bound: float,
) -> None:
    optimizer = vfl.CeluVFL(lr=0.1, R=4, W=3, xi=60, rule=vfl.AdaGrad())
    protocol = vfl.Protocol(residual=residual)
    job = meet.job(epochs=3, accepts=["columns", "fresh_equations"])
    meeting = meet(count, hub, job.model_copy(update={"optimizer": optimizer, "protocol": protocol}))
    start = {"patience": 20, "pause": 0.05, "every": 2}
    processes = {name: meeting.spawn(name, **start) for name in meeting.peers.parties}
    running += processes.values()
    for victim, done in kills:
        until(meeting, victim, done)
        processes[victim].send_signal(signal.SIGKILL)
        processes[victim].wait()
        processes[victim] = meeting.spawn(victim, **start)
        running.append(processes[victim])
    for name, process in processes.items():
        assert process.wait(120) == 0, (name, process.stderr.read())
    meeting.compare(bound)
    assert '"event": "resumed"' in "".join(map(meeting.log, meeting.peers.parties))

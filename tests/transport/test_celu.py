"""CELU-VFL between organisations trains the model of a simulation, also if processes are killed and restarted."""

from itertools import zip_longest
from typing import Any

import pytest

import securevfl as vfl


@pytest.mark.exact_outputs
@pytest.mark.long
@pytest.mark.parametrize(
    ("residual", "count", "hub", "kills", "bound"),
    [
        pytest.param("open", 2, None, [("shop", 3), ("bank", 8)], 0.0, marks=pytest.mark.slow),
        pytest.param(vfl.Ckks(), 3, "bank", [("telco", 5)], 1e-3, marks=pytest.mark.slow),
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
    meeting.hold(*kills[0])
    processes = {name: meeting.spawn(name, **start) for name in meeting.peers.parties}
    running += processes.values()
    for (victim, done), following in zip_longest(kills, kills[1:]):
        meeting.kill(processes[victim], victim, done)
        if following:
            meeting.hold(*following)
        processes[victim] = meeting.spawn(victim, **start)
        running.append(processes[victim])
    for name, process in processes.items():
        assert process.wait(240) == 0, (name, process.stderr.read())
    meeting.compare(bound)
    assert '"event": "resumed"' in "".join(map(meeting.log, meeting.peers.parties))

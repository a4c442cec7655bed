"""Weights of evidence between organisations: real processes, one of them killed and started again."""

import signal
import time
from typing import Any

import numpy as np

import securevfl as vfl
from securevfl.training.model_part import ModelPart


def test_processes_weigh_columns_as_simulate_does(meet: Any, running: list[Any]) -> None:
    woe = {"woe": {"bins": 2, "rows": 60}}
    meeting = meet(2, None, meet.job(vfl.Ckks(), epochs=3, prepare=woe))
    start = {"patience": 20, "pause": 0.05, "every": 2}
    processes = {name: meeting.spawn(name, **start) for name in meeting.peers.parties}
    running += processes.values()
    deadline = time.monotonic() + 90
    while meeting.log("shop").count('"event": "round"') < 3:
        assert time.monotonic() < deadline, meeting.log("shop")
        time.sleep(0.02)
    processes["shop"].send_signal(signal.SIGKILL)
    processes["shop"].wait()
    processes["shop"] = meeting.spawn("shop", **start)
    running.append(processes["shop"])
    for name, process in processes.items():
        assert process.wait(120) == 0, (name, process.stderr.read())
    meeting.compare(1e-3)
    run = vfl.simulate(meeting.job, vfl.datasets.breast_cancer())
    for name, part in run.parts.items():
        own = ModelPart.load(meeting.kit(name) / "part.json")
        assert own.preparation == part.preparation
        assert own.information == part.information
        assert np.count_nonzero(list(own.information.values())) == len(own.columns)

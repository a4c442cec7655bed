"""Weights of evidence between organisations: real processes, one of them killed and started again."""

from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.training.model_part import ModelPart


@pytest.mark.exact_outputs
@pytest.mark.slow
def test_processes_weigh_columns_as_simulate_does(meet: Any, running: list[Any]) -> None:
    woe = {"woe": {"bins": 2, "rows": 60}}
    accepted = ("columns", "fresh_equations", "rank")  # values disclosed again after a kill count again
    meeting = meet(2, None, meet.job(vfl.Ckks(), epochs=3, prepare=woe, accepts=accepted))
    start = {"patience": 20, "pause": 0.05, "every": 2}
    meeting.hold("shop", 3)
    processes = {name: meeting.spawn(name, **start) for name in meeting.peers.parties}
    running += processes.values()
    meeting.kill(processes["shop"], "shop", 3)
    processes["shop"] = meeting.spawn("shop", **start)
    running.append(processes["shop"])
    for name, process in processes.items():
        assert process.wait(240) == 0, (name, process.stderr.read())
    meeting.compare(1e-3)
    run = vfl.simulate(meeting.job, vfl.datasets.breast_cancer())
    for name, part in run.parts.items():
        loaded = ModelPart.load(meeting.kit(name) / "part.json")
        assert loaded.preparation == part.preparation
        assert loaded.information == part.information
        assert np.count_nonzero(list(loaded.information.values())) == len(loaded.columns)

"""The line that shows progress while a training runs, on a terminal and in a pipe."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from typing import Any

import pytest

import securevfl as vfl
from securevfl.cli.live import StatusPace, TrainingStatus, live
from securevfl.runtime import eventlog


class Clock:
    """A clock whose time the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_it_says_who_is_waited_for_then_where_the_training_is() -> None:
    clock = Clock()
    line = TrainingStatus(["shop", "telco"], "iteration", clock)
    assert line.text() == ""  # a short wait is not printed
    clock.now = 5
    assert line.text() == "waiting for shop, telco, 5 s"
    line.note("connected", "bank", {"peer": "shop"})
    assert line.text() == "waiting for telco, 5 s"
    line.note("waiting", "bank", {"peer": "telco", "reason": "nothing has answered at telco.example:7300"})
    assert line.text() == "waiting for telco, 5 s: nothing has answered at telco.example:7300"
    line.note("agreed", "bank", {})
    assert line.text() == ""  # the owner is reading the consent sheet
    line.note("training begins", "bank", {})
    clock.now = 70
    assert line.text() == "training: before the first iteration, 1 min 5 s; others may still have to agree"
    assert len(line.text()) <= 80
    line.step(1, 30)
    line.note("training progress", "bank", {"bytes": 2_000_000})
    assert line.text() == "training: iteration 1 of at most 30, 2.0 MB sent"
    clock.now = 80
    line.step(11, 30)
    line.note("training progress", "bank", {"bytes": 12_340_000, "loss": 0.5, "auc": 0.8312})
    line.note("training progress", "shop", {"bytes": 1_000_000})
    assert line.text() == "training: iteration 11 of at most 30, AUC 0.831 so far, 19 s left, 13.3 MB sent"
    assert len(line.text()) < 80
    line.step(30, 0)
    assert "iteration 30, AUC" in line.text()


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("screen", [Screen(), io.StringIO()], ids=["terminal", "pipe"])
def test_a_training_shows_its_status(screen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    level, handlers = eventlog.LOGGER.level, list(eventlog.LOGGER.handlers)
    job = vfl.Job(model=vfl.Logistic(), protocol="open", epochs=40, evaluate_every=5, accepts=["columns", "rank"])
    pace = StatusPace(redraws_per_second=50, first_line_seconds=0.01, line_seconds=0.01)
    with redirect_stderr(screen), live((), "round", pace) as on_round:
        vfl.simulate(job, vfl.datasets.breast_cancer(2), on_round=on_round)
        eventlog.warn("bank", "lost", {"reason": "cut"})
    assert (eventlog.LOGGER.level, list(eventlog.LOGGER.handlers)) == (level, handlers)
    output = screen.getvalue()
    assert "training: " in output
    if screen.isatty():
        assert "AUC 0.9" in output
        assert output.rstrip().endswith("\x1b[2K")  # the line is erased at the end
    else:
        assert "\x1b" not in output
        assert output.endswith("\n")

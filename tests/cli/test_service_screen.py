"""The screen of a service: figures within 80 columns on a terminal, plain lines elsewhere, and the last line."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import securevfl as vfl
from securevfl.cli import service_screen
from securevfl.cli.service_screen import Rate, RequestTally, ServiceFigures, ServiceScreen
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger, total_of
from securevfl.disclosure.limits import Limit
from securevfl.organisations.budgets import Budget, budgets_of
from securevfl.organisations.prediction import ScoreCounts
from securevfl.organisations.serve import RequestOutcome
from securevfl.runtime import eventlog

REFUSAL = "party shop: its ledger allows all peers together at most 9 scores; bank has received 8 scores"
FIGURES = ServiceFigures(16, 16, 1_234_567, 98_765_432, 12_345, 7, 4_096, REFUSAL)
BUDGETS = [Budget("scores", "a bank with a very long name " * 4, "100,000", "0"), Budget("ids", "", "50,000", "50,000")]


def drawn(screen: ServiceScreen, width: int, **options: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False, emoji=False, **options)
    console.print(screen.drawing())
    return out.getvalue()


def test_the_screen_shows_every_figure_in_80_columns() -> None:
    screen = ServiceScreen("shop serves 6,000,000 rows " * 5, lambda: FIGURES, lambda: BUDGETS)
    screen.note("12:00:00 refused: reason " + "a limit of the ledger is reached " * 9)
    text = drawn(screen, 80)
    assert max(map(len, text.splitlines())) <= 80
    for figure in (
        "16 of 16",
        "1,234,567 requests",
        "98,765,432 rows",
        "12,345, the latest: party shop: its ledger allows all peers together",
        "7",
        "4,096 rows",
        "50,000",
        "scores",
    ):
        assert figure in text, figure
    assert "\n\n" not in text.strip()  # an ellipsis, and no second line, where a text is too long


def test_the_latest_refusal_is_counted_with_its_reason() -> None:
    tally = RequestTally()
    tally.count(RequestOutcome("refused", 0.1, reason="the first limit"))
    tally.count(RequestOutcome("failed", 0.1, reason="a lost line"))
    assert tally.figures(1, 16).refusal == "the first limit"
    tally.count(RequestOutcome("refused", 0.1, reason="two\nlines"))
    assert (tally.figures(1, 16).refused, tally.figures(1, 16).refusal) == (2, "two lines")


def test_no_color_leaves_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = ServiceScreen("shop", lambda: FIGURES, lambda: BUDGETS)
    coloured = drawn(screen, 80, force_terminal=True, color_system="standard")
    monkeypatch.setenv("NO_COLOR", "1")
    plain = drawn(screen, 80, force_terminal=True, color_system="standard")
    assert "\x1b[33m" in coloured
    assert "\x1b[33m" not in plain
    assert "\x1b[31m" not in plain


def test_the_rate_is_that_of_the_latest_minute() -> None:
    now = [0.0]
    rate = Rate(lambda: now[0])
    for second in range(1, 301):
        now[0] = float(second)
        rows = 600 * min(second, 100)  # 600 rows a second, and none after 100 seconds
        latest = rate.of(rows)
        if second == 100:
            assert latest == pytest.approx(600, rel=0.02)
    assert latest == 0


def test_the_budget_is_what_the_ledger_leaves_to_the_peer(tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    for kind, most in (("scores", 100), ("ids", 50)):
        ledger.set_limit(kind, Limit(most))  # type: ignore[arg-type]
    assert {(budget.kind, budget.left) for budget in budgets_of(ledger)} == {("scores", "100"), ("ids", "50")}
    ledger.record_answer("training", "run", Disclosure("scores", "bank", ("shop",), 30, 0))
    assert Budget("scores", "bank", "100", "70") in budgets_of(ledger)
    ledger.record_answer("training", "another run", Disclosure("scores", "second bank", ("shop",), 60, 0))
    assert Budget("scores", "all peers", "100", "10") in budgets_of(ledger)  # a limit holds for all of them together


@pytest.mark.parametrize("first", [0, 150, 200, 1000])
def test_the_budget_counts_tables_that_share_rows(first: int, tmp_path: Path) -> None:
    """As `securevfl ledger` does: the row with the least left decides, whichever tables it is in."""
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    ledger.set_limit("columns", Limit(10))
    for number, start in enumerate((0, first)):
        party = vfl.Party("shop", np.ones((200, 3)) * np.arange(200)[:, None], ids=range(start, start + 200))
        ledger.record(party.register, (f"run {number}", ""), [Disclosure("columns", "bank", ("shop",), 3 + number, 0)])
    limit = ledger.read().limits["columns"]
    left = [limit.left(total_of(ledger.table_disclosures(name)[0], "columns")) for name in ledger.read().tables]
    assert min(map(int, left)) == (10 - 4 if first == 1000 or first == 200 else 10 - 7)
    assert budgets_of(ledger) == [Budget("columns", "bank", "10", str(min(map(int, left))))]


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("most", ["first", "second"])
def test_the_budget_is_that_of_the_table_with_least_left(most: str, share: bool, tmp_path: Path) -> None:
    """Of two tables, one has disclosed the larger count and the other the larger share."""
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    ledger.set_limit("columns", Limit(0.9, share=True) if share else Limit(100))
    for name, start in (("first", 0), ("second", 20)):
        party = vfl.Party("shop", np.arange(20.0)[:, None], ids=range(start, start + 20))
        count, capacity = (40, 400) if (name == most) != share else (20, 40)
        ledger.record(party.register, (name, ""), [Disclosure("columns", "bank", ("shop",), count, capacity)])
    limit, left = ("90%", "40%") if share else ("100", "60")
    assert budgets_of(ledger) == [Budget("columns", "bank", limit, left)]


def test_a_tally_counts_each_outcome() -> None:
    tally, passed = RequestTally(), list[RequestOutcome]()
    count = tally.counts_and(passed.append)
    for outcome in (
        RequestOutcome("answered", 0.5, ScoreCounts(1200, 1100)),
        RequestOutcome("answered", 0.5, ScoreCounts(300, 300)),
        RequestOutcome("refused", 0.1),
        RequestOutcome("failed", 0.1),
    ):
        count(outcome)
    assert len(passed) == 4
    assert tally.figures(1, 2) == ServiceFigures(1, 2, 2, 1400, 1, 1)
    assert str(tally) == "2 requests answered, 1,400 rows scored, 1 request refused, 1 failed"


def test_a_pipe_gets_a_line_whenever_figures_change(capsys: pytest.CaptureFixture[str]) -> None:
    figures, checks = [ServiceFigures(0, 4, 0, 0, 0)], threading.Semaphore(0)

    def latest() -> ServiceFigures:
        checks.release()
        return figures[-1]

    def wait_for_checks() -> None:
        """Wait for five checks of the figures; the lines of all but the last of them have been printed."""
        while checks.acquire(blocking=False):
            pass
        for _ in range(5):
            assert checks.acquire(timeout=60)

    screen = ServiceScreen("bank's gateway", latest, lambda: BUDGETS[1:], lambda: 0.0)
    level = eventlog.LOGGER.level
    with service_screen.service_screen(screen, line_seconds=0.02):
        wait_for_checks()
        figures.append(ServiceFigures(2, 4, 3, 120, 5))
        wait_for_checks()
    eventlog.LOGGER.setLevel(level)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "bank's gateway: 0 of 4 sessions, 0 requests, 0 rows scored (0.0 a second), 0 refused, "
        "50,000 of 50,000 ids left",
        "bank's gateway: 2 of 4 sessions, 3 requests, 120 rows scored (120.0 a second), 5 refused, "
        "50,000 of 50,000 ids left",
    ]
    assert not any(isinstance(handler, service_screen._EventHandler) for handler in eventlog.LOGGER.handlers)


SCRIPT = """
import time
from securevfl.cli import signals
from securevfl.cli.service_screen import *
from securevfl.runtime import eventlog
screen = ServiceScreen("shop serves 6,000 rows", lambda: ServiceFigures(1, 4, 2, 3, 0, 0), list)
with signals.service_signals(lambda: True) as stop, service_screen(screen):
    eventlog.emit("shop", "connected", {"peer": "bank"})
    while not stop.arrived:
        time.sleep(0.02)
print_line(f"shop: the service has ended after {stop.cause}")
"""


@pytest.mark.long
@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_terminal_gets_the_screen_and_the_last_line(signal_number: int) -> None:
    """A real terminal of 80 columns: the screen, its events, and after the signal one plain line and status 0."""
    controller, terminal = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    try:
        text = read_until(controller, lambda text: "connected: peer bank" in text)
        process.send_signal(signal_number)
        text += read_until(controller, lambda text: "has ended after" in text)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(controller)
    assert "1 of 4" in text
    assert "The ledger has no limits." in text
    assert f"shop: the service has ended after {signal.Signals(signal_number).name}" in text
    assert "Traceback" not in text
    assert "KeyboardInterrupt" not in text


def read_until(controller: int, true: Callable[[str], bool]) -> str:
    text, deadline = "", time.monotonic() + 60
    while not true(text):
        assert time.monotonic() < deadline, text
        if select.select([controller], [], [], 0.1)[0]:
            try:
                text += os.read(controller, 65536).decode(errors="replace")
            except OSError:  # the process has closed the terminal
                break
    return text

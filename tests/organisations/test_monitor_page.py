"""The status page of a serving party shows the figures of /metrics, loads nothing and runs no script."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from prometheus_client import generate_latest

from securevfl.credit.drift import Drift, measure_drift
from securevfl.credit.drift_page import shifts_of
from securevfl.data.baseline import baselines
from securevfl.data.columns import columns_of
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.limits import Limit
from securevfl.organisations.monitor import OUTCOMES, Monitor
from securevfl.organisations.prediction import ScoreCounts
from securevfl.organisations.serve import Outcome, RequestOutcome

SERVED = SimpleNamespace(max_ids=5000, code_policy=SimpleNamespace(codes_per_row=3))


def limited_ledger() -> DisclosureLedger:
    """A ledger with limits of scores and ids, of which the bank has used up 30 scores."""
    ledger = DisclosureLedger(Path(tempfile.mkdtemp()) / "shop.ledger", "shop")
    ledger.set_limit("scores", Limit(1000))
    ledger.set_limit("ids", Limit(2000))
    ledger.record_answer("training", "run", Disclosure("scores", "bank", ("shop",), 30, 0))
    return ledger


def monitor(drifts: Sequence[Drift]) -> Monitor:
    """A monitor that has counted three requests."""
    pytest.importorskip("prometheus_client")
    page_monitor = Monitor("shop", 4e9)
    page_monitor.show_shifts(shifts_of(drifts))
    page_monitor.watch(cast(Any, SimpleNamespace(busy=False, sessions=0, served=SERVED, ledger=limited_ledger())))
    for ended in (
        RequestOutcome("answered", 0.5, ScoreCounts(1200, 1100), 70_000),
        RequestOutcome("answered", 0.5, ScoreCounts(300, 300), 5_000),
        RequestOutcome("refused", 0.1, sent=10, reason="limit"),
    ):
        page_monitor.count(ended)
    return page_monitor


def status_page(drifts: Sequence[Drift]) -> str:
    return monitor(drifts).page()


def drifted() -> list[Drift]:
    draw = np.random.default_rng(0)
    training = columns_of("shop", draw.normal(size=(3000, 2)), ["still", "moved<"])
    new = columns_of("shop", draw.normal((0, 1), size=(2000, 2)), ["still", "moved<"])
    return measure_drift(baselines(training, np.arange(3000)), new)


def test_the_page_has_the_figures_of_metrics() -> None:
    page_monitor = monitor(drifted())
    page, metrics = page_monitor.page(), generate_latest(page_monitor.registry).decode()
    for name, words in (
        ('requests_total{outcome="answered"}', "requests answered"),
        ('requests_total{outcome="refused"}', "requests refused"),
        ("ids_asked_total", "requested ids"),
        ("rows_scored_total", "scored rows"),
        ("sent_bytes_total", "bytes sent"),
    ):
        (value,) = re.findall(rf"^securevfl_{re.escape(name)} (\S+)$", metrics, re.MULTILINE)
        assert f"<th>{words}</th><td>{int(float(value)):,}</td>" in page
    drifts = {drift.column: drift for drift in drifted()}
    assert [name for name, drift in drifts.items() if drift.shifted] == ["moved<"]
    assert f'securevfl_drift_psi{{column="moved<"}} {drifts["moved<"].psi}' in metrics
    assert "securevfl_drift_shifted_columns 1.0" in metrics
    assert "<th>reason codes per row</th><td>3</td>" in page
    counts = [
        int(float(value)) for value in re.findall(r"^securevfl_requests_total\{\S+ (\S+)$", metrics, re.MULTILINE)
    ]
    finished = ", ".join(f"{count} {outcome}" for count, outcome in zip(counts, OUTCOMES, strict=True))
    assert f'<div class="verdict">Serving. Requests: {finished}.</div>' in page
    assert "Shifted: moved&lt;." in page
    assert re.search(r"scores</td>.*1,000</td>.*970</td>.*bank</td>", page)
    assert re.search(r"ids</td>.*2,000</td>.*2,000</td>.*nobody</td>", page)
    assert "2096" in page  # the year in which the certificate expires


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("counts", [None, ScoreCounts(7, 5)])
def test_bytes_count_for_every_outcome(outcome: Outcome, counts: ScoreCounts | None) -> None:
    """A refused or failed request has sent bytes as well; ids and rows count only if the request has counts."""
    pytest.importorskip("prometheus_client")
    page_monitor = Monitor("shop", 4e9)
    for sent in (10, 300):
        page_monitor.count(RequestOutcome(outcome, 0.5, counts, sent))
    value = page_monitor.registry.get_sample_value
    assert value("securevfl_sent_bytes_total") == 310
    assert value("securevfl_requests_total", {"outcome": outcome}) == 2
    rows = [value(f"securevfl_{name}_total") for name in ("ids_asked", "rows_scored")]
    assert rows == ([0, 0] if counts is None else [14, 10])


def test_a_service_is_down_before_its_start_and_after_expiry() -> None:
    pytest.importorskip("prometheus_client")
    now = [0.0]
    page_monitor = Monitor("shop", 4e9, clock=lambda: now[-1])
    assert page_monitor.health()[0] == 503
    page_monitor.watch(cast(Any, SimpleNamespace(busy=False, sessions=0, served=SERVED)))
    assert page_monitor.health()[0] == 200
    now.append(4e9 + 1)
    status, state = page_monitor.health()
    assert (status, state.status, state.certificate) == (503, "down", "expired")


def test_the_page_needs_no_other_file_and_runs_nothing() -> None:
    page = status_page(drifted())
    assert not re.search(r"<script|\ssrc=|href=|url\(|@import|https?:", page)
    assert "default-src 'none'" in page
    assert page.count('tabindex="0"') == page.count('class="wide"') >= 3

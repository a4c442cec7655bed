"""Chromium opens the pages from disk, on a desk and on a phone: no console error, nothing wider than the screen."""

import re
import shutil
import subprocess
from collections.abc import Callable
from html import escape
from pathlib import Path

import numpy as np
import pytest

import securevfl as vfl
from securevfl.audit.page import html
from securevfl.audit.report import run_audit
from securevfl.data.columns import columns_of
from securevfl.data.correlations import page_of
from securevfl.data.drift import drifts
from securevfl.training.drift_page import page as drift_page
from tests.organisations.test_monitor_page import status_page

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or ""
pytestmark = pytest.mark.skipif(not BROWSER, reason="needs chromium")
FRAME = """<html><body><iframe style="border: 0" width="{width}" height="900" srcdoc="{page}"></iframe><script>
const inner = () => document.querySelector('iframe').contentDocument.documentElement
onload = () => {{ document.title = 'width ' + inner().scrollWidth }}
</script></body></html>"""


def opened(path: Path, profile: Path) -> tuple[str, list[str]]:
    """The page as the browser has it once it is loaded, and what came to its console."""
    options = "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1280,900"
    words = [BROWSER, *options, f"--user-data-dir={profile}", "--dump-dom", path.as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def check(page: Path, width: int, tmp_path: Path) -> None:
    """The page in a window of its own, and in a frame as wide as the screen: windows are never below 500 pixels."""
    dom, console = opened(page, tmp_path / "profile")
    assert console == []
    assert "</main>" in dom
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width, page=escape(page.read_text(encoding="utf-8"))), encoding="utf-8")
    dom, console = opened(frame, tmp_path / "profile")
    assert console == []
    found = re.search(r"<title>width (\d+)</title>", dom)
    assert found, dom[:300]
    assert int(found[1]) <= width


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    parties = [party.take(np.arange(120, dtype=np.intp)) for party in vfl.datasets.breast_cancer(parties=2)]
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.2),
        protocol=vfl.Protocol(residual=vfl.Ckks()),
        batch_size=60,
        epochs=2,
        evaluate_every=1,
        accepts=["columns"],
    )
    vfl.simulate(job, parties).report(folder / "run.html")
    (folder / "audit.html").write_text(html(run_audit(job, parties, seeds=(0,))), encoding="utf-8")
    return {path.stem: path for path in folder.iterdir()}


@pytest.mark.parametrize(("page", "width"), [("run", 1280), ("run", 400), ("audit", 1280), ("audit", 400)])
@pytest.mark.long
def test_pages_open(page: str, width: int, pages: dict[str, Path], tmp_path: Path) -> None:
    check(pages[page], width, tmp_path)


@pytest.mark.long
def test_pages_of_columns_points_drift_and_service_open_together(tmp_path: Path, free_port: Callable[[], int]) -> None:
    """All in frames as wide as a phone, in one window: pages of one party's own, and what a service shows."""
    bank, shop = vfl.datasets.loans()
    job = vfl.Job(
        model=vfl.Logistic(), protocol="open", batch_size="all", epochs=2, prepare={"bins": 4},
        accepts=["columns", "rank", "label_auc", "fresh_equations"],
    )  # fmt: skip
    run = vfl.simulate(job, [bank, shop])
    part = run.parts["shop"]
    found = drifts(part.baseline, columns_of("shop", shop.X * 1.5, part.columns))
    run.scorecard().save(tmp_path / "card.html")
    pages = [
        vfl.describe(bank).page(),
        page_of(vfl.correlate([bank, shop])["shop"]),
        drift_page(found, part),
        (tmp_path / "card.html").read_text(encoding="utf-8"),
        status_page(found, free_port()),
    ]
    frame = tmp_path / "frames.html"
    inner = "".join(
        f'<iframe style="border: 0" width="400" height="700" srcdoc="{escape(page)}"></iframe>' for page in pages
    )
    script = "[...document.querySelectorAll('iframe')].map(f => f.contentDocument.documentElement.scrollWidth)"
    show = f"<script>onload = () => {{ document.title = {script} }}</script>"
    frame.write_text(f"<html><body>{inner}{show}</body></html>", encoding="utf-8")
    dom, console = opened(frame, tmp_path / "profile")
    assert console == []
    widths = re.search(r"<title>([\d,]+)</title>", dom)
    assert widths, dom[:300]
    assert [int(each) <= 400 for each in widths[1].split(",")] == [True] * len(pages)


@pytest.mark.long
def test_the_check_sees_errors_and_what_is_too_wide(tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<html><body><main><script>lacking()</script></main></body></html>")
    with pytest.raises(AssertionError, match="CONSOLE"):
        check(bad, 400, tmp_path)
    bad.write_text("<html><body><main><div style='width: 700px'>x</div></main></body></html>")
    with pytest.raises(AssertionError, match="<= 400"):
        check(bad, 400, tmp_path)

"""Chromium opens the pages from disk, in the widths of a desktop and of a phone, light and dark.

No page has a console error, content wider than the screen, text that is cut, overlaps other text or is too pale, or an
axis with two equal ticks.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from html import escape, unescape
from pathlib import Path

import numpy as np
import pytest

import securevfl as vfl
from securevfl.audit.page import html
from securevfl.audit.report import run_audit
from securevfl.credit.correlations import page_of
from securevfl.credit.drift import measure_drift
from securevfl.credit.drift_page import page as drift_page
from securevfl.data.columns import columns_of
from tests.organisations.test_monitor_page import status_page

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or ""
pytestmark = pytest.mark.skipif(not BROWSER, reason="needs chromium")
ROOT = Path(__file__).parents[2]
COLOUR_SCHEMES = {"light": 1, "dark": 0}  # as Chromium numbers them
# colours and width, which do not depend on each other: each of them once, and all pairs in `make soak`
SCREENS = [
    pytest.param("light", 400),
    pytest.param("dark", 1400),
    pytest.param("light", 1400, marks=pytest.mark.slow),
    pytest.param("dark", 400, marks=pytest.mark.slow),
]
LOOK = """
const found = [], shown = text => text.trim().slice(0, 30)
const numbers = colour => (colour.match(/[\\d.]+/g) || []).map(Number)
const light = colour => numbers(colour).slice(0, 3).map(each => each / 255)
  .map(each => each <= .04045 ? each / 12.92 : ((each + .055) / 1.055) ** 2.4)
  .reduce((sum, each, k) => sum + each * [.2126, .7152, .0722][k], 0)
const contrast = (one, other) => {
  const [low, high] = [light(one), light(other)].sort((a, b) => a - b)
  return (high + .05) / (low + .05)
}
const covers = (inner, outer) => inner.width >= .9 * outer.width && inner.height >= .9 * outer.height
function ground(node, view) {
  for (let at = node; at; at = at.parentElement) {
    const [r, g, b, a] = numbers(view.getComputedStyle(at).backgroundColor)
    if (a === undefined || a > .5) return `rgb(${r}, ${g}, ${b})`
    const backs = at.tagName === 'svg' ? [...at.querySelectorAll('rect')] : []
    const back = backs.find(each => covers(each.getBoundingClientRect(), at.getBoundingClientRect()))
    if (back) return view.getComputedStyle(back).fill
  }
  return 'rgb(255, 255, 255)'
}
function look(frame) {
  const page = frame.contentDocument, view = frame.contentWindow, where = frame.width + ': '
  page.querySelectorAll('details').forEach(each => { each.open = true })
  if (page.documentElement.scrollWidth > frame.clientWidth) found.push(where + 'wider than the screen')
  const texts = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT)
  while (texts.nextNode()) {
    const text = texts.currentNode, node = text.parentElement
    if (!text.data.trim() || ['STYLE', 'SCRIPT', 'TITLE', 'style'].includes(node.tagName)) continue
    const style = view.getComputedStyle(node), inSvg = node.closest('svg'), size = parseFloat(style.fontSize)
    const ratio = contrast(inSvg ? style.fill : style.color, ground(node, view))
    if (ratio < (size >= 24 || (size >= 18.66 && style.fontWeight >= 600) ? 3 : 4.5))
      found.push(where + 'contrast ' + ratio.toFixed(1) + ' of ' + shown(text.data))
    const range = page.createRange()
    range.selectNodeContents(text)
    const place = range.getBoundingClientRect(), holder = inSvg || node.closest('td, th, p, h1, h2, pre') || page.body
    const edge = holder.getBoundingClientRect()
    if (node.tagName === 'PRE') {  // spaces at the end of its lines may be beyond its edge
      if (node.scrollWidth > node.clientWidth + 1) found.push(where + 'cut ' + shown(text.data))
    } else if (place.right > edge.right + 1 || place.left < edge.left - 1 || (inSvg && place.bottom > edge.bottom + 1))
      found.push(where + 'cut ' + shown(text.data))
  }
  for (const svg of page.querySelectorAll('svg')) {
    for (const axis of ['tick-x', 'tick-y']) {
      const labels = [...svg.querySelectorAll('.' + axis)].map(each => each.textContent)
      if (new Set(labels).size < labels.length) found.push(where + 'repeated tick among ' + labels.join(' '))
    }
    for (const mark of svg.querySelectorAll('polyline, circle, rect[style], path.error')) {
      const style = view.getComputedStyle(mark), colour = style.fill === 'none' ? style.stroke : style.fill
      if (contrast(colour, ground(svg, view)) < 3) found.push(where + 'pale mark ' + colour)
    }
    const own = [...svg.querySelectorAll('text')].map(each => [each, each.getBoundingClientRect()])
    own.forEach(([one, a], k) => own.slice(k + 1).forEach(([other, b]) => {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left)
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)
      if (across > 1.5 && down > .35 * Math.min(a.height, b.height))
        found.push(where + 'overlap of ' + shown(one.textContent) + ' and ' + shown(other.textContent))
    }))
  }
}
onload = () => {
  document.querySelectorAll('iframe').forEach(look)
  document.querySelector('pre').textContent = JSON.stringify(found)
}
"""


def opened(path: Path, profile: Path, colours: str = "light") -> tuple[str, list[str]]:
    """Return the page's DOM after loading, and the messages of the browser's console."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1500,900"]
    options.append(f"--blink-settings=preferredColorScheme={COLOUR_SCHEMES[colours]}")
    words = [BROWSER, *options, f"--user-data-dir={profile}", "--dump-dom", path.as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def faults(pages: Sequence[str], colours: str, tmp_path: Path, widths: Sequence[int]) -> list[str]:
    """List the faults that the browser finds in these pages, in frames of each screen width.

    Faults are text that is cut, overlaps other text or is hardly legible, and content wider than its screen.
    """
    frame = tmp_path / "frames.html"
    inner = "".join(
        f'<iframe style="border: 0" width="{width}" height="900" srcdoc="{escape(page)}"></iframe>'
        for page in pages
        for width in widths
    )
    head = '<html><head><meta charset="utf-8"><meta name="color-scheme" content="light dark"></head>'
    frame.write_text(f"{head}<body>{inner}<pre></pre><script>{LOOK}</script></body></html>", encoding="utf-8")
    dom, console = opened(frame, tmp_path / "profile", colours)
    assert console == []
    match = re.search(r"<pre>(\[.*\])</pre>", dom, re.S)
    assert match, dom[-500:]
    problems: list[str] = json.loads(unescape(match[1]))
    return problems


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    parties = [party.take(np.arange(120, dtype=np.intp)) for party in vfl.datasets.breast_cancer(parties=2)]
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.2),
        protocol=vfl.Protocol(residual=vfl.Ckks()),
        batch_size=100,  # more rows than the slowest attack can use
        epochs=2,
        evaluate_every=1,
        accepts=["columns"],
    )
    vfl.simulate(job, parties).report(folder / "run.html")
    (folder / "audit.html").write_text(html(run_audit(job, parties, seeds=(0,))), encoding="utf-8")
    return {path.stem: path for path in folder.iterdir()}


@pytest.mark.parametrize("page", ["run", "audit"])
@pytest.mark.long
def test_a_page_opens_in_a_window_of_its_own(page: str, pages: dict[str, Path], tmp_path: Path) -> None:
    dom, console = opened(pages[page], tmp_path / "profile")
    assert console == []
    assert "</main>" in dom


@pytest.mark.parametrize(("colours", "width"), SCREENS)
@pytest.mark.long
def test_pages_can_be_read_on_a_phone_and_a_desk(
    colours: str, width: int, pages: dict[str, Path], tmp_path: Path
) -> None:
    assert faults([page.read_text(encoding="utf-8") for page in pages.values()], colours, tmp_path, [width]) == []


PRINTED_WIDTH = 718  # pixels of a page of A4 without its margins, at 96 to the inch


@pytest.mark.long
def test_printed_pages_have_no_cut_text(pages: dict[str, Path], tmp_path: Path) -> None:
    """With the style of print media, on paper, no text is cut or pale, also within what a screen folds."""
    job, parties = vfl.Job(model=vfl.Logistic()), list(vfl.datasets.loans())
    printed = [page.read_text(encoding="utf-8") for page in pages.values()] + [vfl.explain(job, parties).page()]
    assert all(page.count("@media print") == 1 for page in printed)
    on_paper = [page.replace("@media print", "@media all") for page in printed]
    assert faults(on_paper, "light", tmp_path, [PRINTED_WIDTH]) == []


@pytest.mark.long
def test_pictures_of_terminals_can_be_read(tmp_path: Path) -> None:
    figures = ROOT / "docs" / "figures"
    drawn = [figures / "demo.svg", *sorted((figures / "screens").glob("*.svg"))]
    assert len(drawn) > 5
    pictures = [f"<html><body><main>{picture.read_text(encoding='utf-8')}</main></body></html>" for picture in drawn]
    assert faults(pictures, "light", tmp_path, [1400]) == []


@pytest.mark.long
def test_pages_of_columns_points_drift_and_service_open_together(tmp_path: Path) -> None:
    """Open pages of a party and of a service in one window, in frames as wide as a phone."""
    bank, shop = vfl.datasets.loans()
    job = vfl.Job(
        model=vfl.Logistic(), protocol="open", batch_size="all", epochs=2, prepare={"bins": 4},
        accepts=["columns", "rank", "label_auc", "fresh_equations"],
    )  # fmt: skip
    run = vfl.simulate(job, [bank, shop])
    part = run.parts["shop"]
    drift = measure_drift(part.baseline, columns_of("shop", shop.X * 1.5, part.columns))
    vfl.scorecard(run.parts).save(tmp_path / "card.html")
    pages = [
        vfl.describe(bank).page(),
        page_of(vfl.correlate([bank, shop])["shop"]),
        drift_page(drift, part),
        (tmp_path / "card.html").read_text(encoding="utf-8"),
        status_page(drift),
    ]
    for colours, width in (("light", 400), ("dark", 1400)):
        assert faults(pages, colours, tmp_path, [width]) == []


@pytest.mark.long
def test_the_check_sees_what_is_amiss(tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<html><body><main><script>lacking()</script></main></body></html>")
    assert "CONSOLE" in opened(bad, tmp_path / "profile")[1][0]
    ticks = '<text class="tick-x" x="5" y="75">0.9</text><text class="tick-x" x="60" y="75">0.9</text>'
    ticks += '<polyline points="0,0 9,9" style="stroke: #eee" fill="none"/>'
    texts = '<text x="10" y="20">one</text><text x="12" y="21">two</text><text x="95" y="60">far out</text>'
    page = f"""<html><body style="margin: 0; background: #fff"><div style="width: 700px">x</div>
        <p style="color: #999">pale</p><p style="width: 30px; overflow: hidden; white-space: nowrap">cut text</p>
        <svg viewBox="0 0 100 80" width="400">{texts}{ticks}</svg></body></html>"""
    findings = " ".join(faults([page], "light", tmp_path, [400]))
    for fault in ("wider than the screen", "contrast 2.8 of pale", "cut cut text", "overlap of one", "cut far out"):
        assert fault in findings
    for fault in ("repeated tick among 0.9 0.9", "pale mark rgb(238, 238, 238)"):
        assert fault in findings

"""Pictures of terminals show the current output of the commands, except for figures, which differ between runs."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"
pytestmark = pytest.mark.skipif(not FIGURES.exists(), reason="needs a checkout")


def words(picture: str) -> str:
    """Return the text of a picture without figures and their positions."""
    text = " ".join(unescape(item) for item in re.findall(r"<text[^>]*>([^<]*)</text>", picture))
    return re.sub(r"[\s\u2500]+", " ", re.sub(r"\d[\d,.]*", "#", text)).strip()


@pytest.mark.parametrize(
    "name",
    [
        "explain",
        "describe",
        pytest.param("train", marks=pytest.mark.long),
        pytest.param("join", marks=pytest.mark.slow),
        pytest.param("demo", marks=pytest.mark.slow),
    ],
)
def test_a_picture_shows_what_the_command_prints(name: str, tmp_path: Path) -> None:
    screens = pytest.importorskip("benchmarks.screens")
    screens.prepared(tmp_path)
    command = screens.TERMINALS[name]
    printed = screens.joined(tmp_path, command) if name == "join" else screens.shown(tmp_path, command)
    stored = (FIGURES if name == "demo" else FIGURES / "screens") / f"{name}.svg"
    result, displayed = words(screens.drawn(command, printed)), words(stored.read_text(encoding="utf-8"))
    if name == "join":  # the remaining text states the duration
        result, displayed = (item.partition("[y/N]")[0] for item in (result, displayed))
    assert result == displayed, "python -m benchmarks.screens docs/figures"


def test_one_command_creates_every_picture_on_the_page() -> None:
    screens = pytest.importorskip("benchmarks.screens")
    pages = (page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    displayed = {
        terminal for page in pages for terminal in re.findall(r"\(figures/(demo\.svg|screens/[\w.-]+)\)", page)
    }
    photographed = {
        f"screens/{terminal}-{at}-{how}.png"
        for terminal in screens.PHOTOGRAPHED_PAGES
        for at in screens.SCREEN_WIDTHS
        for how in screens.COLOUR_SCHEMES
    }
    elapsed = {
        "demo.svg",
        *(f"screens/{terminal}.svg" for terminal in screens.TERMINALS if terminal != "demo"),
    } | photographed
    assert displayed == elapsed
    assert {f"screens/{path.name}" for path in (FIGURES / "screens").iterdir()} | {"demo.svg"} == elapsed

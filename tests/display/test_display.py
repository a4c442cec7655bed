"""Charts, tables and bars draw their input and escape text; nothing is shown without a terminal."""

import inspect
import os
import pty
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from itertools import chain

import pytest

from securevfl.display import html, svg
from securevfl.display.printable import printable
from securevfl.display.progress import ProgressLines, progress, watched


def test_ticks_are_round_and_span() -> None:
    assert svg.ticks(0.0, 1.0) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert svg.ticks(1.0, 40.0) == [0, 10, 20, 30, 40]
    for low, high in [(0.013, 0.0131), (-5e6, 3e7), (2.0, 2.0), (0.0, 0.0), (-1e-9, 1e-9)]:
        positions = svg.ticks(low, high)
        assert positions[0] <= low + 1e-12
        assert positions[-1] >= high - 1e-12
        assert 2 <= len(positions) <= 9


def points(svg: str) -> list[list[tuple[float, float]]]:
    """Return the points of every line."""
    lines = re.findall(r'<polyline points="([^"]*)"', svg)
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in line.split())] for line in lines]


def test_lines_go_where_the_values_are() -> None:
    chart = svg.line_chart({"a": [(0, 0.0), (1, 1.0), (2, 0.5)]}, x="round", y="loss")
    ((x0, y0), (x1, y1), (x2, y2)) = points(chart)[0]
    assert (x0, x2) == (svg.MARGIN_LEFT, svg.CHART_WIDTH - svg.MARGIN_RIGHT)
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1)
    assert (y0, y1) == (svg.CHART_HEIGHT - svg.MARGIN_BOTTOM, svg.MARGIN_TOP)
    assert y2 == pytest.approx((y0 + y1) / 2, abs=0.1)


def test_what_is_not_finite_is_left_out() -> None:
    nan, inf = float("nan"), float("inf")
    assert len(points(svg.line_chart({"a": [(0, 1.0), (1, nan), (2, inf), (3, 2.0)]}, x="x", y="y"))[0]) == 2
    assert svg.line_chart({"a": [(0, nan)], "b": []}, x="x", y="y") == ""


def test_long_lines_are_thinned_and_keep_their_end() -> None:
    (line,) = points(svg.line_chart({"a": [(k, float(k)) for k in range(10_000)]}, x="x", y="y"))
    assert len(line) <= svg.MAX_LINE_POINTS + 1
    assert line[-1] == (svg.CHART_WIDTH - svg.MARGIN_RIGHT, svg.MARGIN_TOP)


def test_stacked_bars_are_as_long_as_their_values() -> None:
    rows = {"training": {"encryption": 3.0, "network": 1.0}, "evaluation": {"encryption": 0.0, "network": 0.0}}
    chart = svg.stacked_bars(rows, unit="seconds")
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', chart)]
    axis = svg.CHART_WIDTH - 2 * svg.BAR_LEFT  # pixels of the axis, from 0 to 4 seconds
    assert widths == pytest.approx([0.75 * axis, 0.25 * axis, 0.0, 0.0], abs=0.1)
    assert "network" in chart
    assert "evaluation" in svg.stacked_bars({"evaluation": {"encryption": 0.0}}, unit="s")


def test_bars_begin_at_their_base_and_show_the_error() -> None:
    chart = svg.bar_chart({"alone": (0.6, 0.1), "together": (0.8, None)}, x="AUC", base=0.5)
    alone, together = (float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', chart))
    assert together == pytest.approx(3 * alone, rel=0.02)
    (error,) = re.findall(r'class="error" d="M([\d.]+) [\d.]+H([\d.]+)', chart)
    assert float(error[1]) - float(error[0]) == pytest.approx(2 * alone, rel=0.02)
    assert "alone: 0.60 ± 0.10" in chart


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.86812, 0.0131, "0.868 ± 0.013"),
        (12345.6, 123.0, "12,346 ± 123"),
        (0.5, 1e-9, "0.500000 ± 0.000000"),
        (0.12345, None, "0.1235"),
        (0.12345, float("nan"), "0.1235"),
        (1.0, 0.0, "1"),
    ],
)
def test_a_figure_has_two_digits_of_its_error(value: float, error: float | None, text: str) -> None:
    assert html.with_error(value, error) == text


@pytest.mark.parametrize("value", [0.868, 1e-7, 123456.789, -3.2, 0.0, 1e12])
def test_no_label_occurs_twice_on_an_axis(value: float) -> None:
    for spread in (0.0, 1e-15, 1e-9, 1e-6, 1e-3, 0.1, 10.0):
        positions = svg.ticks(value, value + spread * max(abs(value), 1.0))
        labels = svg.tick_labels(positions)
        assert len(set(labels)) == len(labels) >= 2
        assert [float(label.replace(",", "")) for label in labels] == pytest.approx(positions, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("value", [0.868, -0.02, 0.0, 41.0])
def test_an_axis_is_as_wide_as_demanded(value: float) -> None:
    low, high = svg.axis_range(value, value + 0.001, min_span=0.08)
    assert high - low >= 0.08 - 1e-12
    assert low <= value <= value + 0.001 <= high
    assert low >= 0 or value < 0
    assert svg.axis_range(0.4, 0.6, covered=(0.0, 1.0)) == (0.0, 1.0)


BAD = "q\"q<script>alert('x')</script>\u202e\x1b"
PICTURES: dict[str, Callable[[], str]] = {
    "html.page": lambda: html.page(BAD, []),
    "html.section": lambda: html.section(BAD),
    "html.details": lambda: html.details(BAD),
    "html.table": lambda: html.table([BAD], [[BAD]], stacked=True),
    "html.facts": lambda: html.facts({BAD: BAD}),
    "html.terms": lambda: html.terms({BAD: BAD}),
    "html.items": lambda: html.items([BAD]),
    "html.escape": lambda: html.escape(BAD),
    "svg.line_chart": lambda: svg.line_chart({BAD: [(0, 1.0)], "b": [(0, 2.0)]}, x=BAD, y=BAD),
    "svg.bar_chart": lambda: svg.bar_chart({BAD: (1.0, 0.1)}, x=BAD),
    "svg.stacked_bars": lambda: svg.stacked_bars({BAD: {BAD: 1.0}}, unit=BAD),
    "svg.captioned": lambda: svg.captioned(BAD, "<svg></svg>", BAD),
    "svg.legend": lambda: svg.legend({BAD: "red"}),
}
"""A call of each function that returns markup, with this text in each of its arguments."""
WITHOUT_TEXT = {"html.cell_text", "html.with_error", "svg.swatch", "svg.side_by_side"}
"""Functions that return text without markup, or whose arguments are markup or colours."""


@pytest.mark.parametrize("name", PICTURES)
def test_text_is_escaped_everywhere(name: str) -> None:
    drawn = PICTURES[name]()
    assert "&lt;script&gt;" in drawn
    assert not [unsafe for unsafe in ('q"q', "<script", "\u202e", "\x1b") if unsafe in drawn]


def test_every_function_that_draws_is_in_the_table() -> None:
    drawing = {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in (html, svg)
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and not name.startswith("_")
        and inspect.signature(function).return_annotation == "str"
    }
    assert drawing == set(PICTURES) | WITHOUT_TEXT


def test_a_page_may_load_and_run_nothing() -> None:
    policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    assert policy in html.page("title", []).partition("</head>")[0]


def test_no_character_controls_a_terminal_or_reorders_a_text() -> None:
    """The Unicode database of Python names the characters; lone surrogates cannot be written to a file."""
    reordering = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    for character in map(chr, chain(range(0x3000), range(0xD700, 0x10000))):
        unsafe = (
            unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
            or unicodedata.bidirectional(character) in reordering
            or character in "\u061c\u200e\u200f"  # Unicode has no bidirectional class for these marks alone
        )
        escaped = printable(f"a{character}b")
        if unsafe and character not in "\t\n":
            assert character not in escaped
            assert escaped.isascii()
        else:
            assert escaped == f"a{character}b"


def test_figures_stand_to_the_right_and_words_to_the_left() -> None:
    table = html.table(["name", "count"], [["a", 1234567], ["b", 0.123456]])
    assert '<td>a</td><td class="figure">1,234,567</td>' in table
    assert '<td class="figure">0.1235</td>' in table


def test_nobody_looks_and_nothing_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with progress("training") as on_step:
        on_step(1, 2)
    assert capfd.readouterr() == ("", "")


def test_a_terminal_shows_a_bar() -> None:
    code = (
        "import time\nfrom securevfl.display.progress import progress\n"
        "with progress('training') as on_step:\n    for k in range(4): on_step(k, 4); time.sleep(.15)\n"
    )
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "90"}
    with subprocess.Popen([sys.executable, "-c", code], stderr=slave, env=environment) as process:
        os.close(slave)
        screen = b""
        while True:
            try:
                piece = os.read(master, 4096)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            screen += piece
        assert process.wait() == 0
    os.close(master)
    assert b"training" in screen
    assert b"2/4" in screen


def test_watched_tells_both() -> None:
    heard: list[tuple[int, int]] = []
    with watched("training", True, lambda done, of: heard.append((done, of))) as progress:
        assert progress is not None
        progress(1, 2)
    assert heard == [(1, 2)]
    with watched("training", False, None) as progress:
        assert progress is None


def test_a_notebook_without_widgets_gets_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with progress("training", line_seconds=0.0) as on_step:
        on_step(1, 4)
    assert capsys.readouterr().err.startswith("training: 1 of 4")


def test_lines_of_a_log_end_with_where_the_work_ended(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = iter([0.0, 10.0, 11.0, 12.0])
    progress_lines = ProgressLines("training", line_seconds=5.0, clock=lambda: next(seconds))
    progress_lines.step(17, 40)
    progress_lines.step(30, 40)
    progress_lines.end()
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(", ")[0] for line in lines] == ["training: 17 of 40", "training: 30, finished"]
    with progress("short") as on_step:
        on_step(3, 3)
    assert capsys.readouterr().err == ""

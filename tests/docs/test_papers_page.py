"""The page of the papers' tables names every part of the results, and only commands that exist."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.papers.__main__ import PAPERS

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"
TITLES = {
    "fedbcd": "FedBCD",
    "celu": "CELU-VFL",
    "fdml": "FDML",
    "fdskl": "FDSKL",
    "ftl": "Transfer learning",
}


def section(paper: str) -> str:
    """Return the section of a paper."""
    text = PAGE.read_text(encoding="utf-8")
    return re.split(r"^## ", text.split(f"\n## {TITLES[paper]}\n")[1], flags=re.MULTILINE)[0]


@pytest.mark.parametrize("paper", PAPERS)
def test_all_parts_of_a_paper_are_named(paper: str) -> None:
    parts = import_module(f"benchmarks.papers.{paper}").PARTS
    text = PAGE.read_text(encoding="utf-8") if paper == "ftl" else section(paper)
    for part in parts:
        assert re.search(rf"`(python -m benchmarks\.papers {paper} )?--only {part}\b|`{part}`", text), part


def test_all_commands_exist() -> None:
    commands = re.findall(r"python -m benchmarks\.papers (\w+) --only (\w+)(?: --data \S+)?`", PAGE.read_text())
    assert len(commands) > 15
    for paper, part in commands:
        assert part in import_module(f"benchmarks.papers.{paper}").PARTS, (paper, part)


def test_each_item_has_a_command_or_a_reason() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "|---" not in line]
    items = [line.strip("| ").split(" | ") for line in lines]
    assert len(items) > 50
    for item, *text in items:
        if item != "item":
            reason = r"`|not done|not public|no command|not part"
            assert len(text) == 1, item
            assert re.search(reason, text[0]), item


NUMBERED = re.compile(r"\b(Figure|Table)(s?) (\d+|[IVX]+)([a-d]?)(?: and (\d+))?( \(\?\))?")
SOURCES = {
    "fedbcd": ("benchmarks/papers/fedbcd.py", "benchmarks/papers/mnist.py", "benchmarks/papers/*ftl.py"),
    "celu": ("benchmarks/papers/celu*.py", "benchmarks/papers/page_celu.py", "securevfl/models/torch_top.py"),
    "fdml": ("benchmarks/papers/fdml*.py", "benchmarks/papers/page_fdml.py"),
    "fdskl": ("benchmarks/papers/*fdskl*.py", "benchmarks/sums.py", "securevfl/models/*.py", "docs/sums.md"),
}
"""The files that number a paper's figures and tables. Those of transfer learning number FedBCD's."""
OTHER_PAPERS = {"fdskl": {"torch_top.py"}}


def numbers(text: str) -> dict[str, bool]:
    """Return the figures and tables that a text numbers, and whether a question mark follows each of them."""
    marks: dict[str, bool] = {}
    for kind, _, first, letter, second, mark in NUMBERED.findall(text):
        marks |= dict.fromkeys([f"{kind} {first}{letter}", *([f"{kind} {second}"] if second else [])], bool(mark))
    return marks


@pytest.mark.parametrize("paper", SOURCES)
def test_numbers_that_nobody_has_checked_carry_a_question_mark(paper: str) -> None:
    """Docstrings and pages number the figures and tables of a paper as this page does, question marks included."""
    listed = numbers(section(paper))
    root, mentions = PAGE.parents[1], 0
    for pattern in SOURCES[paper]:
        files = [file for file in sorted(root.glob(pattern)) if file.name not in OTHER_PAPERS.get(paper, ())]
        assert files, pattern
        for file in files:
            for number, marked in numbers(file.read_text(encoding="utf-8")).items():
                mentions += 1
                assert number in listed, (file.name, number)
                assert marked == listed[number], (file.name, number)
    assert mentions >= 2

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

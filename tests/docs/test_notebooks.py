"""The notebooks of examples/ run from the first cell to the last, and their stored outputs are current."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from docs import notebooks

FOLDER = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="needs a checkout")


def words(text: str) -> str:
    """Return text without figures, which differ between runs on shares."""
    return " ".join(re.sub(r"-?\d[\d,.]*(e-?\d+)?", "#", text).split())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_its_outputs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", notebooks.COLUMNS)
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert (stored["nbformat"], stored["metadata"]["kernelspec"]["language"]) == (4, "python")
    assert {cell["cell_type"] for cell in stored["cells"]} == {"markdown", "code"}
    outputs = [words(notebooks.shown(cell)) for cell in stored["cells"]]
    assert sum(map(bool, outputs)) >= 4
    current = [words(notebooks.shown(cell)) for cell in notebooks.run(path)["cells"]]
    assert current == outputs, "python -m docs.notebooks"


def test_a_cell_gives_its_text_and_its_last_value() -> None:
    printed, value = notebooks.outputs("print('a')\n1 + 1", {}, 3)
    assert printed["text"] == ["a\n"]
    assert (value["execution_count"], value["data"]) == (3, {"text/plain": ["2"]})
    assert notebooks.outputs("x = 1", {}, 1) == []


def test_there_are_four() -> None:
    assert len(NOTEBOOKS) == 4

"""docs/start.md does what it says, from its own two CSV files to a prediction, by its own blocks in their order."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "start.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="not beside a checkout")


def run(language: str, text: str, folder: Path) -> str:
    """What a block prints."""
    if language == "toml":
        (folder / "job.toml").write_text(text)
        return ""
    shell = f'securevfl() {{ "{sys.executable}" -m securevfl.cli.main "$@"; }}\nset -e\n{text}'
    words = [sys.executable, "-c", text] if language == "python" else ["sh", "-c", shell]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def figures(text: str) -> dict[str, float]:
    """The metrics that a command says."""
    return {name: float(value) for name, value in re.findall(r"(\w+) (\d\.\d{4})", text)}


def test_the_page(tmp_path: Path) -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    install, *blocks = blocks
    assert "pip install ." in install[1]
    shown = next(text for language, text in blocks if language == "text").strip()
    told = [run(language, text, tmp_path) for language, text in blocks if language != "text"]
    measured = figures(next(each for each in told if "auc" in each))
    assert {name: measured[name] for name in figures(shown)} == pytest.approx(figures(shown), abs=2e-3)
    assert any("bank (active, holds the labels)" in each for each in told)
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"bank.json", "shop.json"}
    assert re.search(r"\['in time' 'late'\] \[\[0\.\d+ 0\.\d+\]\]", told[-1])

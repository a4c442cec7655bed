"""docs/start.md works as written, from its two CSV files to a prediction, by its blocks in their order."""

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import securevfl as vfl
from tests.docs.test_pages import blocks
from tests.forked import command, run_forked

PAGE = Path(__file__).parents[2] / "docs" / "start.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="needs a checkout")


def run(language: str, text: str, folder: Path) -> str:
    """Return the output of a block."""
    if language == "toml":
        (folder / "job.toml").write_text(text)
        return ""
    shell = f'securevfl() {{ {command()} securevfl.cli.main "$@"; }}\nset -e\n{text}'
    start: Any = run_forked if language == "python" else subprocess.run
    words = [sys.executable, "-c", text] if language == "python" else ["sh", "-c", shell]
    done = start(words, cwd=folder, capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"})
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def figures(text: str) -> dict[str, float]:
    """Return the metrics of the joint model, the last column of the table that a command prints."""
    return {name: float(value) for name, value in re.findall(r"^(\w[\w ]*?) .* (\d+\.\d+) ± ", text, re.M)}


@pytest.mark.long
def test_the_page(tmp_path: Path) -> None:
    install, *programs = [(kind, text) for kind, text, not_run in blocks(PAGE) if not not_run]
    assert "pip install ." in install[1]
    (auc,) = re.findall(r"an\s+AUC of about (0\.\d\d) here", PAGE.read_text(encoding="utf-8"))
    lines = [run(language, text, tmp_path) for language, text in programs]
    measured = figures(next(item for item in lines if "AUC" in item and "±" in item))
    assert measured["AUC"] == pytest.approx(float(auc), abs=0.01)
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"bank.json", "shop.json"}
    assert re.search(r"\['in time' 'late'\] \[\[0\.\d+ 0\.\d+\]\]", lines[-1])

    with gzip.open(tmp_path / "shop.csv.gz", "wb") as file:  # the README has the same job, on a table in gzip
        file.write((tmp_path / "shop.csv").read_bytes())
    (line,) = re.findall(r"^securevfl explain .*$", (PAGE.parents[1] / "README.md").read_text(), re.MULTILINE)
    (sheet,) = [item for item in lines if item.startswith("Consent sheet: ")]
    assert "Who learns what, at most" in sheet
    assert run("sh", line, tmp_path) == sheet


def test_a_kit_without_a_job_has_the_job_of_the_page(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    run("toml", text, tmp_path)
    run("console", "securevfl kit kits --party bank=localhost:7301 --party shop=localhost:7302", tmp_path)
    of_page = vfl.Job.load(tmp_path / "job.toml").to_dict()
    assert of_page.pop("positive") == "late"
    for party in ("bank", "shop"):
        assert vfl.Job.load(tmp_path / "kits" / party / "job.toml").to_dict() == of_page

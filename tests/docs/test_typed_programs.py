"""Every Python program of the documentation passes `mypy --strict`, so the types of public names fit their use."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from securevfl.options import JobKeywords, JobOptions
from tests.docs.test_pages import OTHERS, PAGES, ROOT, blocks

SETTINGS = """
[mypy]
strict = True
# the package itself is checked by `make check`
follow_imports = silent
[mypy-selfcheck.*,statsmodels.*,pandas.*,sklearn.*,pyarrow.*,torch.*,distributed.*]
ignore_missing_imports = True
follow_imports = skip
disallow_subclassing_any = False
"""


def write_programs(folder: Path) -> dict[str, Path]:
    """Write the Python blocks of each page to one module, as `test_pages` runs them, and return the modules by page."""
    modules = {}
    for page in (*PAGES, *OTHERS):
        program = "".join(text for kind, text, why in blocks(page) if kind == "python" and not why)
        if program:
            modules[page.name] = folder / f"page_{re.sub(r'[^a-z]', '_', page.stem.lower())}.py"
            modules[page.name].write_text(program)
    return modules


def problems(folder: Path) -> str:
    """Return what mypy prints about all modules in a folder, in one run."""
    (folder / "settings.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--config-file", "settings.ini", "--cache-dir", str(folder / "cache"), "."]
    where = {**os.environ, "MYPYPATH": f"{ROOT}:{ROOT / 'tests'}"}
    done = subprocess.run(command, cwd=folder, env=where, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def test_keyword_types_are_those_of_the_options() -> None:
    assert list(JobKeywords.__annotations__) == list(JobOptions.model_fields)


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_programs_of_all_pages_pass_mypy_strict(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    pages = write_programs(tmp_path)
    assert len(pages) >= 15
    (tmp_path / "page_wrong.py").write_text("import securevfl as vfl\n\njob = vfl.Job(model=3, epoch=1)\n")
    lines = [line for line in problems(tmp_path).splitlines() if ": error:" in line]
    assert {line.split(":")[0] for line in lines} == {"page_wrong.py"}, "\n".join(lines)
    assert len(lines) >= 2  # the wrong type of model, and the unknown option

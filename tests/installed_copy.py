"""A copy of the installed package from which rooms are removed, as if they had never been installed.

The copy contains the modules and the entry points of `pyproject.toml`. A process whose PYTHONPATH is its folder imports
the package from there and reads the entry points from there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from securevfl.base.version import __version__

ROOT = Path(__file__).parents[1]
COMMAND = "from securevfl.cli.main import main; main()"
IS_COPY = """
import os, pathlib, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
import securevfl
assert pathlib.Path(securevfl.__file__).is_relative_to(os.environ["PYTHONPATH"]), securevfl.__file__
"""
"""First lines of a process: without the finder of an editable installation, which would supply the removed rooms."""


def install_copy(folder: Path, *, without: tuple[str, ...] = ()) -> Path:
    """Copy the installed package into a folder.

    Args:
        folder: the folder, which is created.
        without: names of the rooms to remove, such as "credit".

    Returns:
        The folder, for PYTHONPATH.
    """
    package = folder / "securevfl"
    unfinished = shutil.ignore_patterns("*.pyc.*")  # other processes write these and rename them
    shutil.copytree(ROOT / "securevfl", package, ignore=unfinished)  # follows links
    for room in without:
        shutil.rmtree(package / room)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    facts = folder / f"securevfl-{__version__}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: securevfl\nVersion: {__version__}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (facts / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def environment(folder: Path, **variables: str) -> Mapping[str, str]:
    """Return the environment variables of a process that imports the package from a copy, and compiles it once."""
    return os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": ""} | variables


def run_copy(folder: Path, *arguments: str, code: str = COMMAND, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command, or other code, with the package of a copy, and with the copy's parent as working directory."""
    words = [sys.executable, "-c", IS_COPY + code, *arguments]
    return subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=folder.parent, env=environment(folder, **variables)
    )

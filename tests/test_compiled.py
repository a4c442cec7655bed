"""pytest takes the modules that `make test` has rewritten before the workers start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.compiled import compile_all

FAILING = "def test_fails():\n    numbers = [1, 2]\n    assert numbers == [1, 3]\n"


def test_pytest_takes_the_stored_module_until_it_changes(tmp_path: Path) -> None:
    module, helper = tmp_path / "tests" / "test_new.py", tmp_path / "tests" / "helper.py"
    module.parent.mkdir()
    module.write_text(FAILING)
    helper.write_text("NUMBER = 1\n")
    compile_all(tmp_path, ["tests"])
    times = _times(module.parent / "__pycache__")
    assert len(times) == 2  # the module of tests, as pytest stores it, and the helper
    compile_all(tmp_path, ["tests"])
    assert _assertion(module) == "assert [1, 2] == [1, 3]"
    assert _times(module.parent / "__pycache__") == times

    module.write_text(FAILING.replace("[1, 3]", "[1, 4]"))
    compile_all(tmp_path, ["tests"])
    changed = _times(module.parent / "__pycache__")
    assert changed.keys() == times.keys()
    assert sum(changed[file] != times[file] for file in times) == 1
    assert _assertion(module) == "assert [1, 2] == [1, 4]"
    assert _times(module.parent / "__pycache__") == changed


def test_packages_without_bytecode_are_loaded_once(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "helper.py").write_text("import json, mypackage.part, missing_package\n")
    package = tmp_path / "packages" / "mypackage"
    package.mkdir(parents=True)
    for name in ("__init__", "part", "unused"):
        (package / f"{name}.py").write_text("")
    assert _loaded(tmp_path) == ["mypackage.part"]
    assert {name.partition(".")[0] for name in _times(package / "__pycache__")} == {"__init__", "part"}
    assert _loaded(tmp_path) == []


def _loaded(root: Path) -> list[str]:
    """Return the modules that a new process loads for the tests in a folder."""
    code = "import pathlib, tests.compiled as c; print(*c.load_packages(pathlib.Path.cwd(), ['tests']))"
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(root / "packages")])
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    run = subprocess.run([sys.executable, "-c", code], cwd=root, env=env, capture_output=True, text=True, check=True)
    return run.stdout.split()


def _times(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}


def _assertion(module: Path) -> str:
    """Run pytest on the module, and return the assertion that it prints as failed."""
    run = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(module.parent), str(module)]
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    printed = subprocess.run(run, cwd=module.parent, env=env, capture_output=True, text=True, check=False).stdout
    return next(line.removeprefix("E").strip() for line in printed.splitlines() if line.startswith("E "))

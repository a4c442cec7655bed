"""p-values are counted over all workers of a test run, and the run fails if there are too many."""

import os
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest
from selfcheck.suite import budget
from selfcheck.suite.budget import Budget

SUITE = """
import importlib.util
import pytest

spec = importlib.util.spec_from_file_location("budget", {path!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
budget = module.budget

@pytest.mark.parametrize("number", range(2))
def test_within(number, budget):
    budget.spend(30, most={most})
"""


def spend(path: Path) -> None:
    for _ in range(100):
        Budget(path).spend(1, most=200)


def test_processes_add_to_one_count(tmp_path: Path) -> None:
    context = get_context("fork")
    both = [context.Process(target=spend, args=(tmp_path / "count",)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    with pytest.raises(AssertionError, match="201 p-values"):
        Budget(tmp_path / "count").spend(1, most=200)


@pytest.mark.parametrize(("most", "failed"), [pytest.param(120, 0, marks=pytest.mark.slow), (119, 1)])
def test_a_run_on_two_workers_fails_as_a_whole(most: int, failed: int, tmp_path: Path) -> None:
    """Each of two workers computes 60 p-values, and neither alone exceeds the limit."""
    pytest.importorskip("xdist")
    (tmp_path / "test_suite.py").write_text(SUITE.format(path=budget.__file__, most=most))
    run = [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "2", "--dist", "each", "--rootdir", "."]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(run, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if failed else 0), done.stdout
    assert f"{4 - failed} passed" in done.stdout
    assert (f"{failed} failed" in done.stdout) == bool(failed)

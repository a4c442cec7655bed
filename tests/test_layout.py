"""Where things are: public names, folders that do not import bare, one direction of imports."""

import subprocess
import sys
from pathlib import Path

import pytest

import securevfl as vfl

ROOT = Path(__file__).parents[1]


def test_public_names_exist_and_are_sorted() -> None:
    assert vfl.__all__ == sorted(vfl.__all__)
    assert all(hasattr(vfl, name) for name in vfl.__all__)


@pytest.mark.skipif(not (ROOT / "crypto").is_dir(), reason="not beside a checkout")
@pytest.mark.parametrize("name", ["crypto", "protocols"])
def test_the_folders_are_no_packages_of_their_own(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"ImportError: import this package as securevfl.{name}" in done.stderr


def test_phe_is_an_extra_that_nothing_else_needs() -> None:
    code = "import sys, securevfl, securevfl.cli.main; assert 'phe' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

"""A test that writes to the home folder fails, and never reaches the developer's home."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from securevfl.account.commit_counter import state_folder
from securevfl.disclosure.ledger import default_ledger
from tests.forked import run_forked
from tests.user_home import check_home


def test_no_process_has_the_developers_home() -> None:
    developers = pwd.getpwuid(os.getuid()).pw_dir
    words = [sys.executable, "-c", "from pathlib import Path; print(Path.home())"]
    printed = run_forked(words, capture_output=True, text=True, check=True).stdout.strip()
    assert developers not in (str(Path.home()), printed)
    assert printed == str(Path.home())


@pytest.mark.parametrize(
    ("variable", "file"),
    [("XDG_DATA_HOME", lambda: default_ledger("shop")), ("SECUREVFL_STATE", lambda: state_folder() / "counter")],
)
def test_a_file_of_the_package_in_the_home_is_found_and_removed(
    variable: str, file: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(variable)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    check_home(tmp_path)
    file().parent.mkdir(parents=True)
    file().write_text("written")
    with pytest.raises(AssertionError):
        check_home(tmp_path)
    check_home(tmp_path)

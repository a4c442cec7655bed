"""A check that tests write no file of this package below the home folder.

The tests run with an empty folder as HOME. A developer's home contains the developer's disclosure ledgers and commit
counters, and a test that writes there would change what the developer's next job may disclose.
"""

from __future__ import annotations

import shutil
from pathlib import Path


def check_home(home: Path) -> None:
    """Raise AssertionError if `home` contains files of this package, and remove them."""
    written = [folder for kind in ("share", "state") if (folder := home / ".local" / kind / "securevfl").exists()]
    files = [path.relative_to(home).as_posix() for folder in written for path in folder.rglob("*") if path.is_file()]
    for folder in written:
        shutil.rmtree(folder)
    assert not written, f"a test or its fixture writes below the user's home: {files}; set XDG_DATA_HOME for it"

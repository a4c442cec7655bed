"""A PostgreSQL server of Debian's packages for tests, in a folder of its own, with a socket in this folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PASSWORD = "correct-horse"


def _program(name: str) -> str | None:
    """Return the path of a program of PostgreSQL; Debian does not put them on the path."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(installed[-1]) if installed else None)


@contextmanager
def postgres() -> Iterator[str]:
    """Start a server, and yield the address of its database; skips where PostgreSQL is not installed."""
    initdb, pg_ctl = _program("initdb"), _program("pg_ctl")
    if initdb is None or pg_ctl is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    # PostgreSQL refuses to run as root; the path of a socket may have 107 characters
    as_root = os.getuid() == 0
    user = ["runuser", "-u", "postgres", "--"] if as_root else []
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        folder = Path(name)
        password = folder / "password"
        password.write_text(PASSWORD)
        if as_root:
            shutil.chown(folder, "postgres")
            shutil.chown(password, "postgres")
        data = str(folder / "data")
        create = [*user, initdb, "-D", data, "-U", "bank", "-A", "scram-sha-256", "-N", "--pwfile", str(password)]
        subprocess.run(create, check=True, capture_output=True, cwd=folder)
        options = f"-k {folder} -c listen_addresses='' -c fsync=off"
        start = [*user, pg_ctl, "-D", data, "-w", "-o", options, "-l", str(folder / "log"), "start"]
        subprocess.run(start, check=True, stdout=subprocess.DEVNULL, cwd=folder)
        try:
            yield f"postgresql://bank:{PASSWORD}@/postgres?host={folder}"
        finally:
            stop = [*user, pg_ctl, "-D", data, "-m", "immediate", "stop"]
            subprocess.run(stop, check=True, capture_output=True, cwd=folder)

"""The command ends with a message if SIGTERM arrives while modules are imported."""

from __future__ import annotations

import subprocess
import sys

STOPPED_IN_IMPORT = """
import builtins, os, signal
from securevfl.cli import entry
load = builtins.__import__
def stopping(name, *rest):
    if name == "securevfl.cli.main":
        os.kill(os.getpid(), signal.SIGTERM)
    return load(name, *rest)
builtins.__import__ = stopping
entry.main()
"""


def test_sigterm_during_imports_ends_with_a_message() -> None:
    ended = subprocess.run([sys.executable, "-c", STOPPED_IN_IMPORT, "--help"], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (143, b"")
    assert ended.stderr == b"stopped by SIGTERM. Run the same command again.\n"

"""The number of p-values that a run of the suite may compute, counted over all of its workers.

The false-alarm rate of `statistics` holds up to a maximum number of p-values. Every check adds its number of p-values
to a file that all workers of a run share, and checks the total. Mutants, which are meant to fail, do not count.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["Budget", "budget"]


class Budget:
    """A count that processes share through a file; each addition is one short line, which is written atomically."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def spend(self, count: int, *, most: int) -> None:
        """Add `count` to the total. Raises AssertionError if the total exceeds `most`."""
        line = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(line, b"%d\n" % count)
        finally:
            os.close(line)
        total = sum(map(int, self._path.read_text(encoding="ascii").split()))
        assert total <= most, f"{total} p-values in this run, at most {most} were allowed for: raise MAX_TESTS"


@pytest.fixture(scope="session")
def budget(tmp_path_factory: pytest.TempPathFactory) -> Budget:
    """Return the count of this run, stored in the folder that the workers of pytest-xdist share, if there are any."""
    base = tmp_path_factory.getbasetemp()
    return Budget((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "p-values")

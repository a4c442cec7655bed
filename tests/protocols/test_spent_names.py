"""The names of used chunks in a party's account, and on a full disk."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from securevfl.errors import ProtocolError
from securevfl.protocols.shares.spent_chunks import SpentChunks
from tests.builders import raises_code
from tests.forked import run_forked

FULL_DISK_SCRIPT = """
import resource, sys
from pathlib import Path
from securevfl.errors import StorageError
from securevfl.protocols.shares.spent_chunks import SpentChunks
path = Path(sys.argv[1])
names = SpentChunks(path)
for number in range(200):
    names.spend(bytes([number]) * 16)
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, resource.RLIM_INFINITY))
spent = 200
try:
    for number in range(200, 20_000):
        names.spend(number.to_bytes(16, "big"))
        spent += 1
except StorageError as error:
    print("refused", names.contains(number.to_bytes(16, "big")))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
names.spend(b"the last name 16")
"""


def test_a_name_without_room_on_disk_is_not_spent(tmp_path: Path) -> None:
    path = tmp_path / "names"
    done = run_forked([sys.executable, "-c", FULL_DISK_SCRIPT, str(path)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("refused False\n", "")
    assert SpentChunks(path).contains(b"the last name 16")


@pytest.mark.parametrize("stored", [True, False])
def test_a_name_is_spent_once(stored: bool, tmp_path: Path) -> None:
    path = tmp_path / "names" if stored else None
    names = SpentChunks(path)
    assert not names.contains(bytes(16))
    names.spend(bytes(16))
    other = SpentChunks(path) if stored else names
    assert other.contains(bytes(16))
    with raises_code(ProtocolError, "SVFL-PROTOCOL-REPEATED"):
        other.spend(bytes(16))
    other.spend(b"1" * 16)

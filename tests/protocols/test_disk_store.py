"""A begun chunk of a store on disk is used no more, wherever its removal is interrupted."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from securevfl.protocols.shares.disk_store import DiskStore


class _Interrupted(Exception):
    """Raised in place of a removal, as if the process had been killed before it."""


class _Removals(type(Path())):  # type: ignore[misc]
    """A path below which only some files are removed before a removal is interrupted."""

    left: int

    def unlink(self, missing_ok: bool = False) -> None:
        if _Removals.left == 0:
            raise _Interrupted
        _Removals.left -= 1
        super().unlink(missing_ok)


@pytest.mark.parametrize("removed", range(4))
@pytest.mark.parametrize("opened_again", [False, True])
def test_a_begun_chunk_is_never_used_again(opened_again: bool, removed: int, tmp_path: Path) -> None:
    """Its files are removed by the process that has begun it, or by the next one that opens the folder."""
    _Removals.left = 100  # writing removes temporary files
    store = DiskStore(_Removals(tmp_path))
    for number in (0, 1):
        store.put(number, bytes([number] * 16), 3 * number, [b"a", b"b", b"c"])
    store.take(0, 0)
    if opened_again:
        store.close()
    _Removals.left = removed
    with contextlib.nullcontext() if removed == 3 else pytest.raises(_Interrupted):
        if opened_again:
            store = DiskStore(_Removals(tmp_path))
        else:
            store.drop(0)
    store.close()
    again = DiskStore(tmp_path)
    assert again.chunk_numbers == again.unused_chunks == (1,)
    again.close()

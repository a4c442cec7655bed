"""Arrays on disk in place of memory: a file without a name, gone with the process."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Hashable, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.files import make_private_folder

K = TypeVar("K", bound=Hashable)


class SpillFile(Generic[K]):
    """Arrays by key, written once and read as often as they are asked for, from any thread.

    Reads are plain reads: mapped pages would count as this process's memory. Where the disk is full it keeps no more.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[K, tuple[int, list[tuple[np.dtype[Any], tuple[int, ...]]]]] = {}
        self._lock = threading.Lock()
        self._end = 0

    @cached_property
    def _file(self) -> IO[bytes]:
        make_private_folder(self._folder)
        return tempfile.TemporaryFile(dir=self._folder)

    def put(self, key: K, arrays: Sequence[NDArray[Any]]) -> None:
        """Keep arrays under a key that has none."""
        with self._lock:
            start, kept = self._end, [np.ascontiguousarray(array) for array in arrays]
            self._end += sum(each.nbytes for each in kept)
            file = self._file.fileno()
        at = start
        try:
            for each in kept:
                left = each.reshape(-1).view(np.uint8).data
                while left:
                    count = os.pwrite(file, left, at)
                    left, at = left[count:], at + count
        except OSError:
            return
        self._places[key] = start, [(each.dtype, each.shape) for each in kept]

    def get(self, key: K) -> list[NDArray[Any]] | None:
        """Read what is kept under a key; None if nothing is."""
        if key not in self._places:
            return None
        at, kinds = self._places[key]
        found = [np.empty(shape, kind) for kind, shape in kinds]
        for each in found:
            left = each.reshape(-1).view(np.uint8).data
            while left:
                count = os.preadv(self._file.fileno(), [left], at)
                if not count:
                    raise OSError(f"a file of {self._end} bytes was expected, it was cut")
                left, at = left[count:], at + count
        return found

"""Arrays on disk instead of in memory, in an unnamed temporary file that disappears with the process."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Hashable, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.files import make_private_folder
from securevfl.base.platform_files import read_into, write_at

K = TypeVar("K", bound=Hashable)


class SpillFile(Generic[K]):
    """Arrays by key, written once and read from any thread.

    The file is read, not mapped: mapped pages would count as memory of this process. If the disk is full, further
    arrays are not stored.

    Args:
        folder: where the file is created when the first arrays are stored.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries: dict[K, tuple[int, list[tuple[np.dtype[Any], tuple[int, ...]]]]] = {}
        self._lock = threading.Lock()
        self._end = 0

    @cached_property
    def _file(self) -> IO[bytes]:
        make_private_folder(self._folder)
        return tempfile.TemporaryFile(dir=self._folder)

    def put(self, key: K, arrays: Sequence[NDArray[Any]]) -> None:
        """Store arrays under a new key. If the write fails, nothing is stored and `get` returns None."""
        with self._lock:
            start, contiguous = self._end, [np.ascontiguousarray(array) for array in arrays]
            self._end += sum(array.nbytes for array in contiguous)
            file = self._file.fileno()
        offset = start
        try:
            for array in contiguous:
                data = array.reshape(-1).view(np.uint8).data
                while data:
                    count = write_at(file, data, offset)
                    data, offset = data[count:], offset + count
        except OSError:
            return
        self._entries[key] = start, [(array.dtype, array.shape) for array in contiguous]

    def get(self, key: K) -> list[NDArray[Any]] | None:
        """Read the arrays of a key.

        Args:
            key: the key under which the arrays were stored.

        Returns:
            The arrays, or None if the key has none.

        Raises:
            OSError: if the file is shorter than the data written.
        """
        if key not in self._entries:
            return None
        offset, layout = self._entries[key]
        arrays = [np.empty(shape, dtype) for dtype, shape in layout]
        for array in arrays:
            data = array.reshape(-1).view(np.uint8).data
            while data:
                count = read_into(self._file.fileno(), data, offset)
                if not count:
                    raise OSError("the temporary file of spilled arrays is truncated")
                data, offset = data[count:], offset + count
        return arrays

"""The arrays that all rooms pass to each other."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class RowSlices(Protocol):
    """Rows (n x d) that are read by slices; an array is one."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Floats: ...

"""What a party knows of new rows before and after it requests scores for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats


@dataclass(frozen=True)
class RowHistory:
    """What whoever asks knows of new rows (m,) before it asks: those that the model was `trained` on, those that it has
    asked about with other columns (`changed`), and scores that it has been told (m x c), nan elsewhere."""

    trained: NDArray[np.bool_]
    changed: NDArray[np.bool_]
    scores: Floats


@dataclass(frozen=True)
class ScoreResult:
    """Which rows of a block (m,) were scored, and for which of these the score was made, not told again."""

    scored: NDArray[np.bool_]
    fresh: NDArray[np.bool_]

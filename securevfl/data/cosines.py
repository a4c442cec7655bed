"""Cosine features of one party's own columns: curves of all of them at once, beside trees, which follow each in steps.

    size cos(w . x + b),    w ~ N(0, 2 gamma I),    b uniform in [0, 2 pi)

Sums of these with trained weights come near any function whose kernel is exp(-gamma |x - x'|^2) (random Fourier
features, Rahimi and Recht 2007). x are the columns as lines have them, cut off at their ends and of deviation 1, and
gamma falls with how many of them vary, so that x and x' of two rows lie as far apart as the kernel reaches. All of it
is drawn by a key of the party's own and by its own columns alone, with no look at a label.

A feature mixes the columns of its party: none has a share of its own in what the feature adds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from securevfl.base.arrays import Floats, normal_quantile
from securevfl.crypto.prg import Prg
from securevfl.data.forest import Lines
from securevfl.data.scaled_columns import on_grid

__all__ = ["Cosines"]

REACH = 0.75  # gamma times how many columns vary: .15 at five of them


@dataclass(frozen=True, repr=False)
class Cosines:
    """Features of a party, as they were drawn once.

    columns: how a column is scaled. directions (d x m): w of each feature; phases (m,): b. size: what a feature is
    multiplied by. Secret: they follow from the party's own rows.
    """

    columns: Lines
    directions: Floats
    phases: Floats
    size: float

    def __repr__(self) -> str:
        return f"<{len(self)} {type(self).__name__}, secret>"

    def __len__(self) -> int:
        return len(self.phases)

    @classmethod
    def draw(cls, X: Floats, key: bytes, *, count: int, weight: float) -> Cosines:
        """Draw `count` features for prepared columns X (n x d) of the training rows, and of no others.

        key: 32 random bytes. weight: the root of the mean of what the squares of a row's features add up to.
        """
        columns = Lines.fit(X, 1.0)
        varying = int(np.isfinite(columns.deviation).sum())
        prg = Prg(key, "cosines of a party's own columns")
        d = X.shape[1]
        uniform = ((prg.array(((d + 1) * count,), np.uint64) >> np.uint64(11)) + 0.5) * 2.0**-53
        spread = math.sqrt(2 * REACH / max(1, varying))
        directions = spread * normal_quantile(uniform[: d * count].reshape(d, count))
        phases = np.asarray(2 * np.pi * uniform[d * count :], np.float64)
        return cls(columns, directions, phases, weight * math.sqrt(2 / count))

    def __call__(self, X: Floats) -> Floats:
        """Return the features (m x count) of prepared columns X (m x d)."""
        return on_grid(self.size * np.cos(self.columns.scaled(X) @ self.directions + self.phases), np.inf)

    def state(self) -> dict[str, Any]:
        """All of it as plain arrays and numbers."""
        own = {"columns": self.columns.state(), "directions": self.directions, "phases": self.phases}
        return {**own, "size": self.size}

    @classmethod
    def read(cls, state: Mapping[str, Any]) -> Cosines:
        """Restore what `state` gave. KeyError or TypeError if it is none."""
        columns = Lines.read(state["columns"])
        return cls(columns, state["directions"], state["phases"], float(state["size"]))

"""A party's inputs to a model on secret shares, computed when they are read.

Inputs are columns, or features that a model derives from them (`securevfl.models.inputs`), such as the leaves of trees.
The derivation is fitted to training rows first, for example to choose the thresholds of trees. Rows of a table may be
stored at worker processes (Dask); inputs are then computed there. Preprocessing is random material that the parties
generate in advance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.checked_files import read_checked_json
from securevfl.base.chunked_matrix import RowChunk, RowSource
from securevfl.data.schedule import Rows
from securevfl.errors import ConfigError
from securevfl.families.state import State
from securevfl.families.training_data import TrainingData
from securevfl.models.inputs import Inputs, inputs_at

# name of the file with the fitted inputs, next to the preprocessing (random material) that was generated for them
INPUTS_FILE = "inputs.json"


@dataclass(frozen=True)
class InputRows:
    """A party's inputs of rows of its table, computed when they are read by slices.

    Attributes:
        compute: returns the inputs of rows of the data.
        data: the training data of this party.
        rows: positions of the rows in the table.
    """

    compute: Callable[[TrainingData, Rows], Floats]
    data: TrainingData
    rows: Rows

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __getitem__(self, rows: slice, /) -> Floats:
        """Compute the inputs of a slice of the rows."""
        return self.compute(self.data, self.rows[rows])


@dataclass(frozen=True)
class _RemoteInputs:
    """A party's inputs (m, width) of rows (m, d) at a worker process, computed when they are read by slices."""

    source: RowSource
    inputs: Inputs
    positions: Rows
    roots: Floats | None
    clip: float
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.width

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, rows: slice, /) -> Floats:
        X = inputs_at(self.inputs, self.source[rows], self.positions[rows]).clip(-self.clip, self.clip)
        return X if self.roots is None else X * self.roots[rows][:, None]


def remote_inputs(
    chunk: RowChunk, inputs: Inputs, positions: Rows, roots: Floats | None, clip: float, width: int
) -> RowChunk:
    """Return a party's inputs of a chunk of its rows, at the worker process that stores them.

    Args:
        chunk: scaled columns of the rows.
        inputs: computes the party's model inputs from its columns.
        positions: the result of `fitted_positions` for these rows (m,).
        roots: square roots of the row weights (m,), by which inputs are multiplied; None for equal weights.
        clip: inputs are clipped to [-clip, clip].
        width: number of inputs of a row.

    Returns:
        The inputs (m, width), which are computed at the worker process.
    """
    return RowChunk(_RemoteInputs(chunk.rows, inputs, positions, roots, clip, width))


def read_inputs(file: Path) -> State:
    """Read the fitted inputs that preprocessing on disk was generated for.

    Args:
        file: the file in the folder of preprocessing.

    Returns:
        The state of the inputs.

    Raises:
        ConfigError: if the file is damaged.
    """
    try:
        content, is_intact = read_checked_json(file)
        if is_intact:
            return State.read(content)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ConfigError(
        f"{file}: the stored inputs of the preprocessing are damaged",
        "remove its folder (--ahead) and do the preprocessing again",
        code="SVFL-FILE-DAMAGED",
        path=str(file),
    )


def fitted_positions(data: TrainingData, rows: Rows) -> Rows:
    """Return the position of each row (k,) among the training rows to which the inputs were fitted; -1 for others."""
    fitted = data.schedule.fitting_rows
    positions = np.minimum(np.searchsorted(fitted, rows), len(fitted) - 1)
    return np.where(fitted[positions] == rows, positions, -1)

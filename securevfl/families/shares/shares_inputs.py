"""A party's inputs to a model on shares, computed when they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.checked_files import read_checked_json
from securevfl.base.chunked_matrix import RowChunk
from securevfl.base.chunked_matrix import RowSource as RowsHere
from securevfl.data.schedule import Rows
from securevfl.errors import ConfigError
from securevfl.families.state import State
from securevfl.families.training_data import TrainingData
from securevfl.models.inputs import Inputs, inputs_at


@dataclass(frozen=True)
class InputRows:
    """A party's inputs of some rows of its table, made when they are read by slices."""

    of: Callable[[TrainingData, Rows], Floats]
    data: TrainingData
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice, /) -> Floats:
        return self.of(self.data, self.rows[rows])


@dataclass(frozen=True)
class _RemoteInputs:
    """A party's inputs (m x breadth) of rows at a worker, made of them (m x d) when they are read by slices."""

    of: RowsHere
    inputs: Inputs
    at: Rows
    roots: Floats | None
    clip: float
    breadth: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.breadth

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, rows: slice, /) -> Floats:
        own = inputs_at(self.inputs, self.of[rows], self.at[rows]).clip(-self.clip, self.clip)
        return own if self.roots is None else own * self.roots[rows][:, None]


def remote_inputs(
    stretch: RowChunk, inputs: Inputs, at: Rows, roots: Floats | None, clip: float, breadth: int
) -> RowChunk:
    """Return a party's inputs of a stretch of its rows, where these lie; their places are as for `inputs_at`. Each is
    cut off at `clip`, and multiplied by its row's root, if there are any."""
    return RowChunk(_RemoteInputs(stretch.rows, inputs, at, roots, clip, breadth))


INPUTS_FILE = "inputs.json"  # beside work done ahead, which rests on them


def read_inputs(file: Path) -> State:
    """Read the inputs that work done ahead rests on. ConfigError if the file is not what was written."""
    try:
        kept, checked = read_checked_json(file)
        if checked:
            return State.read(kept)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ConfigError(
        f"{file}: the inputs that work done ahead rests on were expected, the file is damaged or of an earlier "
        "version; remove its folder (--ahead) and do the work anew"
    )


def fitted_positions(data: TrainingData, rows: Rows) -> Rows:
    """Return the places of rows (k,) among those by which a party makes its inputs; -1 of others."""
    seen = data.schedule.fitting_rows
    at = np.minimum(np.searchsorted(seen, rows), len(seen) - 1)
    return np.where(seen[at] == rows, at, -1)

"""One party's side of the data as a player sees it: columns scaled when they are asked for, targets, and the schedule.

Of a party whose columns stay on disk no more is read than is asked for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.scheme import Floats
from securevfl.data.outside import Outside
from securevfl.data.party import Party
from securevfl.data.scaling import moments, quartiles
from securevfl.data.schedule import Rows, Schedule, Visit
from securevfl.models.losses import Loss, check_split
from securevfl.models.weights import Weights, row_weights
from securevfl.protocols.base import Batch


class TrainingData:
    """What one party trains on.

    columns: d. rows: n of the whole table. mean, deviation (d,): of the training rows, or median and spread; (0, 1)
    without scaling.
    classes, targets (m x c), weights (m,) of a party with labels. evaluated: the rows that metrics are taken on.
    """

    def __init__(
        self, party: Party, schedule: Schedule, loss: Loss, *, scale: str, weights: Weights | None = None
    ) -> None:
        self.schedule = schedule
        self.columns = party.X.shape[1]
        self.rows = len(party)
        self._party = party
        self.mean, self.deviation = _scaling(party, schedule.flow, scale)
        self.classes: NDArray[Any] | None = None
        self.targets: Floats | None = None
        self.weights: Floats | None = None
        if party.y is not None:
            self.classes = loss.classes(party.y)
            check_split(loss, party.y[schedule.train], party.y[schedule.test], self.classes)
            self.targets = loss.targets(party.y, self.classes)
            if weights is not None:
                self.weights = row_weights(
                    party.name, weights, loss, party.y, self.classes, party.weights, schedule.flow
                )
        self.stays = False  # whether rows stay where they are: batches may then be tall
        self._only: Batch | None = None
        self.evaluated = ScaledRows(self, schedule.test if len(schedule.test) else schedule.flow)

    def raw(self, rows: Rows) -> Floats:
        """These rows (k x d) as they are; (k x 0) of a party without a table."""
        return self._party.X[rows] if self.columns else np.empty((len(rows), 0))

    def scaled(self, rows: Rows) -> Floats:
        """These rows (k x d), scaled."""
        scaled: Floats = (self.raw(rows) - self.mean) / self.deviation
        return scaled

    def labels(self, rows: Rows) -> NDArray[Any] | None:
        """The labels of these rows (k,), of a party that has them."""
        return None if self._party.y is None else self._party.y[rows]

    def matrix(self, rows: Rows) -> Floats:
        """These rows, scaled: an array, or where they stay where they are a `Tall` in its place."""
        table: Floats | Outside = self._party.X
        if self.stays and isinstance(table, Outside):
            tall = table.tall(rows, self.mean, self.deviation)
            if tall is not None:
                return cast(Floats, tall)
        return self.scaled(rows)

    @property
    def named(self) -> bool:
        """Whether rows have ids."""
        return self._party.keys is not None

    def ids(self, rows: Rows) -> list[bytes]:
        """What names these rows (k): digests of their ids, or their numbers in a table without ids."""
        keys = self._party.keys
        return [b"row %d" % row for row in rows] if keys is None else [keys[row].tobytes() for row in rows]

    def batch(self, visit: Visit, *, columns: bool = True) -> Batch:
        """This party's side of a batch; without `columns` no row of them is read. The only one of an epoch is kept."""
        if self._only is not None and columns:
            return replace(self._only, index=visit.index, epoch=visit.epoch)
        targets = None if self.targets is None else self.targets[visit.rows]
        if targets is not None and self.weights is not None:
            targets = np.column_stack([targets, self.weights[visit.rows]])
        batch = Batch(visit.index, visit.epoch, self.matrix(visit.rows if columns else visit.rows[:0]), targets)
        if columns and self.schedule.batches == 1:
            self._only = batch
        return batch

    def first(self, rows: int) -> list[Visit]:
        """The first batches of the partition that hold as many rows, or all."""
        taken: list[Visit] = []
        held = 0
        for index, part in enumerate(self.schedule.partition(0)):
            if held >= rows:
                break
            taken.append(Visit(index, 0, part))
            held += len(part)
        return taken


class ScaledRows:
    """Some rows of a party's columns, scaled when they are read by slices."""

    def __init__(self, data: TrainingData, rows: Rows) -> None:
        self.rows = rows
        self._data = data

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice, /) -> Floats:
        return self._data.matrix(self.rows[rows])


def _scaling(party: Party, train: Rows, scale: str) -> tuple[Floats, Floats]:
    """Where each column lies over the training rows and how far it spreads; (0, 1) without scaling, and of codes.

    A column that does not vary has an infinite deviation: it is 0 in every row, whatever new rows hold.
    """
    if not party.X.shape[1]:
        return np.zeros(0), np.ones(0)
    if scale == "none":
        return np.zeros(party.X.shape[1]), np.where(np.isin(party.columns, party.constant), np.inf, 1.0)
    mean, deviation = (quartiles if scale == "robust" else moments)(party.X, train)
    deviation = np.where(deviation > 0, deviation, np.inf)
    coded = np.isin(party.columns, party.preparation.codes if party.preparation is not None else ())
    return np.where(coded, 0.0, mean), np.where(coded, 1.0, deviation)

"""The training data of one party: scaled columns, targets and the schedule.

Rows are scaled when they are read. Of a table on disk, only the requested rows are read.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import ChunkedMatrix
from securevfl.data.bin_edges import BIN_SCALE
from securevfl.data.external_table import ExternalTable
from securevfl.data.location_scale import LocationScale, clip_free, moments, quartiles
from securevfl.data.party import Party
from securevfl.data.preparation import FittedPreparation, SourceColumn
from securevfl.data.scaling import Scaling
from securevfl.data.schedule import Iteration, Rows, Schedule
from securevfl.data.validation import name_list
from securevfl.errors import DataNotice, TableError
from securevfl.models.class_labels import find_classes
from securevfl.models.exposure import offsets
from securevfl.models.loss import Loss, check_split
from securevfl.models.row_weights import Weights, row_weights
from securevfl.protocols.residuals.base import Batch

_RANGE_TOLERANCE = 1e-9  # of a column's range: what rounding may take a value beyond an end


class TrainingData:
    """The rows, targets and schedule that one party trains on.

    columns: d. rows: n of the whole table. scaling: by the training rows, cut off at `clip` if that is not None.
    classes, targets (m x c), weights (m,), offsets (m,) of a party with labels; `counted` are the classes that targets
    are made by, `classes` those that predictions are read by, for one unit of exposure. evaluated: the rows that
    metrics are taken on.
    """

    def __init__(
        self,
        party: Party,
        schedule: Schedule,
        loss: Loss,
        *,
        scale: str,
        clip: float | None = None,
        weights: Weights | None = None,
        exposure: str | None = None,
        positive: str | None = None,
    ) -> None:
        self.schedule = schedule
        self.columns = party.X.shape[1]
        self.rows = len(party)
        self._party = party
        self.scaling = _fit_scaling(party, schedule.batch_order, scale, clip)
        self.classes: NDArray[Any] | None = None
        self.targets: Floats | None = None
        self.weights: Floats | None = None
        self.offsets: Floats | None = None
        self.counted: NDArray[Any] | None = None
        if party.y is not None:
            # a class may have few rows; numbers are scaled by the rows that are trained on, as columns are
            trained = party.y if loss.classifies else party.y[np.sort(schedule.batch_order)]
            self.counted = self.classes = find_classes(party.name, loss, trained, positive)
            check_split(loss, party.y[schedule.train], party.y[schedule.test], self.classes)
            self.targets = loss.targets(party.y, self.classes)
            if exposure is not None and party.exposure is not None:
                self.offsets, mean = offsets(party.name, exposure, party.exposure, schedule.batch_order)
                self.classes = self.counted / mean
            if weights is not None:
                self.weights = row_weights(
                    party.name, weights, loss, party.y, self.classes, party.weights, schedule.batch_order
                )
        self.stays = False  # whether rows stay where they are: batches may then be tall
        self._only: Batch | None = None
        self.evaluated = ScaledRows(self, schedule.test if len(schedule.test) else schedule.batch_order)

    def starting(self, most: int) -> tuple[Rows, Floats | None]:
        """Return what first weights may follow from: the first training rows in the order of ids, `most` at most, and
        the targets of all training rows in that order, None for a party without labels."""
        trained = self.schedule.by_ids
        return trained[:most], None if self.targets is None else self.targets[trained]

    def raw(self, rows: Rows) -> Floats:
        """Return these rows (k x d) as they are in the table; (k x 0) for a party without a table."""
        return self._party.X[rows] if self.columns else np.empty((len(rows), 0))

    def scaled(self, rows: Rows) -> Floats:
        """Scale these rows and return them (k x d)."""
        return self.scaling(self.raw(rows))

    def labels(self, rows: Rows) -> NDArray[Any] | None:
        """Return the labels of these rows (k,); None for a party without labels."""
        return None if self._party.y is None else self._party.y[rows]

    def counts(self, rows: Rows) -> Floats | None:
        """Return what each of these rows (k,) counts in metrics: its weight, if the job names a column of weights;
        those of classes change what is trained alone.

        TableError if none of them counts.
        """
        own = self._party.weights
        if own is not None and not np.any(own[rows]):
            raise TableError(
                f"party {self._party.name}: weights above 0 among the rows that metrics are taken on were expected, "
                "all are 0; hold out other rows (split) or more of them"
            )
        return None if own is None else np.asarray(own[rows], np.float64)

    def rated(self, rows: Rows) -> Floats | None:
        """Return the targets of these rows as the job's loss takes them: k x c, and beside them their offsets and
        weights."""
        if self.targets is None:
            return None
        beside = [each[rows] for each in (self.offsets, self.weights) if each is not None]
        return np.column_stack([self.targets[rows], *beside]) if beside else self.targets[rows]

    def rated_outputs(self, rows: Rows, outputs: int) -> Floats | None:
        """Return what each row and output goes by, one after the other: `rated` with a line for each of n x c."""
        rated = self.rated(rows)
        if rated is None:
            return None
        return np.column_stack([rated[:, :outputs].ravel(), np.repeat(rated[:, outputs:], outputs, axis=0)])

    def shifted(self, f: Floats, rows: Rows) -> Floats:
        """f (k x c) of these rows with their offsets, if they have any."""
        return f if self.offsets is None else f + self.offsets[rows][:, None]

    def matrix(self, rows: Rows) -> Floats:
        """Return these rows, scaled: as an array, or as a `ChunkedMatrix` in its place where the rows stay outside."""
        table: Floats | ExternalTable = self._party.X
        if self.stays and isinstance(table, ExternalTable):
            tall = table.scaled_matrix(rows, self.scaling)
            if tall is not None:
                return cast(Floats, tall)
        return self.scaled(rows)

    @property
    def apart(self) -> bool:
        """Whether the rows of the table lie at workers."""
        table: Floats | ExternalTable = self._party.X
        return isinstance(table, ExternalTable) and table.is_remote

    def at_workers(self, rows: Rows, *, raw: bool = False) -> ChunkedMatrix:
        """Return these rows where they lie at workers, scaled, or `raw` as they are in the table.

        TableError if they lie there in another order.
        """
        table: Floats | ExternalTable = self._party.X
        assert isinstance(table, ExternalTable), "rows lie at workers"
        tall = table.scaled_matrix(rows, Scaling.none(self.columns) if raw else self.scaling)
        if tall is None:
            raise TableError(
                f"party {self._party.name}: rows in the order of this job's batches were expected at the workers, the "
                "table was stored in another one; store it by store_table(..., job=job)"
            )
        return tall

    @property
    def sources(self) -> tuple[SourceColumn, ...]:
        """What its columns were before they were prepared."""
        by = self._party.preparation
        return tuple((by or FittedPreparation(self._party.columns)).sources)

    @property
    def named(self) -> bool:
        """Whether the rows of the table have ids."""
        return self._party.has_ids

    def ids(self, rows: Rows) -> list[bytes]:
        """Return what names each of these rows (k): digests of their ids, or their numbers in a table without ids."""
        return self._party.keys_of(rows)

    def batch(self, visit: Iteration, *, columns: bool = True) -> Batch:
        """Return this party's side of a batch; without `columns` none of its rows is read. Where an epoch has one batch
        alone, that batch is kept."""
        if self._only is not None and columns:
            return replace(self._only, index=visit.index, epoch=visit.epoch, rows=visit.rows)
        shown = visit.rows if columns else visit.rows[:0]
        batch = Batch(visit.index, visit.epoch, self.matrix(shown), self.rated(visit.rows), visit.rows)
        if columns and self.schedule.batches == 1:
            self._only = batch
        return batch

    def first(self, rows: int) -> list[Iteration]:
        """Return the first batches of the partition that together hold `rows` rows, or all batches if they hold
        fewer."""
        taken: list[Iteration] = []
        held = 0
        for index, part in enumerate(self.schedule.partition(0)):
            if held >= rows:
                break
            taken.append(Iteration(index, 0, part))
            held += len(part)
        return taken


class ScaledRows:
    """Some rows of a party's columns, scaled when they are read by slices."""

    def __init__(self, data: TrainingData, rows: Rows) -> None:
        self.rows = rows
        self.of = data

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice, /) -> Floats:
        return self.of.matrix(self.rows[rows])


def _fit_scaling(party: Party, train: Rows, scale: str, clip: float | None) -> Scaling:
    """Fit the scale of each column on the training rows; (0, 1) without scaling, and of codes; those of bins all spread
    as far. A DataNotice names columns of which training rows are cut off.

    A column that does not vary has an infinite deviation: it is 0 in every row, whatever new rows hold.
    """
    if not party.X.shape[1]:
        return Scaling.none(0)
    if scale == "none" and clip is None:
        return Scaling(np.zeros(party.X.shape[1]), np.where(np.isin(party.columns, party.constant), np.inf, 1.0))
    lie = (quartiles if scale == "robust" else moments)(party.X, train)
    made = party.preparation or FittedPreparation(party.columns)
    coded = np.isin(party.columns, made.codes) | (scale == "none")
    deviation = np.where(lie.deviation > 0, lie.deviation, np.inf)
    deviation = np.where(np.isin(party.columns, made.bin_features) & np.isfinite(deviation), BIN_SCALE, deviation)
    lie = lie._replace(deviation=deviation)
    if clip is not None:
        lie = clip_free(lie, clip)
    constant = np.isin(party.columns, party.constant) if scale == "none" else ~coded & np.isinf(lie.deviation)
    deviation = np.where(constant, np.inf, np.where(coded, 1.0, lie.deviation))
    found = Scaling(np.where(coded, 0.0, lie.mean), deviation, clip)
    if clip is not None:
        _report_clipped_columns(party, lie, found)
    return found


def _report_clipped_columns(party: Party, lie: LocationScale, scaling: Scaling) -> None:
    """Say in a DataNotice which columns are cut off within the training rows, and where."""
    ends = zip(party.columns, *scaling.ends, lie.low - lie.high, lie.low, lie.high, strict=True)
    cut = [
        f"{column} outside {first:.6g} to {last:.6g}"
        for column, first, last, wide, low, high in ends
        if low < first + _RANGE_TOLERANCE * wide or high > last - _RANGE_TOLERANCE * wide
    ]
    if cut:
        notice = f"party {party.name}: on shares values far out count as the last one that is covered: {name_list(cut)}"
        remedy = 'prepare.tails = "squash" or bins keep them apart'
        warnings.warn(f"{notice}; {remedy}", DataNotice, stacklevel=2)

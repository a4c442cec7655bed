"""The training data of one party: scaled columns, targets and the schedule.

Targets are labels in the encoding of the loss. The schedule states which rows form which batch. Rows are scaled when
they are read; of a table on disk, only the requested rows are read. Rows may also be stored at worker processes (Dask);
these are called remote.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
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
from securevfl.models.class_labels import classes_of
from securevfl.models.exposure import offsets
from securevfl.models.loss import Loss, check_split
from securevfl.models.row_weights import Weights, row_weights
from securevfl.protocols.residuals.base import Batch

_RANGE_TOLERANCE = 1e-9  # rounding may move a value beyond the limit of its column, by this share of the column's range


class TrainingData:
    """The rows, targets and schedule that one party trains on.

    Args:
        party: the party with its prepared columns.
        schedule: which rows form which batch.
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        scale: "standard", "robust" or "none".
        clip: scaled values are clipped to [-clip, clip]; None for no clipping.
        weights: the option of the job that gives rows or classes different weights.
        exposure: name of the exposure column.
        positive: name of the positive class.

    Attributes:
        schedule: which rows form which batch.
        plan: returns the values that the protocol family has computed from public sizes before the training
            (`securevfl.families.facts.RunFacts.plan`), if they are known.
        columns: d, number of columns.
        rows: number of rows of the whole table.
        scaling: the scaling, fitted on the training rows.
        target_classes: the classes of the labels, or location and scale of numeric labels (`loss.classes`), from which
            targets are computed; None without labels.
        classes: `target_classes` for predictions, which are per unit of exposure; None without labels.
        targets: targets (m, c); None without labels.
        weights: row weights (m,), if the job has any.
        offsets: logarithms of relative exposures (m,), which are added to outputs; None without an exposure.
        may_stay_remote: whether batches may be returned as a `ChunkedMatrix` of rows that stay where they are stored.
        evaluated: the rows on which metrics are measured.
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
        self.plan: Callable[[], Any] = lambda: None
        self.columns = party.X.shape[1]
        self.rows = len(party)
        self._party = party
        self.scaling = _fit_scaling(party, schedule.batch_order, scale, clip)
        self.classes: NDArray[Any] | None = None
        self.targets: Floats | None = None
        self.weights: Floats | None = None
        self.offsets: Floats | None = None
        self.target_classes: NDArray[Any] | None = None
        if party.y is not None:
            # classes are those of all rows, because training rows may lack a rare class; the location and the scale of
            # numeric labels are those of the training rows
            rows = None if loss.classifies else np.sort(schedule.batch_order)
            self.target_classes = self.classes = classes_of(party, loss, rows, positive)
            check_split(loss, party.y[schedule.train], party.y[schedule.test], self.classes)
            self.targets = loss.targets(party.y, self.classes)
            if exposure is not None and party.exposure is not None:
                self.offsets, mean = offsets(party.name, exposure, party.exposure, schedule.batch_order)
                self.classes = self.target_classes / mean
            if weights is not None:
                self.weights = row_weights(
                    party.name, weights, loss, party.y, self.classes, party.weights, schedule.batch_order
                )
        self.may_stay_remote = False
        self._only_batch: Batch | None = None
        self.evaluated = ScaledRows(self, schedule.test if len(schedule.test) else schedule.batch_order)

    def row_name(self, position: int) -> str:
        """Name the row at a position of the whole table for a message; see `securevfl.data.party.Party.row_name`."""
        return self._party.row_name(position)

    def initial_rows(self, limit: int) -> tuple[Rows, Floats | None]:
        """Return the rows and targets from which initial weights may be computed.

        Args:
            limit: maximum number of rows.

        Returns:
            The first training rows in the order of ids, and the targets of all training rows in that order. The
            targets are None for a party without labels.
        """
        rows = self.schedule.by_ids
        return rows[:limit], None if self.targets is None else self.targets[rows]

    def raw(self, rows: Rows) -> Floats:
        """Return these rows (k, d) without scaling; (k, 0) for a party without a table."""
        return self._party.X[rows] if self.columns else np.empty((len(rows), 0))

    def scaled(self, rows: Rows) -> Floats:
        """Return these rows (k, d), scaled."""
        return self.scaling(self.raw(rows))

    def labels(self, rows: Rows) -> NDArray[Any] | None:
        """Return the labels of these rows (k,); None for a party without labels."""
        return None if self._party.y is None else self._party.y[rows]

    def metric_weights(self, rows: Rows) -> Floats | None:
        """Return the weights (k,) of these rows in metrics, if the job names a column of weights.

        Class weights affect the training only, not metrics.

        Args:
            rows: positions of the evaluated rows in the table.

        Returns:
            The weights, or None if all rows count equally.

        Raises:
            TableError: if all weights are 0.
        """
        weights = self._party.weights
        if weights is not None and not np.any(weights[rows]):
            raise TableError(
                f"party {self._party.name}: the weights of all evaluated rows are 0",
                "hold out other rows (split) or more of them",
                code="SVFL-TABLE-WEIGHTS",
                party=self._party.name,
            )
        return None if weights is None else np.asarray(weights[rows], np.float64)

    def loss_targets(self, rows: Rows) -> Floats | None:
        """Return the targets of these rows (k, c + 0 to 2) for the job's loss, followed by offsets and weights."""
        if self.targets is None:
            return None
        extra = [values[rows] for values in (self.offsets, self.weights) if values is not None]
        return np.column_stack([self.targets[rows], *extra]) if extra else self.targets[rows]

    def loss_targets_by_output(self, rows: Rows, outputs: int) -> Floats | None:
        """Return `loss_targets` as k * c rows, one for each pair of a row and an output."""
        targets = self.loss_targets(rows)
        if targets is None:
            return None
        return np.column_stack([targets[:, :outputs].ravel(), np.repeat(targets[:, outputs:], outputs, axis=0)])

    def with_offsets(self, f: Floats, rows: Rows) -> Floats:
        """Add the offsets of these rows, if they have any, to the outputs f (k, c)."""
        return f if self.offsets is None else f + self.offsets[rows][:, None]

    def matrix(self, rows: Rows) -> Floats:
        """Return the scaled columns of these rows.

        The result is a `ChunkedMatrix` in place of an array if the rows are remote and may stay there.
        """
        table: Floats | ExternalTable = self._party.X
        if self.may_stay_remote and isinstance(table, ExternalTable):
            chunked = table.scaled_matrix(rows, self.scaling)
            if chunked is not None:
                return cast(Floats, chunked)
        return self.scaled(rows)

    @property
    def is_remote(self) -> bool:
        """Whether the rows of the table are stored at worker processes."""
        table: Floats | ExternalTable = self._party.X
        return isinstance(table, ExternalTable) and table.is_remote

    def remote_rows(self, rows: Rows, *, raw: bool = False) -> ChunkedMatrix:
        """Return rows that are stored at worker processes, without moving them.

        Args:
            rows: positions of the rows.
            raw: return the rows without scaling.

        Returns:
            The rows as a matrix of remote chunks.

        Raises:
            TableError: if the workers store the rows in another order.
        """
        table: Floats | ExternalTable = self._party.X
        assert isinstance(table, ExternalTable), "the rows are stored at workers"
        chunked = table.scaled_matrix(rows, Scaling.none(self.columns) if raw else self.scaling)
        if chunked is None:
            raise TableError(
                f"party {self._party.name}: the workers do not store the rows in the order of this job's batches",
                "store the table with store_table(..., job=job)",
                code="SVFL-TABLE-ON-DISK",
                party=self._party.name,
            )
        return chunked

    @property
    def sources(self) -> tuple[SourceColumn, ...]:
        """The original columns of the table, from which the prepared columns were derived."""
        preparation = self._party.preparation
        return tuple((preparation or FittedPreparation(self._party.columns)).sources)

    @property
    def has_ids(self) -> bool:
        """Whether the rows of the table have ids."""
        return self._party.has_ids

    def ids(self, rows: Rows) -> list[bytes]:
        """Return an identifier for each row: the digest of its id, or its position if the table has no ids."""
        return self._party.keys_of(rows)

    def batch(self, iteration: Iteration, *, columns: bool = True) -> Batch:
        """Return this party's columns and targets of a batch. If an epoch has only one batch, that batch is cached.

        Args:
            iteration: the iteration that uses the batch.
            columns: whether to read the columns of the rows.

        Returns:
            This party's columns and targets of the batch.
        """
        if self._only_batch is not None and columns:
            return replace(self._only_batch, index=iteration.index, epoch=iteration.epoch, rows=iteration.rows)
        rows = iteration.rows if columns else iteration.rows[:0]
        targets = self.loss_targets(iteration.rows)
        batch = Batch(iteration.index, iteration.epoch, self.matrix(rows), targets, iteration.rows)
        if columns and self.schedule.batches == 1:
            self._only_batch = batch
        return batch

    def first_batches(self, rows: int) -> list[Iteration]:
        """Return the first batches that have at least `rows` rows together, or all batches if there are fewer rows."""
        batches: list[Iteration] = []
        total = 0
        for index, batch in enumerate(self.schedule.partition(0)):
            if total >= rows:
                break
            batches.append(Iteration(index, 0, batch))
            total += len(batch)
        return batches


class ScaledRows:
    """Rows of a party's columns that are scaled when they are read by slices.

    Args:
        data: the training data of this party.
        rows: positions of the rows in the table.
    """

    def __init__(self, data: TrainingData, rows: Rows) -> None:
        self.rows = rows
        self.data = data

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __getitem__(self, rows: slice, /) -> Floats:
        """Read and scale a slice of the rows."""
        return self.data.matrix(self.rows[rows])


def _fit_scaling(party: Party, train: Rows, scale: str, clip: float | None) -> Scaling:
    """Fit location and scale of each column on the training rows.

    Columns of codes are not scaled; if `scale` is "none", no column is. All columns of bins get the same scale. A
    column without variation gets an infinite scale, so that it is 0 in every row, new rows included. If training rows
    are clipped, a DataNotice names their columns.
    """
    if not party.X.shape[1]:
        return Scaling.none(0)
    if scale == "none" and clip is None:
        return Scaling(np.zeros(party.X.shape[1]), np.where(np.isin(party.columns, party.constant), np.inf, 1.0))
    location = (quartiles if scale == "robust" else moments)(party.X, train)
    preparation = party.preparation or FittedPreparation(party.columns)
    coded = np.isin(party.columns, preparation.codes) | (scale == "none")
    deviation = np.where(location.deviation > 0, location.deviation, np.inf)
    deviation = np.where(
        np.isin(party.columns, preparation.bin_features) & np.isfinite(deviation), BIN_SCALE, deviation
    )
    location = location._replace(deviation=deviation)
    if clip is not None:
        location = clip_free(location, clip)
    constant = np.isin(party.columns, party.constant) if scale == "none" else ~coded & np.isinf(location.deviation)
    deviation = np.where(constant, np.inf, np.where(coded, 1.0, location.deviation))
    scaling = Scaling(np.where(coded, 0.0, location.mean), deviation, clip)
    if clip is not None:
        _report_clipped_columns(party, location, scaling)
    return scaling


def _report_clipped_columns(party: Party, location: LocationScale, scaling: Scaling) -> None:
    """Issue a DataNotice that names the columns with clipped values in training rows, and their limits."""
    ends = zip(party.columns, *scaling.ends, location.low - location.high, location.low, location.high, strict=True)
    clipped = [
        f"{column} outside {first:.6g} to {last:.6g}"
        for column, first, last, wide, low, high in ends
        if low < first + _RANGE_TOLERANCE * wide or high > last - _RANGE_TOLERANCE * wide
    ]
    if clipped:
        notice = f"party {party.name}: secret sharing clips extreme values of these columns: {name_list(clipped)}"
        remedy = 'To keep extreme values distinct, set prepare.tails = "squash" or use bins'
        warnings.warn(f"{notice}. {remedy}.", DataNotice, stacklevel=2)

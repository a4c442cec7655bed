"""A finished run of all parties in one process: metrics, history, costs, predictions, and each party's part to save.

f (m, c) are the outputs of the model for m rows and c outputs: the sum of what each party's *part* of the model (its
weights and preparation) adds for its columns. The *leading party* decides when a training ends; usually it is the party
with labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.base.arrays import Floats
from securevfl.base.files import write_atomic
from securevfl.base.roles import Roles
from securevfl.data.register import Rows
from securevfl.data.row_matching import ids_of_rows, match_tables, match_values, take_rows
from securevfl.data.validation import check_labels
from securevfl.errors import ConfigError, DivergenceError, LabelError, PartiesError, RangeError, TableError
from securevfl.job import Job
from securevfl.models import metrics
from securevfl.models.group_metrics import metrics_by_group
from securevfl.models.row_weights import check_row_weights
from securevfl.models.shapley import ShapleyValues
from securevfl.protocols.party_context import LocalResources, PartyContext
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.party_threads import run_threads
from securevfl.training.local_baseline import LocalQuality
from securevfl.training.model_part import ModelPart
from securevfl.training.run_costs import Costs
from securevfl.training.run_page import cell, page

if TYPE_CHECKING:
    from matplotlib.figure import Figure
from securevfl.training.run_plot import plot

Tables = Mapping[str, Any]
"""New rows by party: an array (m, d), a frame, or anything else that `securevfl.Party` accepts."""
RowIds = Mapping[str, Sequence[Any] | NDArray[Any]]
"""The ids (m,) of new rows by party."""


@dataclass(frozen=True)
class _ScoredRows:
    """Outputs f (m, c) of new rows, their labels (m,), the classes, and the ids (m,) of the rows if there are any."""

    f: Floats
    labels: NDArray[Any]
    classes: NDArray[Any]
    ids: NDArray[Any] | None

    def match(self, what: str, values: ArrayLike) -> NDArray[Any]:
        """Return one value for each scored row, in the order of the scored rows; `what` names them in errors."""
        return match_values(what, values, self.ids)


@dataclass(frozen=True)
class Run:
    """All parties' parts of one run; only a simulation has them together.

    Attributes:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        parts: the parts by party.
    """

    job: Job
    parts: dict[str, ModelPart]

    def __repr__(self) -> str:
        """Return a line with the metrics, the parties and the model."""
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items()) or "no metrics"
        return f"Run({metrics} on the {self.evaluated_on}; {', '.join(self.parts)}; {self.job.model.name} model)"

    @property
    def active(self) -> ModelPart:
        """The leading party's part of the model."""
        return next(part for part in self.parts.values() if part.leads)

    @property
    def roles(self) -> Roles:
        """The role of each party in this run."""
        return Roles.of((name, part.role) for name, part in self.parts.items())

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics, on the rows that `evaluated_on` names."""
        return self.active.metrics

    @property
    def evaluated_on(self) -> str:
        """The rows of the metrics, and how they are weighted if the job weights rows."""
        return self.active.evaluated_on

    @property
    def metric_std_errors(self) -> dict[str, float]:
        """The standard error of each metric, which varies with the choice of the measured rows."""
        return self.active.metric_std_errors

    @property
    def by_class(self) -> dict[str, dict[str, float]]:
        """With several classes, the figures of each class against all others; otherwise empty."""
        return self.active.by_class

    @property
    def notes(self) -> list[str]:
        """Statements about the training and its metrics, such as which metrics are not measured and why."""
        return self.active.notes

    @property
    def positive(self) -> str | None:
        """The class of two to which metrics and probabilities refer."""
        return self.active.positive

    @property
    def history(self) -> list[dict[str, float]]:
        """One record for each round: its losses and, after an evaluation, its metrics."""
        return self.active.history

    @property
    def costs(self) -> Costs:
        """Rounds, bytes, and seconds of the critical path by kind of work."""
        return Costs.of(self.job, self.parts)

    @property
    def calibration(self) -> list[list[float]]:
        """The calibration on the held-out rows, in ten groups of rows by rising prediction.

        With one output for two classes: mean probability, share of the positive class, rows. In a regression: mean
        prediction, mean label, rows. With several outputs it is empty.
        """
        return list(self.active.calibration)

    @property
    def coefficients(self) -> dict[str, dict[str, list[float]]]:
        """What one unit of each column adds to f (c); in a regression, to the label or its logarithm."""
        unit, _ = self._units
        return {
            name: {feature: [unit * weight for weight in weights] for feature, weights in part.coefficients().items()}
            for name, part in self.parts.items()
            if part.columns
        }

    @property
    def intercept(self) -> list[float]:
        """The outputs f (c) of a row whose columns are all 0; in a regression, the label or its logarithm."""
        unit, shift = self._units
        total = np.sum([part.constant() for part in self.parts.values() if part.columns], axis=0) * unit
        return [float(value) + shift for value in total]

    @property
    def _units(self) -> tuple[float, float]:
        classes = self.active.classes
        return (1.0, 0.0) if classes is None else self.job.model.loss.units(classes)

    def explain(self, party: str, X: ArrayLike) -> ShapleyValues:
        """Return the exact Shapley values of a party's columns on new rows (m, d), for a model of trees.

        Args:
            party: name of the party.
            X: its rows.

        Returns:
            What each column adds to f; in a regression, to the label. Raises the errors of `ModelPart.explain`.
        """
        values, (unit, _) = self._part(party).explain(X), self._units
        return ShapleyValues(values.base * unit, {name: column * unit for name, column in values.columns.items()})

    def importance(self, party: str) -> dict[str, list[float]]:
        """Return the mean absolute Shapley values (c) of a party's columns on training rows; raises as `explain`."""
        importance, (unit, _) = self._part(party).importance, self._units
        return {name: [unit * value for value in values] for name, values in importance.items()}

    def _part(self, party: str) -> ModelPart:
        if party not in self.parts:
            raise PartiesError(
                f"{party} is not a party of this run",
                f"name one of {', '.join(self.parts)}",
                code="SVFL-PARTIES-NAME",
                party=party,
            )
        return self.parts[party]

    def evaluate(
        self,
        tables: Tables,
        y: ArrayLike,
        weights: ArrayLike | None = None,
        *,
        ids: RowIds | None = None,
        exposure: ArrayLike | None = None,
    ) -> dict[str, float]:
        """Return all metrics on new rows.

        Args:
            tables: see `decision`.
            y: their labels (m,). A series with an index of ids is matched by them.
            weights: weights of the rows (m,), matched like the labels.
            ids: see `decision`.
            exposure: if the job has an exposure, the units over which each label was counted (m,), matched like the
                labels.

        Returns:
            The metrics. If the job has an exposure, they do not contain the loss, whose scale in a training depends
            on the mean exposure. Raises the errors of `decision`, LabelError for labels of other classes, TableError
            for weights that are missing, negative or texts, and ConfigError if the exposure is missing or the job has
            none.
        """
        rows = self._score_tables(tables, y, ids, exposure)
        counts = None if weights is None else check_row_weights(rows.match("the weights", weights), len(rows.f))
        values = metrics.evaluate(self.job.model.loss, rows.f, rows.labels, rows.classes, counts)
        if exposure is not None:
            del values["loss"]
        return values

    def evaluate_by_group(
        self,
        tables: Tables,
        y: ArrayLike,
        groups: ArrayLike,
        *,
        ids: RowIds | None = None,
        exposure: ArrayLike | None = None,
    ) -> dict[str, dict[str, float]]:
        """Return rates and metrics of each group of 100 rows or more.

        Args:
            tables: see `decision`.
            y: see `evaluate`.
            groups: the group of each row (m,), matched like the labels.
            ids: see `decision`.
            exposure: see `evaluate`.

        Returns:
            The rates by group (`models.metrics`).

        Raises:
            TableError: if the number of groups differs from the number of rows.
        """
        rows = self._score_tables(tables, y, ids, exposure)
        group_names = rows.match("the groups", groups)
        if group_names.shape != (len(rows.f),):
            raise TableError(
                f"the groups have shape {group_names.shape}, and there are {len(rows.f)} rows",
                "pass one group for each row",
                code="SVFL-TABLE-SHAPE",
            )
        return metrics_by_group(self.job.model.loss, rows.f, rows.labels, rows.classes, group_names)

    def _score_tables(
        self, tables: Tables, y: ArrayLike, ids: RowIds | None, exposure: ArrayLike | None
    ) -> _ScoredRows:
        """Score new rows for their exposures, and match their labels."""
        if (exposure is None) != (self.job.exposure is None):
            raise ConfigError(
                "the job has no exposure"
                if self.job.exposure is None
                else f"the labels were counted over {self.job.exposure}, and no exposure of the rows is given",
                "leave exposure out" if self.job.exposure is None else "pass exposure, one number for each row",
                code="SVFL-COMMAND-USAGE",
            )
        f, row_ids = self._decide(tables, ids)
        if exposure is not None:
            units = np.asarray(match_values("the exposures", exposure, row_ids), np.float64)
            if units.shape != (len(f),) or not (units > 0).all():
                raise TableError(
                    f"the exposures have shape {units.shape} and must be {len(f)} numbers above 0",
                    "pass one exposure for each row",
                    code="SVFL-TABLE-SHAPE",
                )
            f = f + np.log(units)[:, None]
        classes = self.active.label_classes
        labels = check_labels(self.active.name, match_values("the labels", y, row_ids), len(f))
        if self.job.model.loss.classifies and not np.isin(labels, classes).all():
            raise LabelError(
                "some labels are of classes that did not occur in training",
                "leave these rows out",
                code="SVFL-LABEL-CLASSES",
            )
        return _ScoredRows(f, labels, classes, row_ids)

    def predict_proba(self, tables: Tables, *, ids: RowIds | None = None) -> Floats:
        """Return the probability of each class (m, classes) on new rows; see `decision` for arguments and errors."""
        return self.job.model.loss.proba(self.decision(tables, ids=ids))

    def predict(self, tables: Tables, *, ids: RowIds | None = None) -> NDArray[Any]:
        """Return the likeliest class of each row (m,), or in a regression its predicted value.

        If the job has an exposure, the predicted value is for one unit of it.

        Args:
            tables: see `decision`.
            ids: see `decision`.

        Returns:
            The classes or numbers. Raises the errors of `decision`.
        """
        loss, classes, f = self.job.model.loss, self.active.label_classes, self.decision(tables, ids=ids)
        if not loss.classifies:
            return np.asarray(loss.mean(f, classes))
        return np.asarray(classes[loss.proba(f).argmax(axis=1)])

    def decision(self, tables: Tables, *, ids: RowIds | None = None) -> Floats:
        """Return f (m, c) on new rows; the parties add what their parts contribute, with the job's protocol.

        Rows are joined by id: by `ids`, or by the index of a frame if it has a name or differs from 0 to m - 1. The
        results have the order of the leading party's table, or of the first table if that party has no columns. Arrays
        without ids have the same rows in the same order.

        Args:
            tables: the rows of each party with columns.
            ids: by party, the ids (m,) of its rows.

        Returns:
            The outputs. Raises the errors of `decision_of`, and IdError if two tables have different ids.

        Raises:
            PartiesError: if a table is missing, or a party has no columns in the model.
        """
        return self._decide(tables, ids)[0]

    def _decide(self, tables: Tables, ids: RowIds | None) -> tuple[Floats, NDArray[Any] | None]:
        """Compute f (m, c) for new rows. Return f, and the ids of these rows (None if no table has ids)."""
        names = [name for name, part in self.parts.items() if part.columns]
        if not isinstance(tables, Mapping) or set(tables) != set(names):
            passed = ", ".join(map(str, tables)) if isinstance(tables, Mapping) else type(tables).__name__
            raise PartiesError(
                f"the tables are those of {passed or 'no party'}, and the model has columns of {', '.join(names)}",
                "pass one table for each of these parties, by name",
                code="SVFL-PARTIES-NAME",
            )
        if unknown := [name for name in ids or {} if name not in tables]:
            raise PartiesError(
                f"ids: {unknown[0]} has no table",
                f"pass ids of {', '.join(names)}",
                code="SVFL-PARTIES-NAME",
                party=unknown[0],
            )
        row_ids = {name: ids_of_rows(table, (ids or {}).get(name)) for name, table in tables.items()}
        scaled = {name: self.parts[name].rows(table) for name, table in tables.items()}
        for name, party_ids in row_ids.items():
            if party_ids is not None and len(party_ids) != len(scaled[name]):
                raise TableError(
                    f"party {name} has {len(scaled[name])} rows and {len(party_ids)} ids",
                    "pass one id for each row",
                    code="SVFL-TABLE-SHAPE",
                    party=name,
                )
        lead = self.active.name
        orders = match_tables(row_ids, lead)
        first = next((name for name in (lead, *row_ids) if row_ids.get(name) is not None), None)
        ordered = {name: take_rows(rows, orders[name]) for name, rows in scaled.items()}
        f = self.decision_of(ordered, first or next(iter(ordered)))
        return f, None if first is None else row_ids[first]

    def decision_of(self, scaled: Mapping[str, Floats], first: str, file_rows: Rows | None = None) -> Floats:
        """Return f (m, c) on prepared and scaled rows.

        Args:
            scaled: the rows (m, d) of each party with columns.
            first: the name of a party; positions of rows in error messages refer to its table.
            file_rows: the position (m,) of each row in that table; None if the rows have the order of the table.

        Returns:
            The outputs.

        Raises:
            TableError: if the numbers of rows differ.
            RangeError: if an output is beyond the range of the model's numbers.
            DivergenceError: if an output is not a number.
        """
        rows = dict(scaled)
        sizes = {name: len(table) for name, table in rows.items()}
        if len(set(sizes.values())) != 1:
            counts = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise TableError(
                f"the parties have different numbers of rows: {counts}",
                "pass the same rows of every party",
                code="SVFL-TABLE-ROW-COUNT",
            )
        count = next(iter(sizes.values()))
        rows |= {name: np.empty((count, 0)) for name in self.parts if name not in rows}
        roles = {name: partial(self._predict, name, table) for name, table in rows.items()}
        results = run_threads(roles, WallClock)
        f = results[self.active.asker]
        assert f is not None
        check_outputs(f, self.active.asker, first, file_rows)
        return f

    def _predict(self, name: str, X: Floats, channel: Channel) -> Floats | None:
        part = self.parts[name]
        meter, resources = Meter(channel.clock, channel.counters), LocalResources(simulated=True)
        context = PartyContext(channel, self.roles, meter, outputs=part.outputs, resources=resources, model=part.model)
        return self.job.family.participant(self.job, context, X.shape[1], part.state).model_outputs(X)

    def save(self, folder: str | Path) -> None:
        """Write <folder>/<party>.json for each party, with its part only; earlier files are renamed (`set_aside`)."""
        for name, part in self.parts.items():
            part.save(Path(folder) / f"{name}.json")

    @classmethod
    def load(cls, folder: str | Path, *, models: Mapping[str, object] | None = None) -> Run:
        """Load the parts that `save` wrote.

        Args:
            folder: the folder.
            models: by party, the module that the party passed as an object (`securevfl.TorchModel`); no file stores it.

        Returns:
            The run.

        Raises:
            PartiesError: if the part of a party is missing, parts are of different trainings, or `models` names another
                party.
        """
        modules = models or {}
        files = sorted(path for path in Path(folder).glob("*.json") if path.name.count(".") == 1)
        parts = [ModelPart.load(path) for path in files]
        parts = [replace(part, model=modules.get(part.name)) for part in parts]
        lead = next((part for part in parts if part.leads), None)
        if lead is None or {part.name for part in parts} != set(lead.parties):
            present = ", ".join(part.name for part in parts) or "none"
            problem = f"the model files of some parties of the run are missing (present: {present})"
            remedy = "copy the files of all parties of one run into this folder"
            others = [] if lead is None else [part.name for part in parts if part.name not in lead.parties]
            if others:
                problem = f"the folder also contains model files of other runs ({', '.join(others)})"
                remedy = f"remove {others[0]}.json"
            raise PartiesError(f"{folder}: {problem}", remedy, code="SVFL-MODEL-MISMATCH", path=str(folder))
        if len({part.run for part in parts}) > 1:
            raise PartiesError(
                f"{folder}: the model files are of different trainings, whose parts do not fit together",
                "copy the files of all parties of one run into this folder",
                code="SVFL-MODEL-MISMATCH",
                path=str(folder),
            )
        order = {part.name: part for part in parts}
        if unknown := [name for name in modules if name not in order]:
            raise PartiesError(
                f"models: {unknown[0]} is not a party of this run",
                f"name one of {', '.join(order)}",
                code="SVFL-PARTIES-NAME",
                party=unknown[0],
            )
        return cls(Job.from_dict(lead.job), {name: order[name] for name in lead.parties})

    def summary(self) -> dict[str, Any]:
        """Return job, metrics and costs as plain data, for a JSON report."""
        return {
            "job": self.active.job,
            "parties": self.active.parties,
            "evaluated_on": self.evaluated_on,
            "positive": self.positive,
            "metrics": self.metrics,
            "metric_std_errors": self.metric_std_errors,
            "by_class": self.by_class,
            "notes": self.notes,
            "costs": self.costs.row(),
            "history": self.history,
        }

    def report(
        self, path: str | Path, *, alone: LocalQuality | Mapping[str, float] | None = None, sheet: str = ""
    ) -> None:
        """Write one self-contained HTML page: the gain, lift and calibration, disclosures, convergence, costs, the job.

        It contains no row of anybody's table.

        Args:
            path: the file.
            alone: metrics of a model of the active party's columns alone, for comparison; with their standard errors,
                the page states the uncertainty of the gain.
            sheet: the consent sheet that was agreed to.
        """
        write_atomic(Path(path), page(self.job, self._lead_first, alone=alone, sheet=sheet).encode())

    def plot(self) -> Figure:
        """Return loss, main metric and costs as a matplotlib figure (`securevfl[plot]`).

        A notebook shows it; `run.plot().savefig("run.png")` writes it. Raises ConfigError without matplotlib.
        """
        return plot(self.active, self.costs)

    @property
    def _lead_first(self) -> dict[str, ModelPart]:
        return {self.active.name: self.active} | self.parts

    def _repr_html_(self) -> str:
        return cell(self.job, self._lead_first)


def check_outputs(f: Floats, asker: str, first: str, file_rows: Rows | None = None) -> None:
    """Check that the outputs of new rows are finite.

    Args:
        f: the outputs (m, c).
        asker: the party that receives them.
        first: the name of a party; positions of rows in error messages refer to its table.
        file_rows: the position (m,) of each row in that table; None if the rows have the order of the table.

    Raises:
        RangeError: if an output is beyond the range of the model's numbers.
        DivergenceError: if an output is not a number.
    """
    if np.isnan(f).any():
        raise DivergenceError(
            f"{asker}: some outputs are not numbers, because weights or a module of the model diverged",
            "train again with a lower lr",
            code="SVFL-TRAINING-DIVERGED",
            party=asker,
        )
    if (beyond := np.flatnonzero(np.isinf(f).any(axis=1))).size:
        row = int(beyond[0] if file_rows is None else file_rows[beyond[0]]) + 1
        raise RangeError(
            f"{asker}: the outputs of {beyond.size} of {len(f)} rows are beyond the model's number range, first in row "
            f"{row} of the table of {first}",
            "leave these rows out, or train with a larger protocol.shares.step",
            code="SVFL-TRAINING-RANGE",
            party=asker,
            row=row,
        )

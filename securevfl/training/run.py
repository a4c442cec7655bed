"""A finished run: metrics, history, costs, prediction, and each party's own part to save."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.base.arrays import Floats
from securevfl.base.files import write_atomic, write_json
from securevfl.base.roles import Roles
from securevfl.base.version import __version__
from securevfl.data.validation import check_labels
from securevfl.errors import DivergenceError, LabelError, PartiesError, RangeError, TableError
from securevfl.job import Job
from securevfl.models import metrics
from securevfl.models.group_metrics import metrics_by_group
from securevfl.models.shapley import ShapleyValues
from securevfl.protocols.party_context import LocalResources, PartyContext
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.costs import Stage, Tally
from securevfl.runtime.meter import Meter
from securevfl.runtime.network import Network
from securevfl.runtime.party_threads import run_threads
from securevfl.training.costs import Costs
from securevfl.training.model_part import ModelPart
from securevfl.training.run_page import cell, page
from securevfl.training.scorecard import Scorecard, ScorecardScale, scorecard

if TYPE_CHECKING:
    from matplotlib.figure import Figure
from securevfl.training.run_plot import plot


@dataclass(frozen=True)
class Run:
    """All parties' parts of one run, side by side; only a simulation has them together.

    metrics: on the rows that `evaluated_on` names. history: one record a round.
    """

    job: Job
    parts: dict[str, ModelPart]

    @property
    def active(self) -> ModelPart:
        """The part of the party that leads."""
        return next(part for part in self.parts.values() if part.leads)

    @property
    def roles(self) -> Roles:
        """The role of each party in this run."""
        return Roles.of((name, part.role) for name, part in self.parts.items())

    @property
    def metrics(self) -> dict[str, float]:
        return self.active.metrics

    @property
    def evaluated_on(self) -> str:
        """Which rows the metrics are from, and what each counts, where the job weighs rows."""
        return self.active.evaluated_on

    @property
    def metric_std_errors(self) -> dict[str, float]:
        """The standard error of each metric: how far it would be off on other rows of the same kind."""
        return self.active.metric_std_errors

    @property
    def positive(self) -> str | None:
        """Which class, of two, the metrics and probabilities are of."""
        return self.active.positive

    @property
    def history(self) -> list[dict[str, float]]:
        return self.active.history

    @property
    def costs(self) -> Costs:
        """Rounds, seconds of the critical path by what they went into, bytes."""
        return Costs.of(self.job, self.parts)

    @property
    def calibration(self) -> list[list[float]]:
        """The calibration of the held-out rows. Two classes: mean probability, share of the positive class and rows, by
        rising probability, in ten parts; numbers: mean prediction, mean label and rows."""
        return list(self.active.calibration)

    @property
    def coefficients(self) -> dict[str, dict[str, list[float]]]:
        """What one unit of each party's columns adds to f (c); in a regression, to the label or its logarithm."""
        unit, _ = self._units
        return {
            name: {feature: [unit * each for each in own] for feature, own in part.coefficients().items()}
            for name, part in self.parts.items()
            if part.columns
        }

    @property
    def intercept(self) -> list[float]:
        """f (c) where all columns are 0; in a regression the label, or its logarithm."""
        unit, shift = self._units
        total = np.sum([part.constant() for part in self.parts.values() if part.columns], axis=0) * unit
        return [float(each) + shift for each in total]

    @property
    def _units(self) -> tuple[float, float]:
        classes = self.active.classes
        return (1.0, 0.0) if classes is None else self.job.model.loss.units(classes)

    def explain(self, party: str, X: ArrayLike) -> ShapleyValues:
        """Explain new rows (m x d) of a party: return what each of its columns adds, to f or in a regression to the
        label, as exact Shapley values of its part of a model of trees. Raises ConfigError if its weights were not
        opened to it."""
        found, (unit, _) = self._part(party).explain(X), self._units
        return ShapleyValues(found.base * unit, {name: own * unit for name, own in found.columns.items()})

    def importance(self, party: str) -> dict[str, list[float]]:
        """Return the mean size of Shapley values on training rows (c), by a party's columns; errors as `explain`."""
        own, (unit, _) = self._part(party).importance, self._units
        return {name: [unit * each for each in values] for name, values in own.items()}

    def _part(self, party: str) -> ModelPart:
        if party not in self.parts:
            raise PartiesError(f"one of {', '.join(self.parts)} was expected, {party} came; correct the name")
        return self.parts[party]

    def evaluate(
        self, tables: Mapping[str, ArrayLike], y: ArrayLike, weights: ArrayLike | None = None
    ) -> dict[str, float]:
        """All metrics on other rows than those of the job, with their labels y (m,) and what each counts (m,).
        TableError or LabelError."""
        counts = None if weights is None else check_labels(self.active.name, weights, len(np.asarray(y)))
        return metrics.evaluate(self.job.model.loss, *self._score_tables(tables, y), counts)

    def evaluate_by_group(
        self, tables: Mapping[str, ArrayLike], y: ArrayLike, groups: ArrayLike
    ) -> dict[str, dict[str, float]]:
        """Rates and metrics of each group (m,) of 100 rows or more (`models.metrics`); else as `evaluate`."""
        f, labels, classes = self._score_tables(tables, y)
        own = np.asarray(groups)
        if own.shape != (len(f),):
            raise TableError(f"one group for each of {len(f)} rows was expected, shape {own.shape} came; correct them")
        return metrics_by_group(self.job.model.loss, f, labels, classes, own)

    def _score_tables(self, tables: Mapping[str, ArrayLike], y: ArrayLike) -> tuple[Floats, NDArray[Any], NDArray[Any]]:
        """f (m x c) of other rows, their labels (m,), and the classes."""
        f, classes = self.decision(tables), self.active.label_classes
        labels = check_labels(self.active.name, y, len(f))
        if self.job.model.loss.classifies and not np.isin(labels, classes).all():
            raise LabelError("labels of the classes of the training were expected, others came; leave those rows out")
        return f, labels, classes

    def predict_proba(self, tables: Mapping[str, ArrayLike]) -> Floats:
        """Probability of each class (m x classes) on new rows, by the job's own sum protocol."""
        return self.job.model.loss.proba(self.decision(tables))

    def predict(self, tables: Mapping[str, ArrayLike]) -> NDArray[Any]:
        """Predict the likeliest class of each row, or the number itself in a regression (m,), for one unit of
        exposure."""
        loss, classes, f = self.job.model.loss, self.active.label_classes, self.decision(tables)
        if not loss.classifies:
            return np.asarray(loss.mean(f, classes))
        return np.asarray(classes[loss.proba(f).argmax(axis=1)])

    def decision(self, tables: Mapping[str, ArrayLike]) -> Floats:
        """f (m x c) on new rows, a table of each party with columns, rows in the same order. TableError if they do not
        fit, RangeError if a row's f is beyond what the model's numbers hold, DivergenceError if it is no number."""
        wanted = [name for name, part in self.parts.items() if part.columns]
        if not isinstance(tables, Mapping) or set(tables) != set(wanted):
            came = ", ".join(map(str, tables)) if isinstance(tables, Mapping) else type(tables).__name__
            raise PartiesError(f"tables of {', '.join(wanted)} by name were expected, {came or 'none'} came")
        return self.decision_of({name: self.parts[name].rows(table) for name, table in tables.items()})

    def decision_of(self, scaled: Mapping[str, Floats]) -> Floats:
        """f (m x c) on rows (m x d) of each party with columns, as its part has prepared and scaled them; errors as
        `decision`."""
        rows = dict(scaled)
        sizes = {name: len(table) for name, table in rows.items()}
        if len(set(sizes.values())) != 1:
            raise TableError(f"the same rows of every party were expected, counts are {sizes}; align them")
        count = next(iter(sizes.values()))
        rows |= {name: np.empty((count, 0)) for name in self.parts if name not in rows}
        roles = {name: partial(self._predict, name, table) for name, table in rows.items()}
        results = run_threads(roles, WallClock)
        f = results[self.active.asker]
        assert f is not None
        if np.isnan(f).any():
            raise DivergenceError(
                f"{self.active.asker}: outputs that are numbers were expected, some are none: weights or a module of "
                "the model have left the numbers; train again with a lower lr"
            )
        if (beyond := np.flatnonzero(np.isinf(f).any(axis=1))).size:
            raise RangeError(
                f"{self.active.asker}: sums that the model's numbers hold were expected, {beyond.size} of {count} rows "
                f"are beyond, the first of them row {beyond[0]}; leave these rows out, or train with a larger "
                "protocol.shares.step"
            )
        return f

    def _predict(self, name: str, X: Floats, channel: Channel) -> Floats | None:
        part = self.parts[name]
        meter, resources = Meter(channel.clock, channel.counters), LocalResources(simulated=True)
        context = PartyContext(channel, self.roles, meter, outputs=part.outputs, resources=resources, model=part.model)
        return self.job.family.participant(self.job, context, X.shape[1], part.state).model_outputs(X)

    def scorecard(self, points: float = 600, odds: float = 50, double: float = 20) -> Scorecard:
        """Points for each bin of each party's columns (`securevfl.training.scorecard`): `points` where the odds against
        the positive class are `odds` to 1, twice the odds `double` points up. ConfigError for a model that has none."""
        return scorecard(self._lead_first, ScorecardScale(points, odds, double))

    def save(self, folder: str | Path) -> None:
        """Write <folder>/<party>.json for each party: its own part and nobody else's."""
        for name, part in self.parts.items():
            part.save(Path(folder) / f"{name}.json")

    @classmethod
    def load(cls, folder: str | Path, *, models: Mapping[str, object] | None = None) -> Run:
        """Read back what `save` wrote. DataError if a file is none of ours, PartiesError if one is missing.

        models: by party the modules that they brought as objects (`securevfl.TorchModel`), which no file holds.
        """
        brought = models or {}
        parts = [ModelPart.load(path) for path in sorted(Path(folder).glob("*.json"))]
        parts = [replace(part, model=brought.get(part.name)) for part in parts]
        lead = next((part for part in parts if part.leads), None)
        if lead is None or {part.name for part in parts} != set(lead.parties):
            found = ", ".join(part.name for part in parts) or "none"
            raise PartiesError(f"{folder}: the files of all parties of one run were expected, found: {found}")
        order = {part.name: part for part in parts}
        if unknown := [name for name in brought if name not in order]:
            raise PartiesError(f"models: parties {', '.join(order)} were expected, {unknown[0]} came; correct the name")
        return cls(Job.from_dict(lead.job), {name: order[name] for name in lead.parties})

    def summary(self) -> dict[str, Any]:
        """Job, metrics and costs as plain data, for a JSON report."""
        return {
            "job": self.active.job,
            "parties": self.active.parties,
            "evaluated_on": self.evaluated_on,
            "positive": self.positive,
            "metrics": self.metrics,
            "metric_std_errors": self.metric_std_errors,
            "costs": self.costs.row(),
            "history": self.history,
        }

    def report(self, path: str | Path, *, alone: Mapping[str, float] | None = None, sheet: str = "") -> None:
        """Write one page of HTML for a browser: metrics, lift and calibration, what was told, convergence, costs, the
        job. It needs no other file and holds no row of anyone's table.

        alone: metrics of a model of the active party's own columns, to stand beside. sheet: what was agreed to.
        """
        write_atomic(Path(path), page(self.job, self._lead_first, alone=alone, sheet=sheet).encode())

    def plot(self) -> Figure:
        """Convergence by round and by second, and the cost split, as a matplotlib figure (`securevfl[plot]`).

        A notebook shows it; `run.plot().savefig("run.png")` writes it. ConfigError if matplotlib is not installed.
        """
        return plot(self.history, self.costs)

    @property
    def _lead_first(self) -> dict[str, ModelPart]:
        return {self.active.name: self.active} | self.parts

    def _repr_html_(self) -> str:
        return cell(self.job, self._lead_first)


# The JSON report of a training: what `Run.summary` has, and every party's counters in detail.


SCHEMA = "securevfl.report/3"


def report(run: Run, *, network: Network, lacking: dict[str, int]) -> dict[str, Any]:
    """Return the report as plain data.

    counters: by party and stage, bytes and counts by kind of message sent, seconds and counts by homomorphic operation.
    lacking: how many ids that others have each party lacks.
    """
    return {
        "schema": SCHEMA,
        "version": __version__,
        **run.summary(),
        "network": asdict(network),
        "ids_lacking": lacking,
        "books": {
            name: {
                "messages": _by_stage(part.counters.traffic, lambda tally: {"bytes": int(tally.amount)}),
                "operations": _by_stage(part.counters.ops, lambda tally: {"seconds": tally.amount}),
            }
            for name, part in run.parts.items()
        },
    }


def _by_stage(
    counters: dict[tuple[Stage, str], Tally], amount: Callable[[Tally], dict[str, float]]
) -> dict[str, dict[str, Any]]:
    stages: dict[str, dict[str, Any]] = {}
    for (stage, what), tally in counters.items():
        stages.setdefault(stage.name.lower(), {})[what] = amount(tally) | {"count": tally.count}
    return stages


def write_report(path: Path, run: Run, *, network: Network, lacking: dict[str, int]) -> None:
    """Write the report, whole or not at all."""
    write_json(path, report(run, network=network, lacking=lacking))

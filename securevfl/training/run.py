"""A finished run: metrics, history, costs, prediction, and each party's own part to save."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.crypto.scheme import Floats
from securevfl.data.given import check_labels
from securevfl.errors import LabelError, PartiesError, TableError
from securevfl.files import write_whole
from securevfl.job import Job
from securevfl.models import metrics
from securevfl.protocols.base import Seat
from securevfl.roles import Roles
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import Stage, WallClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.threads import run_threads
from securevfl.training.costs import Costs
from securevfl.training.model_part import ModelPart
from securevfl.training.plot import plot
from securevfl.training.run_page import cell, page

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        """What each party was."""
        return Roles.of((name, part.role) for name, part in self.parts.items())

    @property
    def metrics(self) -> dict[str, float]:
        return self.active.metrics

    @property
    def evaluated_on(self) -> str:
        """Which rows the metrics are from."""
        return "held-out rows" if self.job.test_fraction else "training rows"

    @property
    def history(self) -> list[dict[str, float]]:
        return self.active.history

    @property
    def costs(self) -> Costs:
        """Rounds, seconds of the critical path by kind, bytes."""
        return Costs(
            algorithm=self.job.optimizer.label,
            protocol=self.job.method.label(self.job, len(self.parts) - 1),
            local_steps=self.job.optimizer.steps,
            rounds=self.active.rounds,
            path=max((part.path for part in self.parts.values()), key=lambda path: float(path[: Stage.EVALUATE].sum())),
            books={name: part.books for name, part in self.parts.items()},
        )

    @property
    def calibration(self) -> list[list[float]]:
        """Of two classes: mean probability, share of the later class and rows, by rising probability, in ten parts."""
        return list(self.active.calibration)

    @property
    def coefficients(self) -> dict[str, dict[str, list[float]]]:
        """What one unit of each party's columns adds to f (c); in a regression, to the label itself."""
        unit = self._unit
        return {
            name: {feature: [unit * each for each in own] for feature, own in part.coefficients().items()}
            for name, part in self.parts.items()
            if part.columns
        }

    @property
    def intercept(self) -> list[float]:
        """f (c) where all columns are 0; in a regression the label."""
        total = np.sum([part.constant() for part in self.parts.values() if part.columns], axis=0) * self._unit
        classes = self.active.classes
        shift = 0.0 if self.job.model.loss.classifies or classes is None else float(classes[0])
        return [float(each) + shift for each in total]

    @property
    def _unit(self) -> float:
        """The labels' deviation in a regression, in which f is of deviation 1; else 1."""
        classes = self.active.classes
        return 1.0 if self.job.model.loss.classifies or classes is None else float(classes[1])

    def evaluate(self, tables: Mapping[str, ArrayLike], y: ArrayLike) -> dict[str, float]:
        """All metrics on other rows than those of the job, with their labels y (m,). TableError or LabelError."""
        f, classes = self.decision(tables), self.active.classes
        assert classes is not None, "the leading party knows the classes"
        labels = check_labels(self.active.name, y, len(f))
        if self.job.model.loss.classifies and not np.isin(labels, classes).all():
            raise LabelError("labels of the classes of the training were expected, others came; leave those rows out")
        return metrics.evaluate(self.job.model.loss, f, labels, classes)

    def predict_proba(self, tables: Mapping[str, ArrayLike]) -> Floats:
        """Probability of each class (m x classes) on new rows, by the job's own sum protocol."""
        return self.job.model.loss.proba(self.decision(tables))

    def predict(self, tables: Mapping[str, ArrayLike]) -> NDArray[Any]:
        """The likeliest class of each row, or the number itself in a regression (m,)."""
        loss, classes, f = self.job.model.loss, self.active.classes, self.decision(tables)
        assert classes is not None
        if not loss.classifies:
            return np.asarray(f[:, 0] * classes[1] + classes[0])
        return np.asarray(classes[loss.proba(f).argmax(axis=1)])

    def decision(self, tables: Mapping[str, ArrayLike]) -> Floats:
        """f (m x c) on new rows, a table of each party with columns, rows in the same order. TableError if they do not
        fit."""
        wanted = [name for name, part in self.parts.items() if part.columns]
        if set(tables) != set(wanted):
            raise PartiesError(f"tables of {', '.join(wanted)} were expected, {', '.join(tables) or 'none'} came")
        rows = {name: self.parts[name].rows(table) for name, table in tables.items()}
        sizes = {name: len(table) for name, table in rows.items()}
        if len(set(sizes.values())) != 1:
            raise TableError(f"the same rows of every party were expected, counts are {sizes}; align them")
        count = next(iter(sizes.values()))
        rows |= {name: np.empty((count, 0)) for name in self.parts if name not in rows}
        roles = {name: partial(self._predict, name, table) for name, table in rows.items()}
        results = run_threads(roles, WallClock)
        f = results[self.active.asker]
        assert f is not None
        return f

    def _predict(self, name: str, X: Floats, channel: Channel) -> Floats | None:
        part = self.parts[name]
        seat = Seat(channel, self.roles, Meter(channel.clock, channel.books), outputs=part.outputs, model=part.model)
        return self.job.method.player(self.job, seat, X.shape[1], part.state).decision(X)

    def save(self, folder: str | Path) -> None:
        """Writes <folder>/<party>.json for each party: its own part and nobody else's."""
        for name, part in self.parts.items():
            part.save(Path(folder) / f"{name}.json")

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Reads back what `save` wrote. DataError if a file is none of ours, PartiesError if one is missing."""
        parts = [ModelPart.load(path) for path in sorted(Path(folder).glob("*.json"))]
        lead = next((part for part in parts if part.leads), None)
        if lead is None or {part.name for part in parts} != set(lead.parties):
            found = ", ".join(part.name for part in parts) or "none"
            raise PartiesError(f"{folder}: the files of all parties of one run were expected, found: {found}")
        order = {part.name: part for part in parts}
        return cls(Job.from_dict(lead.job), {name: order[name] for name in lead.parties})

    def summary(self) -> dict[str, Any]:
        """Job, metrics and costs as plain data, for a JSON report."""
        return {
            "job": self.active.job,
            "parties": self.active.parties,
            "evaluated_on": self.evaluated_on,
            "metrics": self.metrics,
            "costs": self.costs.row(),
            "history": self.history,
        }

    def report(self, path: str | Path) -> None:
        """Writes one page of HTML for a browser: metrics, convergence, costs, messages, the job. It needs no other file
        and holds no row of anyone's table."""
        write_whole(Path(path), page(self.job, self._lead_first, self.costs, self.evaluated_on).encode())

    def plot(self) -> Figure:
        """Convergence by round and by second, and the cost split, as a matplotlib figure (`securevfl[plot]`).

        A notebook shows it; `run.plot().savefig("run.png")` writes it. ConfigError if matplotlib is not installed.
        """
        return plot(self.history, self.costs)

    @property
    def _lead_first(self) -> dict[str, ModelPart]:
        return {self.active.name: self.active} | self.parts

    def _repr_html_(self) -> str:
        return cell(self.job, self._lead_first, self.costs, self.evaluated_on)

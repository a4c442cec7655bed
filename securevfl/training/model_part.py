"""What a party takes home from a run: its own weights, its own scaling, its own counters. One file a party."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.base.arrays import Floats
from securevfl.base.checked_files import DamagedFileError, read_checked_json, write_checked_json
from securevfl.base.config import to_plain
from securevfl.data.baseline import Baseline
from securevfl.data.columns import Columns, columns_of, has_names
from securevfl.data.preparation import FittedPreparation
from securevfl.data.scaling import Scaling
from securevfl.data.validation import check_finite
from securevfl.errors import ConfigError, DataError, TableError
from securevfl.families.state import State
from securevfl.job import Job
from securevfl.models import pair_metrics
from securevfl.models.class_labels import positive_class
from securevfl.models.forest_inputs import ForestInputs
from securevfl.models.shapley import ShapleyValues, shapley_values
from securevfl.models.tree_views import TreeViews, tree_views_of
from securevfl.runtime.clock import Path as CriticalPath
from securevfl.runtime.costs import CostCounters, Kind, Stage

SCHEMA = "securevfl.part/5"
READ: dict[str, dict[str, Any]] = {  # earlier schemas, and what their files lack beside a digest
    "securevfl.part/4": {},
    "securevfl.part/3": {"calibration": [], "data": "", "baseline": []},
    "securevfl.part/2": {"calibration": [], "data": "", "baseline": [], "preparation": []},
}

AS_THEY_ARE = (  # fields that a file holds as they are
    *("name", "role", "job", "parties", "outputs", "metrics", "metric_std_errors", "history", "rounds", "run", "data"),
    *("trained", "held_out"),
)


class PartStatus(StrEnum):
    """What a part that `join` returns is: of this training, or of an earlier one of the same job on the same table.

    KEPT is of one that was cut off at its very end, when its outcome was on disk and not yet where it belongs.
    """

    NEW = "new"
    KEPT = "of the run that was cut off at its end, and the others were not there to confirm it"
    CONFIRMED = "of an earlier run, and all parties have confirmed that they hold theirs"
    UNCONFIRMED = "of an earlier run, and the others were not there to confirm it"


@dataclass
class ModelPart:
    """One party's outcome: its role, and its part of the model as its player keeps it (`securevfl.families`).

    `parties` are those of the run, the leading one first. `state` may hold secrets, such as the key that features are
    drawn from; its file holds them too. `preparation` makes of the party's columns those that the model is of, and
    `scaling` of these what its weights meet. `run` is the same in all parts of one training, and in no others. `data`
    is the digest of the table it was trained on (`Party.digest`), in hex. `baseline` is what its training rows were,
    column by column, and the scores that it was told of the rows that metrics were taken on. `metric_std_errors` is
    the standard
    error of metrics, by which they would differ on other rows of the same kind.
    trained, held_out: how many rows it was trained on, and how many were held out.
    model: the module that the party has brought as an object (`Party.model`); no file holds it, so a part that is read
    back needs it set anew unless its job names a file of it.
    """

    name: str
    role: str
    job: dict[str, Any]
    parties: list[str]
    preparation: FittedPreparation
    scaling: Scaling
    state: State
    outputs: int
    classes: NDArray[Any] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    calibration: Sequence[list[float]] = ()
    metric_std_errors: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    rounds: int = 0
    counters: CostCounters = field(default_factory=CostCounters, repr=False)
    path: CriticalPath = field(default_factory=lambda: np.zeros((len(Stage), len(Kind))), repr=False)
    run: str = ""
    data: str = ""
    baseline: Sequence[Baseline] = field(default=(), repr=False)
    trained: int = 0
    held_out: int = 0
    status: PartStatus = field(default=PartStatus.NEW, repr=False)
    model: object = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"ModelPart({self.name!r}, {self.role}, {len(self.columns)} columns)"

    @property
    def columns(self) -> list[str]:
        """The columns that the party brings."""
        return self.preparation.columns

    @property
    def features(self) -> list[str]:
        """The columns that the model is of (d)."""
        return self.preparation.features

    @property
    def information(self) -> dict[str, float]:
        """The information value of each of its columns, where they became weights of evidence; else empty."""
        return self.preparation.information_values

    @property
    def leads(self) -> bool:
        """Whether it is the part of the party that leads: the one with metrics, history and predictions."""
        return self.name == self.parties[0]

    @property
    def asker(self) -> str:
        """Who is told the scores of new rows."""
        job = Job.from_dict(self.job)
        return job.family.score_requester(job, self.parties[0])

    @property
    def label_classes(self) -> NDArray[Any]:
        """The classes (or mean and deviation) of the labels. Raises DataError in the part of a party that has none."""
        if self.classes is None:
            raise DataError(f"{self.name}: classes of labels were expected in its part of the model, it has none")
        return self.classes

    @property
    def positive(self) -> str | None:
        """Which class, of two, its metrics and probabilities are of; None at parties without labels."""
        return positive_class(Job.from_dict(self.job).model.loss, self.classes)

    @property
    def evaluated_on(self) -> str:
        """Which rows its metrics are of, and what each counts, where the job weighs rows."""
        job = Job.from_dict(self.job)
        rows = "held-out rows" if job.test_fraction else "training rows"
        if job.weights is None or job.weights.column is None:
            return rows
        alike = job.protocol.shares is not None and pair_metrics.supports_pairs(job.model.loss)
        return f"{rows}, each counted once" if alike else f"{rows}, counted by {job.weights.column}"

    @property
    def theta(self) -> Floats:
        """Its weights (d x c), an intercept as the last row; DataError of a model that keeps none of this kind."""
        if "theta" not in self.state:
            raise DataError(f"{self.name}: weights were expected in its part of the model, it has {self.state!r}")
        return self.state["theta"]

    def coefficients(self) -> dict[str, list[float]]:
        """Return what f (c) gains by one unit of each of its features, as the columns come: weights over deviations.

        On shares they hold within `ends`, and values count in steps of a 256th of a deviation: with `counted` in place
        of the columns they give f to the last digit. Raises DataError for a model that has no weights for columns.
        """
        self._check_by_column()
        theta = self.theta[: len(self.features)] / self.scaling.deviation[:, None]
        return dict(zip(self.features, theta.tolist(), strict=True))

    def constant(self) -> list[float]:
        """Return what this part adds to f (c) where all its features are 0: its intercept, if it has one, less the
        means."""
        self._check_by_column()
        theta = self.theta
        offset = theta[len(self.features) :].sum(axis=0)
        return list((offset - (self.scaling.mean / self.scaling.deviation) @ theta[: len(self.features)]).tolist())

    @property
    def ends(self) -> dict[str, tuple[float, float]]:
        """The values below and above which each of its features makes no further difference; infinite where there are
        none."""
        low, high = self.scaling.ends
        return dict(zip(self.features, zip(low.tolist(), high.tolist(), strict=True), strict=True))

    def counted(self, X: ArrayLike | Columns) -> Floats:
        """Return new rows (m x d) as the model counts them, in the units of its features: cut off and rounded as it was
        trained."""
        found = self.scaling.mean + self.rows(X) * np.where(
            np.isfinite(self.scaling.deviation), self.scaling.deviation, 0
        )
        return np.asarray(found)

    @property
    def trees(self) -> TreeViews:
        """This party's trees, with leaf weights if these were opened to it; DataError of a model without trees."""
        return tree_views_of(self._forest(), self.state.get("theta"))

    def explain(self, X: ArrayLike) -> ShapleyValues:
        """Explain new rows (m x d): return what each column of this party adds to f, as exact Shapley values. Raises
        ConfigError if its weights were not opened to it."""
        inputs = self._forest()
        self._check_opened()
        return shapley_values(inputs, self.state["theta"], self.table(X))

    @property
    def importance(self) -> dict[str, list[float]]:
        """The mean size of each column's Shapley values on training rows, for each output; errors as `explain`."""
        self._forest()
        self._check_opened()
        return dict(self.state["importance"])

    def _forest(self) -> ForestInputs:
        if not self.state.get("inputs"):
            raise DataError(f"{self.name}: a model of trees was expected, this one has none; read its coefficients")
        return ForestInputs.read(self.state["inputs"])

    def _check_opened(self) -> None:
        if "theta" not in self.state:
            raise ConfigError(
                f"{self.name}: weights that are opened to it were expected, all stay shared; train with "
                f'open_weights = ["{self.name}"] under protocol.shares, by which it can rank labels by its own columns'
            )

    def _check_by_column(self) -> None:
        if not Job.from_dict(self.job).model.by_column:
            raise DataError(f"{self.name}: a model with weights for columns was expected, this one has none; predict")

    def rows(self, X: ArrayLike | Columns) -> Floats:
        """Check new rows (m x d), and scale them as in training. TableError names what is wrong."""
        return self.scaling(self.table(X))

    def table(self, X: ArrayLike | Columns) -> Floats:
        """Check and prepare new rows (m x d), or one row (d,): columns go by name where X has names. Raises TableError
        if they do not fit."""
        named = has_names(X)
        rows = X if named or hasattr(X, "toarray") else np.atleast_2d(np.asarray(X))
        shape = (0, len(self.columns)) if named else rows.shape  # type: ignore[union-attr]
        if len(shape) != 2 or shape[1] != len(self.columns):
            raise TableError(
                f"party {self.name}: rows of {len(self.columns)} columns were expected, shape {shape} came"
            )
        names = None if named else self.columns
        if not self.columns:  # a helper's, who says how many rows there are
            return np.empty(shape)
        own = columns_of(self.name, rows, names, chosen=self.columns, texts=self.preparation.texts)
        table = self.preparation.apply(own)
        check_finite(self.name, np.asarray(np.isfinite(table).all(axis=0)), self.features)
        return table

    def save(self, path: str | Path) -> None:
        """Write this party's own part as JSON with its digest, whole or not at all."""
        state = {"schema": SCHEMA} | {name: getattr(self, name) for name in AS_THEY_ARE}
        state |= {
            "columns": self.columns,
            "preparation": self.preparation.plain(),
            "mean": self.scaling.mean.tolist(),
            "deviation": [each if np.isfinite(each) else None for each in self.scaling.deviation.tolist()],
            "classes": None if self.classes is None else self.classes.tolist(),
            "state": self.state.plain(),
            "calibration": list(self.calibration),
            "baseline": [to_plain(each) for each in self.baseline],
        }
        write_checked_json(Path(path), state)

    @classmethod
    def load(cls, path: str | Path) -> ModelPart:
        """Load a part that `save` wrote. Raises DataError if the file is no part of this schema, or is damaged."""
        try:
            state, checked = read_checked_json(Path(path))
        except OSError as cause:
            raise DataError(f"{path}: a party's model file was expected there ({cause.strerror})") from None
        except DamagedFileError:
            raise _damaged(path) from None
        except (ValueError, RecursionError):
            raise DataError(
                f"{path}: JSON was expected, the file is broken or cut off; take it from a backup"
            ) from None
        schema = state.pop("schema", None) if isinstance(state, dict) else None
        if schema not in (SCHEMA, *READ):
            known = " or ".join((SCHEMA, *READ))
            raise DataError(
                f"{path}: a model file of schema {known} was expected, {_shown(schema)} came; an older one is read by "
                "the securevfl that wrote it, a newer one after pip install --upgrade securevfl"
            )
        if schema == SCHEMA and not checked:
            raise _damaged(path)
        try:
            state = READ.get(schema, {}) | state
            mean = np.array(state.pop("mean"), dtype=np.float64)
            deviation = np.array([np.inf if each is None else each for each in state.pop("deviation")], np.float64)
            classes, own = state.pop("classes"), State.read(state.pop("state"))
            baseline = [Baseline(**each) for each in state.pop("baseline")]
            job = Job.from_dict(state["job"])
            preparation = FittedPreparation.read(state.pop("columns"), state.pop("preparation"))
            return cls(
                **state,
                preparation=preparation,
                scaling=Scaling(mean, deviation, job.family.column_clip(job)),
                state=own,
                classes=None if classes is None else np.array(classes),
                baseline=baseline,
            )
        except (KeyError, TypeError, ValueError, AttributeError, ConfigError):
            raise DataError(
                f"{path}: a whole model file of schema {schema} was expected, some of it is missing or was changed; "
                "take it from a backup, or train again"
            ) from None


def _damaged(path: str | Path) -> DataError:
    return DataError(
        f"{path}: a model file as it was written was expected, its digest is missing or another's: it is damaged or "
        "was changed by hand; take it from a backup, or train again"
    )


def _shown(schema: object) -> str:
    """Return what a file calls its schema, if that is a name of ours."""
    named = isinstance(schema, str) and re.fullmatch(r"securevfl\.[a-z]+/\d{1,4}", schema)
    return str(schema) if named else "another file"

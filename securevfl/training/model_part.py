"""One party's part of a trained model, stored in one file per party.

The output of a model for a row is f: c numbers, the sum of what the parties' *parts* add for their columns. Each party
prepares its columns to *features*, scales them, and multiplies them with its weights (or adds up values of its trees).
It stores only its own part. A part may be *opened* to its party: on secret shares a party knows its own weights only if
the job says so.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.base.arrays import Floats
from securevfl.base.checked_files import DamagedFileError, read_checked_json, write_checked_json
from securevfl.base.config import to_plain
from securevfl.base.conversion import convert
from securevfl.base.files import sync_folder
from securevfl.data.baseline import Baseline
from securevfl.data.columns import Columns, columns_of
from securevfl.data.frames import is_frame
from securevfl.data.new_texts import warn_of_new_texts
from securevfl.data.preparation import FittedPreparation
from securevfl.data.scaling import Scaling
from securevfl.data.validation import check_finite, unmasked
from securevfl.disclosure.outputs import Output
from securevfl.errors import ConfigError, DataError, SecureVFLError, StorageError, TableError
from securevfl.families.state import State
from securevfl.job import Job
from securevfl.models import pair_metrics
from securevfl.models.class_labels import positive_class
from securevfl.models.forest_inputs import ForestInputs
from securevfl.models.shapley import ShapleyValues, shapley_values
from securevfl.models.tree_views import TreeViews, tree_views_of
from securevfl.runtime.clock import Path as CriticalPath
from securevfl.runtime.costs import CostCounters, Kind, Stage
from securevfl.untrusted import check_text

DIGEST_LENGTH = 16
"""Number of hexadecimal digits in the name of a replaced model file."""
PART_SCHEMA = "securevfl.part/8"

PLAIN_FIELDS = (
    *("name", "role", "job", "parties", "outputs", "metrics", "metric_std_errors", "history", "rounds", "run", "data"),
    *("trained", "held_out", "by_class", "notes"),
)
"""Names of the fields of `ModelPart` that its file contains in the same form."""


class PartStatus(StrEnum):
    """What `join` knows about the part it returns: which run trained it, and whether the other parties confirmed it.

    KEPT: an earlier run trained this part and was interrupted before it wrote the final file.
    """

    NEW = "new"
    KEPT = "from the run that was interrupted at its end; the other parties could not be reached to confirm it"
    CONFIRMED = "from an earlier run; all parties have confirmed that they have theirs"
    UNCONFIRMED = "from an earlier run; the other parties could not be reached to confirm it"


@dataclass
class ModelPart:
    """One party's part of a trained model: its weights, its metrics, and how its columns are prepared.

    Attributes:
        name: name of the party.
        role: the party's role in the run, such as active or passive.
        job: the job as plain data.
        parties: the parties of the run. The first is the *leading party*, which decides when the training ends; usually
            it is the party with labels.
        preparation: converts the party's columns to the features of the model.
        scaling: scales the features.
        state: the participant's model state. It may hold secrets, such as the key of random features, and so does the
            file.
        outputs: number of outputs c.
        classes: classes of the labels, or their mean and deviation, at parties with labels.
        metrics: metrics of the model.
        calibration: mean prediction, mean label and number of rows, for ten groups of rows by rising prediction.
        metric_std_errors: standard errors of the metrics, which vary with the choice of the measured rows.
        by_class: with several classes, the figures of each class against all others, by the name of the class.
        notes: statements about the training and its metrics: what is not measured and why, and whether the training has
            converged.
        history: one record per round.
        rounds: number of exchanges: parties send outputs, and receive residuals or gradients. In a training without
            exchanges, as on secret shares, it is the number of iterations.
        counters: counters of messages and operations.
        path: seconds of the critical path (`securevfl.training.run_costs`), by stage and kind of work (stages, kinds).
        run: id of the training; the same in all its parts.
        data: digest of the training table (`Party.digest`) in hex.
        baseline: summaries of the training rows, by column, and of the scores that the party received; new rows are
            compared with them.
        trained: number of training rows.
        held_out: number of held-out rows.
        status: whether an earlier run trained this part, if `join` returned it without training.
        model: the network that the party passed (`Party.model`). Files do not contain it, so set it after loading.
        outputs_of_run: the disclosures of the run to all parties; empty if the part was loaded from a file.
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
    by_class: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
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
    outputs_of_run: Sequence[Output] = field(default=(), repr=False)

    def __repr__(self) -> str:
        """Return the party, its role and the number of its columns."""
        return f"ModelPart({self.name!r}, {self.role}, {len(self.columns)} columns)"

    @property
    def columns(self) -> list[str]:
        """The columns that the party provides."""
        return self.preparation.columns

    @property
    def features(self) -> list[str]:
        """The names of the d features that the party's columns become."""
        return self.preparation.features

    @property
    def information(self) -> dict[str, float]:
        """The information value of each column if columns became weights of evidence; otherwise empty."""
        return self.preparation.information_values

    @property
    def leads(self) -> bool:
        """Whether this is the part of the leading party, which also has the metrics, history and predictions."""
        return self.name == self.parties[0]

    @cached_property
    def parsed_job(self) -> Job:
        """The job of the training, parsed once for each part."""
        return Job.from_dict(self.job)

    @property
    def asker(self) -> str:
        """The party that receives the scores of new rows."""
        return self.parsed_job.family.score_requester(self.parsed_job, self.parties[0])

    @property
    def label_classes(self) -> NDArray[Any]:
        """The classes of the labels, or their mean and deviation.

        Raises:
            DataError: if this is the part of a party without labels.
        """
        if self.classes is None:
            raise DataError(
                f"{self.name}: this part of the model has no classes of labels",
                "use the part of the party with labels",
                code="SVFL-MODEL-UNSUPPORTED",
                party=self.name,
            )
        return self.classes

    @property
    def positive(self) -> str | None:
        """The class of two to which metrics and probabilities refer; None at parties without labels."""
        return positive_class(self.parsed_job.model.loss, self.classes)

    @property
    def evaluated_on(self) -> str:
        """The rows of the metrics, and how they are weighted if the job weights rows."""
        job = self.parsed_job
        rows = "held-out rows" if job.test_fraction else "training rows"
        if job.weights is None or job.weights.column is None:
            return rows
        unweighted = job.protocol.shares is not None and pair_metrics.supports_pairs(job.model.loss)
        return f"{rows}, each counted once" if unweighted else f"{rows}, counted by {job.weights.column}"

    @property
    def theta(self) -> Floats:
        """The weights (d, c), with an intercept as the last row.

        Raises:
            DataError: if the model has no weights of this kind.
        """
        if "theta" not in self.state:
            raise DataError(
                f"{self.name}: this part of the model has no weights", code="SVFL-MODEL-NO-WEIGHTS", party=self.name
            )
        return self.state["theta"]

    def coefficients(self) -> dict[str, list[float]]:
        """Return how much one unit of each feature adds to f (c), in the units of the columns.

        If the model was trained on secret shares, columns are clipped to `ends` and rounded to steps of 1/256 standard
        deviation. The coefficients times the rows that `counted` returns, plus `constant`, are exactly what this part
        adds to f.

        Returns:
            The coefficients (c) by name of the feature.

        Raises:
            DataError: if the model has no weights of columns.
        """
        self._check_by_column()
        theta = self.theta[: len(self.features)] / self.scaling.deviation[:, None]
        return dict(zip(self.features, theta.tolist(), strict=True))

    def constant(self) -> list[float]:
        """Return what this part adds to f (c) for a row whose features are all 0, because of intercept and scaling."""
        self._check_by_column()
        theta = self.theta
        intercept = theta[len(self.features) :].sum(axis=0)
        means = (self.scaling.mean / self.scaling.deviation) @ theta[: len(self.features)]
        return list((intercept - means).tolist())

    @property
    def ends(self) -> dict[str, tuple[float, float]]:
        """The values of each feature at which it is clipped from below and above; infinite without a clip."""
        low, high = self.scaling.ends
        return dict(zip(self.features, zip(low.tolist(), high.tolist(), strict=True), strict=True))

    def counted(self, X: ArrayLike | Columns) -> Floats:
        """Return new rows (m, d) as the model uses them: clipped and rounded, in the units of the features."""
        deviation = np.where(np.isfinite(self.scaling.deviation), self.scaling.deviation, 0)
        return np.asarray(self.scaling.mean + self.rows(X) * deviation)

    @property
    def trees(self) -> TreeViews:
        """This party's trees, with leaf weights if these were opened to it.

        Raises:
            DataError: if the model has no trees.
        """
        return tree_views_of(self._forest(), self.state.get("theta"))

    def explain(self, X: ArrayLike) -> ShapleyValues:
        """Return the exact Shapley value of each column of this party, for new rows (m, d) of a model of trees.

        Args:
            X: new rows (m, d) of this party's columns.

        Returns:
            The Shapley values of this party's columns.

        Raises:
            DataError: if the model has no trees.
            ConfigError: if its weights were not opened to this party.
        """
        inputs = self._forest()
        self._check_opened()
        return shapley_values(inputs, self.state["theta"], self.table(X))

    @property
    def importance(self) -> dict[str, list[float]]:
        """The mean absolute Shapley value of each column on training rows, by output. Raises like `explain`."""
        self._forest()
        self._check_opened()
        return dict(self.state["importance"])

    def _forest(self) -> ForestInputs:
        if not self.state.get("inputs"):
            raise DataError(
                f"{self.name}: the model has no trees",
                "use its coefficients instead",
                code="SVFL-MODEL-UNSUPPORTED",
                party=self.name,
            )
        return ForestInputs.read(self.state["inputs"])

    def _check_opened(self) -> None:
        self._check_no_pairs()
        if "theta" not in self.state:
            raise ConfigError(
                f"{self.name}: this party does not know the weights of its part",
                f'train with open_weights = ["{self.name}"] under protocol.shares; the party can then rank labels by '
                "its columns",
                code="SVFL-MODEL-NO-WEIGHTS",
                party=self.name,
            )

    def _check_no_pairs(self) -> None:
        if self.parsed_job.model.pair_rank:
            raise ConfigError(
                f"{self.name}: a model with pairs opens no weights, because weights of pairs belong to two parties. It "
                "has no coefficients, Shapley values, scorecards, reason codes or exported models",
                "use its predictions, or train without pairs",
                code="SVFL-MODEL-NO-WEIGHTS",
                party=self.name,
            )

    def _check_by_column(self) -> None:
        self._check_no_pairs()
        if not self.parsed_job.model.by_column:
            raise DataError(
                f"{self.name}: this kind of model has no weight for each column, so it has no coefficients",
                'use its predictions, or train a model with coefficients, such as model = "logistic"',
                code="SVFL-MODEL-NO-WEIGHTS",
                party=self.name,
            )

    def rows(self, X: ArrayLike | Columns) -> Floats:
        """Check, prepare and scale new rows (m, d) as in training; raises the errors of `table`."""
        return self.scaling(self.table(X))

    def table(self, X: ArrayLike | Columns | Mapping[str, Any]) -> Floats:
        """Check and prepare new rows.

        Args:
            X: rows (m, d) or one row (d,). Columns are found by name if X has names.

        Returns:
            The features (m, d).

        Raises:
            TableError: if the number of columns differs from the training.
        """
        named = isinstance(X, Columns) or is_frame(X)
        rows = X if named or hasattr(X, "toarray") else np.atleast_2d(np.asarray(unmasked(X)))
        shape = (0, len(self.columns)) if named else rows.shape  # type: ignore[union-attr]
        if len(shape) != 2 or shape[1] != len(self.columns):
            raise TableError(
                f"party {self.name}: the rows have shape {shape}, and the model has {len(self.columns)} columns",
                "pass the columns of the training",
                code="SVFL-TABLE-COLUMNS",
                party=self.name,
                columns=len(self.columns),
            )
        names = None if named else self.columns
        if not self.columns:  # a helper, a party without a table, only knows the number of rows
            return np.empty(shape)
        columns = columns_of(self.name, rows, names, chosen=self.columns, known=self.preparation.types)
        table = self.preparation.apply(columns)
        warn_of_new_texts(self.name, self.preparation, columns, self.baseline)
        check_finite(self.name, np.asarray(np.isfinite(table).all(axis=0)), self.features)
        return table

    def with_named_module(self, folder: Path) -> ModelPart:
        """Load the network that the job names for this party, if the settings of this computer allow its file.

        Args:
            folder: the folder with the file of the module.

        Returns:
            This part of the model, with the module.

        Raises:
            ConfigError: the name is not allowed, or the folder has no such file.
        """
        self.model = self.parsed_job.model.named_module(self.name, folder)
        return self

    def _try_on_a_row(self) -> None:
        """Read the classes and prepare one row of zeros, so that `load` fails at once if a file's contents are bad."""
        if self.classes is not None and (self.classes.ndim != 1 or len(self.classes) < 2):
            raise ValueError("classes")
        str(self.positive)
        # preparing a row of zeros may fail although the file is fine, for example if a column holds texts
        with suppress(SecureVFLError), np.errstate(all="ignore"):
            self.rows(np.zeros((1, len(self.columns))))

    def save(self, path: str | Path) -> None:
        """Write this part atomically as JSON with a digest.

        A file is never overwritten: another file at this path is renamed to `NAME.<digest>.json` first.

        Args:
            path: the file.
        """
        content = {"schema": PART_SCHEMA} | {name: getattr(self, name) for name in PLAIN_FIELDS}
        content |= {
            "columns": self.columns,
            "preparation": self.preparation.plain(),
            "types": self.preparation.plain_types(),
            "mean": self.scaling.mean.tolist(),
            "deviation": [value if np.isfinite(value) else None for value in self.scaling.deviation.tolist()],
            "classes": None if self.classes is None else self.classes.tolist(),
            "state": self.state.plain(),
            "calibration": list(self.calibration),
            "baseline": [to_plain(item) for item in self.baseline],
        }
        set_aside(Path(path))
        write_checked_json(Path(path), content)

    @classmethod
    def load(cls, path: str | Path) -> ModelPart:
        """Load a part that `save` wrote.

        Args:
            path: the file.

        Returns:
            The party's part of the model.

        Raises:
            DataError: if the file is missing, damaged or of another kind or version.
        """
        try:
            content, has_digest = read_checked_json(Path(path))
        except OSError as cause:
            raise DataError(
                f"{path}: the model file cannot be read ({cause.strerror})",
                "check the path",
                code="SVFL-MODEL-FILE",
                path=str(path),
            ) from None
        except DamagedFileError:
            raise _damaged(path) from None
        except (ValueError, RecursionError):
            raise _damaged(path) from None
        schema = content.pop("schema", None) if isinstance(content, dict) else None
        if schema != PART_SCHEMA:
            raise DataError(
                f"{path}: unsupported model file schema {_schema_name(schema)} (supported: {PART_SCHEMA})",
                "open older files with the version that wrote them; upgrade securevfl for newer files",
                code="SVFL-MODEL-FILE",
                path=str(path),
            )
        if not has_digest:
            raise _damaged(path)
        try:
            fields, named = convert(content, _StoredFields), [content["columns"], content["classes"]]
            texts = (fields.name, fields.role, fields.run, *fields.parties, *fields.notes, *fields.by_class)
            for text in (*texts, *chain(*filter(None, named))):
                if isinstance(text, str):
                    check_text(text)
            mean = np.array(content.pop("mean"), dtype=np.float64)
            deviations = content.pop("deviation")
            deviation = np.array([np.inf if value is None else value for value in deviations], np.float64)
            classes, state = content.pop("classes"), State.read(content.pop("state"))
            baseline = [Baseline(**item) for item in content.pop("baseline")]
            job = _job_of_file(path, content["job"])
            preparation = FittedPreparation.read(
                content.pop("columns"), content.pop("preparation"), content.pop("types")
            )
            _check_shapes(job, preparation, mean, deviation, state, content["outputs"])
            part = cls(
                **content,
                preparation=preparation,
                scaling=Scaling(mean, deviation, job.family.column_clip(job)),
                state=state,
                classes=None if classes is None else np.array(classes),
                baseline=baseline,
            )
            part._try_on_a_row()
            return part
        except _UnregisteredError:
            raise
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, SecureVFLError):
            raise _damaged(path) from None


def _job_of_file(path: str | Path, keys: Mapping[str, Any]) -> Job:
    """Return the job of a model file whose digest is right, so that its job was valid where it was written."""
    try:
        return Job.from_dict(keys)
    except ConfigError as cause:
        option = str(cause.fields.get("option") or "job")
        raise _UnregisteredError(
            f"{path}: this program cannot use the job of the model ({cause.problem.splitlines()[0]})",
            f"if {option} names code of yours, such as a loss, import the module that registers it before you load the "
            "model; otherwise load the model with the version of securevfl that wrote it",
            code="SVFL-MODEL-FILE",
            path=str(path),
            option=option,
        ) from None


class _UnregisteredError(DataError):
    """A model file whose job names a loss, an optimizer or another option that this program does not know."""

    default_code = "SVFL-MODEL-FILE"


class _StoredFields(msgspec.Struct):
    """The types of the fields that a model file contains as they are, without conversion."""

    name: str
    role: str
    job: dict[str, Any]
    parties: Annotated[list[str], msgspec.Meta(min_length=1)]
    outputs: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
    metrics: dict[str, float | None]
    metric_std_errors: dict[str, float | None]
    by_class: dict[str, dict[str, float | None]]
    notes: list[str]
    history: list[dict[str, Any]]
    rounds: Annotated[int, msgspec.Meta(ge=0)]
    run: str
    data: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})*$")]
    trained: Annotated[int, msgspec.Meta(ge=0)]
    held_out: Annotated[int, msgspec.Meta(ge=0)]
    calibration: list[list[float]]


def _check_shapes(
    job: Job, preparation: FittedPreparation, mean: Floats, deviation: Floats, state: State, outputs: int
) -> None:
    """Raise ValueError unless arrays have one entry, and weights have one row, for each feature."""
    d = len(preparation.features)
    if mean.shape != (d,) or deviation.shape != (d,):
        raise ValueError("scaling")
    if not ((deviation > 0).all() and np.isfinite(mean).all()):
        raise ValueError("scaling")
    if "theta" in state and job.model.by_column:
        theta = state["theta"]
        if not (isinstance(theta, np.ndarray) and theta.ndim == 2 and theta.shape[1] == outputs):
            raise ValueError("theta")
        if len(theta) < d or theta.dtype.kind not in "iuf":
            raise ValueError("theta")


def set_aside(path: Path) -> Path | None:
    """Rename the file at a path to `NAME.<digest>.json`, so that a new file can be written there.

    Args:
        path: the path, `NAME.json`.

    Returns:
        The new path; None if there is no file.

    Raises:
        StorageError: the file cannot be read or renamed.
    """
    if not path.is_file():
        return None
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:DIGEST_LENGTH]
        aside = path.with_name(f"{path.name.removesuffix('.json')}.{digest}.json")
        path.rename(aside)
        sync_folder(path.parent)
    except OSError as cause:
        raise StorageError(path, cause) from None
    return aside


def replaced_files(path: Path) -> list[Path]:
    """Return the files that `set_aside` has renamed from this path."""
    name = re.compile(re.escape(path.name.removesuffix(".json")) + rf"\.[0-9a-f]{{{DIGEST_LENGTH}}}\.json")
    folder = path.parent
    return sorted(other for other in folder.iterdir() if name.fullmatch(other.name)) if folder.is_dir() else []


def check_unused(path: Path) -> None:
    """Raise ConfigError if there is a file at a path at which a model is to be written."""
    if path.exists():
        raise ConfigError(
            f"{path} exists already, and belongs to another job, or to another table than the current one",
            "name another file with --save; or give --replace, which renames it to NAME.<digest>.json when the new "
            "model is complete",
            code="SVFL-FILE-EXISTS",
            path=str(path),
        )


def _damaged(path: str | Path) -> DataError:
    return DataError(
        f"{path}: the model file is damaged, incomplete or was changed by hand",
        "restore it from a backup, or train again",
        code="SVFL-MODEL-FILE",
        path=str(path),
    )


def _schema_name(schema: object) -> str:
    """Return the schema of a file for a message; a schema that is not one of securevfl's is not repeated."""
    is_known = isinstance(schema, str) and re.fullmatch(r"securevfl\.[a-z]+/\d{1,4}", schema)
    return str(schema) if is_known else "of another program"

"""Estimators in scikit-learn's form, for experiments with all columns on one computer (extra `sklearn`).

The columns of one table are distributed ("dealt") to parties by name. `fit` simulates the training of a `Job` by these
parties, and the other methods use the finished run. So `clone`, `Pipeline`, `cross_val_score` and `GridSearchCV` of
scikit-learn work with a job, for example to find good values of its options.

No ledger counts these fits, because all data are on one computer. Between organisations every model discloses
something; `securevfl compare` compares several models there under one consent.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.base.arrays import Floats
from securevfl.base.extras import import_extra
from securevfl.data.frames import is_frame
from securevfl.data.party import Party
from securevfl.errors import ConfigError, DataError
from securevfl.job import Job
from securevfl.training.run import Run
from securevfl.training.simulate import simulate

base: Any = import_extra("sklearn.base", "sklearn", "an estimator in scikit-learn's form")
validation: Any = import_extra("sklearn.utils.validation", "sklearn", "an estimator in scikit-learn's form")

Dealt = Mapping[str, Sequence[Hashable]]
"""The columns of each party: names of columns of a frame, or positions of columns of an array."""
ACTIVE, PASSIVE = "active", "passive"
"""The parties if none are named."""
_JOB_PREFIX = "job__"


class VerticalEstimator(base.BaseEstimator):  # type: ignore[misc]
    """Base class of `VerticalClassifier` and `VerticalRegressor`, which deals the columns to parties.

    Args:
        job: the job, or its keys as in a job file; without a key `model`, the estimator chooses the model. None is the
            default job of the estimator.
        parties: the columns of each party. None deals the first half of the columns to a party `active` and the rest
            to a party `passive`.
        label_party: the party with the labels; by default the first one.

    Attributes:
        run_: the finished run, with metrics, costs and the parts of the model.
        job_: the options of the training, on which all parties agree (`securevfl.job.Job`).
        parties_: the columns of each party.
        n_features_in_: the number of columns of the table.
        feature_names_in_: the names of the columns, if all of them are texts.
    """

    run_: Run
    job_: Job
    parties_: dict[str, list[Hashable]]

    def __init__(
        self,
        job: Job | Mapping[str, Any] | None = None,
        parties: Dealt | None = None,
        label_party: str | None = None,
    ) -> None:
        self.job = job
        self.parties = parties
        self.label_party = label_party

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the estimator.

        Args:
            deep: also return the keys of the job, as `job__model__l2` for `l2` in the job's table `model`.

        Returns:
            The values by name.
        """
        parameters: dict[str, Any] = super().get_params(deep=False)
        if deep and self.job is not None:
            keys = self.job.to_dict() if isinstance(self.job, Job) else self.job
            parameters |= dict(_nested_names(keys, _JOB_PREFIX)) if isinstance(keys, Mapping) else {}
        return parameters

    def set_params(self, **params: Any) -> Self:
        """Set parameters; `job__model__l2=0.1` replaces one key of the job, which must be in it or have a default.

        Args:
            **params: the parameters, see `get_params`.

        Returns:
            This estimator.
        """
        own = {name: value for name, value in params.items() if not name.startswith(_JOB_PREFIX)}
        super().set_params(**own)
        changed = {name.removeprefix(_JOB_PREFIX): value for name, value in params.items() if name not in own}
        if changed:
            given = self.job if self.job is not None else {}
            keys = given.to_dict() if isinstance(given, Job) else _copied(given)
            for name, value in changed.items():
                _replace_key(keys, name.split("__"), value)
            self.job = keys
        return self

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: missing values and texts are allowed, because the job prepares them."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        return tags

    def _default_model(self, classes: int) -> str:
        raise NotImplementedError

    def _fit(self, X: Any, y: NDArray[Any], classes: int) -> None:
        """Deal the columns to parties, and simulate the training of the job by these parties."""
        with _as_value_errors():
            table = _Table.of(X)
            self.n_features_in_ = len(table.names)
            if all(isinstance(name, str) for name in table.names):
                self.feature_names_in_ = np.array(table.names, dtype=object)
            elif hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
            self.parties_ = self._deal(table.names)
            if isinstance(self.job, Job):
                self.job_ = self.job
            else:
                self.job_ = Job.from_dict({"model": self._default_model(classes), **(self.job or {})})
            active = self.label_party or next(iter(self.parties_))
            parties = [
                Party(name, table.select(columns), y if name == active else None, aligned=True)
                for name, columns in self.parties_.items()
            ]
            self.run_ = simulate(self.job_, parties)

    def _deal(self, names: list[Hashable]) -> dict[str, list[Hashable]]:
        """Return which columns each party gets.

        Args:
            names: the names, or positions, of the columns.

        Returns:
            The columns of each party; each column belongs to one.

        Raises:
            ConfigError: if a column is unknown, or belongs to no party or to several, or a party has none.
        """
        if self.parties is None:
            if len(names) < 2:
                raise ConfigError(
                    f"the table has {len(names)} feature(s), and two parties need at least one column each",
                    "pass a table with more columns",
                    code="SVFL-TABLE-COLUMNS",
                )
            half = (len(names) + 1) // 2
            return {ACTIVE: names[:half], PASSIVE: names[half:]}
        dealt = {name: list(columns) for name, columns in self.parties.items()}
        every = [column for columns in dealt.values() for column in columns]
        problems = {
            "are not in the table": [column for column in every if column not in names],
            "belong to several parties": [column for column in names if every.count(column) > 1],
            "belong to no party": [column for column in names if column not in every],
        }
        for problem, columns in problems.items():
            if columns:
                raise ConfigError(
                    f"parties: the columns {', '.join(map(str, columns[:10]))} {problem}",
                    "name every column of the table at exactly one party",
                    code="SVFL-TABLE-COLUMNS",
                    columns=columns,
                )
        if self.label_party is not None and self.label_party not in dealt:
            raise ConfigError(
                f"label_party: {self.label_party} is not a party",
                f"name one of {', '.join(dealt)}",
                code="SVFL-PARTIES-NAME",
                party=self.label_party,
            )
        return dealt

    def _tables(self, X: Any) -> dict[str, Any]:
        """Return the table of each party, with its columns of new rows X."""
        validation.check_is_fitted(self, "run_")
        table = _Table.of(X, min_rows=1)
        expected = list(getattr(self, "feature_names_in_", range(self.n_features_in_)))
        if table.names != expected and set(table.names) != set(expected):
            raise ValueError(
                f"X has {len(table.names)} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                "features as input, with the names that fit received. Pass the columns of the training."
            )
        return {name: table.select(columns) for name, columns in self.parties_.items()}

    def _decision(self, X: Any) -> Floats:
        """Return f (m, c), the c outputs of the model for each of m new rows."""
        tables = self._tables(X)
        with _as_value_errors():
            return self.run_.decision(tables)


class VerticalClassifier(base.ClassifierMixin, VerticalEstimator):  # type: ignore[misc]
    """A classifier that several parties train on one computer, in scikit-learn's form.

    ```python
    model = VerticalClassifier(parties={"bank": ["income", "age"], "shop": ["visits"]})
    search = GridSearchCV(model, {"job__model__l2": [0.001, 0.01, 0.1]}).fit(frame, y)
    ```

    Arguments and attributes are those of `VerticalEstimator`. The default job is a logistic regression on secret
    shares; with more than two classes, one for each class.

    Attributes:
        classes_: the classes, sorted.
    """

    classes_: NDArray[Any]

    def _default_model(self, classes: int) -> str:
        return "logistic" if classes == 2 else "one_vs_rest"

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Train on a table (n, d) and its classes (n,).

        Args:
            X: a frame or an array; texts, dates and missing values are prepared as the job says.
            y: the classes.

        Returns:
            This estimator.

        Raises:
            ValueError: if the table, the classes or the job cannot be used.
        """
        labels = _checked_target(X, y, "classes")
        multiclass = import_extra("sklearn.utils.multiclass", "sklearn", "a classifier in scikit-learn's form")
        multiclass.check_classification_targets(labels)
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise ValueError(f"Classifier can't train when only one class is present: {len(self.classes_)} class")
        self._fit(X, labels, len(self.classes_))
        return self

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class (m, classes) for new rows (m, d), in the order of `classes_`."""
        f = self._decision(X)
        return self.run_.job.model.loss.proba(f)[:, self._sorted_classes()]

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the likeliest class of each new row (m,)."""
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])

    def decision_function(self, X: Any) -> Floats:
        """Return the outputs of new rows: (m,) with two classes, where a positive one means the second class."""
        f, order = self._decision(X), self._sorted_classes()
        if f.shape[1] > 1:
            return f[:, order]
        # f is large for the run's positive class, which need not be the second one of `classes_`
        return f[:, 0] if order[1] == 1 else -f[:, 0]

    def _sorted_classes(self) -> NDArray[np.intp]:
        """Return the positions of `classes_` in the run's order of classes, in which the positive of two is last."""
        return np.argsort(self.run_.active.label_classes)


class VerticalRegressor(base.RegressorMixin, VerticalEstimator):  # type: ignore[misc]
    """A regression that several parties train on one computer, in scikit-learn's form.

    Arguments and attributes are those of `VerticalEstimator`. The default job is a linear regression by least squares
    on secret shares.
    """

    def _default_model(self, classes: int) -> str:
        return "square"

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Train on a table (n, d) and its labels (n,).

        Args:
            X: a frame or an array; texts, dates and missing values are prepared as the job says.
            y: the labels.

        Returns:
            This estimator.

        Raises:
            ValueError: if the table, the labels or the job cannot be used.
        """
        self._fit(X, _checked_target(X, y, "labels").astype(np.float64), 1)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the prediction (m,) for new rows (m, d)."""
        tables = self._tables(X)
        with _as_value_errors():
            return self.run_.predict(tables)


class _Table:
    """A table from which columns can be selected: a frame by names, or an array (n, d) by positions."""

    def __init__(self, table: Any, names: list[Hashable]) -> None:
        self.names = names
        self._table = table

    @classmethod
    def of(cls, X: Any, min_rows: int = 2) -> _Table:
        """Wrap a frame unchanged; check anything else with scikit-learn and convert it to an array of numbers."""
        if is_frame(X) and not hasattr(X, "tocsr"):  # sparse matrices may look like frames; check_array refuses them
            names = list(X) if isinstance(X, Mapping) else list(getattr(X, "column_names", None) or X.columns)
            return cls(X, names)
        array = validation.check_array(X, dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=min_rows)
        return cls(array, list(range(array.shape[1])))

    def select(self, columns: Sequence[Hashable]) -> Any:
        """Return these columns as a table."""
        if isinstance(self._table, np.ndarray):
            return self._table[:, [self.names.index(column) for column in columns]]
        return {str(column): self._table[column] for column in columns}


def _checked_target(X: Any, y: ArrayLike, what: str) -> NDArray[Any]:
    """Return the target y as an array (n,). Raise ValueError unless it has one value for each row of X."""
    if y is None:
        raise ValueError(f"requires y to be passed, but the target y is None: pass the {what}")
    values = validation.column_or_1d(y, warn=True)
    validation.check_consistent_length(X, values)
    if values.dtype.kind == "f":
        import_extra("sklearn.utils", "sklearn", "an estimator in scikit-learn's form").assert_all_finite(values)
    return np.asarray(values)


@contextmanager
def _as_value_errors() -> Iterator[None]:
    """Convert errors about tables and jobs that occur in the `with` block to ValueError, as scikit-learn expects."""
    try:
        yield
    except (DataError, ConfigError) as cause:
        raise ValueError(str(cause)) from cause


def _nested_names(keys: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield every key of a job's nested tables with its value, under a name such as job__model__l2."""
    for key, value in keys.items():
        yield f"{prefix}{key}", value
        if isinstance(value, Mapping):
            yield from _nested_names(value, f"{prefix}{key}__")


def _copied(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, Mapping) else value for key, value in keys.items()}


def _replace_key(keys: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set one key of nested tables. If a table on the path is only a name, such as "logistic", it becomes a table."""
    for name in path[:-1]:
        nested = keys.get(name, {})
        keys[name] = {"name": nested} if isinstance(nested, str) else dict(nested)
        keys = keys[name]
    keys[path[-1]] = value

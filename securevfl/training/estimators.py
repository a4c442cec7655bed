"""scikit-learn estimators over a vertical training: one table, its columns dealt to parties of one process.

For experiments on pooled data, which whoever holds the table sees anyway. What is left out is as in a job
(`securevfl.optim.defaults`): shares where the model allows it. As all is in one process scores are told exactly there,
which a DataNotice says once; a job between organisations would tell levels. Other leaks are refused unless `accepts`
names them, as in a job, and `leaks_` has those of the training. A pipeline or a grid search takes estimators like any
other, and options of their optimizer (`optimizer__lr`). A fitted one is not to be pickled: what it has learned goes to
a file a party by `run_.save(folder)`.

    model = VerticalClassifier(parties={"bank": ["age", "income"], "shop": ["visits", "spent"]})
    cross_val_score(model, frame, labels, scoring="roc_auc")

The first party holds the labels. Frames keep their column names; texts and gaps are prepared at each party, by its own
training rows (`securevfl.data.preparation`). Needs the extra `sklearn`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.extras import extra
from securevfl.consent.booking import leaks
from securevfl.data.columns import Columns, columns_of, has_names
from securevfl.data.party import Party
from securevfl.errors import DataNotice, SecureVFLError
from securevfl.families.known_run import known_run
from securevfl.job import Job
from securevfl.models.linear import LinearModel, Logistic, OneVsRest, Softmax, Square
from securevfl.models.trees import Trees
from securevfl.optim import OPTIMIZERS
from securevfl.optim.block_descent import BlockDescent
from securevfl.optim.rules import Training
from securevfl.protocols.choice import Protocol
from securevfl.training.run import Run
from securevfl.training.simulate import simulate

extra("sklearn", "sklearn", "the estimators")

from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import (  # noqa: E402
    _check_sample_weight,
    _num_samples,
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

EXACT = "scores of new rows are exact, as all is in this one process; a job between organisations tells levels of them"
SHARES = "shares"  # by this name, and by default
OF_OPTIMIZER = "optimizer__"
WEIGHT = "(weight of the row)"  # the column of it at the party with labels


class _Vertical(BaseEstimator):  # type: ignore[misc]  # scikit-learn comes without types
    """The base that the classifier and the regressor share.

    parties: names to columns, by name or by number; without, two parties have half of the columns each. model: linear,
    or trees of each party's columns (`securevfl.Trees`), by name or with options of its own. protocol, optimizer,
    epochs, batch_size, test_fraction, l2, seed, prepare, accepts: as in a job, so that training on shares holds a
    quarter of the rows out and stops by them unless told otherwise.
    """

    def __init__(
        self,
        parties: Mapping[str, Sequence[Any]] | None = None,
        *,
        model: Any = "linear",
        protocol: Any = None,
        optimizer: Any = None,
        l2: float = 1e-3,
        epochs: int | None = None,
        batch_size: Any = None,
        test_fraction: float | None = None,
        seed: int = 0,
        prepare: Any = None,
        accepts: Sequence[str] = (),
    ) -> None:
        self.parties = parties
        self.model = model
        self.protocol = protocol
        self.optimizer = optimizer
        self.l2 = l2
        self.epochs = epochs
        self.batch_size = batch_size
        self.test_fraction = test_fraction
        self.seed = seed
        self.prepare = prepare
        self.accepts = accepts

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Its parameters, and with `deep` the options of its optimizer, where that is an object."""
        own: dict[str, Any] = super().get_params(deep=deep)
        if deep and isinstance(self.optimizer, Training):
            own |= {OF_OPTIMIZER + key: getattr(self.optimizer, key) for key in type(self.optimizer).model_fields}
        return own

    def set_params(self, **params: Any) -> Any:
        """Set parameters, and options of the optimizer as optimizer__lr. ValueError for one that there is not."""
        steps = {key: value for key, value in params.items() if key.startswith(OF_OPTIMIZER)}
        super().set_params(**{key: value for key, value in params.items() if key not in steps})
        if steps:
            with _as_value_errors():
                self.optimizer = _stepping(
                    self.optimizer, {key.removeprefix(OF_OPTIMIZER): value for key, value in steps.items()}
                )
        return self

    def _fit(self, X: Any, y: NDArray[Any], kind: type[LinearModel], classes: dict[str, Any] | None, rows: Any) -> None:
        own = self._columns(X, reset=True)
        dealt = self._dealt(own)
        weights, of_rows = classes, None if rows is None else _check_sample_weight(rows, y[:, None], dtype=np.float64)
        if of_rows is not None:
            share = float(of_rows.max() / of_rows.mean())
            weights = (classes or {}) | {"column": WEIGHT, "most": (classes or {"most": 1.01})["most"] * share}
        given = {"optimizer": self.optimizer, "epochs": self.epochs, "batch_size": self.batch_size}
        given |= {"test_fraction": self.test_fraction, "prepare": self.prepare, "weights": weights}
        keys = self._options(kind) | {key: value for key, value in given.items() if value is not None}
        tables = [
            Party(name, _taken(own, at, of_rows if place == 0 else None), y if place == 0 else None, aligned=True)
            for place, (name, at) in enumerate(dealt.items())
        ]
        job = Job(**keys, seed=self.seed, accepts=tuple(self.accepts))
        if self.protocol in (None, SHARES):
            job = _exact(job)
        self.leaks_: list[str] = [str(leak) for leak in leaks(job, known_run(job, tables).sizes)]
        self.run_: Run = simulate(job, tables)
        self.dealt_: dict[str, list[int]] = dealt

    def _options(self, kind: type[LinearModel]) -> dict[str, Any]:
        """Model and protocol of the job, for a loss that `kind` says."""
        own = {} if self.protocol is None else {"protocol": self.protocol}
        if isinstance(self.model, str) and self.model == "linear":
            return own | {"model": kind(l2=self.l2)}
        loss = {Logistic: "logistic", Square: "square"}.get(kind, "one_vs_rest")
        model = Trees() if isinstance(self.model, str) and self.model == "trees" else self.model
        if not isinstance(model, Trees):
            raise ValueError('model: "linear", "trees" or a Trees was expected; choose one of these')
        return own | {"model": model.model_copy(update={"loss_name": loss})}

    def _several(self) -> type[LinearModel]:
        """Return the linear model of several classes: what shares train, unless residuals are asked for."""
        return OneVsRest if self.protocol is None or Protocol.read(self.protocol).shares is not None else Softmax

    def _say(self) -> None:
        if self.protocol in (None, SHARES):
            _say_exact()

    def _decision(self, X: Any) -> Floats:
        """f (m x c)."""
        check_is_fitted(self)
        own = self._columns(X, reset=False)
        tables: dict[str, Any] = {name: _taken(own, at) for name, at in self.dealt_.items()}
        try:
            return self.run_.decision(tables)
        except SecureVFLError as error:
            raise ValueError(str(error)) from error

    def _columns(self, X: Any, *, reset: bool) -> Columns:
        """Return the table as it comes, with its columns and their names held against those of the training."""
        if has_names(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return columns_of("X", X)
        return columns_of("X", validate_data(self, X, reset=reset, ensure_all_finite="allow-nan", dtype=np.float64))

    def _dealt(self, own: Columns) -> dict[str, list[int]]:
        """Deal the columns to the parties: return the numbers of each party's columns. Raises ValueError if some are
        unknown or there are too few."""
        d = len(own.names)
        if self.parties is None:
            if d < 2:
                raise ValueError(
                    "1 feature(s) is too few for two parties with columns of their own; at least 2 are needed"
                )
            return {"first": list(range(-(-d // 2))), "second": list(range(-(-d // 2), d))}
        place: dict[Any, int] = {name: j for j, name in enumerate(own.names)}
        place |= {j: j for j in range(d)}
        unknown = [str(each) for columns in self.parties.values() for each in columns if each not in place]
        if unknown:
            raise ValueError(f"parties: columns of X were expected, unknown: {', '.join(unknown[:5])}; correct them")
        dealt = {name: [place[each] for each in columns] for name, columns in self.parties.items()}
        counts = Counter(j for columns in dealt.values() for j in columns)
        if twice := [own.names[j] for j, count in counts.items() if count > 1]:
            raise ValueError(f"parties: each column at one party was expected, dealt twice: {', '.join(twice[:5])}")
        return dealt


def _exact(job: Job) -> Job:
    """Return the same job with exact scores of new rows, if it is on shares."""
    if job.protocol.shares is None:
        return job
    shares = job.protocol.shares.model_copy(update={"scores": "exact"})
    protocol = job.protocol.model_copy(update={"shares": shares})
    return job.model_copy(update={"protocol": protocol, "accepts": tuple({*job.accepts, "exact_scores"})})


@cache
def _say_exact() -> None:
    """Says once in a process that scores are exact."""
    warnings.warn(EXACT, DataNotice, stacklevel=4)


def _stepping(optimizer: Any, options: dict[str, Any]) -> Any:
    """Return the optimizer with these options; the one of a job on shares where none is named."""
    if isinstance(optimizer, Training):
        return optimizer.model_copy(update=options)
    named = {"name": optimizer} if isinstance(optimizer, str) else dict(optimizer or {"name": BlockDescent.name})
    return OPTIMIZERS.read(named | options)


def _taken(own: Columns, at: list[int], weights: Floats | None = None) -> Columns:
    """Select some of the columns, and put beside them a column of weights of rows (n,) if there is one."""
    names = [own.names[j] for j in at]
    levels = {name: own.levels[name] for name in names if name in own.levels}
    dates = own.dates.intersection(names)
    if weights is None:
        return Columns(own.X[:, at], names, levels, dates)
    return Columns(np.column_stack([own.X[:, at], weights]), [*names, WEIGHT], levels, dates)


class VerticalClassifier(ClassifierMixin, _Vertical):  # type: ignore[misc]
    """Logistic regression of two classes, softmax regression of more, or trees, over parties with columns of their own.

    class_weight: None, "balanced", or a weight for each class. After `fit`: classes_, run_ (metrics, costs, parts of
    the model) and leaks_.
    """

    def __init__(
        self,
        parties: Mapping[str, Sequence[Any]] | None = None,
        *,
        model: Any = "linear",
        protocol: Any = None,
        optimizer: Any = None,
        l2: float = 1e-3,
        epochs: int | None = None,
        batch_size: Any = None,
        test_fraction: float | None = None,
        seed: int = 0,
        prepare: Any = None,
        accepts: Sequence[str] = (),
        class_weight: Any = None,
    ) -> None:
        super().__init__(
            parties,
            model=model,
            protocol=protocol,
            optimizer=optimizer,
            l2=l2,
            epochs=epochs,
            batch_size=batch_size,
            test_fraction=test_fraction,
            seed=seed,
            prepare=prepare,
            accepts=accepts,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> VerticalClassifier:
        """Trains on X (n x d) and labels y (n,), with a weight of each row (n,). ValueError for what cannot be used."""
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        _, labels = _checked(self, X, y)
        check_classification_targets(labels)
        self.classes_, place = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("labels of at least two classes were expected, only one class came")
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, labels[:, None], dtype=np.float64)
            if len(np.unique(place[sample_weight > 0])) < 2:
                raise ValueError("rows of at least two classes with a weight were expected, only one class has any")
        weights = _weights(self.class_weight, self.classes_, place)
        self._say()
        with _as_value_errors():
            self._fit(X, place, Logistic if len(self.classes_) == 2 else self._several(), weights, sample_weight)
        return self

    def decision_function(self, X: Any) -> Floats:
        """f: (m,) of two classes, (m x c) of more."""
        f = self._decision(X)
        return f[:, 0] if f.shape[1] == 1 else f

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class (m x classes)."""
        f = self._decision(X)
        return self.run_.job.model.loss.proba(f)

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the likeliest class of each row (m,)."""
        likeliest = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[likeliest])


class VerticalRegressor(RegressorMixin, _Vertical):  # type: ignore[misc]
    """Ridge regression or trees over parties with columns of their own. After `fit`: run_ and leaks_."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> VerticalRegressor:
        """Trains on X (n x d) and numbers y (n,), with a weight of each row (n,). ValueError likewise."""
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        _, labels = _checked(self, X, y, numeric=True)
        self._say()
        with _as_value_errors():
            self._fit(X, labels, Square, None, sample_weight)
        return self

    def predict(self, X: Any) -> Floats:
        """Predict the label of each row (m,)."""
        check_is_fitted(self)
        f = self._decision(X)
        return np.asarray(self.run_.job.model.loss.mean(f, self.run_.active.label_classes))


class _as_value_errors(warnings.catch_warnings):
    """Errors of securevfl as scikit-learn has them, and no notice of columns that do not vary in a fold."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore", DataNotice)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        if isinstance(error, SecureVFLError) and not isinstance(error, ValueError):
            raise ValueError(str(error)) from error


def _checked(own: Any, X: Any, y: Any, *, numeric: bool = False) -> tuple[Any, NDArray[Any]]:
    """X and y of one length, y a column of labels."""
    if not has_names(X):
        check_array(X, ensure_all_finite="allow-nan", dtype=np.float64, estimator=own, ensure_min_samples=2)
    labels = column_or_1d(y, warn=True)
    if numeric:
        labels = check_array(labels, ensure_2d=False, dtype=np.float64, input_name="y", estimator=own)
    check_consistent_length(X, labels)
    if _num_samples(X) < 2:
        raise ValueError("at least 2 rows were expected, 1 sample came")
    return X, labels


def _weights(chosen: Any, classes: NDArray[Any], place: NDArray[Any]) -> dict[str, Any] | None:
    """Class weights as a job has them, by the place of the class."""
    if chosen is None:
        return None
    if chosen == "balanced":
        counts = np.bincount(place)
        return {"classes": "balanced", "most": float(max(1.0, len(place) / (len(counts) * counts.min()))) * 1.01}
    own = {str(k): float(chosen.get(each, 1.0)) for k, each in enumerate(classes.tolist())}
    mean = sum(own[str(k)] for k in place.tolist()) / len(place)
    return {"classes": own, "most": max(1.0, max(own.values()) / mean) * 1.01}

"""Choose values of options by cross-validation on one party's columns, where nothing is sent.

The party with labels divides the training rows of the job into folds with scikit-learn. The job's held-out rows are not
used, so that a later training can still be measured on them. The columns of other parties are missing here: the best
values on all columns may differ, most of all for models with many more columns (`securevfl.training.tuning`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.extras import import_extra
from securevfl.data.party import Party
from securevfl.display import html
from securevfl.errors import ConfigError, PartiesError
from securevfl.job import Job
from securevfl.models.class_labels import classes_of
from securevfl.training.local_baseline import LocalModel, fit_local
from securevfl.training.text_table import format_table
from securevfl.training.tuning_grid import DROP, KEEP_ALL, Grid, alternative_jobs

DEFAULT_FOLDS = 5
_PURPOSE = "cross-validation"


@dataclass(frozen=True)
class ValidatedAlternative:
    """One alternative of a cross-validation.

    Attributes:
        name: the values of its options.
        score: mean of the scores of all folds.
        std_error: standard error of this mean, from the differences between folds.
    """

    name: str
    score: float
    std_error: float


@dataclass(frozen=True)
class CrossValidation:
    """The result of a cross-validation.

    Attributes:
        alternatives: the alternatives, in the order of the grid.
        scoring: name of the score, of which larger values are better.
        folds: number of folds.
        rows: number of rows that were divided into folds.
        party: name of the party.
    """

    alternatives: tuple[ValidatedAlternative, ...]
    scoring: str
    folds: int
    rows: int
    party: str

    @property
    def best(self) -> ValidatedAlternative:
        """The alternative with the best mean score."""
        return max(self.alternatives, key=lambda item: item.score)

    @property
    def conclusion(self) -> str:
        """The best alternative, and those that are as good within its standard error, as text."""
        best = self.best
        close = [item.name for item in self.alternatives if item.score >= best.score - best.std_error and item != best]
        near = f" Within one standard error of it: {'; '.join(close)}." if close else ""
        return (
            f"Best: {best.name}, by {self.folds} folds of {self.rows:,} training rows of {self.party} alone; nothing "
            f"was sent.{near}"
        )

    def __str__(self) -> str:
        """Return the table of alternatives and the best one."""
        return f"{format_table(self._cells())}\n\n{self.conclusion}"

    def _cells(self) -> list[dict[str, str | int | float | None]]:
        return [
            {"alternative": item.name, self.scoring: item.score, "std error": item.std_error}
            for item in self.alternatives
        ]

    def _repr_html_(self) -> str:
        heads, *_ = cells = self._cells()
        table = html.table(list(heads), [[html.cell_text(value) for value in row.values()] for row in cells])
        return f"{table}<p>{html.escape(self.conclusion)}</p>"

    def plain(self) -> dict[str, Any]:
        """Return the result as lists and dicts that can be written as JSON."""
        return {
            "alternatives": [
                {"name": item.name, "score": item.score, "std_error": item.std_error} for item in self.alternatives
            ],
            "best": self.best.name,
            "scoring": self.scoring,
            "folds": self.folds,
            "rows": self.rows,
            "conclusion": self.conclusion,
        }

    def page(self) -> str:
        """Return the table and the best alternative as a page of HTML."""
        return html.page("Cross-validation", ["<h1>Cross-validation</h1>", self._repr_html_()])


def cross_validate(
    job: Job, grid: Grid, party: Party, *, folds: int = DEFAULT_FOLDS, scoring: str | None = None
) -> CrossValidation:
    """Choose values of options by cross-validation on the columns of the party with labels.

    Args:
        job: the options that all alternatives have in common. Its training rows are divided into folds.
        grid: the values of each option, such as `{"l2": (0.01, 0.1)}` or `{"bins": (5, 10)}`. The option `drop` names
            columns that the model does not get, one at a time; "none" drops no column.
        party: the party with labels.
        folds: number of folds.
        scoring: the name of a score of scikit-learn, such as "roc_auc"; by default the negative mean loss of the job.

    Returns:
        The mean score of each alternative.

    Raises:
        ConfigError: the job's model is not linear, or an option or a number of folds cannot be used.
        PartiesError: the party has no labels.
    """
    selection = import_extra("sklearn.model_selection", "sklearn", _PURPOSE)
    if party.y is None:
        raise PartiesError(
            f"party {party.name}: a cross-validation needs labels, and this party has none",
            "run it at the party with labels",
            code="SVFL-PARTIES-LABELS",
            party=party.name,
        )
    dropped = [column for column in grid.get(DROP, ()) if column not in (KEEP_ALL, *party.columns)]
    if dropped:
        raise ConfigError(
            f"party {party.name} has no column {dropped[0]!r}, which the grid drops",
            "name columns of its table, or none",
            code="SVFL-COMMAND-USAGE",
            party=party.name,
        )
    jobs, labels = alternative_jobs(job, grid, alone=True), np.asarray(party.y)
    rows = job.schedule(party.register).train
    classifies = job.model.loss.classifies
    smallest = int(np.unique(labels[rows], return_counts=True)[1].min()) if classifies else len(rows)
    if not 2 <= folds <= smallest:
        raise ConfigError(
            f"{folds} folds are not possible: there must be at least 2, and at most as many as there are rows of each "
            "class",
            f"set folds between 2 and {max(2, smallest)}",
            code="SVFL-COMMAND-USAGE",
        )
    # scores of scikit-learn take the greater of two labels as the positive class, so each label is replaced by its
    # position among the job's classes, of which the positive one is last; all rows of the table determine the classes
    classes = classes_of(party, job.model.loss, positive=job.positive) if classifies else np.zeros(0)
    splitter = selection.StratifiedKFold if classifies else selection.KFold
    search = selection.GridSearchCV(
        _estimator_class()(jobs, party, classes),
        {"alternative": list(jobs)},
        scoring=_negative_loss if scoring is None else scoring,
        cv=splitter(folds, shuffle=True, random_state=job.seed),
        refit=False,
        error_score="raise",
    )
    try:
        search.fit(rows[:, None], _coded(labels[rows], classes) if classifies else labels[rows])
    except ValueError as cause:
        if scoring is None:
            raise
        raise ConfigError(
            f"scoring {scoring} cannot be computed for a {job.model.name} model",
            "name a score of scikit-learn that fits the labels, such as roc_auc, or leave it out",
            code="SVFL-COMMAND-USAGE",
        ) from cause
    results = search.cv_results_
    alternatives = [
        ValidatedAlternative(name, float(mean), float(deviation) / np.sqrt(folds - 1))
        for name, mean, deviation in zip(jobs, results["mean_test_score"], results["std_test_score"], strict=True)
    ]
    return CrossValidation(tuple(alternatives), scoring or "minus loss", folds, len(rows), party.name)


def _coded(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.intp]:
    """Return the position of each label (n,) among the classes."""
    order = np.argsort(classes)
    positions: NDArray[np.intp] = order[np.searchsorted(classes, labels, sorter=order)]
    return positions


def _negative_loss(estimator: Any, X: NDArray[Any], y: NDArray[Any]) -> float:
    """Return the negative mean loss of a fitted estimator, with exposures and weights of rows."""
    return -float(estimator.model_.losses(X[:, 0]).mean())


def _estimator_class() -> type[Any]:
    """Return the class of estimator that scikit-learn fits. Its base class is imported only when this is called."""
    base: Any = import_extra("sklearn.base", "sklearn", _PURPOSE)

    class LocalEstimator(base.BaseEstimator):  # type: ignore[misc]
        """A job's model of one party's columns.

        X (n, 1) contains indices of rows of the party's table, not values of columns. The labels y are positions among
        `classes`, or the party's numeric labels in a regression.
        """

        def __init__(self, jobs: Mapping[str, Job], party: Party, classes: NDArray[Any], alternative: str = "") -> None:
            self.jobs, self.party, self.classes, self.alternative = jobs, party, classes, alternative

        def __sklearn_clone__(self) -> LocalEstimator:
            """Return a copy for scikit-learn's `clone` that shares the table, so that the table is not copied."""
            return LocalEstimator(self.jobs, self.party, self.classes, self.alternative)

        def __sklearn_tags__(self) -> Any:
            """Return scikit-learn's tags: this is a classifier if the labels are classes, otherwise a regressor."""
            tags, utils = super().__sklearn_tags__(), import_extra("sklearn.utils", "sklearn", _PURPOSE)
            classifies = self.loss.classifies
            tags.estimator_type = "classifier" if classifies else "regressor"
            tags.classifier_tags = utils.ClassifierTags() if classifies else None
            tags.regressor_tags = None if classifies else utils.RegressorTags()
            return tags

        @property
        def loss(self) -> Any:
            return next(iter(self.jobs.values())).model.loss

        def fit(self, X: NDArray[Any], y: NDArray[Any]) -> Self:
            job = self.jobs[self.alternative]
            schedule = job.schedule(self.party.register).with_training_rows(X[:, 0])
            self.model_: LocalModel = fit_local(job, self.party, schedule)
            if self.loss.classifies:
                self.classes_ = _coded(self.model_.classes, self.classes)
            return self

        def predict(self, X: NDArray[Any]) -> NDArray[Any]:
            outputs = self.model_.outputs(X[:, 0])
            if self.loss.classifies:
                return np.asarray(self.classes_[self.loss.proba(outputs).argmax(axis=1)])
            return np.asarray(self.loss.mean(outputs, self.model_.classes)).ravel()

        def predict_proba(self, X: NDArray[Any]) -> Floats:
            return np.asarray(self.loss.proba(self.model_.outputs(X[:, 0])))

    return LocalEstimator

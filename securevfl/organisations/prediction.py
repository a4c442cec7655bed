"""The result of a prediction, and the counts of rows by state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.job import Job
from securevfl.training.model_part import ModelPart


@dataclass(frozen=True)
class Prediction:
    """The prediction as the party that asks receives it. decision: f (m x c). label (m,): likeliest class, or the
    number in a regression.

    proba (m x classes) in the order of `classes`; None in a regression. reasons: by party the codes of each row, of
    those that give any. A party without labels does not know what
    classes are called, or the scale of a number: its labels are places in the order of the classes, or f.
    """

    decision: Floats
    label: NDArray[Any]
    proba: Floats | None
    classes: NDArray[Any]
    reasons: Mapping[str, list[list[str]]] = field(default_factory=dict)


RowState = Literal["scored", "trained", "changed", "refused", "beyond", "unknown"]

OnUnscored = Callable[[Any, RowState], None]


@dataclass(frozen=True)
class ScoreCounts:
    """One request. asked: rows that the party that asks brought; scored: those of them that it has a score of.

    At that party, of the others: `trained` were rows of the training, `changed` had other columns when they were
    asked about before, `refused` are rows that another party refuses, `beyond` rows whose scores are farther out than
    what is told; the rest is not known to all.
    """

    asked: int
    scored: int
    trained: int = 0
    changed: int = 0
    refused: int = 0
    beyond: int = 0

    @classmethod
    def of(cls, states: Sequence[RowState]) -> ScoreCounts:
        """Count rows by their states."""
        count = Counter(states)
        named: tuple[RowState, ...] = ("scored", "trained", "changed", "refused", "beyond")
        return cls(len(states), *(count[each] for each in named))

    @property
    def unknown(self) -> int:
        """Ids that not all parties have."""
        return self.asked - self.scored - self.trained - self.changed - self.refused - self.beyond

    def __add__(self, other: ScoreCounts) -> ScoreCounts:
        return ScoreCounts(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        reasons = [
            (self.unknown, "not known to all"),
            (self.trained, "rows that the model was trained on"),
            (self.changed, "asked about before with other columns"),
            (self.refused, "refused by another party"),
            (self.beyond, "farther out than scores cover"),
        ]
        left_out = [f"{count:,} {why}" for count, why in reasons if count]
        said = f"{self.scored:,} of {self.asked:,} rows are scored"
        return f"{said}; left out: {', '.join(left_out)}" if left_out else said


def prediction_of(part: ModelPart, f: Floats) -> Prediction:
    """Interpret f (m x c) as a prediction, by the classes in the part of the party that asks."""
    loss, classes = Job.from_dict(part.job).model.loss, part.classes
    if not loss.classifies:
        scaling = np.array([0.0, 1.0]) if classes is None else classes
        return Prediction(f, np.asarray(loss.mean(f, scaling)), None, scaling)
    proba = loss.proba(f)
    named = np.arange(proba.shape[1]) if classes is None else classes
    return Prediction(f, np.asarray(named[proba.argmax(axis=1)]), proba, named)

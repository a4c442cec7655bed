"""The result of a joint prediction, and the counts of rows by state (scored, refused, ...).

A *decision value* f is an output of a model before a probability or class is derived from it. Shapes: f is (m, c) for
m rows and a model with c outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.protocols.joint_prediction import RowState
from securevfl.training.model_part import ModelPart

OnUnscored = Callable[[Any, RowState], None]

SCORE_COLUMNS = "securevfl.score_columns"
ScoreColumn = Callable[[ModelPart, str], Callable[[Floats], Floats]]
"""Reads an option, such as the scale of scorecard points, and returns how decision values (m, c) become a column (m,).

A package registers it under the name of the option (`securevfl.base.extensions`).
"""


@dataclass(frozen=True)
class Prediction:
    """A prediction as the requesting party receives it.

    A requesting party without labels does not know the names of the classes or the scale of a predicted number. Its
    `label` then contains positions in the order of the classes, or the decision values.

    Attributes:
        decision: decision values f (m, c).
        label: likeliest class, or the predicted number (m,).
        proba: probabilities (m, classes) in the order of `classes`; None for a regression.
        classes: the classes.
        reasons: reason codes of each row, by name of the party that provides them.
    """

    decision: Floats
    label: NDArray[Any]
    proba: Floats | None
    classes: NDArray[Any]
    reasons: Mapping[str, list[list[str]]] = field(default_factory=dict)

    @property
    def positive_proba(self) -> Floats | None:
        """Probability of the positive class (m,); None unless the model has one output for two classes.

        A model with an output for each of two classes has no positive class.
        """
        return None if self.proba is None or self.decision.shape[1] > 1 else self.proba[:, 1]


@dataclass(frozen=True)
class ScoreCounts:
    """Numbers of rows of one request, by state.

    Only the requesting party knows why rows have no score; at the other parties these numbers are 0.

    Attributes:
        requested: rows of the request.
        scored: rows with a score.
        trained: training rows.
        changed: rows that were requested before with other values of their columns.
        refused: rows that another party refuses.
        beyond: rows whose scores are outside the range that the protocol can represent.
    """

    requested: int
    scored: int
    trained: int = 0
    changed: int = 0
    refused: int = 0
    beyond: int = 0

    @classmethod
    def of(cls, states: Sequence[RowState]) -> ScoreCounts:
        """Count the rows of a request by state."""
        count = Counter(states)
        counted: tuple[RowState, ...] = ("scored", "trained", "changed", "refused", "beyond")
        return cls(len(states), *(count[state] for state in counted))

    @property
    def unknown(self) -> int:
        """Number of requested ids that at least one party does not have."""
        return self.requested - self.scored - self.trained - self.changed - self.refused - self.beyond

    def __add__(self, other: ScoreCounts) -> ScoreCounts:
        return ScoreCounts(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        reasons = [
            (self.unknown, "not known to all parties"),
            (self.trained, "training rows"),
            (self.changed, "requested before with other values"),
            (self.refused, "refused by another party"),
            (self.beyond, "outside the range that scores cover"),
        ]
        left_out = [f"{count:,} {reason}" for count, reason in reasons if count]
        summary = f"{self.scored:,} of {self.requested:,} rows are scored"
        return f"{summary}; left out: {', '.join(left_out)}" if left_out else summary


def prediction_of(part: ModelPart, f: Floats) -> Prediction:
    """Compute labels and probabilities from decision values.

    Args:
        part: the requesting party's part of the model, which names the classes.
        f: decision values (m, c).

    Returns:
        The prediction.
    """
    loss, classes = part.parsed_job.model.loss, part.classes
    if not loss.classifies:
        scaling = np.array([0.0, 1.0]) if classes is None else classes
        return Prediction(f, np.asarray(loss.mean(f, scaling)), None, scaling)
    proba = loss.proba(f)
    labels = np.arange(proba.shape[1]) if classes is None else classes
    return Prediction(f, np.asarray(labels[proba.argmax(axis=1)]), proba, labels)

"""Why a row has its score: what each column of a party adds to the score, and which columns raise it most.

The score f is the model's output for a row, before a logistic function turns it into a probability. It is a sum of all
parties' outputs. A party's part of the model contains the weights of its columns. A column is prepared as one or more
features, such as 0/1 columns.

For a linear model, the Shapley value of a column is the sum of weights times scaled values over its features: what the
column adds to f, minus what it adds at the mean of the training rows (Strumbelj and Kononenko 2014, section 3). So each
party computes the values of its columns alone, and the values of all parties sum to f minus its mean. With `scale =
"robust"` or `"none"`, the reference point is the median, or 0, instead of the mean.

The values disclose nothing new to their party, and they are not sent. A reason code that is sent to another party
reveals which of the columns weigh most for the row.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.base.arrays import Floats
from securevfl.data.columns import Columns
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.training.model_part import ModelPart


def shapley(part: ModelPart, X: ArrayLike | Columns) -> Floats:
    """Return the Shapley values (m, columns, c) of new rows, given as the party's unprepared columns.

    Raises ConfigError for a model without weights of columns, or a party that does not know its weights.
    """
    check_weights(part, "reasons")
    return _values(part, part.rows(X))


def heaviest(part: ModelPart, scaled: Floats, most: int) -> NDArray[np.intp]:
    """Return for each row the columns that add most to the score f, largest first.

    Args:
        part: the party's part of the model.
        scaled: rows (m, d) whose columns were prepared and scaled as in the training.
        most: number of columns to return for each row.

    Returns:
        Positions of the columns (m, most); they may include columns that reduce the score, if others are too few.
        Raises the errors of `shapley`, and ConfigError for a model of several outputs.
    """
    check_weights(part, "reasons")
    check_single(part)
    return np.argsort(-_values(part, scaled)[:, :, 0], axis=1, kind="stable")[:, :most]


def _values(part: ModelPart, scaled: Floats) -> Floats:
    d = len(part.features)
    contributions = scaled[:, :, None] * part.theta[None, :d]
    steps, start, by_column = part.preparation.steps, 0, []
    for step in steps or [None] * len(part.columns):
        width = 1 if step is None else len(step.features)
        by_column.append(contributions[:, start : start + width].sum(axis=1))
        start += width
    return np.stack(by_column, axis=1)


def reasons(
    part: ModelPart, X: ArrayLike | Columns, *, most: int = 3, codes: Mapping[str, str] | None = None
) -> list[list[str]]:
    """Return for each row the reason codes of the columns that raise f most, largest first.

    A column that lowers f, or does not change it, is no reason.

    Args:
        part: the party's part of the model.
        X: new rows (m, d) of the party.
        most: the largest number of codes per row.
        codes: the code of each column; its name by default.

    Returns:
        The codes of each row.

    Raises:
        ConfigError: if `codes` names unknown columns, or the model has several outputs.
    """
    check_single(part)
    values = shapley(part, X)
    unknown = [column for column in codes or () if column not in part.columns]
    if unknown:
        raise ConfigError(
            f"reasons: {part.name} has no columns {', '.join(unknown[:5])}",
            "correct these names in the file of codes",
            code="SVFL-TABLE-COLUMNS",
            columns=tuple(unknown),
        )
    names = [(codes or {}).get(column, column) for column in part.columns]
    order = np.argsort(-values[:, :, 0], axis=1, kind="stable")[:, :most]
    return [[names[j] for j in columns if values[row, j, 0] > 0] for row, columns in enumerate(order.tolist())]


def check_single(part: ModelPart) -> None:
    """Check that the model has one output.

    Args:
        part: this party's part of the model.

    Raises:
        ConfigError: if the model has several outputs.
    """
    if part.outputs != 1:
        raise ConfigError(
            f"reasons: the model of {part.name} has {part.outputs} outputs, and reason codes need one",
            "use Shapley values",
            code="SVFL-MODEL-UNSUPPORTED",
            party=part.name,
        )


def importance(part: ModelPart, X: ArrayLike | Columns) -> dict[str, float]:
    """Return each column's mean absolute Shapley value over rows X (m, d), summed over outputs, largest first."""
    sizes = np.abs(shapley(part, X)).sum(axis=2).mean(axis=0)
    by_column = dict(zip(part.columns, sizes.tolist(), strict=True))
    return dict(sorted(by_column.items(), key=lambda item: -item[1]))


def check_weights(part: ModelPart, task: str) -> None:
    """Check that the part has weights of columns.

    Args:
        part: the party's part of the model.
        task: the task that needs the weights, with which error messages begin, such as "export".

    Raises:
        ConfigError: if the part has no weights of columns, or the party does not know them.
    """
    model = Job.from_dict(part.job).model
    if not model.by_column or model.pair_rank:
        raise ConfigError(
            f"{task}: the model of {part.name} has no weights of columns" + " alone" * (model.pair_rank > 0),
            "train a linear model without pairs" if model.pair_rank else "train a linear model",
            code="SVFL-MODEL-UNSUPPORTED",
            party=part.name,
        )
    if "theta" not in part.state:
        raise ConfigError(
            f"{task}: {part.name} does not know its weights of this model",
            "in a training on secret shares, list the party in protocol.shares.open_weights, to which all must agree",
            code="SVFL-MODEL-NO-WEIGHTS",
            party=part.name,
        )

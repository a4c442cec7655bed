"""Why a row has its score: what each of a party's own columns adds to f, and the columns that raise it most.

For a linear model the Shapley value of a column is what its features add, less what they add at the training's mean
(Strumbelj and Kononenko 2014, section 3): own weights times own scaled columns, summed over the features that the
column has become. So each party has its own by itself, and those of all parties sum to f less its mean. With
`scale = "robust"` or `"none"` the point that counts as nothing is the median, or 0, in place of the mean.

Values tell their owner nothing new, and stay there: a code that goes to somebody else tells which of the columns weigh
most in a row, log2 of n! / (n - k)! bits for k codes of n columns (`securevfl.organisations.reason_codes`).
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
    """Return the Shapley values (m x columns x c) of new rows, given as a party's own columns as they come. Raises
    ConfigError for a model without weights of columns, or a party that does not know its own."""
    check_weights(part, "reasons")
    return _values(part, part.rows(X))


def heaviest(part: ModelPart, scaled: Floats, most: int) -> NDArray[np.intp]:
    """Return the places (m x most) of the own columns that add most to f of scaled rows (m x d), the largest first,
    whatever their sign. ConfigError as `shapley`, and for a model of several outputs."""
    check_weights(part, "reasons")
    check_single(part)
    return np.argsort(-_values(part, scaled)[:, :, 0], axis=1, kind="stable")[:, :most]


def _values(part: ModelPart, scaled: Floats) -> Floats:
    d = len(part.features)
    added = scaled[:, :, None] * part.theta[None, :d]
    steps, at, found = part.preparation.steps, 0, []
    for step in steps or [None] * len(part.columns):
        width = 1 if step is None else len(step.features)
        found.append(added[:, at : at + width].sum(axis=1))
        at += width
    return np.stack(found, axis=1)


def reasons(
    part: ModelPart, X: ArrayLike | Columns, *, most: int = 3, codes: Mapping[str, str] | None = None
) -> list[list[str]]:
    """List for each row the codes of at most `most` of the party's columns that raise f most, the largest first.

    A column that lowers f, or leaves it, is no reason. codes: a name for each column, its own where there is none.
    ConfigError for a model of several outputs.
    """
    check_single(part)
    values = shapley(part, X)
    unknown = [column for column in codes or () if column not in part.columns]
    if unknown:
        raise ConfigError(
            f"reasons: codes of {part.name}'s columns were expected, unknown: {', '.join(unknown[:5])}; correct them"
        )
    names = [(codes or {}).get(column, column) for column in part.columns]
    order = np.argsort(-values[:, :, 0], axis=1, kind="stable")[:, :most]
    return [[names[j] for j in own if values[row, j, 0] > 0] for row, own in enumerate(order.tolist())]


def check_single(part: ModelPart) -> None:
    """ConfigError unless the model has one output."""
    if part.outputs != 1:
        raise ConfigError(
            f"reasons: a model of one output was expected, {part.name}'s has {part.outputs}; take shapley values"
        )


def importance(part: ModelPart, X: ArrayLike | Columns) -> dict[str, float]:
    """Return the mean size of each column's Shapley values over these rows, added up over the outputs; the largest
    first."""
    sizes = np.abs(shapley(part, X)).sum(axis=2).mean(axis=0)
    found = dict(zip(part.columns, sizes.tolist(), strict=True))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def check_weights(part: ModelPart, what: str) -> None:
    """ConfigError unless the part has weights of columns that its party knows."""
    if not Job.from_dict(part.job).model.by_column:
        raise ConfigError(
            f"{what}: a model with weights of columns was expected, {part.name}'s has none; train a linear one"
        )
    if "theta" not in part.state:
        raise ConfigError(
            f"{what}: a part with weights was expected, {part.name} knows none of its own; on shares name it in "
            "protocol.shares.open_weights, which all parties agree to"
        )

"""Rows that applications request from a gateway, and the answer to each of them.

The types state what the gateway accepts and returns. `securevfl.organisations.http_endpoints` derives the OpenAPI
schema from them, so that the schema cannot differ from the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict

from securevfl.protocols.joint_prediction import RowState

GatewayState = Literal[RowState, "no_columns"]
"""The state of a requested row."""

STATE_MEANINGS: dict[GatewayState, str] = {
    "scored": "The row has a score. A repeated request returns the same score.",
    "trained": "The model was trained on this row. It has no score.",
    "changed": "The row was requested before with other columns. It has no score.",
    "refused": "Another party refuses the row, without a reason.",
    "beyond": "The score is outside the range that scores cover. The row has no score.",
    "unknown": "Not all parties have this id.",
    "no_columns": "The gateway's table has no such row, and the request has no columns. No party was asked.",
}
"""What each state means for the application."""
assert set(STATE_MEANINGS) == set(get_args(GatewayState))

IdValue = str | int | float
RowId = IdValue | Mapping[str, IdValue]
"""An id as the application writes it: one value, or the values of several id columns by name."""


@dataclass(frozen=True)
class RequestedRow:
    """A row of a request.

    Attributes:
        id: the id as the application writes it.
        columns: all columns of the model by name, with the application's values; None to use the gateway's table.
    """

    id: RowId = field(repr=False)
    columns: Mapping[str, Any] | None = field(default=None, repr=False)


class RowScore(BaseModel):
    """The answer to one row."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    id: str | int | float | dict[str, str | int | float]
    """The id as the request writes it."""
    state: GatewayState
    """What became of the row."""
    prediction: str | int | float | bool | None = None
    """The likeliest class, or the predicted number."""
    probability: float | None = None
    """The probability of the positive class, of a model with one output for two classes."""
    probabilities: dict[str, float] | None = None
    """The probability of each class, of a model with an output for each class."""
    reasons: dict[str, list[str]] | None = None
    """Reason codes by party, largest contribution first."""

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        return [("state", self.state)]  # a repr must not show the other fields, because they are data about a person

    def to_plain(self) -> dict[str, Any]:
        """Return the answer as a dict for JSON, without the fields that do not apply to its state."""
        return self.model_dump(exclude_none=True)

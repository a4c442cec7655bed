"""The type of a request for scores, derived from the types of the model's columns, and the check against it.

A request of any other form is refused before the gateway uses it. The error names the row, the column and the problem,
but contains no value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    create_model,
)

from securevfl.data.column_types import KIND_NAMES, ColumnType, Kind
from securevfl.data.composite_ids import IdColumns
from securevfl.errors import IdError, TableError
from securevfl.organisations.gateway_rows import RequestedRow
from securevfl.untrusted import MAX_INTEGER, MAX_NAME, MAX_TEXT, UntrustedInputError, check_text, parse_json, shortened

MAX_BODY_BYTES = 1 << 20  # largest body of a request in bytes
# maximum nesting of a body that is parsed; more than valid bodies have, so that an error can name a nested column
_MAX_DEPTH = 8


def _refuse_whole_numbers(value: Any) -> Any:
    if isinstance(value, int):
        raise ValueError("a whole number of more than 53 bits")
    return value


Text = Annotated[str, Strict(), Field(max_length=MAX_TEXT), AfterValidator(check_text)]
IdText = Annotated[str, Strict(), Field(max_length=MAX_NAME), AfterValidator(check_text)]
WholeNumber = Annotated[int, Strict(), Field(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Number = WholeNumber | Annotated[float, Strict(), AllowInfNan(False), BeforeValidator(_refuse_whole_numbers)]
TruthValue = Annotated[bool, Strict()]

_VALUE_TYPES: dict[Kind, tuple[Any, str]] = {
    "number": (Number | TruthValue | Text | None, "A number or its text, true or false, or null."),
    "category": (Text | Number | TruthValue | None, "A text or a number as the table writes it, or null."),
    "date": (Text | None, "A date as text, or null."),
    "percent": (Text | None, "A percentage as text with its sign, as in 12.5%, or null."),
    "currency": (Text | None, "An amount as text with its unit, or null."),
}
"""The type and the description of the values of each kind of column."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True)


class ScoreRequests:
    """The type of requests to one gateway.

    Args:
        types: the types of the columns of the model.
        id_columns: the columns that form an id; None if the gateway's table has one id column.

    Attributes:
        type: the type of a request's body.
    """

    def __init__(self, types: Mapping[str, ColumnType], id_columns: IdColumns | None = None) -> None:
        self._kinds = {name: kind.kind for name, kind in types.items()}
        columns: dict[str, Any] = {
            f"column_{number}": (
                _VALUE_TYPES[kind.kind][0],
                Field(alias=name, title=name, description=_description(kind)),
            )
            for number, (name, kind) in enumerate(types.items())
        }
        values = create_model("Columns", __base__=_Part, __doc__="All columns of the model.", **columns)
        description = "The values as your table writes them. Without them the gateway uses its own table."
        parts: dict[str, Any] = {
            "id": (_id_type(id_columns), Field(description="The id of the row as your table writes it.")),
            "columns": (values | None, Field(default=None, description=description)),
        }
        row = create_model("Row", __base__=_Part, __doc__="A row to score.", **parts)
        self.type: type[BaseModel] = create_model(
            "ScoreRequest",
            __base__=_Part,
            __doc__="Rows to score.",
            rows=(list[row], Field(min_length=1, description="The rows.")),  # type: ignore[valid-type]
        )

    def parse(self, body: bytes) -> list[RequestedRow]:
        """Parse the body of a request.

        Args:
            body: the bytes of the request's body.

        Returns:
            The rows.

        Raises:
            UntrustedInputError: the body is not JSON of the schema.
            IdError: an id is missing, too long or of another type.
            TableError: a column is missing, is unknown or has a value of another type.
        """
        try:
            request: Any = self.type.model_validate(parse_json(body, depth=_MAX_DEPTH))
        except ValidationError as cause:
            problem = self._problem_of(cause)
        else:
            return [RequestedRow(_plain(row.id), _plain(row.columns)) for row in request.rows]
        raise problem

    def _problem_of(self, cause: ValidationError) -> Exception:
        """Return the error about the first problem, without a value."""
        problem = cause.errors(include_input=False, include_url=False, include_context=False)[0]
        place, kind = problem["loc"], problem["type"]
        match place:
            case ("rows", int(index), "columns", str(column), *_) if kind == "missing":
                return _column_error(index, f"lacks the column {shortened(column)!r}", "send all columns of the model")
            case ("rows", int(index), "columns", str(column), *_) if kind == "extra_forbidden":
                known = shortened(", ".join(self._kinds))
                remedy = f"send exactly {known}"
                return _column_error(index, f"has the column {shortened(column)!r}, which the model lacks", remedy)
            case ("rows", int(index), "columns", str(column), *_):
                expected = _VALUE_TYPES[self._kinds[column]][1] if column in self._kinds else "An object."
                return TableError(
                    f"row {index + 1}: the value of column {shortened(column)!r} does not fit "
                    f"{KIND_NAMES[self._kinds.get(column, 'number')]}, is too long or contains control characters",
                    f"send {expected[:1].lower()}{expected[1:]}",
                    code="SVFL-TABLE-TYPE",
                    row=index + 1,
                    column=column,
                )
            case ("rows", int(index), "columns", *_):
                return _column_error(index, "has columns that are not an object", "send an object of columns")
            case ("rows", int(index), "id", *_):
                return IdError(
                    f"row {index + 1}: the id is missing, too long or of another type",
                    "send the id as your table writes it; see /openapi.json",
                    code="SVFL-ID-INVALID",
                    row=index + 1,
                )
            case ("rows", int(index), str(key), *_):
                return UntrustedInputError(
                    f"row {index + 1} has the key {shortened(key)!r}; only id and columns are allowed"
                )
            case ("rows", int(index), *_):
                return UntrustedInputError(f"row {index + 1} is not an object")
            case ("rows", *_):
                return UntrustedInputError("the request has no list of rows")
            case (str(key), *_):
                return UntrustedInputError(f"the request has the key {shortened(key)!r}; only rows is allowed")
        return UntrustedInputError("the body of the request is not a JSON object")


def _plain(value: Any) -> Any:
    """Convert a pydantic object to a dict with the names that the application uses; return other values unchanged."""
    return value.model_dump(by_alias=True) if isinstance(value, BaseModel) else value


def _description(kind: ColumnType) -> str:
    unit = f" The unit is {kind.unit}." if kind.unit else ""
    dates = f" The format is {kind.format or 'ISO 8601, as in 2024-05-17'}." if kind.kind == "date" else ""
    return f"{_VALUE_TYPES[kind.kind][1]}{unit}{dates}"


def _id_type(id_columns: IdColumns | None) -> Any:
    """Return the type of an id: one value, or an object if several columns form the id (`data.composite_ids`)."""
    if id_columns is None or not id_columns.by_rule:
        return IdText | WholeNumber
    fields: dict[str, Any] = {
        f"part_{number}": (IdText | Number, Field(alias=name, title=name))
        for number, name in enumerate(id_columns.names)
    }
    composite = create_model("Id", __base__=_Part, __doc__="The columns that form the id.", **fields)
    return composite if len(id_columns.names) > 1 else IdText | Number | composite


def _column_error(index: int, problem: str, remedy: str) -> TableError:
    return TableError(f"row {index + 1} {problem}", remedy, code="SVFL-TABLE-COLUMNS", row=index + 1)

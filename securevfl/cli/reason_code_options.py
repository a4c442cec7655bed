"""Options and files of reason codes: names of a party's columns that other parties may learn for scored rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.errors import ConfigError
from securevfl.untrusted import parse_json

if TYPE_CHECKING:
    from securevfl.organisations.score_reasons import ReasonProvider


Reasons = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=100,
        metavar="K",
        help="Send the requesting party the codes of the K columns of yours that raise each row's score most.",
    ),
]
Codes = Annotated[
    Path | None,
    typer.Option(metavar="FILE.JSON", help="With --reasons: a code for each of your columns, {column: code}."),
]


def codes_in(file: Path) -> dict[str, str]:
    """Read the code of each column from a JSON file, or raise ConfigError."""
    try:
        return {str(column): str(code) for column, code in parse_json(file.read_bytes()).items()}
    except (OSError, ValueError, AttributeError):
        raise ConfigError(
            f"{file} does not contain JSON of the form {{column: code}}",
            "correct the file",
            code="SVFL-FILE-WRONG-KIND",
            path=str(file),
        ) from None


def given_codes(codes_per_row: int | None, file: Path | None) -> ReasonProvider | None:
    """Return the reason codes that --reasons and --codes define; raise ConfigError if only one of them is given."""
    from securevfl.organisations.score_reasons import score_reasons

    if codes_per_row is None and file is None:
        return None
    if codes_per_row is None or file is None:
        raise ConfigError(
            "only one of --reasons and --codes is given", "give both or neither", code="SVFL-COMMAND-USAGE"
        )
    return score_reasons().provider(codes_per_row, codes_in(file))

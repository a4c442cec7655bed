"""Options and files of reason codes: the names of a party's columns that others may see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.errors import ConfigError

if TYPE_CHECKING:
    from securevfl.organisations.reason_codes import ReasonCodePolicy


Reasons = Annotated[
    int | None,
    typer.Option(
        min=1, max=100, metavar="K", help="Tell who asks the codes of the K of your columns that cost each row most."
    ),
]

Codes = Annotated[
    Path | None,
    typer.Option(metavar="FILE.JSON", help="With --reasons: what each of your columns is called, {column: code}."),
]


def codes_in(file: Path) -> dict[str, str]:
    """Return the code of each column in a file. ConfigError if it is none."""
    try:
        return {str(column): str(code) for column, code in json.loads(file.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        raise ConfigError(f"{file}: JSON as {{column: code}} was expected there; correct it") from None


def given_codes(most: int | None, file: Path | None) -> ReasonCodePolicy | None:
    """Return what the options of a command give others. ConfigError for one of them without the other."""
    from securevfl.organisations.reason_codes import ReasonCodePolicy

    if most is None and file is None:
        return None
    if most is None or file is None:
        raise ConfigError("--reasons and --codes were expected together, one came; give both or neither")
    return ReasonCodePolicy(most, codes_in(file))

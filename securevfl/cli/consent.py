"""Asking a party for its consent: on a terminal by a question, elsewhere by the digest of the sheet."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from securevfl.cli.show import console, sheet_width
from securevfl.cli.show import sheet as shown
from securevfl.errors import ConsentError
from securevfl.privacy.agreed import Agreed
from securevfl.privacy.consent import Sheet


def agree(agreed: Agreed, accept: str | None, job_file: Path, sheet: Sheet) -> None:
    """Notes that the party agrees to this sheet, unless it has before. ConsentError if it does not.

    accept: the digest that the command was given.
    """
    if accept == sheet.digest:
        agreed.add(sheet)
    if agreed.holds(sheet):
        return
    out = console(err=True)
    if accept is None and sys.stdin.isatty() and out.is_terminal:
        out.print(shown(sheet, sheet_width(out)), soft_wrap=True)
        if typer.confirm("\nThis is what the job tells, and to whom. Do you agree?", err=True):
            agreed.add(sheet)
            return
        raise ConsentError("you have not agreed to the consent sheet; nothing of the table was told")
    came = "none came" if accept is None else f"{accept} came, of another sheet"
    raise ConsentError(
        f"{sheet}\n\nConsent to this sheet was expected, {came}; nothing of the table was told. If you agree, run the "
        f"same command again with\n    securevfl join {job_file} ... --accept {sheet.digest}"
    )

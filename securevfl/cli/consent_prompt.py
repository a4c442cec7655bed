"""Ask a party for its consent: on a terminal by a question, elsewhere by the digest of the sheet."""

from __future__ import annotations

import re
import sys

import typer

from securevfl.cli.show import console, sheet, sheet_width
from securevfl.consent.agreed_sheets import AgreedSheets
from securevfl.consent.consent_sheet import ConsentSheet
from securevfl.errors import ConfigError, ConsentError

DETAILS = "it covers all messages: securevfl explain ... --details"

_DIGITS = re.compile("[0-9a-f]{16}")


def check_digest(accept: str | None) -> None:
    """ConfigError if what --accept was given can't be the digest of a sheet."""
    if accept is not None and not _DIGITS.fullmatch(accept):
        raise ConfigError(
            "--accept: the digest of a consent sheet was expected, 16 digits 0 to f, something else came; "
            "securevfl explain prints it"
        )


def check_agreed(agreed: AgreedSheets, accept: str | None) -> None:
    """ConsentError if --accept names a sheet that was never agreed to, where none is to be agreed to any more."""
    if accept is not None and not agreed.has_digest(accept):
        raise ConsentError(
            f"--accept {accept}: the digest of a sheet that you have agreed to was expected, it is of none; the "
            "training is over and nothing was told, so leave --accept out"
        )


def agree(agreed: AgreedSheets, accept: str | None, command: str, asked: ConsentSheet) -> None:
    """Note that the party agrees to this sheet, unless it has before. ConsentError if it does not.

    accept: the digest that the command was given, which must be that of this sheet even if it was agreed to before.
    command: how to run it again.
    """
    if agreed.accepts(asked, accept):
        return
    out = console(err=True)
    if accept is None and sys.stdin.isatty() and out.is_terminal:
        out.print(sheet(asked.first_screen, sheet_width(out)), soft_wrap=True)
        out.print(f"\nsheet {asked.digest}; {DETAILS}", soft_wrap=True)
        if typer.confirm("\nThis is what is told, and to whom. Do you agree?", err=True):
            agreed.add(asked)
            return
        raise ConsentError("you have not agreed to the consent sheet; of the table no more was told than its size")
    other = f"{accept} came, of another sheet (as one is whose --size counts columns that are not prepared)"
    came = "none came" if accept is None else other
    raise ConsentError(
        f"{asked.first_screen}\n\n{DETAILS}\n\nConsent to this sheet was expected, {came}; of the table no more was "
        f"told "
        f"than its size. If you agree, run the same command again with\n    {command} ... --accept {asked.digest}"
    )

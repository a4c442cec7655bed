"""Ask a party for its consent to a sheet: with a question on a terminal, and by the sheet's digest elsewhere.

A *sheet* (consent sheet) lists everything that a job discloses about a party's table.
"""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import suppress
from pathlib import Path

import typer

from securevfl.cli.show import console, styled_sheet
from securevfl.consent.agreed_sheets import AgreedSheets
from securevfl.consent.consent_sheet import ConsentSheet
from securevfl.errors import ConfigError, ConsentError

DETAILS = "The sheet covers all messages: securevfl explain ... --details"
_DIGEST = re.compile("[0-9a-f]{16}")


def discard_typed_input() -> None:
    """Discard characters that were typed before a question was printed, because they cannot be its answer."""
    if sys.platform == "win32":
        import msvcrt

        while msvcrt.kbhit():
            msvcrt.getwch()
        return
    import termios

    with suppress(termios.error, OSError, ValueError):  # raised if stdin is not a terminal, which has no typed text
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def check_digest(accept: str | None) -> None:
    """Raise ConfigError if the argument of --accept cannot be the digest of a sheet."""
    if accept is not None and not _DIGEST.fullmatch(accept):
        raise ConfigError(
            "--accept needs the digest of a consent sheet, which has 16 digits 0 to f",
            "use the digest that `securevfl explain` prints",
            code="SVFL-CONSENT-DIGEST",
        )


def check_agreed(agreed: AgreedSheets, accept: str | None) -> None:
    """Check --accept if the training had finished before: raise ConsentError unless this sheet was accepted then."""
    if accept is not None and not agreed.has_digest(accept):
        raise ConsentError(
            f"no consent sheet with the digest --accept {accept} was accepted before. The training has already "
            "finished, and nothing was disclosed",
            "omit --accept",
            code="SVFL-CONSENT-DIGEST",
        )


def _repeated(command: str) -> str:
    """Return a command line without --accept for the user to copy.

    It is the command line of this process if that is a `securevfl` command, and otherwise `command` followed by "...".
    """
    program, *arguments = sys.argv
    if Path(program).stem != "securevfl":
        return f"{command} ..."
    accepted = {index for index, argument in enumerate(arguments) if argument == "--accept"}
    return shlex.join(
        [
            "securevfl",
            *(
                argument
                for index, argument in enumerate(arguments)
                if index not in accepted and index - 1 not in accepted and not argument.startswith("--accept=")
            ),
        ]
    )


def agree(agreed: AgreedSheets, accept: str | None, command: str, consent_sheet: ConsentSheet) -> None:
    """Record that the party agrees to a sheet, unless it has agreed to it before.

    Args:
        agreed: the sheets to which the party has agreed.
        accept: the digest that was passed to the command. It must be that of this sheet, even if the party has agreed
            before.
        command: the beginning of a command line, which the error names if this process is no `securevfl` command.
        consent_sheet: the consent sheet to which the party must agree.

    Raises:
        ConsentError: the party does not agree.
    """
    if agreed.accepts(consent_sheet, accept):
        return
    out = console(err=True)
    if accept is None and sys.stdin.isatty() and out.is_terminal:
        out.print(styled_sheet(consent_sheet.first_screen), soft_wrap=True)
        out.print(f"\n{consent_sheet.footer}\n{DETAILS}", soft_wrap=True)
        question = f"\nThe sheet lists what is disclosed, and to whom. Do you agree to sheet {consent_sheet.digest}?"
        discard_typed_input()
        if typer.confirm(question, err=True):
            agreed.add(consent_sheet)
            return
        raise ConsentError(
            "you have not agreed to the consent sheet. Nothing about the table was disclosed except its size",
            "run the same command again if you change your mind",
            code="SVFL-CONSENT-REFUSED",
        )
    reason = (
        "This party has not agreed to this sheet yet"
        if accept is None
        else f"--accept {accept} is the digest of another sheet (for example because --size counts unprepared columns)"
    )
    raise ConsentError(
        f"{consent_sheet.first_screen}\n\n{DETAILS}\n\n{reason}. Nothing about the table was disclosed except its size",
        f"if you agree, run\n    {_repeated(command)} --accept {consent_sheet.digest}",
        code="SVFL-CONSENT-REFUSED",
    )

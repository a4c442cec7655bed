"""Names of columns as all readers deliver them."""

from __future__ import annotations

from securevfl.display.printable import printable


def clean_name(name: object) -> str:
    """Return the name of a column with single blanks in place of white space, and with control characters escaped.

    Names appear on terminals, pages and logs of all parties, so no file may bring control characters there.
    """
    return printable(" ".join(str(name).split()))

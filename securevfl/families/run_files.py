"""Files that a family writes to the folder of a run, which `securevfl forget` deletes."""

from __future__ import annotations

import re
from typing import NamedTuple


class RunFile(NamedTuple):
    """A file, or several files with names of the same form, in the folder of a run (`--ahead`).

    Attributes:
        name: a regular expression for the name of the file.
        content: the data in it, for people who decide whether it may stay.
    """

    name: str
    content: str

    def matches(self, name: str) -> bool:
        """Return whether a file of this name is declared here; drafts of interrupted writes are declared as well."""
        return re.fullmatch(rf"\.?(?:{self.name})(?:\.\d+)?", name) is not None

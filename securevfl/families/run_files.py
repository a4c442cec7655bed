"""Declarations of files that a training writes to the folder of a run, so that `securevfl forget` can delete them."""

from __future__ import annotations

import re
from typing import NamedTuple


class RunFile(NamedTuple):
    """A declaration of a file, or of several files with names of the same form, in the folder of a run (`--ahead`).

    Attributes:
        name: a regular expression for the name of the file.
        content: a description of the data in it, for the operator who decides whether to delete it.
    """

    name: str
    content: str

    def matches(self, name: str) -> bool:
        """Return whether this declaration includes a file of this name.

        It includes incomplete files of interrupted writes.
        """
        return re.fullmatch(rf"\.?(?:{self.name})(?:\.\d+)?", name) is not None

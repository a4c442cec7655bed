"""Runs the demo and draws the end of what it prints, for the README.

python benchmarks/picture.py docs/figures/demo.svg
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 84
FIRST = "The same model three times"


def main() -> None:
    shown = os.environ | {"COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run(["securevfl", "demo"], env=shown, capture_output=True, text=True, check=True)  # noqa: S607
    lines = done.stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if FIRST in line)
    end = next(i for i, line in enumerate(lines) if i > start and "your own tables" in line)
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi("$ make demo\n..."))
    console.print(Text.from_ansi("\n".join(lines[start:end]).rstrip()))
    picture = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="securevfl demo"), flags=re.DOTALL)
    Path(sys.argv[1]).write_text(picture, encoding="utf-8")  # drawn with the reader's own fonts, nothing is fetched


if __name__ == "__main__":
    main()

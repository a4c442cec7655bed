"""Runs the demo and draws the end of what it prints, for the README.

python benchmarks/picture.py docs/figures/demo.svg
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 84
FIRST = "The same model three times"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("file", type=Path, help="where the picture goes, as SVG")
    given = options.parse_args()
    shown = os.environ | {"COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run(["securevfl", "demo"], env=shown, capture_output=True, text=True, check=True)  # noqa: S607
    lines = done.stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if FIRST in line)
    end = next(i for i, line in enumerate(lines) if i > start and "your own tables" in line)
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi("$ make demo\n..."))
    console.print(Text.from_ansi("\n".join(lines[start:end]).rstrip()))
    picture = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="securevfl demo"), flags=re.DOTALL)
    given.file.write_text(picture, encoding="utf-8")  # drawn with the reader's own fonts, nothing is fetched


if __name__ == "__main__":
    main()

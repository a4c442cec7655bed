"""Runs the demo and draws what it prints, for the README.

python benchmarks/picture.py docs/figures/demo.svg
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 80


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("file", type=Path, help="where the picture goes, as SVG")
    given = options.parse_args()
    shown = os.environ | {"COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "securevfl.cli.main", "demo"]
    with tempfile.TemporaryDirectory() as folder:  # for its report
        done = subprocess.run(command, env=shown, cwd=folder, capture_output=True, text=True, check=True)  # noqa: S603
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi("$ make demo"))
    console.print(Text.from_ansi(done.stdout.rstrip()))
    picture = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="securevfl demo"), flags=re.DOTALL)
    given.file.write_text(picture, encoding="utf-8")  # drawn with the reader's own fonts, nothing is fetched


if __name__ == "__main__":
    main()

"""Takes the pictures of screens that the documentation shows: terminals as SVG, pages as PNG by a headless Chromium.

python -m benchmarks.screens docs/figures/screens [--only train audit-desk ...]

Terminals and pages are those of the two files that docs/start.md makes, and of its job. The demo's picture is made by
benchmarks/picture.py. Needs chromium and Pillow; the pages of the documentation are built in a temporary folder.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import partial
from html import escape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
COLUMNS = 100  # of a terminal
DESK, PHONE = (1280, 900), (390, 844)  # pixels
SMALLEST = 500  # pixels that a window of Chromium has at least
BAR = 200  # pixels more than its own bars take
TABLES = "--data bank=bank.csv --data shop=shop.csv"
TERMINALS = {
    "train": f"securevfl train job.toml {TABLES} --save model --html run.html",
    "explain": f"securevfl explain job.toml {TABLES}",
    "describe": "securevfl describe bank.csv",
}
SECOND = "\nshop (partner)"  # where the sheet of the second party begins, which is left out
AUDIT = f"securevfl audit job.toml {TABLES} --html audit.html"
PAGES = {"run": "run.html", "audit": "audit.html", "docs": "site/index.html", "docs-mode": "site/which-mode.html"}
TAKEN = [*TERMINALS, "run-desk", "run-phone", "audit-desk", "audit-phone", "docs-desk", "docs-mode-phone"]


def shown(folder: Path, command: str) -> str:
    """What a command prints on a terminal in this folder, with its colours."""
    words = [sys.executable, "-m", "securevfl.cli.main", *command.split()[1:]]
    colours = os.environ | {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    colours["XDG_DATA_HOME"] = str(folder)  # no ledger of earlier runs
    done = subprocess.run(words, cwd=folder, env=colours, capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout


def drawn(command: str, printed: str) -> str:
    """Draw a terminal as SVG, with the reader's own fonts, so that nothing is fetched."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"$ {command}"))
    head, _, rest = printed.rstrip().partition(SECOND)
    console.print(Text.from_ansi(f"{head}\n..." if rest else head))
    return re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="securevfl"), flags=re.DOTALL)


class _Files(SimpleHTTPRequestHandler):
    """Files of a folder, without a line for each on the terminal."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def photographed(page: Path, size: tuple[int, int], picture: Path) -> None:
    """Take a picture of a page in a window of this size; below SMALLEST it stands in a frame, as no window is so
    narrow. The page comes from a server on this machine, as a search box needs one."""
    width, height = size
    files = partial(_Files, directory=str(page.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), files) as server, tempfile.TemporaryDirectory() as folder:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        if width < SMALLEST:
            frame = page.with_name(f"frame-{page.name}")
            inner = f'<iframe style="border:0" width="{width}" height="{height}" src="{escape(page.name)}"></iframe>'
            frame.write_text(f'<body style="margin:0">{inner}</body>', encoding="utf-8")
            page = frame
        browser = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
        words = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        words += [f"--user-data-dir={folder}", f"--window-size={max(width, SMALLEST)},{height + BAR}"]
        words += ["--virtual-time-budget=4000", f"--screenshot={picture}"]
        words.append(f"http://127.0.0.1:{server.server_port}/{page.name}")
        subprocess.run(words, capture_output=True, timeout=300, check=True)  # noqa: S603
        server.shutdown()
    image = Image.open(picture).convert("RGB").crop((0, 0, width, height))
    image.quantize(64, dither=Image.Dither.NONE).save(picture, optimize=True)


def made(folder: Path, *, audit: bool) -> None:
    """Make in a folder the files and the job of docs/start.md, and the pages that pictures are taken of."""
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    block = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)[0]
    subprocess.run([sys.executable, "-c", block], cwd=folder, check=True)  # noqa: S603
    (folder / "job.toml").write_text(re.findall(r"^```toml\n(.*?)^```$", page, re.M | re.S)[0], encoding="utf-8")
    if audit:
        shown(folder, AUDIT)


def built(folder: Path) -> None:
    """Build the pages of the documentation."""
    words = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(folder / "site")]
    subprocess.run(words, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)  # noqa: S603


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=TAKEN, choices=TAKEN)
    given = parser.parse_args()
    target = given.folder.resolve()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        made(folder, audit=any(each.startswith("audit") for each in given.only))
        if any(each.startswith("docs") for each in given.only):
            built(folder)
        needed = [each for each in TERMINALS if each in given.only]
        if any(each.startswith("run") for each in given.only) and "train" not in needed:
            shown(folder, TERMINALS["train"])
        for each in needed:
            (target / f"{each}.svg").write_text(
                drawn(TERMINALS[each], shown(folder, TERMINALS[each])), encoding="utf-8"
            )
        for each in given.only:
            page, _, width = each.rpartition("-")
            if page in PAGES:
                photographed(folder / PAGES[page], DESK if width == "desk" else PHONE, target / f"{each}.png")


if __name__ == "__main__":
    main()

"""Takes the pictures of screens for the documentation.

    python -m benchmarks.screens docs/figures [--only demo join run ...]

Terminals of 80 columns are stored as SVG. Pages are stored as PNG by a headless Chromium, 400 and 1,400 pixels wide, in
light and dark colours. All pictures show one run: the two files and the job of docs/start.md, and `join` and `serve`
between two processes with the kits of docs/two-organisations.md. Needs chromium and Pillow.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from urllib.request import urlopen

from PIL import Image
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
TERMINAL_COLUMNS, TERMINAL_LINES = 80, 50  # columns of a terminal
SCREEN_WIDTHS = {"phone": 400, "desk": 1400}  # pixels of a page
SCREEN_HEIGHT = 900
SMALLEST = 500  # smallest width of a Chromium window
BAR = 200  # more pixels than its bars take
COLOUR_SCHEMES = {"light": 1, "dark": 0}  # in Chromium's numbering
TABLE_OPTIONS = "--data bank=bank.csv --data shop=shop.csv"
TERMINALS = {
    "demo": "securevfl demo",
    "compare": f"securevfl compare job.toml {TABLE_OPTIONS}",
    "explain": f"securevfl explain job.toml {TABLE_OPTIONS}",
    "train": f"securevfl train job.toml {TABLE_OPTIONS} --html run.html",
    "describe": "securevfl describe --data bank.csv",
    "join": "securevfl join kits/bank/job.toml --party bank --data bank.csv --html joined.html",
    "ledger": "securevfl ledger --party shop",
    "serve": "securevfl serve shop.model.json --data shop-later.csv --peers kits/shop/peers.toml --monitor {monitor}",
}
AUDIT = f"securevfl audit job.toml {TABLE_OPTIONS} --html audit.html"
SHEET = f"securevfl explain job.toml {TABLE_OPTIONS} --html sheet.html"
LIMITS = "securevfl ledger --party shop --limit columns=5% --limit scores=100000 --limit ids=20000"
SCORE = "securevfl score bank.model.json --data bank-later.csv --peers kits/bank/peers.toml --out scores.csv"
PHOTOGRAPHED_PAGES = {"run": "run.html", "sheet": "sheet.html", "audit": "audit.html", "monitor": "monitor.html"}
NEEDED = {"run": "train", "ledger": "join", "serve": "join", "monitor": "serve"}
"""The command whose output a picture shows, or which must run before it."""
MONITOR = "127.0.0.1:9464"
TAKEN = [*TERMINALS, *PHOTOGRAPHED_PAGES]


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a command with its ledgers in this folder, without anything of earlier runs."""
    colours = {
        "COLUMNS": str(TERMINAL_COLUMNS),
        "LINES": str(TERMINAL_LINES),
        "FORCE_COLOR": "1",
        "TERM": "xterm-256color",
    }
    return os.environ | colours | {"XDG_DATA_HOME": str(folder / "home")}


def words(command: str) -> list[str]:
    """Return the arguments that run a securevfl command in a new process."""
    return [sys.executable, "-m", "securevfl.cli.main", *command.split()[1:]]


def shown(folder: Path, command: str) -> str:
    """Return the coloured output of a command in this folder."""
    done = subprocess.run(  # noqa: S603
        words(command), cwd=folder, env=environment(folder), capture_output=True, text=True, check=True
    )
    return done.stdout


def on_terminal(folder: Path, command: str, answer: str) -> str:
    """Run a command on a terminal, give `answer` to its question, and return what the terminal shows at the end.

    A status line that is redrawn in place is shown in its last state that has a figure.
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (TERMINAL_LINES, TERMINAL_COLUMNS))
    with subprocess.Popen(  # noqa: S603
        words(command), cwd=folder, env=environment(folder), stdin=theirs, stdout=theirs, stderr=theirs
    ):
        os.close(theirs)
        printed, answered, deadline = "", False, time.monotonic() + 120
        while time.monotonic() < deadline:
            ready, _, _ = select.select([ours], [], [], 1)
            try:
                piece = os.read(ours, 65536) if ready else b"-"
            except OSError:
                break  # the command has ended
            printed += piece.decode() if ready else ""
            if "[y/N]" in printed and not answered:
                os.write(ours, answer.encode())
                answered = True
    states = re.findall(r"\x1b\[2K(training: visit [^\r\n]*)", printed)
    lasting = [re.split(r"\r\x1b\[2K", line)[-1] for line in printed.replace("\r\n", "\n").split("\n")]
    answer_at = next(number for number, line in enumerate(lasting) if "[y/N]" in line)
    return "\n".join([*lasting[: answer_at + 1], *states[-1:], *filter(None, lasting[answer_at + 1 :])])


def free_port() -> int:
    """Return a port of this computer that no program listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def joined(folder: Path, command: str) -> str:
    """Return the bank's screen while bank and shop train in two processes. The shop has set limits before."""
    addresses = f"--party bank=localhost:{free_port()} --party shop=localhost:{free_port()}"
    shown(folder, f"securevfl kit kits --job job.toml {addresses}")
    shown(folder, LIMITS)
    at = [f"--party {name} --data {name}.csv --peers kits/{name}/peers.toml" for name in ("bank", "shop")]
    aligning = subprocess.Popen(words(f"securevfl align {at[1]}"), cwd=folder, env=environment(folder))  # noqa: S603
    shown(folder, f"securevfl align {at[0]}")
    if aligning.wait(60):
        raise SystemExit("shop did not align")
    printed = shown(folder, "securevfl explain kits/shop/job.toml --data shop=shop.csv --size bank=6")
    agreed = re.findall(r"^digest: (\w+)", printed, re.M)[0]
    command_of_shop = f"securevfl join kits/shop/job.toml {at[1]} --accept {agreed}"
    shop = subprocess.Popen(words(command_of_shop), cwd=folder, env=environment(folder))  # noqa: S603
    result = on_terminal(folder, command, "y\n")
    if shop.wait(60):
        raise SystemExit("shop did not train")
    return result


def later_tables(folder: Path) -> None:
    """Write tables of both parties with 600 people who were not in the training."""
    later = program().replace("Random(0)", "Random(1)").replace("range(2000)", "range(2000, 2600)")
    for name in ("bank", "shop"):
        later = later.replace(f'"{name}.csv"', f'"{name}-later.csv"')
    subprocess.run([sys.executable, "-c", later], cwd=folder, check=True)  # noqa: S603


def served(folder: Path, command: str) -> str:
    """Return the shop's screen after it has scored the bank's new rows, and store the page of its monitor."""
    later_tables(folder)
    address = f"127.0.0.1:{free_port()}"
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (TERMINAL_LINES, TERMINAL_COLUMNS))
    line = words(command.format(monitor=address))
    with subprocess.Popen(line, cwd=folder, env=environment(folder), stdout=theirs, stderr=theirs) as service:  # noqa: S603
        os.close(theirs)
        printed = _read(ours, lambda text: "serving" in text)
        shown(folder, SCORE)
        printed += _read(ours, lambda text: "answered:" in text)
        with urlopen(f"http://{address}/", timeout=30) as page:
            (folder / PHOTOGRAPHED_PAGES["monitor"]).write_bytes(page.read())
        service.send_signal(signal.SIGTERM)
        _read(ours, lambda text: "has ended after" in text)
        if service.wait(60):
            raise SystemExit("the service has failed")
    os.close(ours)
    *_, frame = re.split(r"(?:\r?\x1b\[2K(?:\x1b\[1A\x1b\[2K)+)", printed)
    return re.sub(r"\x1b\[\?25[lh]", "", frame.replace("\r\n", "\n")).replace(address, MONITOR)


def _read(terminal: int, ends: Callable[[str], bool]) -> str:
    """Return what a process prints on a terminal, until a whole second has passed after the awaited text."""
    printed, deadline, waited = "", time.monotonic() + 60, 0.0
    while time.monotonic() < (waited or deadline):
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                printed += os.read(terminal, 65536).decode(errors="replace")
            except OSError:
                return printed  # the process has closed the terminal
        if not waited and ends(printed):
            waited = time.monotonic() + 1.0
    if not waited:
        raise SystemExit(f"the awaited text has not been printed: {printed}")
    return printed


def drawn(command: str, printed: str) -> str:
    """Draw a terminal as SVG, with the reader's fonts, so that nothing is fetched."""
    console = Console(record=True, width=TERMINAL_COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"$ {command}\n{printed.rstrip()}"))
    picture = console.export_svg(title="securevfl", unique_id="screen")
    return re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)


def browser() -> str:
    """Return the command of a browser. SystemExit if there is none."""
    result = shutil.which("chromium") or shutil.which("google-chrome")
    if result is None:
        raise SystemExit("no browser is installed; apt-get install chromium")
    return result


def photographed(page: Path, width: int, colours: str, picture: Path, height: int = SCREEN_HEIGHT) -> None:
    """Take a picture of a page of this width; below SMALLEST in a frame, because no window is that narrow."""
    with tempfile.TemporaryDirectory() as folder:
        if width < SMALLEST:
            frame = Path(folder) / "frame.html"
            inner = f'<iframe style="border:0" width="{width}" height="{height}" src="{page.resolve().as_uri()}">'
            scheme = "<meta name='color-scheme' content='light dark'>"
            frame.write_text(f'{scheme}<body style="margin:0">{inner}</iframe></body>', encoding="utf-8")
            page = frame
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += [f"--user-data-dir={folder}/profile", f"--window-size={max(width, SMALLEST)},{height + BAR}"]
        options += [f"--blink-settings=preferredColorScheme={COLOUR_SCHEMES[colours]}", f"--screenshot={picture}"]
        subprocess.run(  # noqa: S603
            [browser(), *options, page.resolve().as_uri()], capture_output=True, timeout=300, check=True
        )
    image = Image.open(picture).convert("RGB").crop((0, 0, width, height))
    image.quantize(128, dither=Image.Dither.NONE).save(picture, optimize=True)


def program() -> str:
    """Return the program of docs/start.md that writes the tables of a bank and a shop."""
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    return str(re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)[0])


def prepared(folder: Path) -> None:
    """Create the files and the job of docs/start.md in a folder."""
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    subprocess.run([sys.executable, "-c", program()], cwd=folder, check=True)  # noqa: S603
    (folder / "job.toml").write_text(re.findall(r"^```toml\n(.*?)^```$", page, re.M | re.S)[0], encoding="utf-8")


def main() -> None:
    """Take the pictures from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=TAKEN, choices=TAKEN)
    arguments = parser.parse_args()
    target = arguments.folder.resolve()
    (target / "screens").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared(folder)
        printers = {"join": joined, "serve": served}
        chosen = set(arguments.only)
        while missing := {NEEDED[item] for item in chosen & NEEDED.keys()} - chosen:
            chosen |= missing
        for item, command in TERMINALS.items():
            if item in chosen:
                printed = printers.get(item, shown)(folder, command)
                place = target / "demo.svg" if item == "demo" else target / "screens" / f"{item}.svg"
                text = drawn(command.format(monitor=MONITOR), printed.replace(str(folder), "/data"))
                place.write_text(text, encoding="utf-8")
        for item, command in (("audit", AUDIT), ("sheet", SHEET)):
            if item in chosen:
                shown(folder, command)
        for item in set(arguments.only) & PHOTOGRAPHED_PAGES.keys():
            for place, width in SCREEN_WIDTHS.items():
                for colours in COLOUR_SCHEMES:
                    picture = target / "screens" / f"{item}-{place}-{colours}.png"
                    photographed(folder / PHOTOGRAPHED_PAGES[item], width, colours, picture)


if __name__ == "__main__":
    main()

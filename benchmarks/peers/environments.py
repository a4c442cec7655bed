"""The environment of a peer: its Python version if it needs one, and pinned packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PINS = Path(__file__).parent / "pins"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "securevfl-peers"
MAX_BUILD_SECONDS = 1800  # seconds of an installation


class Unavailable(Exception):
    """An environment that cannot be created here; the text states the reason in one line."""


@dataclass(frozen=True)
class Environment:
    """A peer's Python and packages: `pins/NAME.txt`, and `alone`, which is installed without dependencies."""

    name: str
    python: str
    version: str
    alone: str = ""

    def interpreter(self, folder: Path) -> Path:
        """Return its Python below `folder`; create it if it is missing or its pins changed. May raise Unavailable."""
        home, pins = folder / self.name, PINS / f"{self.name}.txt"
        generated, expected = home / "pins.txt", f"{self.python}\n{self.alone}\n{pins.read_text(encoding='utf-8')}"
        python = home / "bin" / "python"
        if generated.is_file() and generated.read_text(encoding="utf-8") == expected:
            return python
        shutil.rmtree(home, ignore_errors=True)
        print(f"making {home}", file=sys.stderr, flush=True)
        run_quietly([str(find(self.python)), "-m", "venv", str(home)])
        run_quietly([str(python), "-m", "pip", "install", "--quiet", "--requirement", str(pins)])
        if self.alone:
            run_quietly([str(python), "-m", "pip", "install", "--quiet", "--no-deps", self.alone])
        generated.write_text(expected, encoding="utf-8")
        return python


def find(version: str) -> Path:
    """Return a Python of this version: this one, one of pyenv or of the path, or one of uv. Unavailable if none."""
    for python in _candidates(version):
        try:
            text = subprocess.run([str(python), "--version"], capture_output=True, text=True, timeout=60)  # noqa: S603
        except OSError:
            continue
        if text.stdout.startswith(f"Python {version}."):
            return python
    uv = shutil.which("uv")
    if uv is None:
        raise Unavailable(f"Python {version} is not installed; install it, or uv, which provides it")
    run_quietly([uv, "python", "install", version])
    completed = subprocess.run([uv, "python", "find", version], capture_output=True, text=True)  # noqa: S603
    return Path(completed.stdout.strip())


def _candidates(version: str) -> Iterator[Path]:
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        yield Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)
    if on_path := shutil.which(f"python{version}"):
        yield Path(on_path)


def run_quietly(words: list[str]) -> None:
    """Run a step of an installation. Unavailable, with its last line, if it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=MAX_BUILD_SECONDS)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise Unavailable(f"{Path(words[0]).name} {words[-1]}: {cause}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise Unavailable(f"{Path(words[0]).name} {words[-1]}: {lines[-1] if lines else done.returncode}")

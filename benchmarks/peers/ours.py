"""Two parties of this library, run by its commands (kit, align, join) over mutual TLS."""

from __future__ import annotations

import compileall
import re
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import securevfl as vfl
from benchmarks.peers.environments import run_quietly
from benchmarks.peers.pairs import Line, PairFailed, Taken, between, run_pair
from benchmarks.peers.tables import SIDES
from securevfl.organisations.toml_writer import to_toml
from securevfl.runtime.network import Network
from securevfl.training.model_part import ModelPart

ROOT = Path(__file__).parents[2]
MODULE = ["-m", "securevfl.cli.main"]


@dataclass
class Found:
    """The figures of a pair, the bytes between the two (None over loopback), and the result."""

    costs: Taken
    bytes: int | None
    results: dict[str, Any]


def installed(folder: Path | None) -> Path:
    """Return the Python of an environment below `folder` with the package's requirements and scikit-learn for trees.

    Without a folder it is this one. Modules have bytecode on disk, as those of an installed package do.
    """
    for item in ("securevfl", "crypto", "protocols"):
        compileall.compile_dir(ROOT / item, quiet=2)
    if folder is None:
        return Path(sys.executable)
    home = folder / f"securevfl-{zlib.crc32(str(ROOT).encode()):08x}"  # the package of this checkout
    run_quietly(["make", "-C", str(ROOT), f"PYTHON={sys.executable}", f"VENV={home}", f"{home}/.core"])
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    run_quietly([*pip, "--constraint", str(ROOT / "requirements.lock"), "scikit-learn"])
    return home / "bin" / "python"


def train(python: Path, job: vfl.Job, folder: Path, network: Network | None, suffix: str = ".csv") -> Found:
    """Train on `SIDE.csv` of the folder.

    Both parties first align their rows and print their consent sheets. The measured command is `join`, which agrees to
    the sheet. The *work* is its time minus that of a run that ends at the sheet.
    """
    (folder / "job.toml").write_text(to_toml(job.to_dict()), encoding="utf-8")
    with between(network, 1) as line:
        listen = _kit(python, folder, line)
        run_pair([[str(python), *_align(side, suffix), *listen[side]] for side in SIDES], folder)
        join = [[str(python), *_join(side, suffix), *listen[side]] for side in SIDES]
        requested, digests = _refused(folder, join)
        before = line.bytes
        elapsed = run_pair([[*words, "--accept", digest] for words, digest in zip(join, digests, strict=True)], folder)
        sent = None if line.bytes is None or before is None else line.bytes - before
    auc = ModelPart.load(folder / "bank.model.json").metrics["auc"]
    work = {"work_cpu_s": elapsed.cpu_s - requested.cpu_s, "work_s": elapsed.seconds - requested.seconds}
    return Found(elapsed, sent, {"auc": auc, **work})


def align(python: Path, folder: Path, network: Network | None) -> Found:
    """Find the common ids of `SIDE.csv` of the folder: tables in, row numbers out, at both parties."""
    with between(network, 1) as line:
        listen = _kit(python, folder, line)
        elapsed = run_pair([[str(python), *_align(side, ".csv"), *listen[side]] for side in SIDES], folder)
        sent = line.bytes
    return Found(elapsed, sent, {"common": len(np.load(folder / "bank.csv.rows.npy"))})


def _kit(python: Path, folder: Path, line: Line) -> dict[str, list[str]]:
    """Create the kits; the shop connects to the bank."""
    job = ["--job", "job.toml"] if (folder / "job.toml").is_file() else []
    called = f"bank=127.0.0.1:{line.other[1][0]}"
    run_pair([[str(python), *MODULE, "kit", "kits", "--party", called, "--party", "shop", *job]], folder)
    return {"bank": ["--listen", f"127.0.0.1:{line.bound[0][0]}"], "shop": []}


def _align(side: str, suffix: str) -> list[str]:
    return [*MODULE, "align", "--party", side, "--data", f"{side}{suffix}", "--peers", f"kits/{side}/peers.toml"]


def _join(side: str, suffix: str) -> list[str]:
    words = [*MODULE, "join", f"kits/{side}/job.toml", "--party", side, "--data", f"{side}{suffix}"]
    return [*words, "--ledger", f"{side}.ledger"]


def _refused(folder: Path, join: Sequence[Sequence[str]]) -> tuple[Taken, list[str]]:
    """Join without consent: each party reads its table, meets the other, and prints its sheet.

    It returns the time and the digests of the sheets. PairFailed if a party ends otherwise.
    """
    elapsed = run_pair(join, folder, refusing=True)
    lines = [(folder / f"party-{k}.log").read_text(encoding="utf-8") for k in (0, 1)]
    results = [re.findall(r"--accept (\w+)", text) for text in lines]
    if not all(results):
        raise PairFailed(f"no digest of a consent sheet in the output {lines[not results[0]][-300:]!r}")
    return elapsed, [item[-1] for item in results]

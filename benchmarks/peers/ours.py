"""Our two parties, by the package's own commands over mutual TLS: kit, align, join."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import securevfl as vfl
from benchmarks.peers.pairs import Line, PairFailed, Taken, between, run_pair
from benchmarks.peers.tables import SIDES
from securevfl.organisations.kit import to_toml
from securevfl.runtime.clock import Network
from securevfl.training.model_part import ModelPart

COMMAND = [sys.executable, "-m", "securevfl.cli.main"]


@dataclass
class Found:
    """What a pair took, the bytes between the two (None over loopback), and what was found."""

    taken: Taken
    bytes: int | None
    told: dict[str, Any]


def train(job: vfl.Job, folder: Path, network: Network | None, suffix: str = ".csv") -> Found:
    """Train on `SIDE.csv` of the folder. Both first find their rows and read their consent sheets; `join`, which then
    says yes, is what is measured.
    """
    (folder / "job.toml").write_text(to_toml(job.to_dict()), encoding="utf-8")
    with between(network, 1) as line:
        listen = _kit(folder, line)
        run_pair([[*_align(side, suffix), *listen[side]] for side in SIDES], folder)
        join = [[*_join(side, suffix), *listen[side]] for side in SIDES]
        digests = _digests(folder, join)
        before = line.bytes
        taken = run_pair([[*words, "--accept", digest] for words, digest in zip(join, digests, strict=True)], folder)
        sent = None if line.bytes is None or before is None else line.bytes - before
    return Found(taken, sent, {"auc": ModelPart.load(folder / "bank.model.json").metrics["auc"]})


def align(folder: Path, network: Network | None) -> Found:
    """Find the common ids of `SIDE.csv` of the folder: tables in, row numbers out, at both."""
    with between(network, 1) as line:
        listen = _kit(folder, line)
        taken = run_pair([[*_align(side, ".csv"), *listen[side]] for side in SIDES], folder)
        sent = line.bytes
    return Found(taken, sent, {"common": len(np.load(folder / "bank.csv.rows.npy"))})


def _kit(folder: Path, line: Line) -> dict[str, list[str]]:
    """Make the kits, of which the shop calls the bank; what else each says of the line."""
    job = ["--job", "job.toml"] if (folder / "job.toml").is_file() else []
    called = f"bank=127.0.0.1:{line.other[1][0]}"
    run_pair([[*COMMAND, "kit", "kits", "--party", called, "--party", "shop", *job]], folder)
    return {"bank": ["--listen", f"127.0.0.1:{line.own[0][0]}"], "shop": []}


def _align(side: str, suffix: str) -> list[str]:
    return [*COMMAND, "align", "--party", side, "--data", f"{side}{suffix}", "--peers", f"kits/{side}/peers.toml"]


def _join(side: str, suffix: str) -> list[str]:
    words = [*COMMAND, "join", f"kits/{side}/job.toml", "--party", side, "--data", f"{side}{suffix}"]
    return [*words, "--ledger", f"{side}.ledger"]


def _digests(folder: Path, join: Sequence[Sequence[str]]) -> list[str]:
    """Join without consent: nothing of a table is told, and each party reads the digest of its sheet."""
    try:
        run_pair(join, folder, keep=True)
    except PairFailed as refused:
        found = [re.findall(r"--accept (\w+)", (folder / f"party-{k}.log").read_text()) for k in (0, 1)]
        if not all(found):
            raise refused from None
        return [each[-1] for each in found]
    raise PairFailed("a refusal without consent was expected, the training ran")

"""The JSON report of a training: what `Run.summary` has, and every party's books in detail."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from securevfl.clock import Network, Phase
from securevfl.costs import Ledger, Tally
from securevfl.errors import ConfigError
from securevfl.files import write_whole
from securevfl.run import Run
from securevfl.version import __version__

SCHEMA = "securevfl.report/1"


def report(run: Run, *, network: Network, lacking: dict[str, int]) -> dict[str, Any]:
    """The report as plain data.

    ledgers: by party and phase, bytes and counts by kind of message sent, seconds and counts by homomorphic operation.
    lacking: how many ids that others have each party lacks.
    """
    return {
        "schema": SCHEMA,
        "version": __version__,
        **run.summary(),
        "network": {"mbps": network.mbps, "rtt_ms": network.rtt_ms},
        "ids_lacking": lacking,
        "ledgers": {name: _ledger(part.ledger) for name, part in run.parts.items()},
    }


def _ledger(ledger: Ledger) -> dict[str, Any]:
    return {
        "messages": _by_phase(ledger.traffic, lambda tally: {"bytes": int(tally.amount), "count": tally.count}),
        "operations": _by_phase(ledger.ops, lambda tally: {"seconds": tally.amount, "count": tally.count}),
    }


def _by_phase(books: dict[tuple[Phase, str], Tally], entry: Any) -> dict[str, dict[str, Any]]:
    phases: dict[str, dict[str, Any]] = {}
    for (phase, what), tally in books.items():
        phases.setdefault(phase.name.lower(), {})[what] = entry(tally)
    return phases


def check_writable(path: Path, *, folder: bool = False) -> None:
    """ConfigError unless a file (or a folder with files) can be written there."""
    if path.exists() and path.is_dir() != folder:
        raise ConfigError(f"{path}: a {'folder' if folder else 'file'} was expected there; name another path")
    place = path.absolute() if folder else path.absolute().parent
    while not place.exists():
        place = place.parent
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        raise ConfigError(f"{path}: a place that can be written was expected, {place} is none; name another path")


def write_report(path: Path, run: Run, *, network: Network, lacking: dict[str, int]) -> None:
    """Writes the report, whole or not at all."""
    write_json(path, report(run, network=network, lacking=lacking))


def write_json(path: Path, value: Any) -> None:
    """Strict JSON, whole or not at all; figures that are none (NaN) become null."""
    write_whole(path, json.dumps(_finite(value), indent=2, allow_nan=False).encode() + b"\n")


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
    return value

"""The JSON report of a training: what `Run.summary` has, and every party's books in detail."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from securevfl.base.files import write_json
from securevfl.base.version import __version__
from securevfl.runtime.clock import Books, Network, Stage, Tally
from securevfl.training.run import Run

SCHEMA = "securevfl.report/3"


def report(run: Run, *, network: Network, lacking: dict[str, int]) -> dict[str, Any]:
    """Return the report as plain data.

    books: by party and stage, bytes and counts by kind of message sent, seconds and counts by homomorphic operation.
    lacking: how many ids that others have each party lacks.
    """
    return {
        "schema": SCHEMA,
        "version": __version__,
        **run.summary(),
        "network": asdict(network),
        "ids_lacking": lacking,
        "books": {name: _books(part.books) for name, part in run.parts.items()},
    }


def _books(books: Books) -> dict[str, Any]:
    return {
        "messages": _by_stage(books.traffic, lambda tally: {"bytes": int(tally.amount), "count": tally.count}),
        "operations": _by_stage(books.ops, lambda tally: {"seconds": tally.amount, "count": tally.count}),
    }


def _by_stage(books: dict[tuple[Stage, str], Tally], entry: Any) -> dict[str, dict[str, Any]]:
    stages: dict[str, dict[str, Any]] = {}
    for (stage, what), tally in books.items():
        stages.setdefault(stage.name.lower(), {})[what] = entry(tally)
    return stages


def write_report(path: Path, run: Run, *, network: Network, lacking: dict[str, int]) -> None:
    """Write the report, whole or not at all."""
    write_json(path, report(run, network=network, lacking=lacking))

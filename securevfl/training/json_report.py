"""JSON report of a training: the summary of a run, and the cost counters of every party in detail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securevfl.base.files import write_json
from securevfl.base.version import __version__
from securevfl.runtime.costs import Stage, Tally
from securevfl.runtime.network import Network

if TYPE_CHECKING:
    pass
from securevfl.training.run import Run

REPORT_SCHEMA = "securevfl.report/3"


def report(
    run: Run, *, network: Network, lacking: dict[str, int], alone: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Return the report as plain data, which can be written as JSON.

    Args:
        run: the run.
        network: the network on which it was simulated.
        lacking: for each party, the number of ids that it lacks and another party has.
        alone: metrics of a model of the leading party's columns alone, for comparison.

    Returns:
        The summary of the run. For each party and stage, it contains bytes and counts by kind of message, and seconds
        and counts by homomorphic operation.
    """
    return {
        "schema": REPORT_SCHEMA,
        "version": __version__,
        **run.summary(),
        "alone": None if alone is None else dict(alone),
        "network": asdict(network),
        "ids_lacking": lacking,
        "books": {
            name: {
                "messages": _by_stage(part.counters.traffic, lambda tally: {"bytes": int(tally.amount)}),
                "operations": _by_stage(part.counters.ops, lambda tally: {"seconds": tally.amount}),
            }
            for name, part in run.parts.items()
        },
    }


def _by_stage(
    counters: dict[tuple[Stage, str], Tally], amount: Callable[[Tally], dict[str, float]]
) -> dict[str, dict[str, Any]]:
    stages: dict[str, dict[str, Any]] = {}
    for (stage, item), tally in counters.items():
        stages.setdefault(stage.name.lower(), {})[item] = amount(tally) | {"count": tally.count}
    return stages


def write_report(
    path: Path, run: Run, *, network: Network, lacking: dict[str, int], alone: Mapping[str, float] | None = None
) -> None:
    """Write the report to a file, atomically."""
    write_json(path, report(run, network=network, lacking=lacking, alone=alone))

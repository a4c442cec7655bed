"""JSON report of a training: the summary of a run, and the cost counters of every party in detail.

The *leading party* decides when a training ends; usually it is the party with labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from securevfl.runtime.costs import Stage, Tally
from securevfl.runtime.network import Network
from securevfl.training.model_part import ModelPart
from securevfl.training.run import Run


def report(
    run: Run, *, network: Network, lacking: dict[str, int], alone: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Return the report of a run of all parties as plain data, which can be written as JSON.

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
        **run.summary(),
        "alone": None if alone is None else dict(alone),
        "network": asdict(network),
        "ids_lacking": lacking,
        "books": {name: _counters(part) for name, part in run.parts.items()},
    }


def part_report(part: ModelPart, *, alone: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return the report of one party of a training between organisations as plain data. It contains no weights.

    Args:
        part: this party's part of the model, with its metrics and cost counters.
        alone: metrics of a model of this party's columns alone, if it has the labels.

    Returns:
        The report.
    """
    return {
        "party": part.name,
        "run": part.run,
        "status": str(part.status),
        "job": part.job,
        "parties": part.parties,
        "evaluated_on": part.evaluated_on if part.metrics else None,
        "positive": part.positive,
        "metrics": part.metrics,
        "metric_std_errors": part.metric_std_errors,
        "alone": None if alone is None else dict(alone),
        "by_class": part.by_class,
        "calibration": [list(group) for group in part.calibration],
        "notes": part.notes,
        "history": part.history,
        "rounds": part.rounds,
        "trained": part.trained,
        "held_out": part.held_out,
        "counters": _counters(part),
    }


def _counters(part: ModelPart) -> dict[str, Any]:
    """Return a party's cost counters: bytes and messages by stage and kind, and homomorphic operations with seconds."""
    return {
        "messages": _by_stage(part.counters.traffic, lambda tally: {"bytes": int(tally.amount)}),
        "operations": _by_stage(part.counters.ops, lambda tally: {"seconds": tally.amount}),
    }


def _by_stage(
    counters: dict[tuple[Stage, str], Tally], amount: Callable[[Tally], dict[str, float]]
) -> dict[str, dict[str, Any]]:
    stages: dict[str, dict[str, Any]] = {}
    for (stage, item), tally in counters.items():
        stages.setdefault(stage.name.lower(), {})[item] = amount(tally) | {"count": tally.count}
    return stages

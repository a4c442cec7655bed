"""How every experiment chooses its steps, keeps its runs and tells its spread.

Rows that are reported are held out first. A step size is chosen on the rest alone: a part of these is held out again,
and the step whose trainings there come out best is the one that is reported. Where the best is at an edge of the grid,
the grid is widened on that side until it no longer is.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securevfl.data.party import Party
from securevfl.errors import DivergenceError, ProtocolError
from securevfl.job import Job

WIDEST = 6  # steps that a grid may grow by
NEVER = math.inf  # the merit of a training that diverged
DIVERGED = (DivergenceError, ProtocolError)  # a part with NaN is refused where it arrives
Curve = list[tuple[float, float]]  # rounds (or seconds) and the held-out AUC there


@dataclass(frozen=True)
class Choice:
    """The best step of a grid, the merit of all that were tried (less is better), and whether it is an edge still."""

    step: float
    tried: dict[float, float]

    @property
    def edge(self) -> bool:
        return self.step in (min(self.tried), max(self.tried))

    def row(self) -> dict[str, Any]:
        """Describe the choice in a row of results; a training that diverged has no merit."""
        tried = {f"{step:g}": round(merit, 4) if math.isfinite(merit) else None for step, merit in self.tried.items()}
        return {"step": self.step, "tried": tried, "edge": self.edge}


def choose(grid: Sequence[float], merit: Callable[[float], float]) -> Choice:
    """Find the step of least merit, the smallest of those; the grid grows by its own ratio while that is an edge."""
    steps = sorted(grid)
    ratio = steps[1] / steps[0]
    tried = {step: merit(step) for step in steps}
    for _ in range(WIDEST):
        best = min(sorted(tried), key=tried.__getitem__)
        if best == min(tried):
            further = best / ratio
        elif best == max(tried):
            further = best * ratio
        else:
            break
        further = float(f"{further:.3g}")
        tried[further] = merit(further)
    return Choice(min(sorted(tried), key=tried.__getitem__), tried)


def one_step(choices: Sequence[Choice]) -> float:
    """Find the step, of those that all have tried, at which the merits of all together are least."""
    common = sorted(set.intersection(*(set(choice.tried) for choice in choices)))
    return min(common, key=lambda step: sum(choice.tried[step] for choice in choices))


def development(parties: Sequence[Party], job: Job) -> list[Party]:
    """Keep the rows that this job trains on: what it holds out is reported and takes no part in any choice."""
    train = job.schedule(parties[0].register).train
    return [party.take(train) for party in parties]


def reached(curve: Curve, target: float) -> float | None:
    """Tell where a curve first is at the target, None if it never is."""
    return next((at for at, auc in curve if auc >= target), None)


def toll(curve: Curve, targets: Sequence[float], cap: float) -> float:
    """Add up the way to all targets; one that is not reached counts twice the cap and what is missing of the AUC."""
    if not curve:
        return NEVER
    best = max(auc for _, auc in curve)
    return sum(at if (at := reached(curve, target)) is not None else cap * (3 - best) for target in targets)


def mean(values: Sequence[float | None]) -> float | None:
    """Average; None where one is missing."""
    results = [value for value in values if value is not None]
    return statistics.fmean(results) if results and len(results) == len(values) else None


def spread(values: Sequence[float | None]) -> float | None:
    """Tell the sample's standard deviation; None where a value is missing."""
    results = [value for value in values if value is not None]
    if not results or len(results) < len(values):
        return None
    return statistics.stdev(results) if len(results) > 1 else 0.0


class Runs:
    """What has been run, by what was run: kept in a file of one JSON object a line, or in memory without one.

    A command that was stopped takes up again what its file has. `say` is told what is being run.
    """

    def __init__(self, say: Callable[[str], None], path: Path | None = None) -> None:
        self._say, self._path = say, path
        self._known: dict[str, Any] = {}
        if path is not None and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._known |= json.loads(line)

    def __call__(self, words: str) -> None:
        """Say what is being run."""
        self._say(words)

    def once(self, what: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """Give what `make` gives, or gave before; it is kept before this returns."""
        key = json.dumps(what, sort_keys=True)
        if key not in self._known:
            self._known[key] = generated = json.loads(json.dumps(make()))
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({key: generated}) + "\n")
        return self._known[key]

    def forget(self) -> None:
        """Take the file away, where all of a command is done."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Part:
    """One table of a paper: what is run in full and small, and the program, from data (None: made up), the plan and
    what has been run, which is told what is being run."""

    full: Any
    quick: Any
    run: Callable[[Path | None, Any, Runs], Rows]

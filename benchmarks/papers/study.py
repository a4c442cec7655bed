"""How every experiment chooses its steps, stores its runs and reports its spread.

Reported rows are held out first. A step size is chosen on the other rows: some of these are held out again, and the
step with the best trainings on them is reported. If the best step is at an edge of the grid, the grid is widened on
that side until it is inside.
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

MAX_GRID_STEPS = 6  # number of steps by which a grid may grow
NEVER = math.inf  # the merit of a training that diverged
DIVERGED = (DivergenceError, ProtocolError)  # a part with NaN is refused by its receiver
Curve = list[tuple[float, float]]  # rounds (or seconds) and the held-out AUC


@dataclass(frozen=True)
class Choice:
    """The best step of a grid, the merit of all tried steps (less is better), and whether it is still at an edge."""

    step: float
    tried: dict[float, float]

    @property
    def edge(self) -> bool:
        """Whether the best step is at an edge of the grid."""
        return self.step in (min(self.tried), max(self.tried))

    def row(self) -> dict[str, Any]:
        """Describe the choice in a row of results; a training that diverged has no merit."""
        tried = {f"{step:g}": round(merit, 4) if math.isfinite(merit) else None for step, merit in self.tried.items()}
        return {"step": self.step, "tried": tried, "edge": self.edge}


def choose(grid: Sequence[float], merit: Callable[[float], float]) -> Choice:
    """Find the step size with the least merit (rounds to the targets); of several, the smallest.

    While it is at an edge of the grid, the grid grows on that side. A grid of one step size does not grow.
    """
    steps = sorted(grid)
    if len(steps) == 1:
        return Choice(steps[0], {steps[0]: merit(steps[0])})
    ratio = steps[1] / steps[0]
    tried = {step: merit(step) for step in steps}
    for _ in range(MAX_GRID_STEPS):
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
    """Find the step, among those that all have tried, with the smallest total merit."""
    common = sorted(set.intersection(*(set(choice.tried) for choice in choices)))
    return min(common, key=lambda step: sum(choice.tried[step] for choice in choices))


def development(parties: Sequence[Party], job: Job) -> list[Party]:
    """Return the rows that this job trains on; the held-out rows are reported and take no part in any choice."""
    train = job.schedule(parties[0].register).train
    return [party.take(train) for party in parties]


def reached(curve: Curve, target: float) -> float | None:
    """Return where a curve first reaches the target, None if it never does."""
    return next((at for at, auc in curve if auc >= target), None)


def toll(curve: Curve, targets: Sequence[float], cap: float) -> float:
    """Sum the rounds to all targets. An unreached target counts as twice the largest number
    of rounds plus the missing AUC.
    """
    if not curve:
        return NEVER
    best = max(auc for _, auc in curve)
    return sum(at if (at := reached(curve, target)) is not None else cap * (3 - best) for target in targets)


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if a value is missing."""
    results = [value for value in values if value is not None]
    return statistics.fmean(results) if results and len(results) == len(values) else None


def spread(values: Sequence[float | None]) -> float | None:
    """Return the sample's standard deviation; None if a value is missing."""
    results = [value for value in values if value is not None]
    if not results or len(results) < len(values):
        return None
    return statistics.stdev(results) if len(results) > 1 else 0.0


def median(values: Sequence[float | None]) -> float | None:
    """Return the median, in which a missing value exceeds all others; None if the median itself is missing."""
    middle = statistics.median([NEVER if value is None else value for value in values])
    return middle if math.isfinite(middle) else None


def rounds_figures(rounds: Sequence[float | None]) -> dict[str, Any]:
    """Describe the rounds to a target from several starts; None stands for a start that does not reach it.

    Returns:
        `rounds` and `rounds_sd` (mean and sample deviation, None if a start misses the target), `rounds_median`, `runs`
        (the rounds of every start) and `reached` (the number of starts that reach the target).
    """
    figures = {"rounds": mean(rounds), "rounds_sd": spread(rounds), "rounds_median": median(rounds)}
    return figures | {"runs": list(rounds), "reached": sum(number is not None for number in rounds)}


class Runs:
    """Finished runs by their key, stored in a file with one JSON object a line, or in memory without a file.

    An interrupted command reuses the runs in its file. `say` is called with a description of the next run.
    """

    def __init__(self, say: Callable[[str], None], path: Path | None = None) -> None:
        self._say, self._path = say, path
        self._known: dict[str, Any] = {}
        if path is not None and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._known |= json.loads(line)

    def __call__(self, words: str) -> None:
        """Report that this run starts next."""
        self._say(words)

    def once(self, what: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """Return the result of `make`, or its stored result; it is stored before this returns."""
        key = json.dumps(what, sort_keys=True)
        if key not in self._known:
            self._known[key] = generated = json.loads(json.dumps(make()))
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({key: generated}) + "\n")
        return self._known[key]

    def forget(self) -> None:
        """Remove the file when a command is done."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


Rows = list[dict[str, Any]]


def _never(row: Mapping[str, Any]) -> bool:
    return False


@dataclass(frozen=True)
class Part:
    """One table of a paper: its full and its small plan, and the program.

    The program gets the data (None: generated), the plan, and the finished runs. `varies` returns whether the figures
    of a row differ between two runs with equal seeds: because the parties draw fresh keys or noise, or because stale
    sums depend on the time at which messages arrive.
    """

    full: Any
    quick: Any
    run: Callable[[Path | None, Any, Runs], Rows]
    varies: Callable[[Mapping[str, Any]], bool] = _never

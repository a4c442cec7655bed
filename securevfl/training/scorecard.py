"""A scorecard: points for each bin of each column, whose sum over a row is its score (Siddiqi 2006).

    score = points - double / ln 2 (f + ln odds)        f: log odds of the positive class, from columns of all parties

So a row whose odds against the positive class are `odds` to 1 has `points`, and each `double` more points double them.
What counts as bad has to be the positive class, which a job may name (`securevfl.models.loss`). Each party makes
the lines of its own columns from its own part; the party with labels has the intercept, as the base. Nobody needs
another's part.

A column's points are those of its own distance from the training's mean, so they add up with the base alone. Of columns
in bins, of texts and of weights of evidence each bin has its points; a number has them at 0 and for each unit.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.files import write_atomic
from securevfl.data.bin_edges import format_number
from securevfl.data.column_transforms import (
    MISSING,
    OTHER,
    BinTransform,
    ColumnTransform,
    NumericTransform,
    OneHotTransform,
)
from securevfl.data.scaling import Scaling
from securevfl.data.woe import CategoricalWoe, NumericWoe
from securevfl.display import html
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.training.explanations import check_weights
from securevfl.training.model_part import ModelPart

BASE = "(base)"
UNIT, ZERO = "each unit", "at 0"
HEADS = ["party", "column", "bin", "points", "exact"]


@dataclass(frozen=True)
class ScorecardScale:
    """What points mean: `points` at odds of `odds` to 1 against the positive class, twice these `double` points up."""

    points: float = 600.0
    odds: float = 50.0
    double: float = 20.0

    def __post_init__(self) -> None:
        if not (self.odds > 0 and self.double > 0 and math.isfinite(self.points + self.odds + self.double)):
            raise ConfigError("points: odds and double above 0 were expected, as in 600:50:20; correct them")

    @classmethod
    def read(cls, text: str) -> ScorecardScale:
        """Read a scale from a text of the form POINTS:ODDS:DOUBLE. Raises ConfigError if it is not of that form."""
        try:
            points, odds, double = (float(each) for each in text.split(":"))
        except ValueError:
            raise ConfigError(f"points: POINTS:ODDS:DOUBLE was expected, as in 600:50:20, {text} came") from None
        return cls(points, odds, double)

    @property
    def factor(self) -> float:
        """Points for each unit of the log odds."""
        return self.double / math.log(2)

    def of(self, f: Floats) -> Floats:
        """Convert log odds f (n,) to points (n,)."""
        return self.points - self.factor * (f + math.log(self.odds))


@dataclass(frozen=True)
class ScorecardLine:
    """One bin of one column of one party, and what a row in it gains."""

    party: str
    column: str
    bin: str
    points: float


@dataclass(frozen=True)
class Scorecard:
    """The lines of one party, or of all in one process."""

    lines: tuple[ScorecardLine, ...]
    scale: ScorecardScale

    def csv(self) -> str:
        """Return the scorecard as CSV, with a line for each bin: party, column, bin, points to the whole, and
        exactly."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(HEADS)
        rows.writerows([each.party, each.column, each.bin, round(each.points), each.points] for each in self.lines)
        return text.getvalue()

    def page(self) -> str:
        """One file of HTML, a table a party."""
        scale, parties = self.scale, list(dict.fromkeys(each.party for each in self.lines))
        head = (
            f"{scale.points:g} points are odds of {scale.odds:g} to 1 against the positive class; {scale.double:g} "
            "more double them. A row's score is the base and the points of its bin in every column, of all parties; of "
            "a number those at 0 and those of each unit."
        )
        body = ["<h1>Scorecard</h1>", f"<p>{html.escape(head)}</p>"]
        for party in parties:
            rows: list[list[html.Cell]] = [
                [each.column, each.bin, float(f"{each.points:.2f}")] for each in self.lines if each.party == party
            ]
            body.append(html.section(party, html.table(["column", "bin", "points"], rows)))
        return html.page("Scorecard", body)

    def save(self, path: str | Path) -> None:
        """Write the scorecard to a file: a page where the name ends in .html, else CSV."""
        text = self.page() if Path(path).suffix == ".html" else self.csv()
        write_atomic(Path(path), text.encode())

    def _repr_html_(self) -> str:
        rows: list[list[html.Cell]] = [[each.party, each.column, each.bin, each.points] for each in self.lines]
        return html.table(HEADS[:4], rows)


def scorecard(parts: Mapping[str, ModelPart] | Sequence[ModelPart], scale: ScorecardScale) -> Scorecard:
    """Make the scorecard of these parts, the leading party's lines first. Raises ConfigError for a model that has no
    points, or whose weights its parties do not know."""
    own = list(parts.values()) if isinstance(parts, Mapping) else list(parts)
    lines = [line for part in own if part.columns for line in _lines(part, scale)]
    return Scorecard(tuple(lines), scale)


def _lines(part: ModelPart, scale: ScorecardScale) -> list[ScorecardLine]:
    _check_model(part)
    check_weights(part, "a scorecard")
    lines = []
    if part.leads:
        lines.append(
            ScorecardLine(part.name, BASE, "", float(scale.of(part.theta[len(part.features) :].sum(axis=0))[0]))
        )
    at = 0
    for step in part.preparation.steps or [NumericTransform(column=name) for name in part.columns]:
        own = slice(at, at + len(step.features))
        at = own.stop
        scaling = Scaling(part.scaling.mean[own], part.scaling.deviation[own], part.scaling.clip)
        lost = scale.factor * part.theta[own, 0]
        lines += [ScorecardLine(part.name, step.column, *each) for each in _points(step, scaling, lost)]
    return lines


def _points(step: ColumnTransform, scaling: Scaling, lost: Floats) -> list[tuple[str, float]]:
    """Each bin of a step with its points, from the scaling of its features (k,) and the points that a deviation of each
    loses (k,)."""

    def gained(values: Sequence[float], levels: tuple[str, ...] = ()) -> list[float]:
        return [-float(each) for each in scaling(step.apply(np.array(values, np.float64), levels)) @ lost]

    match step:
        case NumericTransform(spread=None):
            first, last = (float(each[0]) for each in scaling.ends)
            first = max(first, -np.inf if step.low is None else step.low)
            last = min(last, np.inf if step.high is None else step.high)
            within = [
                f" from {format_number(first)}" if np.isfinite(first) else "",
                f" to {format_number(last)}" if np.isfinite(last) else "",
            ]
            unit = lost / scaling.deviation
            marked = scaling(np.array([[np.nan, 0.0]]))[0, 1] * lost[1] if step.indicator else 0.0
            zero = float(scaling.mean[0] * unit[0] - marked)
            found = [(ZERO, zero), (UNIT + "".join(within), -float(unit[0]))]
            if step.fill is not None:
                found.append((MISSING, gained([np.nan])[0]))
            return found
        case NumericWoe() | BinTransform():
            ends = [-np.inf, *step.edges, np.inf]
            names = [f"[{format_number(low)}, {format_number(high)})" for low, high in pairwise(ends)]
            values = [step.edges[0] - 1 if step.edges else 0.0, *step.edges]
            if (isinstance(step, BinTransform) and step.fill is not None) or (
                isinstance(step, NumericWoe) and step.missing is not None
            ):
                names, values = [*names, MISSING], [*values, np.nan]
            return list(zip(names, gained(values), strict=True))
        case OneHotTransform() | CategoricalWoe():
            known = (step.base, *step.categories) if isinstance(step, OneHotTransform) else step.categories
            levels = (*known, OTHER)
            return list(zip(levels, gained([float(place) for place in range(len(levels))], levels), strict=True))
    remedy = 'prepare = { woe = {} }, prepare = { bins = 10 }, or prepare = { tails = "keep" }'
    if not isinstance(step, NumericTransform):  # of a date or of codes, which bins leave as they are
        remedy = f'it left out: prepare = {{ drop = ["{step.column}"] }}, beside the other keys'
    raise ConfigError(
        f"a scorecard: columns in bins were expected, {step.column} is neither parted nor a straight line; train with "
        f"{remedy}"
    )


def scale_of(part: ModelPart, text: str) -> ScorecardScale:
    """Read the scale for scores of this part's model from a text. Raises ConfigError if it is none, or if the scores
    are no log odds."""
    _check_model(part)
    return ScorecardScale.read(text)


def _check_model(part: ModelPart) -> None:
    job = Job.from_dict(part.job)
    if job.model.loss.name != "logistic" or not job.model.by_column:
        raise ConfigError(
            f"points: a linear logistic model was expected, {part.name}'s part is of a {job.model.name} model; train "
            "model = logistic"
        )

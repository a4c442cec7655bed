"""A scorecard: points for each bin of each column, whose sum over a row is its score (Siddiqi 2006).

    score = points - double / ln 2 (f + ln odds)        f: log odds of the positive class, from columns of all parties

A row with odds of `odds` to 1 against the positive class has `points` points, and `double` more points double the odds.
The positive class must be the undesired one; a job may name it (`securevfl.models.class_labels`). Each party computes
the lines of its columns from its part of the model, which contains the weights of these columns. The leading party,
which has the labels, also has the intercept; its points are called the base.

The points of a column are relative to the column's mean over the training rows; the base contains the points at the
mean. A column of texts, or one that was prepared in bins or as weights of evidence, has points for each bin. A number
has points at 0 and per unit. A special code (a number with a meaning, such as -999) has points of its own.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.files import write_atomic
from securevfl.credit.explanations import check_weights
from securevfl.data.bin_edges import format_number
from securevfl.data.column_transforms import (
    MISSING_CATEGORY,
    OTHER_CATEGORY,
    BinTransform,
    ColumnTransform,
    ImputedTransform,
    NumericTransform,
    OneHotTransform,
)
from securevfl.data.scaling import Scaling
from securevfl.data.woe import CategoricalWoe, NumericWoe
from securevfl.display import html
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.training.model_part import ModelPart

BASE = "(base)"
UNIT, ZERO = "each unit", "at 0"
SCORECARD_HEADINGS = ["party", "column", "bin", "points", "exact"]


@dataclass(frozen=True)
class ScorecardScale:
    """The scale of a scorecard: which odds the points stand for.

    Attributes:
        points: points at odds of `odds` to 1 against the positive class.
        odds: odds against the positive class that correspond to `points` points.
        double: points that double the odds.
    """

    points: float = 600.0
    odds: float = 50.0
    double: float = 20.0

    def __post_init__(self) -> None:
        if not (self.odds > 0 and self.double > 0 and math.isfinite(self.points + self.odds + self.double)):
            raise ConfigError(
                "points: odds and double must be above 0",
                "write for example 600:50:20",
                code="SVFL-JOB-OPTION",
                option="points",
            )

    @classmethod
    def read(cls, text: str) -> ScorecardScale:
        """Read a scale from a text of the form POINTS:ODDS:DOUBLE.

        Args:
            text: the points, the odds at these points, and the points that double the odds.

        Returns:
            The scale.

        Raises:
            ConfigError: if the text has another form.
        """
        try:
            points, odds, double = (float(part) for part in text.split(":"))
        except ValueError:
            raise ConfigError(
                f"points: {text} is not of the form POINTS:ODDS:DOUBLE",
                "write for example 600:50:20",
                code="SVFL-JOB-OPTION",
                option="points",
            ) from None
        return cls(points, odds, double)

    @property
    def factor(self) -> float:
        """The number of points that correspond to one unit of the log odds."""
        return self.double / math.log(2)

    def of(self, f: Floats) -> Floats:
        """Convert log odds f (n,) to points (n,)."""
        return self.points - self.factor * (f + math.log(self.odds))


@dataclass(frozen=True)
class ScorecardLine:
    """One bin of a column, and the points of a row in it."""

    party: str
    column: str
    bin: str
    points: float


@dataclass(frozen=True)
class Scorecard:
    """The lines of one party, or of all parties in one process."""

    lines: tuple[ScorecardLine, ...]
    scale: ScorecardScale

    def csv(self) -> str:
        """Return the scorecard as CSV, one line per bin: party, column, bin, rounded points, exact points."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(SCORECARD_HEADINGS)
        rows.writerows([line.party, line.column, line.bin, round(line.points), line.points] for line in self.lines)
        return text.getvalue()

    def page(self) -> str:
        """Return an HTML page with one table per party."""
        scale, parties = self.scale, list(dict.fromkeys(line.party for line in self.lines))
        head = (
            f"{scale.points:g} points are odds of {scale.odds:g} to 1 against the positive class; {scale.double:g} "
            "more double them. A row's score is the base and the points of its bin in every column, of all parties; "
            "for a numeric column, the points at 0 and the points per unit are listed."
        )
        body = ["<h1>Scorecard</h1>", f"<p>{html.escape(head)}</p>"]
        for party in parties:
            rows: list[list[html.Cell]] = [
                [line.column, line.bin, float(f"{line.points:.2f}")] for line in self.lines if line.party == party
            ]
            body.append(html.section(party, html.table(["column", "bin", "points"], rows)))
        return html.page("Scorecard", body)

    def save(self, path: str | Path) -> None:
        """Write the scorecard to a file: a page if the name ends in .html, otherwise CSV."""
        text = self.page() if Path(path).suffix == ".html" else self.csv()
        write_atomic(Path(path), text.encode())

    def _repr_html_(self) -> str:
        rows: list[list[html.Cell]] = [[line.party, line.column, line.bin, line.points] for line in self.lines]
        return html.table(SCORECARD_HEADINGS[:4], rows)


def scorecard(
    parts: Mapping[str, ModelPart] | Sequence[ModelPart], scale: ScorecardScale = ScorecardScale()
) -> Scorecard:
    """Return the scorecard of these parts, the leading party's lines first.

    Raises ConfigError for a model without points, or with weights that a party does not know.

    Args:
        parts: one party's part or the parts of all parties, such as `Run.parts`.
        scale: the meaning of points; by default 600 points at odds of 50 to 1, and 20 more points double the odds.

    Returns:
        The scorecard.
    """
    all_parts = list(parts.values()) if isinstance(parts, Mapping) else list(parts)
    all_parts.sort(key=lambda part: not part.leads)
    lines = [line for part in all_parts if part.columns for line in _lines(part, scale)]
    return Scorecard(tuple(lines), scale)


def _lines(part: ModelPart, scale: ScorecardScale) -> list[ScorecardLine]:
    _check_model(part)
    check_weights(part, "a scorecard")
    lines = []
    if part.leads:
        lines.append(
            ScorecardLine(part.name, BASE, "", float(scale.of(part.theta[len(part.features) :].sum(axis=0))[0]))
        )
    start = 0
    for step in part.preparation.steps or [NumericTransform(column=name) for name in part.columns]:
        features = slice(start, start + len(step.features))
        start = features.stop
        scaling = Scaling(part.scaling.mean[features], part.scaling.deviation[features], part.scaling.clip)
        lost = scale.factor * part.theta[features, 0]
        lines += [ScorecardLine(part.name, step.column, *bin_points) for bin_points in _points(step, scaling, lost)]
    return lines


def _points(step: ColumnTransform, scaling: Scaling, lost: Floats) -> list[tuple[str, float]]:
    """Return each bin of a column with its points.

    Args:
        step: the step that prepares a column.
        scaling: the scaling of its features (k,).
        lost: by how many points a row's score decreases if a feature increases by one standard deviation (k,).

    Returns:
        Name and points of each bin.
    """

    def gained(values: Sequence[float], levels: tuple[str, ...] = ()) -> list[float]:
        return [-float(value) for value in scaling(step.apply(np.array(values, np.float64), levels)) @ lost]

    codes = dict(step.special) if isinstance(step, ImputedTransform | NumericWoe) else {}
    match step:
        case NumericTransform(spread=None):
            first, last = (float(end[0]) for end in scaling.ends)
            first = max(first, -np.inf if step.low is None else step.low)
            last = min(last, np.inf if step.high is None else step.high)
            within = [
                f" from {format_number(first)}" if np.isfinite(first) else "",
                f" to {format_number(last)}" if np.isfinite(last) else "",
            ]
            unit = lost / scaling.deviation
            marks = scaling(np.array([[np.nan, *[0.0] * (len(lost) - 1)]]))[0, 1:]
            marked = float(marks @ lost[1:])
            zero = float(scaling.mean[0] * unit[0] - marked)
            points = [(ZERO, zero), (UNIT + "".join(within), -float(unit[0]))]
            points += list(zip(codes, gained(list(codes.values())), strict=True))
            if step.fill is not None:
                points.append((MISSING_CATEGORY, gained([np.nan])[0]))
            return points
        case NumericWoe() | BinTransform():
            ends = [-np.inf, *step.edges, np.inf]
            names = [f"[{format_number(low)}, {format_number(high)})" for low, high in pairwise(ends)]
            first = float(np.nextafter(step.edges[0], -np.inf)) if step.edges else 0.0
            values = [_below(first, codes), *(_above(edge, codes) for edge in step.edges)]
            names, values = [*names, *codes], [*values, *codes.values()]
            if (isinstance(step, BinTransform) and step.fill is not None) or (
                isinstance(step, NumericWoe) and step.missing is not None
            ):
                names, values = [*names, MISSING_CATEGORY], [*values, np.nan]
            return list(zip(names, gained(values), strict=True))
        case OneHotTransform() | CategoricalWoe():
            known = (step.base, *step.categories) if isinstance(step, OneHotTransform) else step.categories
            levels = (*known, OTHER_CATEGORY)
            texts = tuple(step.texts_of(level)[0] for level in levels)  # one text of each bin; all have the same points
            return list(zip(levels, gained([float(place) for place in range(len(levels))], texts), strict=True))
    remedy = 'prepare = { woe = {} }, prepare = { bins = 10 }, or prepare = { tails = "keep" }'
    # bins do not apply to a date or to a text that was prepared as integer codes, so only dropping the column helps
    if not isinstance(step, NumericTransform):
        remedy = f'prepare = {{ drop = ["{step.column}"] }}, in addition to the other keys'
    raise ConfigError(
        f"a scorecard: column {step.column} is neither in bins nor linear",
        f"train with {remedy}",
        code="SVFL-MODEL-UNSUPPORTED",
        column=step.column,
    )


def _below(value: float, codes: Mapping[str, float]) -> float:
    """Return the value, or the next smaller number that is no special code."""
    while value in codes.values():
        value = float(np.nextafter(value, -np.inf))
    return value


def _above(value: float, codes: Mapping[str, float]) -> float:
    """Return the value, or the next larger number that is no special code."""
    return -_below(-value, {code: -number for code, number in codes.items()})


def scale_of(part: ModelPart, text: str) -> ScorecardScale:
    """Read the scale of points for this part's model from a text. Raises the errors of `ScorecardScale.read`."""
    _check_model(part)
    return ScorecardScale.read(text)


def points_column(part: ModelPart, text: str) -> Callable[[Floats], Floats]:
    """Return a function from log odds (m, 1) of this part's model to points (m,); see `scale_of`."""
    scale = scale_of(part, text)
    return lambda f: scale.of(f[:, 0]).round(2)


def _check_model(part: ModelPart) -> None:
    job = Job.from_dict(part.job)
    if job.model.loss.name != "logistic" or not job.model.by_column:
        raise ConfigError(
            f"points: points need a linear logistic model, and the part of {part.name} belongs to a {job.model.name} "
            f"model",
            "train model = logistic",
            code="SVFL-MODEL-UNSUPPORTED",
            party=part.name,
        )

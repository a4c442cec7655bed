"""How each party makes numbers of its own columns: fitted on its training rows, kept in its part, applied to new rows.

    missing numbers   the median of the column, and a 0/1 column that says where it was filled in
    texts             one-hot: a 0/1 column for each level but the commonest, one for all rare ones together; or
                      whole numbers, which no scaling touches, for a module that looks them up in tables
    outliers          clipped at quantiles, if the job says so
    bins              0/1 columns between quantiles, if the job says so
    evidence          or each column's values become what their bin says of the label (`securevfl.data.evidence`)

Nothing of it leaves a party but how many columns come out, which everyone learns in the meeting; for evidence a party
without labels is told the classes in each of its bins. A table of numbers
without gaps stays as it is. What comes out is what is counted, guarded and summed: 0/1 columns are easier to find than
others (`securevfl.disclosure.exposure`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from securevfl.config import Config, Registry, plain, read_nested
from securevfl.crypto.scheme import Floats
from securevfl.data.columns import Columns
from securevfl.data.evidence import Evidence, NumberEvidence, TextEvidence, Woe, number_bins, text_bins
from securevfl.data.schedule import Rows
from securevfl.data.steps import MISSING, Bins, Codes, Number, Step, Texts
from securevfl.errors import TableError

LEAST = 5  # training rows that share what gets a column of its own

STEPS: Registry[Step] = Registry("step", Number, Bins, Texts, Codes, NumberEvidence, TextEvidence)


class Preparation(Config):
    """What all parties do to their columns."""

    missing: Literal["indicator", "fill", "refuse"] = "indicator"
    """Missing numbers get the median of their column, with a 0/1 column that says where or without, or are refused."""
    texts: Literal["one_hot", "codes", "refuse"] = "one_hot"
    """Texts become 0/1 columns, one for each value but the commonest, or one column of codes for tables of embeddings
    (1 is the commonest value, 0 all rare and unknown ones), or are refused."""
    rare: float = Field(default=0.005, ge=0, lt=0.5)
    """Share of the training rows below which values of a text share one 0/1 column or code."""
    clip: float | None = Field(default=None, gt=0, lt=0.5)
    """Share of the training rows at either end of a column of numbers; what is beyond is set to that quantile."""
    bins: int | None = Field(default=None, ge=2, le=1000)
    """Each column of more different numbers becomes 0/1 columns of so many stretches between quantiles."""
    woe: Woe | None = None
    """Each column becomes one of weights of evidence: what a value's bin says of the label, of two classes."""

    @field_validator("woe", mode="before")
    @classmethod
    def _read_woe(cls, value: Any) -> Any:
        return read_nested(Woe, value)

    @model_validator(mode="after")
    def _check_woe(self) -> Preparation:
        other = self.clip is not None or self.bins is not None or self.texts == "codes"
        if self.woe is not None and other:
            raise ValueError("woe: parts columns into bins of its own; leave clip, bins and codes out")
        return self


@dataclass(frozen=True)
class Prepared:
    """What was fitted: the columns as they come, in order, and a step for each; no steps leave them as they are.

    coded: those that hold codes as they come.
    """

    columns: list[str]
    steps: tuple[Step, ...] = ()
    coded: tuple[str, ...] = ()

    @property
    def features(self) -> list[str]:
        """The names of the columns that come out (d)."""
        return [name for step in self.steps for name in step.features] if self.steps else self.columns

    @property
    def texts(self) -> list[str]:
        """Those of the columns that hold texts."""
        return [step.column for step in self.steps if isinstance(step, Texts | Codes | TextEvidence)]

    @property
    def information(self) -> dict[str, float]:
        """The information value of each column, where these were weighed (`securevfl.data.evidence`)."""
        return {step.column: step.iv for step in self.steps if isinstance(step, Evidence) and step.weights}

    def weigh(self, places: Floats) -> Floats:
        """The columns that come out (m x d), of the numbers of their bins (m x d)."""
        steps = [step for step in self.steps if isinstance(step, Evidence)]
        return np.column_stack([step.weigh(place) for step, place in zip(steps, places.T, strict=True)])

    @property
    def codes(self) -> tuple[str, ...]:
        """Those of the columns that come out which hold codes, and are not to be scaled."""
        return self.coded + tuple(step.column for step in self.steps if isinstance(step, Codes))

    @property
    def done(self) -> Prepared:
        """What leaves the columns that come out as they are."""
        return Prepared(self.features, coded=self.codes)

    def apply(self, own: Columns) -> Floats:
        """The columns that come out (m x d); NaN where a value is missing that never was in the training.

        TableError names a column that holds texts where the training had numbers, or numbers where it had texts.
        """
        texts = set(self.texts)
        wrong = [name for name in own.levels if name not in texts]
        if not self.steps and not wrong:
            return own.X
        wrong += [
            step.column
            for j, step in enumerate(self.steps)
            if step.column in texts and step.column not in own.levels and not np.isnan(own.X[:, j]).all()
        ]
        if wrong:
            raise TableError(
                f"columns of the kinds of the training were expected, {', '.join(wrong[:5])} changed between numbers "
                "and texts; bring these columns as they were"
            )
        return np.column_stack(
            [step.apply(own.X[:, j], own.levels.get(step.column, ())) for j, step in enumerate(self.steps)]
        )

    def plain(self) -> list[dict[str, Any]]:
        """The steps as JSON can hold them."""
        return [plain(step) for step in self.steps]

    @classmethod
    def read(cls, columns: list[str], steps: Sequence[Any]) -> Prepared:
        """The opposite of `plain`. ValueError or ConfigError if it is none."""
        return cls(columns, tuple(STEPS.read(step) for step in steps))


def fit(name: str, own: Columns, train: Rows, options: Preparation) -> Prepared:
    """What becomes of the columns of party `name`, by its training rows. TableError names columns that it can't use."""
    gaps = np.atleast_1d(np.isnan(own.X).any(axis=0))
    numbers = [column for column, lacks in zip(own.names, gaps, strict=True) if lacks and column not in own.levels]
    _check_refused(name, numbers if options.missing == "refuse" else [], "missing numbers", "fill them")
    texts = list(own.levels) if options.texts == "refuse" else []
    _check_refused(name, texts, "texts", "encode them as numbers")
    if not (gaps.any() or own.levels or any(each is not None for each in (options.clip, options.bins, options.woe))):
        return Prepared(own.names)
    X = own.X[train]
    steps: list[Step] = []
    for j, column in enumerate(own.names):
        if np.isnan(X[:, j]).all():
            raise TableError(
                f"party {name}: values among the training rows were expected, column {column} has none; drop it"
            )
        if column in own.levels:
            counts = _counts(X[:, j], own.levels[column])
            steps.append(
                text_bins(column, counts, options.woe) if options.woe else _texts(name, column, counts, options)
            )
        elif options.woe is not None:
            steps.append(number_bins(column, X[:, j], bool(gaps[j]), options.woe))
        else:
            steps.append(_number(column, X[:, j], bool(gaps[j]), options))
    prepared = Prepared(own.names, tuple(steps))
    if not prepared.features:
        raise TableError(f"party {name}: columns that vary were expected, none does in its training rows; add columns")
    return prepared


def _check_refused(name: str, columns: Sequence[str], what: str, remedy: str) -> None:
    if columns:
        shown = ", ".join(columns[:5]) + (f" and {len(columns) - 5} more" if len(columns) > 5 else "")
        raise TableError(
            f"party {name}: this job takes no {what}, they are in {shown}; {remedy}, or let the job prepare them"
        )


def _least(rows: int, options: Preparation) -> float:
    return max(LEAST, options.rare * rows)


def _number(column: str, values: Floats, gaps: bool, options: Preparation) -> Step:
    """The step of a column of numbers, from its training rows; `gaps`: whether any row lacks it."""
    lacks = np.isnan(values)
    present, least = values[~lacks], _least(len(values), options)
    marked = bool(options.missing == "indicator" and least <= lacks.sum() <= len(values) - least)
    fill = float(np.median(present)) if gaps else None
    different = np.unique(present)
    if options.bins is not None and len(different) > options.bins:
        edges = np.unique(np.quantile(present, np.linspace(0, 1, options.bins + 1)[1:-1]))
        edges = edges[edges > different[0]]
        if len(edges):
            return Bins(column=column, edges=tuple(edges.tolist()), fill=fill, indicator=marked)
    low, high = np.quantile(present, [options.clip or 0, 1 - (options.clip or 0)]).tolist()
    clips = options.clip is not None and low < high  # a column that is nearly constant would lose all it says
    return Number(
        column=column,
        fill=fill,
        indicator=marked,
        low=low if clips else None,
        high=high if clips else None,
    )


def _counts(values: Floats, levels: tuple[str, ...]) -> dict[str, int]:
    """How many rows have each level; a missing text is a level like others."""
    place = np.where(np.isnan(values), len(levels), values).astype(np.intp)
    return dict(zip((*levels, MISSING), np.bincount(place, minlength=len(levels) + 1).tolist(), strict=True))


def _texts(name: str, column: str, counts: Mapping[str, int], options: Preparation) -> Step:
    """The step of a column of texts, from how many training rows have each level."""
    rows = sum(counts.values())
    least = _least(rows, options)
    kept = [level for level, count in counts.items() if count >= least]
    kept.sort(key=lambda level: (-counts[level], level))
    if not kept:
        raise TableError(
            f"party {name}: texts that rows share were expected, no value of column {column} is in {least:.0f} of its "
            "training rows; drop it, or encode it as numbers"
        )
    if options.texts == "codes":
        return Codes(column=column, levels=tuple(kept))
    rare = rows - sum(counts[level] for level in kept)
    other = rare >= LEAST
    return Texts(column=column, base=kept[0], levels=tuple(sorted(kept[1:])), other=other)

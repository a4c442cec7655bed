"""The gain of a metric by the partners' columns: a run compared with a model of the leading party's columns alone.

The *leading party* decides when a training ends; usually it is the party with labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from securevfl.display import html
from securevfl.models.metrics import LOWER_IS_BETTER
from securevfl.models.paired_auc import (
    CRITICAL_VALUE,
    auc_correlation,
    difference_error,
    score_correlation,
    spread_within_classes,
)
from securevfl.training.local_baseline import LocalQuality
from securevfl.training.metric_words import label_of, main_metric
from securevfl.training.model_part import ModelPart


@dataclass(frozen=True)
class PartnerGain:
    """One metric of two models on the same rows.

    Attributes:
        metric: its name.
        alone: value of the model of the leading party's columns alone.
        alone_error: its standard error, or None if it is not known.
        together: value of the model of all parties' columns.
        together_error: its standard error, or None if it is not known.
        error: standard error of the difference, or None if it is not known.
        is_bound: whether `error` is an upper bound, because the correlation of the two values is not known.
    """

    metric: str
    alone: float
    alone_error: float | None
    together: float
    together_error: float | None
    error: float | None
    is_bound: bool = False

    @classmethod
    def of(cls, lead: ModelPart, alone: LocalQuality) -> PartnerGain | None:
        """Return the gain of the main metric that both models have; None if there is no such metric."""
        name = main_metric(name for name in lead.metrics if name in alone.metrics)
        if name is None:
            return None
        errors = alone.std_errors.get(name), lead.metric_std_errors.get(name)
        values = alone.metrics[name], lead.metrics[name]
        error = None
        paired = name == "auc" and lead.positive is not None and alone.spread is not None and bool(lead.calibration)
        if errors[0] is not None and errors[1] is not None:
            correlation = 0.0  # cautious: the true one is at least 0, because the models share their rows
            if paired and alone.spread is not None:
                of_scores = score_correlation(alone.spread, spread_within_classes(lead.calibration))
                correlation = auc_correlation(*values, of_scores)
            error = difference_error(errors[0], errors[1], correlation)
        return cls(name, values[0], errors[0], values[1], errors[1], error, is_bound=not paired)

    @property
    def gain(self) -> float:
        """The improvement: positive if the model of all columns is better."""
        return (self.alone - self.together) if self.metric in LOWER_IS_BETTER else (self.together - self.alone)

    @property
    def is_certain(self) -> bool:
        """Whether the model of all columns is better by more than chance, at a one-sided level of 5 %."""
        return self.error is not None and self.gain > CRITICAL_VALUE * self.error

    def sentence(self, partners: str) -> str:
        """Return the gain as text.

        Args:
            partners: names of the parties whose columns the leading party lacks.

        Returns:
            One or two sentences.
        """
        decimals = html.decimals_of(self.error)
        alone, together, change = (
            html.cell_text(value) if decimals is None else f"{value:,.{decimals}f}"
            for value in (self.alone, self.together, abs(self.gain))
        )
        if together == alone:
            return f"With the columns of {partners}, the {label_of(self.metric)} stays at {alone}."
        direction = "rises" if self.together > self.alone else "falls"
        kind = "a gain" if self.gain > 0 else "a loss"
        start = f"With the columns of {partners}, the {label_of(self.metric)} {direction} from {alone} to {together}, "
        start += f"{kind} of {change}"
        if self.error is None:
            return f"{start}. The uncertainty of this difference is not known."
        start += f" ± {self.error:,.{decimals or 0}f}{' at most' if self.is_bound else ''}."
        if self.is_certain:
            ratio = self.gain / self.error if self.error else math.inf
            return f"{start} The gain is {ratio:.1f} times its standard error, so it is hardly due to chance."
        return f"{start} The change is so small compared with its standard error that it may be due to chance."


def baseline_of(alone: LocalQuality | Mapping[str, float] | None) -> LocalQuality | None:
    """Return the figures of a model of one party alone; metrics without standard errors are allowed."""
    if alone is None or isinstance(alone, LocalQuality):
        return alone
    return LocalQuality(dict(alone))

"""Names and meanings of metrics for reports, and the notation of a metric with its standard error."""

from __future__ import annotations

from collections.abc import Iterable

from securevfl.models.metrics import LOWER_IS_BETTER

METRIC_LABELS = {
    "auc": "AUC",
    "log_loss": "log loss",
    "brier": "Brier score",
    "ks": "Kolmogorov-Smirnov distance",
    "pr_auc": "average precision",
    "lift": "lift of the top tenth",
    "error": "error rate",
    "r2": "R²",
    "rmse": "root mean squared error",
    "deviance": "mean deviance",
    "gini": "Gini index",
    "pinball": "quantile loss",
}
"""Short names of metrics; a metric without an entry keeps its name."""

MEANINGS = {
    "auc": "probability that a random positive row has a higher score than a random other row; 0.5 is guessing",
    "accuracy": "share of rows whose most probable class is right",
    "error": "share of rows whose most probable class is wrong",
    "log_loss": "mean negative logarithm of the probability of the right class",
    "loss": "mean value of the function that the training minimises",
    "brier": "mean squared error of the probability",
    "ks": "largest difference, over all thresholds, between the shares of positive and of other rows above a threshold",
    "pr_auc": "area under the curve of precision over recall; the share of positive rows is guessing",
    "lift": "share of positive rows in the tenth with the highest scores, divided by their share of all rows",
    "r2": "share of the variance of the labels that the model explains; 0 is their mean",
    "rmse": "typical error of a prediction, in the units of the labels",
    "deviance": "mean unit deviance of the predictions",
    "gini": "how well predictions rank the labels; 0 is guessing",
    "pinball": "mean quantile loss, in the units of the labels",
    "coverage": "share of labels at or below the prediction",
}
"""One sentence for each metric."""

MAIN_METRICS = "auc", "gini", "r2", "pinball", "coverage", "deviance", "rmse", "accuracy", "log_loss", "loss"
"""Metrics by preference: a report shows the first one that was measured in its largest chart."""

GUESSING = {"auc": 0.5}
"""Metrics of a model that guesses, if they are not 0: bars begin there."""

REPEATS = {"loss": "log_loss", "error": "accuracy"}
"""Metrics that show the same as another metric, which is shown instead."""

STD_ERROR_NOTE = (
    "The number after ± is the standard error: how much the value typically differs between samples of as many rows as "
    "were measured. In about 95 of 100 samples, the difference is at most twice that number."
)


def label_of(name: str) -> str:
    """Return the name of a metric as a report prints it, for example "ROC AUC" for `auc`."""
    return METRIC_LABELS.get(name, name.replace("_", " "))


def meaning_of(name: str) -> str:
    """Return what a metric measures, and which values are better; empty if no meaning is listed."""
    if name not in MEANINGS:
        return ""
    direction = "" if name == "coverage" else f" ({'lower' if name in LOWER_IS_BETTER else 'higher'} is better)"
    return MEANINGS[name] + direction


def main_metric(names: Iterable[str]) -> str | None:
    """Return which of these metrics a report shows first and largest; None if it shows none of them so."""
    available = list(names)
    return next((name for name in MAIN_METRICS if name in available), None)


def note_sentence(note: str) -> str:
    """Return a note that begins with a capital letter, or with the name of a metric as readers know it."""
    first, space, others = note.partition(" ")
    return label_of(first) + space + others if first in METRIC_LABELS else note[:1].upper() + note[1:]

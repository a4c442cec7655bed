"""Statements for the report of a training on secret shares: which metrics are not measured or imprecise, and why.

The evaluation of the final model opens (discloses to the party with labels) a sum of losses over all measured rows, and
pairs of a rounded score and a label in random order. Some metrics need more than that.
"""

from __future__ import annotations

from collections.abc import Collection

from securevfl.models.loss import Loss
from securevfl.models.pair_metrics import supports_pairs
from securevfl.models.rounded_labels import MAX_ROUNDED_ERROR, MIN_CODE_ROWS, MIN_ROUNDED_ROWS

ROUNDED_LABELS = (
    "gini, r2, rmse and calibration are computed from model outputs that are rounded to 64 levels, and from labels "
    "that are rounded at random to one of a few values. Their standard errors contain that; deviance and loss are exact"
)
_WEIGHED_PAIRS = "rows have weights or an exposure, and no party knows to which row an opened pair belongs"
_FEW_PAIRS = f"fewer than {MIN_ROUNDED_ROWS:,} rows are measured. Hold out more rows (test_fraction)"
_RARE_CODES = (
    f"labels are rounded to a few values before they are opened, and fewer than {MIN_CODE_ROWS} of the measured rows "
    "would have one of these values"
)
ONLY_LOSS = (
    'the job opens one sum of losses and no pairs of a score and a label (protocol.shares.metrics = "loss"), so '
    "metrics that need each row's score, such as the AUC, are not measured"
)
NO_ROW_OF_CLASSES = (
    "accuracy, log_loss, brier, precision and recall are not measured on shares for several classes, because they need "
    "the scores of all classes of a row, and the pairs of each class are opened in another random order"
)
EQUAL_ROWS = (
    "the metrics count every row once, although rows have weights in the training, because no party knows which row an "
    "opened score belongs to. Their standard errors are those of unweighted metrics"
)


def too_few_rows(rows: int, least: int) -> str:
    """Return the statement that metrics need at least `least` rows, and that there are only `rows`."""
    return (
        f"metrics need at least {least} rows and there are {rows}, so there are no metrics. Hold out more rows "
        "(test_fraction)"
    )


def far_labels(names: Collection[str], reach: float) -> str:
    """Return the statement that some labels are too far from their mean to measure the metrics of these names.

    Args:
        names: names of the metrics that cannot be measured.
        reach: the largest score that can be represented; labels beyond half of it are cut off.

    Returns:
        The statement.
    """
    return (
        f"{' and '.join(sorted(names))} cannot be measured on shares, because some labels are more than {reach / 2:g} "
        "standard deviations from their mean. Use huber or quantile, trim the labels, or train on their logarithm"
    )


def rounded_auc(bias: float, levels: int, *, subtracted: bool) -> str:
    """Return the statement by how much the rounding of opened scores changes the AUC.

    Args:
        bias: the mean AUC from rounded scores minus the AUC from exact scores, as estimated from the rounded scores.
        levels: the number of levels to which scores are rounded.
        subtracted: whether the reported AUC is without this estimate.

    Returns:
        The statement.
    """
    change = f"by about {bias:+.4f}" if abs(bias) >= 0.00005 else "by less than 0.0001"
    correction = f"the reported AUC is {'' if subtracted else 'not '}corrected for this"
    scores = f"auc is computed from scores that are rounded to {levels} levels"
    return f"{scores}. Rounding changes it {change}; {correction}"


def no_ranking(*, weighed: bool = False, few_rows: bool = False) -> str:
    """Return the statement that only the loss of a model of counts or amounts is measured.

    Args:
        weighed: whether the reason is that rows have weights or an exposure.
        few_rows: whether the reason is that there are few rows. Otherwise it is that a rounded label is rare.

    Returns:
        The statement.
    """
    reason = _WEIGHED_PAIRS if weighed else _FEW_PAIRS if few_rows else _RARE_CODES
    return (
        f"gini, calibration, r2, rmse and standard errors are not measured, because {reason}. run.evaluate measures "
        "them on rows whose scores this party may receive"
    )


def imprecise(names: Collection[str]) -> str:
    """Return the statement that these metrics are not measured, because rounded labels would make them imprecise."""
    return (
        f"{', '.join(names)} would be imprecise and {'are' if len(names) > 1 else 'is'} not measured, because labels "
        f"are rounded at random: the standard error would exceed {MAX_ROUNDED_ERROR:g}, or {MAX_ROUNDED_ERROR:.0%} of "
        "the mean label for the calibration. Hold out more rows (test_fraction)"
    )


def metric_notes(loss: Loss, *, weighted: bool) -> list[str]:
    """Return the statements that follow from the loss, for a training whose pairs are opened.

    Args:
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        weighted: whether the rows have weights.

    Returns:
        The statements.
    """
    notes = []
    if not supports_pairs(loss):
        return [ROUNDED_LABELS]
    if loss.classifies and not loss.single:
        notes.append(NO_ROW_OF_CLASSES)
    if weighted:
        notes.append(EQUAL_ROWS)
    return notes

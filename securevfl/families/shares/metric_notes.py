"""Statements for the report of a training on secret shares: which metrics are not measured, and why.

Pairs of a rounded score and a label are opened in random order, and sums of losses over all rows. Some metrics need
more than that.
"""

from __future__ import annotations

from collections.abc import Collection

from securevfl.models.loss import Loss
from securevfl.models.pair_metrics import supports_pairs

NO_RANKING = (
    "gini, calibration, r2, rmse and standard errors are not measured on shares for counts and amounts, because they "
    "need each row's prediction next to its label. An opened pair has one bit for the label, which is enough for a "
    "class and not for a count or an amount, so only the sum of losses is opened. Measure them with run.evaluate on "
    "rows whose scores this party may receive"
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
        names: the metrics.
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


def metric_notes(loss: Loss, *, weighted: bool) -> list[str]:
    """Return the statements that follow from the loss.

    Args:
        loss: the loss function that the training minimises (`securevfl.models.loss`).
        weighted: whether the rows have weights.

    Returns:
        The statements.
    """
    notes = []
    if not supports_pairs(loss):
        return [NO_RANKING]
    if loss.classifies and not loss.single:
        notes.append(NO_ROW_OF_CLASSES)
    if weighted:
        notes.append(EQUAL_ROWS)
    return notes

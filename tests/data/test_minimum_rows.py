"""Every minimum of rows includes itself: one row fewer, exactly the minimum, and one row more.

Each case states a minimum, and a function that returns whether a group of some rows is enough by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import securevfl as vfl
from securevfl.credit.drift import MIN_NEW_ROWS, measure_drift
from securevfl.credit.fairness_by_group import merge_small_groups
from securevfl.credit.monotone_bins import monotone_edges
from securevfl.data.baseline import numeric_baseline
from securevfl.data.bin_edges import MIN_BIN_ROWS, find_bin_edges
from securevfl.data.columns import columns_of
from securevfl.data.declared_bins import MIN_DECLARED_ROWS, check_bin_rows
from securevfl.data.woe import Woe, frequent_codes, number_bins, text_bins
from securevfl.disclosure.counts import RunShape
from securevfl.errors import TableError
from securevfl.families.run_facts import pooled_run_facts
from securevfl.families.shares.shares_job import opens_pairs
from securevfl.families.shares.shares_leaks import metric_leaks
from securevfl.families.shares.shares_outputs import measured_rows
from securevfl.models.group_metrics import MIN_GROUP_ROWS, metrics_by_group
from securevfl.models.losses import LOSSES
from securevfl.models.pair_metrics import MIN_TIED_ROWS, mean_average_precision
from securevfl.models.rounded_labels import MIN_ROUNDED_ROWS
from securevfl.models.standard_errors import MIN_CLASS_ROWS, auc_influence
from securevfl.protocols.shares.group_counts import MIN_SHARED_GROUP_ROWS
from securevfl.protocols.shares.opened_loss import MIN_LOSS_ROWS
from securevfl.protocols.shares.score_label_pairs import MIN_PAIR_ROWS, MIN_ROWS_PER_LABEL
from tests.builders import random_parties

ROWS = 40
OPTIONS = Woe(bins=10, rows=ROWS)


class Minimum(NamedTuple):
    """A minimum of rows, and whether a group with a number of rows is enough."""

    rows: int
    is_enough: Callable[[int], bool]


def monotone_group(rows: int, position: int) -> bool:
    """Return whether one of three values with rising rates has a monotone bin of its own."""
    sizes, rates = [300, 300, 300], (0.1, 0.5, 0.9)
    sizes[position] = rows
    values = np.repeat([0.0, 1.0, 2.0], sizes)
    positive = np.concatenate([np.arange(size) < rate * size for size, rate in zip(sizes, rates, strict=True)])
    return len(monotone_edges(values, positive, bins=10, min_rows=ROWS)) == 2


def accepted(check: Callable[[], Any], kind: type[Exception] = TableError) -> bool:
    try:
        check()
    except kind:
        return False
    return True


def new_rows_are_compared(rows: int) -> bool:
    base = numeric_baseline("a", np.arange(200.0))
    return accepted(lambda: measure_drift([base], columns_of("bank", np.arange(float(rows))[:, None], ["a"])))


def group_is_measured(rows: int) -> bool:
    groups = np.repeat(["large", "small"], [300, rows])
    y = np.arange(len(groups)) % 2
    return "small" in metrics_by_group(LOSSES["logistic"], y[:, None] - 0.5, y, np.array([0, 1]), groups)


def ranking_has_an_error(rows: int) -> bool:
    positive = np.arange(50) < rows
    both = [auc_influence(members, np.arange(50.0) % 7, np.ones(50)) for members in (positive, ~positive)]
    assert np.isfinite(both[0]).all() == np.isfinite(both[1]).all()
    return bool(np.isfinite(both[0]).all())


def rows_tie(rows: int) -> bool:
    """Return whether a level between empty ones counts as one score, so that the order of its rows does not matter."""
    score = np.concatenate([np.full(rows, 5.0), np.arange(0.0, 1.0, 0.125)])
    positive = np.append(np.arange(rows) % 3 == 0, np.zeros(8, bool))
    return math.isclose(mean_average_precision(positive, score), positive[:rows].mean())


@cache
def public_sizes() -> tuple[Any, RunShape]:
    job = vfl.Job(model="logistic", protocol="shares")
    return job, pooled_run_facts(job, random_parties(rows=4000)).shape


def leak_free(**sizes: int) -> bool:
    """Return whether a job with these public sizes has no leak of few measured rows."""
    job, shape = public_sizes()
    changed = replace(shape, information={}, **sizes)
    outputs = job.family.outputs(job, changed)
    return not any("be identified" in str(leak) for leak in metric_leaks(outputs, changed))


CASES: dict[str, Minimum] = {
    **{
        f"a monotone bin, {position}": Minimum(ROWS, lambda rows, k=k: monotone_group(rows, k))
        for k, position in enumerate(("first", "middle", "last"))
    },
    "a bin of evidence": Minimum(
        ROWS, lambda rows: len(number_bins("a", np.repeat([0.0, 1.0], [300, rows]), False, OPTIONS).edges) == 1
    ),
    "missing values of evidence": Minimum(
        ROWS, lambda rows: number_bins("a", np.repeat([0.0, np.nan], [300, rows]), True, OPTIONS).missing == 1
    ),
    "a code of evidence": Minimum(
        ROWS, lambda rows: frequent_codes(np.repeat([0.0, 96.0], [300, rows]), (("96", 96.0),), OPTIONS, 5) == [0]
    ),
    "a text of evidence": Minimum(
        ROWS, lambda rows: text_bins("a", {"x": 300, "y": rows}, OPTIONS).categories == ("x", "y")
    ),
    "rare texts of evidence": Minimum(
        ROWS, lambda rows: text_bins("a", {"x": 300, "y": rows - 7, "z": 7}, OPTIONS).bins == 2
    ),
    "a bin of numbers": Minimum(
        MIN_BIN_ROWS, lambda rows: len(find_bin_edges(np.repeat([0.0, 1.0], [300, rows]), 10)) == 1
    ),
    "a declared bin": Minimum(
        MIN_DECLARED_ROWS, lambda rows: accepted(lambda: check_bin_rows("bank", "a", [9, rows], MIN_DECLARED_ROWS))
    ),
    "new rows": Minimum(MIN_NEW_ROWS, new_rows_are_compared),
    "a measured group": Minimum(MIN_GROUP_ROWS, group_is_measured),
    "a counted group": Minimum(
        MIN_SHARED_GROUP_ROWS, lambda rows: "c" in merge_small_groups(np.repeat(["a", "b", "c"], [300, 300, rows]))[0]
    ),
    "merged groups": Minimum(
        MIN_SHARED_GROUP_ROWS,
        lambda rows: len(merge_small_groups(np.repeat(["a", "b", "c", "d"], [300, 250, rows - 50, 50]))[0]) == 3,
    ),
    "a ranked class": Minimum(MIN_CLASS_ROWS, ranking_has_an_error),
    "a tied level": Minimum(MIN_TIED_ROWS, rows_tie),
    "measured rows": Minimum(MIN_LOSS_ROWS, lambda rows: measured_rows(replace(public_sizes()[1], held_out=rows)) > 0),
    "pairs of rounded labels": Minimum(
        MIN_ROUNDED_ROWS, lambda rows: opens_pairs(vfl.Job(model="poisson", protocol="shares"), rows)
    ),
    "pairs": Minimum(MIN_PAIR_ROWS, lambda rows: leak_free(held_out=rows, rarest_label_rows=200)),
    "pairs of a label": Minimum(MIN_ROWS_PER_LABEL, lambda rows: leak_free(held_out=1000, rarest_label_rows=rows)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_minimum_of_rows_includes_itself(name: str) -> None:
    case = CASES[name]
    assert [case.is_enough(case.rows + step) for step in (-1, 0, 1)] == [False, True, True]

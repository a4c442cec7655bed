"""A notice about new rows whose texts are not those of the training, so that wrong scores do not go unnoticed.

A text that the training did not have, or had rarely, is scored like all rare texts. That is right for a few rows. If
hardly any text of a column is known, the table probably writes its texts differently: "002" of the training becomes 2
in a table that was read without types.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np

from securevfl.data.baseline import Baseline
from securevfl.data.column_transforms import GroupedTexts
from securevfl.data.columns import Columns
from securevfl.data.preparation import FittedPreparation
from securevfl.errors import DataNotice

MIN_TEXTS, MAX_UNKNOWN_SHARE = 20, 0.9
"""The notice needs at least this number of texts in the new rows, and more than this share of them unknown."""
MAX_CHANCE = 1e-3
"""The notice needs more unknown texts than rows like those of the training have with this probability."""


def warn_of_new_texts(
    party: str, preparation: FittedPreparation, table: Columns, baselines: Sequence[Baseline] = ()
) -> None:
    """Warn of text columns of new rows whose texts are hardly ever those of the training.

    Args:
        party: the name of the party.
        preparation: the preparation that was fitted in the training.
        table: the new rows, of all columns.
        baselines: summaries of the training rows, from which the share of rare texts in the training follows.
    """
    of_training = {item.column: item for item in baselines if item.categories is not None}
    for j, step in enumerate(preparation.steps):
        texts = table.categories.get(step.column)
        if not isinstance(step, GroupedTexts) or texts is None:
            continue
        known_texts = step.known_texts
        is_known = np.array([text in known_texts for text in texts], bool)
        positions = table.X[:, j][~np.isnan(table.X[:, j])].astype(np.intp)
        unknown = int(np.count_nonzero(~is_known[positions])) if len(positions) else 0
        if len(positions) < MIN_TEXTS or unknown <= MAX_UNKNOWN_SHARE * len(positions):
            continue
        baseline = of_training.get(step.column)
        rare_share = 0.0 if baseline is None else _rare_share(baseline, known_texts)
        if not _exceeds(unknown, len(positions), rare_share):
            continue
        warnings.warn(
            f"party {party}: {unknown:,} of {len(positions):,} values of column {step.column!r} were rare in the "
            f"training ({rare_share:.0%} of its rows had rare values) or did not occur in it, and are scored like rare "
            'values. If the table writes them in another way, such as 2 for "002", read the column as texts',
            DataNotice,
            stacklevel=4,
        )


def _rare_share(baseline: Baseline, known_texts: frozenset[str]) -> float:
    """Return the share of the training rows whose text was rare; an upper bound if not all texts were counted."""
    present = baseline.rows - baseline.missing
    known = sum(rows for text, rows in (baseline.categories or {}).items() if text in known_texts)
    return 1 - known / present if present else 0.0


def _exceeds(unknown: int, rows: int, expected: float) -> bool:
    """Return whether the share of unknown texts is above the expected one by more than chance (Chernoff's bound)."""
    share = unknown / rows
    if share <= expected:
        return False
    if expected == 0:
        return True
    divergence = share * math.log(share / expected)
    divergence += (1 - share) * math.log((1 - share) / (1 - expected)) if share < 1 else 0.0
    return rows * divergence > -math.log(MAX_CHANCE)

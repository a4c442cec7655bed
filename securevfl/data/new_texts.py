"""A notice about new rows whose texts are not those of the training, so that wrong scores do not go unnoticed.

A text that the training did not have, or had rarely, is scored like all rare texts. That is right for a few rows. If
hardly any text of a column is known, the table probably writes its texts differently: "002" of the training becomes 2
in a table that was read without types.
"""

from __future__ import annotations

import warnings

import numpy as np

from securevfl.data.column_transforms import GroupedTexts
from securevfl.data.columns import Columns
from securevfl.data.preparation import FittedPreparation
from securevfl.errors import DataNotice

MIN_TEXTS, MAX_UNKNOWN_SHARE = 20, 0.9
"""The notice needs at least this number of texts in the new rows, and more than this share of them unknown."""


def warn_of_new_texts(party: str, preparation: FittedPreparation, table: Columns) -> None:
    """Warn of text columns of new rows whose texts are hardly ever those of the training.

    Args:
        party: the name of the party.
        preparation: the preparation that was fitted in the training.
        table: all columns of the new rows.
    """
    for j, step in enumerate(preparation.steps):
        texts = table.categories.get(step.column)
        if not isinstance(step, GroupedTexts) or texts is None:
            continue
        is_known = np.array([text in step.known_texts for text in texts], bool)
        positions = table.X[:, j][~np.isnan(table.X[:, j])].astype(np.intp)
        unknown = int(np.count_nonzero(~is_known[positions])) if len(positions) else 0
        if len(positions) >= MIN_TEXTS and unknown > MAX_UNKNOWN_SHARE * len(positions):
            warnings.warn(
                f"party {party}: {unknown:,} of {len(positions):,} values of column {step.column!r} were rare in the "
                "training or did not occur in it, and are scored like rare values. If the table writes them in another "
                'way, such as 2 for "002", read the column as texts',
                DataNotice,
                stacklevel=4,
            )

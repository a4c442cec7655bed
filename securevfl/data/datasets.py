"""Sample tables, split by columns between parties: made-up loans and clicks, and those of scikit-learn (the extra
`sklearn`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from securevfl.base.extras import extra
from securevfl.data.clicks import Clicks, clicks
from securevfl.data.loans import loans
from securevfl.data.party import Party
from securevfl.errors import PartiesError

__all__ = ["Clicks", "breast_cancer", "clicks", "diabetes", "digits", "loans"]

NAMES = ("bank", "shop", "telco", "insurer", "clinic")


def breast_cancer(parties: int = 2) -> list[Party]:
    """569 rows x 30 columns, two classes (Wolberg et al. 1995); the first party holds the label."""
    return _split(_tables().load_breast_cancer(), parties)


def digits(parties: int = 2) -> list[Party]:
    """1,797 rows x 61 pixels that vary, ten classes; the first party holds the label."""
    return _split(_tables().load_digits(), parties)


def diabetes(parties: int = 2) -> list[Party]:
    """442 rows x 10 columns, a number to predict; the first party holds it."""
    return _split(_tables().load_diabetes(), parties)


def _tables() -> Any:
    return extra("sklearn.datasets", "sklearn", "a sample table")


def _split(table: object, parties: int) -> list[Party]:
    X, y = table.data, table.target  # type: ignore[attr-defined]
    columns = np.array([str(name).replace(" ", "_") for name in table.feature_names])  # type: ignore[attr-defined]
    vary = np.flatnonzero(X.min(axis=0) < X.max(axis=0))
    if not 2 <= parties <= len(vary):
        raise PartiesError(f"between 2 and {len(vary)} parties were expected, {parties} came")
    names = [NAMES[k] if k < len(NAMES) else f"party{k}" for k in range(parties)]
    return [
        Party(name, X[:, own], y if k == 0 else None, ids=np.arange(len(X)), columns=list(columns[own]))
        for k, (name, own) in enumerate(zip(names, np.array_split(vary, parties), strict=True))
    ]

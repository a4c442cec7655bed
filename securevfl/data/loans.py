"""A made-up table of people with a loan: what a bank and a shop know of each, and who paid late.

It needs nothing but numpy, so that the first command works wherever the package is installed. The log-odds of paying
late are a sum over the columns of both parties, a few of which have heavy tails as sums of money do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.data.party import Party

__all__ = ["loans"]

Draw = np.random.Generator
_Kind = Callable[[Draw, int], Floats]


def _amount(median: float, spread: float) -> _Kind:
    """Draw sums of money: log-normal."""
    return lambda draw, rows: np.round(median * np.exp(spread * draw.normal(size=rows)), 2)


def _count(mean: float) -> _Kind:
    """Whole numbers: Poisson."""
    return lambda draw, rows: draw.poisson(mean, rows).astype(np.float64)


def _share(low: float, high: float) -> _Kind:
    """Numbers evenly spread."""
    return lambda draw, rows: np.round(draw.uniform(low, high, rows), 3)


BANK: dict[str, tuple[_Kind, float]] = {
    "income": (_amount(2_800, 0.5), -0.8),
    "balance": (_amount(1_500, 1.2), -0.6),
    "loan": (_amount(9_000, 0.7), 0.7),
    "overdrafts": (_count(0.8), 0.8),
    "years_as_client": (_share(0, 30), -0.3),
    "age": (_share(20, 75), -0.2),
}
SHOP: dict[str, tuple[_Kind, float]] = {
    "orders": (_count(9), -0.3),
    "spent": (_amount(400, 0.9), -0.2),
    "paid_by_invoice": (_share(0, 1), 0.6),
    "reminders": (_count(0.5), 1.1),
    "returns": (_count(1.5), 0.3),
    "night_orders": (_count(1), 0.4),
    "months_since_order": (_count(4), 0.2),
    "newsletter": (lambda draw, rows: (draw.random(rows) < 0.4).astype(np.float64), -0.2),
}


def loans(rows: int = 3_000, *, seed: int = 0) -> list[Party]:
    """Make the table (rows x 14): a bank with 6 columns and the label, which is "late" for more than a quarter of the
    rows, and a shop with 8."""
    draw = np.random.default_rng(seed)
    tables, odds = [], np.full(rows, -1.9)
    for kinds in (BANK, SHOP):
        X = np.column_stack([kind(draw, rows) for kind, _ in kinds.values()])
        tables.append(X)
        shaped = np.arcsinh((X - np.median(X, axis=0)) / X.std(axis=0))
        odds += shaped / shaped.std(axis=0) @ np.array([weight for _, weight in kinds.values()])
    late = np.where(draw.random(rows) < 1 / (1 + np.exp(-odds)), "late", "on time")
    ids = np.arange(1, rows + 1)
    bank, shop = tables
    return [Party("bank", bank, late, ids=ids, columns=list(BANK)), Party("shop", shop, ids=ids, columns=list(SHOP))]

"""Sample tables, split by columns between parties: made-up loans and clicks, and those of scikit-learn (the extra
`sklearn`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.extras import import_extra
from securevfl.data.columns import Columns
from securevfl.data.party import Party
from securevfl.errors import DataError, PartiesError

# A made-up table of people with a loan: what a bank and a shop know of each, and who paid late.
#
# It needs nothing but numpy, so that the first command works wherever the package is installed. The log-odds of paying
# late are a sum over the columns of both parties, a few of which have heavy tails as sums of money do.


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


# Made-up clicks with a known truth: 13 columns of numbers and 26 of texts with long tails, as the Criteo tables have.
#
# Who sees an advertisement and whether a click follows is drawn in this order:
#
# 1. a row has traits u, `TRAITS` standard normal numbers that nobody sees
# 2. column j is a mixture of u' a_j, with a random direction a_j, and of noise of its own: a standard normal number z.
#    Columns of numbers are z. The level of a text is where z falls in a Zipf distribution: level l of m is taken with
#    probability proportional to (l + SHIFT)^-1, and m grows from 4 to 200 over the 26 columns
# 3. the log-odds of a click are those of a factorisation machine (Rendle 2010) on these columns,
#
#        b + SHARPNESS (main effects + interactions),    interactions = sum over i < j of <v_i, v_j>
#
#    with an effect and `RANK` numbers v for each level, and for each column of numbers times its number; columns weigh
#    more or less, by exponential draws. Both sums are standardised and make 1 - CROSSED and CROSSED of the variance.
#    b gives the rate asked for
# 4. the label is drawn by that probability
#
# Interactions are of all pairs of columns, so wherever a table is cut by columns many cross the cut, and no sum of what
# the parties know alone can hold them. As all probabilities are known, so is the AUC that no model surpasses but by
# luck (`Clicks.bayes_auc`). The same numbers give the same table, on any machine with the same numpy.


NUMBERS, TEXTS = 13, 26  # columns of each kind
LEVELS = np.geomspace(4, 200, TEXTS).round().astype(int)
SHIFT = 2.0  # of the ranks in the Zipf distribution: flattens its head
TRAITS, MIXED = 4, 0.5  # hidden numbers a row, and the share of a column's variance that comes from them
RANK = 2
CROSSED = 0.5
SHARPNESS = 2.0  # standard deviation of the log-odds
NAMES = ("publisher", "advertiser", "exchange", "telco", "shop")


@dataclass(frozen=True)
class Clicks:
    """A table of n rows: `numbers` (n x 13), `codes` (n x 26) from 0, the commonest level, labels y (n,) of 0 and 1,
    and the `probability` (n,) that each was drawn by."""

    numbers: Floats
    codes: NDArray[np.intp]
    y: NDArray[np.intp]
    probability: Floats

    @property
    def bayes_auc(self) -> float:
        """The AUC that ranking by the true probabilities is expected to have on these rows: the chance that of a row
        with a click and one without, drawn anew by their probabilities, the first is ranked higher."""
        p = np.sort(self.probability)
        below = np.cumsum(1 - p) - (1 - p)  # expected rows without a click that are ranked lower
        pairs = p.sum() * (1 - p).sum() - (p * (1 - p)).sum()
        return float((p * below).sum() / pairs)

    def parties(self, count: int = 2) -> list[Party]:
        """So many parties with every count-th column of each kind; the first one has the labels. Texts are texts, which
        a job prepares. DataError unless each has a column."""
        if not 2 <= count <= NUMBERS:
            raise DataError(f"clicks: between 2 and {NUMBERS} parties were expected, {count} came; ask for fewer")
        return [self._party(k, count) for k in range(count)]

    def _party(self, k: int, count: int) -> Party:
        numbers, texts = range(k, NUMBERS, count), range(k, TEXTS, count)
        X = np.column_stack([self.numbers[:, numbers], self.codes[:, texts]])
        levels = {f"c{j}": tuple(f"level {l:04d}" for l in range(LEVELS[j])) for j in texts}
        columns = Columns(X, [*(f"i{j}" for j in numbers), *levels], levels)
        name = NAMES[k] if k < len(NAMES) else f"party{k}"
        return Party(name, columns, None if k else self.y, ids=np.arange(len(X)))


def clicks(rows: int = 20_000, *, rate: float = 0.25, seed: int = 0) -> Clicks:
    """So many impressions, of which the share `rate` is expected to be clicked. DataError for numbers out of range."""
    if rows < 1 or not 0 < rate < 1:
        raise DataError(f"clicks: rows and a rate between 0 and 1 were expected, {rows} and {rate} came; correct them")
    truth, rows_of = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    directions = truth.normal(size=(TRAITS, NUMBERS + TEXTS))
    directions *= np.sqrt(MIXED / (directions**2).sum(axis=0))
    noise = rows_of.normal(size=(rows, NUMBERS + TEXTS))
    z = rows_of.normal(size=(rows, TRAITS)) @ directions + np.sqrt(1 - MIXED) * noise
    numbers, codes = z[:, :NUMBERS], np.empty((rows, TEXTS), np.intp)
    main, total, squares = np.zeros(rows), np.zeros((rows, RANK)), np.zeros((rows, RANK))
    for j in range(NUMBERS + TEXTS):
        weight = truth.exponential(size=2)  # of this column, in main effects and in interactions
        if j < NUMBERS:
            effects = numbers[:, j, None] * truth.normal(size=1 + RANK)
        else:
            size = LEVELS[j - NUMBERS]
            # where standard normal numbers (n,) fall in a Zipf distribution of so many levels, commonest first
            share = 1 / (np.arange(size) + SHIFT)
            edges = np.cumsum(share / share.sum())[:-1]
            codes[:, j - NUMBERS] = np.searchsorted(edges, _normal_share(z[:, j]), side="right").astype(np.intp)
            effects = truth.normal(size=(size, 1 + RANK))[codes[:, j - NUMBERS]]
        main += weight[0] * effects[:, 0]
        total += weight[1] * effects[:, 1:]
        squares += (weight[1] * effects[:, 1:]) ** 2
    crossed = (total**2 - squares).sum(axis=1) / 2  # sum over pairs, as Rendle's equation 5
    logits = SHARPNESS * (np.sqrt(1 - CROSSED) * _standard(main) + np.sqrt(CROSSED) * _standard(crossed))
    probability = 1 / (1 + np.exp(-(logits + _offset(logits, rate))))
    y = (rows_of.random(rows) < probability).astype(np.intp)
    return Clicks(numbers, codes, y, probability)


def _normal_share(z: Floats) -> Floats:
    """Return the share of a standard normal distribution below z, to 8 digits (Abramowitz and Stegun 1964, 7.1.26)."""
    x = np.abs(z) / np.sqrt(2)
    t = 1 / (1 + 0.3275911 * x)
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    half: Floats = tail * np.exp(-(x**2)) / 2
    return np.where(z > 0, 1 - half, half)


def _standard(values: Floats) -> Floats:
    spread = values.std()
    return (values - values.mean()) / (spread if spread > 0 else 1.0)


def _offset(logits: Floats, rate: float) -> float:
    """Find the offset that makes the mean probability the rate, by halving."""
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        if (1 / (1 + np.exp(-(logits + middle)))).mean() < rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2


PARTIES = ("bank", "shop", "telco", "insurer", "clinic")


def breast_cancer(parties: int = 2) -> list[Party]:
    """569 rows x 30 columns, two classes (Wolberg et al. 1995); the first party holds the label."""
    return _split("load_breast_cancer", parties)


def digits(parties: int = 2) -> list[Party]:
    """1,797 rows x 61 pixels that vary, ten classes; the first party holds the label."""
    return _split("load_digits", parties)


def diabetes(parties: int = 2) -> list[Party]:
    """442 rows x 10 columns, a number to predict; the first party holds it."""
    return _split("load_diabetes", parties)


def save(parties: Sequence[Party], pattern: str = "{}.csv") -> list[Path]:
    """Write each party's table to a CSV or Parquet file and return their paths: ids, labels as `y`, and its columns.

    pattern: the path, in which {} stands for the party's name.
    """
    pa, paths = import_module("pyarrow"), []
    for party in parties:
        ids = np.arange(len(party)) if party.ids is None else party.ids
        columns: dict[str, Any] = {"id": ids, **({} if party.y is None else {"y": party.y})}
        for name, values in zip(party.columns, np.asarray(party.X).T, strict=True):
            texts = party.levels.get(name)
            columns[name] = values if texts is None else [None if v != v else texts[int(v)] for v in values.tolist()]
        table = pa.table({name: pa.array(values, from_pandas=True) for name, values in columns.items()})
        paths.append(Path(pattern.format(party.name)))
        if paths[-1].suffix == ".parquet":
            import_module("pyarrow.parquet").write_table(table, paths[-1])
        else:
            import_module("pyarrow.csv").write_csv(table, paths[-1])
    return paths


def _split(load: str, parties: int) -> list[Party]:
    table = getattr(import_extra("sklearn.datasets", "sklearn", "a sample table"), load)()
    X, y = table.data, table.target
    columns = np.array([str(name).replace(" ", "_") for name in table.feature_names])
    vary = np.flatnonzero(X.min(axis=0) < X.max(axis=0))
    if not 2 <= parties <= len(vary):
        raise PartiesError(f"between 2 and {len(vary)} parties were expected, {parties} came")
    names = [PARTIES[k] if k < len(PARTIES) else f"party{k}" for k in range(parties)]
    return [
        Party(name, X[:, own], y if k == 0 else None, ids=np.arange(len(X)), columns=list(columns[own]))
        for k, (name, own) in enumerate(zip(names, np.array_split(vary, parties), strict=True))
    ]

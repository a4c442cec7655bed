"""Sample tables, split by columns between parties: generated loans, and tables of scikit-learn (extra `sklearn`).

The loans need nothing but numpy, so the first command of a new user works wherever the package is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.extras import import_extra
from securevfl.data.party import Party
from securevfl.errors import ConfigError, PartiesError, TableError

Draw = np.random.Generator
_Kind = Callable[[Draw, int], Floats]


def _amount(median: float, sigma: float) -> _Kind:
    """Return a log-normal distribution of amounts of money; `sigma` is the standard deviation of their logarithm."""
    return lambda draw, rows: np.round(median * np.exp(sigma * draw.normal(size=rows)), 2)


def _count(mean: float) -> _Kind:
    """Return a Poisson distribution of counts with this mean."""
    return lambda draw, rows: draw.poisson(mean, rows).astype(np.float64)


def _share(low: float, high: float) -> _Kind:
    """Return a uniform distribution between `low` and `high`, such as of a share of spending."""
    return lambda draw, rows: np.round(draw.uniform(low, high, rows), 3)


BANK_COLUMNS: dict[str, tuple[_Kind, float]] = {
    "income": (_amount(2_800, 0.5), -0.8),
    "balance": (_amount(1_500, 1.2), -0.6),
    "loan": (_amount(9_000, 0.7), 0.7),
    "overdrafts": (_count(0.8), 0.8),
    "years_as_client": (_share(0, 30), -0.3),
    "age": (_share(20, 75), -0.2),
}
SHOP_COLUMNS: dict[str, tuple[_Kind, float]] = {
    "orders": (_count(9), -0.3),
    "spent": (_amount(400, 0.9), -0.2),
    "paid_by_invoice": (_share(0, 1), 0.6),
    "reminders": (_count(0.5), 1.1),
    "returns": (_count(1.5), 0.3),
    "night_orders": (_count(1), 0.4),
    "months_since_order": (_count(4), 0.2),
    "newsletter": (lambda draw, rows: (draw.random(rows) < 0.4).astype(np.float64), -0.2),
}


_MIN_LOANS = 20


def loans(rows: int = 3_000, *, seed: int = 0) -> list[Party]:
    """Generate a table of people with a loan.

    The log-odds of a late payment are a sum of functions of the columns of both parties. Some columns, such as incomes,
    have heavy tails: a few very large values.

    Args:
        rows: the number of people, at least 20, so that all columns vary.
        seed: seed of the random numbers; equal seeds give equal tables.

    Returns:
        A bank with 6 columns and the label, which is "late" for more than a quarter of the rows, and a shop with 8.

    Raises:
        TableError: if there are fewer than 20 rows.
    """
    if rows < _MIN_LOANS:
        raise TableError(
            f"a table of {rows} generated loans would have columns that do not vary",
            f"ask for {_MIN_LOANS} rows or more",
            code="SVFL-TABLE-TOO-FEW-ROWS",
        )
    draw = np.random.default_rng(seed)
    tables, log_odds = [], np.full(rows, -1.9)
    for kinds in (BANK_COLUMNS, SHOP_COLUMNS):
        X = np.column_stack([kind(draw, rows) for kind, _ in kinds.values()])
        tables.append(X)
        shaped = np.arcsinh((X - np.median(X, axis=0)) / X.std(axis=0))
        log_odds += shaped / shaped.std(axis=0) @ np.array([weight for _, weight in kinds.values()])
    late = np.where(draw.random(rows) < 1 / (1 + np.exp(-log_odds)), "late", "on time")
    ids = np.arange(1, rows + 1)
    bank, shop = tables
    return [
        Party("bank", bank, late, ids=ids, columns=list(BANK_COLUMNS)),
        Party("shop", shop, ids=ids, columns=list(SHOP_COLUMNS)),
    ]


DATASET_PARTIES = ("bank", "shop", "telco", "insurer", "clinic")


def breast_cancer(parties: int = 2) -> list[Party]:
    """Return 569 rows x 30 columns with two classes (Wolberg et al. 1995); the first party has the labels."""
    return _split("load_breast_cancer", parties)


def digits(parties: int = 2) -> list[Party]:
    """Return a table of 1,797 rows x 61 pixels that vary, with ten classes; the first party has the labels."""
    return _split("load_digits", parties)


def diabetes(parties: int = 2) -> list[Party]:
    """Return a table of 442 rows x 10 columns and a number to predict, which the first party has."""
    return _split("load_diabetes", parties)


def save(parties: Sequence[Party], pattern: str = "{}.csv") -> list[Path]:
    """Write each party's table to a CSV or Parquet file: its ids as `id`, labels as `y`, and columns.

    Args:
        parties: the parties, each with its name and its table.
        pattern: the path, in which {} is replaced by the name of the party.

    Returns:
        The paths.

    Raises:
        ConfigError: if two parties would have the same path.
        TableError: if a column has the name of the ids or labels.
    """
    pa, paths = import_module("pyarrow"), list[Path]()
    if len({pattern.format(party.name) for party in parties}) < len(parties):
        raise ConfigError(
            "the tables of several parties would be written to one file",
            "write {} in the pattern where the name of the party belongs",
            code="SVFL-FILE-EXISTS",
        )
    for party in parties:
        reserved = {"id"} if party.y is None else {"id", "y"}
        if clashing := reserved.intersection(party.columns):
            raise TableError(
                f"party {party.name}: a column has the name {min(clashing)}, which the file uses for ids or labels",
                "rename the column",
                code="SVFL-TABLE-HEADER",
                party=party.name,
            )
        ids = np.arange(len(party)) if party.ids is None else party.ids
        columns: dict[str, Any] = {"id": ids, **({} if party.y is None else {"y": party.y})}
        for name, values in zip(party.columns, np.asarray(party.X).T, strict=True):
            texts = party.categories.get(name)
            columns[name] = values if texts is None else [None if v != v else texts[int(v)] for v in values.tolist()]
        table = pa.table({name: pa.array(values, from_pandas=True) for name, values in columns.items()})
        paths.append(Path(pattern.format(party.name)))
        if paths[-1].suffix == ".parquet":
            import_module("pyarrow.parquet").write_table(table, paths[-1])
        else:
            import_module("pyarrow.csv").write_csv(table, paths[-1])
    return paths


def _split(load: str, parties: int) -> list[Party]:
    """Load a table of scikit-learn and split its columns between `parties` parties; the first gets the labels."""
    table = getattr(import_extra("sklearn.datasets", "sklearn", "a sample table"), load)()
    X, y = table.data, table.target
    columns = np.array([str(name).replace(" ", "_") for name in table.feature_names])
    vary = np.flatnonzero(X.min(axis=0) < X.max(axis=0))
    if not 2 <= parties <= len(vary):
        raise PartiesError(
            f"the table cannot be split between {parties} parties",
            f"ask for 2 to {len(vary)} parties",
            code="SVFL-PARTIES-COUNT",
        )
    names = [DATASET_PARTIES[k] if k < len(DATASET_PARTIES) else f"party{k}" for k in range(parties)]
    return [
        Party(name, X[:, block], y if k == 0 else None, ids=np.arange(len(X)), columns=list(columns[block]))
        for k, (name, block) in enumerate(zip(names, np.array_split(vary, parties), strict=True))
    ]

"""The real tables of the benchmarks, as parties. The tables themselves are not part of the project."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.join_tables import align
from securevfl.data.party import Party
from securevfl.errors import DataError

NAMES = ("bank", "shop")


def read(path: Path) -> dict[str, list[str]]:
    """Read a CSV file (gz or not) by column. DataError if it is missing."""
    if not path.is_file():
        raise DataError(f"{path} does not exist", "pass the folder of the tables", code="SVFL-TABLE-UNREADABLE")
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        rows = csv.reader(file)
        head = next(rows)
        return dict(zip(head, map(list, zip(*rows, strict=True)), strict=True))


def encode(name: str, values: Sequence[str]) -> tuple[list[str], Floats]:
    """Encode a column as numbers. Missing numbers become the median and a flag, and each category of texts a column."""
    empty = np.array([value == "" for value in values])
    try:
        numbers = np.array([float(value) if value else np.nan for value in values])
    except ValueError:
        kinds = sorted(set(values))[1:]  # the first one follows from the zeros of the others
        return [f"{name}={kind}" for kind in kinds], np.array([[v == kind for kind in kinds] for v in values], float)
    filled = np.where(empty, np.nanmedian(numbers), numbers)
    if 0.01 < empty.mean() < 0.99:
        return [name, f"{name}?"], np.column_stack([filled, empty])
    return [name], filled[:, None]


def table(columns: dict[str, list[str]], keep: Sequence[str]) -> tuple[list[str], Floats]:
    """Join encoded columns, without constant ones."""
    parts = [encode(name, columns[name]) for name in keep]
    names = [name for part, _ in parts for name in part]
    X = np.hstack([block for _, block in parts])
    vary = np.flatnonzero(X.min(axis=0) < X.max(axis=0))
    return [names[j] for j in vary], X[:, vary]


def shuffled(parties: Sequence[Party], seed: int) -> list[Party]:
    """Return the rows in the random order of each seed, and without ids, so that each seed holds out other rows."""
    order = np.random.default_rng(seed).permutation(len(parties[0]))
    return [
        Party(
            party.name, party.X[order], None if party.y is None else party.y[order], columns=party.columns, aligned=True
        )
        for party in parties
    ]


def support2(data: Path, parties: int = 2) -> list[Party]:
    """Return 9,105 ICU patients; the label is death in hospital. More than two parties share the columns evenly."""
    columns = read(data / "support2.csv.gz")
    y, ids = np.array(columns["y"], float).astype(int), np.array(columns["id"])
    selected = [[c for c in columns if c.startswith("g_")], [c for c in columns if c.startswith("h_")]]
    if parties != 2:
        selected = [list(part) for part in np.array_split([*selected[0], *selected[1]], parties)]
    generated = []
    for k, keep in enumerate(selected):
        names, X = table(columns, keep)
        generated.append(Party(f"p{k}" if k > 1 else NAMES[k], X, y if k == 0 else None, ids=ids, columns=names))
    return generated


def default_credit(data: Path) -> list[Party]:
    """Return 30,000 credit card clients in FATE's two files, joined by id; the label is default in the next month."""
    return _two_files(data, "default_credit")


def epsilon_5k(data: Path) -> list[Party]:
    """Return 5,000 generated rows of 20 and 80 columns, in FATE's split."""
    return _two_files(data, "epsilon_5k")


def adult(data: Path) -> list[Party]:
    """Return 48,842 people with numbers and texts as in the file; the label is an income above 50,000 dollars."""
    columns = read(data / "adult.csv.gz")
    y, generated = np.array(columns["y"], float).astype(int), []
    for k, side in enumerate("gh"):
        names = [name for name in columns if name.startswith(f"{side}_")]
        X = np.column_stack([np.array([value or None for value in columns[name]], object) for name in names])
        generated.append(Party(NAMES[k], X, None if k else y, columns=names, aligned=True))
    return generated


def archive(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of an npz file. DataError if it is missing."""
    if not path.is_file():
        raise DataError(f"{path} does not exist", "pass the folder of the tables", code="SVFL-TABLE-UNREADABLE")
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def dealt(data: Path, name: str, parties: int) -> list[Party]:
    """Distribute the columns of a binary table (`name`.npz) that vary, at random, to a number of parties."""
    file = archive(data / f"{name}.npz")
    X, y = file["X"].astype(np.float64), (file["y"] > 0).astype(np.intp)
    vary = np.random.default_rng(0).permutation(np.flatnonzero(X.min(axis=0) < X.max(axis=0)))
    hands = np.array_split(vary, parties)
    return [Party(f"p{k}", X[:, hand], None if k else y, aligned=True) for k, hand in enumerate(hands)]


def _two_files(data: Path, name: str) -> list[Party]:
    generated = []
    for party, file in zip(NAMES, ("guest", "host"), strict=True):
        columns = read(data / f"{name}_hetero_{file}.csv.gz")
        names, X = table(columns, [c for c in columns if c.startswith("x")])
        y = np.array(columns["y"], float).astype(int) if "y" in columns else None
        generated.append(Party(party, X, y, ids=np.array(columns["id"]), columns=names))
    return generated


def _joined(parties: list[Party]) -> list[Party]:
    return list(align(parties))


READERS: dict[str, Callable[[Path], list[Party]]] = {
    "default_credit": lambda data: _joined(default_credit(data)),
    "epsilon_5k": lambda data: _joined(epsilon_5k(data)),
    "support2": support2,
    "a9a-2": partial(dealt, name="a9a", parties=2),
    "a9a-3": partial(dealt, name="a9a", parties=3),
    "a9a-5": partial(dealt, name="a9a", parties=5),
    "phishing-3": partial(dealt, name="phishing", parties=3),
}

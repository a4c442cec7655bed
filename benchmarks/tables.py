"""The real tables of the benchmarks, as parties. The tables themselves are not part of the project."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securevfl import Party

Floats = NDArray[np.float64]
NAMES = ("bank", "shop")


def read(path: Path) -> dict[str, list[str]]:
    """A CSV file (gz or not) by column."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        rows = csv.reader(file)
        head = next(rows)
        return dict(zip(head, map(list, zip(*rows, strict=True)), strict=True))


def encode(name: str, values: Sequence[str]) -> tuple[list[str], Floats]:
    """A column as numbers: median for what is missing, with a flag; one column a category for text."""
    empty = np.array([value == "" for value in values])
    try:
        numbers = np.array([float(value) if value else np.nan for value in values])
    except ValueError:
        kinds = sorted(set(values))[1:]  # the first is told by the zeros of the others
        return [f"{name}={kind}" for kind in kinds], np.array([[v == kind for kind in kinds] for v in values], float)
    filled = np.where(empty, np.nanmedian(numbers), numbers)
    if 0.01 < empty.mean() < 0.99:
        return [name, f"{name}?"], np.column_stack([filled, empty])
    return [name], filled[:, None]


def table(columns: dict[str, list[str]], keep: Sequence[str]) -> tuple[list[str], Floats]:
    """Encoded columns side by side, constant ones left out."""
    parts = [encode(name, columns[name]) for name in keep]
    names = [name for part, _ in parts for name in part]
    X = np.hstack([block for _, block in parts])
    vary = np.flatnonzero(X.min(axis=0) < X.max(axis=0))
    return [names[j] for j in vary], X[:, vary]


def shuffled(parties: Sequence[Party], seed: int) -> list[Party]:
    """The same rows in another order for each seed and without ids, so that each seed holds out other rows."""
    order = np.random.default_rng(seed).permutation(len(parties[0]))
    return [
        Party(own.name, own.X[order], None if own.y is None else own.y[order], columns=own.columns, aligned=True)
        for own in parties
    ]


def support2(data: Path, parties: int = 2) -> list[Party]:
    """9,105 ICU patients, death in hospital. Two parties as the file splits it; more share its columns evenly."""
    columns = read(data / "support2.csv.gz")
    y, ids = np.array(columns["y"], float).astype(int), np.array(columns["id"])
    own = [[c for c in columns if c.startswith("g_")], [c for c in columns if c.startswith("h_")]]
    if parties != 2:
        own = [list(part) for part in np.array_split([*own[0], *own[1]], parties)]
    made = []
    for k, keep in enumerate(own):
        names, X = table(columns, keep)
        made.append(Party(f"p{k}" if k > 1 else NAMES[k], X, y if k == 0 else None, ids=ids, columns=names))
    return made


def default_credit(data: Path) -> list[Party]:
    """30,000 credit card clients, default next month; FATE's split, joined on id by whoever asks."""
    made = []
    for name, file in zip(NAMES, ("guest", "host"), strict=True):
        columns = read(data / f"default_credit_hetero_{file}.csv.gz")
        names, X = table(columns, [c for c in columns if c.startswith("x")])
        y = np.array(columns["y"], float).astype(int) if "y" in columns else None
        made.append(Party(name, X, y, ids=np.array(columns["id"]), columns=names))
    return made

"""Real tables at two parties, with texts, missing values and codes as in the files.

The defaults of jobs were chosen on six of these tables (`SIX`).
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import securevfl as vfl


def read(path: Path) -> tuple[list[str], NDArray[Any]]:
    """Return the names of the columns of a CSV file and its values as texts, None if one is missing."""
    with gzip.open(path, "rt") as file:
        names, *rows = csv.reader(file)
    return names, np.array([[value or None for value in row] for row in rows], dtype=object)


def one_file(name: str, folder: Path) -> list[vfl.Party]:
    """Return two parties with columns of one file: those whose names begin with g_, and those that begin with h_."""
    names, X = read(folder / f"{name}.csv.gz")
    y = X[:, names.index("y")].astype(float).astype(int)
    local, other = ([j for j, name in enumerate(names) if name.startswith(mark)] for mark in ("g_", "h_"))
    ids = X[:, 0].tolist()
    return [
        vfl.Party("bank", X[:, local], y, ids=ids, columns=[names[j] for j in local]),
        vfl.Party("shop", X[:, other], ids=ids, columns=[names[j] for j in other]),
    ]


def two_files(name: str, folder: Path) -> list[vfl.Party]:
    """Return two parties with the files of "guest" and "host", joined by id."""
    generated = []
    for party, side in (("bank", "guest"), ("shop", "host")):
        names, X = read(folder / f"{name}_hetero_{side}.csv.gz")
        selected = [j for j, column in enumerate(names) if column.startswith("x")]
        y = X[:, names.index("y")].astype(float).astype(int) if "y" in names else None
        generated.append(vfl.Party(party, X[:, selected].astype(float), y, ids=X[:, 0].tolist()))
    return vfl.align(generated)


def in_one_npz(name: str, folder: Path) -> list[vfl.Party]:
    """Return two parties with the columns that an npz file lists under g and h."""
    with np.load(folder / f"{name}.npz") as file:
        X, y, g, h = file["X"].astype(float), (file["y"] > 0).astype(int), file["g"], file["h"]
    ids = np.arange(len(y))
    return [vfl.Party("bank", X[:, g], y, ids=ids), vfl.Party("shop", X[:, h], ids=ids)]


TABLES: dict[str, Callable[[Path], list[vfl.Party]]] = {
    "default_credit": partial(two_files, "default_credit"),
    "a9a": partial(in_one_npz, "a9a"),
    "ijcnn1": partial(in_one_npz, "ijcnn1"),
    "phishing": partial(in_one_npz, "phishing"),
    "adult": partial(one_file, "adult"),
    "support2": partial(one_file, "support2"),
    "breast": partial(two_files, "breast"),
}
SIX = tuple(TABLES)[:6]

"""The head of a stored table: what it says of itself, before its rows.

A line of MAGIC and one of JSON, labels and places as numpy saves them, the register's row numbers (8 bytes a row), the
digests of the ids (16), and nothing up to the next multiple of ALIGNMENT, from where rows lie.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from securevfl.data.ids import ID_DIGEST
from securevfl.data.register import Register
from securevfl.data.schedule import Rows
from securevfl.errors import DataError

MAGIC = b"securevfl.table/4\n"
ALIGNMENT = 4096


@dataclass(frozen=True)
class Head:
    """The head of a stored table of `rows` rows: its labels `y` and the place of each row, if it has them; the other
    fields are as in `Party`.

    stamp: what the table was made from. register_at, ids_at, rows_at: where these begin in the file, in bytes.
    """

    columns: list[str]
    constant: list[str]
    rows: int
    kind: np.dtype[Any]
    y: NDArray[Any] | None
    place: Rows | None
    order: bytes
    key: bytes = field(repr=False)
    content: str
    stamp: str
    register_at: int
    ids_at: int
    rows_at: int

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and of columns, (rows, d)."""
        return self.rows, len(self.columns)


def read_head(path: Path) -> Head:
    """Read the head of a stored table that is there and whole. Raises DataError if it is not."""
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise ValueError
            says = json.loads(file.readline())
            y = np.load(file, allow_pickle=False) if says["labels"] else None
            place = np.load(file, allow_pickle=False) if says["places"] else None
            rows, kind = int(says["rows"]), np.dtype(says["kind"])
            columns, constant = list(says["columns"]), list(says["constant"])
            register_at = file.tell()
            ids_at = register_at + 8 * rows
            rows_at = -(-(ids_at + ID_DIGEST * rows) // ALIGNMENT) * ALIGNMENT
            if file.seek(0, os.SEEK_END) != rows_at + rows * len(columns) * kind.itemsize:
                raise ValueError
        order, key = (bytes.fromhex(says[each]) for each in ("order", "key"))
        content, stamp = str(says["content"]), str(says["stamp"])
        return Head(columns, constant, rows, kind, y, place, order, key, content, stamp, register_at, ids_at, rows_at)
    except OSError as cause:
        raise DataError(f"{path}: a stored table was expected there ({cause.strerror}); store it first") from None
    except (ValueError, KeyError, TypeError, EOFError):
        raise DataError(f"{path}: a whole table of {MAGIC.decode().strip()} was expected; store it again") from None


@dataclass(frozen=True)
class NewHead:
    """What the head of a table says that is being stored; as in `Head`, but for places: row numbers in the order in
    which they lie, None for the shared order."""

    columns: list[str]
    constant: list[str]
    kind: np.dtype[Any]
    y: NDArray[Any] | None
    places: Rows | None
    order: bytes
    content: str
    stamp: str


def write_head(file: BinaryIO, new: NewHead, register: Register) -> None:
    """Write the head that `read_head` reads."""
    says = {
        "columns": new.columns,
        "constant": new.constant,
        "rows": register.rows,
        "kind": new.kind.str,
        "labels": new.y is not None,
        "places": new.places is not None,
        "order": new.order.hex(),
        "key": register.key.hex(),
        "content": new.content,
        "stamp": new.stamp,
    }
    file.write(MAGIC + json.dumps(says).encode() + b"\n")
    if new.y is not None:
        np.save(file, new.y, allow_pickle=False)
    if new.places is not None:
        place = np.empty(len(new.places), "<i8")
        place[new.places] = np.arange(len(new.places))
        np.save(file, place, allow_pickle=False)
    assert register.order is not None, "a stored table has ids"
    file.write(register.order.astype("<i8", copy=False).data)
    assert register.ids is not None, "a stored table has ids"
    for digests in register.ids():
        file.write(np.ascontiguousarray(digests).data)
    file.write(bytes(-file.tell() % ALIGNMENT))
    file.flush()

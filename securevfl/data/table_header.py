"""Header and checksum of a stored table (`securevfl.data.store`).

Layout of the file: a line MAGIC, a line of JSON, labels and positions as numpy saves them, the row numbers sorted by id
(8 bytes a row), the digests of the ids (16 bytes a row), zeros up to the next multiple of ALIGNMENT, the rows, and a
SHA-256 digest of everything before. Digests and sorted row numbers are the *register* (`securevfl.data.register`).
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from securevfl.data.column_types import ColumnType, Types
from securevfl.data.columns import Categories
from securevfl.data.id_keys import ID_DIGEST
from securevfl.data.register import Register
from securevfl.data.schedule import Rows
from securevfl.errors import ConfigError, DataError

MAGIC = b"securevfl.table/6\n"
ALIGNMENT = 4096
CHECKSUM_BYTES = 32


@dataclass(frozen=True)
class TableHeader:
    """The header of a stored table.

    Attributes:
        columns: the names of the columns.
        constant: the columns that do not vary.
        rows: the number of rows.
        kind: the numpy type of the stored numbers, float32 or float64.
        y: the labels (n,), or None.
        position: the position of each row in the file (n,); None if rows are stored in order.
        order: digest of the ids in their order.
        key: the key of the table's register, from which pseudorandom numbers of rows are computed.
        content: digest of the columns.
        stamp: digest of the source file, the options and the job from which the table was written.
        categories: the sorted texts of each text column.
        dates: names of the date columns.
        gaps: names of the columns that have missing values.
        types: the types of the columns.
        register_at: offset of the register in the file, in bytes.
    """

    columns: list[str]
    constant: list[str]
    rows: int
    kind: np.dtype[Any]
    y: NDArray[Any] | None
    position: Rows | None
    order: bytes
    key: bytes = field(repr=False)
    content: str
    stamp: str
    categories: Categories = field(default_factory=dict, repr=False)
    dates: frozenset[str] = frozenset()
    gaps: frozenset[str] = frozenset()
    types: Types = field(default_factory=dict)
    register_at: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns, (n, d)."""
        return self.rows, len(self.columns)

    @property
    def ids_at(self) -> int:
        """Position in the file, in bytes, at which the digests of ids begin."""
        return self.register_at + 8 * self.rows

    @property
    def rows_at(self) -> int:
        """Position in the file, in bytes, at which the rows begin."""
        return -(-(self.ids_at + ID_DIGEST * self.rows) // ALIGNMENT) * ALIGNMENT


def read_header(path: Path) -> TableHeader:
    """Read the header of a stored table, and check that the file has the right size.

    Args:
        path: the stored table.

    Returns:
        The header.

    Raises:
        DataError: if the file does not exist, or is not a complete stored table of this version.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise ValueError
            entries = json.loads(file.readline())
            y = np.load(file, allow_pickle=False) if entries["labels"] else None
            position = np.load(file, allow_pickle=False) if entries["positions"] else None
            header = TableHeader(
                columns=list(entries["columns"]),
                constant=list(entries["constant"]),
                rows=int(entries["rows"]),
                kind=np.dtype(entries["kind"]),
                y=y,
                position=position,
                order=bytes.fromhex(entries["order"]),
                key=bytes.fromhex(entries["key"]),
                content=str(entries["content"]),
                stamp=str(entries["stamp"]),
                categories={name: tuple(texts) for name, texts in entries["categories"].items()},
                dates=frozenset(entries["dates"]),
                gaps=frozenset(entries["gaps"]),
                types={name: ColumnType(**kind) for name, kind in entries["types"].items()},
                register_at=file.tell(),
            )
            n, d = header.shape
            if file.seek(0, os.SEEK_END) != header.rows_at + n * d * header.kind.itemsize + CHECKSUM_BYTES:
                raise ValueError
            return header
    except OSError as cause:
        raise DataError(
            f"{path}: there is no stored table ({cause.strerror})",
            "store the table first",
            code="SVFL-FILE-UNUSABLE",
            file=str(path),
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, ConfigError):
        raise DataError(
            f"{path} is not a complete table of the format {MAGIC.decode().strip()}",
            "store the table again",
            code="SVFL-FILE-DAMAGED",
            file=str(path),
        ) from None


def write_header(file: BinaryIO, header: TableHeader, register: Register) -> None:
    """Write the header that `read_header` reads, and the register of a table with ids."""
    entries = {name: getattr(header, name) for name in ("columns", "constant", "rows", "content", "stamp")}
    entries |= {"kind": header.kind.str, "labels": header.y is not None, "positions": header.position is not None}
    entries |= {"order": header.order.hex(), "key": header.key.hex(), "dates": sorted(header.dates)}
    entries |= {"gaps": sorted(header.gaps)}
    entries |= {"categories": {name: list(texts) for name, texts in header.categories.items()}}
    entries |= {"types": {name: kind.model_dump(exclude_defaults=True) for name, kind in header.types.items()}}
    file.write(MAGIC + json.dumps(entries).encode() + b"\n")
    for array in (header.y, header.position):
        if array is not None:
            np.save(file, array, allow_pickle=False)
    assert register.order is not None, "a stored table has ids"
    file.write(register.order.astype("<i8", copy=False).data)
    assert register.ids is not None, "a stored table has ids"
    for digests in register.ids():
        file.write(np.ascontiguousarray(digests).data)
    file.write(bytes(-file.tell() % ALIGNMENT))
    file.flush()


def verify_checksum(path: Path) -> None:
    """Read a stored table completely and verify its checksum; do nothing if there is no file.

    Args:
        path: the stored table.

    Raises:
        DataError: if the file was altered.
    """
    with suppress(OSError), path.open("rb") as file:
        digest = file_digest(file, path.stat().st_size - CHECKSUM_BYTES)
        if file.read() != digest:
            raise DataError(
                f"{path}: this copy of a table was altered by the disk or by another program",
                "store the table again",
                code="SVFL-TABLE-CHANGED",
                file=str(path),
            )


def file_digest(file: BinaryIO, size: int) -> bytes:
    """Return the SHA-256 digest of the first `size` bytes of a file. The next read begins after these bytes."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0 and (piece := file.read(min(size, 1 << 20))):
        digest.update(piece)
        size -= len(piece)
    return digest.digest()

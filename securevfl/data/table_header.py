"""Header and checksum of a stored table (`securevfl.data.store`).

The file has a line MAGIC, a line of JSON, labels and positions as numpy saves them, the row numbers in order of ids
(8 bytes a row), the digests of the ids (16 bytes a row) and zeros up to the next multiple of ALIGNMENT. The rows
follow, and a SHA-256 digest of everything before it.
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

from securevfl.data.id_keys import ID_DIGEST
from securevfl.data.register import Register
from securevfl.data.schedule import Rows
from securevfl.errors import DataError

MAGIC = b"securevfl.table/5\n"

ALIGNMENT = 4096

CHECK = 32  # bytes of the digest at the end


@dataclass(frozen=True)
class TableHeader:
    """The head of a stored table of `rows` rows: its labels `y` and the place of each row, if it has them; the other
    fields are as in `Party`.

    stamp: what the table was made from. register_at: where the register begins in the file, in bytes.
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
    register_at: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and of columns, (rows, d)."""
        return self.rows, len(self.columns)

    @property
    def ids_at(self) -> int:
        """The number of bytes of the file before the digests of ids."""
        return self.register_at + 8 * self.rows

    @property
    def rows_at(self) -> int:
        """The number of bytes of the file before the rows."""
        return -(-(self.ids_at + ID_DIGEST * self.rows) // ALIGNMENT) * ALIGNMENT


def read_header(path: Path) -> TableHeader:
    """Read the head of a stored table that is there and whole. Raises DataError if it is not."""
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise ValueError
            says = json.loads(file.readline())
            y = np.load(file, allow_pickle=False) if says["labels"] else None
            place = np.load(file, allow_pickle=False) if says["places"] else None
            head = TableHeader(
                columns=list(says["columns"]),
                constant=list(says["constant"]),
                rows=int(says["rows"]),
                kind=np.dtype(says["kind"]),
                y=y,
                place=place,
                order=bytes.fromhex(says["order"]),
                key=bytes.fromhex(says["key"]),
                content=str(says["content"]),
                stamp=str(says["stamp"]),
                register_at=file.tell(),
            )
            n, d = head.shape
            if file.seek(0, os.SEEK_END) != head.rows_at + n * d * head.kind.itemsize + CHECK:
                raise ValueError
            return head
    except OSError as cause:
        raise DataError(f"{path}: a stored table was expected there ({cause.strerror}); store it first") from None
    except (ValueError, KeyError, TypeError, EOFError):
        raise DataError(f"{path}: a whole table of {MAGIC.decode().strip()} was expected; store it again") from None


def write_header(file: BinaryIO, head: TableHeader, register: Register) -> None:
    """Write the head that `read_header` reads."""
    says = {name: getattr(head, name) for name in ("columns", "constant", "rows", "content", "stamp")}
    says |= {"kind": head.kind.str, "labels": head.y is not None, "places": head.place is not None}
    says |= {"order": head.order.hex(), "key": head.key.hex()}
    file.write(MAGIC + json.dumps(says).encode() + b"\n")
    for array in (head.y, head.place):
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
    """Read a stored table from end to end, if one is there. DataError if a bit of it is not as it was written."""
    with suppress(OSError), path.open("rb") as file:
        found = file_digest(file, path.stat().st_size - CHECK)
        if file.read() != found:
            raise DataError(
                f"{path}: this copy of a table is not as it was written, the disk or another program has changed it; "
                "store it again"
            )


def file_digest(file: BinaryIO, size: int) -> bytes:
    """Return the digest of the file's first bytes, which stands behind them."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0 and (piece := file.read(min(size, 1 << 20))):
        digest.update(piece)
        size -= len(piece)
    return digest.digest()

"""Private alignment as a user calls it: each party brings its ids, each takes home its own row numbers.

    rows = align_privately("shop", ids, channel, active="bank", passives=["shop"])
    write_rows("shop.parquet", rows)                         # shop.parquet.rows.npy

Row rows[i] of one party and row rows[i] of another are about the same id. What each party learns is in
protocols/alignment/psi.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.checked_files import DamagedFileError, read_checked, write_checked
from securevfl.crypto.identifiers import canonical_ids, canonical_ids_in_bulk
from securevfl.errors import DataError, IdError, PartiesError
from securevfl.protocols.alignment.psi import align_active, align_passive
from securevfl.protocols.alignment.psi_work import AlignmentWork, Journal
from securevfl.runtime.channel import Channel


def align_privately(
    party_name: str,
    ids: Iterable[Any],
    channel: Channel,
    *,
    active: str,
    passives: Sequence[str],
    executor: Executor | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    journal: Path | None = None,
    granted: int | None = None,
) -> NDArray[np.intp]:
    """Return this party's row numbers (m,) of the m ids that all parties have, in the order that all parties share.

    ids: one a row, of any type (`crypto.curve.canonical_id`). executor: takes the curve work, processes of this party.
    on_progress(points done, of). journal: a folder of this party alone; an alignment that broke off goes on from
    there if every party passes its own again. It holds the secrets of the alignment, closed to others, and is emptied
    at the end. granted: how many ids the active party has been let ask about, which everyone holds it to; then there
    may be none in common.
    IdError if an id is missing, occurs twice, or no id is common; LeakageError if more is asked than was granted,
    before anything is told; ProtocolError or CryptoError if a peer sends what
    does not belong; TransportError if one is away.
    """
    if party_name != channel.me or party_name not in (active, *passives) or not passives:
        everyone = ", ".join((active, *passives))
        raise PartiesError(f"alignment: the line of {party_name} and its name among {everyone} were expected")
    try:
        own = found if (found := canonical_ids_in_bulk(ids)) is not None else canonical_ids(ids)
    except IdError as error:
        raise IdError(f"party {party_name}: {error}") from None
    if not len(own):
        raise IdError(f"party {party_name}: at least one row was expected to align, there is none; is the file right?")
    kept = Journal() if journal is None else FolderJournal(journal)
    work = AlignmentWork(
        channel,
        own,
        active=active,
        passives=passives,
        journal=kept,
        executor=executor,
        on_progress=on_progress,
        granted=granted,
    )
    rows = align_active(work) if party_name == active else align_passive(work)
    kept.clear()
    if not len(rows) and granted is None:
        raise IdError(
            f"party {party_name}: at least one id that all parties have was expected, there is none; does every party "
            "name the same kind of id, written alike?"
        )
    return rows


class FolderJournal(Journal):
    """Keeps the journal in a folder that only its owner may read, a file a chunk."""

    def __init__(self, folder: str | Path) -> None:
        """DataError if others may read the folder. It is made if it is not there."""
        super().__init__()
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._folder.stat().st_mode & 0o077:
            raise DataError(f"{self._folder}: a folder closed to others was expected, it will hold secrets; chmod 700")

    def _file(self, stream: str, number: int) -> Path:
        return self._folder / f"{stream}.{number}.chunk"

    def count(self, stream: str) -> int:
        number = 0
        while self._file(stream, number).exists():
            number += 1
        return number

    def append(self, stream: str, chunk: bytes) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_checked(self._file(stream, self.count(stream)), chunk)

    def chunk(self, stream: str, number: int) -> bytes:
        path = self._file(stream, number)
        try:
            return read_checked(path)
        except (OSError, DamagedFileError):
            raise DataError(
                f"{path}: what an alignment that broke off has kept was expected, it is not there or damaged; remove "
                f"{self._folder} at every party and align anew"
            ) from None

    def clear(self) -> None:
        """Remove the journal's files, secrets first, and the folder if nothing else is in it."""
        self._file("secrets", 0).unlink(missing_ok=True)
        for path in (*self._folder.glob("*.chunk"), *self._folder.glob(".*.chunk.*")):  # drafts of killed processes too
            path.unlink()
        with suppress(OSError):
            self._folder.rmdir()

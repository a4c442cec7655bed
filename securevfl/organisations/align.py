"""Private alignment: each party passes its ids and receives its row numbers of the ids that all parties have.

    rows = align_privately("shop", ids, channel, active="bank", passives=["shop"])
    write_rows("shop.parquet", rows)                         # shop.parquet.rows.npy

Row rows[i] of one party and row rows[i] of another party have the same id. protocols/alignment/psi.py describes what
each party learns.
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
    """Compute this party's row numbers of the ids that all parties have.

    Args:
        party_name: name of this party.
        ids: the id of each row, of any type (`crypto.identifiers.canonical_id`).
        channel: channel to the other parties.
        active: name of the active party.
        passives: names of the other parties.
        executor: worker processes for the elliptic-curve operations.
        on_progress: is called with the number of points done and the total.
        journal: a folder of this party. An interrupted alignment resumes from there if every party passes its journal
            again. The folder contains the secrets of the alignment, readable only by its owner, and is emptied at the
            end.
        granted: number of ids that the active party may ask about. All parties enforce it. With this argument it is
            not an error if no id is common.

    Returns:
        The row numbers (m,), in an order that all parties share.

    Raises:
        IdError: an id is missing or occurs twice, or no id is common.
        LeakageError: the active party asks about more ids than were granted; nothing has been disclosed then.
        ProtocolError: a peer sent an invalid message.
        CryptoError: a peer sent an invalid point.
        TransportError: a peer is away.
        PartiesError: the channel or the names do not belong to this party.
    """
    if party_name != channel.me or party_name not in (active, *passives) or not passives:
        raise PartiesError(
            f"party {party_name} cannot align over the channel of {channel.me} with {', '.join((active, *passives))}",
            "pass this party's channel, and its name as active or in passives",
            code="SVFL-PARTIES-NAME",
            party=party_name,
        )
    try:
        canonical = plain if (plain := canonical_ids_in_bulk(ids)) is not None else canonical_ids(ids)
    except IdError as error:
        raise IdError(
            f"party {party_name}: {error.problem}",
            error.remedy,
            code=error.code,
            **error.fields | {"party": party_name},
        ) from None
    if not len(canonical):
        raise IdError(
            f"party {party_name} has no rows to align",
            "check that the right file is named",
            code="SVFL-TABLE-EMPTY",
            party=party_name,
        )
    progress = Journal() if journal is None else FolderJournal(journal)
    work = AlignmentWork(
        channel,
        canonical,
        active=active,
        passives=passives,
        journal=progress,
        executor=executor,
        on_progress=on_progress,
        granted=granted,
    )
    rows = align_active(work) if party_name == active else align_passive(work)
    progress.clear()
    if not len(rows) and granted is None:
        raise IdError(
            f"party {party_name} has no id that all other parties have as well",
            code="SVFL-ID-NO-MATCH",
            party=party_name,
        )
    return rows


class FolderJournal(Journal):
    """Journal in a folder that only its owner may read, with one file for each chunk.

    Args:
        folder: the folder, which is created if it does not exist.

    Raises:
        DataError: other users can read the folder.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._folder.stat().st_mode & 0o077:
            raise DataError(
                f"other users can read {self._folder}, which will contain secrets",
                "run `chmod 700` on it",
                code="SVFL-FILE-READABLE-BY-OTHERS",
                path=str(self._folder),
            )

    def _file(self, stream: str, number: int) -> Path:
        return self._folder / f"{stream}.{number}.chunk"

    def count(self, stream: str) -> int:
        """Return the number of chunks of a stream."""
        number = 0
        while self._file(stream, number).exists():
            number += 1
        return number

    def append(self, stream: str, chunk: bytes) -> None:
        """Write the next chunk of a stream."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_checked(self._file(stream, self.count(stream)), chunk)

    def chunk(self, stream: str, number: int) -> bytes:
        """Read a chunk, or raise DataError if it is missing or damaged."""
        path = self._file(stream, number)
        try:
            return read_checked(path)
        except (OSError, DamagedFileError):
            raise DataError(
                f"{path}, a file of an interrupted alignment, is missing or damaged",
                f"remove {self._folder} at every party and align again",
                code="SVFL-FILE-DAMAGED",
                path=str(path),
            ) from None

    def clear(self) -> None:
        """Remove the journal's files, secrets first, and the folder if it is empty then."""
        self._file("secrets", 0).unlink(missing_ok=True)
        drafts = self._folder.glob(".*.chunk.*")  # unfinished files of killed processes
        for path in (*self._folder.glob("*.chunk"), *drafts):
            path.unlink()
        with suppress(OSError):
            self._folder.rmdir()

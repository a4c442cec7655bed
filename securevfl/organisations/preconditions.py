"""Checks that a party makes before it connects to anybody: its files, their disks, and its account.

A run that stops because a file cannot be written has already disclosed something, and a repeated run discloses more.
Each command therefore names all paths that it writes, with the number of bytes, and every session begins with these
checks. The port is checked where the party begins to listen (`securevfl.transport.acceptor`), which is before it calls
others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from securevfl.account.commit_counter import state_folder
from securevfl.base.disk_space import check_disks
from securevfl.disclosure.ledger import DisclosureLedger

ACCOUNT_ROW_BYTES = 64
"""Maximum number of bytes that a session adds to an account for each row, with the copy that SQLite makes meanwhile."""
JOURNAL_ID_BYTES = 512
"""Maximum number of bytes of an alignment's journal for each id."""
PREDICTION_ROW_BYTES = 256
"""Maximum number of bytes of a row in a file of predictions."""


class SessionNeeds(NamedTuple):
    """The files that a session will write, and the number of table rows that it may enter in the ledger.

    Attributes:
        writes: the paths that the session writes, apart from the ledger, and the maximum number of bytes of each.
        rows: maximum number of rows of tables or requests that the session enters in the ledger.
    """

    writes: Mapping[Path, int] = MappingProxyType({})
    rows: int = 0


def check_preconditions(ledger: DisclosureLedger | None, session: SessionNeeds) -> None:
    """Check that a session will be able to write all of its files.

    Args:
        ledger: the party's ledger; None if no table is involved.
        session: what the session writes.

    Raises:
        StorageError: a path or the ledger cannot be written, or another program has locked the ledger.
        ConfigError: a disk has too little free space.
        DataError: the ledger is damaged or is an older copy.
    """
    needs = dict(session.writes)
    if ledger is not None:
        needs |= {ledger.path: ACCOUNT_ROW_BYTES * session.rows, state_folder(): 0}
    check_disks(needs)
    if ledger is not None:
        ledger.database.check_writable()

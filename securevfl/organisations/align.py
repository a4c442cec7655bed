"""Private alignment: the parties find the rows of the ids that all of them have, without showing each other other ids.

    settings = PeerSettings.of("kits/shop/peers.toml")
    rows = align_with("shop", ids, settings, ledger=None, journal=Path("shop.csv.align"))    # None: the default ledger
    write_rows("shop.csv", rows)                                                             # shop.csv.rows.npy

Each party gets the row numbers of the common ids: rows[i] of every party has the same id. protocols/alignment/psi.py
lists the disclosures to each party, and defines the *points* (elliptic-curve points of ids) that parties compute. A
peer *tests* an id if it finds out whether this party has it. Before a party sends a message that depends on its ids, it
enters in its disclosure ledger how many ids each peer can test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from operator import length_hint
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.file_locks import reserved_path
from securevfl.consent.alignment_session import AlignmentSession
from securevfl.crypto.identifiers import canonical_ids, canonical_ids_in_bulk
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import IdError, PartiesError
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings, check_among
from securevfl.organisations.preconditions import JOURNAL_ID_BYTES, SessionNeeds
from securevfl.protocols.alignment.journal_folder import FolderJournal
from securevfl.protocols.alignment.psi import align_active, align_passive
from securevfl.protocols.alignment.psi_work import AlignmentWork, Journal
from securevfl.runtime.channel import Channel


def align_with(
    party_name: str,
    ids: Iterable[Any],
    settings: PeerSettings,
    *,
    ledger: DisclosureLedger | str | Path | None,
    journal: Path,
    rule: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    on_rows: Callable[[NDArray[np.intp]], object] = lambda rows: None,
) -> NDArray[np.intp]:
    """Compute this party's row numbers of the ids that all parties have, with the parties on their own machines.

    Args:
        party_name: name of this party.
        ids: the id of each row.
        settings: addresses, certificates and time limits; the first party of the file of peers is the active one.
        ledger: this party's ledger, or its file; None for the default one.
        journal: a folder of this party, from which an interrupted alignment resumes. It contains the secrets of the
            alignment, readable only by its owner, and is emptied at the end. It is single-use: an older copy is
            refused, because the ledger lists its content.
        rule: version of the rule that normalised the ids (`securevfl.data.composite_ids`); all parties need the same.
        on_progress: is called with the number of points done and the total.
        on_rows: stores the row numbers, before the other parties learn that this party has finished.

    Returns:
        The row numbers (m,), in an order that all parties share.

    Raises:
        ConfigError: another process aligns with this journal.
        LeakageError: a peer could test more ids than a limit of the ledger allows; nothing has been disclosed then.
        DataError: the journal is an older copy or is damaged.
        TransportError: a party cannot be reached, was refused or has stopped.
    """
    check_among(settings.peers, party_name)
    active, *passives = settings.peers.parties
    account = DisclosureLedger.open(party_name, ledger)
    handshake = {"parties": [active, *passives], "task": "align"} | ({} if rule is None else {"ids by rule": rule})

    with reserved_path(journal):
        progress = FolderJournal(
            journal, account.database
        )  # an older copy of the journal is refused before this party connects

        def talk(channel: Channel) -> NDArray[np.intp]:
            rows = align_privately(
                party_name,
                ids,
                channel,
                active=active,
                passives=passives,
                on_progress=on_progress,
                ledger=account,
                journal=progress,
            )
            on_rows(rows)
            return rows

        count = length_hint(ids)
        rows = run_session(
            party_name,
            settings,
            handshake,
            talk,
            ledger=account,
            resumes=True,
            needs=SessionNeeds({journal: JOURNAL_ID_BYTES * count}, count),
        )
        progress.clear()
        return rows


def align_privately(
    party_name: str,
    ids: Iterable[Any],
    channel: Channel,
    *,
    active: str,
    passives: Sequence[str],
    executor: Executor | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    ledger: DisclosureLedger | None,
    journal: Journal | None = None,
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
        ledger: this party's ledger. The number of ids that each peer can test is entered in it before any message
            depends on these ids. None if the caller has entered it, or if all parties are threads of one process.
        journal: stores completed work. If it is a `FolderJournal`, an interrupted alignment resumes from there,
            provided that every party passes its journal again. The caller clears it once all parties have finished.
        granted: maximum number of ids that the active party may ask about; every party enforces it. If it is given, a
            result without a common id is accepted.

    Returns:
        The row numbers (m,), in an order that all parties share.

    Raises:
        IdError: an id is missing or occurs twice, or no id is common.
        LeakageError: the active party asks about more ids than were granted, or a peer could test more ids than a limit
            of the ledger allows; nothing has been disclosed then.
        ProtocolError: a peer sent an invalid message.
        CryptoError: a peer sent an invalid point.
        TransportError: a peer cannot be reached.
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
    entries = None if ledger is None else AlignmentSession(ledger, party_name, canonical, channel.gate)
    work = AlignmentWork(
        channel,
        canonical,
        active=active,
        passives=passives,
        journal=journal,
        executor=executor,
        on_progress=on_progress,
        granted=granted,
    )
    if entries is not None:
        work.record_with(entries.record)
    try:
        rows = align_active(work) if party_name == active else align_passive(work)
    finally:
        if entries is not None:
            entries.settle()
    if not len(rows) and granted is None:
        raise IdError(
            f"party {party_name} has no id that all other parties have as well",
            code="SVFL-ID-NO-MATCH",
            party=party_name,
        )
    return rows

"""One private alignment in a party's disclosure ledger: how many of its ids each peer can test.

A peer can *test* an id if it can find out whether the party's table contains this id. The *disclosure gate* of a party
sees each disclosure before it is sent. Ids are entered in the ledger before a message that depends on them is sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress

import numpy as np

from securevfl.data.id_keys import ID_DIGEST
from securevfl.data.register import Register
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger, Reservation
from securevfl.errors import DataError, StorageError
from securevfl.runtime.disclosure_gate import DisclosureGate


class AlignmentSession:
    """Enters the disclosures of one alignment in the ledger of one party.

    Args:
        ledger: the party's ledger.
        party: name of the party.
        ids: its ids in canonical form.
        gate: the party's disclosure gate.
    """

    def __init__(self, ledger: DisclosureLedger, party: str, ids: Iterable[bytes], gate: DisclosureGate) -> None:
        self._ledger = ledger
        self._party = party
        self._register = register_of_ids(ids)
        self._gate = gate
        self._before: list[Disclosure] = []
        self._entries: list[Disclosure] = []
        self._reservation: Reservation | None = None

    def record(self, name: str, ids: Mapping[str, int]) -> None:
        """Enter how many ids each peer can test. An alignment that resumes with the same secrets is entered once.

        Args:
            name: a name derived from the secrets of the alignment, so that a resumed alignment has the same name.
            ids: the number of ids by peer.

        Raises:
            LeakageError: a limit of the ledger would be exceeded; nothing is entered then.
        """
        session = f"alignment {name}", ""
        self._before = [
            entry.disclosure for entry in self._ledger.read().entries if (entry.run, entry.session) == session
        ]
        new = [Disclosure("ids", peer, (self._party,), count, 0) for peer, count in ids.items()]
        self._entries = _larger(self._before, new)
        self._reservation = self._ledger.reserve(
            self._register, session, self._entries, lambda before: None, ahead=self._entries
        )

    def settle(self) -> None:
        """End the alignment, successful or not. Entries of peers that have received nothing are removed.

        If the ledger cannot be written now, all entries remain, also those of peers that have received nothing.
        """
        if self._reservation is None:
            return
        sent = [item for item in self._entries if any(key[:2] == ("ids", item.learner) for key in self._gate.totals)]
        with suppress(DataError, StorageError):
            self._reservation.settle(_larger(self._before, sent))


def _larger(before: Iterable[Disclosure], new: Iterable[Disclosure]) -> list[Disclosure]:
    """Return the larger one of an earlier and a new disclosure to the same peer, for each peer."""
    by_peer: dict[str, Disclosure] = {}
    for item in (*before, *new):
        other = by_peer.get(item.learner)
        by_peer[item.learner] = item if other is None or item.count > other.count else other
    return list(by_peer.values())


def register_of_ids(ids: Iterable[bytes]) -> Register:
    """Return the register of a table with these ids.

    A register (`securevfl.data.register`) contains digests of all ids of a table, and a key that is derived from them.

    Args:
        ids: the ids in canonical form.

    Returns:
        The register.
    """
    digests = b"".join(hashlib.blake2b(canonical, digest_size=ID_DIGEST).digest() for canonical in ids)
    return Register.of_ids(np.frombuffer(digests, np.uint8).reshape(-1, ID_DIGEST))

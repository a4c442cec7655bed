"""Budgets of a service: the unused parts of the limits of its disclosure ledger.

The screen of a service and its status page show them.
"""

from __future__ import annotations

from typing import NamedTuple

from securevfl.disclosure.ledger import DisclosureLedger, total_of

ALL_PEERS = "all peers"


class Budget(NamedTuple):
    """The part of one limit of the ledger that is not used up. A limit holds for all peers together.

    Attributes:
        kind: the kind of disclosure.
        peer: the only party to which something of this kind was disclosed; `ALL_PEERS` if there are several; empty if
            nothing was disclosed yet.
        limit: the limit in words.
        left: the part of the limit that is not used up, in words.
    """

    kind: str
    peer: str
    limit: str
    left: str


def budgets_of(ledger: DisclosureLedger) -> list[Budget]:
    """Return the unused part of each limit of a ledger.

    A limit holds for each table and for all peers together. Of several tables, the one with the smallest unused part is
    shown. Disclosures about other tables count, too, if they share rows with it.
    """
    contents = ledger.read()
    by_table = [ledger.table_disclosures(name)[0] for name in dict.fromkeys(entry.table for entry in contents.counted)]
    budgets = []
    for kind, limit in contents.limits.items():
        peers = sorted({entry.disclosure.learner for entry in contents.counted if entry.disclosure.kind == kind})
        if not peers:
            budgets.append(Budget(kind, "", str(limit), str(limit)))
            continue
        totals = [total_of(entries, kind) for entries in by_table]
        largest = max(totals, key=lambda total: total.share if limit.share else total.count)
        budgets.append(Budget(kind, peers[0] if len(peers) == 1 else ALL_PEERS, str(limit), limit.left(largest)))
    return budgets

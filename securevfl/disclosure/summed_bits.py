"""Sums over all rows that a peer receives about a party's columns, counted in bits.

In a sum over rows, the peer chooses the factor of each row, and nobody sees its choice. If a column holds few bits per
row, one number can reveal the values of several rows: with factors 2, 4, 8 ..., a word of k bits reveals k - 1 rows of
a column of 0 and 1. Numbers are therefore no measure of what sums disclose, but bits are: words of k bits disclose at
most k bits each, whatever the peer has multiplied. All joint statistics on a table, with all peers together, may
disclose at most `MAX_STATISTICS_SHARE` of the bits that the columns hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.errors import LeakageError

MAX_STATISTICS_SHARE = 0.03
"""Share of the bits of the columns that all joint statistics on a table may disclose to all peers together."""
JOINT_STATISTICS = "joint statistics"
"""The name that takes the place of a run in the ledger."""


def statistics_disclosure(learner: str, me: str, numbers: int, bits: int, held_bits: float) -> Disclosure:
    """Return what sums disclose to a peer about this party's columns.

    Args:
        learner: the peer.
        me: this party.
        numbers: number of sums.
        bits: bits of each sum.
        held_bits: bits that the columns hold in all rows.

    Returns:
        The disclosure, with its capacity in numbers of `bits` bits.
    """
    capacity = max(1, int(held_bits / bits))
    return Disclosure("columns", learner, (me,), numbers, capacity, group="correlations", numbers=numbers)


def check_statistics(me: str, disclosures: Sequence[Disclosure], remedy: str, before: Sequence[LedgerEntry]) -> None:
    """Check that joint statistics stay within `MAX_STATISTICS_SHARE`.

    Args:
        me: this party.
        disclosures: what they would disclose.
        remedy: what would disclose less.
        before: earlier entries of this party's ledger.

    Raises:
        LeakageError: if all peers together would learn more.
    """
    so_far, new = statistics_share(before), sum(disclosure.share for disclosure in disclosures)
    if disclosures and so_far + new > MAX_STATISTICS_SHARE + 1e-12:
        peers = ", ".join(dict.fromkeys(disclosure.learner for disclosure in disclosures))
        raise LeakageError(
            f"party {me}: joint statistics may reveal at most {MAX_STATISTICS_SHARE:.0%} of the bits of its columns to "
            f"all peers together. They have received {so_far:.2%}, and {peers} would receive {new:.2%} more",
            f"use the statistics that you have, or {remedy}",
            code="SVFL-LIMIT-REACHED",
            party=me,
            peer=peers,
        )


def statistics_share(before: Sequence[LedgerEntry]) -> float:
    """Return the total share of earlier joint statistics that all peers have received."""
    return sum(entry.disclosure.share for entry in before if entry.disclosure.group == "correlations")

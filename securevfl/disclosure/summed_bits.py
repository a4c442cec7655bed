"""Disclosures of joint statistics, in bits: sums over all rows of this party's table that a peer receives.

Joint statistics, such as correlations, are computed without a training. They are sums over rows of a peer's value times
this party's value. The peer should use the values of its column as factors, but nobody can check that it does. With
factors of its choice, such as 2, 4, 8 ..., a sum of k bits reveals the values of k - 1 rows of a 0/1 column. So the
number of sums does not bound what they disclose, but their bits do: a sum of k bits discloses at most k bits, whatever
the factors are. All joint statistics on a table, with all peers together, may disclose at most `MAX_STATISTICS_SHARE`
of the bits that the columns have.
"""

from __future__ import annotations

from collections.abc import Sequence

from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.errors import LeakageError

MAX_STATISTICS_SHARE = 0.03
"""Maximum share of the bits of a party's columns that all joint statistics on a table may disclose to all peers."""
JOINT_STATISTICS = "joint statistics"
"""The ledger's entries of joint statistics have this name in place of the name of a run."""


def statistics_disclosure(learner: str, me: str, numbers: int, bits: int, held_bits: float) -> Disclosure:
    """Return what sums over all rows disclose to a peer about this party's columns.

    Args:
        learner: name of the peer that receives the sums.
        me: name of this party.
        numbers: number of sums.
        bits: bits of each sum.
        held_bits: information content of all rows of the columns, in bits.

    Returns:
        The disclosure. Its capacity is the number of sums whose bits are as many as those of the columns.
    """
    capacity = max(1, int(held_bits / bits))
    return Disclosure("columns", learner, (me,), numbers, capacity, group="correlations", numbers=numbers)


def check_statistics(me: str, disclosures: Sequence[Disclosure], remedy: str, before: Sequence[LedgerEntry]) -> None:
    """Check that new and earlier joint statistics disclose at most `MAX_STATISTICS_SHARE` of the columns' bits.

    Args:
        me: this party.
        disclosures: the disclosures of the requested statistics to each peer.
        remedy: a change of the request that would disclose less, with which the error message ends.
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
            f"use the statistics that you already have, or {remedy}",
            code="SVFL-LIMIT-REACHED",
            party=me,
            peer=peers,
        )


def statistics_share(before: Sequence[LedgerEntry]) -> float:
    """Return the total share of earlier joint statistics that all peers have received."""
    return sum(entry.disclosure.share for entry in before if entry.disclosure.group == "correlations")

"""Sums over all rows that a peer is told about a party's columns, counted in bits of what these columns hold.

In a sum over rows the peer chooses by what each row's value is multiplied, and nobody sees what it has chosen. Where a
column holds few bits a row, one number then names the values of several rows: a word of k bits those of k - 1 rows of a
column of 0 and 1, if these are multiplied by 2, 4, 8 .. So numbers are no measure of what sums tell, and bits are:
words of k bits each tell k bits at most, whatever the peer has put in. All looks of a peer at a table come to MOST of
the bits that its columns hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.errors import LeakageError

MAX_STATISTICS_SHARE = 0.03  # of the bits that columns hold, over all looks at a table
JOINT_STATISTICS = "a look at columns"  # what stands for a run in the ledger


def statistics_disclosure(learner: str, me: str, numbers: int, bits: int, held: float) -> Disclosure:
    """Return what so many sums of so many bits each tell a peer about columns of this party that hold `held` bits."""
    whole = max(1, int(held / bits))
    return Disclosure("columns", learner, (me,), numbers, whole, group="correlations", numbers=numbers)


def check_statistics(me: str, told: Sequence[Disclosure], remedy: str, before: Sequence[LedgerEntry]) -> None:
    """LeakageError if a peer would be told more than MOST of the bits of the columns. remedy: what would be less."""
    for own in told:
        so_far = statistics_share(own, before)
        if so_far + own.share > MAX_STATISTICS_SHARE + 1e-12:
            raise LeakageError(
                f"party {me}: sums over rows that tell {MAX_STATISTICS_SHARE:.0%} of the bits of its columns at most "
                f"were expected "
                f"over all looks, {own.learner} was told {so_far:.2%} before and would be told {own.share:.2%} more; "
                f"keep what you have, or {remedy}"
            )


def statistics_share(own: Disclosure, before: Sequence[LedgerEntry]) -> float:
    """Add up the shares of earlier looks that the same peer was told."""
    same = [
        entry.disclosure
        for entry in before
        if (entry.disclosure.group, entry.disclosure.learner) == (own.group, own.learner)
    ]
    return sum(each.share for each in same)

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
from securevfl.disclosure.ledger import LedgerEntry
from securevfl.errors import LeakageError

MOST = 0.03  # of the bits that columns hold, over all looks at a table
LOOK = "a look at columns"  # what stands for a run in the ledger


def summed(learner: str, me: str, numbers: int, bits: int, held: float) -> Disclosure:
    """Return what so many sums of so many bits each tell a peer about columns of this party that hold `held` bits."""
    whole = max(1, int(held / bits))
    return Disclosure("columns", learner, (me,), numbers, whole, group="correlations", numbers=numbers)


def check_looks(me: str, told: Sequence[Disclosure], remedy: str, before: Sequence[LedgerEntry]) -> None:
    """LeakageError if a peer would be told more than MOST of the bits of the columns. remedy: what would be less."""
    for own in told:
        so_far = told_before(own, before)
        if so_far + own.share > MOST + 1e-12:
            raise LeakageError(
                f"party {me}: sums over rows that tell {MOST:.0%} of the bits of its columns at most were expected "
                f"over all looks, {own.learner} was told {so_far:.2%} before and would be told {own.share:.2%} more; "
                f"keep what you have, or {remedy}"
            )


def told_before(own: Disclosure, before: Sequence[LedgerEntry]) -> float:
    """Add up the shares of earlier looks that the same peer was told."""
    same = [entry.told for entry in before if (entry.told.group, entry.told.learner) == (own.group, own.learner)]
    return sum(each.share for each in same)

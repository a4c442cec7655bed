"""Counts of rows by group and outcome: one party has the outcomes of rows, another their groups, and one learns counts.

A has four marks of each row (of which class it is, of which it was said to be), B one for each group; s = 2^3 rows.

1, 2. both  shares of marks_A^T marks_B (summed_products.py)
3. B -> A   names of the groups, and floor((h_B + D) / s) mod 2^k       D secret, uniform below s, new for each count
   A        own h / s and what came, times s

What else either receives is a ciphertext under another's key or uniform: B learns nothing of labels and predictions, A
counts that are rounded up or down at random to STEP rows: right in the mean, off by less than STEP, by .41 of it on
average. Two looks at rows of which one was left out differ by an eighth of a step for that row's group. Of two groups
one is told, as the other is what A has left. A that deviates may give weights in place of marks: a count of k bits then
tells it the groups of k - 1 rows. So what counts are bits: numbers_told x k of them, whatever A gives
(`securevfl.disclosure.summed_bits`). Groups of fewer than FEWEST rows are put together until there are as many, as a
count of all rows would give what is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.roles import ACTIVE, PARTNER
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import Integers, ShareRing
from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares import summed_products as summed_products_of
from securevfl.protocols.shares.share_products import unpack_words
from securevfl.protocols.shares.summed_products import summed_products
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord

MIN_COUNTED_ROWS = 400  # in all
MIN_GROUP_ROWS = 100  # of a group
OUTCOMES = 4
_SHIFT = 3
COUNT_STEP = 2**_SHIFT  # rows
_BITS = 32  # L


class GroupCounts(DisclosingMessage, frozen=True):
    """The names of groups, and the sender's shares of their counts, cut to words and rounded at random."""

    names: tuple[str, ...]
    words: bytes


def declares() -> list[MessageDeclaration]:
    """Declare what the messages reveal. Roles: active (who learns counts) and partner (who has groups)."""
    told = Reveal("output", "how many rows of each outcome each group of 100 rows or more has, to some 8 rows; names")
    return [*summed_products_of.declares(), MessageDeclaration(GroupCounts, PARTNER, ACTIVE, told)]


def bits_per_count(rows: int) -> int:
    """Return k, the bits of a word that a count of up to so many rows fits, over STEP and rounded up or down."""
    return math.ceil(math.log2(rows / COUNT_STEP + 2))


def disclosed_counts(groups: int) -> int:
    """Return how many counts are told of so many groups."""
    return OUTCOMES * _told(groups)


def _told(groups: int) -> int:
    """Return of how many groups counts are told: of two one, as the other has what is left."""
    return 1 if groups == 2 else groups


def receive_group_counts(context: PartyContext, marks: Integers, groups: int) -> tuple[tuple[str, ...], Floats]:
    """Return the names of so many groups, and the counts (groups x OUTCOMES) of rows as the active party is told them.

    marks: (n x OUTCOMES), one 1 a row. ProtocolError if what comes is of another size.
    """
    (peer,) = context.roles.others(context.me)
    products, (share,) = summed_products(context, _BITS, [marks], [groups], "counts by group")  # 1, 2
    ring, own = ShareRing(bits_per_count(len(marks))), share[:, : _told(groups)]
    told = products.recv(peer, GroupCounts)  # 3
    if len(told.names) != groups:
        raise ProtocolError(f"{peer}: names of {groups} groups were expected, {len(told.names)} came; use one version")
    whole = unpack_words(peer, told.words, ring, own.shape).astype(np.float64) + np.ldexp(
        own.astype(np.float64), -_SHIFT
    )
    counts = (np.mod(whole + 1, 2.0**ring.bits) - 1) * COUNT_STEP  # 0 may have been rounded down, to more than -1
    rest = (marks.sum(axis=0)[:, None] - counts)[:, : groups - counts.shape[1]]
    return told.names, np.concatenate([counts, rest], axis=1).T


def send_group_counts(context: PartyContext, marks: Integers, names: Sequence[str]) -> None:
    """Take part as the party that has groups. marks: (n x groups), one 1 a row; names: of the groups."""
    products, (share,) = summed_products(context, _BITS, [marks], [OUTCOMES], "counts by group")  # 1, 2
    ring, own = ShareRing(bits_per_count(len(marks))), share[:, : _told(len(names))]
    below = Prg.fresh("dither of counts").array(own.shape, np.uint64) >> np.uint64(64 - _SHIFT)
    level = ring.reduce((own + below) >> np.uint64(_SHIFT))
    permit = context.channel.permit(
        DisclosureRecord(context.active, "columns", own.size, ring.bits, about=(context.me,), group="correlations")
    )
    products.send(context.active, GroupCounts(tuple(names), ring.pack(level)), permit)  # 3

"""Counts of rows by group and outcome: one party has the rows' outcomes, another their groups, and one learns counts.

A has four marks of each row (its class and its predicted class), and B has one mark for each group. s = 2^3 rows.

1, 2. both  shares of marks_A^T marks_B (summed_products.py)
3. B -> A   names of the groups, and floor((h_B + D) / s) mod 2^k       D: secret, uniform below s, fresh for each count
   A        adds the received number to its h / s, and multiplies by s

All other values that either party receives are ciphertexts under the other party's key, or uniform. B learns nothing of
labels and predictions. A learns counts that are rounded up or down at random to multiples of `COUNT_STEP` rows: the
mean is correct, the error is below `COUNT_STEP`, and 0.41 of it on average. If one row is left out, the two counts of
its group differ by an eighth of a step. Of two groups, A receives the counts of one, because it can compute the others.

If A deviates, it may use weights instead of marks: a count of k bits then reveals the groups of k - 1 rows. The
disclosure is therefore counted in bits: `disclosed_counts` times k, whatever A uses
(`securevfl.disclosure.summed_bits`). Groups of fewer than `MIN_GROUP_ROWS` rows are merged until they are large enough,
because the count of all rows would reveal a group that is left out.
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
from securevfl.protocols.shares import summed_products as summed_products_module
from securevfl.protocols.shares.share_products import unpack_words
from securevfl.protocols.shares.summed_products import summed_products
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord

MIN_COUNTED_ROWS = 400
MIN_GROUP_ROWS = 100
OUTCOME_CELLS = 4
_SHIFT = 3
COUNT_STEP = 2**_SHIFT
"""Counts are rounded to multiples of this number of rows."""

_RING_BITS = 32


class GroupCounts(DisclosingMessage, frozen=True):
    """The names of the groups, and the sender's shares of their counts, rounded at random."""

    names: tuple[str, ...]
    words: bytes


def declares() -> list[MessageDeclaration]:
    """Declare the disclosures of the messages. Roles: active (learns the counts) and partner (has the groups)."""
    output = Reveal(
        "output", "the number of rows of each outcome in each group of at least 100 rows, to about 8 rows; group names"
    )
    return [*summed_products_module.declares(), MessageDeclaration(GroupCounts, PARTNER, ACTIVE, output)]


def bits_per_count(rows: int) -> int:
    """Return k, the number of bits of a rounded count of up to `rows` rows."""
    return math.ceil(math.log2(rows / COUNT_STEP + 2))


def disclosed_counts(groups: int) -> int:
    """Return the number of counts that are disclosed for this number of groups."""
    return OUTCOME_CELLS * _disclosed_groups(groups)


def _disclosed_groups(groups: int) -> int:
    """Return the number of groups whose counts are disclosed: of two groups one, because the other one follows."""
    return 1 if groups == 2 else groups


def receive_group_counts(context: PartyContext, marks: Integers, groups: int) -> tuple[tuple[str, ...], Floats]:
    """Take part as the active party, which learns the counts.

    Args:
        context: this party's context, of two parties.
        marks: the outcome of each row (n, OUTCOME_CELLS): a single 1 in each row.
        groups: the number of groups.

    Returns:
        The names of the groups, and the rounded counts (groups, OUTCOME_CELLS).

    Raises:
        ProtocolError: the partner sent another number of names.
    """
    (peer,) = context.roles.others(context.me)
    products, (share,) = summed_products(context, _RING_BITS, [marks], [groups], "counts by group")  # 1, 2
    ring, share = ShareRing(bits_per_count(len(marks))), share[:, : _disclosed_groups(groups)]
    message = products.recv(peer, GroupCounts)  # 3
    if len(message.names) != groups:
        raise ProtocolError(
            f"{peer} sent {len(message.names)} group names instead of {groups}",
            code="SVFL-PROTOCOL-SIZE",
            party=peer,
        )
    levels = unpack_words(peer, message.words, ring, share.shape).astype(np.float64)
    total = levels + np.ldexp(share.astype(np.float64), -_SHIFT)
    counts = (np.mod(total + 1, 2.0**ring.bits) - 1) * COUNT_STEP  # 0 may be rounded down to above -1
    remaining = (marks.sum(axis=0)[:, None] - counts)[:, : groups - counts.shape[1]]
    return message.names, np.concatenate([counts, remaining], axis=1).T


def send_group_counts(context: PartyContext, marks: Integers, names: Sequence[str]) -> None:
    """Take part as the partner, which has the groups.

    Args:
        context: this party's context, of two parties.
        marks: the group of each row (n, groups): a single 1 in each row.
        names: the names of the groups.
    """
    products, (share,) = summed_products(context, _RING_BITS, [marks], [OUTCOME_CELLS], "counts by group")  # 1, 2
    ring, share = ShareRing(bits_per_count(len(marks))), share[:, : _disclosed_groups(len(names))]
    below = Prg.fresh("dither of counts").array(share.shape, np.uint64) >> np.uint64(64 - _SHIFT)
    levels = ring.reduce((share + below) >> np.uint64(_SHIFT))
    record = DisclosureRecord(
        context.active, "columns", share.size, ring.bits, about=(context.me,), group="correlations"
    )
    permit = context.channel.permit(record)
    products.send(context.active, GroupCounts(tuple(names), ring.pack(levels)), permit)  # 3

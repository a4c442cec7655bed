"""Rounded counts of rows by group and outcome, to measure whether a model is fair to groups that only one party knows.

The active party A knows the outcome of each of n rows: one of four combinations of its class and its predicted class.
It has marks, an array (n, 4) with a single 1 in each row, in the column of the row's outcome. Its partner B knows the
group of each row, such as an age group, and has marks (n, groups) with a single 1 in each row, in the column of the
row's group. The counts marks_A^T marks_B are computed as additive shares: random-looking numbers h_A at A and h_B at B.
A learns them rounded to multiples of s = `COUNT_STEP` = 8 rows.

1, 2. both  compute shares of marks_A^T marks_B (summed_products.py)
3. B -> A   names of the groups, and floor((h_B + D) / s) mod 2^k       D: secret, uniform below s, new for each count
   A        adds the received number to h_A / s, and multiplies by s

Comments refer to these steps by number. All other values that either party receives are ciphertexts under the other
party's key, or uniform. B learns nothing about labels and predictions. D rounds A's counts up or down at random: their
mean is correct, their error is below s, and its standard deviation is 0.41 * s. One row changes a count by an eighth of
a step. If there are two groups, A receives the counts of one group, because it can compute those of the other.

If A deviates, it may use larger numbers than 1 as marks, so that one count of k bits reveals the groups of k - 1 rows.
The disclosure is therefore recorded in bits: `disclosed_counts` * k, whatever A uses
(`securevfl.disclosure.summed_bits`). Groups of fewer than `MIN_SHARED_GROUP_ROWS` rows are merged with others,
because A could compute the counts of an omitted group from those of all rows.
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
MIN_SHARED_GROUP_ROWS = 100
OUTCOME_CELLS = 4
_SHIFT = 3
COUNT_STEP = 2**_SHIFT
"""Counts are rounded to multiples of this number of rows."""

_RING_BITS = 32


class GroupCounts(DisclosingMessage, frozen=True):
    """The names of the groups, and the sender's shares of their counts, rounded at random (step 3)."""

    names: tuple[str, ...]
    words: bytes


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active (learns counts), partner (has groups)."""
    output = Reveal(
        "output", "the number of rows of each outcome in each group of at least 100 rows, to about 8 rows; group names"
    )
    return [*summed_products_module.declares(), MessageDeclaration(GroupCounts, PARTNER, ACTIVE, output)]


def bits_per_count(rows: int) -> int:
    """Return the number of bits k of a rounded count of up to `rows` rows."""
    return math.ceil(math.log2(rows / COUNT_STEP + 2))


def disclosed_counts(groups: int) -> int:
    """Return the number of counts that are disclosed for this number of groups: four for each disclosed group."""
    return OUTCOME_CELLS * _disclosed_groups(groups)


def _disclosed_groups(groups: int) -> int:
    """Return the number of groups whose counts are disclosed; 1 for two groups, because A can compute the others."""
    return 1 if groups == 2 else groups


def receive_group_counts(context: PartyContext, marks: Integers, groups: int) -> tuple[tuple[str, ...], Floats]:
    """Run the active party's side, and return the counts that it learns.

    Args:
        context: this party's context in a protocol of two parties.
        marks: the outcome of each row (n, OUTCOME_CELLS): a single 1 in each row, and 0 otherwise.
        groups: the number of groups.

    Returns:
        The names of the groups, and the rounded counts (groups, OUTCOME_CELLS).

    Raises:
        ProtocolError: the partner sent another number of names, or a name twice.
    """
    (peer,) = context.roles.others(context.me)
    products, (share,) = summed_products(context, _RING_BITS, [marks], [groups], "counts by group")  # steps 1 and 2
    ring, share = ShareRing(bits_per_count(len(marks))), share[:, : _disclosed_groups(groups)]
    message = products.recv(peer, GroupCounts)  # step 3
    if len(message.names) != groups:
        raise ProtocolError(
            f"{peer} sent {len(message.names)} group names instead of {groups}",
            code="SVFL-PROTOCOL-SIZE",
            party=peer,
        )
    if len(set(message.names)) != groups:
        raise ProtocolError(
            f"{peer} sent the same name for several groups",
            "merge groups of one name at that party",
            code="SVFL-PROTOCOL-VALUES",
            party=peer,
        )
    levels = unpack_words(peer, message.words, ring, share.shape).astype(np.float64)
    total = levels + np.ldexp(share.astype(np.float64), -_SHIFT)
    # random rounding may turn a count of 0 into a number between -1 and 0
    counts = (np.mod(total + 1, 2.0**ring.bits) - 1) * COUNT_STEP
    remaining = (marks.sum(axis=0)[:, None] - counts)[:, : groups - counts.shape[1]]
    return message.names, np.concatenate([counts, remaining], axis=1).T


def send_group_counts(context: PartyContext, marks: Integers, names: Sequence[str]) -> None:
    """Run the side of the partner, which knows the groups.

    Args:
        context: this party's context in a protocol of two parties.
        marks: the group of each row (n, groups): a single 1 in each row, and 0 otherwise.
        names: the names of the groups.
    """
    # steps 1 and 2
    products, (share,) = summed_products(context, _RING_BITS, [marks], [OUTCOME_CELLS], "counts by group")
    ring, share = ShareRing(bits_per_count(len(marks))), share[:, : _disclosed_groups(len(names))]
    below = Prg.fresh("dither of counts").array(share.shape, np.uint64) >> np.uint64(64 - _SHIFT)
    levels = ring.reduce((share + below) >> np.uint64(_SHIFT))
    record = DisclosureRecord(
        context.active, "columns", share.size, ring.bits, about=(context.me,), group="correlations"
    )
    permit = context.channel.permit(record)
    products.send(context.active, GroupCounts(tuple(names), ring.pack(levels)), permit)  # step 3

"""Number of sums of a training on shares that are out of the table's range: one opened count, and no score.

1. all      shares of H = X theta at the active party A and its partner B (forward_sums.py)
2. A, B     look up whether H is out of the range of the row's table (table_lookup.py)    => shares modulo 2^11
3. B -> A   the sum of its shares, modulo 2^11
   A        adds the sum of its shares: the number of sums that are out of range

This table is indexed by the highest bits of the whole ring. If these cover no more than the table of the training, sums
beyond half of its range count.

A learns the count; everything else that either party receives is uniform. A party that deviates uses other table
entries and learns their sum, which is 11 bits of its choice about the counted rows. B therefore discloses a count only
as often as its score ledger allows for these rows (protocols/score_ledger). Afterwards it sends an empty count, and the
training continues.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.share_ring import ShareRing
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.shares import forward_sums
from securevfl.protocols.shares.fixed_point import table_distances
from securevfl.protocols.shares.forward_sums import ColumnSource, ForwardSums
from securevfl.protocols.shares.iteration import SharedState
from securevfl.protocols.shares.share_products import Products, unpack_words
from securevfl.protocols.shares.shares_params import SharesParams
from securevfl.protocols.shares.table_lookup import declares_lookup, look_up_shares
from securevfl.protocols.shares.table_transfers import Transfers
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord

COUNT_BITS = 11

MAX_COUNTED_SUMS = 1024
"""The largest number of sums (rows times outputs) of one count."""

_RING = ShareRing(COUNT_BITS)


class OutOfRangeCount(DisclosingMessage, frozen=True):
    """The sum of the partner's shares, a word of 11 bits; or nothing if the limit of these rows is reached."""

    total: bytes


def declares_counts() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active, partner, passive (any other party)."""
    count = f"the number of sums out of the table's range, among at most {MAX_COUNTED_SUMS} training rows"
    return [
        *forward_sums.declares(),
        *declares_lookup(),
        MessageDeclaration(OutOfRangeCount, "partner", "active", Reveal("output", count)),
    ]


def count_out_of_range(
    products: Products,
    transfers: Transfers | None,
    params: SharesParams,
    state: SharedState,
    number: int,
    X: ColumnSource,
    centres: Floats,
    *,
    allowed: Callable[[], bool],
) -> int | None:
    """Run one party's side of a count.

    Args:
        products: the session.
        transfers: at the two holders, transfers for tables indexed by the highest bits.
        params: the agreed parameters.
        state: this party's shares of the weights.
        number: a number that is unique in the session.
        X: this party's columns (n, d) of the rows.
        centres: at the active party, the centres (n c,) of the rows' tables.
        allowed: called at the partner; records one more count of these rows, if the limit allows it, and returns
            whether it does.

    Returns:
        The count at the active party, unless the partner discloses none; None elsewhere.
    """
    context, encoding = products.context, params.encoding
    h = ForwardSums(products, params, state, "range", number, len(X)).block(0, X)  # 1
    if h is None or transfers is None:
        return None
    end = encoding.reach if encoding.has_headroom else encoding.reach / 2
    is_far = (np.abs(table_distances(encoding.top_knots, centres)) > end).astype(np.uint64)
    index, bits = encoding.top_index(h), encoding.top_bits
    shares = look_up_shares(products, transfers, params.partner, index, bits, is_far, _RING)  # 2
    total = shares.sum(dtype=np.uint64)
    if context.me == params.partner:
        about = tuple(name for name in context.parties if name != context.active)
        permitted = allowed()
        record = DisclosureRecord(context.active, "losses", int(permitted), COUNT_BITS, about=about)
        permit = context.channel.permit(record)
        packed = _RING.pack(_RING.reduce(total[None])) if permitted else b""
        products.send(context.active, OutOfRangeCount(packed), permit)  # 3
        return None
    if not (packed := products.recv(params.partner, OutOfRangeCount).total):
        return None
    (partner_total,) = unpack_words(params.partner, packed, _RING, (1,))  # 3
    return int(_RING.reduce(partner_total + total))

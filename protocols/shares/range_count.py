"""How many sums of a training on shares are beyond the end of the table: one opened count, and no score.

1. all      shares of H = X theta at the active party A and its partner B (new_sums.py)
2. B, A     transfers for every row (table_transfers.py), B's choices chi
3. B -> A   place = (i_B - chi) mod 2^b          i_B = top bits of its share
4. A -> B   far(i_A + place + j) - mask - pad(j)  for each row and j < 2^b, modulo 2^11
   B        entry chi + pad(chi): a share of whether H is beyond the row's table, uniform by the mask
5. B -> A   the sum of its shares, modulo 2^11
   A        adds the sum of its masks: how many are beyond

This table goes by the highest bits of all that the ring holds; where that is no more than the table of the training,
beyond half of its reach counts. Steps 2 to 4 serve other tables too (`look_up_shares`).

A learns the count; everything else that either receives is uniform. A party that deviates puts other entries into its
tables and learns their sum, which is 11 bits of its choice about the rows that are counted. So B tells a count only
as often as its ledger lets these rows be counted (score_ledger.py), and after that an empty one, which ends nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.share_ring import ShareRing
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.shares.fixed_point import table_distances
from securevfl.protocols.shares.forward_sums import ColumnSource, ForwardSums, declares
from securevfl.protocols.shares.iteration import SharedState
from securevfl.protocols.shares.share_products import Products, unpack_words
from securevfl.protocols.shares.shares_params import SharesParams
from securevfl.protocols.shares.table_lookup import declares_lookup, look_up_shares
from securevfl.protocols.shares.table_transfers import Transfers
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord

COUNT_BITS = 11

MAX_COUNTED_SUMS = 1024  # sums: rows times outputs

_RING = ShareRing(COUNT_BITS)


class OutOfRangeCount(DisclosingMessage, frozen=True):
    """The sum of the partner's shares, a word of 11 bits, or nothing where these rows were counted often enough."""

    total: bytes


def declares_counts() -> list[MessageDeclaration]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    return [
        *declares(),
        *declares_lookup(),
        MessageDeclaration(
            OutOfRangeCount,
            "partner",
            "active",
            Reveal("output", f"of {MAX_COUNTED_SUMS} training rows at most: how many are beyond the table's reach"),
        ),
    ]


def count_out_of_range(
    products: Products,
    transfers: Transfers | None,
    terms: SharesParams,
    state: SharedState,
    number: int,
    X: ColumnSource,
    centres: Floats,
    *,
    allowed: Callable[[], bool],
) -> int | None:
    """One party's side, with its columns X (n x d); the count of sums that are far at the active party, None elsewhere
    and where the partner tells none.

    transfers: at the two holders, those of the session. number: no two of a session are equal. centres: of the tables
    of these rows (n c,), of which the active party's are used. allowed: whether the partner may tell one more count of
    these rows, which it notes. ProtocolError if a peer sends something of another size.
    """
    context, numbers = products.context, terms.encoding
    h = ForwardSums(products, terms, state, "range", number, len(X)).block(0, X)  # 1
    if h is None or transfers is None:
        return None
    end = numbers.reach if numbers.has_headroom else numbers.reach / 2
    far = (np.abs(table_distances(numbers.top_knots, centres)) > end).astype(np.uint64)
    index, bits = numbers.top_index(h), numbers.top_bits
    total = look_up_shares(products, transfers, terms.partner, index, bits, far, _RING).sum(dtype=np.uint64)  # 2 to 4
    if context.me == terms.partner:
        about = tuple(name for name in context.parties if name != context.active)
        more = allowed()
        permit = context.channel.permit(DisclosureRecord(context.active, "losses", int(more), COUNT_BITS, about=about))
        products.send(
            context.active, OutOfRangeCount(_RING.pack(_RING.reduce(total[None])) if more else b""), permit
        )  # 5
        return None
    if not (opened := products.recv(terms.partner, OutOfRangeCount).total):
        return None
    (theirs,) = unpack_words(terms.partner, opened, _RING, (1,))  # 5
    return int(_RING.reduce(theirs + total))

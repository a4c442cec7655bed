"""Count of the rows whose model output is out of range: the party with labels learns one number, and no output.

A training on secret shares reads residuals from tables, which cover a limited range of forward sums H = X @ theta. A is
the active party, which has the labels, and B is its partner. Shares are random-looking summands of a secret number.

1. all      compute shares of H at A and B (forward_sums.py)
2. A, B     look up for each sum whether it is out of the range of its row's table, 1 or 0 (table_lookup.py); each gets
            a share of this number modulo 2^11
3. B -> A   the sum of B's shares, modulo 2^11
   A        adds the sum of its shares, and obtains the number of sums that are out of range

Comments refer to these steps by number. The table of step 2 is indexed by the highest bits of H. If the integers
modulo 2^L can represent only the range of the training's table, sums beyond half of this range are counted instead.

A learns the count; everything else that either party receives is uniform. If A deviates and uses other table entries,
it learns their sum, which is 11 bits of its choice about the counted rows. B therefore discloses a count only as often
as its score ledger allows for these rows (protocols/score_ledger). Afterwards it sends an empty count, and the training
continues. A session has its own subchannel and keys (shares_session.py).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.share_ring import ShareRing
from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.shares import forward_sums
from securevfl.protocols.shares.fixed_point import table_distances
from securevfl.protocols.shares.forward_sums import ForwardSums
from securevfl.protocols.shares.iteration import SharedState
from securevfl.protocols.shares.pair_sums import ColumnSource
from securevfl.protocols.shares.rotated_tables import rotated_tables
from securevfl.protocols.shares.share_products import Products, unpack_words
from securevfl.protocols.shares.shares_params import SharesParams
from securevfl.protocols.shares.table_lookup import declares_lookup, look_up_shares
from securevfl.protocols.shares.table_transfers import Transfers
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord

COUNT_BITS = 11

MAX_COUNTED_SUMS = 1024
"""The largest number of forward sums (rows * outputs) that can be counted at once."""

_RING = ShareRing(COUNT_BITS)


class OutOfRangeCount(DisclosingMessage, frozen=True):
    """The sum of the partner's shares (11 bits, step 3); empty if these rows were counted as often as allowed."""

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
    """Count the rows that are out of range, together with all other parties.

    Args:
        products: this party's session of encrypted matrix products (share_products.py), with which step 1 multiplies
            columns by shares of the weights.
        transfers: at A and B, oblivious transfers for tables that are indexed by the highest bits of sums.
        params: the parameters of the training on which all parties agree (shares_params.py).
        state: this party's shares of the weights.
        number: the number of this count in the session; no two counts may have the same.
        X: this party's columns (n, d) of the rows.
        centres: at the active party, the forward sum at the centre of the table of each row and output (n * c,).
        allowed: a function that the partner calls. If the limit allows one more count of these rows, it records the
            count and returns True; otherwise it returns False.

    Returns:
        The count at the active party, or None if the partner has disclosed none; None at all other parties.
    """
    context, encoding = products.context, params.encoding
    h = ForwardSums(products, params, state, "range", number, len(X)).block(0, X)  # step 1
    if h is None or transfers is None:
        return None
    end = encoding.reach if encoding.has_headroom else encoding.reach / 2
    is_far = (np.abs(table_distances(encoding.top_knots, centres)) > end).astype(np.uint64)
    index, bits = encoding.top_index(h), encoding.top_bits
    far_by_sum = is_far.T
    tables = lambda block, first: rotated_tables(far_by_sum[block], np.arange(len(first)), first)  # noqa: E731
    shares = look_up_shares(products, transfers, params.partner, index, bits, tables, _RING)  # step 2
    total = shares.sum(dtype=np.uint64)
    if context.me == params.partner:
        permitted = allowed()
        record = DisclosureRecord(
            context.active, "columns", COUNT_BITS * permitted, 1, about=context.without_labels, group="evaluations"
        )
        permit = context.channel.permit(record)
        packed = _RING.pack(_RING.reduce(total[None])) if permitted else b""
        products.send(context.active, OutOfRangeCount(packed), permit)  # step 3
        return None
    if not (packed := products.recv(params.partner, OutOfRangeCount).total):
        return None
    (partner_total,) = unpack_words(params.partner, packed, _RING, (1,))  # step 3
    count = int(_RING.reduce(partner_total + total))
    if count > index.size:
        raise ProtocolError(
            f"{params.partner} sent a share of a count of {count} sums, and only {index.size} were counted",
            code="SVFL-PROTOCOL-VALUES",
            party=params.partner,
        )
    return count

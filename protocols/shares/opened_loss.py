"""Mean loss of a secret-shared model on some rows: the party with labels learns one sum over the rows, and no score.

A is the active party, which has the labels y, and B is its partner. H (n, c) are the forward sums X @ theta of the n
rows for c model outputs. Shares are random-looking summands modulo a power of two. T_y is a table of the loss for label
y at 2^b values of H.

1. all      compute shares of H at A and B (forward_sums.py)
2. A, B     look up the entry of T_y at H for every row, modulo 2^64 (table_lookup.py): each gets a share of the entry
3. B -> A   the sum of B's shares over all rows
   A        adds the sum of its shares, and obtains the sum of all rows' entries

Numbers in comments refer to these steps. An entry consists of two bit fields: the loss, and a bit that is 1 if H is
more than half of the table's range away from its centre. The sum over rows therefore contains two sums, and A learns
both. Everything else that A or B receives is uniform. The loss is interpolated between two entries of the table, which
makes it too high by at most (second derivative of the loss) * (spacing of the table)^2 / 8. If the loss is zero in the
whole table, A learns only the number of rows beyond half of the range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.shares import forward_sums
from securevfl.protocols.shares.fixed_point import FixedPointEncoding, table_distances
from securevfl.protocols.shares.forward_sums import ColumnSource, ForwardSums
from securevfl.protocols.shares.iteration import SharedState
from securevfl.protocols.shares.share_products import Products, unpack_words
from securevfl.protocols.shares.shares_params import SharesParams
from securevfl.protocols.shares.table_lookup import declares_lookup, look_up_shares
from securevfl.protocols.shares.table_transfers import Transfers
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord

MIN_LOSS_ROWS, MAX_LOSS_ROWS = 20, 65_536
_LOSS_BITS = 44
_FRACTION_BITS = 16
_RING = ShareRing(64)


class LossTable(NamedTuple):
    """The active party's description of the loss of each row.

    Attributes:
        values: computes the losses (m, 1) for forward sums (m, 1) and targets (m, k).
        targets: the targets of each row and output (n * c, k).
        minimizers: the forward sum of least loss for each row and output (n * c, 1).
    """

    values: Callable[[Floats, Floats], Floats]
    targets: Floats
    minimizers: Floats


class LossSum(DisclosingMessage, frozen=True):
    """The sum of the partner's shares over all rows (step 3)."""

    total: bytes


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active, partner, passive (any other party)."""
    sums = "the sum of the losses of the evaluated rows, and the number of sums beyond half of the table's range"
    return [
        *forward_sums.declares(),
        *declares_lookup(),
        MessageDeclaration(LossSum, "partner", "active", Reveal("output", sums)),
    ]


@dataclass(frozen=True)
class OpenedLoss:
    """The result of an evaluation: means over rows and outputs.

    Attributes:
        loss: the mean loss.
        far_share: the fraction of forward sums that are more than half of the table's range away from its centre.
    """

    loss: float
    far_share: float


def open_loss(
    products: Products,
    transfers: Transfers | None,
    params: SharesParams,
    state: SharedState,
    number: int,
    X: ColumnSource,
    table: LossTable | None,
    *,
    occasion: str = "measure",
) -> OpenedLoss | None:
    """Run one party's side of an evaluation.

    Args:
        products: the session for products with shared weights.
        transfers: at A and B, the session's oblivious transfers for tables; None elsewhere.
        params: the agreed parameters of the training.
        state: this party's shares of the weights.
        number: the number of the evaluation; no two of the same `occasion` in a session may have the same.
        X: this party's columns (n, d) of the rows.
        table: at the active party, the loss of the rows; None elsewhere.
        occasion: the kind of evaluation, from which keys are derived.

    Returns:
        The means at the active party; None elsewhere.
    """
    context, encoding = products.context, params.encoding
    h = ForwardSums(products, params, state, occasion, number, len(X)).block(0, X)  # 1
    if h is None or transfers is None:
        return None
    entries = None if table is None else _entries(encoding, table)
    index, bits = encoding.index(h), encoding.table_bits
    shares = look_up_shares(products, transfers, params.partner, index, bits, entries, _RING)  # 2
    total = shares.sum(dtype=np.uint64)
    if table is None:
        permit = context.channel.permit(DisclosureRecord(context.active, "losses", 2, 32, about=context.passives))
        products.send(context.active, LossSum(_RING.pack(total[None])), permit)  # 3
        return None
    (partner_total,) = unpack_words(params.partner, products.recv(params.partner, LossSum).total, _RING, (1,))  # 3
    return _decode((int(partner_total) + int(total)) % 2**64, h.size)


def _entries(encoding: FixedPointEncoding, table: LossTable) -> Words:
    """Return the tables (2^b, n * c): in each word, the loss and above it the bit for "beyond half of the range"."""
    centres = encoding.table_centres(table.minimizers)
    distances = table_distances(encoding.knots, centres)
    f, targets = (distances + centres).reshape(-1, 1), np.tile(table.targets, (encoding.entries, 1))
    limit = 2.0 ** (_LOSS_BITS - _FRACTION_BITS) / MAX_LOSS_ROWS
    loss = np.clip(table.values(f, targets), 0, limit - 1).reshape(distances.shape)
    packed = np.rint(np.ldexp(loss, _FRACTION_BITS)).astype(np.uint64)
    packed |= (np.abs(distances) > encoding.reach / 2).astype(np.uint64) << np.uint64(_LOSS_BITS)
    return packed


def _decode(total: int, rows: int) -> OpenedLoss:
    """Split the sum of all entries into its two sums, and divide them by the number of summed entries."""
    loss = (total & (2**_LOSS_BITS - 1)) * 2.0**-_FRACTION_BITS
    return OpenedLoss(loss / rows, (total >> _LOSS_BITS) / rows)

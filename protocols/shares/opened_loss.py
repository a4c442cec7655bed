"""The loss of a model on shares: one opened sum over some rows, and no score.

1. all      shares of H = X theta at the active party A and its partner B (forward_sums.py)
2. A, B     look up the entry of T_y at H, modulo 2^64 (table_lookup.py)    => shares of the row's entry
3. B -> A   the sum of its shares
   A        adds the sum of its shares: the sum of all rows' entries

An entry contains two numbers side by side, so that a sum over rows contains their two sums: the loss, and whether |H|
is beyond half of the table's range. A learns these two sums; everything else that either party receives is uniform. The
loss is interpolated between two entries, so it is too high by at most an eighth of its curvature times the squared
spacing. If the loss is zero throughout, A learns only the count.
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
    """The loss of the rows, at the active party.

    Attributes:
        values: returns the loss of outputs f (m, 1) and targets (m, k).
        targets: the targets of each row and output (n c, k).
        minimizers: the outputs of least loss (n c, 1).
    """

    values: Callable[[Floats, Floats], Floats]
    targets: Floats
    minimizers: Floats


class LossSum(DisclosingMessage, frozen=True):
    """The sum of the partner's shares."""

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
    """Means over rows and outputs.

    Attributes:
        loss: the mean loss.
        far_share: the share of sums beyond half of the table's range.
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
        products: the session.
        transfers: at the two holders, the transfers of the session.
        params: the agreed parameters.
        state: this party's shares of the weights.
        number: together with `occasion`, unique in the session.
        X: this party's columns (n, d) of the rows.
        table: at the active party, the loss of the rows.
        occasion: see `number`.

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
    """Return words (2^b, n c) that contain the loss of each entry, and whether its sum is beyond half of the range."""
    centres = encoding.table_centres(table.minimizers)
    distances = table_distances(encoding.knots, centres)
    f, targets = (distances + centres).reshape(-1, 1), np.tile(table.targets, (encoding.entries, 1))
    limit = 2.0 ** (_LOSS_BITS - _FRACTION_BITS) / MAX_LOSS_ROWS
    loss = np.clip(table.values(f, targets), 0, limit - 1).reshape(distances.shape)
    packed = np.rint(np.ldexp(loss, _FRACTION_BITS)).astype(np.uint64)
    packed |= (np.abs(distances) > encoding.reach / 2).astype(np.uint64) << np.uint64(_LOSS_BITS)
    return packed


def _decode(total: int, rows: int) -> OpenedLoss:
    """Return the means that a sum of entries contains."""
    loss = (total & (2**_LOSS_BITS - 1)) * 2.0**-_FRACTION_BITS
    return OpenedLoss(loss / rows, (total >> _LOSS_BITS) / rows)

"""How good a model on shares is on some rows: one opened sum, and no score.

1. all      shares of H = X theta at the active party A and its partner B (forward_sums.py)
2. B, A     look up T_y, modulo 2^64, where H falls to (forward_sums.py, steps 2 to 4)    => shares of the row's entry
3. B -> A   the sum of its shares
   A        adds its own: the sum of all rows' entries

An entry holds two numbers side by side, so that a sum of rows holds their two sums: the loss, and whether |H| is beyond
half of the table's reach. A learns these two sums; everything else that either receives is uniform. Between two entries
the loss is interpolated, so it is too high by an eighth of its curvature times the square of the step at most. Where
the loss is zero throughout, one count is all that is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.shares import forward_sums, table_lookup
from securevfl.protocols.shares.fixed_point import FixedPointEncoding, table_distances
from securevfl.protocols.shares.forward_sums import ColumnSource, ForwardSums
from securevfl.protocols.shares.iteration import SharedState
from securevfl.protocols.shares.share_products import Products, unpack_words
from securevfl.protocols.shares.shares_params import SharesParams
from securevfl.protocols.shares.table_lookup import look_up_shares
from securevfl.protocols.shares.table_transfers import Transfers
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord

MIN_LOSS_ROWS, MAX_LOSS_ROWS = 20, 65_536  # rows
_LOSS_BITS = 44
_FRACTION = 16  # bits of a loss below one
_RING = ShareRing(64)


class LossTable(NamedTuple):
    """What the active party takes the loss of rows from: the loss of each of f (m x 1) and targets (m x k), the targets
    of each row and output (n c x k), and the f of their least losses (n c x 1)."""

    values: Callable[[Floats, Floats], Floats]
    targets: Floats
    minimizers: Floats


class LossSum(DisclosingMessage, frozen=True):
    """The sum of the partner's shares."""

    total: bytes


def declares() -> list[MessageDeclaration]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    told = "of the rows measured: the sum of their losses, and how many are beyond half of the table's reach"
    return [
        *forward_sums.declares(),
        *table_lookup.declares_lookup(),
        MessageDeclaration(LossSum, "partner", "active", Reveal("output", told)),
    ]


@dataclass(frozen=True)
class OpenedLoss:
    """Means over rows and outputs: the loss, and the part beyond half of the table's reach."""

    loss: float
    far_share: float


def open_loss(
    products: Products,
    transfers: Transfers | None,
    terms: SharesParams,
    state: SharedState,
    number: int,
    X: ColumnSource,
    table: LossTable | None,
    *,
    occasion: str = "measure",
) -> OpenedLoss | None:
    """One party's side, with its columns X (n x d); what the active party learns, None elsewhere.

    transfers: at the two holders, those of the session. occasion, number: no two of a session are equal in both.
    table: at the active party. ProtocolError if a peer sends something of another size.
    """
    context, numbers = products.context, terms.encoding
    h = ForwardSums(products, terms, state, occasion, number, len(X)).block(0, X)  # 1
    if h is None or transfers is None:
        return None
    entries = None if table is None else _entries(numbers, table)
    shares = look_up_shares(
        products, transfers, terms.partner, numbers.index(h), numbers.table_bits, entries, _RING
    )  # 2
    total = shares.sum(dtype=np.uint64)
    if table is None:
        permit = context.channel.permit(DisclosureRecord(context.active, "losses", 2, 32, about=context.passives))
        products.send(context.active, LossSum(_RING.pack(total[None])), permit)  # 3
        return None
    (theirs,) = unpack_words(terms.partner, products.recv(terms.partner, LossSum).total, _RING, (1,))  # 3
    return _read((int(theirs) + int(total)) % 2**64, h.size)


def _entries(numbers: FixedPointEncoding, table: LossTable) -> Words:
    """Pack the loss of each entry (2^b x n c) and whether its sum is far out into one word each."""
    centres = numbers.table_centres(table.minimizers)
    distances = table_distances(numbers.knots, centres)
    f, of = (distances + centres).reshape(-1, 1), np.tile(table.targets, (numbers.entries, 1))
    most = 2.0 ** (_LOSS_BITS - _FRACTION) / MAX_LOSS_ROWS
    loss = np.clip(table.values(f, of), 0, most - 1).reshape(distances.shape)
    packed = np.rint(np.ldexp(loss, _FRACTION)).astype(np.uint64)
    packed |= (np.abs(distances) > numbers.reach / 2).astype(np.uint64) << np.uint64(_LOSS_BITS)
    return packed


def _read(total: int, rows: int) -> OpenedLoss:
    loss = (total & (2**_LOSS_BITS - 1)) * 2.0**-_FRACTION
    return OpenedLoss(loss / rows, (total >> _LOSS_BITS) / rows)

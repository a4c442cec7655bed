"""Look-up of shared sums in a table of the active party: the entries result as additive shares.

1. B, A     oblivious transfers for every sum (table_transfers.py), with random choices chi of the partner B
2. B -> A   offset = (i_B - chi) mod 2^b          i_B: top bits of its share
3. A -> B   T(i_A + offset + j) - mask - pad(j)   for each sum and j < 2^b
   B        entry chi + pad(chi): its share of the entry, uniform because of the mask
   A        the mask: its share

All received values are uniform.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.shares import table_transfers
from securevfl.protocols.shares.share_products import Products, read_offsets, unpack_words
from securevfl.protocols.shares.table_transfers import Transfers
from securevfl.runtime.codec import Message


class TableOffsets(Message, frozen=True):
    """One byte for each row and output."""

    offsets: bytes


class MaskedEntries(Message, frozen=True):
    """The masked table entries of every row, (2^b, n c) words with the bits of an entry."""

    entries: bytes


def declares_lookup() -> list[MessageDeclaration]:
    """Declare the disclosures of the messages of `look_up_shares`. Roles: active, partner."""
    return [
        *table_transfers.declares(),
        MessageDeclaration(TableOffsets, "partner", "active", Reveal("uniform"), structured=True),
        MessageDeclaration(MaskedEntries, "active", "partner", Reveal("uniform")),
    ]


def look_up_shares(
    products: Products,
    transfers: Transfers,
    partner: str,
    index: NDArray[np.uint8],
    bits: int,
    table: Words | None,
    ring: ShareRing,
) -> Words:
    """Return one holder's share of the table entry of each sum.

    Args:
        products: the session.
        transfers: oblivious transfers 1-of-2^bits.
        partner: the partner.
        index: this holder's table indices (any shape) of its shares of the sums.
        bits: b; the table has 2^b entries.
        table: at the active party, the table: one (2^b,) for all sums, or one for each sum (2^b, n).
        ring: the ring of the entries.

    Returns:
        The shares, uniform in the ring, in the shape of `index`.
    """
    context, indices, entries = products.context, index.ravel(), 2**bits
    (stored,) = transfers.generate([indices.size])  # 1
    if context.me == partner:
        chi, pad = table_transfers.chosen(stored, ring)
        products.send(context.active, TableOffsets(((indices - chi) & np.uint8(entries - 1)).tobytes()))  # 2
        shape = (entries, indices.size)
        masked = unpack_words(context.active, products.recv(context.active, MaskedEntries).entries, ring, shape)  # 3
        return ring.reduce(masked[chi, np.arange(indices.size)] + pad).reshape(index.shape)
    assert table is not None, "the active party has the table"
    offsets = read_offsets(partner, products.recv(partner, TableOffsets).offsets, indices.size, entries)  # 2
    mask = ring.uniform(Prg.fresh("masks of entries"), indices.size)
    rotated = (indices + offsets + np.arange(entries, dtype=np.uint8)[:, None]) & np.uint8(entries - 1)
    values = np.take_along_axis(table.reshape(entries, -1), rotated, axis=0)
    masked = values - mask - table_transfers.pads(stored, ring)
    products.send(partner, MaskedEntries(ring.pack(ring.reduce(masked))))  # 3
    return mask.reshape(index.shape)

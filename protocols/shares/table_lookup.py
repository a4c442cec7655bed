"""Look up shared sums in a table of the active party: the entries come out as shares."""

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
    """A byte for each row and output."""

    places: bytes


class MaskedEntries(Message, frozen=True):
    """The masked entries of every row, (2^b x n c) words of as many bits as the entries have."""

    entries: bytes


def declares_lookup() -> list[MessageDeclaration]:
    """Declare what the messages of `look_up_shares` reveal."""
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
    """One holder's share, in `ring` and uniform, of the entry of a table (2^bits,) that each sum falls to.

    index: the places (any shape) of its shares of the sums, which is the shape of what comes back. table: the active
    party's is used, one for all sums or one for each (2^bits x n). transfers: of as many bits. ProtocolError if a peer
    sends something of another size.
    """
    context, places, entries = products.context, index.ravel(), 2**bits
    (stored,) = transfers.generate([places.size])  # 2
    if context.me == partner:
        chi, pad = table_transfers.chosen(stored, ring)
        products.send(context.active, TableOffsets(((places - chi) & np.uint8(entries - 1)).tobytes()))  # 3
        shape = (entries, places.size)
        masked = unpack_words(context.active, products.recv(context.active, MaskedEntries).entries, ring, shape)  # 4
        return ring.reduce(masked[chi, np.arange(places.size)] + pad).reshape(index.shape)
    assert table is not None, "it is the active party's"
    asked = read_offsets(partner, products.recv(partner, TableOffsets).places, places.size, entries)  # 3
    mask = ring.uniform(Prg.fresh("masks of entries"), places.size)
    at = (places + asked + np.arange(entries, dtype=np.uint8)[:, None]) & np.uint8(entries - 1)
    masked = np.take_along_axis(table.reshape(entries, -1), at, axis=0) - mask - table_transfers.pads(stored, ring)
    products.send(partner, MaskedEntries(ring.pack(ring.reduce(masked))))  # 4
    return mask.reshape(index.shape)

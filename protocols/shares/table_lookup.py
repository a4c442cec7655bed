"""Look-up of secret-shared sums in a table of the active party, with the result as secret shares.

A is the active party, which has the labels and a table T of 2^b entries; B is its partner. Each has a share of every
sum, and the top b bits of its share are its index, i_A or i_B. No party learns the sum or the entry T[i_A + i_B].

1. B, A     an oblivious transfer for every sum (table_transfers.py): A has random numbers pad(0) .. pad(2^b - 1), and B
            has a random index chi and pad(chi)
2. B -> A   offset = (i_B - chi) mod 2^b
3. A -> B   T[i_A + offset + j] - mask - pad(j)   for each sum and each j < 2^b; indices are modulo 2^b
   B        its share of the entry: entry number chi of the received list, plus pad(chi)
   A        its share of the entry: the random mask

Comments refer to these steps by number. All received values are uniform. A session has its own subchannel and keys
(shares_session.py). *Packed* integers take only the bytes that their bits need.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.shares import table_transfers
from securevfl.protocols.shares.rotated_tables import TableStarts
from securevfl.protocols.shares.share_products import Products, read_offsets, unpack_words
from securevfl.protocols.shares.table_transfers import Transfers
from securevfl.runtime.codec import Message

SUMS_PER_LOOKUP = 4096
"""Number of sums in a block of a look-up."""

TablesFrom = Callable[[slice, TableStarts], NDArray[Any]]
"""A function that returns the tables (m, 2^b) of a block of m sums, each rotated to start at an index (m,)."""


class TableOffsets(Message, frozen=True):
    """The offset of step 2: one byte for each sum."""

    offsets: bytes


class MaskedEntries(Message, frozen=True):
    """The masked table entries of step 3: packed integers (m, 2^b) for m sums, with the bits of an entry."""

    entries: bytes


def declares_lookup() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message of `look_up_shares`. Roles: active, partner."""
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
    tables: TablesFrom | None,
    ring: ShareRing,
    *,
    meanwhile: Callable[[], None] = lambda: None,
) -> Words:
    """Look up the table entry of each secret-shared sum, and return this party's share of the entries.

    Sums are looked up in blocks of `SUMS_PER_LOOKUP`. The partner sends its messages about all blocks before it reads
    the first entries, so it waits for a single round trip.

    Args:
        products: this party's session with the other party, whose subchannel carries the messages.
        transfers: oblivious transfers that select one of 2^bits pads.
        partner: the name of party B.
        index: this party's table index for each sum (any shape).
        bits: the number b; the table has 2^b entries.
        tables: at the active party, a function that returns the table of every sum of a block, rotated to start at the
            index that it receives for this sum; None at the partner.
        ring: the ring of the entries, which are integers modulo a power of two.
        meanwhile: a function that the partner calls while it waits for the first entries.

    Returns:
        The shares, uniformly random, in the shape of `index`.
    """
    indices = index.ravel()
    blocks = [slice(start, start + SUMS_PER_LOOKUP) for start in range(0, max(1, indices.size), SUMS_PER_LOOKUP)]
    if products.context.me != partner:
        assert tables is not None, "the active party has the tables"
        shares = [
            _send_entries(products, transfers, partner, indices[block], bits, partial(tables, block), ring)
            for block in blocks
        ]
        return np.concatenate(shares).reshape(index.shape)
    requested = [_send_offsets(products, transfers, indices[block], bits, ring) for block in blocks]
    meanwhile()
    shares = [_read_entries(products, chi, pad, bits, ring) for chi, pad in requested]
    return np.concatenate(shares).reshape(index.shape)


def _send_offsets(
    products: Products, transfers: Transfers, indices: NDArray[np.uint8], bits: int, ring: ShareRing
) -> tuple[NDArray[np.uint8], Words]:
    """Send the partner's offsets for a block of sums; return the random indices chi (m,) and their pads (m,)."""
    (stored,) = transfers.generate([indices.size])  # step 1
    chi, pad = table_transfers.chosen(stored, ring)
    offsets = (indices - chi) & np.uint8(2**bits - 1)
    products.send(products.context.active, TableOffsets(offsets.tobytes()))  # step 2
    return chi, pad


def _read_entries(products: Products, chi: NDArray[np.uint8], pad: Words, bits: int, ring: ShareRing) -> Words:
    """Receive the entries of a block of sums, and return the partner's shares (m,)."""
    active, shape = products.context.active, (chi.size, 2**bits)
    entries = products.recv(active, MaskedEntries).entries  # step 3
    masked = unpack_words(active, entries, ring, shape, where=(np.arange(chi.size), chi))
    return ring.reduce(masked + pad)


def _send_entries(
    products: Products,
    transfers: Transfers,
    partner: str,
    indices: NDArray[np.uint8],
    bits: int,
    tables: Callable[[TableStarts], NDArray[Any]],
    ring: ShareRing,
) -> Words:
    """Send the masked tables of a block of sums to the partner, and return the active party's shares (m,)."""
    (stored,) = transfers.generate([indices.size])  # step 1
    offsets = read_offsets(partner, products.recv(partner, TableOffsets).offsets, indices.size, 2**bits)  # step 2
    mask = ring.uniform(Prg.fresh("masks of entries"), indices.size)
    pads = products.context.meter("transfer", lambda: table_transfers.short_pads(stored)).T
    # integers of a pad's length wrap modulo a multiple of the ring's size
    masked = tables((indices + offsets) & np.uint8(2**bits - 1)).astype(pads.dtype, copy=False)
    masked = masked - mask.astype(pads.dtype)[:, None]
    masked -= pads
    if ring.bits < 8 * pads.dtype.itemsize:
        masked &= pads.dtype.type(ring.mask)
    products.send(partner, MaskedEntries(ring.pack(masked)))  # step 3
    return mask

"""How many sums of a training on shares come near the end of the table: one opened count, and no score.

1. all      shares of H = X theta at the active party A and its partner B (new_sums.py)
2. B, A     transfers for every row (table_transfers.py), B's choices chi
3. B -> A   place = (i_B - chi) mod 2^b          i_B = top bits of its share
4. A -> B   far(i_A + place + j) - mask - pad(j)  for each row and j < 2^b, modulo 2^11
   B        entry chi + pad(chi): a share of whether |H| is beyond half of the table's reach, uniform by the mask
5. B -> A   the sum of its shares, modulo 2^11
   A        adds the sum of its masks: how many are beyond

A learns the count; everything else that either receives is uniform. A party that deviates puts other entries into its
tables and learns their sum, which is 11 bits of its choice about the rows that are counted. So B tells a count only as
often as its ledger lets these rows be counted (score_ledger.py), and after that an empty one, which ends nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing
from securevfl.errors import ProtocolError
from securevfl.protocols.declared import Declared, Reveal
from securevfl.protocols.shares import new_sums, table_transfers
from securevfl.protocols.shares.new_sums import NewSums, words
from securevfl.protocols.shares.share_numbers import Numbers
from securevfl.protocols.shares.share_products import Products
from securevfl.protocols.shares.table_transfers import Transfers
from securevfl.protocols.shares.visits import SharedState
from securevfl.protocols.shares.work_ahead import Terms
from securevfl.runtime.codec import Message
from securevfl.runtime.door import Entry, Telling

__all__ = ["BITS", "MOST", "counted", "declares"]

BITS = 11
MOST = 1024  # sums: rows times outputs
_RING = ShareRing(BITS)


class FarPlaces(Message, frozen=True):
    """A byte for each row and output."""

    places: bytes


class FarTables(Message, frozen=True):
    """The masked entries of every row, (2^b x n c) words of 11 bits."""

    entries: bytes


class FarCount(Telling, frozen=True):
    """The sum of the partner's shares, a word of 11 bits, or nothing where these rows were counted often enough."""

    total: bytes


def declares() -> list[Declared]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    return [
        *new_sums.declares(),
        *table_transfers.declares(),
        Declared(FarPlaces, "partner", "active", Reveal("uniform"), structured=True),
        Declared(FarTables, "active", "partner", Reveal("uniform")),
        Declared(
            FarCount,
            "partner",
            "active",
            Reveal("output", f"of {MOST} training rows at most: how many are beyond half of the table's reach"),
        ),
    ]


def counted(
    products: Products,
    transfers: Transfers | None,
    terms: Terms,
    state: SharedState,
    number: int,
    X: Floats,
    *,
    allowed: Callable[[], bool],
) -> int | None:
    """One party's side, with its columns X (n x d); the count of sums that are far at the active party, None elsewhere
    and where the partner tells none.

    transfers: at the two holders, those of the session. number: no two of a session are equal. allowed: whether the
    partner may tell one more count of these rows, which it notes. ProtocolError if a peer sends something of another
    size.
    """
    seat, numbers, ring = products.seat, terms.numbers, ShareRing(terms.numbers.bits)
    h = NewSums(products, terms, state, "range", number, len(X)).block(0, X)  # 1
    if h is None or transfers is None:
        return None
    (stored,) = transfers.made([h.size])  # 2
    index = numbers.index(ring.reduce(h)).ravel()
    shape, last = (numbers.entries, h.size), np.uint8(numbers.entries - 1)
    if seat.me == terms.partner:
        chi, pad = table_transfers.chosen(stored, _RING)
        products.send(seat.active, FarPlaces(((index - chi) & last).tobytes()))  # 3
        entries = words(seat.active, products.recv(seat.active, FarTables).entries, _RING, shape)  # 4
        total = (entries[chi, np.arange(h.size)] + pad).sum(dtype=np.uint64)
        about = tuple(name for name in seat.parties if name != seat.active)
        more = allowed()
        told = seat.channel.tell(Entry(seat.active, "losses", int(more), BITS, about=about))
        products.send(seat.active, FarCount(_RING.pack(_RING.reduce(total[None])) if more else b""), told)  # 5
        return None
    places = _places(terms.partner, products.recv(terms.partner, FarPlaces).places, h.size, numbers)  # 3
    mask = _RING.uniform(Prg.fresh("masks of a count"), h.size)
    at = (index + places + np.arange(numbers.entries, dtype=np.uint8)[:, None]) & last
    far = (np.abs(numbers.knots) > numbers.reach / 2).astype(np.uint64)
    entries = far[at] - mask - table_transfers.pads(stored, _RING)
    products.send(terms.partner, FarTables(_RING.pack(_RING.reduce(entries))))  # 4
    if not (opened := products.recv(terms.partner, FarCount).total):
        return None
    (theirs,) = words(terms.partner, opened, _RING, (1,))  # 5
    return int(_RING.reduce(theirs + mask.sum(dtype=np.uint64)))


def _places(name: str, data: bytes, rows: int, numbers: Numbers) -> NDArray[np.uint8]:
    places = np.frombuffer(data, np.uint8)
    if len(places) != rows or (places >= numbers.entries).any():
        raise ProtocolError(
            f"{name}: {rows} places below {numbers.entries} were expected, others came; do both run the same job?"
        )
    return places

"""How good a model on shares is on some rows: one opened sum, and no score.

1. all      shares of H = X theta at the active party A and its partner B (new_sums.py)
2. B, A     transfers for every row (table_transfers.py), B's choices chi
3. B -> A   place = (i_B - chi) mod 2^b          i_B = top bits of its share
4. A -> B   T_y(i_A + place + j) - mask - pad(j)  for each row and j < 2^b, modulo 2^64
   B        entry chi + pad(chi): a share of the row's entry, uniform by the mask
5. B -> A   the sum of its shares
   A        adds the sum of its masks: the sum of all rows' entries

An entry holds two numbers side by side, so that a sum of rows holds their two sums: the loss, and whether |H| is beyond
half of the table's reach. A learns these two sums; everything else that either receives is uniform. Between two entries
the loss is interpolated, so it is too high by an eighth of its curvature times the square of the step at most. Where
the loss is zero throughout, one count is all that is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing, Words
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

__all__ = ["FEWEST", "MOST", "Measured", "Values", "declares", "measure"]

FEWEST, MOST = 20, 65_536  # rows
_LOSS_BITS = 44
_FRACTION = 16  # bits of a loss below one
_RING = ShareRing(64)

Values = Callable[[Floats, Floats], Floats]  # the loss of each of f (m x 1) and targets (m x k)


class MeasuredPlaces(Message, frozen=True):
    """A byte for each row and output."""

    places: bytes


class MeasuredTables(Message, frozen=True):
    """The masked entries of every row, (2^b x n c) words of 64 bits."""

    entries: bytes


class MeasuredSum(Telling, frozen=True):
    """The sum of the partner's shares."""

    total: bytes


def declares() -> list[Declared]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    told = "of the rows measured: the sum of their losses, and how many are beyond half of the table's reach"
    return [
        *new_sums.declares(),
        *table_transfers.declares(),
        Declared(MeasuredPlaces, "partner", "active", Reveal("uniform"), structured=True),
        Declared(MeasuredTables, "active", "partner", Reveal("uniform")),
        Declared(MeasuredSum, "partner", "active", Reveal("output", told)),
    ]


@dataclass(frozen=True)
class Measured:
    """Means over rows and outputs: the loss, and the part beyond half of the table's reach."""

    loss: float
    far: float


def measure(
    products: Products,
    transfers: Transfers | None,
    terms: Terms,
    state: SharedState,
    number: int,
    X: Floats,
    table: tuple[Values, Floats] | None,
    *,
    occasion: str = "measure",
) -> Measured | None:
    """One party's side, with its columns X (n x d); what the active party learns, None elsewhere.

    transfers: at the two holders, those of the session. occasion, number: no two of a session are equal in both.
    table: at the active party the loss and the targets (n c x k) of each row and output. ProtocolError if a peer sends
    something of another size.
    """
    seat, numbers, ring = products.seat, terms.numbers, ShareRing(terms.numbers.bits)
    h = NewSums(products, terms, state, occasion, number, len(X)).block(0, X)  # 1
    if h is None or transfers is None:
        return None
    (stored,) = transfers.made([h.size])  # 2
    index = numbers.index(ring.reduce(h)).ravel()
    if table is None:
        chi, pad = table_transfers.chosen(stored, _RING)
        places = (index - chi) & np.uint8(numbers.entries - 1)
        products.send(seat.active, MeasuredPlaces(places.tobytes()))  # 3
        shape = (numbers.entries, h.size)
        entries = words(seat.active, products.recv(seat.active, MeasuredTables).entries, _RING, shape)  # 4
        total = (entries[chi, np.arange(h.size)] + pad).sum(dtype=np.uint64)
        told = seat.channel.tell(Entry(seat.active, "losses", 2, 32, about=seat.passives))
        products.send(seat.active, MeasuredSum(_RING.pack(total[None])), told)  # 5
        return None
    places = _places(terms.partner, products.recv(terms.partner, MeasuredPlaces).places, h.size, numbers)  # 3
    mask = _RING.uniform(Prg.fresh("masks of a measurement"), h.size)
    at = (index + places + np.arange(numbers.entries, dtype=np.uint8)[:, None]) & np.uint8(numbers.entries - 1)
    entries = _entries(numbers, *table)[at, np.arange(h.size)] - mask - table_transfers.pads(stored, _RING)
    products.send(terms.partner, MeasuredTables(_RING.pack(entries)))  # 4
    (theirs,) = words(terms.partner, products.recv(terms.partner, MeasuredSum).total, _RING, (1,))  # 5
    return _read((int(theirs) + int(mask.sum(dtype=np.uint64))) % 2**64, h.size)


def _places(name: str, data: bytes, rows: int, numbers: Numbers) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    places = np.frombuffer(data, np.uint8)
    if len(places) != rows or (places >= numbers.entries).any():
        raise ProtocolError(
            f"{name}: {rows} places below {numbers.entries} were expected, others came; do both run the same job?"
        )
    return places


def _entries(numbers: Numbers, values: Values, targets: Floats) -> Words:
    """Pack the loss of each entry (2^b x n c) and whether its sum is far out into one word each.

    targets: (n x c x k), those of each row and output.
    """
    knots = numbers.knots
    f, of = np.repeat(knots, len(targets)), np.tile(targets, (len(knots), 1))
    most = 2.0 ** (_LOSS_BITS - _FRACTION) / MOST
    loss = np.clip(values(f[:, None], of).ravel(), 0, most - 1)
    far = np.abs(f) > numbers.reach / 2
    packed = np.rint(np.ldexp(loss, _FRACTION)).astype(np.uint64)
    packed |= far.astype(np.uint64) << np.uint64(_LOSS_BITS)
    return packed.reshape(len(knots), len(targets))


def _read(total: int, rows: int) -> Measured:
    loss = (total & (2**_LOSS_BITS - 1)) * 2.0**-_FRACTION
    return Measured(loss / rows, (total >> _LOSS_BITS) / rows)

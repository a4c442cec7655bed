"""Forward sums of rows outside a training on shares: made when they are asked for, and seen by nobody.

theta_k = s_k + sum_h r_kh as in shares.py, A the active party, B its partner, C any other; h_k is X_k s_k and the
party's shares of all X r.

0. h -> k   [[r_kh]]_h under keys of this occasion             once for all blocks of rows
1. k -> h   masked X_k r_kh => one share at k, one at h        for each block
2. C -> A   h_C - kappa                                        kappa a keystream that B has too
   A        h_A + all that came     B   h_B + all kappa        shares of H = X theta, modulo 2^L

What comes is a ciphertext under another's key or uniform (share_products.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats, RowSlices
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import Factor, Integers, ShareRing, Words, narrow
from securevfl.protocols.declared import Declared, Reveal
from securevfl.protocols.shares import share_products, table_transfers
from securevfl.protocols.shares.placed_columns import PlacedColumns
from securevfl.protocols.shares.share_numbers import away
from securevfl.protocols.shares.share_products import Elsewhere, Products, Query, asked_places, words
from securevfl.protocols.shares.table_transfers import Transfers
from securevfl.protocols.shares.visits import SharedState
from securevfl.protocols.shares.work_ahead import RowBlock, Terms
from securevfl.runtime.channel import Entry, Telling
from securevfl.runtime.codec import Message

STRETCH = 16_384  # rows of one product
_READ = 4096  # rows that are made into integers at a time


NewRows = RowSlices | PlacedColumns  # of which batch 0 is meant


class SumPart(Message, frozen=True):
    """h_C - kappa, (n x c) words."""

    words: bytes


def declares() -> list[Declared]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    return [*share_products.declares(), Declared(SumPart, "passive", "active", Reveal("uniform"))]


class NewSums:
    """One party's side of one occasion, whichever it is."""

    def __init__(
        self, products: Products, terms: Terms, state: SharedState, occasion: str, number: int, rows: int
    ) -> None:
        """Begins: all parties make theirs at the same point.

        occasion, number: no two of a session are equal in both. rows: about how many a block has.
        """
        self._seat, self._terms, self._products = products.seat, terms, products
        self._ring = ShareRing(terms.numbers.bits)
        seat, ring = self._seat, self._ring
        self._passives = tuple(name for name in seat.passives if name != terms.partner)
        self._own = ring.reduce(terms.rule_of(seat.me).theta(state.own, state.visits))
        products.meet()
        self._holders, (self._evaluators,) = products.keys(number, (occasion,))  # 0
        once = products.work(0)
        for at, (name, r) in enumerate(state.others.items()):
            V = ring.reduce(terms.rule_of(name).theta(r, state.visits))
            products.ask(once, [name], self._holders[0], {at: V}, columns=lambda at: min(rows, STRETCH), uses=1)  # 0
        self._sealed = {name: products.recv(name, Query).ciphertext for name in products.served}
        label = f"sums on shares, {occasion} {number}"
        peers = self._passives if seat.me == terms.partner else (terms.partner,) if seat.me in self._passives else ()
        self._kappas = [Prg(products.pair_keys[name], label) for name in peers]

    def block(self, number: int, X: NewRows) -> Words | None:
        """Return this party's share (n x c) of H for block `number`, of which it has columns X (n x d), read some rows
        at a time where they are in this process.

        None at other parties than the active one and its partner.
        """
        seat, ring = self._seat, self._ring
        pieces = [RowBlock(0, at, min(at + STRETCH, len(X))) for at in range(0, len(X), STRETCH)]
        factors: list[Integers | Elsewhere]
        if isinstance(X, PlacedColumns):
            h = np.concatenate([X.sums(piece, self._own) for piece in pieces])
            factors = [X.integers(piece)[0] for piece in pieces]
        else:
            stretches = (X[at : at + _READ] for at in range(0, len(X), _READ))
            integers = np.concatenate([narrow(self._terms.numbers.columns(rows)) for rows in stretches])
            h = Factor(ring, integers).times(self._own)
            factors = [integers[piece.start : piece.stop] for piece in pieces]
        h = h + self._shares(number, factors, apart=isinstance(X, PlacedColumns))
        for prg in self._kappas:
            mask = ring.uniform(prg, h.shape)
            h = h + mask if seat.me == self._terms.partner else h - mask
        if seat.me in self._passives:
            self._products.send(seat.active, SumPart(ring.pack(ring.reduce(h))))  # 2
            return None
        for name in self._passives if seat.me == seat.active else ():
            h = h + words(name, self._products.recv(name, SumPart).words, ring, h.shape)  # 2
        return ring.reduce(h)

    def _shares(self, number: int, factors: Sequence[Integers | Elsewhere], *, apart: bool) -> Words:
        """Add up this party's shares of all X r of a block, from products of stretches of rows."""
        products, c, d = self._products, self._terms.outputs, max(self._terms.columns.values())
        stretches = dict(enumerate(factors, number))
        work = products.work(len(stretches) * products.scheme.seconds(d, c, factors[0].shape[0]))
        sealed = self._sealed
        parts = [
            products.answer(
                work,
                self._evaluators,
                dict.fromkeys(stretches, c),
                lambda k: stretches[k].T,
                sealed=lambda name, _: sealed[name],
                apart=apart,
            )
        ]
        shapes = {k: (X.shape[0], c) for k, X in stretches.items()}
        parts += [products.opened(work, self._holders[0], name, shapes) for name in products.asked]
        whole = [np.concatenate([shares[k] for k in stretches]) for shares in parts]
        total: Words = np.sum(whole, axis=0, dtype=np.uint64)
        return total


# How many sums of a training on shares are beyond the end of the table: one opened count, and no score.
#
# 1. all      shares of H = X theta at the active party A and its partner B (new_sums.py)
# 2. B, A     transfers for every row (table_transfers.py), B's choices chi
# 3. B -> A   place = (i_B - chi) mod 2^b          i_B = top bits of its share
# 4. A -> B   far(i_A + place + j) - mask - pad(j)  for each row and j < 2^b, modulo 2^11
#    B        entry chi + pad(chi): a share of whether H is beyond the row's table, uniform by the mask
# 5. B -> A   the sum of its shares, modulo 2^11
#    A        adds the sum of its masks: how many are beyond
#
# This table goes by the highest bits of all that the ring holds; where that is no more than the table of the training,
# beyond half of its reach counts. Steps 2 to 4 serve other tables too (`looked_up`).
#
# A learns the count; everything else that either receives is uniform. A party that deviates puts other entries into its
# tables and learns their sum, which is 11 bits of its choice about the rows that are counted. So B tells a count only
# as often as its ledger lets these rows be counted (score_ledger.py), and after that an empty one, which ends nothing.


BITS = 11
MOST = 1024  # sums: rows times outputs
_RING = ShareRing(BITS)


class EntryPlaces(Message, frozen=True):
    """A byte for each row and output."""

    places: bytes


class MaskedEntries(Message, frozen=True):
    """The masked entries of every row, (2^b x n c) words of as many bits as the entries have."""

    entries: bytes


class FarCount(Telling, frozen=True):
    """The sum of the partner's shares, a word of 11 bits, or nothing where these rows were counted often enough."""

    total: bytes


def declares_counts() -> list[Declared]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    return [
        *declares(),
        *declares_tables(),
        Declared(
            FarCount,
            "partner",
            "active",
            Reveal("output", f"of {MOST} training rows at most: how many are beyond the table's reach"),
        ),
    ]


def declares_tables() -> list[Declared]:
    """Declare what the messages of `looked_up` reveal."""
    return [
        *table_transfers.declares(),
        Declared(EntryPlaces, "partner", "active", Reveal("uniform"), structured=True),
        Declared(MaskedEntries, "active", "partner", Reveal("uniform")),
    ]


def counted(
    products: Products,
    transfers: Transfers | None,
    terms: Terms,
    state: SharedState,
    number: int,
    X: NewRows,
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
    seat, numbers = products.seat, terms.numbers
    h = NewSums(products, terms, state, "range", number, len(X)).block(0, X)  # 1
    if h is None or transfers is None:
        return None
    end = numbers.reach if numbers.roomy else numbers.reach / 2
    far = (np.abs(away(numbers.top_knots, centres)) > end).astype(np.uint64)
    index, bits = numbers.top_index(h), numbers.top_bits
    total = looked_up(products, transfers, terms.partner, index, bits, far, _RING).sum(dtype=np.uint64)  # 2 to 4
    if seat.me == terms.partner:
        about = tuple(name for name in seat.parties if name != seat.active)
        more = allowed()
        told = seat.channel.tell(Entry(seat.active, "losses", int(more), BITS, about=about))
        products.send(seat.active, FarCount(_RING.pack(_RING.reduce(total[None])) if more else b""), told)  # 5
        return None
    if not (opened := products.recv(terms.partner, FarCount).total):
        return None
    (theirs,) = words(terms.partner, opened, _RING, (1,))  # 5
    return int(_RING.reduce(theirs + total))


def looked_up(
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
    seat, places, entries = products.seat, index.ravel(), 2**bits
    (stored,) = transfers.made([places.size])  # 2
    if seat.me == partner:
        chi, pad = table_transfers.chosen(stored, ring)
        products.send(seat.active, EntryPlaces(((places - chi) & np.uint8(entries - 1)).tobytes()))  # 3
        shape = (entries, places.size)
        masked = words(seat.active, products.recv(seat.active, MaskedEntries).entries, ring, shape)  # 4
        return ring.reduce(masked[chi, np.arange(places.size)] + pad).reshape(index.shape)
    assert table is not None, "it is the active party's"
    asked = asked_places(partner, products.recv(partner, EntryPlaces).places, places.size, entries)  # 3
    mask = ring.uniform(Prg.fresh("masks of entries"), places.size)
    at = (places + asked + np.arange(entries, dtype=np.uint8)[:, None]) & np.uint8(entries - 1)
    masked = np.take_along_axis(table.reshape(entries, -1), at, axis=0) - mask - table_transfers.pads(stored, ring)
    products.send(partner, MaskedEntries(ring.pack(ring.reduce(masked))))  # 4
    return mask.reshape(index.shape)

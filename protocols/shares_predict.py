"""Scores of new rows from a model on shares: the active party learns them, and nobody learns a weight.

Rows come in blocks; shares of H are made by shares_sums.py, f_H the fractional bits of a sum.

0. A -> k   a commitment to A's own columns of each row, a keyed digest
1. all      shares of H at A and at its partner B
2. B -> A   floor((h_B + D) / 2^m), m = f_H - 16             D secret, uniform below 2^m
   A        H = h_A + what came, to 16 fractional bits

What B sends is its sum rounded at random to 16 fractional bits: without D the bits below would depend on the noise of
encryption. Beyond the table's reach scores wrap, as sums do in training. Scores are outputs: what they tell is said in
shares_ledger.py, and every party but A asks its ledger before it sends anything about a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.crypto.prg import Prg
from securevfl.crypto.scheme import Floats
from securevfl.crypto.share_ring import ShareRing
from securevfl.errors import ProtocolError
from securevfl.protocols import shares_sums
from securevfl.protocols.base import Declared, Reveal
from securevfl.protocols.shares import State
from securevfl.protocols.shares_ahead import Terms
from securevfl.protocols.shares_ledger import COMMITMENT, Ledger
from securevfl.protocols.shares_products import Products
from securevfl.protocols.shares_sums import NewSums, words
from securevfl.runtime.codec import Message

__all__ = ["FRACTION", "Asking", "Rows", "Scores", "declares"]

FRACTION = 16  # bits of a score below one


class Committed(Message, frozen=True):
    """16 bytes a row, the same for the same row with the same columns and no other."""

    rows: bytes


class OpenedScores(Message, frozen=True):
    """The partner's part of the scores, (n x c) words of L - m bits, rounded at random."""

    words: bytes


def declares() -> list[Declared]:
    """What the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    own = Reveal("plain", "keyed digests of the active party's rows: whether one has changed since it was asked before")
    return [
        *shares_sums.declares(),
        *(Declared(Committed, "active", other, own) for other in ("partner", "passive")),
        Declared(OpenedScores, "partner", "active", Reveal("output", "the scores of the rows that were asked")),
    ]


@dataclass(frozen=True)
class Rows:
    """The rows that are asked about: their ids, and this party's columns (n x d) as they are."""

    ids: Sequence[bytes]
    raw: Floats


@dataclass(frozen=True)
class Asking:
    """One party's terms of an occasion: the model's name, the same in every session, and its own ledger."""

    model: bytes
    ledger: Ledger


class Scores:
    """One party's side of an occasion of scoring, whichever it is."""

    def __init__(
        self, products: Products, terms: Terms, state: State, asking: Asking, *, number: int = 0, rows: int
    ) -> None:
        """number: of the occasion in this session. rows: about how many a block has."""
        self._seat, self._terms, self._products, self._asking = products.seat, terms, products, asking
        self._dropped = max(0, terms.numbers.f_x + terms.numbers.f_theta - FRACTION)
        self._ring = ShareRing(terms.numbers.bits)
        self._coarse = ShareRing(terms.numbers.bits - self._dropped)
        self._dither = Prg.fresh("dither of scores")
        self._sums = NewSums(products, terms, state, "scores", number, rows)

    def block(self, number: int, X: Floats, rows: Rows) -> Floats | None:
        """Goes through block `number` with this party's columns X (n x d) of these rows, scaled as in training.

        The scores (n x c) at the active party, None elsewhere. LeakageError if this party's ledger refuses.
        """
        seat, asking = self._seat, self._asking
        if seat.me == seat.active:
            commitments = asking.ledger.commitments(rows.ids, rows.raw)
            for name in self._products.others:
                self._products.send(name, Committed(commitments))  # 0
        else:
            commitments = self._products.recv(seat.active, Committed).rows  # 0
            if len(commitments) != COMMITMENT * len(rows.ids):
                raise ProtocolError(
                    f"{seat.active}: {len(rows.ids)} commitments were expected, {len(commitments)} bytes came; "
                    "do both ask for the same rows?"
                )
            asking.ledger.admit(asking.model, seat.active, rows.ids, commitments, X.shape[1], me=seat.me)
        h = self._sums.block(number, X)  # 1
        if h is None:
            return None
        if seat.me == seat.active:
            partner = self._terms.partner
            opened = words(partner, self._products.recv(partner, OpenedScores).words, self._coarse, h.shape)  # 2
            total = self._ring.signed(self._ring.reduce(h + (opened << np.uint64(self._dropped))))
            return np.ldexp(total.astype(np.float64), -(self._terms.numbers.f_x + self._terms.numbers.f_theta))
        below = self._dither.array(h.shape, np.uint64)
        D = below >> np.uint64(64 - self._dropped) if self._dropped else np.zeros_like(below)
        rounded = self._ring.reduce(h + D) >> np.uint64(self._dropped)
        self._products.send(seat.active, OpenedScores(self._coarse.pack(rounded)))  # 2
        return None

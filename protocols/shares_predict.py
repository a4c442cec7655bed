"""Scores of new rows from a model on shares: one party learns them, and nobody learns a weight.

Rows come in blocks; shares of H are made by shares_sums.py, f_H the fractional bits of a sum. Q is who asks, most often
the active party A; B is A's partner.

0. Q -> k   a commitment to Q's own columns of each row, a keyed digest
1. all      shares of H at A and B
2. B -> Q   floor((h_B + D) / 2^m), m = f_H - 16             D secret, uniform below 2^m; A sends it if Q is B
3. A -> Q   h_A, if Q is neither                             uniform
   Q        H = the other share + 2^m what came in 2, to 16 fractional bits

What is sent in 2 is a sum rounded at random to 16 fractional bits: without D the bits below would depend on the noise
of encryption. Beyond the table's reach scores wrap, as sums do in training. Scores are outputs: what they tell is said
in shares_ledger.py, and every party but Q asks its ledger before it sends anything about a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.crypto.prg import Prg
from securevfl.crypto.scheme import Floats
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.errors import ProtocolError
from securevfl.protocols import shares_sums
from securevfl.protocols.base import Declared, Reveal
from securevfl.protocols.shares import State
from securevfl.protocols.shares_ahead import Terms
from securevfl.protocols.shares_ledger import COMMITMENT, Ledger
from securevfl.protocols.shares_products import Products
from securevfl.protocols.shares_sums import NewSums, words
from securevfl.roles import ACTIVE, PARTNER, PASSIVE, Role
from securevfl.runtime.codec import Message

__all__ = ["FRACTION", "Asking", "Rows", "Scores", "declares"]

FRACTION = 16  # bits of a score below one


class Committed(Message, frozen=True):
    """16 bytes a row, the same for the same row with the same columns and no other."""

    rows: bytes


class OpenedScores(Message, frozen=True):
    """A holder's part of the scores, (n x c) words of L - m bits, rounded at random."""

    words: bytes


class ScoreShare(Message, frozen=True):
    """The active party's part of the scores for a party that is no holder, (n x c) words."""

    words: bytes


def declares(asker: Role = ACTIVE) -> list[Declared]:
    """What the messages reveal. Roles: active, partner, passive (any party that is neither); asker: who asks."""
    own = Reveal("plain", "keyed digests of the asking party's rows: whether one has changed since it was asked before")
    told, holders = Reveal("output", "the scores of the rows that were asked"), (ACTIVE, PARTNER)
    others = [role for role in (ACTIVE, PARTNER, PASSIVE) if role != asker or role == PASSIVE]
    return [
        *shares_sums.declares(),
        *(Declared(Committed, asker, other, own) for other in others),
        Declared(OpenedScores, ACTIVE if asker == PARTNER else PARTNER, asker, told),
        *([] if asker in holders else [Declared(ScoreShare, ACTIVE, asker, Reveal("uniform"))]),
    ]


@dataclass(frozen=True)
class Rows:
    """The rows that are asked about: their ids, and this party's columns (n x d) as they are."""

    ids: Sequence[bytes]
    raw: Floats


@dataclass(frozen=True)
class Asking:
    """One party's terms of an occasion: the model's name, the same in every session, its own ledger, and who asks (the
    active party if empty).
    """

    model: bytes
    ledger: Ledger
    to: str = ""


class Scores:
    """One party's side of an occasion of scoring, whichever it is."""

    def __init__(
        self, products: Products, terms: Terms, state: State, asking: Asking, *, number: int = 0, rows: int
    ) -> None:
        """number: of the occasion in this session. rows: about how many a block has."""
        self._seat, self._terms, self._products, self._asking = products.seat, terms, products, asking
        self._dropped = max(0, terms.numbers.f_x + terms.numbers.f_theta - FRACTION)
        self._to = asking.to or self._seat.active
        self._ring = ShareRing(terms.numbers.bits)
        self._coarse = ShareRing(terms.numbers.bits - self._dropped)
        self._dither = Prg.fresh("dither of scores")
        self._sums = NewSums(products, terms, state, "scores", number, rows)

    def block(self, number: int, X: Floats, rows: Rows) -> Floats | None:
        """Goes through block `number` with this party's columns X (n x d) of these rows, scaled as in training.

        The scores (n x c) at the party that asks, None elsewhere. LeakageError if this party's ledger refuses.
        """
        self._agree(rows)  # 0
        h = self._sums.block(number, X)  # 1
        return self._opened(h, (len(X), self._terms.outputs))

    def _agree(self, rows: Rows) -> None:
        seat, asking, to = self._seat, self._asking, self._to
        if seat.me == to:
            commitments = asking.ledger.commitments(rows.ids, rows.raw)
            for name in self._products.others:
                self._products.send(name, Committed(commitments))  # 0
            return
        commitments = self._products.recv(to, Committed).rows  # 0
        if len(commitments) != COMMITMENT * len(rows.ids):
            raise ProtocolError(
                f"{to}: {len(rows.ids)} commitments were expected, {len(commitments)} bytes came; "
                "do both ask for the same rows?"
            )
        columns = rows.raw.shape[1]  # X may have one of ones beside them
        asking.ledger.admit(asking.model, to, rows.ids, commitments, columns, me=seat.me)

    def _opened(self, h: Words | None, shape: tuple[int, int]) -> Floats | None:
        """The scores at the party that asks, from this party's share of H, if it is a holder."""
        seat, to, ring, send = self._seat, self._to, self._ring, self._products.send
        rounds = seat.active if to == self._terms.partner else self._terms.partner
        if seat.me == to:
            opened = words(rounds, self._products.recv(rounds, OpenedScores).words, self._coarse, shape)  # 2
            if h is None:
                h = words(seat.active, self._products.recv(seat.active, ScoreShare).words, ring, shape)  # 3
            total = ring.signed(ring.reduce(h + (opened << np.uint64(self._dropped))))
            return np.ldexp(total.astype(np.float64), -(self._terms.numbers.f_x + self._terms.numbers.f_theta))
        if h is not None and seat.me == rounds:
            below = self._dither.array(h.shape, np.uint64)
            D = below >> np.uint64(64 - self._dropped) if self._dropped else np.zeros_like(below)
            send(to, OpenedScores(self._coarse.pack(ring.reduce(h + D) >> np.uint64(self._dropped))))  # 2
        elif h is not None:
            send(to, ScoreShare(ring.pack(h)))  # 3
        return None

"""Scores of new rows from a model on shares: one party learns levels of them, and nobody learns a weight.

Rows come in blocks; shares of H are made by new_sums.py. Q is who asks, most often the active party A; B is A's
partner. R, the holder that is not Q (B if Q is neither), rounds; O is the other one. Levels are k bits, s apart
(share_levels.py), i_O the k bits of O's share from s on.

0. Q -> k   a commitment to Q's own columns of each row, a keyed digest
1. R -> k   whether it has answered this question before: then 2 and 3 are left out, and all take what they have kept
2. all      shares of H at A and B
3. O -> R   nothing: it has kept i_O, and no bit of its share below
4. R -> Q   floor((h_R + D) / s) mod 2^k         D secret, uniform below s, new for every score; R has kept it.
                                                 R may take a larger s, 2^m s, as its own columns ask for
5. O -> Q   i_O, if Q is neither                 uniform
   Q        (the two, added up, + 1/2) s

Without D the answer would be a function of H and of O's share, whose lower bits O has: f to within s rather than at
random. With it the mean of f is H, its deviation s / 2, and k bits of a row are told at most. The same question gets
the same bytes, nothing is computed anew: four answers to one question would undo half of the rounding.

Scores are outputs: what they tell is said in score_ledger.py, and every party but Q asks its ledger before it sends
anything about a block. Levels do not save few or heavy columns: one with most of the weight is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.roles import ACTIVE, PARTNER, PASSIVE, Role
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.errors import LeakageError, ProtocolError
from securevfl.protocols.declared import Declared, Reveal
from securevfl.protocols.shares import new_sums
from securevfl.protocols.shares.new_sums import NewSums, words
from securevfl.protocols.shares.score_ledger import COMMITMENT, Ledger, ScoreQuestion
from securevfl.protocols.shares.share_levels import Levels
from securevfl.protocols.shares.share_products import Products
from securevfl.protocols.shares.visits import SharedState
from securevfl.protocols.shares.work_ahead import Terms
from securevfl.runtime.codec import Message
from securevfl.runtime.door import Entry, Telling

__all__ = ["Asking", "QueriedRows", "Scores", "declares"]


class Committed(Telling, frozen=True):
    """16 bytes a row, the same for the same row with the same columns and no other."""

    rows: bytes


class AnsweredBefore(Message, frozen=True):
    """Whether the sender has answered this question before."""

    before: bool


class ShareKept(Message, frozen=True):
    """That the sender has kept its part of the scores."""


class OpenedScores(Telling, frozen=True):
    """A holder's part of the scores, (n x c) words of k bits, rounded at random."""

    words: bytes


class ScoreShare(Message, frozen=True):
    """The other holder's part for a party that is none, (n x c) words of k bits."""

    words: bytes


def declares(asker: Role = ACTIVE) -> list[Declared]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither); asker: who
    asks."""
    own = Reveal("plain", "keyed digests of the asking party's rows: whether one has changed since it was asked before")
    told, holders = Reveal("output", "levels of the scores of the rows that were asked"), (ACTIVE, PARTNER)
    others = [role for role in (ACTIVE, PARTNER, PASSIVE) if role != asker or role == PASSIVE]
    rounds, other = (ACTIVE, PARTNER) if asker == PARTNER else (PARTNER, ACTIVE)
    return [
        *new_sums.declares(),
        *(Declared(Committed, asker, other, own) for other in others),
        *(Declared(AnsweredBefore, rounds, each, Reveal("public")) for each in (other, PASSIVE)),
        Declared(ShareKept, other, rounds, Reveal("public")),
        Declared(OpenedScores, rounds, asker, told),
        *([] if asker in holders else [Declared(ScoreShare, ACTIVE, asker, Reveal("uniform"))]),
    ]


@dataclass(frozen=True)
class QueriedRows:
    """The rows that are asked about: their ids, and this party's columns (n x d) as they are."""

    ids: Sequence[bytes]
    raw: Floats


@dataclass(frozen=True)
class Asking:
    """One party's terms of an occasion.

    model: its name, the same in every session. ledger: this party's own; None where all tables are in one process, at
    all parties. to: who asks, the active party if empty. most: bits of a row that this party lets its scores have
    together. rounded: the levels that this party tells where it is the one that rounds, over the same sums as `levels`
    and no closer; `levels` if left out.
    """

    model: bytes
    ledger: Ledger | None
    levels: Levels
    to: str = ""
    most: float = float("inf")
    rounded: Levels | None = None


class Scores:
    """One party's side of an occasion of scoring, whichever it is."""

    def __init__(
        self, products: Products, terms: Terms, state: SharedState, asking: Asking, *, number: int = 0, rows: int
    ) -> None:
        """Prepare to answer questions for scores on shares of the model.

        number: of the occasion in this session. rows: about how many a block has.
        """
        seat = products.seat
        self._seat, self._terms, self._products, self._asking = seat, terms, products, asking
        self._state, self._number, self._rows = state, number, rows
        self._to = asking.to or seat.active
        self._rounds = seat.active if self._to == terms.partner else terms.partner
        self._other = terms.partner if self._rounds == seat.active else seat.active
        self._ring, self._coarse = ShareRing(terms.numbers.bits), ShareRing(asking.levels.bits)
        rounds = seat.me == self._rounds
        self._told_levels = asking.rounded if rounds and asking.rounded is not None else asking.levels
        self._dither = Prg.fresh("dither of scores")
        self._sums: NewSums | None = None

    def block(self, number: int, X: Floats, rows: QueriedRows) -> Floats | None:
        """Goes through block `number` with this party's columns X (n x d) of these rows, scaled as in training.

        The scores (n x c) at the party that asks, None elsewhere. LeakageError if this party's ledger refuses.
        """
        question, before = self._agree(rows)  # 0, 1
        part = self._kept(question) if before else self._made(number, X, question)
        return self._told(part, (len(X), self._terms.outputs), question)

    def _agree(self, rows: QueriedRows) -> tuple[ScoreQuestion | None, bool]:
        """Agree on the question, as this party's ledger knows it, and on whether it has been answered before."""
        seat, asking, to, products = self._seat, self._asking, self._to, self._products
        if asking.ledger is None:
            return None, False
        if seat.me == to:
            commitments = asking.ledger.commitments(rows.ids, rows.raw)
            for name in products.others:
                told = seat.channel.tell(Entry(name, "digests", len(rows.ids), 8 * COMMITMENT, about=(to,)))
                products.send(name, Committed(commitments), told)  # 0
        else:
            commitments = products.recv(to, Committed).rows  # 0
        if len(commitments) != COMMITMENT * len(rows.ids):
            raise ProtocolError(
                f"{to}: {len(rows.ids)} commitments were expected, {len(commitments)} bytes came; "
                "do both ask for the same rows?"
            )
        question = asking.ledger.question(asking.model, to, rows.ids, commitments)
        if seat.me != self._rounds:
            before = products.recv(self._rounds, AnsweredBefore).before  # 1
        else:
            before = asking.ledger.kept(question) is not None
        if seat.me != to and not before:
            bits = self._told_levels.bits * self._terms.outputs
            asking.ledger.admit(question, rows.raw, bits=bits, most=asking.most, me=seat.me)
        if seat.me == self._rounds:
            for name in products.others:
                products.send(name, AnsweredBefore(before))  # 1
        return question, before

    def _made(self, number: int, X: Floats, question: ScoreQuestion | None) -> Words | None:
        """Compute this party's part (n x c) of new scores, if it is a holder; it is kept before anything is told."""
        if self._sums is None:
            self._sums = NewSums(self._products, self._terms, self._state, "scores", self._number, self._rows)
        h, seat, levels, numbers = (
            self._sums.block(number, X),
            self._seat,
            self._told_levels,
            self._terms.numbers,
        )  # 2
        if h is None:
            return None
        if seat.me == self._rounds:
            below = self._dither.array(h.shape, np.uint64)
            h = h + (below >> np.uint64(64 - levels.shift(numbers)))
        finer = np.uint64(self._asking.levels.bits - levels.bits)
        part = levels.cut(numbers, self._ring.reduce(h)) << finer
        if self._asking.ledger is not None and question is not None:
            if seat.me == self._rounds:
                self._products.recv(self._other, ShareKept)  # 3
            self._asking.ledger.keep(question, self._coarse.pack(part))
            if seat.me == self._other:
                self._products.send(self._rounds, ShareKept())  # 3
        return part

    def _kept(self, question: ScoreQuestion | None) -> Words | None:
        """Read this party's part (n x c) of scores that were told before, if it is a holder."""
        ledger = self._asking.ledger
        assert ledger is not None and question is not None, "it has been asked"  # noqa: PT018
        if self._seat.me not in (self._rounds, self._other):
            return None
        data, c = ledger.kept(question), self._terms.outputs
        if data is None:
            raise LeakageError(
                f"{self._seat.me}: its part of scores that were told before was expected beside its ledger, it is not "
                "there; keep the scores you have"
            )
        return self._coarse.unpack(data, (len(question.rows), c))

    def _told(self, part: Words | None, shape: tuple[int, int], question: ScoreQuestion | None) -> Floats | None:
        """Return the scores (n x c) at the party that asks; the holders send it their parts."""
        seat, to, coarse, products = self._seat, self._to, self._coarse, self._products
        if seat.me == to:
            rounded = words(self._rounds, products.recv(self._rounds, OpenedScores).words, coarse, shape)  # 4
            if part is None:
                part = words(self._other, products.recv(self._other, ScoreShare).words, coarse, shape)  # 5
            return self._asking.levels.sums(part + rounded, rounded_down=1)
        if part is not None and seat.me == self._rounds:
            about = tuple(name for name in seat.parties if name != to)
            told = seat.channel.tell(Entry(to, "scores", part.size, self._told_levels.bits, about=about))
            products.send(to, OpenedScores(coarse.pack(part)), told)  # 4
        elif part is not None:
            products.send(to, ScoreShare(coarse.pack(part)))  # 5
        return None

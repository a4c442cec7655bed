"""Scores of new rows from a model on shares: one party learns levels of them, and nobody learns a weight.

Rows come in blocks; shares of H are made by forward_sums.py. Q is who asks, most often the active party A; B is A's
partner. R, the holder that is not Q (B if Q is neither), rounds; O is the other one. Levels are k bits, s apart
(fixed_point.py), i_O the k bits of O's share from s on.

0. Q -> k   a commitment to Q's own columns of each row, a keyed digest; which rows it knows that get no score
1. R -> k   which rows get no score from it, which have one that it has kept; then the other k -> k the same
            rows that nobody refuses are scored: 2 and 3 for those that have no score yet, what was kept for the others
2. all      shares of H at A and B
3. O -> R   nothing: it has kept i_O, and no bit of its share below
4. R -> Q   floor((h_R + D) / s) mod 2^k         D secret, uniform below s, new for every score; R has kept it.
                                                 R may take a larger s, 2^m s, as its own columns ask for
5. O -> Q   i_O, if Q is neither                 uniform
   Q        (the two, added up, + 1/2) s

Before 3, A and B look up by the highest bits of H (table_lookup.py, steps 2 to 4) how far it is moved where it is
beyond what levels cover (quantizer.py), in shares modulo 2^k, and each adds its own, times s, to h. So Q sees that such
a sum is beyond, and k bits say it. A that deviates puts other entries into these tables; k bits are what it is told all
the same.

Without D the answer would be a function of H and of O's share, whose lower bits O has: f to within s rather than at
random. With it the mean of f is H, its deviation s / 2, and k bits of a row are told at most. The same row gets
the same bytes in whatever block it comes, nothing is computed anew: four answers about one row would undo half of the
rounding. So it is for conversations at once: R notes which rows it scores before it says so, and another conversation
waits until they are done. R is the first to say, so that no two wait for each other.

Scores are outputs: what they tell is said in protocols/score_ledger, and every party but Q asks its ledger before it
sends anything about a block. Levels do not save few or heavy columns: one with most of the weight is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import ACTIVE, PARTNER, PASSIVE, Role
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.joint_prediction import RowsToScore
from securevfl.protocols.score_ledger.ledger import NEW, REFUSED, SELF, STORED, ScoreLedger, ScoreQuery
from securevfl.protocols.score_ledger.row_digests import COMMITMENT_BYTES
from securevfl.protocols.shares import forward_sums
from securevfl.protocols.shares.forward_sums import ForwardSums
from securevfl.protocols.shares.iteration import SharedState
from securevfl.protocols.shares.quantizer import Quantizer
from securevfl.protocols.shares.share_products import PAIRS, Products, unpack_words
from securevfl.protocols.shares.shares_params import SharesParams
from securevfl.protocols.shares.table_lookup import declares_lookup, look_up_shares
from securevfl.protocols.shares.table_transfers import Transfers
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord


class RowCommitments(DisclosingMessage, frozen=True):
    """16 bytes a row, the same for the same row with the same columns and no other; and a byte a row, 0 where it
    gets no score."""

    rows: bytes
    states: bytes


class RowStates(DisclosingMessage, frozen=True):
    """A byte a row: the sender refuses it, has no score of it, or has kept one."""

    states: bytes


class ShareStored(Message, frozen=True):
    """That the sender has kept its part of the scores."""


class RoundedScores(DisclosingMessage, frozen=True):
    """A holder's part of the scores, (n x c) words of k bits, rounded at random; finer: how many of k, the lowest ones,
    are left out, as fewer are told than were asked for."""

    words: bytes
    finer: int = 0


class ScoreShare(Message, frozen=True):
    """The other holder's part for a party that is none, (n x c) words of k bits."""

    words: bytes


def declares(asker: Role = ACTIVE) -> list[MessageDeclaration]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither); asker: who
    asks."""
    own = Reveal("plain", "keyed digests of the asking party's rows: whether one has changed since it was asked before")
    told, holders = Reveal("output", "levels of the scores of the rows that were asked"), (ACTIVE, PARTNER)
    others = [role for role in (ACTIVE, PARTNER, PASSIVE) if role != asker or role == PASSIVE]
    rounds, other = (ACTIVE, PARTNER) if asker == PARTNER else (PARTNER, ACTIVE)
    states = Reveal("plain", "which of the rows that are asked about its account refuses, in a word, or has answered")
    pairs = [(one, each) for one, each in PAIRS if one in others]
    return [
        *forward_sums.declares(),
        *declares_lookup(),
        *(MessageDeclaration(RowCommitments, asker, other, own) for other in others),
        *(MessageDeclaration(RowStates, *pair, states) for pair in pairs),
        MessageDeclaration(ShareStored, other, rounds, Reveal("public")),
        MessageDeclaration(RoundedScores, rounds, asker, told),
        *([] if asker in holders else [MessageDeclaration(ScoreShare, ACTIVE, asker, Reveal("uniform"))]),
    ]


@dataclass(frozen=True)
class ScoringParams:
    """One party's terms of an occasion.

    model: its name, the same in every session. ledger: this party's own; None where all tables are in one process, at
    all parties. to: who asks, the active party if empty. most: bits of a row that this party lets its scores have
    together. rounded: the levels that this party tells where it is the one that rounds, over the same sums as `levels`
    and no closer; `levels` if left out. account: is told how many rows of a block get a score, and how many this party
    refuses, before it lets either out.
    """

    model: bytes
    ledger: ScoreLedger | None
    levels: Quantizer
    to: str = ""
    most: float = float("inf")
    rounded: Quantizer | None = None
    account: Callable[[int, int], None] = lambda scored, refused: None


@dataclass(frozen=True)
class RowDecisions:
    """What parties agreed about a block: which of its rows (n,) have no score yet and get one, and which have one."""

    question: ScoreQuery | None
    fresh: NDArray[np.bool_]
    kept: NDArray[np.bool_]

    @property
    def scored(self) -> NDArray[np.bool_]:
        """The rows (n,) that are scored."""
        return self.fresh | self.kept

    def question_of(self, mask: NDArray[np.bool_]) -> ScoreQuery | None:
        """Return the question about some of the rows (n,)."""
        return None if self.question is None else self.question.where(mask)


class ScoringSession:
    """One party's side of an occasion of scoring, whichever it is."""

    def __init__(
        self,
        products: Products,
        terms: SharesParams,
        state: SharedState,
        asking: ScoringParams,
        *,
        tops: Callable[[], Transfers | None] | None,
        number: int = 0,
        rows: int,
    ) -> None:
        """Prepare to answer questions for scores on shares of the model.

        tops: the session's transfers for tables by the highest bits; None where levels cover all that the ring holds.
        number: of the occasion in this session. rows: about how many a block has.
        """
        context = products.context
        self._context, self._terms, self._products, self._asking = context, terms, products, asking
        self._state, self._tops, self._number, self._rows = state, tops, number, rows
        self._to = asking.to or context.active
        self._rounds = context.active if self._to == terms.partner else terms.partner
        self._other = terms.partner if self._rounds == context.active else context.active
        self._ring, self._coarse = ShareRing(terms.encoding.bits), ShareRing(asking.levels.bits)
        rounds = context.me == self._rounds
        self._lost = np.zeros(0, np.bool_)  # of the scores of the last block that were told before
        self._told_levels = asking.rounded if rounds and asking.rounded is not None else asking.levels
        self._dither = Prg.fresh("dither of scores")
        self._sums: ForwardSums | None = None
        self.agreed = RowDecisions(None, np.zeros(0, np.bool_), np.zeros(0, np.bool_))  # about the last block

    def block(self, number: int, X: Floats, rows: RowsToScore) -> Floats | None:
        """Score block `number` with this party's columns X (n x d) of these rows, scaled as in training.

        The scores (n x c) at the party that asks, nan where a row gets none and infinite where it is beyond what levels
        cover; None elsewhere. LeakageError if this party's ledger refuses the model or the peer.
        """
        ledger = self._asking.ledger
        if ledger is None:
            every = np.ones(len(X), np.bool_)
            self.agreed = RowDecisions(None, every, ~every)
            return self._told(self._made(number, X, None))
        self._lost = np.zeros(0, np.bool_)
        with ledger.claim() as claim:
            self.agreed = agreed = self._agree(rows, ledger, claim)  # 0, 1
            if not agreed.scored.any():
                return np.full((len(X), self._terms.outputs), np.nan) if self._context.me == self._to else None
            parts = np.zeros((len(X), self._terms.outputs), np.uint64)
            holds = self._context.me in (self._rounds, self._other)
            if agreed.kept.any() and holds:
                parts[agreed.kept] = self._kept(agreed.question_of(agreed.kept))
            if agreed.fresh.any():
                fresh = self._made(number, X[agreed.fresh], agreed.question_of(agreed.fresh))
                if fresh is not None:
                    parts[agreed.fresh] = fresh
            return self._told(parts[agreed.scored] if holds else None)

    def _agree(self, rows: RowsToScore, ledger: ScoreLedger, claim: str) -> RowDecisions:
        """Agree on which rows are scored and which of these were before."""
        context, asking, to, products = self._context, self._asking, self._to, self._products
        n, judges = len(rows.ids), [name for name in context.parties if name != to]
        if context.me == to:
            commitments = ledger.commitments(rows.ids, rows.raw)
            question = ledger.query(asking.model, SELF, rows.ids, commitments)
            own = ledger.record_query(question)
            for name in products.others:
                permit = context.channel.permit(DisclosureRecord(name, "digests", n, 8 * COMMITMENT_BYTES, about=(to,)))
                products.send(name, RowCommitments(commitments, own.tobytes()), permit)  # 0
        else:
            committed = products.recv(to, RowCommitments)  # 0
            commitments, own = committed.rows, _states(to, committed.states, n)
            if len(commitments) != COMMITMENT_BYTES * n:
                raise ProtocolError(
                    f"{to}: {n} commitments were expected, {len(commitments)} bytes came; "
                    "do both ask for the same rows?"
                )
            question = ledger.query(asking.model, to, rows.ids, commitments)
        states = (
            {self._rounds: self._judged(question, rows, own != REFUSED, claim)} if context.me == self._rounds else {}
        )
        if context.me != self._rounds:
            states[self._rounds] = _states(self._rounds, products.recv(self._rounds, RowStates).states, n)  # 1
            if context.me != to:
                open_rows = (own != REFUSED) & (states[self._rounds] != REFUSED)
                states[context.me] = self._judged(question, rows, open_rows, claim)
        for name in judges:
            if name not in states:
                states[name] = _states(name, products.recv(name, RowStates).states, n)  # 1
        scored = np.logical_and.reduce([own != REFUSED, *(each != REFUSED for each in states.values())])
        kept = scored & (states[self._rounds] == STORED)
        if self._other in states:
            scored &= ~kept | (states[self._other] == STORED)  # its part was lost: nobody makes another
            kept &= scored
        if context.me != to:
            unused = (states[context.me] == NEW) & ~(scored & ~kept)
            if unused.any():
                ledger.release(question.where(unused))
            asking.account(int((scored & ~kept).sum()), 0)
        return RowDecisions(question, scored & ~kept, kept)

    def _judged(
        self, question: ScoreQuery, rows: RowsToScore, open_rows: NDArray[np.bool_], claim: str
    ) -> NDArray[np.uint8]:
        """Ask this party's ledger about the rows that are open (n,), and tell the others what it says (n,)."""
        context, asking, products = self._context, self._asking, self._products
        assert asking.ledger is not None, "it has been asked"
        if rows.barred is not None:
            open_rows = open_rows & ~rows.barred
        states = np.full(len(open_rows), REFUSED, np.uint8)
        states[open_rows] = asking.ledger.admit(
            question.where(open_rows),
            rows.raw[open_rows],
            bits=self._told_levels.bits * self._terms.outputs,
            max_bits=asking.most,
            me=context.me,
            claim=claim,
        )
        asking.account(0, int((states == REFUSED).sum()))
        for name in products.others:
            permit = context.channel.permit(DisclosureRecord(name, "ids", len(states), 2, about=(context.me,)))
            products.send(name, RowStates(states.tobytes()), permit)  # 1
        return states

    def _made(self, number: int, X: Floats, question: ScoreQuery | None) -> Words | None:
        """Compute this party's part (n x c) of new scores, if it is a holder; it is kept before anything is told."""
        if self._sums is None:
            self._sums = ForwardSums(self._products, self._terms, self._state, "scores", self._number, self._rows)
        h, context, levels, numbers = (
            self._sums.block(number, X),
            self._context,
            self._told_levels,
            self._terms.encoding,
        )  # 2
        if h is None:
            return None
        h = self._moved(h)
        if context.me == self._rounds:
            below = self._dither.array(h.shape, np.uint64)
            h = h + (below >> np.uint64(64 - levels.shift(numbers)))
        finer = np.uint64(self._asking.levels.bits - levels.bits)
        part = levels.truncate(numbers, self._ring.reduce(h)) << finer
        if self._asking.ledger is not None and question is not None:
            if context.me == self._rounds:
                self._products.recv(self._other, ShareStored)  # 3
            self._asking.ledger.store(question, [row.tobytes() for row in part.astype("<u8")])
            if context.me == self._other:
                self._products.send(self._rounds, ShareStored())  # 3
        return part

    def _moved(self, h: Words) -> Words:
        """Return this holder's share (n x c) of sums, those beyond what levels cover moved out of the way."""
        transfers = None if self._tops is None else self._tops()
        if transfers is None:
            return h
        levels, numbers = self._asking.levels, self._terms.encoding
        ring, ends = ShareRing(levels.bits), levels.overflow_shifts(numbers.top_knots)
        index = numbers.top_index(h)
        moves = look_up_shares(self._products, transfers, self._terms.partner, index, numbers.top_bits, ends, ring)
        return self._ring.reduce(h + (moves << np.uint64(levels.shift(numbers))))

    def _kept(self, question: ScoreQuery | None) -> Words:
        """Read this holder's part (n x c) of scores that were told before; 0 where it was lost."""
        ledger, c = self._asking.ledger, self._terms.outputs
        assert ledger is not None and question is not None, "it has been asked"  # noqa: PT018
        parts = ledger.stored(question)
        self._lost = np.array([each is None for each in parts], np.bool_)
        return np.frombuffer(b"".join(each or bytes(8 * c) for each in parts), "<u8").reshape(-1, c).astype(np.uint64)

    def _told(self, part: Words | None) -> Floats | None:
        """Return the scores (n x c) at the party that asks, nan where a row has none; the holders send it their parts
        (m x c) of the rows that are scored."""
        context, to, coarse, products, agreed = self._context, self._to, self._coarse, self._products, self.agreed
        shape = (int(agreed.scored.sum()), self._terms.outputs)
        if context.me == to:
            rounded = self._rounded(products.recv(self._rounds, RoundedScores), shape)  # 4
            if part is None:
                part = unpack_words(self._other, products.recv(self._other, ScoreShare).words, coarse, shape)  # 5
            scores = np.full((len(agreed.scored), shape[1]), np.nan)
            levels = self._asking.levels
            scores[agreed.scored] = levels.mark_overflow(levels.dequantize(part + rounded, rounded_down=1))
            scores[np.flatnonzero(agreed.kept)[np.flatnonzero(self._lost)]] = np.nan
            self._keep_scores(scores)
            return scores
        if part is not None and context.me == self._rounds:
            about = tuple(name for name in context.parties if name != to)
            told, finer = self._told_levels.bits, coarse.bits - self._told_levels.bits
            permit = context.channel.permit(DisclosureRecord(to, "scores", part.size, told, about=about))
            products.send(to, RoundedScores(ShareRing(told).pack(part >> np.uint64(finer)), finer), permit)  # 4
        elif part is not None:
            products.send(to, ScoreShare(coarse.pack(part)))  # 5
        return None

    def _rounded(self, message: RoundedScores, shape: tuple[int, int]) -> Words:
        """Read the part (m x c) of the holder that rounds, in steps of the levels that were asked for."""
        if not 0 <= message.finer < self._coarse.bits:
            raise ProtocolError(
                f"{self._rounds}: scores of 1 to {self._coarse.bits} bits were expected, {message.finer} of these are "
                "left out; use one version"
            )
        told = ShareRing(self._coarse.bits - message.finer)
        return unpack_words(self._rounds, message.words, told, shape) << np.uint64(message.finer)

    def _keep_scores(self, scores: Floats) -> None:
        """Keep the scores (n x c) that this party was told, so that it need not ask again."""
        known = np.asarray(np.isfinite(scores).all(axis=1))
        ledger, question = self._asking.ledger, self.agreed.question_of(known)
        if ledger is not None and question is not None:
            ledger.store(question, [row.tobytes() for row in scores[known].astype("<f8")], of="score")


def _states(name: str, states: bytes, rows: int) -> NDArray[np.uint8]:
    """Read what a party says of so many rows. ProtocolError if it is something else."""
    found = np.frombuffer(states, np.uint8)
    if len(found) != rows or found.max(initial=0) > STORED:
        raise ProtocolError(f"{name}: a word for each of {rows} rows was expected, others came; use one version")
    return found

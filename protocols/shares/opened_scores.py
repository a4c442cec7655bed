"""Scores of new rows from a model on shares: one party learns quantized scores, and nobody learns a weight.

Rows are processed in blocks; shares of H come from forward_sums.py. Q is the requesting party, most often the active
party A; B is A's partner. R, the holder that is not Q (B if Q is neither), rounds the scores; O is the other holder. A
level has k bits, levels are spaced s apart (quantizer.py), and i_O is the k bits of O's share from s upwards.

0. Q -> k   a commitment to Q's columns of each row (a keyed digest), and which rows Q excludes
1. R -> k   which rows it refuses, and for which it has stored a score; then the other parties k -> k the same.
            Rows that nobody refuses are scored: steps 2 and 3 for new ones, the stored scores for the others
2. all      shares of H at A and B
3. O -> R   nothing: O has stored i_O, and no bit of its share below s
4. R -> Q   floor((h_R + D) / s) mod 2^k         D: secret, uniform below s, fresh for every score; R has stored it.
                                                 R may use a larger spacing 2^m s, to protect its columns
5. O -> Q   i_O, if Q is neither                 uniform
   Q        (the sum of the two + 1/2) s

Before step 3, A and B look up by the highest bits of H (table_lookup.py) by how many levels a sum is moved if it is out
of range (quantizer.py), in shares modulo 2^k, and each adds its share, times s, to h. Q thus learns that such a sum is
out of range, and the k bits state that. If A deviates and uses other table entries, it still learns k bits only.

Without D, the answer would be a function of H and of O's share, whose lower bits O knows: f would be determined to
within s instead of at random. With D, the mean of the score is f, its standard deviation is s / 2, and a row discloses
at most k bits. The same row receives the same bytes in any block, and nothing is recomputed, because four answers about
one row would undo half of the rounding. This also holds for concurrent sessions: R records the rows it is about to
score before announcing them, and other sessions wait for these rows. R always announces first, which prevents
deadlocks.

Scores are outputs. protocols/score_ledger describes what they disclose, and every party but Q asks its ledger before it
sends anything about a block. Rounding does not protect columns that are few or dominate the model: a column with most
of the weight can be read from the score.
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
from securevfl.protocols.score_ledger.row_digests import COMMITMENT_BYTES
from securevfl.protocols.score_ledger.row_ledger import NEW, REFUSED, SELF, STORED, ScoreLedger, ScoreQuery
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
    """16 bytes for each row, equal for equal rows with equal columns; and a byte for each row, 0 to exclude it."""

    rows: bytes
    states: bytes


class RowStates(DisclosingMessage, frozen=True):
    """A byte for each row: the sender refuses it, has no score of it, or has stored one."""

    states: bytes


class ShareStored(Message, frozen=True):
    """The sender has stored its share of the scores."""


class RoundedScores(DisclosingMessage, frozen=True):
    """The rounding holder's share of the scores.

    Attributes:
        words: (n, c) words of k bits, rounded at random, without the omitted bits.
        finer: the number of lowest bits of k that are omitted, because the holder discloses fewer bits.
    """

    words: bytes
    finer: int = 0


class ScoreShare(Message, frozen=True):
    """The other holder's share for a party that is no holder, (n, c) words of k bits."""

    words: bytes


def declares(requester: Role = ACTIVE) -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active, partner, passive (any other party).

    Args:
        requester: the role of the requesting party.

    Returns:
        The declarations.
    """
    commitments = Reveal(
        "plain", "keyed digests of the requesting party's rows: whether a row has changed since an earlier request"
    )
    states = Reveal("plain", "which of the requested rows the sender's ledger refuses, or has already answered")
    scores = Reveal("output", "quantized scores of the requested rows")
    others = [role for role in (ACTIVE, PARTNER, PASSIVE) if role != requester or role == PASSIVE]
    rounding, other = (ACTIVE, PARTNER) if requester == PARTNER else (PARTNER, ACTIVE)
    pairs = [(sender, receiver) for sender, receiver in PAIRS if sender in others]
    is_holder = requester in (ACTIVE, PARTNER)
    return [
        *forward_sums.declares(),
        *declares_lookup(),
        *(MessageDeclaration(RowCommitments, requester, role, commitments) for role in others),
        *(MessageDeclaration(RowStates, *pair, states) for pair in pairs),
        MessageDeclaration(ShareStored, other, rounding, Reveal("public")),
        MessageDeclaration(RoundedScores, rounding, requester, scores),
        *([] if is_holder else [MessageDeclaration(ScoreShare, ACTIVE, requester, Reveal("uniform"))]),
    ]


@dataclass(frozen=True)
class ScoringParams:
    """One party's parameters of an occasion of scoring.

    Attributes:
        model: the name of the model, the same in every session.
        ledger: this party's score ledger; None at all parties if one process simulates them.
        quantizer: the agreed quantizer.
        requester: the requesting party; empty for the active party.
        max_bits: bits of a row that this party lets its scores disclose together.
        coarser: the quantizer that this party uses if it rounds, over the same range as `quantizer` and no finer; None
            uses `quantizer`.
        charge: called with the number of rows of a block that are scored, and the number that this party refuses,
            before it discloses either.
    """

    model: bytes
    ledger: ScoreLedger | None
    quantizer: Quantizer
    requester: str = ""
    max_bits: float = float("inf")
    coarser: Quantizer | None = None
    charge: Callable[[int, int], None] = lambda scored, refused: None


@dataclass(frozen=True)
class RowDecisions:
    """The parties' common decision about the rows of a block.

    Attributes:
        query: the query in this party's ledger, or None without a ledger.
        fresh: the rows (n,) that are scored for the first time.
        stored: the rows (n,) whose stored scores are disclosed.
    """

    query: ScoreQuery | None
    fresh: NDArray[np.bool_]
    stored: NDArray[np.bool_]

    @property
    def scored(self) -> NDArray[np.bool_]:
        """The rows (n,) that receive a score."""
        return self.fresh | self.stored

    def query_of(self, mask: NDArray[np.bool_]) -> ScoreQuery | None:
        """Return the query restricted to the rows of a mask (n,)."""
        return None if self.query is None else self.query.where(mask)


class ScoringSession:
    """One party's side of an occasion of scoring, whichever its role.

    Args:
        products: the session.
        params: the agreed parameters of the training.
        state: this party's shares of the weights.
        scoring: this party's parameters of the scoring.
        top_transfers: returns the transfers for tables indexed by the highest bits; None if the quantizer covers the
            whole ring.
        number: a number of the occasion that is unique in the session.
        rows: the approximate number of rows of a block.

    Attributes:
        decisions: the decision about the last block.
    """

    def __init__(
        self,
        products: Products,
        params: SharesParams,
        state: SharedState,
        scoring: ScoringParams,
        *,
        top_transfers: Callable[[], Transfers | None] | None,
        number: int = 0,
        rows: int,
    ) -> None:
        context = products.context
        self._context, self._params, self._products, self._scoring = context, params, products, scoring
        self._state, self._top_transfers, self._number, self._rows = state, top_transfers, number, rows
        self._requester = scoring.requester or context.active
        self._rounding = context.active if self._requester == params.partner else params.partner
        self._other = params.partner if self._rounding == context.active else context.active
        self._ring, self._score_ring = ShareRing(params.encoding.bits), ShareRing(scoring.quantizer.bits)
        rounds = context.me == self._rounding
        self._lost = np.zeros(0, np.bool_)  # which stored scores of the last block are lost
        self._quantizer = scoring.coarser if rounds and scoring.coarser is not None else scoring.quantizer
        self._dither = Prg.fresh("dither of scores")
        self._sums: ForwardSums | None = None
        self.decisions = RowDecisions(None, np.zeros(0, np.bool_), np.zeros(0, np.bool_))

    def block(self, number: int, X: Floats, rows: RowsToScore) -> Floats | None:
        """Score a block.

        Args:
            number: the number of the block.
            X: this party's columns (n, d) of the rows, scaled as in training.
            rows: the rows.

        Returns:
            The scores (n, c) at the requesting party: nan for a row without a score, infinite for one that is out of
            range. None elsewhere.

        Raises:
            LeakageError: this party's ledger refuses the model or the peer.
        """
        ledger = self._scoring.ledger
        if ledger is None:
            all_rows = np.ones(len(X), np.bool_)
            self.decisions = RowDecisions(None, all_rows, ~all_rows)
            return self._disclose(self._compute(number, X, None))
        self._lost = np.zeros(0, np.bool_)
        with ledger.claim() as claim:
            self.decisions = decisions = self._decide(rows, ledger, claim)  # 0, 1
            if not decisions.scored.any():
                requested = self._context.me == self._requester
                return np.full((len(X), self._params.outputs), np.nan) if requested else None
            shares = np.zeros((len(X), self._params.outputs), np.uint64)
            is_holder = self._context.me in (self._rounding, self._other)
            if decisions.stored.any() and is_holder:
                shares[decisions.stored] = self._stored(decisions.query_of(decisions.stored))
            if decisions.fresh.any():
                fresh = self._compute(number, X[decisions.fresh], decisions.query_of(decisions.fresh))
                if fresh is not None:
                    shares[decisions.fresh] = fresh
            return self._disclose(shares[decisions.scored] if is_holder else None)

    def _decide(self, rows: RowsToScore, ledger: ScoreLedger, claim: str) -> RowDecisions:
        """Agree with all parties on the rows that receive a score."""
        context, scoring, requester, products = self._context, self._scoring, self._requester, self._products
        n, judges = len(rows.ids), [name for name in context.parties if name != requester]
        if context.me == requester:
            commitments = ledger.commitments(rows.ids, rows.raw)
            query = ledger.query(scoring.model, SELF, rows.ids, commitments)
            requested = ledger.record_query(query)
            for name in products.others:
                record = DisclosureRecord(name, "digests", n, 8 * COMMITMENT_BYTES, about=(requester,))
                permit = context.channel.permit(record)
                products.send(name, RowCommitments(commitments, requested.tobytes()), permit)  # 0
        else:
            message = products.recv(requester, RowCommitments)  # 0
            commitments, requested = message.rows, _read_states(requester, message.states, n)
            if len(commitments) != COMMITMENT_BYTES * n:
                raise ProtocolError(
                    f"{requester} sent {len(commitments)} bytes of commitments instead of {COMMITMENT_BYTES * n}",
                    "request the same rows at all parties",
                    code="SVFL-PROTOCOL-SIZE",
                    party=requester,
                )
            query = ledger.query(scoring.model, requester, rows.ids, commitments)
        states = {}
        if context.me == self._rounding:
            states[context.me] = self._judge(query, rows, requested != REFUSED, claim)
        else:
            data = products.recv(self._rounding, RowStates).states  # 1
            states[self._rounding] = _read_states(self._rounding, data, n)
            if context.me != requester:
                open_rows = (requested != REFUSED) & (states[self._rounding] != REFUSED)
                states[context.me] = self._judge(query, rows, open_rows, claim)
        for name in judges:
            if name not in states:
                states[name] = _read_states(name, products.recv(name, RowStates).states, n)  # 1
        scored = np.logical_and.reduce([requested != REFUSED, *(state != REFUSED for state in states.values())])
        stored = scored & (states[self._rounding] == STORED)
        if self._other in states:
            scored &= ~stored | (states[self._other] == STORED)  # a lost share is never computed again
            stored &= scored
        fresh = scored & ~stored
        if context.me != requester:
            unused = (states[context.me] == NEW) & ~fresh
            if unused.any():
                ledger.release(query.where(unused))
            scoring.charge(int(fresh.sum()), 0)
        return RowDecisions(query, fresh, stored)

    def _judge(
        self, query: ScoreQuery, rows: RowsToScore, open_rows: NDArray[np.bool_], claim: str
    ) -> NDArray[np.uint8]:
        """Ask this party's ledger about rows, and send the result to all parties.

        Args:
            query: the query.
            rows: the rows.
            open_rows: the rows (n,) that nobody has refused so far.
            claim: the claim of this session.

        Returns:
            The states (n,).
        """
        context, scoring, products = self._context, self._scoring, self._products
        assert scoring.ledger is not None, "only parties with a ledger decide"
        if rows.barred is not None:
            open_rows = open_rows & ~rows.barred
        states = np.full(len(open_rows), REFUSED, np.uint8)
        states[open_rows] = scoring.ledger.admit(
            query.where(open_rows),
            rows.raw[open_rows],
            bits=self._quantizer.bits * self._params.outputs,
            max_bits=scoring.max_bits,
            me=context.me,
            claim=claim,
        )
        scoring.charge(0, int((states == REFUSED).sum()))
        for name in products.others:
            permit = context.channel.permit(DisclosureRecord(name, "ids", len(states), 2, about=(context.me,)))
            products.send(name, RowStates(states.tobytes()), permit)  # 1
        return states

    def _compute(self, number: int, X: Floats, query: ScoreQuery | None) -> Words | None:
        """Compute this holder's share (n, c) of new scores, and store it before anything is disclosed."""
        if self._sums is None:
            self._sums = ForwardSums(self._products, self._params, self._state, "scores", self._number, self._rows)
        h = self._sums.block(number, X)  # 2
        if h is None:
            return None
        context, quantizer, encoding = self._context, self._quantizer, self._params.encoding
        h = self._move_overflow(h)
        if context.me == self._rounding:
            below = self._dither.array(h.shape, np.uint64)
            h = h + (below >> np.uint64(64 - quantizer.shift(encoding)))
        finer = np.uint64(self._scoring.quantizer.bits - quantizer.bits)
        share = quantizer.truncate(encoding, self._ring.reduce(h)) << finer
        if self._scoring.ledger is not None and query is not None:
            if context.me == self._rounding:
                self._products.recv(self._other, ShareStored)  # 3
            self._scoring.ledger.store(query, [row.tobytes() for row in share.astype("<u8")])
            if context.me == self._other:
                self._products.send(self._rounding, ShareStored())  # 3
        return share

    def _move_overflow(self, h: Words) -> Words:
        """Return this holder's share (n, c) of the sums, after those that are out of range were moved."""
        transfers = None if self._top_transfers is None else self._top_transfers()
        if transfers is None:
            return h
        quantizer, encoding = self._scoring.quantizer, self._params.encoding
        ring, table = ShareRing(quantizer.bits), quantizer.overflow_shifts(encoding.top_knots)
        index = encoding.top_index(h)
        shifts = look_up_shares(self._products, transfers, self._params.partner, index, encoding.top_bits, table, ring)
        return self._ring.reduce(h + (shifts << np.uint64(quantizer.shift(encoding))))

    def _stored(self, query: ScoreQuery | None) -> Words:
        """Return this holder's stored shares (n, c) of earlier scores; 0 for those that are lost."""
        ledger, c = self._scoring.ledger, self._params.outputs
        assert ledger is not None, "only parties with a ledger have stored scores"
        assert query is not None, "only parties with a ledger have stored scores"
        shares = ledger.stored(query)
        self._lost = np.array([share is None for share in shares], np.bool_)
        octets = b"".join(share or bytes(8 * c) for share in shares)
        return np.frombuffer(octets, "<u8").reshape(-1, c).astype(np.uint64)

    def _disclose(self, share: Words | None) -> Floats | None:
        """Send this holder's share (m, c) of the scored rows; at the requesting party, return the scores (n, c)."""
        context, requester, products, decisions = self._context, self._requester, self._products, self.decisions
        ring, quantizer = self._score_ring, self._scoring.quantizer
        shape = (int(decisions.scored.sum()), self._params.outputs)
        if context.me == requester:
            rounded = self._read_rounded(products.recv(self._rounding, RoundedScores), shape)  # 4
            if share is None:
                share = unpack_words(self._other, products.recv(self._other, ScoreShare).words, ring, shape)  # 5
            scores = np.full((len(decisions.scored), shape[1]), np.nan)
            sums = quantizer.dequantize(share + rounded, rounded_down=1)
            scores[decisions.scored] = quantizer.mark_overflow(sums)
            scores[np.flatnonzero(decisions.stored)[np.flatnonzero(self._lost)]] = np.nan
            self._store_scores(scores)
            return scores
        if share is not None and context.me == self._rounding:
            about = tuple(name for name in context.parties if name != requester)
            bits, finer = self._quantizer.bits, ring.bits - self._quantizer.bits
            permit = context.channel.permit(DisclosureRecord(requester, "scores", share.size, bits, about=about))
            packed = ShareRing(bits).pack(share >> np.uint64(finer))
            products.send(requester, RoundedScores(packed, finer), permit)  # 4
        elif share is not None:
            products.send(requester, ScoreShare(ring.pack(share)))  # 5
        return None

    def _read_rounded(self, message: RoundedScores, shape: tuple[int, int]) -> Words:
        """Return the share (m, c) of the rounding holder, in levels of the agreed quantizer."""
        bits = self._score_ring.bits
        if not 0 <= message.finer < bits:
            raise ProtocolError(
                f"{self._rounding} omitted {message.finer} of the {bits} bits of a score",
                code="SVFL-PROTOCOL-VALUES",
                party=self._rounding,
            )
        ring = ShareRing(bits - message.finer)
        return unpack_words(self._rounding, message.words, ring, shape) << np.uint64(message.finer)

    def _store_scores(self, scores: Floats) -> None:
        """Store the scores (n, c) that this party received, so that it need not request them again."""
        known = np.asarray(np.isfinite(scores).all(axis=1))
        ledger, query = self._scoring.ledger, self.decisions.query_of(known)
        if ledger is not None and query is not None:
            ledger.store(query, [row.tobytes() for row in scores[known].astype("<f8")], of="score")


def _read_states(name: str, data: bytes, rows: int) -> NDArray[np.uint8]:
    """Return the states (rows,) that a party has sent. Raises ProtocolError if they are invalid."""
    states = np.frombuffer(data, np.uint8)
    if len(states) != rows:
        raise ProtocolError(
            f"{name} sent {len(states)} row states instead of {rows}", code="SVFL-PROTOCOL-SIZE", party=name
        )
    if states.max(initial=0) > STORED:
        raise ProtocolError(f"{name} sent an unknown row state", code="SVFL-PROTOCOL-VALUES", party=name)
    return states

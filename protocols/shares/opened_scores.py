"""Scores of new rows from a secret-shared model: one party learns rounded scores, and nobody learns a weight.

The active party A, which had the labels, and its partner B are the *share holders*: A has random-looking integers h_A
and B has h_B, which add up modulo 2^L to the forward sums H (n, c), the outputs of the model for n rows. Q is the
requesting party, which receives the scores; normally it is A. R rounds the scores: the holder that is not Q, or B if Q
is neither A nor B. O is the other holder. Scores are levels: multiples of s, numbered modulo 2^k (quantizer.py). Rows
are processed in blocks:

0. Q -> all   for each row a commitment, which is a keyed digest of its columns at Q; and the rows that Q excludes
1. R -> all   the rows that its score ledger (a record of the scores that it disclosed) refuses, and those for which it
              has already stored a score; then all other parties but Q send the same. Rows that nobody refuses are
              scored: new rows by steps 2 to 5, the others by steps 4 and 5 with the stored shares
2. all        compute shares of H at A and B (forward_sums.py)
3. O -> R     a message without content: O has stored i_O = floor(h_O / s) mod 2^k, and forgotten the lower bits of h_O
4. R -> Q     floor((h_R + D) / s) mod 2^k     D: secret, uniform below s, new for every score. R has stored the result.
                                               R may use a larger spacing, 2^m * s, to protect its columns
5. O -> Q     i_O, if Q is not O; it is uniform
   Q          computes the score (i_O + received number + 1/2) * s

Comments refer to these steps by number. `ScoringSession` documents why nobody learns more. *Packed* integers take only
the bytes that their bits need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import ACTIVE, PARTNER, PASSIVE, Role
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.joint_prediction import RowsToScore, ScoreResult
from securevfl.protocols.score_ledger.row_digests import COMMITMENT_BYTES
from securevfl.protocols.score_ledger.row_ledger import ROW_NEW, ROW_REFUSED, ROW_STORED, SELF, ScoreLedger, ScoreQuery
from securevfl.protocols.shares import forward_sums
from securevfl.protocols.shares.forward_sums import ForwardSums
from securevfl.protocols.shares.iteration import SharedState
from securevfl.protocols.shares.pair_sums import ColumnsWithPairs, selected_rows
from securevfl.protocols.shares.quantizer import Quantizer
from securevfl.protocols.shares.rotated_tables import rotated_tables
from securevfl.protocols.shares.share_products import ROLE_PAIRS, Products, unpack_words
from securevfl.protocols.shares.shares_params import SharesParams
from securevfl.protocols.shares.table_lookup import declares_lookup, look_up_shares
from securevfl.protocols.shares.table_transfers import Transfers
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord


class RowCommitments(DisclosingMessage, frozen=True):
    """The requesting party's commitments and exclusions of step 0.

    Attributes:
        rows: 16 bytes for each row, a keyed digest of its id and its columns.
        states: one byte for each row; 0 excludes the row.
    """

    rows: bytes
    states: bytes


class RowStates(DisclosingMessage, frozen=True):
    """The answer of step 1, a byte for each row: the sender refuses it, has no score of it, or has stored its score."""

    states: bytes


class ShareStored(Message, frozen=True):
    """Step 3: the sender has stored its share of the scores."""


class RoundedScores(DisclosingMessage, frozen=True):
    """The share of the scores that the rounding holder R sends in step 4.

    Attributes:
        words: packed integers (n, c) of k - `finer` bits, rounded at random.
        finer: the number m of omitted lowest bits, because the holder uses a larger spacing of levels.
    """

    words: bytes
    finer: int = 0


class ScoreShare(Message, frozen=True):
    """The share i_O that the other holder sends in step 5 to a party that is no holder: packed integers (n, c)."""

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
    pairs = [(sender, receiver) for sender, receiver in ROLE_PAIRS if sender in others]
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
    """One party's parameters for scoring a number of rows.

    Attributes:
        model: the name of the model, the same in every session.
        ledger: this party's score ledger; None at all parties if one process simulates them.
        quantizer: the agreed levels of scores.
        requester: the requesting party Q; empty for the active party.
        max_bits: the number of bits that all scores of one row together may disclose, by this party's limit.
        coarser: the levels that this party uses if it is R, with the same range as `quantizer` and at least the same
            spacing; None for those of `quantizer`.
        charge: a function that is called before a block is disclosed, with the number of rows that are scored and the
            number of rows that this party refuses.
        max_finer: the number of lowest bits of a score that R may omit, at most; None for all but one.
        max_pair_bits: for a model with pairs and at a share holder, the number of bits that scores of such models may
            disclose about all of this party's rows together; None elsewhere.
    """

    model: bytes
    ledger: ScoreLedger | None
    quantizer: Quantizer
    requester: str = ""
    max_bits: float = float("inf")
    coarser: Quantizer | None = None
    charge: Callable[[int, int], None] = lambda scored, refused: None
    max_finer: int | None = None
    max_pair_bits: float | None = None


@dataclass(frozen=True)
class RowDecisions:
    """Which of a block's n rows receive a score, as all parties have agreed in steps 0 and 1.

    Attributes:
        query: the rows as this party's score ledger identifies them (by digests); None without a ledger.
        fresh: whether each row (n,) is scored for the first time.
        stored: whether the stored score of each row (n,) is disclosed.
    """

    query: ScoreQuery | None
    fresh: NDArray[np.bool_]
    stored: NDArray[np.bool_]

    @property
    def scored(self) -> NDArray[np.bool_]:
        """Whether each row (n,) receives a score."""
        return self.fresh | self.stored

    def query_of(self, mask: NDArray[np.bool_]) -> ScoreQuery | None:
        """Return the rows, as the ledger identifies them, for which the mask (n,) is True."""
        return None if self.query is None else self.query.where(mask)


class ScoringSession:
    """One party's side of scoring blocks of rows, for any role.

    Before step 3, A and B treat sums that are out of range (quantizer.py): a look-up in a table (table_lookup.py),
    indexed by the highest bits of H, gives both a share of the number of levels to add. Q then reads such a sum as "out
    of range". If A deviates and uses other table entries, it still learns only k bits.

    Without D, Q could compute more than a rounded score if it is O, because it knows the lower bits of h_O: the answer
    would reveal H to within s without randomness. With D, the mean of the score is H, its standard deviation is at most
    s / 2, and a row discloses at most k bits. When a row is scored again, Q receives the same bytes, because the mean
    of four independent answers would have half the rounding error. This also holds for concurrent sessions: R records
    which rows it is about to score before it announces them, and other sessions wait for these rows. R always announces
    first, which prevents deadlocks.

    Every party but Q asks its score ledger (protocols/score_ledger) before it sends anything about a block. Rounding
    does not protect a column that dominates the model, because it can be read from the score.

    Args:
        products: this party's session of encrypted matrix products (share_products.py), with which step 2 multiplies
            columns by shares of the weights.
        params: the parameters of the training on which all parties agree (shares_params.py).
        state: this party's shares of the weights.
        scoring: this party's parameters for the scoring.
        top_transfers: returns oblivious transfers for a table that is indexed by the highest bits of sums; None if no
            sum can be out of range.
        number: a number that no other request for scores has in this session.
        rows: the approximate number of rows of a block.
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
        self._quantizer = scoring.coarser if rounds and scoring.coarser is not None else scoring.quantizer
        self._dither = Prg.fresh("dither of scores")
        self._sums: ForwardSums | None = None

    def block(self, number: int, X: Floats | ColumnsWithPairs, rows: RowsToScore) -> ScoreResult:
        """Score a block of rows.

        Args:
            number: the number of the block of rows, counted from 0.
            X: this party's columns (n, d) of the rows, scaled as in training.
            rows: the ids and unscaled columns of the rows.

        Returns:
            Which rows have been scored, and at the requesting party the scores (n, c): nan for a row without a score,
            and infinity for a score that is out of range.

        Raises:
            LeakageError: this party's ledger refuses the model or the peer.
        """
        ledger, is_requester = self._scoring.ledger, self._context.me == self._requester
        if ledger is None:
            all_rows = np.ones(len(X), np.bool_)
            decisions = RowDecisions(None, all_rows, ~all_rows)
            return ScoreResult.of_all(len(X), self._disclose(self._compute(number, X, None), decisions))
        with ledger.claim() as claim:
            decisions = self._decide(rows, ledger, claim)  # steps 0 and 1
            if not decisions.scored.any():
                scores = np.full((len(X), self._params.outputs), np.nan) if is_requester else None
                return ScoreResult.of(scores, decisions.scored, decisions.fresh)
            shares, lost = np.zeros((len(X), self._params.outputs), np.uint64), np.zeros(len(X), np.bool_)
            is_holder = self._context.me in (self._rounding, self._other)
            if decisions.stored.any() and is_holder:
                shares[decisions.stored], lost[decisions.stored] = self._stored(decisions.query_of(decisions.stored))
            if decisions.fresh.any():
                fresh = self._compute(number, selected_rows(X, decisions.fresh), decisions.query_of(decisions.fresh))
                if fresh is not None:
                    shares[decisions.fresh] = fresh
            scores = self._disclose(shares[decisions.scored] if is_holder else None, decisions)
            if scores is not None:
                scores[lost] = np.nan
                self._store_scores(scores, decisions)
            return ScoreResult.of(scores, decisions.scored, decisions.fresh)

    def check_request(self, ids: Sequence[bytes]) -> None:
        """Check before the first block that this party's ledger permits the scores of a whole request.

        Args:
            ids: the ids of all rows of the request.

        Raises:
            LeakageError: the scores of a model with pairs would exceed this party's limit.
        """
        scoring = self._scoring
        if scoring.ledger is None or scoring.max_pair_bits is None or self._context.me == self._requester:
            return
        query = scoring.ledger.query(scoring.model, self._requester, ids, b"")
        bits = self._quantizer.bits * self._params.outputs
        scoring.ledger.check_pair_scores(query, bits=bits, max_pair_bits=scoring.max_pair_bits)

    def _decide(self, rows: RowsToScore, ledger: ScoreLedger, claim: str) -> RowDecisions:
        """Run steps 0 and 1: agree with all parties on the rows that receive a score."""
        context, scoring, requester, products = self._context, self._scoring, self._requester, self._products
        n, judges = len(rows.ids), [name for name in context.parties if name != requester]
        if context.me == requester:
            commitments = ledger.commitments(rows.ids, rows.raw)
            query = ledger.query(scoring.model, SELF, rows.ids, commitments)
            requested = ledger.record_query(query)
            for name in products.others:
                record = DisclosureRecord(name, "digests", n, 8 * COMMITMENT_BYTES, about=(requester,))
                permit = context.channel.permit(record)
                products.send(name, RowCommitments(commitments, requested.tobytes()), permit)  # step 0
        else:
            message = products.recv(requester, RowCommitments)  # step 0
            commitments, requested = message.rows, _read_states(requester, message.states, n)
            if len(commitments) != COMMITMENT_BYTES * n:
                raise ProtocolError(
                    f"{requester} sent {len(commitments)} bytes of commitments to its rows instead of "
                    f"{COMMITMENT_BYTES * n}",
                    "request the same rows at all parties",
                    code="SVFL-PROTOCOL-SIZE",
                    party=requester,
                )
            query = ledger.query(scoring.model, requester, rows.ids, commitments)
        states = {}
        if context.me == self._rounding:
            states[context.me] = self._judge(query, rows, requested != ROW_REFUSED, claim)
        else:
            data = products.recv(self._rounding, RowStates).states  # step 1
            states[self._rounding] = _read_states(self._rounding, data, n)
            if context.me != requester:
                open_rows = (requested != ROW_REFUSED) & (states[self._rounding] != ROW_REFUSED)
                states[context.me] = self._judge(query, rows, open_rows, claim)
        for name in judges:
            if name not in states:
                states[name] = _read_states(name, products.recv(name, RowStates).states, n)  # step 1
        scored = np.logical_and.reduce([requested != ROW_REFUSED, *(state != ROW_REFUSED for state in states.values())])
        stored = scored & (states[self._rounding] == ROW_STORED)
        if self._other in states:
            # if R has stored its share of a row's score and O has lost its share, the row gets no new score either
            scored &= ~stored | (states[self._other] == ROW_STORED)
            stored &= scored
        fresh = scored & ~stored
        if context.me != requester:
            unused = (states[context.me] == ROW_NEW) & ~fresh
            if unused.any():
                ledger.release(query.where(unused))
            scoring.charge(int(fresh.sum()), 0)
        return RowDecisions(query, fresh, stored)

    def _judge(
        self, query: ScoreQuery, rows: RowsToScore, open_rows: NDArray[np.bool_], claim: str
    ) -> NDArray[np.uint8]:
        """Ask this party's ledger which rows it refuses, and send the result to all parties.

        Args:
            query: the rows as the ledger identifies them.
            rows: the ids and unscaled columns of the rows.
            open_rows: whether each row (n,) has not been refused by anybody so far.
            claim: the name of this session's claim; other sessions wait for the rows that it has claimed.

        Returns:
            The state of each row (n,): refused, new, or stored.
        """
        context, scoring, products = self._context, self._scoring, self._products
        assert scoring.ledger is not None, "only parties with a ledger decide"
        if rows.barred is not None:
            open_rows = open_rows & ~rows.barred
        states = np.full(len(open_rows), ROW_REFUSED, np.uint8)
        states[open_rows] = scoring.ledger.admit(
            query.where(open_rows),
            rows.raw[open_rows],
            bits=self._quantizer.bits * self._params.outputs,
            max_bits=scoring.max_bits,
            max_pair_bits=scoring.max_pair_bits,
            me=context.me,
            claim=claim,
        )
        scoring.charge(0, int((states == ROW_REFUSED).sum()))
        for name in products.others:
            permit = context.channel.permit(DisclosureRecord(name, "ids", len(states), 2, about=(context.me,)))
            products.send(name, RowStates(states.tobytes()), permit)  # step 1
        return states

    def _compute(self, number: int, X: Floats | ColumnsWithPairs, query: ScoreQuery | None) -> Words | None:
        """Run steps 2 and 3: return this holder's share (n, c) of new scores, after storing it. None elsewhere."""
        if self._sums is None:
            self._sums = ForwardSums(self._products, self._params, self._state, "scores", self._number, self._rows)
        h = self._sums.block(number, X)  # step 2
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
                self._products.recv(self._other, ShareStored)  # step 3
            self._scoring.ledger.store(query, [row.tobytes() for row in share.astype("<u8")])
            if context.me == self._other:
                self._products.send(self._rounding, ShareStored())  # step 3
        return share

    def _move_overflow(self, h: Words) -> Words:
        """Return this holder's share (n, c) of the sums, after sums that are out of range were moved to one value."""
        transfers = None if self._top_transfers is None else self._top_transfers()
        if transfers is None:
            return h
        quantizer, encoding = self._scoring.quantizer, self._params.encoding
        ring, index = ShareRing(quantizer.bits), encoding.top_index(h)
        table = quantizer.overflow_shifts(encoding.top_knots)
        tables = lambda _, first: rotated_tables(table[None], np.zeros(len(first), np.intp), first)  # noqa: E731
        shifts = look_up_shares(self._products, transfers, self._params.partner, index, encoding.top_bits, tables, ring)
        return self._ring.reduce(h + (shifts << np.uint64(quantizer.shift(encoding))))

    def _stored(self, query: ScoreQuery | None) -> tuple[Words, NDArray[np.bool_]]:
        """Return this holder's stored shares (n, c) of earlier scores, and which rows' shares are missing (n,)."""
        ledger, c = self._scoring.ledger, self._params.outputs
        assert ledger is not None, "only parties with a ledger have stored scores"
        assert query is not None, "only parties with a ledger have stored scores"
        shares = ledger.stored(query)
        lost = np.array([share is None for share in shares], np.bool_)
        octets = b"".join(share or bytes(8 * c) for share in shares)
        return np.frombuffer(octets, "<u8").reshape(-1, c).astype(np.uint64), lost

    def _disclose(self, share: Words | None, decisions: RowDecisions) -> Floats | None:
        """Run steps 4 and 5: send this holder's share (m, c) of the m scored rows, or return the scores (n, c) at Q."""
        context, requester, products = self._context, self._requester, self._products
        ring, quantizer = self._score_ring, self._scoring.quantizer
        shape = (int(decisions.scored.sum()), self._params.outputs)
        if context.me == requester:
            rounded = self._read_rounded(products.recv(self._rounding, RoundedScores), shape)  # step 4
            if share is None:
                share = unpack_words(self._other, products.recv(self._other, ScoreShare).words, ring, shape)  # step 5
            scores = np.full((len(decisions.scored), shape[1]), np.nan)
            sums = quantizer.dequantize(share + rounded, rounded_down=1)
            scores[decisions.scored] = quantizer.mark_overflow(sums)
            return scores
        if share is not None and context.me == self._rounding:
            about = tuple(name for name in context.parties if name != requester)
            bits, finer = self._quantizer.bits, ring.bits - self._quantizer.bits
            permit = context.channel.permit(DisclosureRecord(requester, "scores", share.size, bits, about=about))
            packed = ShareRing(bits).pack(share >> np.uint64(finer))
            products.send(requester, RoundedScores(packed, finer), permit)  # step 4
        elif share is not None:
            products.send(requester, ScoreShare(ring.pack(share)))  # step 5
        return None

    def _read_rounded(self, message: RoundedScores, shape: tuple[int, int]) -> Words:
        """Return the share (m, c) that R has sent, in levels of the agreed spacing s."""
        bits, limit = self._score_ring.bits, self._scoring.max_finer
        if not 0 <= message.finer <= (bits - 1 if limit is None else limit):
            raise ProtocolError(
                f"{self._rounding}, which rounds the scores, states that it omitted {message.finer} of the {bits} bits "
                "of a score, which the job does not allow",
                code="SVFL-PROTOCOL-VALUES",
                party=self._rounding,
            )
        ring = ShareRing(bits - message.finer)
        return unpack_words(self._rounding, message.words, ring, shape) << np.uint64(message.finer)

    def _store_scores(self, scores: Floats, decisions: RowDecisions) -> None:
        """Store the scores (n, c) that this party received, so that it need not request them again."""
        known = np.asarray(np.isfinite(scores).all(axis=1))
        ledger, query = self._scoring.ledger, decisions.query_of(known)
        if ledger is not None and query is not None:
            ledger.store(query, [row.tobytes() for row in scores[known].astype("<f8")], of="score")


def _read_states(name: str, data: bytes, rows: int) -> NDArray[np.uint8]:
    """Return the states of rows (refused, new or stored) that a party has sent. Raises ProtocolError if invalid."""
    states = np.frombuffer(data, np.uint8)
    if len(states) != rows:
        raise ProtocolError(
            f"{name} sent {len(states)} answers to the question whether a row may be scored, instead of one for each "
            f"of {rows} rows",
            code="SVFL-PROTOCOL-SIZE",
            party=name,
        )
    if states.max(initial=0) > ROW_STORED:
        raise ProtocolError(
            f"{name} sent an unknown answer to the question whether a row may be scored",
            code="SVFL-PROTOCOL-VALUES",
            party=name,
        )
    return states

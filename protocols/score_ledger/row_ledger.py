"""The score ledger: a record, in a party's account, of the scores and metrics about its rows that others have received.

A *score* of a row is the sum of both parties' partial sums X_k @ theta_k, for columns X_k and secret weights theta_k.
Too many scores reveal columns or weights. The ledger counts, for each row, the scores and bits that peers have
received, and refuses a row whose limits are reached: individually and without a reason. A score of k bits for each of c
outputs counts as c * k bits. Rows are stored as keyed digests of their ids, on disk before the answer is sent. One
transaction looks a row up, admits it and updates its bits; other sessions wait for it. `ScoreLedger` lists the limits.
Reason codes, which name the columns that affect a score most, count as well. An evaluation computes metrics of a model,
such as the AUC, on a set of rows.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from securevfl.account.database import AccountDatabase, Tables
from securevfl.account.process_locks import ProcessLocks
from securevfl.base.arrays import Floats, RowSlices
from securevfl.base.chunked_matrix import ChunkedMatrix
from securevfl.errors import LeakageError, ProtocolError
from securevfl.protocols.score_ledger.row_digests import (
    COMMITMENT_BYTES,
    DIGEST_CHUNK_ROWS,
    ROW_DIGEST_BYTES,
    block_digests,
    content_digests,
    id_salt,
    number_rows,
    sorted_digests,
)
from securevfl.protocols.score_ledger.score_limits import (
    CLAIM_TIMEOUT,
    EVALUATION,
    MAX_ATTEMPTS,
    MAX_STANDARD_ERRORS,
    MIN_ITERATIONS,
    RANGE_COUNT,
    check_evaluations,
    check_pair_bits,
    max_evaluations,
)
from securevfl.protocols.score_ledger.tables import (
    DELETE_UNUSED,
    INSERT_ADMITTED,
    INSERT_ASKED,
    INSERT_CODES,
    SCORE_TABLES_SQL,
    SELECT_ASKED,
    SELECT_VALUE,
    STORE_VALUE,
    SUBTRACT_UNUSED_PAIR_BITS,
    UNDO_ATTEMPT,
    add_contents,
    add_pair_bits,
    add_trained,
    contains,
    count_matches,
    disclosed_bits,
    increment_counts,
    iterations_of,
    max_count,
    name_id,
    record_model,
)
from securevfl.runtime import eventlog

SELF = ""
"""The peer of queries that the ledger's owner itself sends."""

ROW_REFUSED, ROW_NEW, ROW_STORED = 0, 1, 2
"""States of a requested row: it is refused, it has no score yet, or its score is stored."""

_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class ScoreQuery:
    """A request for scores of some rows under a model, with the names and digests that the ledger uses.

    Attributes:
        model: name of the model, in hexadecimal.
        peer: name of the requesting party, or `SELF`.
        rows: keyed digests of the rows' ids.
        committed: the requesting party's commitments to its columns of these rows.
    """

    model: str
    peer: str
    rows: Sequence[bytes]
    committed: Sequence[bytes]

    def where(self, mask: NDArray[np.bool_]) -> ScoreQuery:
        """Return a copy of the query with only those rows for which the mask (n,) is True."""
        indices = np.flatnonzero(mask).tolist()
        return ScoreQuery(self.model, self.peer, [self.rows[i] for i in indices], [self.committed[i] for i in indices])


class ScoreLedger:
    """One party's score ledger. Threads may share an object; each process creates a separate one.

    A score of a row is the sum of both parties' partial sums X_k @ theta_k, for columns X_k and weights theta_k that
    nobody knows. Scores are the intended result, but too many of them reveal columns. The requesting party A chooses
    the values of its d_A columns in a request. With d_A + 1 requests about one row and different values, it can compute
    theta_A; from then on every score reveals the other party's partial sum of that row. Scores of the same rows under
    many models reveal the other party's columns up to an invertible matrix. For the party with labels, scores of
    training rows are as good as residuals. Scores of a model that was hardly trained are products of the columns with
    labels that this party can choose. The ledger therefore enforces these limits:

    - A row is scored once for a peer under a model. A repeated request returns the same bytes, which both share holders
      have stored. A row is scored under fewer than d / 4 models in total (or under one), where d is the number of this
      party's columns.
    - All scores of a row, for all peers together, disclose at most a fourth of the bits of information in the row's
      columns (`SCORE_BIT_BUDGET`). A score of k bits for each of c outputs counts as c * k bits; reason codes, which
      explain a score, count as well. The party may agree to more.
    - A model never scores its training rows. They are recognized by their ids. In addition, the ledger counts how many
      of the rows that a peer has requested have the same columns as a training row. If there are more than chance
      explains, the peer receives no more scores. A single row is not treated differently because of its columns.
    - A model scores rows only after its training has finished, and only if it had at least ten iterations.
    - In its first query about a row, the requesting party commits to the row's columns. Later queries about the row
      with other columns are refused.
    - A model with pairs has products of components of two parties. The requesting party can choose which combination of
      this party's components a score shows. Scores of all such models, over all rows and peers, disclose at most a
      fourth of the bits of the training rows' columns. A request that would exceed this is refused as a whole.
    - All parties agree on a row before it is scored, and each party records it in its ledger before it answers.
    - A set of n rows may be used for at most n / 100 evaluations over all runs and all peers, unless the party accepts
      more; the same limit applies to out-of-range counts.

    A row that must not be scored is refused individually and without a reason; all other rows are answered. The
    requesting party stores the scores it received and which of its rows were used in training, so it can explain a
    refusal to its user.

    These limits make attacks expensive, but do not prove that columns stay secret; a peer that deviates from the
    protocol may commit to any columns. Rows are stored as keyed digests of their ids, on disk before the answer is
    sent. The look-up of a row, its admission and the update of its bits are one transaction. If one session is scoring
    a row, other sessions wait for it.

    Args:
        path: the account's file; None stores the ledger in memory.
        claim_timeout: seconds that `admit` waits for a row that another session is scoring.

    Raises:
        ConfigError: the file is damaged or is not a score ledger.
    """

    def __init__(self, path: Path | None, claim_timeout: float = CLAIM_TIMEOUT) -> None:
        self._claim_timeout = claim_timeout
        self._claims = ProcessLocks(None if path is None else path.with_name(f"{path.name}.locks"))
        self._file = AccountDatabase.shared(path, SCORE_TABLES_SQL)

    def record_model(
        self, model: bytes, iterations: int, ids: Iterable[bytes], X: RowSlices | ChunkedMatrix | None = None
    ) -> None:
        """Record a trained model with its training rows.

        Args:
            model: name of the model.
            iterations: number of its training iterations.
            ids: ids of its training rows, in any order.
            X: this party's columns (n, d) of these rows, in any order. If other processes store the rows, they compute
                the digests.
        """
        remaining_ids, count = iter(ids), 0 if X is None else len(X)
        starts = range(0, count, DIGEST_CHUNK_ROWS)
        rows = sorted_digests(iter(lambda: self._digests(islice(remaining_ids, DIGEST_CHUNK_ROWS)), []))
        if isinstance(X, ChunkedMatrix):
            pending = [part.run(block_digests, self._key_of(b"columns")) for part in X.parts]
            contents = sorted_digests([[digests.result()] for digests in pending])
        else:
            contents = sorted_digests(
                self._contents(X[first : min(first + DIGEST_CHUNK_ROWS, count)]) for first in starts if X is not None
            )
        # The digests are computed before the account is locked, because other sessions wait for the lock. A crash may
        # lose this change; that is safe, because a model without this record scores no row.
        with self._file.changing(recorded=False) as tables:
            number = name_id(tables, model.hex())
            for digests in rows:
                add_trained(tables, number, digests)
            for digests in contents:
                add_contents(tables, number, digests)
            record_model(tables, number, iterations)

    def check_writable(self) -> None:
        """Check that the account can be changed; see `AccountDatabase.check_writable`."""
        self._file.check_writable()

    def knows_model(self, model: bytes) -> bool:
        """Return whether this model has been recorded."""
        with self._file.reading() as tables:
            return iterations_of(tables, model.hex()) is not None

    def commitments(self, ids: Iterable[bytes], X: Floats) -> bytes:
        """Return commitments to this party's columns X (n, d): keyed digests of `COMMITMENT_BYTES`, concatenated.

        Equal columns of a row have equal commitments, whether a zero in them has a sign or not.
        """
        octets = number_rows(X)
        return b"".join(
            hashlib.blake2b(
                row.tobytes(), digest_size=COMMITMENT_BYTES, key=self._file.key, salt=id_salt(row_id)
            ).digest()
            for row, row_id in zip(octets, ids, strict=True)
        )

    def query(self, model: bytes, peer: str, ids: Iterable[bytes], commitments: bytes) -> ScoreQuery:
        """Translate a peer's request into the names and digests that this ledger uses.

        Args:
            model: name of the model.
            peer: name of the requesting party; `SELF` for this party.
            ids: ids of the requested rows.
            commitments: the commitments that the peer sent, `COMMITMENT_BYTES` for each row.

        Returns:
            The request, with the names and digests that the ledger uses to look up its rows.
        """
        starts = range(0, len(commitments), COMMITMENT_BYTES)
        committed = [commitments[start : start + COMMITMENT_BYTES] for start in starts]
        return ScoreQuery(model.hex(), peer, self._digests(ids), committed)

    def admit(
        self,
        query: ScoreQuery,
        X: Floats,
        *,
        bits: float = 0,
        max_bits: float = float("inf"),
        max_pair_bits: float | None = None,
        me: str = "",
        claim: str = "",
    ) -> NDArray[np.uint8]:
        """Decide which requested rows may be scored, and record them as disclosed.

        Args:
            query: a peer's request for scores.
            X: this party's columns (n, d) of the requested rows.
            bits: number of bits that a score of a row discloses.
            max_bits: number of bits that all scores and reason codes of a row together may disclose.
            max_pair_bits: for a model with pairs, the number of bits that scores of all such models may disclose about
                all rows together; None for another model.
            me: name of this party, for the log.
            claim: the name that `claim` yielded to this session. If another session is scoring a row, this method waits
                for it, and refuses the row after `claim_timeout`.

        Returns:
            The state of each row (n,): `ROW_REFUSED`, `ROW_NEW` or `ROW_STORED`.

        Raises:
            LeakageError: the model must not be scored, or not by this peer. Nothing is recorded then.
            ProtocolError: a row occurs twice in the query.
        """
        if len(set(query.rows)) < len(query.rows):
            raise ProtocolError(
                f"scores for {query.peer}: a request contains a row twice",
                code="SVFL-PROTOCOL-REPEATED",
                peer=query.peer,
            )
        contents, deadline = self._contents(X), time.monotonic() + self._claim_timeout
        while True:
            with self._file.changing() as tables:
                states, awaited = self._judge(tables, query, contents, X.shape[1], bits, max_bits, max_pair_bits, claim)
                late = time.monotonic() > deadline
                if not awaited or late:
                    break
                tables.undo()
            time.sleep(_POLL_SECONDS)
        facts = {
            "rows": len(states),
            "new": int((states == ROW_NEW).sum()),
            "refused": int((states == ROW_REFUSED).sum()),
        }
        eventlog.emit(me, "rows admitted", {"peer": query.peer, "model": query.model[:16], **facts})
        return states

    def release(self, query: ScoreQuery) -> None:
        """Undo the admission of rows that were not scored because another party refused them."""
        with self._file.changing() as tables:
            peer, model = name_id(tables, query.peer), name_id(tables, query.model)
            keys = [(row, peer, model) for row in query.rows]
            tables.executemany(UNDO_ATTEMPT, keys)
            tables.executemany(SUBTRACT_UNUSED_PAIR_BITS, keys)
            tables.executemany(DELETE_UNUSED, keys)

    def claim(self) -> AbstractContextManager[str]:
        """Return a context manager in which a session may score rows.

        Until it exits, the session has a claim, and other sessions that are asked about the same rows wait. It yields
        the name of the claim.
        """
        return self._claims.hold()

    def _judge(
        self,
        tables: Tables,
        query: ScoreQuery,
        contents: Sequence[bytes],
        columns: int,
        bits: float,
        max_bits: float,
        max_pair_bits: float | None,
        claim: str,
    ) -> tuple[NDArray[np.uint8], int]:
        """Decide which rows of a query may be scored, and record those that may.

        Args:
            tables: the SQL tables of the ledger, inside a transaction.
            query: a peer's request for scores, as the ledger identifies its rows.
            contents: digests of this party's columns of the rows.
            columns: the number of this party's columns.
            bits: number of bits that a score of a row discloses.
            max_bits: number of bits that all scores and reason codes of a row together may disclose.
            max_pair_bits: see `admit`.
            claim: the name of this session's claim.

        Returns:
            The state of each row (n,), and the number of rows that another session is scoring right now.

        Raises:
            LeakageError: the model must not be scored, or not by this peer.
        """
        name, iterations = query.peer, iterations_of(tables, query.model)
        if iterations is None:
            raise LeakageError(
                f"scores for {name}: the score ledger has no record of a finished training of this model",
                "finish the training first, or use the score ledger that the training used",
                code="SVFL-MODEL-NOT-TRAINED",
                peer=name,
            )
        if iterations < MIN_ITERATIONS:
            raise LeakageError(
                f"scores for {name}: the stored model had {iterations} iterations, and scores need at least "
                f"{MIN_ITERATIONS}",
                f"train longer, and evaluate at most every {MIN_ITERATIONS} iterations",
                code="SVFL-LIMIT-REACHED",
                peer=name,
                iterations=iterations,
            )
        peer, model, requester = (name_id(tables, known) for known in (name, query.model, SELF))
        max_models = max(1, -(-columns // 4) - 1)
        states, awaited, requested, matching = np.zeros(len(query.rows), np.uint8), 0, 0, 0
        active = dict[str, bool]()
        for index, (row, committed, content) in enumerate(zip(query.rows, query.committed, contents, strict=True)):
            if contains(tables, "trained", model, row):
                continue
            records = tables.execute(
                "SELECT peer, model, bits, tries, committed, claim, part IS NOT NULL FROM scored WHERE row = ?", (row,)
            ).fetchall()
            records = [record for record in records if record[0] != requester]
            repeated = next((record for record in records if record[:2] == (peer, model)), None)
            if any(record[0] == peer and record[4] != committed for record in records):
                continue
            if repeated is not None and repeated[6]:
                states[index] = ROW_STORED
                continue
            if (
                repeated is not None
                and repeated[5]
                and repeated[5] != claim
                and active.setdefault(repeated[5], self._claims.is_held(repeated[5]))
            ):
                awaited += 1
                continue
            if repeated is not None and repeated[3] >= MAX_ATTEMPTS:
                continue
            others = [record for record in records if record is not repeated]
            if len({record[1] for record in others} - {model}) >= max_models:
                continue
            if sum(record[2] for record in others) + bits + disclosed_bits(tables, row)[1] > max_bits:
                continue
            states[index] = ROW_NEW
            if repeated is None:
                requested += 1
                matching += contains(tables, "contents", model, content)
            tables.execute(INSERT_ADMITTED, (row, peer, model, bits, committed, claim))
        count_matches(tables, peer, model, requested, matching)
        self._check_matches(tables, name, peer, model)
        if max_pair_bits is not None:
            check_pair_bits(tables, name, requested * bits, max_pair_bits)
            add_pair_bits(tables, model, requested * bits)
        return states, awaited

    def check_pair_scores(self, query: ScoreQuery, *, bits: float, max_pair_bits: float) -> None:
        """Check before anything is sent that the limit of scores of models with pairs permits a whole request.

        Args:
            query: a peer's request, with all of its rows.
            bits: number of bits that a score of a row discloses.
            max_pair_bits: see `admit`.

        Raises:
            LeakageError: the rows that have no score yet would exceed the limit. Training rows of the model do not
                count, because they receive no score. Rows that are refused for another reason count here, although they
                disclose nothing.
        """
        select = "SELECT 1 FROM scored WHERE row = ? AND peer = ? AND model = ?"
        with self._file.reading() as tables:
            peer, model = name_id(tables, query.peer), name_id(tables, query.model)
            new = sum(
                tables.execute(select, (row, peer, model)).fetchone() is None
                for row in set(query.rows)
                if not contains(tables, "trained", model, row)
            )
            check_pair_bits(tables, query.peer, new * bits, max_pair_bits)

    def _check_matches(self, tables: Tables, name: str, peer: int, model: int) -> None:
        """Refuse a peer if its requested rows equal training rows more often than training rows equal each other.

        Args:
            tables: the SQL tables of the ledger, inside a transaction.
            name: name of the peer.
            peer: number of the peer.
            model: number of the model.

        Raises:
            LeakageError: more requested rows equal a training row than chance explains.
        """
        requested, matching = tables.execute(
            "SELECT asked, alike FROM alike WHERE peer = ? AND model = ?", (peer, model)
        ).fetchone()
        rows, repeated = tables.execute("SELECT columns, alike FROM models WHERE model = ?", (model,)).fetchone()
        share = repeated / max(1, rows)
        deviation = (share * (1 - share) * requested) ** 0.5
        if matching > share * requested + MAX_STANDARD_ERRORS * (deviation + 1):
            raise LeakageError(
                f"scores for {name}: too many requested rows have the same columns as training rows, and scores of "
                "training rows reveal residuals",
                "leave the training rows out of the request",
                code="SVFL-LIMIT-REACHED",
                peer=name,
            )

    def admit_codes(
        self, model: str, ids: Iterable[bytes], X: Floats, *, bits: float, max_bits: float = float("inf")
    ) -> NDArray[np.bool_]:
        """Decide which rows may receive reason codes, which explain a score, and record the codes as disclosed.

        If codes of a row are requested repeatedly with the same columns, they count once.

        Args:
            model: name of the model.
            ids: ids of the rows.
            X: this party's columns (n, d) of the rows.
            bits: number of bits that the codes of a row disclose.
            max_bits: number of bits that codes and scores of a row together may disclose, over all models.

        Returns:
            Whether each row (n,) may receive codes.
        """
        sources = [f"{model} {content.hex()}" for content in content_digests(X, self._key_of(b"codes"))]
        admitted = np.zeros(len(sources), np.bool_)
        with self._file.changing() as tables:
            for index, (row, source) in enumerate(zip(self._digests(ids), sources, strict=True)):
                record = tables.execute("SELECT bits FROM codes WHERE row = ? AND source = ?", (row, source)).fetchone()
                previous = 0.0 if record is None else record[0]
                if sum(disclosed_bits(tables, row)) - previous + max(previous, bits) > max_bits:
                    continue
                admitted[index] = True
                tables.execute(INSERT_CODES, (row, source, bits))
        return admitted

    def check_evaluations(self, peer: str, ids: Iterable[bytes], times: int) -> None:
        """Check that `peer` may evaluate models on these rows `times` more times.

        Args:
            peer: name of the party that learns the metrics.
            ids: ids of the rows.
            times: number of further evaluations.

        Raises:
            LeakageError: the number of evaluations would exceed the limit.
        """
        with self._file.reading() as tables:
            check_evaluations(tables, peer, self._digests(ids), times)

    def record_evaluation(
        self,
        peer: str,
        ids: Iterable[bytes],
        *,
        limited: bool = True,
        me: str = "",
        times: int = 1,
        alongside: Callable[[Tables], object] = lambda tables: None,
    ) -> None:
        """Record that `peer` evaluates models on these rows.

        Args:
            peer: name of the party that learns the metrics.
            ids: ids of the rows.
            limited: whether to enforce the limit on evaluations.
            me: name of this party, for the log.
            times: number of evaluations.
            alongside: makes a further change to the account in the same transaction, so that both or none are on disk.

        Raises:
            LeakageError: the number of evaluations would exceed the limit. Nothing is recorded then.
        """
        rows = self._digests(ids)
        with self._file.changing() as tables:
            if limited:
                check_evaluations(tables, peer, rows, times)
            for _ in range(times):
                increment_counts(tables, rows, EVALUATION)
            alongside(tables)
        eventlog.emit(me, "metrics disclosed", {"peer": peer, "rows": len(rows)})

    def evaluation_count(self, ids: Iterable[bytes]) -> int:
        """Return how often the most frequently evaluated of these rows was used for an evaluation."""
        with self._file.reading() as tables:
            return max_count(tables, self._digests(ids), EVALUATION)

    def record_range_count(self, ids: Iterable[bytes]) -> bool:
        """Record one more out-of-range count of these rows, and return True; only return False at the limit."""
        rows = self._digests(ids)
        with self._file.changing() as tables:
            if max_count(tables, rows, RANGE_COUNT) >= max_evaluations(len(rows)):
                return False
            increment_counts(tables, rows, RANGE_COUNT)
        return True

    def disclosed_bits(self, ids: Iterable[bytes]) -> list[tuple[float, float]]:
        """Return, for each row, the number of bits that scores and the number that reason codes have disclosed."""
        with self._file.reading() as tables:
            return [disclosed_bits(tables, row) for row in self._digests(ids)]

    def record_query(self, query: ScoreQuery) -> NDArray[np.uint8]:
        """Return `row_states` of this party's query, and record its commitments to the columns of new rows."""
        states = self.row_states(query)
        with self._file.changing() as tables:
            peer, model = name_id(tables, query.peer), name_id(tables, query.model)
            tables.executemany(
                INSERT_ASKED,
                [
                    (row, peer, model, committed)
                    for row, committed, state in zip(query.rows, query.committed, states.tolist(), strict=True)
                    if state == ROW_NEW
                ],
            )
        return states

    def row_states(self, query: ScoreQuery) -> NDArray[np.uint8]:
        """Return the states of the rows of this party's query, as far as this ledger determines them.

        Args:
            query: a query that this party itself wants to send.

        Returns:
            For each row (n,): `ROW_REFUSED` if it is a training row of the model, or if this party has requested it
            with other columns before; `ROW_STORED` if this ledger contains this party's share of the score; otherwise
            `ROW_NEW`.
        """
        states = np.full(len(query.rows), ROW_NEW, np.uint8)
        with self._file.reading() as tables:
            peer, model = name_id(tables, query.peer), name_id(tables, query.model)
            for index, (row, committed) in enumerate(zip(query.rows, query.committed, strict=True)):
                record = tables.execute(SELECT_ASKED, (row, peer, model)).fetchone()
                if contains(tables, "trained", model, row) or (record is not None and record[0] != committed):
                    states[index] = ROW_REFUSED
                elif record is not None and record[1]:
                    states[index] = ROW_STORED
        return states

    def is_trained_on(self, query: ScoreQuery) -> NDArray[np.bool_]:
        """Return whether each row (n,) of a query is a training row of the model."""
        with self._file.reading() as tables:
            model = name_id(tables, query.model)
            return np.array([contains(tables, "trained", model, row) for row in query.rows], np.bool_)

    def count_trained(self, model: bytes, ids: Iterable[bytes]) -> int:
        """Return how many of these ids belong to training rows of a model."""
        with self._file.reading() as tables:
            number = name_id(tables, model.hex())
            return sum(contains(tables, "trained", number, row) for row in self._digests(ids))

    def store(self, query: ScoreQuery, values: Sequence[bytes], *, of: Literal["part", "score"] = "part") -> None:
        """Store a value for each row of a query. The values are on disk when this method returns.

        Args:
            query: the rows, model and peer to which the values belong.
            values: the values, one for each row.
            of: "part" if the values are this party's shares of scores, "score" if they are scores that it received.
        """
        with self._file.changing() as tables:
            peer, model = name_id(tables, query.peer), name_id(tables, query.model)
            records = [(value, row, peer, model) for value, row in zip(values, query.rows, strict=True)]
            tables.executemany(STORE_VALUE[of], records)

    def stored(self, query: ScoreQuery, *, of: Literal["part", "score"] = "part") -> list[bytes | None]:
        """Return the stored value of each row; None if there is none for this peer and these commitments."""
        with self._file.reading() as tables:
            peer, model = name_id(tables, query.peer), name_id(tables, query.model)
            records = [
                tables.execute(SELECT_VALUE[of], (row, peer, model, committed)).fetchone()
                for row, committed in zip(query.rows, query.committed, strict=True)
            ]
        return [None if record is None else record[0] for record in records]

    def _digests(self, ids: Iterable[bytes]) -> list[bytes]:
        """Return the keyed digests of ids; their secret key is stored in the account file."""
        key = self._file.key
        return [hashlib.blake2b(row_id, digest_size=ROW_DIGEST_BYTES, key=key).digest() for row_id in ids]

    def _contents(self, X: Floats) -> list[bytes]:
        """Return the digests of the rows of X (n, d) under a key of the file."""
        return content_digests(X, self._key_of(b"columns"))

    def _key_of(self, purpose: bytes) -> bytes:
        """Derive a key for this purpose from the key of the file."""
        return hashlib.blake2b(self._file.key, person=purpose).digest()

"""One party's role in a joint prediction, which scores rows block by block.

The *requesting party* is the one that learns the scores f. *Passive* parties have no labels. Steps, which comments
refer to by number:
1. all <-> all   PredictionHandshake   which training the part of the model belongs to, number and order of rows, role
2. all           the messages of the protocol family (`securevfl.families`); only the requesting party learns f
3. some -> requesting party   ReasonCodes   if parties provide reason codes, the columns that raised a score most

Passive parties record the disclosed scores in their ledgers before step 2. Scores of the same rows count once if the
family discloses the same values again (`Family.repeatable_scores`). A party learns the same kinds of values about these
rows as in the evaluation of a training.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.roles import PARTNER, Roles
from securevfl.data.id_keys import id_digest
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.identities import identity_of
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, ProtocolError, TableError
from securevfl.families.participant import Participant
from securevfl.organisations.order_check import check_order, keyed_order
from securevfl.organisations.prediction import Prediction, prediction_of
from securevfl.organisations.score_reasons import ReasonProvider, score_reasons
from securevfl.organisations.score_reasons import declares as declare_reasons
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.joint_prediction import RowState, RowsToScore, ScoreResult
from securevfl.protocols.party_context import LocalResources, PartyContext
from securevfl.protocols.permits import permit_sizes
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.runtime.disclosure_gate import DisclosingMessage
from securevfl.runtime.meter import Meter
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import NO_TABLE, NewRows
from securevfl.training.run_setup import MAX_ROWS

BEYOND = "their scores are outside the range that scores cover, so they would be read wrongly; they are left out"


class PredictionHandshake(DisclosingMessage, frozen=True):
    """What a party sends about its part of the model and its rows in step 1.

    Attributes:
        run: id of the training.
        rows: number of rows to predict.
        order: keyed digest of the row order.
        role: the party's role in the training.
        codes: number of reason codes per row that the party provides.
    """

    run: str
    rows: int
    order: bytes
    role: str
    codes: int = 0


def declares(roles: Roles) -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of the handshakes and of reason codes."""
    reveals = Reveal(
        "plain",
        "which training the sender's part belongs to; its role; number of rows; keyed digest of their order; number of "
        "reason codes per row that it provides",
    )
    return [
        *(MessageDeclaration(PredictionHandshake, *pair, reveals) for pair in roles.pairs()),
        *declare_reasons(roles),
    ]


class PredictionSession:
    """One party's role in joint predictions over a channel to the other parties.

    The constructor exchanges the handshakes.

    Args:
        part: this party's part of the model.
        channel: channel to the other parties.
        ledger: this party's ledger.
        code_policy: reason codes that this party provides.
        rows: all rows that will be predicted; the parties compare their number and order. If it is None, the rows are
            not known in advance: each block is recorded in the ledger separately, and the caller passes only rows whose
            ids all parties have.
    """

    def __init__(
        self,
        part: ModelPart,
        channel: Channel,
        ledger: DisclosureLedger,
        code_policy: ReasonProvider | None = None,
        rows: NewRows | None = None,
    ) -> None:
        self._part, self._channel, self._ledger, self._code_policy = part, channel, ledger, code_policy
        self._rows = rows
        self._disclosed_numbers = self._refused_rows = self.count = 0
        self._identity, self._job = "", part.parsed_job
        self._participant, self._code_counts = self._exchange_handshakes()
        provides_codes = code_policy is not None and part.name != part.asker
        self._score_ledger = ScoreLedger(ledger.path) if provides_codes else None

    def stored_scores(self, ids: Sequence[Any], X: Floats) -> ScoreResult:
        """Return the results that the requesting party has stored for rows (m, d) from earlier requests."""
        return self._participant.stored_scores(RowsToScore([id_digest(self._part.name, row_id) for row_id in ids], X))

    @property
    def receives_codes(self) -> bool:
        """Whether one of the other parties provides reason codes."""
        return bool(self._code_counts)

    def check_request(self, ids: Iterable[Any]) -> None:
        """Check before the first block of a request that this party's limits permit the scores of all its rows.

        Args:
            ids: the ids of the rows, of all blocks.

        Raises:
            LeakageError: the scores would exceed a limit of this party.
        """
        self._participant.check_request(id_digest(self._part.name, row_id) for row_id in ids)

    def block(
        self, ids: list[Any] | None, X: Floats
    ) -> tuple[list[RowState], tuple[list[Any] | None, Prediction] | None]:
        """Predict one block of rows.

        Args:
            ids: ids of the rows, if they have any.
            X: this party's columns (m, d).

        Returns:
            The state of each row and, at the requesting party, the ids and the prediction of the scored rows. Only that
            party knows why a row has no score.
        """
        result = self.score(ids, X)
        f = result.f
        if f is None:
            return result.states, None
        if ids is not None and not result.scored.all():
            known = self.stored_scores(ids, X)
            result = replace(result, trained=known.trained & ~result.scored, changed=known.changed & ~result.scored)
        rows = np.flatnonzero(result.scored).tolist()
        scored_ids = None if ids is None else [ids[index] for index in rows]
        reasons = {name: [codes[index] for index in rows] for name, codes in result.reasons.items()}
        return result.states, (scored_ids, replace(prediction_of(self._part, f[rows]), reasons=reasons))

    def score(self, ids: list[Any] | None, X: Floats) -> ScoreResult:
        """Score one block of rows with the other parties.

        Args:
            ids: ids of the rows, if they have any.
            X: this party's columns (m, d).

        Returns:
            Which rows were scored, their reason codes and, at the requesting party, the decision values.
        """
        part, policy, channel = self._part, self._code_policy, self._channel
        scaled, score_ledger = part.scaling(X), self._score_ledger
        requested, admits_rows_itself = None, self._job.family.admits_rows_itself
        if ids is not None:
            digests = [id_digest(part.name, row_id) for row_id in ids]
            requested = RowsToScore(digests, np.asarray(X, np.float64))
        if not admits_rows_itself:
            self._disclosed_numbers += len(X) * self._numbers_per_row
            if self._rows is None:
                self._record_scores(self._disclosed_numbers, known_count=True)
        with channel.gate.about_rows("new"):
            if policy is not None and score_ledger is not None:
                max_bits = self._participant.max_bits_per_row
                barred = ~policy.admit(part, score_ledger, ids, X, max_bits)
                requested = None if requested is None else replace(requested, barred=barred)
            answered = self._participant.score(scaled, requested)  # step 2
            if policy is not None and score_ledger is not None:
                if admits_rows_itself:
                    self._disclosed_numbers += int(answered.fresh.sum())
                    self._record_scores(self._disclosed_numbers)
                policy.send(part, channel, scaled[answered.scored])  # step 3
        f = answered.f
        if f is None:
            return answered
        rows = np.flatnonzero(answered.scored)
        local_codes = {} if policy is None else {part.name: policy.reasons(part, scaled[rows])}
        received_codes = {
            name: score_reasons(part.name).receive(name, channel, len(rows), count)  # step 3
            for name, count in self._code_counts.items()
        }
        # f is NaN for a row if this party has lost its share of that row's score
        scored = np.asarray(np.isfinite(f).all(axis=1))
        reasons: dict[str, list[list[str]]] = {}
        for name, codes in (local_codes | received_codes).items():
            reasons[name] = [[] for _ in f]
            for row, row_codes in zip(rows.tolist(), codes, strict=True):
                reasons[name][row] = row_codes if scored[row] else []
        if count := int(np.isinf(f).any(axis=1).sum()):
            eventlog.warn(part.name, "scores out of range", {"rows": count, "reason": BEYOND})
        return replace(answered, scored=scored, reasons=reasons)

    @property
    def _numbers_per_row(self) -> int:
        """The maximum number of values (scores, reason codes) that are disclosed about one row."""
        return self._part.outputs + (self._code_policy is not None)

    def check_room(self) -> None:
        """Check that the ledger's limit allows one more score, before this party answers a request.

        Raises:
            AnswerLimitError: the requesting party has received all scores that the limit allows.
        """
        disclosure = self._disclosed_scores(self._disclosed_numbers + 1)
        self._ledger.check_answer(self._part.run, self._channel.session.hex(), disclosure)

    def _record_scores(self, numbers: int, *, known_count: bool = False) -> None:
        if self._part.name != self._part.asker:
            self._ledger.record_answer(
                self._part.run,
                self._channel.session.hex(),
                self._disclosed_scores(numbers),
                known_count=known_count,
            )

    def _disclosed_scores(self, numbers: int) -> Disclosure:
        part, others = self._part, tuple(name for name in self._part.parties if name != self._part.name)
        return Disclosure("scores", part.asker, others, numbers, 0, self._identity)

    def _charge(self, scored: int, refused: int) -> None:
        """Record the numbers of scores that will be disclosed and of rows that will be refused.

        A refusal reveals one bit about the row. It is recorded if the rows of the whole prediction are known in
        advance. Otherwise each block's ids have been recorded already, by the party that looked them up.
        """
        part = self._part
        if scored:
            self._disclosed_numbers += scored * part.outputs
            self._record_scores(self._disclosed_numbers)
        if refused and self._rows is not None:
            self._refused_rows += refused
            disclosure = Disclosure("ids", part.asker, (part.name,), self._refused_rows, 0)
            self._ledger.record_answer(part.run, self._channel.session.hex(), disclosure)

    def _exchange_handshakes(self) -> tuple[Participant, dict[str, int]]:
        """Exchange handshakes, and record the scores that will be disclosed.

        Returns:
            The object that runs the protocol family for this party, and the number of reason codes per row by name of
            the other party that provides them.
        """
        part, rows, channel, policy, ledger = self._part, self._rows, self._channel, self._code_policy, self._ledger
        handshake = PredictionHandshake(
            part.run,
            0 if rows is None else rows.count,
            b"" if rows is None else keyed_order(rows.order, channel),
            part.role,
            0 if policy is None else policy.codes_per_row,
        )
        others = [name for name in part.parties if name != part.name]
        for name in others:
            channel.send(name, handshake, permit=permit_sizes(channel, name))  # step 1
        # step 1
        handshakes = {part.name: handshake} | {name: channel.recv(name, PredictionHandshake) for name in others}
        self.count = max(received.rows for received in handshakes.values())
        for name in others:
            _compare(part.name, handshake, name, handshakes[name])
            self._check_handshake(name, handshakes[name])
        job = self._job
        if part.name != part.asker:
            code_bits = 0 if policy is None else math.ceil(policy.bits(part))
            bits = job.family.score_bits(job) * part.outputs + code_bits
            eventlog.emit(part.name, "sending scores", {"to": part.asker, "rows": handshake.rows, "bits_per_row": bits})
            if rows is not None and not job.family.admits_rows_itself:
                self._identity = _question(part, rows, ledger, policy) if job.family.repeatable_scores else ""
                # with an identity, a repeated request is not counted, so the count depends on this party's columns
                self._record_scores(self.count * self._numbers_per_row, known_count=not self._identity)
        roles = Roles.of((name, handshakes[name].role) for name in part.parties)
        resources = LocalResources(part.run, account=ledger.path, charge_scores=self._charge)
        meter = Meter(channel.clock, channel.counters)
        context = PartyContext(channel, roles, meter, outputs=part.outputs, resources=resources, model=part.model)
        code_counts = {name: handshakes[name].codes for name in others if handshakes[name].codes}
        if code_counts:
            score_reasons(part.name)  # a party that cannot read reasons refuses before any row is scored
        return job.family.participant(job, context, len(part.features), part.state), code_counts

    def _check_handshake(self, name: str, received: PredictionHandshake) -> None:
        """Raise ProtocolError if the job and the model do not allow the role or a number that a party states."""
        part, job = self._part, self._job
        leads = name == part.parties[0]
        is_helper = received.role == PARTNER and not leads
        allowed = {
            "role": is_helper or job.family.accepts_role(received.role, leads=leads),
            "number of rows": NO_TABLE <= received.rows <= MAX_ROWS,
            "number of reason codes": 0 <= received.codes <= job.reason_codes,
        }
        for stated, permitted in allowed.items():
            if not permitted:
                raise ProtocolError(
                    f"{part.name}: {name} states a {stated} that the model does not allow",
                    "ask the operator of that party for the reason",
                    code="SVFL-PROTOCOL-VALUES",
                    peer=name,
                )


def _question(part: ModelPart, rows: NewRows, ledger: DisclosureLedger, code_policy: ReasonProvider | None) -> str:
    """Return a digest of this party's model part, ids and columns, which determine what it discloses about these rows.

    A repeated request has the same digest and is not counted again. This party computes the digest from its own data,
    so another party cannot make a different request count as a repetition.
    """
    codes = "" if code_policy is None else code_policy.fingerprint()
    content = hashlib.sha256(repr((part.run, part.asker, rows.count, rows.order.hex(), codes)).encode())
    for _, X in rows.blocks():
        # adding 0.0 turns -0.0 into 0.0, so that equal numbers have equal bytes
        content.update((np.ascontiguousarray(X, "<f8") + 0.0).tobytes())
    return identity_of("scores", ledger.pseudonym(content.digest()))


def _compare(me: str, own: PredictionHandshake, name: str, other: PredictionHandshake) -> None:
    if other.run != own.run:
        raise ConfigError(
            f"{name} and {me} have parts of different trainings ({other.run[:8] or 'none'} and "
            f"{own.run[:8] or 'none'})",
            code="SVFL-MODEL-MISMATCH",
            peer=name,
        )
    if other.rows != own.rows and NO_TABLE not in (other.rows, own.rows):
        raise TableError(
            f"{name} has {other.rows} rows to predict, and {me} has {own.rows}", code="SVFL-TABLE-ROW-COUNT", peer=name
        )
    check_order(me, own.order, name, other.order, "new rows")

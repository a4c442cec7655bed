"""One party's role in a joint prediction, block by block."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import Roles
from securevfl.data.id_keys import id_digest
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, TableError
from securevfl.families.participant import Participant
from securevfl.families.score_results import RowHistory
from securevfl.job import Job
from securevfl.organisations import reason_codes
from securevfl.organisations.joint_statistics import check_order, keyed_order
from securevfl.organisations.prediction import Prediction, RowState, prediction_of
from securevfl.organisations.reason_codes import ReasonCodePolicy
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.joint_prediction import RowsToScore
from securevfl.protocols.party_context import LocalResources, PartyContext
from securevfl.protocols.permits import permit_sizes
from securevfl.protocols.score_ledger.ledger import ScoreLedger
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.runtime.disclosure_gate import DisclosingMessage
from securevfl.runtime.meter import Meter
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import NO_TABLE, NewRows

BEYOND = "their sums are beyond what scores cover, far out of the model's range, and would read as others; left out"


class PredictionHandshake(DisclosingMessage, frozen=True):
    """What a party says of its part and its rows."""

    run: str
    rows: int
    order: bytes
    role: str
    codes: int = 0


def declares(roles: Roles) -> list[MessageDeclaration]:
    """Declare what `PredictionHandshake` reveals."""
    said = Reveal(
        "plain",
        "which training the sender's part is of; its role; how many rows; keyed digest of their order; how many reason "
        "codes a row its owner gives",
    )
    return [
        *(MessageDeclaration(PredictionHandshake, *pair, said) for pair in roles.pairs()),
        *reason_codes.declares(roles),
    ]


@dataclass(frozen=True)
class ScoreBatch:
    """What came of a block of rows (m). scored: which were scored (m,). f (s x c) and the codes of these at the party
    that asks; f is None at the others. beyond (m,): whose scores are beyond what is told, so that they have none."""

    scored: NDArray[np.bool_]
    f: Floats | None
    reasons: Mapping[str, list[list[str]]]
    beyond: NDArray[np.bool_]

    @property
    def states(self) -> list[RowState]:
        """What came of each row, as far as the messages tell."""
        pairs = zip(self.scored, self.beyond, strict=True)
        return ["scored" if scored else "beyond" if beyond else "refused" for scored, beyond in pairs]


class PredictionSession:
    """One party's side of predictions over a channel where all parties are there, block by block."""

    def __init__(
        self,
        part: ModelPart,
        channel: Channel,
        ledger: DisclosureLedger,
        code_policy: ReasonCodePolicy | None = None,
        rows: NewRows | None = None,
    ) -> None:
        """Meet the others. rows: all that will be predicted, which parties compare; left out, each block is entered in
        the ledger by itself, and its ids are those that all have been found to have."""
        self._part, self._channel, self._ledger, self._giving, self._rows = part, channel, ledger, code_policy, rows
        self._told = self._refused = self.count = 0  # numbers, and words of refusal; rows of all parties
        self._basis, self._job = "", Job.from_dict(part.job)
        self._player, self._givers = self._meet()
        given = code_policy is not None and part.name != part.asker
        self._counted = ScoreLedger(ledger.scores_path) if given else None

    def known(self, ids: Sequence[Any], X: Floats) -> RowHistory:
        """Return what the party that asks knows of rows (m) before it asks about them."""
        return self._player.row_history(RowsToScore([id_digest(self._part.name, each) for each in ids], X))

    @property
    def gives_codes(self) -> bool:
        """Whether one of the other parties gives codes of reasons."""
        return bool(self._givers)

    def block(
        self, ids: list[Any] | None, X: Floats
    ) -> tuple[list[RowState], tuple[list[Any] | None, Prediction] | None]:
        """Predict one block of rows (m x d). What came of each; and at the party that asks, which alone knows more than
        that a row was refused, the ids and the outcome of those that were scored."""
        outcome = self.score(ids, X)
        states = outcome.states
        if outcome.f is None:
            return states, None
        if ids is not None and not outcome.scored.all():
            known = self.known(ids, X)
            for at in np.flatnonzero(~outcome.scored & (known.trained | known.changed)).tolist():
                states[at] = "trained" if known.trained[at] else "changed"
        named = None if ids is None else [ids[at] for at in np.flatnonzero(outcome.scored).tolist()]
        return states, (named, replace(prediction_of(self._part, outcome.f), reasons=outcome.reasons))

    def score(self, ids: list[Any] | None, X: Floats) -> ScoreBatch:
        """Score one block of rows (m x d)."""
        part, code_policy, channel, scaled = self._part, self._giving, self._channel, self._part.scaling(X)
        asked, accounts = None, self._job.family.admits_rows_itself
        if ids is not None:
            asked = RowsToScore([id_digest(part.name, each) for each in ids], np.asarray(X, np.float64))
        if not accounts:
            self._told += len(X) * self._numbers_of_row
            if self._rows is None:
                self._enter(self._told)
        with channel.gate.about_rows("new"):
            if code_policy is not None and self._counted is not None:
                most = self._player.max_bits_per_row
                barred = ~reason_codes.admit(part, code_policy, self._counted, ids, X, most)
                asked = None if asked is None else replace(asked, barred=barred)
            answered = self._player.score(scaled, asked)  # 2
            f = answered.outputs
            if code_policy is not None and self._counted is not None:
                if accounts:
                    self._told += int(answered.fresh.sum())
                    self._enter(self._told)
                reason_codes.give(part, code_policy, channel, scaled[answered.scored])  # 3
        if f is None:
            return ScoreBatch(answered.scored, None, {}, np.zeros(len(X), np.bool_))
        rows = np.flatnonzero(answered.scored)
        own = {} if code_policy is None else {part.name: reason_codes.coded(part, code_policy, scaled[rows])}
        told = {name: reason_codes.take(name, channel, len(rows), most) for name, most in self._givers.items()}  # 3
        held = np.asarray(np.isfinite(f).all(axis=1))  # not where this party has lost its own part of a score
        reasons = {
            name: [each for row, each in zip(rows.tolist(), codes, strict=True) if held[row]]
            for name, codes in (own | told).items()
        }
        beyond = np.asarray(np.isinf(f).any(axis=1))
        if beyond.any():
            eventlog.warn(part.name, "beyond", {"rows": int(beyond.sum()), "reason": BEYOND})
        return ScoreBatch(held, f[held], reasons, beyond)

    @property
    def _numbers_of_row(self) -> int:
        """Numbers that a row tells at most."""
        return self._part.outputs + (self._giving is not None)

    def _enter(self, numbers: int) -> None:
        part, others = self._part, tuple(name for name in self._part.parties if name != self._part.name)
        if part.name != part.asker:
            told = Disclosure("scores", part.asker, others, numbers, 0, self._basis)
            self._ledger.record_answer(part.run, self._channel.session.hex(), told)

    def _account(self, scored: int, refused: int) -> None:
        """Enter scores that a method is about to tell, and rows that it refuses, unless all were asked about by id: a
        word about each."""
        part = self._part
        if scored:
            self._told += scored * part.outputs
            self._enter(self._told)
        if refused and self._rows is not None:
            self._refused += refused
            told = Disclosure("ids", part.asker, (part.name,), self._refused, 0)
            self._ledger.record_answer(part.run, self._channel.session.hex(), told)

    def _meet(self) -> tuple[Participant, dict[str, int]]:
        """Meet the others, enter the scores that another party is told, and take this party's place.

        The player, and how many codes a row each other party says it gives.
        """
        part, rows, channel, code_policy, ledger = self._part, self._rows, self._channel, self._giving, self._ledger
        own = PredictionHandshake(
            part.run,
            0 if rows is None else rows.count,
            b"" if rows is None else keyed_order(rows.order, channel),
            part.role,
            0 if code_policy is None else code_policy.most,
        )
        others = [name for name in part.parties if name != part.name]
        for name in others:
            channel.send(name, own, permit=permit_sizes(channel, name))  # 1
        heard = {part.name: own} | {name: channel.recv(name, PredictionHandshake) for name in others}  # 1
        self.count = max(each.rows for each in heard.values())
        for name in others:
            _compare(part.name, own, name, heard[name])
        job = self._job
        if part.name != part.asker:
            bits = job.family.score_bits(job) * part.outputs + (
                0 if code_policy is None else math.ceil(code_policy.bits(part))
            )
            eventlog.emit(part.name, "scores", {"to": part.asker, "rows": own.rows, "bits_of_a_row": bits})
            if rows is not None and not job.family.admits_rows_itself:
                self._basis = _question(part, rows, ledger, code_policy) if job.family.repeatable_scores else ""
                self._enter(self.count * self._numbers_of_row)
        roles = Roles.of((name, heard[name].role) for name in part.parties)
        resources = LocalResources(part.run, score_ledger=ledger.scores_path, charge_scores=self._account)
        meter = Meter(channel.clock, channel.counters)
        context = PartyContext(channel, roles, meter, outputs=part.outputs, resources=resources, model=part.model)
        givers = {name: heard[name].codes for name in others if heard[name].codes}
        return job.family.participant(job, context, len(part.features), part.state), givers


def _question(part: ModelPart, rows: NewRows, ledger: DisclosureLedger, code_policy: ReasonCodePolicy | None) -> str:
    """Name what a party tells of these rows: by its part of the model, and its ids and columns in their order.

    It sees these itself, so what it tells again under one name are the same numbers, whatever another party does.
    """
    codes = "" if code_policy is None else repr((code_policy.most, sorted(code_policy.codes.items())))
    content = hashlib.sha256(repr((part.run, part.asker, rows.count, rows.order.hex(), codes)).encode())
    for _, X in rows.blocks():
        content.update((np.ascontiguousarray(X, "<f8") + 0.0).tobytes())  # one zero
    return f"scores {ledger.pseudonym(content.digest())}"


def _compare(me: str, own: PredictionHandshake, name: str, other: PredictionHandshake) -> None:
    if other.run != own.run:
        raise ConfigError(
            f"{name} and {me} hold parts of different trainings ({other.run[:8] or 'none'}, {own.run[:8] or 'none'}); "
            "bring the parts that one training has saved"
        )
    if other.rows != own.rows and NO_TABLE not in (other.rows, own.rows):
        raise TableError(f"{name} has {other.rows} rows to predict, {me} {own.rows}; align the tables first")
    check_order(me, own.order, name, other.order, "new rows")

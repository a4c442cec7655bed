"""Joint prediction between organisations: each brings its part of the model and its columns of new rows.

1. all <-> all           Asked    which training the part is of, rows, keyed digest of the row order, role in it
2. all                   the method's own messages (`securevfl.families`); the party that asks alone learns f

What a party learns is what it learns in the evaluation of a training, for these rows. Passive parties enter the scores
that they tell in their disclosure ledgers before step 2; the same rows with the same columns count once, where a method
tells the same of them again (`Method.repeats`).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import Roles
from securevfl.data.id_keys import id_digest
from securevfl.data.store import OnRows
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, PartiesError, TableError
from securevfl.families.player import KnownRows, Player
from securevfl.job import Job
from securevfl.organisations import reason_codes
from securevfl.organisations.conversation import Venue, converse
from securevfl.organisations.looks import check_order, keyed_order
from securevfl.organisations.reason_codes import GivenCodes
from securevfl.protocols.declared import Declared, Reveal, permit_sizes
from securevfl.protocols.link import AskedRows
from securevfl.protocols.party_context import LocalResources, PartyContext
from securevfl.protocols.score_ledger.ledger import Ledger
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel, DisclosingMessage
from securevfl.runtime.executor import Meter
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import NONE, NewRows, no_rows, rows_of_array
from securevfl.transport.peers import Peers

BEYOND = "their sums are beyond what scores cover, far out of the model's range, and would read as others; left out"


class BroughtRows(DisclosingMessage, frozen=True):
    """What a party says of its part and its rows."""

    run: str
    rows: int
    order: bytes
    role: str
    codes: int = 0


def declares(roles: Roles) -> list[Declared]:
    """Declare what `BroughtRows` reveals."""
    said = Reveal(
        "plain",
        "which training the sender's part is of; its role; how many rows; keyed digest of their order; how many reason "
        "codes a row its owner gives",
    )
    return [*(Declared(BroughtRows, *pair, said) for pair in roles.pairs()), *reason_codes.declares(roles)]


@dataclass(frozen=True)
class Predicted:
    """The prediction as the party that asks receives it. decision: f (m x c). label (m,): likeliest class, or the
    number in a regression.

    proba (m x classes) in the order of `classes`; None in a regression. reasons: by party the codes of each row, of
    those that give any. A party without labels does not know what
    classes are called, or the scale of a number: its labels are places in the order of the classes, or f.
    """

    decision: Floats
    label: NDArray[Any]
    proba: Floats | None
    classes: NDArray[Any]
    reasons: Mapping[str, list[list[str]]] = field(default_factory=dict)


RowState = Literal["scored", "trained", "changed", "refused", "beyond", "unknown"]
OnLeft = Callable[[Any, RowState], None]


@dataclass(frozen=True)
class Answered:
    """One request. asked: rows that the party that asks brought; scored: those of them that it has a score of.

    At that party, of the others: `trained` were rows of the training, `changed` had other columns when they were
    asked about before, `refused` are rows that another party refuses, `beyond` rows whose scores are farther out than
    what is told; the rest is not known to all.
    """

    asked: int
    scored: int
    trained: int = 0
    changed: int = 0
    refused: int = 0
    beyond: int = 0

    @classmethod
    def of(cls, states: Sequence[RowState]) -> Answered:
        """Count rows by their states."""
        count = Counter(states)
        named: tuple[RowState, ...] = ("scored", "trained", "changed", "refused", "beyond")
        return cls(len(states), *(count[each] for each in named))

    @property
    def unknown(self) -> int:
        """Ids that not all parties have."""
        return self.asked - self.scored - self.trained - self.changed - self.refused - self.beyond

    def __add__(self, other: Answered) -> Answered:
        return Answered(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        reasons = [
            (self.unknown, "not known to all"),
            (self.trained, "rows that the model was trained on"),
            (self.changed, "asked about before with other columns"),
            (self.refused, "refused by another party"),
            (self.beyond, "farther out than scores cover"),
        ]
        left_out = [f"{count:,} {why}" for count, why in reasons if count]
        said = f"{self.scored:,} of {self.asked:,} rows are scored"
        return f"{said}; left out: {', '.join(left_out)}" if left_out else said


def predict_with(
    part: ModelPart,
    X: ArrayLike,
    peers: Peers | str | Path = "peers.toml",
    *,
    ids: Sequence[Any] | NDArray[Any] | None = None,
    ledger: DisclosureLedger | str | Path | None = None,
    certs: str | Path | None = None,
    listen: str | None = None,
    timeout: float = 600.0,
    patience: float = 60.0,
    giving: GivenCodes | None = None,
) -> Predicted | None:
    """Predicts new rows together with the parties in `peers`; the outcome at the party that
    asks (`ModelPart.asker`), None at the others.

    X: this party's columns (m x d), or one row (d,), in the order that all parties share; with column names they are
    found by name. ids: compared with those of the others, if both have them. giving: reason codes of this party's
    columns that the party that asks is told of each row. The rest as in `join`.

    Raises TableError that names columns which are missing, ConfigError if the parts are not of one training, IdError or
    TableError if the rows are not the same, TransportError as `join`.
    """
    blocks: list[Predicted] = []
    venue, rows = Venue.of(peers, certs, listen, timeout, patience), rows_of_array(part, X, ids)
    predict_rows(part, rows, venue, on_block=lambda _, block: blocks.append(block), ledger=ledger, giving=giving)
    if not blocks:
        return None
    probas = [block.proba for block in blocks if block.proba is not None]
    return Predicted(
        np.concatenate([block.decision for block in blocks]),
        np.concatenate([block.label for block in blocks]),
        np.concatenate(probas) if probas else None,
        blocks[0].classes,
        {name: [each for block in blocks for each in block.reasons[name]] for name in blocks[0].reasons},
    )


def predict_rows(
    part: ModelPart,
    rows: NewRows,
    venue: Venue,
    *,
    on_block: Callable[[list[Any] | None, Predicted], None],
    on_rows: OnRows | None = None,
    on_left: OnLeft | None = None,
    ledger: DisclosureLedger | str | Path | None = None,
    giving: GivenCodes | None = None,
) -> Answered:
    """`predict_with` in blocks of rows, so that memory does not grow with the table; returns what came of the rows.

    on_block(ids, outcome) is called at the party that asks with each block in order, and on_left(id, state) there with
    each row that is left out; on_rows(rows done, of) at all.
    """
    check_parties_of(part, venue.peers)
    if giving is not None:
        giving.check(part)
    own_ledger = DisclosureLedger.of(part.name, ledger)

    def talk(channel: Channel) -> Answered:
        return answer_rows(
            part, rows, channel, own_ledger, on_block=on_block, on_rows=on_rows, on_left=on_left, giving=giving
        )

    terms = {"job": part.job, "parties": part.parties, "task": "predict"}
    answered = converse(part.name, venue, terms, talk, ledger=own_ledger)
    eventlog.emit(part.name, "predicted", {"rows": rows.count})
    return answered


def check_parties_of(part: ModelPart, peers: Peers) -> None:
    """PartiesError unless the peers are those of the training."""
    if tuple(part.parties) != peers.parties:
        raise PartiesError(
            f"the model of {', '.join(part.parties)} was expected to meet these parties, the file of peers names "
            f"{', '.join(peers.parties)}; bring the peers of the training"
        )


def answer_rows(
    part: ModelPart,
    rows: NewRows,
    channel: Channel,
    ledger: DisclosureLedger,
    *,
    on_block: Callable[[list[Any] | None, Predicted], None],
    on_rows: OnRows | None = None,
    on_left: OnLeft | None = None,
    giving: GivenCodes | None = None,
) -> Answered:
    """Return what came of this party's side of one prediction over a channel where all parties are there; the rest as
    `predict_rows`."""
    answering, answered = PredictionSide(part, channel, ledger, giving, rows), Answered(0, 0)
    count = answering.count
    for ids, X in (no_rows(count) if rows.count == NONE else rows).blocks():
        states, outcome = answering.block(ids, X)
        if outcome is not None:
            on_block(*outcome)
            for at, state in enumerate(states):
                if state != "scored" and ids is not None and on_left is not None:
                    on_left(ids[at], state)
        answered += Answered.of(states)
        if on_rows is not None:
            on_rows(answered.asked, count)
    return answered


@dataclass(frozen=True)
class ScoredBlock:
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


class PredictionSide:
    """One party's side of predictions over a channel where all parties are there, block by block."""

    def __init__(
        self,
        part: ModelPart,
        channel: Channel,
        ledger: DisclosureLedger,
        giving: GivenCodes | None = None,
        rows: NewRows | None = None,
    ) -> None:
        """Meet the others. rows: all that will be predicted, which parties compare; left out, each block is entered in
        the ledger by itself, and its ids are those that all have been found to have."""
        self._part, self._channel, self._ledger, self._giving, self._rows = part, channel, ledger, giving, rows
        self._told = self._refused = self.count = 0  # numbers, and words of refusal; rows of all parties
        self._basis, self._job = "", Job.from_dict(part.job)
        self._player, self._givers = self._meet()
        given = giving is not None and part.name != part.asker
        self._counted = Ledger(ledger.scores) if given else None

    def known(self, ids: Sequence[Any], X: Floats) -> KnownRows:
        """Return what the party that asks knows of rows (m) before it asks about them."""
        return self._player.known(AskedRows([id_digest(self._part.name, each) for each in ids], X))

    @property
    def gives_codes(self) -> bool:
        """Whether one of the other parties gives codes of reasons."""
        return bool(self._givers)

    def block(
        self, ids: list[Any] | None, X: Floats
    ) -> tuple[list[RowState], tuple[list[Any] | None, Predicted] | None]:
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
        return states, (named, replace(predicted(self._part, outcome.f), reasons=outcome.reasons))

    def score(self, ids: list[Any] | None, X: Floats) -> ScoredBlock:
        """Score one block of rows (m x d)."""
        part, giving, channel, scaled = self._part, self._giving, self._channel, self._part.scaling(X)
        asked, accounts = None, self._job.method.accounts
        if ids is not None:
            asked = AskedRows([id_digest(part.name, each) for each in ids], np.asarray(X, np.float64))
        if not accounts:
            self._told += len(X) * self._numbers_of_row
            if self._rows is None:
                self._enter(self._told)
        with channel.gate.on("new"):
            if giving is not None and self._counted is not None:
                most = self._player.row_bits
                barred = ~reason_codes.admit(part, giving, self._counted, ids, X, most)
                asked = None if asked is None else replace(asked, barred=barred)
            f = self._player.decision(scaled, asked)  # 2
            answered = self._player.answered(len(X))
            if giving is not None and self._counted is not None:
                if accounts:
                    self._told += int(answered.fresh.sum())
                    self._enter(self._told)
                reason_codes.give(part, giving, channel, scaled[answered.scored])  # 3
        if f is None:
            return ScoredBlock(answered.scored, None, {}, np.zeros(len(X), np.bool_))
        rows = np.flatnonzero(answered.scored)
        own = {} if giving is None else {part.name: reason_codes.coded(part, giving, scaled[rows])}
        told = {name: reason_codes.take(name, channel, len(rows), most) for name, most in self._givers.items()}  # 3
        held = np.asarray(np.isfinite(f).all(axis=1))  # not where this party has lost its own part of a score
        reasons = {
            name: [each for row, each in zip(rows.tolist(), codes, strict=True) if held[row]]
            for name, codes in (own | told).items()
        }
        beyond = np.asarray(np.isinf(f).any(axis=1))
        if beyond.any():
            eventlog.warn(part.name, "beyond", {"rows": int(beyond.sum()), "reason": BEYOND})
        return ScoredBlock(held, f[held], reasons, beyond)

    @property
    def _numbers_of_row(self) -> int:
        """Numbers that a row tells at most."""
        return self._part.outputs + (self._giving is not None)

    def _enter(self, numbers: int) -> None:
        part, others = self._part, tuple(name for name in self._part.parties if name != self._part.name)
        if part.name != part.asker:
            told = Disclosure("scores", part.asker, others, numbers, 0, self._basis)
            self._ledger.answer(part.run, self._channel.session.hex(), told)

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
            self._ledger.answer(part.run, self._channel.session.hex(), told)

    def _meet(self) -> tuple[Player, dict[str, int]]:
        """Meet the others, enter the scores that another party is told, and take this party's place.

        The player, and how many codes a row each other party says it gives.
        """
        part, rows, channel, giving, ledger = self._part, self._rows, self._channel, self._giving, self._ledger
        own = BroughtRows(
            part.run,
            0 if rows is None else rows.count,
            b"" if rows is None else keyed_order(rows.order, channel),
            part.role,
            0 if giving is None else giving.most,
        )
        others = [name for name in part.parties if name != part.name]
        for name in others:
            channel.send(name, own, permit=permit_sizes(channel, name))  # 1
        heard = {part.name: own} | {name: channel.recv(name, BroughtRows) for name in others}  # 1
        self.count = max(each.rows for each in heard.values())
        for name in others:
            _compare(part.name, own, name, heard[name])
        job = self._job
        if part.name != part.asker:
            bits = job.method.score_bits(job) * part.outputs + (0 if giving is None else math.ceil(giving.bits(part)))
            eventlog.emit(part.name, "scores", {"to": part.asker, "rows": own.rows, "bits_of_a_row": bits})
            if rows is not None and not job.method.accounts:
                self._basis = _question(part, rows, ledger, giving) if job.method.repeats else ""
                self._enter(self.count * self._numbers_of_row)
        roles = Roles.of((name, heard[name].role) for name in part.parties)
        resources = LocalResources(part.run, score_ledger=ledger.scores, charge_scores=self._account)
        meter = Meter(channel.clock, channel.books)
        context = PartyContext(channel, roles, meter, outputs=part.outputs, resources=resources, model=part.model)
        givers = {name: heard[name].codes for name in others if heard[name].codes}
        return job.method.player(job, context, len(part.features), part.state), givers


def predicted(part: ModelPart, f: Floats) -> Predicted:
    """Interpret f (m x c) as a prediction, by the classes in the part of the party that asks."""
    loss, classes = Job.from_dict(part.job).model.loss, part.classes
    if not loss.classifies:
        scaling = np.array([0.0, 1.0]) if classes is None else classes
        return Predicted(f, np.asarray(loss.mean(f, scaling)), None, scaling)
    proba = loss.proba(f)
    named = np.arange(proba.shape[1]) if classes is None else classes
    return Predicted(f, np.asarray(named[proba.argmax(axis=1)]), proba, named)


def _question(part: ModelPart, rows: NewRows, ledger: DisclosureLedger, giving: GivenCodes | None) -> str:
    """Name what a party tells of these rows: by its part of the model, and its ids and columns in their order.

    It sees these itself, so what it tells again under one name are the same numbers, whatever another party does.
    """
    codes = "" if giving is None else repr((giving.most, sorted(giving.codes.items())))
    content = hashlib.sha256(repr((part.run, part.asker, rows.count, rows.order.hex(), codes)).encode())
    for _, X in rows.blocks():
        content.update((np.ascontiguousarray(X, "<f8") + 0.0).tobytes())  # one zero
    return f"scores {ledger.named(content.digest())}"


def _compare(me: str, own: BroughtRows, name: str, other: BroughtRows) -> None:
    if other.run != own.run:
        raise ConfigError(
            f"{name} and {me} hold parts of different trainings ({other.run[:8] or 'none'}, {own.run[:8] or 'none'}); "
            "bring the parts that one training has saved"
        )
    if other.rows != own.rows and NONE not in (other.rows, own.rows):
        raise TableError(f"{name} has {other.rows} rows to predict, {me} {own.rows}; align the tables first")
    check_order(me, own.order, name, other.order, "new rows")

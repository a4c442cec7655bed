"""Scoring of a standing party's rows: the leading party brings ids and its own columns, the others stay up and answer.

0. all                  meet (`securevfl.organisations.predict`), once a conversation; answerers say how many ids a
                        request may have
1. lead -> all others   ScoreRequest   the number of ids; 0 to report that it is still there, or done
2. all                  which of these ids all have: of two parties by what the other has worked out of its table
                        (`securevfl.protocols.alignment.online_lookup`), of more by private set intersection (`.psi`)
3. all                  prediction of the rows in common (`securevfl.organisations.predict`)

The leading party learns f of the rows in common, and which of its ids all others have. The others learn how many ids it
asks about, and which of their own are among those that all have; not the rest of its ids. It asks about as many ids as
it has said and no more: the others hold step 2 to that before any point of theirs leaves. Who asks often enough learns
who is in the table and, of a party with few columns, the columns: f without its own part is one linear combination of
them a row. So each answers within limits that its owner sets. Its disclosure ledger counts ids before step 2 and
scores before step 3, by table and peer over all requests; and one request asks about at most so many ids. That none of
its ids is known is an answer too, and counts.

What the leading party holds already it is not told again: rows that the model was trained on, rows that it has asked
about with other columns, and scores that it has kept never leave it, unless codes go with them. A row that another
party refuses is left out, and the others are scored.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import LEAD, Roles
from securevfl.data.store import OnProgress
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import IdError, LeakageError, PartiesError, ProtocolError
from securevfl.organisations.align import align_privately
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.predict import check_parties_of
from securevfl.organisations.prediction import OnUnscored, Prediction, RowState, ScoreCounts, prediction_of
from securevfl.organisations.prediction_session import PredictionSession
from securevfl.organisations.reason_codes import ReasonCodePolicy
from securevfl.protocols.alignment.online_lookup import TableClient, TableServer
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.permits import permit_sizes
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import ROWS_PER_BLOCK, IndexedRows

OnBlock = Callable[[list[Any] | None, Prediction], None]


class ScoreRequest(DisclosingMessage, frozen=True):
    """How many ids the leading party asks about; with none, whether it will ask about more."""

    rows: int
    more: bool = True


class ServerLimits(Message, frozen=True):
    """How many ids a request may have, which the owner has set."""

    most: int


@dataclass(frozen=True)
class ScoreResult:
    """What came of rows (m) that were asked about. state: of each, in a word. f (m x c): nan where there is none.
    reasons: by party the codes of each row, empty where there are none."""

    state: Sequence[RowState]
    f: Floats
    reasons: Mapping[str, list[list[str]]]

    @property
    def answered(self) -> ScoreCounts:
        """How many rows there are of each state."""
        return ScoreCounts.of(self.state)


def declares(roles: Roles) -> list[MessageDeclaration]:
    """Declare what requests reveal; alignment and prediction have declarations of their own."""
    others = dict.fromkeys(roles.role(name) for name in roles.others(roles.lead))
    asked, most = Reveal("plain", "how many ids it asks about"), Reveal("public")
    return [
        *(MessageDeclaration(ScoreRequest, LEAD, role, asked) for role in others),
        *(MessageDeclaration(ServerLimits, role, LEAD, most) for role in others),
    ]


def scoring_handshake(part: ModelPart) -> dict[str, Any]:
    """Return the terms on which all parties must agree before a request."""
    return {"job": part.job, "parties": part.parties, "task": "score"}


def scoring_settings(venue: PeerSettings) -> PeerSettings:
    """Return where askers and those who answer meet: the leading party calls, and names its conversation, so that it
    may hold several at once; as for any other meeting where there is a hub, or one who answers has no address."""
    peers, lead = venue.peers, venue.peers.active
    if peers.hub is not None or not all(name in peers.address for name in peers.passives):
        return venue
    called = {name: address for name, address in peers.address.items() if name != lead}
    return replace(venue, peers=peers.model_copy(update={"address": called}), conversation=secrets.token_hex(16))


def score_rows(
    part: ModelPart,
    rows: IndexedRows,
    venue: PeerSettings,
    *,
    on_block: OnBlock,
    on_progress: OnProgress | None = None,
    on_unscored: OnUnscored | None = None,
    ledger: DisclosureLedger | str | Path | None = None,
    executor: Executor | None = None,
) -> ScoreCounts:
    """Asks the parties that serve for the scores of these rows; for the leading party.

    on_block(ids, outcome) is called with each block of the rows that are scored, on_unscored(id, state) with each other
    row, on_progress(rows done, of) after each block.

    executor: takes the curve work, processes of this party.

    Raises PartiesError unless `part` is the leading party's, IdError if no id is common, TransportError if a party is
    away or refuses, with its reason.
    """
    if not part.leads:
        raise PartiesError(
            f"{part.parties[0]} was expected to ask for scores, {part.name} came; it answers: securevfl serve"
        )
    if not part.asker == part.name:
        raise PartiesError(f"scores of this model are for {part.asker}, {part.name} came; use securevfl predict")
    check_parties_of(part, venue.peers)
    own_ledger, outcomes = DisclosureLedger.open(part.name, ledger), list[ScoreResult]()

    def talk(channel: Channel) -> None:
        asking = ScoreClient(part, channel, own_ledger, executor)
        for start in range(0, len(rows.ids), asking.most):
            chosen = slice(start, start + asking.most)
            outcomes.append(asking.ask(rows.ids[chosen], rows.X[chosen]))
            if on_progress is not None:
                on_progress(min(start + asking.most, len(rows.ids)), len(rows.ids))
        asking.end()

    run_session(part.name, scoring_settings(venue), scoring_handshake(part), talk, ledger=own_ledger)
    answered = sum((outcome.answered for outcome in outcomes), ScoreCounts(0, 0))
    if answered.unknown == answered.asked:
        others = part.parties[1:]
        where = others[0] if len(others) == 1 else f"all of {', '.join(others)}"
        raise IdError(
            f"{part.name}: ids that are known at {where} were expected, none of the {answered.asked:,} asked about is; "
            "are they written alike, or are these new customers? That none is known is an answer too, and was counted"
        )
    asked = iter(rows.ids)
    for each in outcomes:
        ids, scored = list(islice(asked, len(each.state))), []
        for at, state in enumerate(each.state):
            if state == "scored":
                scored.append(at)
            elif on_unscored is not None:
                on_unscored(ids[at], state)
        reasons = {name: [codes[at] for at in scored] for name, codes in each.reasons.items()}
        if scored:
            on_block([ids[at] for at in scored], replace(prediction_of(part, each.f[scored]), reasons=reasons))
    return answered


class ScoreClient:
    """The leading party's side of a conversation, in which it asks about rows as often as it likes."""

    def __init__(
        self, part: ModelPart, channel: Channel, ledger: DisclosureLedger, executor: Executor | None = None
    ) -> None:
        """Meet the others."""
        self._part, self._channel, self._executor = part, channel, executor
        self._answering = PredictionSession(part, channel, ledger)  # 0
        self.most = min(channel.recv(name, ServerLimits).most for name in part.parties[1:])  # 0
        if self.most < 1:
            raise ProtocolError("a number of ids that a request may have was expected, none came; use one version")
        self._table = TableClient(channel, part.parties[1]) if len(part.parties) == 2 else None

    def ask(self, ids: Sequence[Any], X: NDArray[Any]) -> ScoreResult:
        """Ask about rows (m x d) of these ids, at most `most`. What this party knows of them does not leave it."""
        answering, known = self._answering, self._answering.known(ids, X)
        state: list[RowState] = ["unknown"] * len(ids)
        f, reasons = np.full((len(ids), self._part.outputs), np.nan), dict[str, list[list[str]]]()
        left_out = known.trained | known.changed
        held = ~left_out & ~np.isnan(known.scores).any(axis=1) & (not answering.gives_codes)
        f[held] = known.scores[held] if held.any() else np.nan
        marks: dict[RowState, NDArray[np.bool_]] = {"trained": known.trained, "changed": known.changed, "scored": held}
        for word, mask in marks.items():
            for at in np.flatnonzero(mask).tolist():
                state[at] = word
        asked = np.flatnonzero(~left_out & ~held)
        if len(asked):
            self._want(len(asked))  # 1
            chosen = [ids[at] for at in asked.tolist()]
            if self._table is not None:
                common = asked[self._table.ask(chosen, self._executor)]  # 2
            else:
                lead, *others = self._part.parties
                places = align_privately(  # 2
                    lead,
                    chosen,
                    self._channel,
                    active=lead,
                    passives=others,
                    granted=len(chosen),
                    executor=self._executor,
                )
                common = asked[places]
            for start in range(0, len(common), ROWS_PER_BLOCK):
                block = common[start : start + ROWS_PER_BLOCK]
                outcome = answering.score([ids[at] for at in block.tolist()], X[block])  # 3
                f[block[outcome.scored]] = outcome.f
                for at, word in zip(block, outcome.states, strict=True):
                    state[at] = word
                for name, codes in outcome.reasons.items():
                    told = reasons.setdefault(name, [[] for _ in ids])
                    for at, own in zip(block[outcome.scored].tolist(), codes, strict=True):
                        told[at] = own
        return ScoreResult(state, f, reasons)

    def stay(self) -> None:
        """Say that this party is still there."""
        self._want(0)

    def end(self) -> None:
        """Say that this party is done."""
        self._want(0, more=False)

    def _want(self, rows: int, *, more: bool = True) -> None:
        for name in self._part.parties[1:]:
            self._channel.send(name, ScoreRequest(rows, more), permit=permit_sizes(self._channel, name))  # 1


@dataclass(frozen=True)
class ServedTable:
    """What a standing party serves. most: ids that one request may ask about. executor: as in `score_rows`. giving: as
    in `predict_with`. table: what was worked out of the rows for the leading party before, where there are two."""

    rows: IndexedRows
    most: int
    executor: Executor | None = None
    code_policy: ReasonCodePolicy | None = None
    table: TableServer | None = None


def serve_requests(
    part: ModelPart, served: ServedTable, channel: Channel, ledger: DisclosureLedger
) -> Iterator[ScoreRequest | ScoreCounts]:
    """Answer requests as a standing party until the leading one is done: yield what it wants, before anything is done
    about it, and what came of it.

    LeakageError if one asks about more ids than a request may have, or than it has said, or if its ids or scores would
    exceed a limit of the ledger.
    """
    rows, most, executor, table = served.rows, served.most, served.executor, served.table
    (lead, *others), asked = part.parties, 0
    answering = PredictionSession(part, channel, ledger, served.code_policy)  # 0
    channel.send(lead, ServerLimits(most))  # 0
    if len(others) == 1:
        table = table or TableServer(rows.ids, executor)
        table.open(channel, lead)
    while (wanted := channel.recv(lead, ScoreRequest)).more:  # 1
        yield wanted
        if not wanted.rows:
            continue
        if not 0 < wanted.rows <= most:
            raise LeakageError(
                f"{part.name} answers about at most {most:,} ids a request, {lead} asks about {wanted.rows:,}; ask in "
                "parts"
            )
        asked += wanted.rows
        ledger.record_answer(part.run, channel.session.hex(), Disclosure("ids", lead, (part.name,), asked, 0))
        if table is not None:
            common = table.answer(channel, lead, wanted.rows, executor)  # 2
        else:
            common = align_privately(  # 2
                part.name, rows.ids, channel, active=lead, passives=others, granted=wanted.rows, executor=executor
            )
        scored = 0
        for start in range(0, len(common), ROWS_PER_BLOCK):
            block = common[start : start + ROWS_PER_BLOCK]
            outcome = answering.score([rows.ids[at] for at in block.tolist()], rows.X[block])  # 3
            scored += int(outcome.scored.sum())
        eventlog.emit(part.name, "answered", {"asked": wanted.rows, "scored": scored})
        yield ScoreCounts(wanted.rows, scored)

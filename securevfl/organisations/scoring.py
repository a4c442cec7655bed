"""Scoring with servers: the leading party requests scores of rows by their ids, and the other parties (servers) answer.

0. all                  exchange handshakes (`securevfl.organisations.prediction_session`), once per session; each
                        server sends ServerLimits
1. lead -> all others   ScoreRequest   the number of ids; a request without ids keeps the session alive or ends it
2. all                  find out which of these ids all parties have (*common* ids): with two parties from precomputed
                        tags (`securevfl.protocols.alignment.online_lookup`), with more by private set intersection
3. all                  predict the common rows (`securevfl.organisations.prediction_session`)

Comments refer to these steps by number. The leading party learns the scores f of the common rows. The servers learn the
number of ids and which of their own are common. Repeated requests reveal which ids a server has. If it has few columns,
they also reveal these columns, because f minus the leading party's summand is a linear combination of them. Each server
therefore enforces limits: its ledger counts ids before step 2 and scores before step 3. Stored scores are not requested
again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.roles import LEAD, Roles
from securevfl.data.store import OnProgress
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import AnswerLimitError, IdError, PartiesError, ProtocolError
from securevfl.organisations.align import align_privately
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.preconditions import SessionNeeds
from securevfl.organisations.predict import check_parties_of
from securevfl.organisations.prediction import OnUnscored, Prediction, ScoreCounts, prediction_of
from securevfl.organisations.prediction_session import PredictionSession
from securevfl.organisations.score_reasons import ReasonProvider
from securevfl.protocols.alignment.online_lookup import TableClient, TableServer
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.joint_prediction import ScoreResult
from securevfl.protocols.permits import permit_sizes
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import SCORED_ROWS_PER_BLOCK, IndexedRows

OnBlock = Callable[[list[Any] | None, Prediction], None]


class ScoreRequest(DisclosingMessage, frozen=True):
    """The number of ids that the leading party will ask about.

    Attributes:
        rows: number of ids.
        more: False if the leading party has finished.
    """

    rows: int
    more: bool = True


class ServerLimits(Message, frozen=True):
    """The maximum number of ids of one request, as the server's operator has set it."""

    max_ids: int


def declares(roles: Roles) -> list[MessageDeclaration]:
    """Declare the messages of requests; alignment and prediction declare theirs elsewhere."""
    others = dict.fromkeys(roles.role(name) for name in roles.others(roles.lead))
    ids, limits = Reveal("plain", "number of ids of a request"), Reveal("public")
    return [
        *(MessageDeclaration(ScoreRequest, LEAD, role, ids) for role in others),
        *(MessageDeclaration(ServerLimits, role, LEAD, limits) for role in others),
    ]


def scoring_handshake(part: ModelPart) -> dict[str, Any]:
    """Return the values on which all parties must agree before a request."""
    return {"job": part.job, "parties": part.parties, "task": "score"}


def scoring_settings(settings: PeerSettings) -> PeerSettings:
    """Return settings with a new session id, so that the leading party can have several sessions at a time.

    They are returned unchanged if connections pass through a hub, or if a server has no address.
    """
    peers, lead = settings.peers, settings.peers.active
    if peers.hub is not None or not all(name in peers.address for name in peers.passives):
        return settings
    addresses = {name: address for name, address in peers.address.items() if name != lead}
    return replace(settings, peers=peers.model_copy(update={"address": addresses}), session_id=secrets.token_hex(16))


def score_rows(
    part: ModelPart,
    rows: IndexedRows,
    settings: PeerSettings,
    *,
    on_block: OnBlock,
    on_progress: OnProgress | None = None,
    on_unscored: OnUnscored | None = None,
    ledger: DisclosureLedger | str | Path | None = None,
    executor: Executor | None = None,
) -> ScoreCounts:
    """Request the scores of rows from the servers, as the leading party.

    Args:
        part: this party's part of the model.
        rows: this party's rows.
        settings: addresses, certificates and time limits.
        on_block: is called with the ids and the prediction of the scored rows of each block.
        on_progress: is called with the number of rows done and the total, after each block.
        on_unscored: is called with the id and the state of each row without a score.
        ledger: this party's disclosure ledger, as in `join`.
        executor: worker processes for the elliptic-curve operations.

    Returns:
        The numbers of rows by state.

    Raises:
        PartiesError: `part` does not belong to the leading party.
        IdError: no id is common.
        TransportError: a party cannot be reached or refuses; the message states the reason.
    """
    if not part.leads:
        raise PartiesError(
            f"{part.parties[0]} requests scores of this model, not {part.name}",
            f"run `securevfl serve` at {part.name}",
            code="SVFL-PARTIES-ROLE",
            party=part.name,
        )
    if not part.asker == part.name:
        raise PartiesError(
            f"only {part.asker} receives scores of this model, not {part.name}",
            "use `securevfl predict`",
            code="SVFL-PARTIES-ROLE",
            party=part.name,
        )
    check_parties_of(part, settings.peers)
    party_ledger, results = DisclosureLedger.open(part.name, ledger), list[ScoreResult]()

    def talk(channel: Channel) -> None:
        client = ScoreClient(part, channel, party_ledger, executor)
        for start in range(0, len(rows.ids), client.max_ids):
            chosen = slice(start, start + client.max_ids)
            results.append(client.ask(rows.ids[chosen], rows.X[chosen]))
            if on_progress is not None:
                on_progress(min(start + client.max_ids, len(rows.ids)), len(rows.ids))
        client.end()

    session, needs = scoring_settings(settings), SessionNeeds(rows=len(rows.ids))
    run_session(part.name, session, scoring_handshake(part), talk, ledger=party_ledger, needs=needs)
    counts = sum((ScoreCounts.of(result.states) for result in results), ScoreCounts(0, 0))
    if counts.unknown == counts.requested:
        others = part.parties[1:]
        servers = others[0] if len(others) == 1 else f"all of {', '.join(others)}"
        raise IdError(
            f"none of the {counts.requested:,} ids of {part.name} is known at {servers}. The ledgers count this "
            f"answer as well",
            "check that all parties write ids in the same way, and that these ids are not all new",
            code="SVFL-ID-NO-MATCH",
            party=part.name,
        )
    remaining_ids = iter(rows.ids)
    for result in results:
        ids = list(islice(remaining_ids, len(result.scored)))
        for index, state in enumerate(result.states):
            if state != "scored" and on_unscored is not None:
                on_unscored(ids[index], state)
        scored = np.flatnonzero(result.scored).tolist()
        reasons = {name: [codes[index] for index in scored] for name, codes in result.reasons.items()}
        if scored and result.f is not None:
            prediction = replace(prediction_of(part, result.f[scored]), reasons=reasons)
            on_block([ids[index] for index in scored], prediction)
    return counts


class ScoreClient:
    """The leading party's side of a session with the servers; it can make any number of requests.

    The constructor exchanges handshakes with the servers.

    Args:
        part: this party's part of the model.
        channel: channel to the other parties.
        ledger: this party's ledger.
        executor: worker processes for the elliptic-curve operations.

    Raises:
        ProtocolError: a server sent an invalid limit.
    """

    def __init__(
        self, part: ModelPart, channel: Channel, ledger: DisclosureLedger, executor: Executor | None = None
    ) -> None:
        self._part, self._channel, self._executor = part, channel, executor
        self._prediction = PredictionSession(part, channel, ledger)  # step 0
        self.max_ids = min(channel.recv(name, ServerLimits).max_ids for name in part.parties[1:])  # step 0
        if self.max_ids < 1:
            raise ProtocolError("a server allows no ids per request", code="SVFL-PROTOCOL-VALUES")
        self._table = TableClient(channel, part.parties[1]) if len(part.parties) == 2 else None
        self._ledger = ledger
        self._ids = 0  # number of ids that this session has already sent to the servers

    def ask(self, ids: Sequence[Any], X: NDArray[Any]) -> ScoreResult:
        """Request scores from the servers, except those that this party has stored from earlier requests.

        Args:
            ids: ids of the rows, at most `max_ids`.
            X: this party's columns (m, d).

        Returns:
            The scores and the state of each row.
        """
        result = self._prediction.stored_scores(ids, X)
        requested = ~(result.trained | result.changed | result.scored)
        # stored scores have no reason codes, so if servers send codes, all rows are requested
        if self._prediction.receives_codes:
            requested |= result.scored
        f, stored = np.full((len(ids), self._part.outputs), np.nan), result.scored & ~requested
        positions = np.flatnonzero(requested)
        if stored.any() and result.f is not None:
            f[stored] = result.f[stored]
        result = replace(result, f=f, scored=stored, known=~requested)
        if not len(positions):
            return result
        self._announce(len(positions))  # step 1
        common = self._common(positions, [ids[index] for index in positions.tolist()])  # step 2
        for start in range(0, len(common), SCORED_ROWS_PER_BLOCK):
            block = common[start : start + SCORED_ROWS_PER_BLOCK]
            scores = self._prediction.score([ids[index] for index in block.tolist()], X[block])  # step 3
            result = result.updated(block, scores)
        return result

    def _common(self, requested: NDArray[np.intp], ids: list[Any]) -> NDArray[np.intp]:
        """Ask the servers which of the requested ids all parties have; return the indices of these rows.

        The servers learn which of their own ids these are. This party's ledger counts the ids before they are sent.
        """
        self._ids += len(ids)
        session = self._channel.session.hex()
        for server in self._part.parties[1:]:
            disclosure = Disclosure("ids", server, (self._part.name,), self._ids, 0)
            self._ledger.record_answer(self._part.run, session, disclosure, known_count=True)
        if self._table is not None:
            return requested[self._table.ask(ids, self._executor)]
        lead, *others = self._part.parties
        positions = align_privately(
            lead,
            ids,
            self._channel,
            active=lead,
            passives=others,
            ledger=None,
            granted=len(ids),
            executor=self._executor,
        )
        return requested[positions]

    def stay(self) -> None:
        """Send a request without ids, so that the servers do not end the idle session."""
        self._announce(0)

    def end(self) -> None:
        """Report to the servers that this party makes no more requests."""
        self._announce(0, more=False)

    def _announce(self, rows: int, *, more: bool = True) -> None:
        for name in self._part.parties[1:]:
            self._channel.send(name, ScoreRequest(rows, more), permit=permit_sizes(self._channel, name))  # step 1


@dataclass(frozen=True)
class ServedTable:
    """The table that a server answers from.

    Attributes:
        rows: the server's rows, which are found by id.
        max_ids: maximum number of ids per request.
        executor: worker processes for the elliptic-curve operations.
        code_policy: which of this party's columns are named as reasons for a high score (reason codes) to the leading
            party; None for none.
        table: with two parties, the precomputed tags of this party's ids; otherwise None.
    """

    rows: IndexedRows
    max_ids: int
    executor: Executor | None = None
    code_policy: ReasonProvider | None = None
    table: TableServer | None = None


def serve_requests(
    part: ModelPart, served: ServedTable, channel: Channel, ledger: DisclosureLedger
) -> Iterator[ScoreRequest | ScoreCounts]:
    """Answer the requests of the leading party until it reports that it has finished.

    Args:
        part: this party's part of the model.
        served: the table that this server answers from.
        channel: channel to the other parties.
        ledger: this party's ledger.

    Yields:
        Each request before it is processed, and the numbers of rows by state afterwards.

    Raises:
        AnswerLimitError: a request has more ids than allowed, or its ids or scores would exceed a limit of the ledger.
    """
    rows, executor, table = served.rows, served.executor, served.table
    (lead, *others), total_ids = part.parties, 0
    prediction = PredictionSession(part, channel, ledger, served.code_policy)  # step 0
    channel.send(lead, ServerLimits(served.max_ids))  # step 0
    if len(others) == 1:
        table = table or TableServer(rows.ids, executor)
        table.open(channel, lead)
    while (request := channel.recv(lead, ScoreRequest)).more:  # step 1
        yield request
        if not request.rows:
            continue
        if not 0 < request.rows <= served.max_ids:
            raise AnswerLimitError(
                f"{lead} asks {part.name} about {request.rows:,} ids in one request, and at most {served.max_ids:,} "
                "are allowed",
                "split the request",
                code="SVFL-LIMIT-REACHED",
                peer=lead,
            )
        prediction.check_room()
        total_ids += request.rows
        disclosed_ids = Disclosure("ids", lead, (part.name,), total_ids, 0)
        ledger.record_answer(part.run, channel.session.hex(), disclosed_ids, known_count=True)
        if table is not None:
            common = table.answer(channel, lead, request.rows, executor)  # step 2
        else:
            common = align_privately(  # step 2
                part.name,
                rows.ids,
                channel,
                active=lead,
                passives=others,
                ledger=None,
                granted=request.rows,
                executor=executor,
            )
        prediction.check_request(rows.ids[index] for index in common.tolist())
        scored = 0
        for start in range(0, len(common), SCORED_ROWS_PER_BLOCK):
            block = common[start : start + SCORED_ROWS_PER_BLOCK]
            result = prediction.score([rows.ids[index] for index in block.tolist()], rows.X[block])  # step 3
            scored += int(result.scored.sum())
        eventlog.emit(part.name, "answered", {"rows_requested": request.rows, "rows_scored": scored})
        yield ScoreCounts(request.rows, scored)

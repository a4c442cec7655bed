"""A server: a party that stays up and answers the scoring requests of several clients at a time.

`securevfl.organisations.scoring` describes the messages. A *session* is one connection of the leading party, the
client, with its own thread; it may make many requests. A request that is refused, interrupted or malformed ends its own
session with the reason, and no other. Between requests a server stores only counts.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from securevfl.data.id_keys import id_digest
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, LeakageError, PartiesError, SecureVFLError
from securevfl.organisations.peer_session import ServiceEnded, run_session
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.preconditions import SessionNeeds, check_preconditions
from securevfl.organisations.predict import check_parties_of
from securevfl.organisations.prediction import ScoreCounts
from securevfl.organisations.score_reasons import ReasonProvider
from securevfl.organisations.scoring import ServedTable, scoring_handshake, scoring_settings, serve_requests
from securevfl.organisations.session_manager import SessionManager
from securevfl.protocols.alignment.online_lookup import TableServer
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import IndexedRows
from securevfl.transport.acceptor import Acceptor
from securevfl.transport.tls import Credentials

Outcome = Literal["answered", "refused", "failed"]

FAILURE_PAUSE = 1.0  # seconds that the server waits after a failed request before it listens again
_CONNECT_SECONDS = 30.0  # seconds for all parties of a session to connect
_MAX_PATIENCE = 15.0  # with several sessions: seconds after which the session of a disconnected client ends
_LINGER_SECONDS = 20.0  # seconds that a client has to finish when the server shuts down
_POLL_SECONDS = 0.1  # seconds between two checks of whether the server shall shut down
_ABORT_SECONDS = 5.0  # seconds in which an aborted session notifies its client


@dataclass(frozen=True)
class RequestOutcome:
    """A request that has ended.

    Attributes:
        outcome: how it ended.
        seconds: its duration; 0 if the parties never were all connected.
        counts: numbers of rows by state, if the request was answered.
        sent: number of bytes that this party sent.
        reason: why the request was refused or failed.
    """

    outcome: Outcome
    seconds: float
    counts: ScoreCounts | None = None
    sent: int = 0
    reason: str = ""


@dataclass
class _Session:
    """The state of one running session with a client.

    Attributes:
        channel: its channel, once all parties are connected.
        started: when the current request arrived, or 0 if there is none.
        answered: when the previous request was answered.
        sent: bytes sent for the current request.
    """

    channel: Channel | None = None
    started: float = 0.0
    answered: float = -math.inf
    sent: int = 0

    @property
    def seconds(self) -> float:
        """Duration of the current request so far."""
        return time.monotonic() - self.started if self.started else 0.0


class Server:
    """A party that answers scoring requests.

    Args:
        part: this party's part of the model.
        rows: the table that this party answers from.
        settings: addresses, certificates, time limits and limits on sessions. With a hub there is one session at a
            time.
        max_ids: maximum number of ids per request.
        ledger: this party's disclosure ledger, as in `join`. It must limit scores and ids.
        on_request: is called after each request, including failed ones.
        executor: worker processes for the elliptic-curve operations.
        code_policy: reason codes about this party's columns that the requesting party learns.

    Raises:
        PartiesError: the part belongs to the leading party, or the peers are not those of the training.
        ConfigError: the reason codes do not fit, or the ledger does not limit scores and ids.
    """

    def __init__(
        self,
        part: ModelPart,
        rows: IndexedRows,
        settings: PeerSettings,
        *,
        max_ids: int = 10_000,
        ledger: DisclosureLedger | str | Path | None = None,
        on_request: Callable[[RequestOutcome], None] = lambda outcome: None,
        executor: Executor | None = None,
        code_policy: ReasonProvider | None = None,
    ) -> None:
        if part.leads:
            raise PartiesError(
                f"{part.name} is the leading party, which requests scores and cannot serve them",
                f"run `securevfl score` at {part.name}",
                code="SVFL-PARTIES-ROLE",
                party=part.name,
            )
        self._settings = scoring_settings(settings)
        check_parties_of(part, self._settings.peers)
        if code_policy is not None:
            code_policy.check(part)
        self._part = part
        self._ledger = DisclosureLedger.open(part.name, ledger)
        _check_limits(self._ledger)
        check_preconditions(self._ledger, SessionNeeds(rows=len(rows.ids)))
        self._on_request = on_request
        table = TableServer(rows.ids, executor) if len(part.parties) == 2 else None
        self.served = ServedTable(rows, max_ids, executor, code_policy, table)
        self._manager = SessionManager(part.name, self._run_client_session, settings.limits)
        self._rows_to_score = len(rows.ids) - self._count_trained_rows()
        self._sessions: list[_Session] = []  # running sessions
        self._lock = threading.Lock()
        self._stopping: Callable[[], bool] = lambda: False

    @property
    def busy(self) -> bool:
        """Whether a request is being processed."""
        return any(session.started for session in [*self._sessions])

    @property
    def sessions(self) -> int:
        """Number of running sessions."""
        return len(self._sessions)

    @property
    def max_sessions(self) -> int:
        """Maximum number of sessions at a time."""
        return self._manager.max_sessions if self._settings.session_id else 1

    @property
    def ledger(self) -> DisclosureLedger:
        """The ledger that limits the service."""
        return self._ledger

    def run(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Serve until `stopping` returns True, and finish requests that are being processed.

        A server with only one session at a time calls `stopping` between sessions and before each request. While it
        waits for a client, an exception such as KeyboardInterrupt ends it.

        Args:
            stopping: whether to shut down.
        """
        self._stopping = stopping
        rows, max_ids, policy = self.served.rows, self.served.max_ids, self.served.code_policy
        facts: dict[str, str | int | float] = {"rows": len(rows.ids), "max_ids": max_ids}
        if policy is not None:
            facts |= {"codes": policy.codes_per_row, "code_bits_per_row": round(policy.bits(self._part), 1)}
        facts |= {"rows_to_score": self._rows_to_score}
        eventlog.emit(self._part.name, "serving", facts)
        if not self._rows_to_score:
            reason = "the model was trained on all rows of this table, so every row will be refused"
            eventlog.warn(self._part.name, "no row may be scored", {"reason": reason})
        if self._settings.session_id:
            self._run_many()
            return
        while not stopping():
            try:
                outcome = self._run_session(replace(self._settings, wait=math.inf))
            except ServiceEnded:
                return
            if outcome is not None and outcome.outcome == "failed":
                time.sleep(FAILURE_PAUSE)

    def _count_trained_rows(self) -> int:
        """Return the number of rows of the table that are refused because the model was trained on them."""
        part, ids = self._part, self.served.rows.ids
        digests = (id_digest(part.name, row_id) for row_id in ids)
        return part.parsed_job.family.count_trained_rows(part.state, ScoreLedger(self._ledger.path), digests)

    def _run_many(self) -> None:
        """Serve with several sessions at a time, each in its own thread, until `stopping` returns True."""
        me, settings, manager = self._part.name, self._settings, self._manager
        others = settings.peers.neighbours(me)
        acceptor = Acceptor(
            Credentials(settings.certs, me),
            others,
            settings.peers.address[me],
            manager.line_of,
            listen=settings.listen,
            streams=len(others) * manager.streams + 2,
        )
        try:
            while not self._stopping():
                time.sleep(_POLL_SECONDS)
        finally:
            manager.close()
            try:
                while not manager.wait(_POLL_SECONDS):
                    self._end(
                        lambda session: not session.started and time.monotonic() - session.answered > _LINGER_SECONDS
                    )
            except BaseException:
                self._end(lambda session: True)
                manager.wait(_ABORT_SECONDS)
                raise
            finally:
                acceptor.stop()

    def _end(self, condition: Callable[[_Session], bool]) -> None:
        """Abort all sessions that meet a condition. The caller is a thread that runs none of these sessions."""
        for session in [*self._sessions]:
            if condition(session) and session.channel is not None:
                session.channel.fail(ServiceEnded())

    def _run_client_session(self, session_id: str) -> None:
        patience = min(self._settings.patience, _MAX_PATIENCE)
        self._run_session(
            replace(
                self._settings, session_id=session_id, router=self._manager, wait=_CONNECT_SECONDS, patience=patience
            )
        )

    def _run_session(self, settings: PeerSettings) -> RequestOutcome | None:
        """Run a session and answer its requests; return the outcome of the request that was not answered, if any."""
        session = _Session()
        with self._lock:
            self._sessions.append(session)
        try:
            answer = partial(self._answer, session)
            run_session(self._part.name, settings, scoring_handshake(self._part), answer, ledger=self._ledger)
            return None
        except SecureVFLError as error:
            outcome: Outcome = "refused" if isinstance(error, LeakageError) else "failed"
            ended = RequestOutcome(outcome, session.seconds, sent=session.sent, reason=str(error))
        except KeyboardInterrupt:
            if settings.router is None:
                raise
            return None
        finally:
            with self._lock:
                self._sessions.remove(session)
        self._on_request(ended)
        return ended

    def _answer(self, session: _Session, channel: Channel) -> None:
        sent_before, session.channel = 0, channel
        try:
            for event in serve_requests(self._part, self.served, channel, self._ledger):
                if isinstance(event, ScoreCounts):
                    sent = channel.counters.bytes_sent()
                    self._on_request(RequestOutcome("answered", session.seconds, event, sent - sent_before))
                    session.started, session.answered, sent_before = 0.0, time.monotonic(), sent
                elif self._stopping():
                    raise ServiceEnded
                else:
                    session.started = time.monotonic() if event.rows else 0.0
        finally:
            session.sent = channel.counters.bytes_sent() - sent_before


def _check_limits(ledger: DisclosureLedger) -> None:
    """Raise ConfigError unless the ledger limits scores and ids, because no person watches the requests to a server."""
    limits = ledger.read().limits
    lacking = [kind for kind in ("scores", "ids") if kind not in limits]
    if lacking:
        options = " ".join(f"--limit {kind}=10000" for kind in lacking)
        raise ConfigError(
            f"the ledger {ledger.path} of {ledger.party} does not limit {' and '.join(lacking)}, which a service needs",
            f"set limits, as in `securevfl ledger --party {ledger.party} {options}`",
            code="SVFL-LIMIT-MISSING",
            party=ledger.party,
            kinds=tuple(lacking),
        )

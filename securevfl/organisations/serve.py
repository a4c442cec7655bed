"""A party that stays up and answers scoring requests (`securevfl.organisations.scoring`), of several askers at once.

A request that is refused, broken off or malformed ends its conversation with its reason, and no other. Between requests
nothing of the last one is kept but counts.
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

from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, LeakageError, PartiesError, SecureVFLError
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.predict import check_parties_of
from securevfl.organisations.prediction import ScoreCounts
from securevfl.organisations.reason_codes import ReasonCodePolicy
from securevfl.organisations.scoring import ServedTable, scoring_handshake, scoring_settings, serve_requests
from securevfl.organisations.session_manager import SessionManager
from securevfl.protocols.alignment.online_lookup import TableServer
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import IndexedRows
from securevfl.transport.acceptor import Acceptor
from securevfl.transport.tls import Credentials

Outcome = Literal["answered", "refused", "failed"]

AGAIN = 1.0  # seconds before it listens again after a request that failed
_MEETS = 30.0  # seconds for all parties of a conversation to be there
_PATIENCE = 15.0  # seconds that an asker of several may be cut off, at most
_PARTS = 20.0  # seconds that an asker has to say that it is done, where the service ends
_LOOK = 0.1  # seconds between looks at whether it is to end
_LAST = 5.0  # seconds for conversations that are broken off to say so


@dataclass(frozen=True)
class RequestOutcome:
    """One request that is over. seconds: since all parties were there, 0 if that never came about."""

    outcome: Outcome
    seconds: float
    answered: ScoreCounts | None = None
    sent: int = 0
    reason: str = ""


@dataclass
class _Conversation:
    """One that goes on: `met` is when the request came that is being answered, 0 if none is, and `answered` when the
    last one was answered."""

    channel: Channel | None = None
    met: float = 0.0
    answered: float = -math.inf
    sent: int = 0

    @property
    def since(self) -> float:
        """Seconds that the request takes so far."""
        return time.monotonic() - self.met if self.met else 0.0


class Server:
    """A party without labels that answers. ConfigError or PartiesError if what it brings does not fit, and ConfigError
    unless the ledger's owner has set limits to scores and ids.

    most: ids that one request may ask about. on_request is called after each request, also one that failed.
    executor: takes the curve work of comparing ids, processes of this party. giving: as in `predict_with`. The
    room of the venue is for conversations; there is one at a time if there is a hub.
    """

    def __init__(
        self,
        part: ModelPart,
        rows: IndexedRows,
        venue: PeerSettings,
        *,
        most: int = 10_000,
        ledger: DisclosureLedger | str | Path | None = None,
        on_request: Callable[[RequestOutcome], None] = lambda ended: None,
        executor: Executor | None = None,
        code_policy: ReasonCodePolicy | None = None,
    ) -> None:
        if part.leads:
            raise PartiesError(
                f"a party that answers was expected to serve, {part.name} leads and asks; run securevfl score there"
            )
        self._venue = scoring_settings(venue)
        check_parties_of(part, self._venue.peers)
        if code_policy is not None:
            code_policy.check(part)
        self._part = part
        self._ledger = DisclosureLedger.open(part.name, ledger)
        _check_limits(self._ledger)
        self._on_request = on_request
        table = TableServer(rows.ids, executor) if len(part.parties) == 2 else None
        self.served = ServedTable(rows, most, executor, code_policy, table)
        self._visitors = SessionManager(part.name, self._visited, venue.limits)
        self._open: list[_Conversation] = []  # those that go on
        self._lock = threading.Lock()
        self._stopping: Callable[[], bool] = lambda: False

    @property
    def answering(self) -> bool:
        """Whether a request is being answered, and not waited for."""
        return any(each.met for each in [*self._open])

    @property
    def conversations(self) -> int:
        """How many conversations go on at this moment."""
        return len(self._open)

    def run(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Answer until `stopping` says so; requests that are being answered by then are answered first. While it waits,
        only an exception ends it."""
        self._stopping = stopping
        rows, most, code_policy = self.served.rows, self.served.most, self.served.code_policy
        facts: dict[str, str | int | float] = {"rows": len(rows.ids), "most": most}
        if code_policy is not None:
            facts |= {"codes": code_policy.most, "bits_of_codes": round(code_policy.bits(self._part), 1)}
        eventlog.emit(self._part.name, "serving", facts)
        if self._venue.conversation:
            self._run_several()
            return
        while not stopping():
            ended = self._hold(replace(self._venue, wait=math.inf))
            if ended is not None and ended.outcome == "failed":
                time.sleep(AGAIN)

    def _run_several(self) -> None:
        """Take in whoever calls."""
        me, venue, visitors = self._part.name, self._venue, self._visitors
        others = venue.peers.neighbours(me)
        acceptor = Acceptor(
            Credentials(venue.certs, me),
            others,
            venue.peers.address[me],
            visitors.line_of,
            listen=venue.listen,
            streams=len(others) * visitors.streams + 2,
        )
        try:
            while not self._stopping():
                time.sleep(_LOOK)
        finally:
            visitors.close()
            try:
                while not visitors.wait(_LOOK):
                    self._end(lambda each: not each.met and time.monotonic() - each.answered > _PARTS)
            except BaseException:
                self._end(lambda each: True)
                visitors.wait(_LAST)
                raise
            finally:
                acceptor.stop()

    def _end(self, which: Callable[[_Conversation], bool]) -> None:
        """End conversations from outside of their threads."""
        for each in [*self._open]:
            if which(each) and each.channel is not None:
                each.channel.fail(KeyboardInterrupt())

    def _visited(self, name: str) -> None:
        patience = min(self._venue.patience, _PATIENCE)
        self._hold(replace(self._venue, conversation=name, router=self._visitors, wait=_MEETS, patience=patience))

    def _hold(self, venue: PeerSettings) -> RequestOutcome | None:
        """Hold a conversation and answer its requests; return how the one ended that was not answered, if any."""
        own = _Conversation()
        with self._lock:
            self._open.append(own)
        try:
            answer = partial(self._answer, own)
            run_session(self._part.name, venue, scoring_handshake(self._part), answer, ledger=self._ledger)
            return None
        except SecureVFLError as error:
            outcome: Outcome = "refused" if isinstance(error, LeakageError) else "failed"
            ended = RequestOutcome(outcome, own.since, sent=own.sent, reason=str(error))
        except KeyboardInterrupt:
            if venue.router is None:
                raise
            return None
        finally:
            with self._lock:
                self._open.remove(own)
        self._on_request(ended)
        return ended

    def _answer(self, own: _Conversation, channel: Channel) -> None:
        before, own.channel = 0, channel
        try:
            for event in serve_requests(self._part, self.served, channel, self._ledger):
                if isinstance(event, ScoreCounts):
                    sent = channel.counters.bytes_sent()
                    self._on_request(RequestOutcome("answered", own.since, event, sent - before))
                    own.met, own.answered, before = 0.0, time.monotonic(), sent
                elif self._stopping():
                    raise KeyboardInterrupt
                else:
                    own.met = time.monotonic() if event.rows else 0.0
        finally:
            own.sent = channel.counters.bytes_sent() - before


def _check_limits(ledger: DisclosureLedger) -> None:
    """Who stays up for whoever asks must have said for how long: nobody looks on as it answers."""
    limits = ledger.read().limits
    lacking = [kind for kind in ("scores", "ids") if kind not in limits]
    if lacking:
        wanted = " ".join(f"--limit {kind}=10000" for kind in lacking)
        raise ConfigError(
            f"{ledger.party}: limits to {' and '.join(lacking)} were expected in {ledger.path} before it serves, there "
            f"are none; set them, as in: securevfl ledger --party {ledger.party} {wanted}"
        )

"""One session of all parties over gRPC, from the first connection to the last message.

A session that resumes outlives the parties' processes. When a peer is lost, every party disconnects, waits until all
are connected again, agrees on a new session and continues from its files. The session ends when every party has
reported completion, or with the error of the first party that aborts.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

from securevfl.account.commit_counter import shared_disk_warning
from securevfl.base.machine import use_one_heap
from securevfl.base.roles import Roles
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import (
    ConfigError,
    PeerLost,
    SecureVFLError,
    StorageError,
    TransportError,
    may_depend_on_table,
)
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.preconditions import SessionNeeds, check_preconditions
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.permits import permit_sizes
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.costs import CostCounters, Kind
from securevfl.runtime.disclosure_gate import DisclosingMessage
from securevfl.transport.certificate_expiry import expiry_warnings
from securevfl.transport.peers import split_address
from securevfl.transport.secure_transport import SecureTransport
from securevfl.transport.tls import Credentials

T = TypeVar("T")

_ABORT_SECONDS = 5.0  # seconds in which the reason of an early end is sent to the other parties
_RECONNECT_PAUSE = 0.1  # seconds before a party connects again after a loss
_END = "end"  # name of the logical channel on which the parties send `SessionDone`


class ServiceEnded(KeyboardInterrupt):
    """Ends the sessions of a server when its operator stops the service."""


class SessionDone(DisclosingMessage, frozen=True):
    """The sender has its result. If the session can resume after a loss, the result is on disk."""


def declares(roles: Roles) -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of `SessionDone`."""
    return [
        MessageDeclaration(SessionDone, *pair, Reveal("plain", "that the sender has finished"))
        for pair in roles.pairs()
    ]


def run_session(
    me: str,
    settings: PeerSettings,
    handshake: Mapping[str, Any],
    talk: Callable[[Channel], T],
    *,
    ledger: DisclosureLedger | None,
    resumes: bool = False,
    stored_result: Callable[[], T | None] | None = None,
    needs: SessionNeeds = SessionNeeds(),  # noqa: B008  it is immutable
) -> T:
    """Run one session: connect to all parties, call `talk`, and report completion to the others.

    Args:
        me: name of this party.
        settings: addresses, certificates and time limits.
        handshake: plain data on which all parties must agree, and which all parties may see.
        talk: uses a channel to the other parties and returns the result.
        ledger: this party's ledger. It records an abort whose reason may depend on data before the others learn of it,
            and refuses a session after too many such aborts. None if no table is involved.
        resumes: True if `talk` can run again after a peer was lost.
        stored_result: returns the result of an earlier run if it is on disk, else None. It is returned instead of
            running `talk` if the other parties cannot be reached or have their results as well.
        needs: what the session writes. It is checked before this party listens or calls anybody.

    Returns:
        The result of `talk`, or the stored result.

    Raises:
        TransportError: a party cannot be reached, was refused or has stopped.
        ConfigError: `listen` is invalid, or the handshakes differ.
        StorageError: a file cannot be read or written, or another program has locked the ledger.
    """
    if settings.listen is not None:
        try:
            split_address(me, settings.listen)
        except ValueError:
            raise ConfigError(
                f"--listen {settings.listen} is not of the form host:port",
                "write it as in 0.0.0.0:7300",
                code="SVFL-ADDRESS",
            ) from None
    use_one_heap()
    peers, timeout, patience = settings.peers, settings.timeout, settings.patience
    credentials = Credentials(settings.certs, me)
    for warning in expiry_warnings(settings.certs, me):
        eventlog.emit(me, "certificate expires", {"reason": warning}, logging.ERROR)
    if settings.router is None:  # a server with several sessions has made this check once, when it started
        check_preconditions(ledger, needs)
    clock, counters = WallClock(), CostCounters()
    others = [name for name in peers.parties if name != me]
    if ledger is not None:
        if (same_disk := shared_disk_warning(ledger.path)) is not None:
            eventlog.warn(me, "a restored ledger would go unnoticed", {"reason": same_disk})
        ledger.check_early_aborts(others)
    wait = timeout if settings.wait is None else settings.wait
    has_result = stored_result is not None and stored_result() is not None
    deadline = time.monotonic() + (min(timeout, patience) if has_result else wait)
    while True:
        transport = SecureTransport(
            credentials,
            peers,
            handshake,
            done=stored_result is not None and stored_result() is not None,
            listen=settings.listen,
            patience=patience,
            router=settings.router,
            session_id=settings.session_id,
        )
        close_timeout: float | None = _ABORT_SECONDS
        channel: Channel | None = None
        try:
            inbox = transport.open(max(1.0, round(deadline - time.monotonic(), 1)))
            channel = Channel(transport, inbox, clock, counters, timeout=timeout, keys=transport.keys)
            channel.clock.tick(Kind.LOCAL)
            result = talk(channel)
            _finish(channel, others, resumes)
            close_timeout = timeout
            return result
        except BaseException as error:
            if resumes and _is_loss(error) and (channel is not None or time.monotonic() < deadline):
                eventlog.warn(me, "connection lost", {"reason": str(error), "waits_seconds": timeout})
                if channel is not None:
                    channel.fail(error)  # other threads that use the channel then end with the same error
                close_timeout = None
            else:
                problem, remedy = _reason(error, resumes)
                reason = f"{problem}; {remedy}" if remedy else problem
                if channel is not None and ledger is not None and may_depend_on_table(error):
                    error = _record_abort(error, ledger, others)
                if channel is not None:
                    channel.abort(others, error, resumes=resumes)
                elif isinstance(error, PeerLost | KeyboardInterrupt | OSError | StorageError):
                    transport.stop(error, resumes=resumes)
                alone = channel is None and isinstance(error, TransportError) and not transport.unfinished
                if stored_result is not None and alone and (stored := stored_result()) is not None:
                    eventlog.warn(me, "completion unconfirmed", {"reason": reason})
                    return stored
                # only its operator can end a server that waits for clients without limit: this is no failure to report
                waits_forever = math.isinf(wait) and channel is None
                if isinstance(error, SecureVFLError | OSError):
                    eventlog.warn(me, "stopped", {"error": type(error).__name__, "reason": reason})
                elif isinstance(error, KeyboardInterrupt) and not waits_forever:
                    eventlog.emit(me, "stopped", {"reason": reason})
                if isinstance(error, OSError):
                    raise StorageError(error.filename or "the disk", error) from error
                if isinstance(error, TransportError) and _is_loss(error):
                    raise type(error)(problem, remedy, code="SVFL-PEER-LOST", party=me) from error
                raise
        finally:
            transport.abandon() if close_timeout is None else transport.close(close_timeout)
        if channel is not None:
            deadline = time.monotonic() + timeout
        time.sleep(_RECONNECT_PAUSE)


def _finish(channel: Channel, others: Sequence[str], resumes: bool) -> None:
    """Tell all other parties that this one has finished; if the session can resume, wait for their messages too."""
    for name in others:
        # without resumption, a peer may already have closed its connection, which is no error
        with nullcontext() if resumes else suppress(TransportError):
            channel.send(name, SessionDone(), _END, permit=permit_sizes(channel, name))
    for name in others if resumes else ():
        channel.recv(name, SessionDone, _END)


def _reason(error: BaseException, resumes: bool) -> tuple[str, str | None]:
    """Return why this party stops, for its operator, and what the operators of all parties should do, if anything."""
    again = "run the same command again at every party" + (" to resume from the latest checkpoint" if resumes else "")
    if _is_loss(error):
        return (error.problem if isinstance(error, SecureVFLError) else str(error)), again
    if isinstance(error, ServiceEnded):
        return "the service ends", None
    if isinstance(error, KeyboardInterrupt):
        return "its operator has stopped it", again
    return (str(error) if isinstance(error, SecureVFLError | OSError) else type(error).__name__), None


def _record_abort(error: BaseException, ledger: DisclosureLedger, others: Sequence[str]) -> BaseException:
    """Record in the ledger that this run was aborted. Return `error`, or the ledger's error if that fails."""
    try:
        ledger.record_early_abort(others)
    except SecureVFLError as unwritten:
        return unwritten
    return error


def _is_loss(error: BaseException) -> bool:
    return isinstance(error, PeerLost) or isinstance(error.__cause__, PeerLost)

"""One conversation of all parties over gRPC: meet, talk, part; and once more with whoever comes back.

A conversation that resumes outlives its parties' processes: when a peer is lost, everyone hangs up, waits for all to be
there again, agrees on a new session and talks anew, from what each has kept on disk. It ends when all have said that
they are through, or with the reason for which one of them has given up.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

from securevfl.base.machine import use_one_heap
from securevfl.base.roles import Roles
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import (
    DATA_DEPENDENT_REASONS,
    ConfigError,
    PeerLost,
    SecureVFLError,
    StorageError,
    TransportError,
    stop_reason_of,
)
from securevfl.organisations.peer_settings import PeerSettings
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

_LAST_WORD = 5.0  # seconds for the reason of an early end to reach the others
_BETWEEN = 0.1  # seconds before a party is back after it has hung up
_END = "end"  # subchannel of the last message


class SessionDone(DisclosingMessage, frozen=True):
    """The sender has all it came for, on disk if the conversation resumes."""


def declares(roles: Roles) -> list[MessageDeclaration]:
    """Declare what `SessionDone` reveals: that its sender is done."""
    return [
        MessageDeclaration(SessionDone, *pair, Reveal("plain", "that the sender is through")) for pair in roles.pairs()
    ]


def run_session(
    me: str,
    venue: PeerSettings,
    terms: Mapping[str, Any],
    talk: Callable[[Channel], T],
    *,
    ledger: DisclosureLedger | None,
    resumes: bool = False,
    kept: Callable[[], T | None] | None = None,
) -> T:
    """Hold one conversation: meet all other parties, call `talk` with a channel to them, tell them that this party is
    done, and return what `talk` returned.

    ledger: of this party, which enters an end that may follow from its data before others learn of it, and refuses a
    conversation after too many of these; None where no table is there to decide.
    terms: compared with everyone's, plain data that all may see. resumes: `talk` can begin anew after a loss. kept: the
    outcome if it is on disk from an earlier try; it counts if the others are gone, or have theirs as well.

    Raises TransportError if a party is away, refused or has stopped, with the reason; what `talk` raises.
    """
    if venue.listen is not None:
        try:
            split_address(me, venue.listen)
        except ValueError:
            said = f"listen: host:port was expected, {venue.listen} came; write it as in 0.0.0.0:7300"
            raise ConfigError(said) from None
    use_one_heap()
    peers, timeout, patience = venue.peers, venue.timeout, venue.patience
    credentials = Credentials(venue.certs, me)
    for line in expiry_warnings(venue.certs, me):
        eventlog.emit(me, "certificate", {"reason": line}, logging.ERROR)
    clock, counters = WallClock(), CostCounters()
    others = [name for name in peers.parties if name != me]
    if ledger is not None:
        ledger.check_early_aborts(others)
    wait = timeout if venue.wait is None else venue.wait
    deadline = time.monotonic() + (min(timeout, patience) if kept is not None and kept() is not None else wait)
    while True:
        through = kept is not None and kept() is not None
        post = SecureTransport(
            credentials,
            peers,
            terms,
            through=through,
            listen=venue.listen,
            patience=patience,
            router=venue.router,
            conversation=venue.conversation,
        )
        goodbye: float | None = _LAST_WORD
        channel: Channel | None = None
        try:
            inbox = post.open(max(1.0, round(deadline - time.monotonic(), 1)))
            channel = Channel(post, inbox, clock, counters, timeout=timeout, keys=post.keys)
            channel.clock.tick(Kind.LOCAL)
            outcome = talk(channel)
            _part(channel, others, resumes)
            goodbye = timeout
            return outcome
        except BaseException as error:
            if resumes and _lost(error) and (channel is not None or time.monotonic() < deadline):
                eventlog.warn(me, "lost", {"reason": str(error), "waits": timeout})
                if channel is not None:
                    channel.fail(error)  # to its other threads
                goodbye = None
            else:
                reason = _reason(error, resumes)
                if channel is not None and ledger is not None and stop_reason_of(error) in DATA_DEPENDENT_REASONS:
                    error = _entered(error, ledger, others)
                if channel is not None:
                    channel.abort(others, error, resumes=resumes)
                elif isinstance(error, PeerLost | KeyboardInterrupt | OSError | StorageError):
                    post.stop(error, resumes=resumes)
                alone = channel is None and isinstance(error, TransportError) and not post.unfinished
                if kept is not None and alone and (done := kept()) is not None:
                    eventlog.warn(me, "unconfirmed", {"reason": reason})
                    return done
                # who waits for whoever comes ends by being stopped, which is nothing to be told of
                standing = math.isinf(wait) and channel is None
                if isinstance(error, SecureVFLError | OSError) or (
                    isinstance(error, KeyboardInterrupt) and not standing
                ):
                    eventlog.warn(me, "stopped", {"error": type(error).__name__, "reason": reason})
                if isinstance(error, OSError):
                    raise StorageError(error.filename or "the disk", error) from error
                if _lost(error):
                    raise type(error)(reason) from error
                raise
        finally:
            post.abandon() if goodbye is None else post.close(goodbye)
        if channel is not None:
            deadline = time.monotonic() + timeout
        time.sleep(_BETWEEN)


def _part(channel: Channel, others: Sequence[str], resumes: bool) -> None:
    """Tells all others that this party is through, and hears it of them where they may begin anew."""
    for name in others:
        with nullcontext() if resumes else suppress(TransportError):  # who will not wait for it may have left
            channel.send(name, SessionDone(), _END, permit=permit_sizes(channel, name))
    for name in others if resumes else ():
        channel.recv(name, SessionDone, _END)


def _reason(error: BaseException, resumes: bool) -> str:
    """Why this party stops, for its own people, and what all are to do."""
    again = "run the same command again at every party" + (" to go on from the last state" if resumes else "")
    if _lost(error):
        return f"{error}; {again}"
    if isinstance(error, KeyboardInterrupt):
        return f"its operator has stopped it; {again}"
    return str(error) if isinstance(error, SecureVFLError | OSError) else type(error).__name__


def _entered(error: BaseException, ledger: DisclosureLedger, others: Sequence[str]) -> BaseException:
    """Return the error that others are told of: this one once its bit is in the ledger, or that it could not be."""
    try:
        ledger.record_early_abort(others)
    except SecureVFLError as unwritten:
        return unwritten
    return error


def _lost(error: BaseException) -> bool:
    return isinstance(error, PeerLost) or isinstance(error.__cause__, PeerLost)

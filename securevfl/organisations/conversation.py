"""One conversation of all parties over gRPC: meet, talk, part; and once more with whoever comes back.

A conversation that resumes outlives its parties' processes: when a peer is lost, everyone hangs up, waits for all to be
there again, agrees on a new session and talks anew, from what each has kept on disk. It ends when all have said that
they are through, or with the reason for which one of them has given up.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from securevfl.base.machine import one_heap
from securevfl.base.roles import Roles
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import (
    DATA_DEPENDENT_REASONS,
    ConfigError,
    PartiesError,
    PeerLost,
    SecureVFLError,
    StorageError,
    TransportError,
    stop_reason_of,
)
from securevfl.protocols.declared import Declared, Reveal, permit_sizes
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel, DisclosingMessage
from securevfl.runtime.clock import Books, Kind, WallClock
from securevfl.transport.certs import ends_soon
from securevfl.transport.endpoint import Hall
from securevfl.transport.line import Line
from securevfl.transport.peers import Peers, split_address
from securevfl.transport.session_wire import Post
from securevfl.transport.tls import Credentials

# Conversations of a party that stays up: several at once on one port, each in a thread of its own.
#
# Whoever calls names its conversation, which begins with the first call and ends with all its threads when its parties
# are through or one is lost: an asker that stops holds up nobody else. So many go on at a time; a few more wait, and
# the others are told to come again.


AGAIN = 5  # seconds after which one that was turned away may come again
_WAIT = 10.0  # seconds that a caller waits for room
_BEGINS = 10.0  # seconds for a conversation to take its callers
_OVER = 1024  # names of the last conversations


@dataclass(frozen=True)
class Room:
    """How many conversations go on at a time, and how many callers more wait for one to end; ConfigError unless one may
    go on."""

    at_once: int = 16
    waiting: int = 64

    def __post_init__(self) -> None:
        if self.at_once < 1 or self.waiting < 0:
            raise ConfigError(f"one conversation at a time or more was expected, {self.at_once} came; correct at_once")


class Visitors:
    """The conversations that go on at a party (a `transport.endpoint.Hall`).

    hold: holds the conversation of a name, in the calling thread, until it ends.
    """

    def __init__(self, me: str, hold: Callable[[str], None], room: Room) -> None:
        self._me, self._hold, self._most, self._room = me, hold, room.at_once, room.waiting
        self._threads: dict[str, threading.Thread] = {}
        self._lines: dict[str, Mapping[str, Line]] = {}
        self._over: deque[str] = deque(maxlen=_OVER)
        self._waiting, self._closed = 0, False
        self._changed = threading.Condition()

    @property
    def streams(self) -> int:
        """How many callers there may be about, with those that wait, of one other party."""
        return self._most + self._room

    def line_of(self, conversation: str, name: str) -> Line:
        """Return the line of a caller to a conversation, which begins if it is new.

        TransportError if there is no room for it, PeerLost if it is over.
        """
        with self._changed:
            if conversation not in self._threads:
                self._begin(conversation)
            begun = self._changed.wait_for(
                lambda: conversation in self._lines or conversation not in self._threads, _BEGINS
            )
            lines = self._lines.get(conversation)
            if not begun or lines is None or name not in lines:
                raise PeerLost(f"{self._me} has ended this conversation; begin another one")
            return lines[name]

    def enter(self, conversation: str, lines: Mapping[str, Line]) -> None:
        """Hand who calls about this conversation to its lines."""
        with self._changed:
            self._lines[conversation] = lines
            self._changed.notify_all()

    def leave(self, conversation: str) -> None:
        """Hand nobody to this conversation any more."""
        with self._changed:
            self._lines.pop(conversation, None)
            if conversation:
                self._over.append(conversation)
            self._changed.notify_all()

    def close(self) -> None:
        """Let no other conversation begin."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until all conversations have ended, and say whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._threads, seconds)

    def _begin(self, conversation: str) -> None:
        """Begin a conversation once there is room; called with the lock."""
        if conversation in self._over:
            raise PeerLost(f"{self._me} has ended this conversation; begin another one")
        if len(self._threads) >= self._most and not self._closed:
            if self._waiting >= self._room:
                raise self._busy()
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self._closed or len(self._threads) < self._most, _WAIT)
            finally:
                self._waiting -= 1
        if self._closed or (conversation not in self._threads and len(self._threads) >= self._most):
            raise self._busy()
        if conversation not in self._threads:
            thread = threading.Thread(target=self._held, args=(conversation,), name="conversation", daemon=True)
            self._threads[conversation] = thread
            thread.start()

    def _busy(self) -> TransportError:
        if self._closed:
            return TransportError(f"{self._me} is ending; come again once it is up")
        return TransportError(f"{self._me} is busy with {self._most} conversations; come again in {AGAIN} s")

    def _held(self, conversation: str) -> None:
        try:
            self._hold(conversation)
        finally:
            with self._changed:
                self._threads.pop(conversation, None)
                self._lines.pop(conversation, None)
                self._changed.notify_all()


T = TypeVar("T")

_LAST_WORD = 5.0  # seconds for the reason of an early end to reach the others
_BETWEEN = 0.1  # seconds before a party is back after it has hung up
_END = "end"  # subchannel of the last message


class Through(DisclosingMessage, frozen=True):
    """The sender has all it came for, on disk if the conversation resumes."""


def declares(roles: Roles) -> list[Declared]:
    """Declare what `Through` reveals: that its sender is done."""
    return [Declared(Through, *pair, Reveal("plain", "that the sender is through")) for pair in roles.pairs()]


@dataclass(frozen=True)
class Venue:
    """The meeting point of a party and its peers, and how long the party waits for them.

    certs: the folder of <party>.pem, <party>.key and ca.pem. listen: host:port to bind where it is not the port of the
    party's address. timeout: seconds to wait for all parties at the start and after a loss, for any one message, and
    at the end for the others. patience: seconds a party may be cut off. wait: seconds for all parties to be there at
    the start, if not `timeout`; infinity waits for whoever comes. conversation: its name, where a party may hold
    several; hall: the port that these share; room: how many there may be.
    """

    peers: Peers
    certs: Path
    listen: str | None = None
    timeout: float = 600.0
    patience: float = 60.0
    wait: float | None = None
    conversation: str = ""
    hall: Hall | None = None
    room: Room = field(default_factory=Room)

    @classmethod
    def of(
        cls,
        peers: Peers | str | Path,
        certs: str | Path | None = None,
        listen: str | None = None,
        timeout: float = 600.0,
        patience: float = 60.0,
    ) -> Venue:
        """Make a venue from the peers given, or from those in the file given; certificates are looked for beside that
        file unless `certs` names another folder."""
        beside = Path() if isinstance(peers, Peers) else Path(peers).parent
        known = peers if isinstance(peers, Peers) else Peers.load(peers)
        return cls(known, beside if certs is None else Path(certs), listen, timeout, patience)


def check_among(peers: Peers, me: str) -> None:
    """PartiesError unless this party is one of the peers."""
    if me not in peers.parties:
        raise PartiesError(f"one of {', '.join(peers.parties)} was expected, {me} came; correct the party's name")


def converse(
    me: str,
    venue: Venue,
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
    one_heap()
    peers, timeout, patience = venue.peers, venue.timeout, venue.patience
    credentials = Credentials(venue.certs, me)
    for line in ends_soon(venue.certs, me):
        eventlog.emit(me, "certificate", {"reason": line}, logging.ERROR)
    clock, books = WallClock(), Books()
    others = [name for name in peers.parties if name != me]
    if ledger is not None:
        ledger.check_tries(others)
    wait = timeout if venue.wait is None else venue.wait
    deadline = time.monotonic() + (min(timeout, patience) if kept is not None and kept() is not None else wait)
    while True:
        through = kept is not None and kept() is not None
        post = Post(
            credentials,
            peers,
            terms,
            through=through,
            listen=venue.listen,
            patience=patience,
            hall=venue.hall,
            conversation=venue.conversation,
        )
        goodbye: float | None = _LAST_WORD
        channel: Channel | None = None
        try:
            inbox = post.open(max(1.0, round(deadline - time.monotonic(), 1)))
            channel = Channel(post, inbox, clock, books, timeout=timeout, keys=post.keys)
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
            channel.send(name, Through(), _END, permit=permit_sizes(channel, name))
    for name in others if resumes else ():
        channel.recv(name, Through, _END)


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
        ledger.tried(others)
    except SecureVFLError as unwritten:
        return unwritten
    return error


def _lost(error: BaseException) -> bool:
    return isinstance(error, PeerLost) or isinstance(error.__cause__, PeerLost)

"""Takes part in a job from this process, with the other parties on their own machines."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

from securevfl import eventlog
from securevfl.channel import Channel
from securevfl.clock import Kind, WallClock
from securevfl.costs import Ledger
from securevfl.errors import PartiesError, SecureVFLError
from securevfl.job import Job
from securevfl.part import Part
from securevfl.party import Party
from securevfl.peers import Peers
from securevfl.session import take_part
from securevfl.simulate import pool_for
from securevfl.transport.post import Post
from securevfl.transport.tls import Credentials

_LAST_WORD = 5.0  # seconds for the reason of an early end to reach the others


def join(
    job: Job,
    party: Party,
    peers: Peers | str | Path = "peers.toml",
    *,
    certs: str | Path | None = None,
    listen: str | None = None,
    timeout: float = 600.0,
    patience: float = 60.0,
    executor: Executor | None = None,
    workers: int | None = None,
    on_round: Callable[[int, int], None] | None = None,
) -> Part:
    """Trains with the parties in `peers` (a file, or what it says) and returns this party's part.

    certs: the folder of <party>.pem, <party>.key and ca.pem; that of the file of peers unless given. listen: host:port
    to bind where it is not the port of this party's address. timeout: seconds to wait for all parties at the start,
    for any one message, and at the end for the others. patience: seconds a party may be cut off. executor, workers and
    on_round as in `simulate`.

    Raises ConfigError or DataError for what this party brings, and for a job that is not everyone's (it names the
    key); TransportError if a party is away, refused or has stopped, with the reason; never waits longer than it says.
    """
    folder = Path(certs) if certs is not None else Path() if isinstance(peers, Peers) else Path(peers).parent
    peers = peers if isinstance(peers, Peers) else Peers.load(peers)
    _check_role(party, peers, several_active=job.optimizer.several_active)
    terms = {"job": job.to_dict(), "active": peers.active, "passives": list(peers.passives)}
    post = Post(Credentials(folder, party.name), peers, terms, listen=listen, patience=patience)
    goodbye = _LAST_WORD
    try:
        with pool_for(job, executor, workers) as (pool, size):
            inbox = post.open(timeout)
            channel = Channel(post, inbox, WallClock(), Ledger(), timeout=timeout)
            channel.clock.tick(Kind.LOCAL)
            try:
                part = take_part(
                    job,
                    party,
                    channel,
                    active=peers.active,
                    passives=peers.passives,
                    executor=pool,
                    workers=size,
                    on_round=partial(_round, channel, on_round),
                )
            except BaseException as error:
                reason = str(error) if isinstance(error, SecureVFLError) else type(error).__name__
                channel.abort([name for name in peers.parties if name != party.name], reason)
                raise
        _finished(part)
        goodbye = timeout
        return part
    except SecureVFLError as error:
        eventlog.warn(party.name, "stopped", {"error": type(error).__name__, "reason": str(error)})
        raise
    finally:
        post.close(goodbye)


def _check_role(party: Party, peers: Peers, *, several_active: bool) -> None:
    if party.name not in peers.parties:
        raise PartiesError(
            f"one of {', '.join(peers.parties)} was expected, {party.name} came; correct the party's name"
        )
    if party.active != (party.name == peers.active) and not (party.active and several_active):
        has = "has labels" if party.active else "has no labels"
        raise PartiesError(f"{peers.active} was expected to hold the labels, {party.name} {has}; correct one of them")


def _round(channel: Channel, on_round: Callable[[int, int], None] | None, done: int, of: int) -> None:
    path = channel.clock.path()
    facts = {"round": done, "of": of, "seconds": float(path.sum()), "waited": float(path[:, Kind.COMMUNICATION].sum())}
    eventlog.emit(channel.me, "round", facts | {"bytes_sent": channel.ledger.bytes_sent()})
    if on_round is not None:
        on_round(done, of)


def _finished(part: Part) -> None:
    facts = {
        "rounds": part.rounds,
        "seconds": float(part.path.sum()),
        "waited": float(part.path[:, Kind.COMMUNICATION].sum()),
        "bytes_sent": part.ledger.bytes_sent(),
        "messages_sent": part.ledger.messages_sent(),
    }
    eventlog.emit(part.name, "finished", facts)

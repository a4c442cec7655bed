"""Takes part in a job from this process, with the other parties on their own machines."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

from securevfl.base.arrays import Floats
from securevfl.consent.consent_sheet import ConsentSheet
from securevfl.consent.settle_job import check_settled
from securevfl.data.party import Party
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.display.progress import watched
from securevfl.errors import ConfigError, DataError, PartiesError
from securevfl.job import Job
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings, check_among
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import CostCounters, Kind, Stage
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.model_part import ModelPart, PartStatus
from securevfl.training.run_setup import run_key
from securevfl.training.session import take_part
from securevfl.training.simulate import pool_for
from securevfl.transport.peers import Peers


def join(
    job: Job,
    party: Party,
    peers: Peers | str | Path = "peers.toml",
    *,
    certs: str | Path | None = None,
    listen: str | None = None,
    timeout: float = 600.0,
    patience: float = 60.0,
    checkpoints: str | Path | Checkpoints | None = None,
    save: str | Path | None = None,
    ledger: DisclosureLedger | str | Path | None = None,
    ahead: str | Path | None = None,
    again: bool = False,
    consent: Callable[[ConsentSheet], None] | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    on_round: Callable[[int, int], None] | None = None,
    progress: bool = False,
) -> ModelPart:
    """Trains with the parties in `peers` (a file, or what it says) and returns this party's part.

    certs: the folder of <party>.pem, <party>.key and ca.pem; that of the file of peers unless given. listen: host:port
    to bind where it is not the port of this party's address. timeout: seconds to wait for all parties at the start,
    for any one message, and at the end for the others. patience: seconds a party may be cut off. checkpoints: a folder
    of this party's own states; if every party has one, a party that was lost may be started again within `timeout`
    and the training goes on from the last round that all have. save: writes the part there; with checkpoints, before
    these are removed. A training that is over is not begun again: with checkpoints, and a part in `save` that is of
    this job on this very table, that part is returned once all say that they have theirs, or nobody is met within
    `patience` seconds (`standing` says which). again: trains anew, whatever is in `save`. ledger: where this party
    counts what it tells; by default its file among the user's data (`securevfl.disclosure.ledger.default_ledger`).
    ahead: the folder of what `prepare` has done ahead, and where more is kept meanwhile; in memory without one.
    consent: is given this party's sheet once all have met and before anything of its data is told; raises ConsentError
    to take no part.
    executor, workers, on_round and progress as in `simulate`.

    Raises ConfigError or DataError for what this party brings, for a job that is not everyone's (it names the key), and
    for a training that is over here and not elsewhere; TransportError if a party is away, refused or has stopped, with
    the reason; never waits longer than it says.
    """
    venue = PeerSettings.of(peers, certs, listen, timeout, patience)
    everyone = venue.peers.parties
    check_role(job, party, venue.peers)
    own_ledger = DisclosureLedger.open(party.name, ledger)
    states = Checkpoints(checkpoints, party.name) if isinstance(checkpoints, str | Path) else checkpoints
    before = None if states is None else _Before(job, party, states, None if again else save)
    with pool_for(job, executor, workers) as (pool, size), watched(job.optimizer.label, progress, on_round) as told:
        train = partial(
            take_part,
            job,
            party,
            parties=everyone,
            executor=pool,
            workers=size,
            checkpoints=states,
            ledger=own_ledger,
            ahead=None if ahead is None else Path(ahead),
            consent=consent,
            again=again,
        )
        part = run_session(
            party.name,
            venue,
            {"job": job.to_dict(), "parties": list(everyone), "task": "train"},
            partial(talk, train, told),
            ledger=own_ledger,
            resumes=before is not None,
            kept=None if before is None else before.kept,
        )
    if save is not None and (before is None or part is not before.saved):
        part.save(save)
    if before is not None:
        before.clear()
    if part.status is PartStatus.NEW:
        facts = {"rounds": part.rounds, "messages_sent": part.counters.messages_sent()}
        eventlog.emit(part.name, "finished", facts | _spent(part.path, part.counters))
    else:
        eventlog.warn(part.name, "is over", {"model": part.status})
    return part


def talk(train: Callable[..., ModelPart], told: Callable[[int, int], None] | None, channel: Channel) -> ModelPart:
    """Trains over this channel, on which all parties are there."""
    channel.clock.stage = Stage.SETUP
    return train(channel=channel, on_round=partial(_round, channel, told))


class _Before:
    """What this party has on disk of earlier tries at the same job on the same table.

    saved: its part, if that training is over here and no later one has begun.
    """

    def __init__(self, job: Job, party: Party, states: Checkpoints, save: str | Path | None) -> None:
        """save: where the part of a training that is over may be; None for one that begins anew."""
        self._states = states
        self._key = run_key(job, party)
        self.saved: ModelPart | None = None
        if save is not None and Path(save).is_file() and not states.rounds(self._key):
            self.saved = _same(Path(save), job, party)
        if self.saved is not None:
            states.set_outcome(self._key, self.saved)

    def kept(self) -> ModelPart | None:
        """Return the outcome kept from an earlier run, where there is one that the others may have as well; its
        standing is set to unconfirmed."""
        part = self._states.final(self._key)
        if part is not None:
            part.status = PartStatus.KEPT if self.saved is None else PartStatus.UNCONFIRMED
        return part

    def clear(self) -> None:
        """Forgets the states, once the outcome is where it belongs."""
        self._states.clear(self._key)


def _same(save: Path, job: Job, party: Party) -> ModelPart | None:
    """Load the part in this file, if it is of this job on this very table; otherwise log that it is not, and return
    None."""
    try:
        part = ModelPart.load(save)
        if Job.from_dict(part.job).digest == job.digest and (part.name, part.data) == (party.name, party.digest.hex()):
            return part
    except (ConfigError, DataError):
        pass
    why = f"the model in {save} is of another job, or of another table than is here now"
    eventlog.emit(party.name, "trains anew", {"reason": why}, logging.ERROR)
    return None


def check_role(job: Job, party: Party, peers: Peers) -> None:
    """PartiesError unless there is a place for this party among the peers; ConfigError for a job without epochs."""
    check_settled(job, party.name)
    check_among(peers, party.name)
    if not job.family.accepts_role(job.family.role_of(party), leads=party.name == peers.active):
        has = "has labels" if party.active else "has no labels"
        raise PartiesError(f"{peers.active} was expected to hold the labels, {party.name} {has}; correct one of them")


def _round(channel: Channel, on_round: Callable[[int, int], None] | None, done: int, of: int) -> None:
    facts = {"round": done, "of": of} | _spent(channel.clock.path(), channel.counters)
    eventlog.emit(channel.me, "round", facts)
    if on_round is not None:
        on_round(done, of)


def _spent(path: Floats, counters: CostCounters) -> dict[str, str | int | float]:
    """Return what a run has cost so far, for its events."""
    waited = float(path[:, Kind.COMMUNICATION].sum())
    return {"seconds": float(path.sum()), "waited": waited, "bytes_sent": counters.bytes_sent()}

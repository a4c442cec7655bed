"""Runs a job with all parties as threads of this process, in virtual time on a given network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial

from securevfl.consent.settle_job import settle_job
from securevfl.data.party import Party, check_parties
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.display.progress import watched
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.network import Network, Pauses
from securevfl.runtime.observer import Event
from securevfl.runtime.party_threads import run_threads
from securevfl.runtime.worker_processes import process_pool
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.run import Run
from securevfl.training.session import take_part


def simulate(
    job: Job,
    parties: Sequence[Party],
    *,
    network: Network | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    on_round: Callable[[int, int], None] | None = None,
    observe: Callable[[Event], None] | None = None,
    checkpoints: Mapping[str, Checkpoints] | None = None,
    ledgers: Mapping[str, DisclosureLedger] | None = None,
    slowed: Mapping[str, float | Pauses] | None = None,
    progress: bool = False,
) -> Run:
    """Trains and returns every party's part.

    network: what lies between the parties; by default 300 Mbps, 20 ms there and back and .4 ms a message. executor:
    takes the heavy calls of every party, `workers` of them at a time; without one, Paillier gets a pool of one process
    a core. on_round(done, of) is called after each round. observe sees every message at both ends. checkpoints: each
    party's own, by name.
    ledgers: each party's own, by name; without them nothing is counted, as all data are in this one process and none is
    told to anyone. slowed: parties whose computing takes so many times as long in virtual time, or that stop at random
    (`vfl.Pauses`), by name. progress: shows a bar on a terminal or below a notebook's cell.
    Raises ConfigError, DataError or LeakageError before anything runs.
    """
    lead, others = check_parties(parties)
    cast = job.family.assign_roles([lead, *others])
    job = settle_job(job, parties)
    if network is not None and not isinstance(network, Network):
        raise ConfigError(
            f"network: a Network was expected, {type(network).__name__} came; pass vfl.Network(mbps=300, rtt_ms=20)"
        )
    lines = network or Network()
    slow = slowed or {}
    if strange := [name for name, how in slow.items() if name not in cast.parties or not _slows(how)]:
        raise ConfigError(
            f"slowed: parties of this run with factors above 0 or vfl.Pauses were expected, {strange[0]} came"
        )
    clocks = {name: VirtualClock(lines, slowed=slow.get(name, 1.0)) for name in cast.parties}
    label = f"{job.optimizer.label}, {job.family.cost_label(job, len(others))}"
    with pool_for(job, executor, workers) as (pool, size), watched(label, progress, on_round) as told:
        roles = {
            party.name: partial(
                take_part,
                job,
                party,
                parties=cast.parties,
                executor=pool,
                workers=size,
                on_round=told if party is lead else None,
                checkpoints=checkpoints[party.name] if checkpoints is not None else None,
                ledger=ledgers[party.name] if ledgers is not None else None,
            )
            for party in (lead, *others)
        }
        parts = run_threads(roles, clocks, observe=observe)
    return Run(job, parts)


def _slows(how: float | Pauses) -> bool:
    return isinstance(how, Pauses) or how > 0


@contextmanager
def pool_for(job: Job, executor: Executor | None, workers: int | None) -> Iterator[tuple[Executor | None, int]]:
    """Yield the executor given, or a pool of one process a core where that gains, and how many pieces it takes at a
    time."""
    cores = workers or os.cpu_count() or 1
    if executor is not None or not job.protocol.pooled or cores < 2:
        yield executor, cores
        return
    with process_pool(cores) as pool:
        yield pool, cores

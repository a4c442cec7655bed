"""Simulation of a job: all parties are threads of this process, and time is virtual: computation plus network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial

from securevfl.consent.settle_job import settle_job
from securevfl.data.party import Party, check_parties
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.outputs import combined_outputs
from securevfl.display.progress import watched
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.network import Network, Pauses
from securevfl.runtime.observer import Event
from securevfl.runtime.party_threads import run_threads
from securevfl.runtime.worker_processes import process_pool
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.model_part import ModelPart
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
    """Train a job with all parties in this process, and return the run with every party's part of the model.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        parties: the parties, each with its name and its table.
        network: the network between the parties; by default 300 Mbit/s, 20 ms round-trip time and 0.4 ms per message.
        executor: runs expensive calls of all parties. Without one, Paillier uses a pool of one process per core.
        workers: number of calls that run concurrently.
        on_round: called after each round with the number of finished rounds and the number of all rounds.
        observe: called with every message, once at its sender and once at its receiver.
        checkpoints: each party's checkpoints, by name.
        ledgers: by name, each party's ledger, a file that records and limits its disclosures in all jobs. Without
            ledgers, disclosures are not counted, because all data are in this process.
        slowed: by name, factors by which parties compute more slowly in virtual time, or random pauses (`vfl.Pauses`).
        progress: shows a bar on a terminal or below a notebook's cell.

    Returns:
        The run. Raises ConfigError, DataError or LeakageError before anything runs.

    Raises:
        ConfigError: if `network` or `slowed` is invalid.
    """
    lead, others = check_parties(parties)
    cast = job.family.assign_roles([lead, *others])
    job = settle_job(job, parties)
    if network is not None and not isinstance(network, Network):
        raise ConfigError(
            f"network is a {type(network).__name__}, not a Network",
            "pass vfl.Network(mbps=300, rtt_ms=20)",
            code="SVFL-JOB-OPTION",
            option="network",
        )
    lines = network or Network()
    slow = slowed or {}
    if invalid := [name for name, factor in slow.items() if name not in cast.parties or not _slows(factor)]:
        raise ConfigError(
            f"slowed: {invalid[0]!r} is not a party of this run, or its value is not a factor above 0",
            "name parties of this run, with factors above 0 or vfl.Pauses",
            code="SVFL-JOB-OPTION",
            option="slowed",
            name=invalid[0],
        )
    clocks = {name: VirtualClock(lines, slowed=slow.get(name, 1.0)) for name in cast.parties}
    label = f"{job.optimizer.label}, {job.family.cost_label(job, len(others))}"
    with pool_for(job, executor, workers) as (pool, size), watched(label, progress, on_round) as told:
        roles = {}
        for party in (lead, *others):
            train = partial(
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
            roles[party.name] = partial(_connected, clocks[party.name], train)
        parts = run_threads(roles, clocks, observe=observe)
    outputs = combined_outputs({name: part.outputs_of_run for name, part in parts.items()})
    for part in parts.values():
        part.outputs_of_run = outputs
    return Run(job, parts)


def _connected(clock: VirtualClock, train: Callable[[Channel], ModelPart], channel: Channel) -> ModelPart:
    """Train, and add the time in which separate computers connect before the training and disconnect after it.

    Args:
        clock: the party's simulated clock.
        train: trains over a channel.
        channel: the channel to the other parties.

    Returns:
        This party's part of the model, with the time of the run.
    """
    clock.connect()
    part = train(channel)
    clock.disconnect()
    part.path = clock.path()
    return part


def _slows(factor: float | Pauses) -> bool:
    return isinstance(factor, Pauses) or factor > 0


@contextmanager
def pool_for(job: Job, executor: Executor | None, workers: int | None) -> Iterator[tuple[Executor | None, int]]:
    """Yield an executor and the number of calls that it runs concurrently.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        executor: the executor, or None for a pool of one process per core if the job benefits from it.
        workers: number of concurrent calls; the number of cores by default.

    Yields:
        The executor or None, and the number of calls.
    """
    cores = workers or os.cpu_count() or 1
    if executor is not None or not job.protocol.pooled or cores < 2:
        yield executor, cores
        return
    with process_pool(cores) as pool:
        yield pool, cores

"""Alignment of all parties by private set intersection of their ids, in one process: seconds, bytes and memory.

    python benchmarks/psi.py --rows 100000 --parties 2

All parties are threads of this process; on separate machines they work concurrently. `ids/s a core` is the number of
rows of one party divided by the CPU seconds of that party: the CPU time of this process divided by the number of
parties. Memory is the peak of this process with all parties.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from securevfl.organisations.align import align_privately
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.party_threads import run_threads


def side(channel: Channel, *, ids: Iterable[int], names: list[str]) -> tuple[NDArray[np.intp], int, int]:
    """Run one party's side of the alignment; return the positions of its common rows, sent bytes and sent messages."""
    rows = align_privately(channel.me, ids, channel, active=names[0], passives=names[1:], ledger=None)
    return rows, channel.counters.bytes_sent(), channel.counters.messages_sent()


def cpu_seconds() -> float:
    """Return the CPU seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run(rows: int, parties: int) -> None:
    """Run one alignment and print its figures."""
    names = [f"party{k}" for k in range(parties)]
    shift = rows // (2 * parties)  # neighbours share most of their ids; all share at least half
    sets = [range(k * shift, k * shift + rows) for k in range(parties)]
    before, started = cpu_seconds(), time.perf_counter()
    roles = {name: partial(side, ids=ids, names=names) for name, ids in zip(names, sets, strict=True)}
    results = run_threads(roles, WallClock, timeout=3600)
    wall, cpu = time.perf_counter() - started, cpu_seconds() - before
    for (elapsed, sent, messages), name in zip(results.values(), names, strict=True):
        assert len(elapsed) == rows - (parties - 1) * shift
        print(f"{name}: {sent:,} bytes in {messages} messages sent, {sent / rows:.1f} bytes an id")
    print(f"{parties} x {rows:,} ids: wall {wall:.1f} s, {rows / wall:,.0f} ids/s")
    print(f"CPU {cpu:.1f} s, {rows * parties / cpu:,.0f} ids/s a core")
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:,.0f} MiB")


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="ids of each party")
    parser.add_argument("--parties", type=int, default=2)
    options = parser.parse_args()
    run(options.rows, options.parties)


if __name__ == "__main__":
    main()

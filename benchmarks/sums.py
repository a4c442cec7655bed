"""The cost of sums: time by number of parties for each topology (FDSKL 2020, Figure 4 (?)), and CPU time of masks.

A topology states which parties send to which, for example all to one (direct) or along a tree.

    python benchmarks/sums.py --json sums.json --plot docs/figures/sum_time.svg

Rows by `what`:
    topology   virtual seconds of one sum of a 4,096-vector, all parties ready at once, the minimum of several runs
    cpu        CPU milliseconds of one sum over all parties, compared with the direct sum
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import securevfl as vfl
from securevfl.base.roles import Roles
from securevfl.bench.result_file import file_content
from securevfl.protocols.number_spaces import Circle, Reals, Space
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums.base import SumProtocol, SumRole
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.costs import Stage
from securevfl.runtime.meter import Meter
from securevfl.runtime.network import Network
from securevfl.runtime.party_threads import run_threads

VALUES = 4096
PARTY_COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
NETWORK = Network(message_ms=0)  # as in the figure of the paper
TOPOLOGIES = ("tree", "star", "ring")


class RestartedClock(VirtualClock):
    """Restarts at zero, so that all parties begin a sum together."""

    def restart(self) -> None:
        """Restart at zero."""
        local = self._here.branch
        local.path, local.now = np.zeros_like(local.path), 0.0
        self._outgoing, self._incoming = type(self._outgoing)(), type(self._incoming)()


def seat_of(channel: Channel, names: list[str]) -> PartyContext:
    """Return the context of a party in a sum: its channel, and the roles of all parties.

    Args:
        channel: the party's channel to the others.
        names: the names of the parties; the first one collects the sum, and all others contribute to it.
    """
    return PartyContext(channel, Roles.sum(names[0], tuple(names[1:])), Meter(channel.clock, channel.counters))


def exchange(context: PartyContext, role: SumRole, values: np.ndarray, space: Space) -> None:
    """Collect once if this party is the collector, otherwise contribute."""
    if context.me == context.collector:
        role.collect(values.shape, space)
    else:
        role.contribute(values, space)


def topology_rows(parties: Iterable[int], repeats: int) -> list[dict[str, Any]]:
    """Return the rows of all topologies and numbers of parties."""
    sums: list[SumProtocol] = [vfl.DirectSum(), vfl.PairwiseSum()]
    sums += [vfl.TreeSum(topology=topology) for topology in TOPOLOGIES]
    sums += [vfl.CipherSum(topology="tree"), vfl.CipherSum(topology="star")]
    rows = []
    for q in parties:
        for protocol in sums:
            if q < 3 and protocol.hides_parts:
                continue
            for space in (Reals(), Circle()):
                if isinstance(protocol, vfl.CipherSum) and isinstance(space, Circle):
                    continue
                seconds, sent = time_one(protocol, q, repeats, space)
                rows.append(
                    {
                        "what": "topology",
                        "sum": protocol.name,
                        "topology": getattr(protocol, "topology", "star"),
                        "space": "reals" if isinstance(space, Reals) else "circle",
                        "parties": q,
                        "values": VALUES,
                        "virtual_s": round(seconds, 6),
                        "bytes": sent,
                    }
                )
    return rows


def time_one(protocol: SumProtocol, q: int, repeats: int, space: Space) -> tuple[float, int]:
    """Return the smallest virtual seconds of a sum, and its bytes."""
    names = [f"p{k:02}" for k in range(q)]
    ready = threading.Barrier(q)
    values = np.zeros(VALUES, np.float64 if isinstance(space, Reals) else np.uint32)

    def play(channel: Channel) -> tuple[list[float], int]:
        context = seat_of(channel, names)
        role = protocol.role(context)
        channel.clock.stage = Stage.TRAIN
        times = []
        for _ in range(repeats + 1):
            ready.wait()
            assert isinstance(channel.clock, RestartedClock)
            channel.clock.restart()
            ready.wait()
            exchange(context, role, values, space)
            times.append(float(channel.clock.path().sum()))
        return times[1:], channel.counters.bytes_sent(Stage.TRAIN)

    played = run_threads(dict.fromkeys(names, play), lambda: RestartedClock(NETWORK))
    return min(played[names[0]][0]), sum(sent for _, sent in played.values()) // (repeats + 1)


def cpu_rows(repeats: int, parties: int = 3, exchanges: int = 200) -> list[dict[str, Any]]:
    """Return the minimum of several runs, because other work on the machine can only add time."""
    protocols: list[SumProtocol] = [vfl.DirectSum(), vfl.TreeSum(), vfl.PairwiseSum()]
    rows = []
    for space in (Reals(), Circle(), Circle(16)):
        direct = 0.0
        for protocol in protocols:
            spent = min(cpu_of(protocol, parties, exchanges, space) for _ in range(repeats)) / exchanges
            direct = direct or spent
            rows.append(
                {
                    "what": "cpu",
                    "sum": protocol.name,
                    "topology": getattr(protocol, "topology", "star"),
                    "space": str(space),
                    "parties": parties,
                    "values": VALUES,
                    "cpu_ms": round(1e3 * spent, 4),
                    "over_direct": round(spent / direct, 3),
                }
            )
    return rows


def cpu_of(protocol: SumProtocol, parties: int, exchanges: int, space: Space) -> float:
    """Return CPU seconds of the process without setup."""
    names = [f"p{k:02}" for k in range(parties)]
    ready = threading.Barrier(parties)
    values = np.zeros(VALUES, np.float64 if isinstance(space, Reals) else np.uint32)

    def play(channel: Channel) -> tuple[float, float]:
        context = seat_of(channel, names)
        role = protocol.role(context)
        ready.wait()
        started = time.process_time()
        for _ in range(exchanges):
            exchange(context, role, values, space)
        ready.wait()
        return started, time.process_time()

    played = run_threads(dict.fromkeys(names, play), lambda: VirtualClock(NETWORK)).values()
    return max(ended for _, ended in played) - min(started for started, _ in played)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw one panel for each sum: virtual milliseconds by parties, one line for each topology."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "sums"
    from matplotlib import pyplot as plt

    timed = [row for row in rows if row["what"] == "topology" and row["space"] == "reals"]
    kinds = ["tree", "pairwise", "cipher"]
    titles = {"tree": "masked over two trees", "pairwise": "pairwise masks", "cipher": "encrypted (CKKS)"}
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.4), sharey=True, constrained_layout=True)
    styles = {"tree": ("#1b6ca8", "o"), "star": ("#c8553d", "s"), "ring": ("#6a994e", "^")}
    direct = [(row["parties"], 1e3 * row["virtual_s"]) for row in timed if row["sum"] == "direct"]
    for axis, kind in zip(axes, kinds, strict=True):
        axis.plot(*zip(*direct, strict=True), color="0.6", linestyle="--", linewidth=1, label="direct, unmasked")
        for topology, (colour, marker) in styles.items():
            points = [
                (row["parties"], 1e3 * row["virtual_s"])
                for row in timed
                if (row["sum"], row["topology"]) == (kind, topology)
            ]
            if points:
                axis.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=4, label=topology)
        axis.set(title=titles[kind], xlabel="parties", xscale="log", yscale="log")
        axis.set_xticks([2, 4, 8, 16, 32, 64], labels=["2", "4", "8", "16", "32", "64"])
        axis.minorticks_off()
        axis.grid(color="0.9")
    axes[0].set_yticks([10, 20, 50, 100, 200, 500, 1000], labels=["10", "20", "50", "100", "200", "500", "1000"])
    axes[0].set_ylabel(f"virtual ms of one sum of {VALUES:,} values")
    axes[0].legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=130)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the rows go")
    parser.add_argument("--plot", type=Path, help="where the picture goes (.svg or .png)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["topology", "cpu"], help="one kind of row")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.only in (None, "cpu"):
        rows += cpu_rows(options.repeats)
    if options.only in (None, "topology"):
        rows += topology_rows(PARTY_COUNTS, options.repeats)
    for row in rows:
        print(json.dumps(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps(file_content("securevfl.bench.sums/1", rows), indent=1) + "\n")
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()

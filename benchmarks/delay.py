"""Measured time compared with virtual time: two processes over mutual TLS through an artificially slow link.

    python benchmarks/delay.py --mbps 300 --rtt-ms 5 20 50 --repeats 3 --json out/delay.json

A TCP relay between the two processes delays every byte by half the round trip and limits the rate in each direction.
First both measure their link, as `securevfl line` does, then they train. The measured time is the wall-clock time of
the training at the active party, which has the labels. The virtual times are those that `simulate` computes for the
same job: the nominal one with the network of the options, the calibrated one with the measured network. The shortest of
several repeats and the shortest simulation count, because other work on the machine can only add time. The fields of a
row are rtt_ms, residual, rounds, measured_s, nominal_s, nominal_ratio, calibrated_s, calibrated_ratio, and the figures
of the measured network (found_*).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import queue
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import securevfl as vfl
from securevfl.organisations.join import join
from securevfl.organisations.kit import init_certs, write_kit
from securevfl.organisations.line_measurement import measure_lines, slowest
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.runtime.costs import Stage
from securevfl.training.text_table import format_table
from securevfl.transport.peers import Peers

PROCESSES = multiprocessing.get_context("spawn")
_MARKS: list[socket.socket] = []  # Unix sockets whose names mark the ports that this process uses


def free_port() -> int:
    """Return a free port below the range of outgoing connections, so that none of these takes it before it is used.

    The port is marked as used for other processes of this function and of the tests until this process ends.
    """
    while True:
        port, mark = secrets.choice(range(10_000, 32_000)), socket.socket(socket.AF_UNIX)
        with suppress(OSError), socket.socket() as probe:
            mark.bind(f"\0a port of securevfl's tests: {port}")
            _MARKS.append(mark)
            probe.bind(("127.0.0.1", port))
            return port


class Direction:
    """One direction of a link: all connections share its `rate` in bytes a second; `bytes` counts relayed bytes."""

    def __init__(self, rate: float) -> None:
        self.bytes = 0
        self._rate, self._free, self._lock = rate, 0.0, threading.Lock()

    def through(self, size: int) -> float:
        """Send `size` more bytes, and return the time at which the last of them has left the link."""
        with self._lock:
            self.bytes += size
            self._free = max(self._free, time.monotonic()) + size / self._rate
            return self._free


class SlowLine:
    """Relays TCP from `port` to `target`, `delay` seconds late and at most `rate` bytes a second in each direction.

    Several ports may share one link: `to` and `back` are then its two directions, as seen from this port. Threads that
    sleep cause the delay. An event loop would be less exact, because epoll rounds its timers up to whole milliseconds,
    which may be a tenth of the delay.
    """

    def __init__(
        self,
        port: int,
        target: int,
        *,
        delay: float,
        rate: float = 0.0,
        to: Direction | None = None,
        back: Direction | None = None,
    ) -> None:
        self._target, self._delay = target, delay
        self._to, self._back = to or Direction(rate), back or Direction(rate)
        self._server = socket.create_server(("127.0.0.1", port))
        self._start(self._serve)

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        threading.Thread(target=work, args=args, daemon=True).start()

    def close(self) -> None:
        """Accept no further connection."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                self._start(self._connect, near)

    def _connect(self, near: socket.socket) -> None:
        """Connect to the target a round trip after the caller has connected, as TCP does over a distance."""
        time.sleep(2 * self._delay)
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            near.close()
            return
        for one, other, way in ((near, far, self._to), (far, near, self._back)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            due: queue.Queue[tuple[float, bytes]] = queue.Queue()
            self._start(self._take, one, way, due)
            self._start(self._deliver, other, due)

    def _take(self, source: socket.socket, way: Direction, due: queue.Queue[tuple[float, bytes]]) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                due.put((way.through(len(data)) + self._delay, data))
        due.put((0.0, b""))

    def _deliver(self, sink: socket.socket, due: queue.Queue[tuple[float, bytes]]) -> None:
        with suppress(OSError):
            while True:
                at, data = due.get()
                if not data:
                    sink.shutdown(socket.SHUT_RDWR)
                    return
                time.sleep(max(0.0, at - time.monotonic()))
                sink.sendall(data)


def job(residual: str, epochs: int) -> vfl.Job:
    """Return the job of the measurement."""
    return vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.1),
        protocol=vfl.Protocol(residual=residual),
        batch_size=96,
        epochs=epochs,
        accepts=["columns"],
    )


class Told(NamedTuple):
    """The results of a party's run.

    They are the measured network, the seconds of training by kind of work (`Kind`), and the number of rounds.
    """

    network: vfl.Network
    seconds: NDArray[np.float64]
    rounds: int


Tables = Callable[[], Sequence[vfl.Party]]


def play(name: str, kit: Path, work: vfl.Job, tables: Tables, listen: str | None, disclosed: Any) -> None:
    """Run one party in a separate process."""
    network = slowest(measure_lines(name, PeerSettings.of(kit / "peers.toml", listen=listen)))
    party = next(party for party in tables() if party.name == name)
    part = join(work, party, kit / "peers.toml", listen=listen, ledger=kit / "ledger")
    disclosed.put((name, Told(network, part.path[Stage.TRAIN], part.rounds)))


def measured(work: vfl.Job, tables: Tables, mbps: float, rtt_ms: float) -> dict[str, Told]:
    """Return the results of the parties bank (with labels) and shop, each in a separate process."""
    seen, real = free_port(), free_port()
    SlowLine(seen, real, delay=rtt_ms / 2000, rate=mbps * 125_000)
    peers = Peers(active="bank", passives=("shop",), address={"bank": f"127.0.0.1:{seen}"})
    with tempfile.TemporaryDirectory() as folder:
        kits = Path(folder)
        init_certs(kits / "authority", peers)
        disclosed: Any = PROCESSES.Queue()
        started = []
        for name, listen in (("bank", f"127.0.0.1:{real}"), ("shop", None)):
            kit = write_kit(kits / name, name, work, peers, kits / "authority")
            started.append(PROCESSES.Process(target=play, args=(name, kit, work, tables, listen, disclosed)))
            started[-1].start()
        heard = dict(disclosed.get(timeout=300) for _ in started)
        for process in started:
            process.join()
    return heard


def virtual(work: vfl.Job, tables: Tables, network: vfl.Network) -> float:
    """Return the seconds of training that `simulate` reports."""
    return vfl.simulate(work, tables(), network=network).costs.training


def main() -> None:
    """Run the benchmark from the command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mbps", type=float, default=300.0)
    options.add_argument("--rtt-ms", type=float, nargs="+", default=[5.0, 20.0, 50.0])
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--residuals", nargs="*", default=["open", "ckks"])
    options.add_argument("--json", type=Path, default=Path("out/delay.json"))
    arguments = options.parse_args()
    rows: list[dict[str, str | int | float]] = []
    for rtt_ms, residual in product(arguments.rtt_ms, arguments.residuals):
        work = job(residual, arguments.epochs)
        tables = vfl.datasets.breast_cancer
        tries = [measured(work, tables, arguments.mbps, rtt_ms)["bank"] for _ in range(arguments.repeats)]
        result, path, rounds = min(tries, key=lambda item: item.seconds.sum())
        seconds = float(path.sum())
        nominal, calibrated = (
            min(virtual(work, tables, item) for _ in tries) for item in (vfl.Network(arguments.mbps, rtt_ms), result)
        )
        rows.append(
            {
                "rtt_ms": rtt_ms,
                "residual": residual,
                "rounds": rounds,
                "measured_s": seconds,
                "nominal_s": nominal,
                "nominal_ratio": seconds / nominal,
                "calibrated_s": calibrated,
                "calibrated_ratio": seconds / calibrated,
                **{f"found_{name}": figure for name, figure in asdict(result).items()},
            }
        )
    print(format_table(rows))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    machine = {"platform": platform.platform(), "python": platform.python_version()}
    arguments.json.write_text(
        json.dumps({"schema": "securevfl.bench.delay/2", "machine": machine, "rows": rows}, indent=1)
    )


if __name__ == "__main__":
    main()

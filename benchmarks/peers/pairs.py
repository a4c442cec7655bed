"""Two parties as two processes, their costs, and the link between them."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.delay import Direction, SlowLine, free_port
from securevfl.runtime.network import Network

MAX_PAIR_SECONDS = 3600.0  # seconds of a pair
_SAMPLED = 0.1  # seconds between two samples of memory
_TOLD = 300  # characters of an error


class PairFailed(Exception):
    """One of the two processes ended with an error, whose last line is the text, or they took too long."""


@dataclass
class Line:
    """A link between two parties: the ports that each party binds (`bound`) and those that it calls (`other`)."""

    bound: tuple[list[int], list[int]]
    other: tuple[list[int], list[int]]
    ways: tuple[Direction, ...] = ()

    @property
    def bytes(self) -> int | None:
        """The bytes of both directions; None without a relay between the two."""
        return sum(way.bytes for way in self.ways) if self.ways else None


@contextmanager
def between(network: Network | None, ports: int) -> Iterator[Line]:
    """Yield a link with a number of ports for each party: over loopback, or through relays."""
    selected = [free_port() for _ in range(ports)], [free_port() for _ in range(ports)]
    if network is None:
        yield Line(selected, (selected[1], selected[0]))
        return
    ways = Direction(network.mbps * 125_000), Direction(network.mbps * 125_000)  # from the first party, and to it
    seen, relays = ([], []), []
    for rank in (0, 1):
        for real in selected[1 - rank]:
            port = free_port()
            relays.append(SlowLine(port, real, delay=network.rtt_ms / 2000, to=ways[rank], back=ways[1 - rank]))
            seen[rank].append(port)
    try:
        yield Line(selected, seen, ways)
    finally:
        for relay in relays:
            relay.close()


@dataclass
class Taken:
    """The costs of a pair.

    They are processor seconds of both and of their child processes, wall-clock seconds, and the peak memory of each
    with all its processes, in MB.
    """

    cpu_s: float
    seconds: float
    memory_mb: list[int] = field(default_factory=list)


@dataclass
class _Party:
    process: subprocess.Popen[bytes]
    log: Path
    cpu: float = 0.0
    status: int | None = None
    most: dict[str, int] = field(default_factory=dict)  # largest memory by process, in kB


def run_pair(commands: Sequence[Sequence[str]], folder: Path, *, refusing: bool = False) -> Taken:
    """Run both processes in `folder` and wait for both; their output is in party-0.log and party-1.log there.

    PairFailed if one fails (the other is then stopped) or if they take over an hour. With `refusing`, each ends by
    itself with an expected error. Python may write bytecode, so that no run compiles the modules of another.
    """
    where = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.monotonic()
    parties = []
    for k, words in enumerate(commands):
        log = folder / f"party-{k}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(  # noqa: S603
                words, cwd=folder, env=where, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        parties.append(_Party(process, log))
    waiting = [threading.Thread(target=_wait, args=(party,), daemon=True) for party in parties]
    for thread in waiting:
        thread.start()
    try:
        while any(thread.is_alive() for thread in waiting):
            for party in parties:
                _look(party)
            if not refusing and any(party.status for party in parties):
                break
            if time.monotonic() - started > MAX_PAIR_SECONDS:
                raise PairFailed(f"took over {MAX_PAIR_SECONDS:.0f} s")
            time.sleep(_SAMPLED)
    finally:
        seconds = time.monotonic() - started
        for party, thread in zip(parties, waiting, strict=True):
            if thread.is_alive():
                _end(party)
            thread.join()
    for party in sorted(
        parties, key=lambda item: (item.status or 0) < 0
    ):  # the one that failed itself, before the one that was stopped
        if party.status and not refusing:
            raise PairFailed(_last_line(party))
    return Taken(sum(party.cpu for party in parties), seconds, [sum(item.most.values()) // 1024 for item in parties])


def _wait(party: _Party) -> None:
    _, status, usage = os.wait4(party.process.pid, 0)
    party.cpu = usage.ru_utime + usage.ru_stime  # its ended child processes included
    party.status = party.process.returncode = os.waitstatus_to_exitcode(status)


def _end(party: _Party) -> None:
    with suppress(ProcessLookupError):
        os.killpg(party.process.pid, signal.SIGKILL)


def _last_line(party: _Party) -> str:
    lines = [line.strip() for line in party.log.read_text(encoding="utf-8", errors="replace").splitlines()]
    errors = [line for line in lines if "Error" in line or "expected" in line] or [line for line in lines if line]
    return f"exit code {party.status}: {errors[-1][:_TOLD] if errors else 'no word'}"


def _look(party: _Party) -> None:
    known = [str(party.process.pid)]
    for process in known:  # grows with every child process
        status = dict(line.split(":", 1) for line in _text(Path("/proc", process, "status")).splitlines())
        if "VmHWM" in status:
            party.most[process] = max(party.most.get(process, 0), int(status["VmHWM"].split()[0]))
        with suppress(OSError):
            for task in Path("/proc", process, "task").iterdir():
                known += _text(task / "children").split()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""  # the process has ended

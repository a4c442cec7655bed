"""The time of the default job of two organisations over a slow link, measured and as `simulate` computes it.

    python -m benchmarks.default_job --data ../shared/data
    python -m benchmarks.default_job --rows 200000 --columns 30
    python -m benchmarks.default_job --rows 1000
    python -m benchmarks.default_job --rows 1000 --round-trips
    python -m benchmarks.default_job --rows 1000 --on-disk

Each party is a process, and the two use mutual TLS through a relay (benchmarks/delay.py) that delays bytes and limits
their rate; it also delays the opening of a TCP connection. With --data the table is default_credit, with the columns of
both parties; otherwise it is generated. `simulate` runs both parties in one process with a virtual clock, which counts
computing times and the times that messages would take on the link. Columns of the output, with one line for each run:

    seconds     from the call of the party without labels, when the other one listens already, until both have their
                parts of the model; tables are read before that. For the virtual clock, the time of its critical path
    ratio       the measured seconds divided by those of the virtual clock
    *_s         the seconds of each stage. A party counts them from the time at which the parties have agreed on a
                session. `connect_s` contains the time before that, and the time after the last message; the virtual
                clock counts both as setup and evaluation
    cpu_s       processor seconds of all threads of both parties
    waited_s    seconds in which the party's main thread was ready and waited for a core. Other work on the machine
                increases it, and then the measured seconds are too long by at least as much
    peak_mb     the largest resident memory of a party
    auc, lost   the AUC of the held-out rows, with the weights to which both parties' shares add up; and by how much the
                AUC of scikit-learn's logistic regression on the pooled columns is larger

With --on-disk, the parties of the measured runs store precomputed material on disk, as the command `securevfl join`
does. With --round-trips, the command prints the number of sequential round trips of each stage instead: the difference
of two simulated trainings on links with long round trips, divided by the difference of these.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import queue
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

import securevfl as vfl
from benchmarks.delay import SlowLine, free_port
from benchmarks.first_job import pooled_auc
from benchmarks.iteration_bytes import default_credit, generated
from benchmarks.many_rows import trained_weights
from benchmarks.scale import megabytes
from securevfl.errors import DataNotice
from securevfl.families.table_preparation import with_prepared_tables
from securevfl.organisations.join import join
from securevfl.organisations.kit import init_certs, write_kit
from securevfl.runtime import eventlog
from securevfl.runtime.clock import Path as CriticalPath
from securevfl.runtime.costs import Stage
from securevfl.training.model_part import ModelPart
from securevfl.training.text_table import format_table
from securevfl.transport.peers import Peers

PROCESSES = multiprocessing.get_context("spawn")
MAX_WAIT_SECONDS = 900.0  # seconds of a run
MIN_HELD_OUT = 400  # metrics of fewer rows must be accepted


@dataclass(frozen=True)
class Task:
    """A training and its link: the folder of real tables, or the sizes of a generated table.

    Attributes:
        data: the folder of the real tables; None for a generated table.
        rows: number of rows of the generated table.
        columns: number of columns of each party's generated table.
        iterations: number of iterations; None for the default.
        network: bandwidth and round-trip time of the link.
        loopback: whether the parties are connected without a relay.
        on_disk: whether the parties store precomputed material on disk, as the command `securevfl join` does.
    """

    data: Path | None
    rows: int
    columns: int
    iterations: int | None
    network: vfl.Network
    loopback: bool
    on_disk: bool = False

    def tables(self) -> list[vfl.Party]:
        """Return the parties."""
        return generated(self.rows, self.columns) if self.data is None else default_credit(self.data)

    def job(self, rows: int) -> vfl.Job:
        """Return the job of one line. If few rows are held out, the job accepts the leak of such metrics."""
        epochs = {} if self.iterations is None else {"epochs": self.iterations}
        few = vfl.Job(model=vfl.Logistic()).test_fraction * rows < MIN_HELD_OUT
        return vfl.Job(model=vfl.Logistic(), accepts=["small_metrics"] if few else [], **epochs)


@dataclass
class Result:
    """One party's run: its part of the model, seconds by stage, and costs of its process.

    Attributes:
        part: the party's part of the model.
        path: seconds of the critical path by stage and kind of work.
        start: the time at which the party called `join`, by the clock of the machine.
        end: the time at which `join` returned.
        cpu: processor seconds.
        waited: seconds in which the main thread waited for a core.
        peak_mb: largest resident memory in MB.
    """

    part: ModelPart
    path: CriticalPath
    start: float
    end: float
    cpu: float
    waited: float
    peak_mb: float


class _Listening(logging.Handler):
    """Sets an event of processes when the party listens."""

    def __init__(self, event: Any) -> None:
        super().__init__()
        self._event = event

    def emit(self, record: logging.LogRecord) -> None:
        if '"event": "listening"' in record.getMessage():
            self._event.set()


def waited_for_core() -> float:
    """Return the seconds in which this thread was ready to run and waited for a core. Linux only."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def play(name: str, kit: Path, task: Task, listen: str | None, listening: Any, results: Any) -> None:
    """Run one party in a separate process; the one that calls waits until the other one listens."""
    warnings.simplefilter("ignore", DataNotice)
    tables = task.tables()
    party, job = next(party for party in tables if party.name == name), task.job(len(tables[0]))
    eventlog.LOGGER.addHandler(_Listening(listening))
    eventlog.LOGGER.setLevel(logging.INFO)
    if listen is None:
        listening.wait(MAX_WAIT_SECONDS)
    cpu, waited, start = time.process_time(), waited_for_core(), time.monotonic()
    part = join(
        job,
        party,
        kit / "peers.toml",
        listen=listen,
        ledger=kit / "ledger",
        preprocessing=kit / "ahead" if task.on_disk else None,
        timeout=MAX_WAIT_SECONDS,
    )
    end, path = time.monotonic(), part.path
    part.save(kit / "model.json")
    spent = time.process_time() - cpu, waited_for_core() - waited, megabytes()
    results.put((name, Result(ModelPart.load(kit / "model.json"), path, start, end, *spent)))


def measured(task: Task, names: Sequence[str], rows: int) -> dict[str, Result]:
    """Train once with a process for each party, and return the results by party."""
    lead, other = names
    real = free_port()
    seen = real if task.loopback else free_port()
    if not task.loopback:
        SlowLine(seen, real, delay=task.network.rtt_ms / 2000, rate=task.network.mbps * 125_000)
    peers = Peers(active=lead, passives=(other,), address={lead: f"127.0.0.1:{seen}"})
    with tempfile.TemporaryDirectory() as folder:
        kits = Path(folder)
        init_certs(kits / "authority", peers)
        results, listening, processes = PROCESSES.Queue(), PROCESSES.Event(), []
        for name, listen in ((lead, f"127.0.0.1:{real}"), (other, None)):
            kit = write_kit(kits / name, name, task.job(rows), peers, kits / "authority")
            arguments = name, kit, task, listen, listening, results
            processes.append(PROCESSES.Process(target=play, args=arguments))
            processes[-1].start()
        by_party: dict[str, Result] = {}
        try:
            while len(by_party) < len(processes):
                with suppress(queue.Empty):
                    by_party.update([results.get(timeout=1)])
                if any(process.exitcode for process in processes):
                    raise SystemExit("a party's process has failed")
            return by_party
        finally:
            for process in processes:
                process.join(10)
                process.terminate()


def auc_of(job: vfl.Job, tables: Sequence[vfl.Party], parts: Sequence[ModelPart]) -> float:
    """Return the AUC of the held-out rows by the sum of the parties' shares of the weights."""
    _, prepared = with_prepared_tables(job, tables)
    weights = trained_weights(job, {part.name: part for part in parts})
    clip = job.protocol.shares.clip
    total, y = 0.0, prepared[0].y
    for party, part in zip(prepared, parts, strict=True):
        total = total + np.clip(part.scaling(party.X), -clip, clip) @ weights[party.name][: party.X.shape[1], 0]
    held_out = job.schedule(prepared[0].register).test
    return float(roc_auc_score(np.asarray(y)[held_out], np.asarray(total)[held_out]))


def stages(path: CriticalPath) -> dict[str, float]:
    """Return the seconds of each stage of a critical path."""
    return {f"{stage.name.lower()}_s": float(path[stage].sum()) for stage in Stage}


def round_trips(job: vfl.Job, tables: Sequence[vfl.Party], mbps: float) -> dict[str, float]:
    """Return the number of sequential round trips in each stage of a training, and in all of it.

    Round trips are so long that computing times and transfers, which overlap with them, do not change the number.

    Args:
        job: the job.
        tables: the parties.
        mbps: the bandwidth of the link.

    Returns:
        The number of round trips by the name of the stage.
    """
    short, long = 1.0, 5.0  # seconds of a round trip
    paths = [vfl.simulate(job, tables, network=vfl.Network(mbps, 1000 * rtt)).costs.path for rtt in (short, long)]
    trips = (paths[1].sum(axis=1) - paths[0].sum(axis=1)) / (long - short)
    return {stage.name.lower(): float(trips[stage]) for stage in Stage} | {"total": float(trips.sum())}


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of real tables; a generated table without it")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of the generated table")
    parser.add_argument("--columns", type=int, default=12, help="columns of each party's generated table")
    parser.add_argument("--iterations", type=int, help="iterations instead of the default number")
    parser.add_argument("--mbps", type=float, default=300.0)
    parser.add_argument("--rtt-ms", type=float, default=20.0)
    parser.add_argument("--loopback", action="store_true", help="connect the parties without a relay")
    parser.add_argument("--on-disk", action="store_true", help="store precomputed material on disk")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--round-trips", action="store_true", help="count the sequential round trips of each stage")
    options = parser.parse_args()
    warnings.simplefilter("ignore", DataNotice)
    network = vfl.Network(options.mbps, options.rtt_ms)
    task = Task(
        options.data, options.rows, options.columns, options.iterations, network, options.loopback, options.on_disk
    )
    tables = task.tables()
    job, names = task.job(len(tables[0])), [party.name for party in tables]
    train = len(job.schedule(tables[0].register).train)
    columns = " + ".join(str(party.X.shape[1]) for party in tables)
    line = "loopback" if task.loopback else f"{network.mbps:g} Mbit/s and {network.rtt_ms:g} ms"
    print(f"{train:,} training rows x ({columns}), {job.epochs or 'all'} iterations, {line}", flush=True)
    if options.round_trips:
        print(format_table([round_trips(job, tables, network.mbps)]))
        return
    virtual = min(
        (vfl.simulate(job, tables, network=network) for _ in range(options.repeats)), key=lambda run: run.costs.total
    )
    pooled = pooled_auc(tables, job)
    blank = dict.fromkeys(("cpu_s", "waited_s", "peak_mb"))
    auc = auc_of(job, tables, list(virtual.parts.values()))
    clock = virtual.costs.total
    seconds: dict[str, Any] = {"seconds": clock, "ratio": 1.0, "connect_s": None} | stages(virtual.costs.path)
    rows: list[dict[str, Any]] = [{"run": "virtual clock"} | seconds | blank | {"auc": auc, "lost": pooled - auc}]
    for number in range(options.repeats):
        results = measured(task, names, len(tables[0]))
        lead, other = (results[name] for name in names)
        total = max(lead.end, other.end) - other.start
        auc = auc_of(job, tables, [results[name].part for name in names])
        rows.append(
            {
                "run": f"measured {number + 1}",
                "seconds": total,
                "ratio": total / clock,
                "connect_s": total - float(lead.path.sum()),
                **stages(lead.path),
                "cpu_s": lead.cpu + other.cpu,
                "waited_s": lead.waited + other.waited,
                "peak_mb": max(lead.peak_mb, other.peak_mb),
                "auc": auc,
                "lost": pooled - auc,
            }
        )
    print(format_table(rows))


if __name__ == "__main__":
    main()

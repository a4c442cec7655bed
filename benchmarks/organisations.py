"""Three processes on loopback with mutual TLS against three threads of one process, on default_credit.

    python benchmarks/organisations.py --data ../shared/data --repeats 3

Prints the rounds per second of the training (from the end of its first round to the end of its last) and the distance
between the weights of both runs. In one process, the parties share Python's global lock and send messages through
memory. Separate processes have a core each if there are enough, and need time for gRPC, TLS and encoding.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import securevfl as vfl
from benchmarks.tables import default_credit
from securevfl.organisations.join import join
from securevfl.organisations.kit import init_certs, write_kit
from securevfl.training.model_part import ModelPart
from securevfl.transport.peers import Peers

PROCESSES = multiprocessing.get_context("spawn")
BOUND = {"ckks": 1e-3, "open": 0.0, "paillier": 0.0}


def parties(data: Path, rows: int) -> list[vfl.Party]:
    """Return the parties, with the columns of the second one split in two."""
    aligned = vfl.align(default_credit(data))
    bank, shop = (party.take(np.arange(rows)) for party in aligned)
    half = len(shop.columns) // 2
    remaining = [("shop", slice(0, half)), ("telco", slice(half, None))]
    return [
        bank,
        *(vfl.Party(name, shop.X[:, cut], ids=shop.ids, columns=shop.columns[cut]) for name, cut in remaining),
    ]


def job(residual: str, batch: int, epochs: int) -> vfl.Job:
    """Return the job of the measurement."""
    return vfl.Job(
        model=vfl.Logistic(l2=1e-3),
        optimizer=vfl.FedBCD(lr=0.1, local_steps=5),
        protocol=vfl.Protocol(sum="tree", residual=vfl.Paillier(bits=2048) if residual == "paillier" else residual),
        batch_size=batch,
        epochs=epochs,
        test_fraction=0.25,
        accepts=["columns"],
    )


def play(data: Path, rows: int, kit: Path, work: vfl.Job, disclosed: Any) -> None:
    """Run one party in a separate process."""
    party = next(party for party in parties(data, rows) if party.name == kit.name)
    ends: list[float] = []
    cpu = time.process_time()
    join(
        work,
        party,
        kit / "peers.toml",
        save=kit / "part.json",
        ledger=kit / "ledger",
        on_round=lambda *_: ends.append(time.monotonic()),
    )
    disclosed.put((kit.name, ends[-1] - ends[0], len(ends) - 1, time.process_time() - cpu))


def in_processes(data: Path, rows: int, work: vfl.Job) -> tuple[float, float, dict[str, ModelPart]]:
    """Return rounds a second at the active party, processor seconds of all, and the model parts."""
    names = ("bank", "shop", "telco")
    ports = []
    for _ in names:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    address = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
    peers = Peers(active=names[0], passives=names[1:], address=address)
    with tempfile.TemporaryDirectory() as folder:
        kits = Path(folder)
        init_certs(kits / "authority", peers)
        disclosed: Any = PROCESSES.Queue()
        started = []
        for name in names:
            kit = write_kit(kits / name, name, work, peers, kits / "authority")
            started.append(PROCESSES.Process(target=play, args=(data, rows, kit, work, disclosed)))
            started[-1].start()
        heard = [disclosed.get(timeout=600) for _ in names]
        for process in started:
            process.join()
        seconds, rounds = next((seconds, rounds) for name, seconds, rounds, _ in heard if name == "bank")
        parts = {name: ModelPart.load(kits / name / "part.json") for name in names}
    return rounds / seconds, sum(cpu for *_, cpu in heard), parts


def in_one(data: Path, rows: int, work: vfl.Job) -> tuple[float, float, dict[str, ModelPart]]:
    """Return the same for threads of this process."""
    ends: list[float] = []
    table = parties(data, rows)
    cpu = time.process_time()
    run = vfl.simulate(work, table, on_round=lambda *_: ends.append(time.monotonic()))
    return (len(ends) - 1) / (ends[-1] - ends[0]), time.process_time() - cpu, run.parts


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--residuals", nargs="*", default=["ckks", "open"])
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; best of {options.repeats}")
    for residual in options.residuals:
        work = job(residual, options.batch, options.epochs)
        best = {"processes": 0.0, "one": 0.0}
        cpu = {"processes": np.inf, "one": np.inf}
        apart = 0.0
        for _ in range(options.repeats):
            parts = {}
            for way, run in (("one", in_one), ("processes", in_processes)):
                speed, spent, parts[way] = run(options.data, options.rows, work)
                best[way], cpu[way] = max(best[way], speed), min(cpu[way], spent)
            gaps = [np.abs(part.theta - parts["one"][name].theta).max() for name, part in parts["processes"].items()]
            apart = max(apart, *map(float, gaps))
        ratio = best["one"] / best["processes"]
        print(
            f"{residual}: in one process {best['one']:.2f} rounds/s ({cpu['one']:.1f} s of processors), in three "
            f"processes {best['processes']:.2f} ({cpu['processes']:.1f} s), time ratio {ratio:.2f}, "
            f"weights {apart:.1e} apart (bound {BOUND[residual]:g})",
            flush=True,
        )


if __name__ == "__main__":
    main()

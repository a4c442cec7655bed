import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import securevfl as vfl
from securevfl.methods.phases import Phases
from securevfl.methods.state import State
from securevfl.organisations.kit import init_certs, write_kit
from securevfl.training.model_part import ModelPart
from securevfl.transport.peers import Peers

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROCESS = """
import sys, time
from pathlib import Path
import securevfl as vfl
from securevfl.runtime import eventlog
from securevfl.errors import SecureVFLError
from securevfl.training.checkpoint import Checkpoints
from securevfl.job import Job
from securevfl.organisations.join import join

kit, count, timeout, patience, pause, every = Path(sys.argv[1]), *map(float, sys.argv[2:])
eventlog.write_to(kit / "log.jsonl")
party = next(party for party in vfl.datasets.breast_cancer(int(count)) if party.name == kit.name)
try:
    join(
        Job.load(kit / "job.toml"),
        party,
        kit / "peers.toml",
        timeout=timeout,
        patience=patience,
        save=kit / "part.json",
        checkpoints=Checkpoints(kit / "states", kit.name, every=int(every)) if every else None,
        on_round=lambda *_: time.sleep(pause),
    )
except SecureVFLError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def free_port() -> int:
    """A port that is free, below those of outgoing connections: one of these could take it before it is used."""
    while True:
        port = secrets.choice(range(10_000, 32_000))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def a_job(residual: Any = "open", **options: Any) -> vfl.Job:
    return vfl.Job(
        model=vfl.Logistic(l2=1e-3),
        optimizer=vfl.FedBCD(lr=0.3, local_steps=3),
        protocol=vfl.Protocol(residual=residual),
        **{"batch_size": 128, "epochs": 4, "test_fraction": 0.2, "seed": 3, "accepts": ["columns"]} | options,
    )


@dataclass
class Meeting:
    """Kits for the first parties of breast_cancer, on free ports of this machine."""

    folder: Path
    peers: Peers
    job: vfl.Job

    def kit(self, party: str) -> Path:
        return self.folder / party

    def spawn(
        self, party: str, *, timeout: float = 60, patience: float = 10, pause: float = 0, every: int = 0
    ) -> "subprocess.Popen[str]":
        count = len(self.peers.parties)
        options = [str(self.kit(party)), *map(str, (count, timeout, patience, pause, every))]
        return subprocess.Popen([sys.executable, "-c", PROCESS, *options], stderr=subprocess.PIPE, text=True)

    def accepts(self, party: vfl.Party, job: vfl.Job | None = None) -> list[str]:
        """The option by which this party agrees to its sheet."""
        others = {each.name: len(each.columns) for each in vfl.datasets.breast_cancer(len(self.peers.parties))}
        others.pop(party.name)
        return ["--accept", vfl.explain(job or self.job, [party], others=others).digest]

    def log(self, party: str) -> str:
        path = self.kit(party) / "log.jsonl"
        return path.read_text() if path.exists() else ""

    def compare(self, bound: float = 0.0) -> None:
        parts = {name: ModelPart.load(self.kit(name) / "part.json") for name in self.peers.parties}
        run = simulate_with(self.job, vfl.datasets.breast_cancer(len(parts)), parts)
        for name, part in parts.items():
            assert np.abs(part.theta - run.parts[name].theta).max(initial=0.0) <= bound
            if not bound:
                assert part.metrics == run.parts[name].metrics


def simulate_with(job: vfl.Job, parties: list[vfl.Party], parts: Mapping[str, ModelPart]) -> vfl.Run:
    """`simulate` with the keys in these parts, from which a kernel model draws its features."""
    make = Phases.player

    def pinned(self: Phases, job: vfl.Job, seat: Any, columns: int, state: Any) -> Any:
        return make(self, job, seat, columns, State(key=parts[seat.me].state["key"], theta=None))

    with mock.patch.object(Phases, "player", pinned):
        return vfl.simulate(job, parties)


class Meet:
    """Makes meetings below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    job = staticmethod(a_job)
    free_port = staticmethod(free_port)
    simulate_with = staticmethod(simulate_with)

    def __call__(
        self, count: int = 2, hub: str | None = None, job: vfl.Job | None = None, addressed: Sequence[str] = ()
    ) -> Meeting:
        names = [party.name for party in vfl.datasets.breast_cancer(count)]
        own = addressed or ([hub] if hub else names)
        address = {name: f"127.0.0.1:{free_port()}" for name in own}
        peers = Peers(active=names[0], passives=tuple(names[1:]), hub=hub, address=address)
        job = a_job() if job is None else job
        init_certs(self.folder / "authority", peers)
        for name in peers.everyone:
            write_kit(self.folder / name, name, job, peers, self.folder / "authority")
        return Meeting(self.folder, peers, job)


@pytest.fixture
def meet(tmp_path: Path) -> Meet:
    return Meet(tmp_path)


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder benchmarks/ can be imported from."""
    if not BENCHMARKS.is_dir():
        pytest.skip("not beside a checkout")
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def running() -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes put in here do not outlive the test."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()

"""Fixtures of the transport's tests: parties in several processes or threads of this computer."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.families.fdskl.fdskl_family import PhasesFamily
from securevfl.families.state import State
from securevfl.organisations.kit import init_certs, write_kit
from securevfl.training.model_part import ModelPart
from securevfl.transport.peers import Peers
from tests.builders import make_job
from tests.forked import Forked

PROCESS = """
import os, sys, time
from pathlib import Path
import securevfl as vfl
from securevfl.runtime import eventlog
from securevfl.errors import SecureVFLError
from securevfl.training.checkpoint import Checkpoints
from securevfl.job import Job
from securevfl.families.batch_participant import BatchParticipant
from securevfl.organisations.join import join

if "EXACT_OUTPUTS" in os.environ:
    BatchParticipant.sendable_outputs = lambda self, H, *_: H  # as in tests/conftest.py
kit, count, timeout, patience, pause, every = Path(sys.argv[1]), *map(float, sys.argv[2:])
eventlog.write_to(kit / "log.jsonl")


def on_round(*_):
    time.sleep(pause)
    while (kit / "hold").exists():
        if (kit / "log.jsonl").read_text().count('"event": "round"') < int((kit / "hold").read_text()):
            break
        time.sleep(0.02)


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
        on_round=on_round,
    )
except SecureVFLError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


ROUNDS_JOB = {
    "model": vfl.Logistic(l2=1e-3),
    "optimizer": vfl.FedBCD(lr=0.3, local_steps=3),
    "batch_size": 128,
    "epochs": 4,
    "test_fraction": 0.2,
    "seed": 3,
    "accepts": ["columns"],
}


def rounds_job(residual: Any = "open", **options: Any) -> vfl.Job:
    return make_job(ROUNDS_JOB, protocol=vfl.Protocol(residual=residual), **options)


@dataclass
class LocalOrganisations:
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
        return Forked([sys.executable, "-c", PROCESS, *options], stderr=subprocess.PIPE, text=True)

    def accepts(self, party: vfl.Party, job: vfl.Job | None = None, *, again: bool = False) -> list[str]:
        """Return the option that accepts this party's sheet, including the ledger's records if `again`."""
        ledgers = {party.name: DisclosureLedger.open(party.name, None)} if again else None
        others = {party.name: len(party.columns) for party in vfl.datasets.breast_cancer(len(self.peers.parties))}
        others.pop(party.name)
        return ["--accept", vfl.explain(job or self.job, [party], others=others, ledgers=ledgers).digest]

    def hold(self, party: str, done: int) -> None:
        """Pause the party's process after `done` rounds in its log until it is released or started again."""
        (self.kit(party) / "held").write_text(str(done))
        (self.kit(party) / "held").replace(self.kit(party) / "hold")

    def kill(self, process: "subprocess.Popen[str]", party: str, done: int) -> None:
        """Kill a process that `hold` pauses after `rounds` rounds, once it is there."""
        while self.log(party).count('"event": "round"') < done:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.kill()
        process.wait()
        (self.kit(party) / "hold").unlink()

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
    """Call `simulate` with the keys in these parts; a kernel model draws its features from them."""
    make = PhasesFamily.participant

    def pinned(self: PhasesFamily, job: vfl.Job, context: Any, columns: int, state: Any) -> Any:
        return make(self, job, context, columns, State(key=parts[context.me].state["key"], theta=None))

    with mock.patch.object(PhasesFamily, "participant", pinned):
        return vfl.simulate(job, parties)


class Meet:
    """Create kits of parties that meet, below one folder."""

    def __init__(self, folder: Path, free_port: Callable[[], int]) -> None:
        self.folder, self.free_port = folder, free_port

    job = staticmethod(rounds_job)
    simulate_with = staticmethod(simulate_with)

    def __call__(
        self, count: int = 2, hub: str | None = None, job: vfl.Job | None = None, addressed: Sequence[str] = ()
    ) -> LocalOrganisations:
        names = [party.name for party in vfl.datasets.breast_cancer(count)]
        listeners = addressed or ([hub] if hub else names)
        address = {name: f"127.0.0.1:{self.free_port()}" for name in listeners}
        peers = Peers(active=names[0], passives=tuple(names[1:]), hub=hub, address=address)
        job = rounds_job() if job is None else job
        init_certs(self.folder / "authority", peers)
        for name in peers.everyone:
            write_kit(self.folder / name, name, job, peers, self.folder / "authority")
        return LocalOrganisations(self.folder, peers, job)


@pytest.fixture
def meet(tmp_path: Path, free_port: Callable[[], int]) -> Meet:
    return Meet(tmp_path, free_port)


@pytest.fixture
def running() -> Iterator[list["subprocess.Popen[str]"]]:
    """Kill the registered processes at the end of the test."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()

"""Deviating parties in separate processes over mutual TLS: the steps of each attack that one process cannot show.

The attacks on parts of the library, and that they succeed without the check that stops them, are in
`tests/security/test_deviating_*.py`, `test_checked_openings.py` and `tests/disclosure/test_account.py`.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import raises_code

import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger, total_to
from securevfl.errors import TransportError
from securevfl.organisations.align import align_privately
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.scoring import ScoreClient, ScoreRequest, scoring_handshake
from securevfl.protocols.permits import permit_sizes
from tests.builders import used_chunks
from tests.forked import Forked
from tests.transport.conftest import PROCESS
from tests.transport.test_serve import CANCER_PARTIES, limits

pytestmark = pytest.mark.slow

BREAKS_OFF = """
import dataclasses, os, sys
import numpy as np
from pathlib import Path
from securevfl.protocols.residuals.sealed_residual import SealedPassive

honest = SealedPassive.gradient


def gradient(self, *given):
    *rest, batch = given
    X = np.random.default_rng(os.getpid()).normal(size=batch.X.shape)
    found = honest(self, *rest, dataclasses.replace(batch, X=X))
    with (Path(sys.argv[1]) / "read").open("a") as file:
        file.write(f"{found.size}\\n")
    os._exit(3)


SealedPassive.gradient = gradient
"""

ALTERS = """
import numpy as np
from securevfl.crypto.kernel.gradient import KernelGradientHolder
from securevfl.crypto.lattice.lattice_gradient import LatticeHolder
from securevfl.crypto.kernel.row_products import OPENED_HEADER
from securevfl.protocols.residuals.sealed_residual import SealedActive

publish = SealedActive.publish
SealedActive.publish = lambda self, g, **rest: publish(self, 0 * g, **rest)


def moved(honest, levels):
    def opens(*given):
        opened = honest(*given)
        values = np.frombuffer(opened, "<i4", offset=OPENED_HEADER.size).copy()
        values[0] += levels
        return opened[: OPENED_HEADER.size] + values.tobytes()
    return opens


LatticeHolder.open = moved(LatticeHolder.open, 1 << 22)
KernelGradientHolder.open = moved(KernelGradientHolder.open, 1 << 25)
"""

SERVES = """
import sys
from pathlib import Path
import numpy as np
import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.organisations.peer_session import PeerSettings
from securevfl.organisations.serve import Server
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import IndexedRows, rows_of_array

kit = Path(sys.argv[1])
part = ModelPart.load(kit / "part.json")
party = next(each for each in vfl.datasets.breast_cancer(3) if each.name == kit.name)
rows = IndexedRows.of(kit.name, rows_of_array(part, party.X, np.arange(len(party))))
venue = PeerSettings.of(kit / "peers.toml", timeout=60, patience=10)
Server(part, rows, venue, ledger=DisclosureLedger(kit / "ledger", kit.name), max_ids=10).run(lambda: False)
"""

AHEAD = """
import sys
from pathlib import Path
import securevfl as vfl
from securevfl.errors import SecureVFLError
from securevfl.organisations.peer_session import PeerSettings
from securevfl.organisations.join import join
from securevfl.organisations.prepare import prepare

kit = Path(sys.argv[1])
job, own = vfl.Job.load(kit / "job.toml"), {"timeout": 60, "patience": 20}
party = next(each for each in vfl.datasets.breast_cancer(2) if each.name == kit.name)
try:
    if sys.argv[2] == "prepare":
        prepare(job, party, PeerSettings.of(kit / "peers.toml", **own), preprocessing=kit / "ahead")
    else:
        join(job, party, kit / "peers.toml", preprocessing=kit / "ahead", **own)
except SecureVFLError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def begin(running: list[Any], script: str, *words: object) -> "subprocess.Popen[str]":
    process = Forked([sys.executable, "-c", script, *map(str, words)], stderr=subprocess.PIPE, text=True)
    running.append(process)
    return process


def joins(running: list[Any], meeting: Any, name: str, deviation: str = "", every: int = 1) -> "subprocess.Popen[str]":
    """Train as one party, in a process that deviates first: parties, timeout, patience, pause, states kept."""
    return begin(running, deviation + PROCESS, meeting.kit(name), len(meeting.peers.parties), 60, 20, 0, every)


@pytest.mark.parametrize(
    ("accepts", "most"), [(["columns"], 45), (["columns", "fresh_equations"], 105)], ids=["by default", "accepted"]
)
def test_a_peer_returning_with_another_jacobian_is_refused(
    meet: Any, running: list[Any], accepts: list[str], most: int
) -> None:
    """Each attempt gives 15 equations about a batch of 113 residuals; from half of them on,
    the job must accept the leak.
    """
    meeting = meet(2, job=meet.job(vfl.Ckks(), epochs=1, accepts=accepts))
    bank = joins(running, meeting, "bank")
    for _ in range(30):
        joins(running, meeting, "shop", BREAKS_OFF).communicate(timeout=240)
        if bank.poll() is not None:
            break
    assert "LeakageError" in bank.communicate(timeout=240)[1]
    read = sum(map(int, (meeting.kit("shop") / "read").read_text().split()))
    assert 15 <= read <= most
    assert total_to(DisclosureLedger.open("bank", None).read().entries, "labels", "shop").count >= read


def test_a_holder_that_alters_an_opened_value_is_named(meet: Any, running: list[Any]) -> None:
    meeting = meet(2, job=meet.job(vfl.Ckks(), epochs=1))
    bank, shop = joins(running, meeting, "bank", ALTERS), joins(running, meeting, "shop")
    errors = shop.communicate(timeout=240)[1]
    assert "ProtocolError" in errors
    assert "the values that bank decrypted in exchange 0 do not match" in errors
    assert bank.wait(240) != 0
    assert not (meeting.kit("shop") / "part.json").exists()


def test_a_guest_that_claims_one_id_and_asks_all_learns_none(meet: Any, running: list[Any]) -> None:
    job = vfl.Job(
        model=vfl.Logistic(), optimizer=vfl.FedBCD(lr=0.3), protocol=vfl.Protocol(sum="pairwise", residual="open")
    )
    run, meeting = vfl.simulate(job.model_copy(update={"epochs": 1}), CANCER_PARTIES), meet(3)
    for name in meeting.peers.passives:
        run.parts[name].save(meeting.kit(name) / "part.json")
        limits(DisclosureLedger(meeting.kit(name) / "ledger", name), ids=10)
        begin(running, SERVES, meeting.kit(name))
    part, aligned = run.parts["bank"], list[Any]()

    def deviate(channel: Any) -> None:
        ScoreClient(part, channel, DisclosureLedger(meeting.kit("bank") / "ledger", "bank"))
        for name in part.parties[1:]:
            channel.send(name, ScoreRequest(1), permit=permit_sizes(channel, name))
        guesses = list(range(len(CANCER_PARTIES[0])))
        aligned.append(align_privately("bank", guesses, channel, active="bank", passives=part.parties[1:], ledger=None))

    venue = PeerSettings.of(meeting.kit("bank") / "peers.toml", None, None, 120, 20)
    with raises_code(TransportError, "SVFL-PEER-STOPPED", stopped="refused"):
        run_session("bank", venue, scoring_handshake(part), deviate, ledger=None)
    assert not aligned
    for name in meeting.peers.passives:
        entries = DisclosureLedger(meeting.kit(name) / "ledger", name).read().entries
        assert total_to(entries, "ids", "bank").count <= 1
        assert total_to(entries, "scores", "bank").count == 0


def test_work_ahead_that_is_put_back_or_shared_serves_once(meet: Any, running: list[Any], tmp_path: Path) -> None:
    shares = {"optimizer": vfl.FedSGD(lr=0.3), "protocol": vfl.Protocol(shares=vfl.Shares(chunk=2)), "epochs": 4}
    accepts = {"accepts": ("small_metrics", "scores")}
    meeting = meet(2, job=vfl.Job(model=vfl.Logistic(), batch_size=160, test_fraction=0.2, **shares, **accepts))
    names = meeting.peers.parties

    def both(task: str, *others: str) -> dict[str, str]:
        processes = {name: begin(running, AHEAD, meeting.kit(name), task) for name in (*names, *others)}
        return {name: process.communicate(timeout=240)[1] for name, process in processes.items()}

    def spent(name: str) -> list[str]:
        return used_chunks(DisclosureLedger.open(name, None))

    def failed(outputs: dict[str, str]) -> list[str]:
        return [line for line in outputs.values() if "Error" in line]

    assert failed(both("prepare")) == []
    for name in names:
        shutil.copytree(meeting.kit(name) / "ahead", tmp_path / f"{name}.backup")
    for count in (2, 4):
        assert failed(both("train")) == []
        for name in names:
            assert len(set(spent(name))) == len(spent(name)) == count
            shutil.rmtree(meeting.kit(name) / "ahead")
            shutil.copytree(tmp_path / f"{name}.backup", meeting.kit(name) / "ahead")
    assert set(np.unique(spent("bank"))) == set(spent("shop"))

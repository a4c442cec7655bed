"""Runs repeated, killed, copied or restored: trained once, counted each time, and no mask is used twice."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger, total_to
from securevfl.errors import ConfigError
from securevfl.organisations.join import join
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.prepare import prepare
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.shares.disk_store import DiskStore
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.evaluation_records import FINAL_EVALUATION, EvaluationFile
from securevfl.training.model_part import ModelPart
from tests.builders import raises_code, used_chunks
from tests.forked import Forked
from tests.transport.processes import at_each

pytestmark = pytest.mark.long


def told(owner: str, kind: Any, learner: str) -> int:
    """Return the number of disclosures in the owner's ledger."""
    return total_to(DisclosureLedger.open(owner, None).read().entries, kind, learner).count


@pytest.fixture
def run(meet: Any, running: list[Any]) -> Any:
    """Run the command at both parties of a sealed job, each with its options."""
    meeting = meet(2, job=meet.job(vfl.Ckks(), epochs=1, accepts=["columns", "fresh_equations"]))
    for party in vfl.datasets.breast_cancer(2):
        labels = {} if party.y is None else {"y": party.y}
        columns = np.array(party.columns)
        np.savez(meeting.kit(party.name) / "own.npz", X=party.X, ids=party.ids, columns=columns, **labels)

    def both(**options: list[str]) -> dict[str, tuple[int, str, str]]:
        line = [sys.executable, "-m", "securevfl.cli.main", "join", "job.toml", "--data", "own.npz", "--party"]
        processes = {
            name: Forked(
                [*line, name, *arguments],
                cwd=meeting.kit(name),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for name, arguments in options.items()
        }
        running.extend(processes.values())
        outputs = {name: process.communicate(timeout=240) for name, process in processes.items()}
        return {name: (process.returncode, *outputs[name]) for name, process in processes.items()}

    return meeting, both


def test_a_finished_training_starts_again_only_on_request(run: Any) -> None:
    """In real processes: the second run of a sealed job discloses nothing, and the third one adds up."""
    meeting, both = run
    parties = {party.name: party for party in vfl.datasets.breast_cancer(2)}
    first = both(**{name: meeting.accepts(party) for name, party in parties.items()})
    assert {code for code, _, _ in first.values()} == {0}, first
    before = ModelPart.load(meeting.kit("bank") / "bank.model.json").run
    labels, columns = told("bank", "labels", "shop"), told("shop", "columns", "bank")
    assert min(labels, columns) > 0

    second = both(bank=[], shop=["--accept", "0" * 16])
    assert second["bank"][0] == 0
    assert "This model is from an earlier run; all parties have confirmed" in second["bank"][1]
    assert second["shop"][0] == 2
    assert "[SVFL-CONSENT-DIGEST]" in second["shop"][2]
    assert (told("bank", "labels", "shop"), told("shop", "columns", "bank")) == (labels, columns)
    assert ModelPart.load(meeting.kit("bank") / "bank.model.json").run == before

    accepted = {name: ["--retrain", *meeting.accepts(party, again=True)] for name, party in parties.items()}
    third = both(**accepted)
    assert {code for code, _, _ in third.values()} == {0}, third
    assert ModelPart.load(meeting.kit("bank") / "bank.model.json").run != before
    assert (told("bank", "labels", "shop"), told("shop", "columns", "bank")) == (2 * labels, 2 * columns)


@pytest.mark.exact_outputs
def test_a_killed_training_counts_residuals_that_it_reopens(meet: Any, running: list[Any]) -> None:
    """Real processes are killed while a table is in use: both sessions are in the ledger,
    and the weights are as good.
    """
    celu = {"optimizer": vfl.CeluVFL(lr=0.1, R=4, W=3, xi=60), "accepts": ("columns", "rank", "fresh_equations")}
    meeting = meet(2, job=meet.job(vfl.Ckks(), epochs=4).model_copy(update=celu))
    start = {"patience": 20, "pause": 0.1, "every": 2}
    meeting.hold("shop", 5)
    processes = {name: meeting.spawn(name, **start) for name in meeting.peers.parties}
    running += processes.values()
    meeting.kill(processes["shop"], "shop", 5)
    processes["shop"] = meeting.spawn("shop", **start)
    running.append(processes["shop"])
    for name, process in processes.items():
        assert process.wait(240) == 0, (name, process.stderr.read())
    meeting.compare(1e-3)
    entries = DisclosureLedger.open("bank", None).read().entries
    opened = [entry for entry in entries if (entry.disclosure.kind, entry.disclosure.learner) == ("labels", "shop")]
    assert len({entry.run for entry in opened}) == 1
    assert len({entry.session for entry in opened}) == 2
    ledgers = {name: DisclosureLedger(meeting.folder / f"{name}.ledger", name) for name in meeting.peers.parties}
    vfl.simulate(meeting.job, vfl.datasets.breast_cancer(2), ledgers=ledgers)
    undisturbed = total_to(ledgers["bank"].read().entries, "labels", "shop").count
    assert undisturbed <= total_to(opened, "labels", "shop").count


def test_pairs_that_are_opened_again_are_counted_again(meet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the bank stops after it has read the pairs and joins again, pairs are opened again,
    and bits and rows count again.
    """
    keys = {
        "optimizer": vfl.FedSGD(lr=0.3),
        "protocol": "shares",
        "batch_size": "all",
        "epochs": 2,
        "evaluate_every": 1,
    }
    meeting = meet(2, job=vfl.Job(model=vfl.Logistic(), test_fraction=0.3, accepts=("small_metrics", "scores"), **keys))
    settings = {"timeout": 60, "patience": 5}
    store, stops = EvaluationFile.store, [True, True]

    def stop_before_store(self: EvaluationFile, number: int, *results: Any) -> None:
        if number == FINAL_EVALUATION and self._path is not None and "bank" in self._path.parts and stops:
            stops.pop()
            raise KeyboardInterrupt  # as a signal of the operator does
        store(self, number, *results)

    def train(party: vfl.Party, kit: Path) -> Any:
        states = Checkpoints(kit / "states", party.name, every=1)
        return join(meeting.job, party, kit / "peers.toml", checkpoints=states, **settings)

    monkeypatch.setattr(EvaluationFile, "store", stop_before_store)
    shop = vfl.datasets.breast_cancer(2)[1]
    held_out = shop.keys_of(meeting.job.schedule(shop.register).test)
    counts, bits = [], []
    for _ in range(3):
        at_each(meeting, train)
        ledger = DisclosureLedger.open("shop", None)
        entries = [entry.disclosure for entry in ledger.read().entries]
        counts.append(ScoreLedger(ledger.path).evaluation_count(held_out))
        bits.append(sum(item.count for item in entries if item.kind == "columns"))
    assert not stops
    assert counts == [2, 3, 4]
    assert bits[0] < bits[1] < bits[2]


def test_restored_precomputed_material_is_useless(meet: Any, tmp_path: Path) -> None:
    shares = {"optimizer": vfl.FedSGD(lr=0.3), "protocol": vfl.Protocol(shares=vfl.Shares(chunk=2)), "epochs": 4}
    meeting = meet(2, job=vfl.Job(model=vfl.Logistic(), batch_size=160, test_fraction=0.2, **shares))
    settings = {"timeout": 60, "patience": 20}
    accepts = {"accepts": ("small_metrics", "scores")}
    job = meeting.job.model_copy(update=accepts)

    def ahead(party: vfl.Party, kit: Path) -> Any:
        return prepare(job, party, PeerSettings.of(kit / "peers.toml", **settings), preprocessing=kit / "ahead")

    def train(party: vfl.Party, kit: Path) -> Any:
        return join(job, party, kit / "peers.toml", preprocessing=kit / "ahead", **settings)

    assert set(at_each(meeting, ahead).values()) == {None}
    for name in meeting.peers.parties:
        shutil.copytree(meeting.kit(name) / "ahead", tmp_path / f"{name}.backup")
    prepared = {path.read_bytes()[:16].hex() for path in (tmp_path / "bank.backup").glob("*/*.ready")}
    assert len(prepared) == 2

    (folder,) = (meeting.kit("shop") / "ahead").iterdir()
    other = DiskStore(folder)  # as of another process
    with raises_code(ConfigError, "SVFL-FILE-IN-USE"):  # before it connects
        train(vfl.datasets.breast_cancer(2)[1], meeting.kit("shop"))
    other.close()

    def spent(name: str) -> list[str]:
        return used_chunks(DisclosureLedger.open(name, None))

    assert all(isinstance(part, ModelPart) for part in at_each(meeting, train).values())
    assert set(spent("bank")) == set(spent("shop")) == prepared
    for name in meeting.peers.parties:
        shutil.rmtree(meeting.kit(name) / "ahead")
        shutil.copytree(tmp_path / f"{name}.backup", meeting.kit(name) / "ahead")
    assert all(isinstance(part, ModelPart) for part in at_each(meeting, train).values())
    for name in meeting.peers.parties:
        assert len(set(spent(name))) == len(spent(name)) == 4

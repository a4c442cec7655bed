"""A model file is never overwritten, and a service states how many rows it may score."""

import threading
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import securevfl as vfl
from securevfl.base.file_locks import reserved_path
from securevfl.cli.main import app
from securevfl.data.id_keys import id_digest
from securevfl.errors import ConfigError
from securevfl.families.shares.shares_participant import _model_name, _restore_shares, count_trained_rows
from securevfl.families.state import State
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.training.model_part import ModelPart, replaced_files
from securevfl.transport.peers import Peers
from tests.builders import raises_code

JOB = """
model = "logistic"
protocol = "open"
optimizer = { name = "fedsgd", lr = 0.1 }
epochs = 1
accepts = ["columns"]
"""


def a_part(epochs: int) -> ModelPart:
    job = vfl.Job(
        model=vfl.Logistic(), optimizer=vfl.FedSGD(lr=0.1), protocol="open", epochs=epochs, accepts=["columns"]
    )
    return vfl.simulate(job, vfl.datasets.breast_cancer()).parts["shop"]


def test_saving_renames_an_earlier_file(tmp_path: Path) -> None:
    first, second, path = a_part(1), a_part(2), tmp_path / "shop.model.json"
    first.save(path)
    before = path.read_bytes()
    second.save(path)
    (aside,) = replaced_files(path)
    assert aside.read_bytes() == before
    assert ModelPart.load(path).job["epochs"] == 2
    path.write_text("a note of somebody")  # even a file that is no model
    second.save(path)
    assert "a note of somebody" in [other.read_text() for other in replaced_files(path)]


def train(folder: Path, *more: str) -> Result:
    (folder / "job.toml").write_text(JOB)
    rows = "".join(f"{k},{k % 7},{k % 2}\n" for k in range(200))
    (folder / "bank.csv").write_text(f"id,age,y\n{rows}")
    (folder / "shop.csv").write_text(f"id,a,b\n{rows}")
    tables = [f"--data={name}={folder / name}.csv" for name in ("bank", "shop")]
    return CliRunner().invoke(app, ["train", str(folder / "job.toml"), *tables, "--save", str(folder / "m"), *more])


def test_a_second_training_needs_replace_and_is_refused_early(tmp_path: Path) -> None:
    assert train(tmp_path).exit_code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}
    refused = train(tmp_path)
    assert (refused.exit_code, "SVFL-FILE-EXISTS" in refused.output) == (2, True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()} == before
    for replaced in (1, 2):
        assert train(tmp_path, "--replace").exit_code == 0
        assert len(replaced_files(tmp_path / "m" / "bank.json")) == replaced
    assert vfl.Run.load(tmp_path / "m").parts.keys() == {"bank", "shop"}


def test_two_commands_cannot_reserve_one_file(tmp_path: Path) -> None:
    path, entered, leave = tmp_path / "new" / "shop.model.json", threading.Event(), threading.Event()

    def hold() -> None:
        with reserved_path(path):
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(30)
    with raises_code(ConfigError, "SVFL-FILE-IN-USE"), reserved_path(path):
        pytest.fail("two commands have reserved the same file")
    leave.set()
    thread.join()
    with reserved_path(path):
        pass
    assert list(path.parent.iterdir()) == []


def test_a_library_call_refuses_a_file_of_another_training(tmp_path: Path) -> None:
    path = tmp_path / "shop.model.json"
    a_part(1).save(path)
    before = path.read_bytes()
    peers = Peers(active="bank", passives=("shop",), address={"bank": "127.0.0.1:1", "shop": "127.0.0.1:2"})
    job = vfl.Job(model=vfl.Logistic(), optimizer=vfl.FedSGD(lr=0.1), protocol="open", accepts=["columns"])
    shop = vfl.datasets.breast_cancer()[1]
    with raises_code(ConfigError, "SVFL-FILE-EXISTS"):
        vfl.join(job, shop, peers, save=path, ledger=tmp_path / "ledger", certs=tmp_path)
    assert path.read_bytes() == before


def test_rows_of_the_training_are_counted_for_a_service(tmp_path: Path) -> None:
    state = State(run="a", own=np.array([[1, 2]], np.uint64), others={}, visits=40)
    shares = _restore_shares(state)
    assert shares is not None
    scores, ids = ScoreLedger(tmp_path / "scores"), [id_digest("shop", k) for k in range(10)]
    scores.record_model(_model_name(shares, "a"), 40, ids[:7])
    assert count_trained_rows(state, scores, ids) == 7
    assert count_trained_rows(State(run="b", own=state["own"], others={}, visits=40), scores, ids) == 0
    assert count_trained_rows(State(run="a"), scores, ids) == 0

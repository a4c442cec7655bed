"""`securevfl forget` deletes all files that trainings left next to a table, and no record of disclosures."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.account.database import AccountDatabase
from securevfl.base.checked_files import write_checked
from securevfl.base.file_locks import shared_locks
from securevfl.cli.main import app
from securevfl.data.register import Register
from securevfl.data.row_order import write_rows
from securevfl.data.store import table_path
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger, default_ledger
from securevfl.families.score_results import Measurement
from securevfl.families.state import State
from securevfl.organisations import forget
from securevfl.organisations.search_record import SearchRecord
from securevfl.protocols.alignment.journal_folder import FolderJournal
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.shares.disk_store import DiskStore
from securevfl.protocols.shares.spent_chunks import SpentChunks
from securevfl.runtime import eventlog
from securevfl.training.checkpoint import Checkpoint, Checkpoints
from securevfl.training.model_part import replaced_files
from securevfl.training.run_setup import run_key

DEAD_PROCESS = 1 << 23
"""The number of no process."""
KEPT = {".ledger", ".chunks", ".scores", ".lock"}


class Place:
    """Create a folder with the files that a training of shop left next to its table, and its ledger."""

    def __init__(self, folder: Path) -> None:
        bank, shop = vfl.datasets.breast_cancer(2)
        job = vfl.Job(model=vfl.Logistic(), protocol="open", epochs=1, accepts=["columns", "rank"])
        part = vfl.simulate(job, [bank, shop]).parts["shop"]
        self.folder, self.table, self.key = folder, folder / "shop.csv", run_key(job, shop)
        part.data, self.part, self.party = shop.digest.hex(), part, shop
        self.table.write_text("id,a\n")
        part.save(folder / "shop.model.json")
        self.leave(self.key)
        write_rows(self.table, np.arange(5))
        table_path(self.table).write_bytes(b"rows")
        FolderJournal(f"{self.table}.align", AccountDatabase(None)).append("secrets", b"secret")
        self.log = folder / "shop.log"
        handler = eventlog.write_to(self.log)
        eventlog.emit("shop", "finished", {"rounds": 1})
        eventlog.LOGGER.removeHandler(handler)
        self.ledger = DisclosureLedger(default_ledger("shop"), "shop")
        self.ledger.record_answer(part.run, "1", Disclosure("scores", "bank", ("shop",), 3, 0))
        SpentChunks(self.ledger.path).spend(bytes(16))
        ScoreLedger(self.ledger.path)

    def leave(self, key: bytes) -> None:
        """Return the checkpoints and the precomputed material of one training."""
        states = Checkpoints(f"{self.table}.states", "shop")
        states.begin(key, "1")
        states.save(key, Checkpoint(1, "1", [], {}, State()))
        search = Checkpoints(f"{self.table}.search", "shop")
        search.begin(key, "1")
        search.save(key, Checkpoint(1, "1", [], {}, State()))
        search.finish(key, self.part)
        for folder in (states, search):
            folder.evaluations(key).store(1, Measurement({"loss": 0.5}))
        SearchRecord(
            Path(f"{self.table}.search"), self.folder / "home" / "account", self.party, {"key": key.hex()}
        ).begin({"l2 = 1": 3}, {})
        store = DiskStore(Path(f"{self.table}.ahead") / f"shop.{key.hex()[:16]}")
        store.put(0, b"n" * 16, 0, [b"masks"])
        store.close()

    def left(self) -> set[str]:
        return {path.name for path in self.folder.rglob("*") if path.is_file() and "home" not in path.parts}

    def counted(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.ledger.path.parent.rglob("*") if path.is_file()}

    def forget(self, *options: str) -> Any:
        command = ["forget", "--party", "shop", "--data", str(self.table), "--log", str(self.log), *options]
        return CliRunner().invoke(app, command)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Place:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    return Place(tmp_path)


def test_all_that_it_left_is_deleted_and_nothing_that_counts(place: Place) -> None:
    before = place.counted()
    assert {"shop.ledger"} <= before.keys()
    done = place.forget()
    assert done.exit_code == 0, done.output
    assert place.left() == {"shop.csv"}
    assert place.counted() == before
    head, retained = done.output.split("retained:\n")
    assert retained.endswith("not searched: backups, pages and predictions\n")
    for name in ("states", "search", "ahead", "rows.npy", "table", "align", "shop.log", "shop.model.json"):
        assert name in head
    assert "shop.csv: your table" in retained
    assert str(place.ledger.path) in retained
    again = place.forget()
    assert (again.exit_code, again.output) == (0, "deleted: nothing\nretained:\n" + retained)


@pytest.fixture
def killed_at_each_write(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Leave copies of all files that are written as a process leaves them that is killed before it renames them.

    A file is written under a temporary name and then renamed. A process that is killed in between leaves the temporary
    file. This fixture copies every temporary file before its rename, under the name of another process.

    Returns:
        The paths of the copies, which grows as files are written.
    """
    rename, drafts = Path.replace, list[Path]()

    def renaming(draft: Path, path: Path) -> Path:
        left = path.with_name(f".{path.name}.{DEAD_PROCESS}")
        shutil.copy(draft, left)
        drafts.append(left)
        return rename(draft, path)

    monkeypatch.setattr(Path, "replace", renaming)
    return drafts


def test_drafts_of_killed_processes_are_deleted_with_their_files(
    killed_at_each_write: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process is killed at each write of a training; then every command that reads or deletes its files."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    place = Place(tmp_path)
    parts = place.folder / f".{table_path(place.table).name}.k3_x.parts"  # the folder of a table that was being stored
    parts.mkdir()
    (parts / "0").write_bytes(b"rows")
    assert len({path.parent / path.name for path in killed_at_each_write}) >= 6
    states = Checkpoints(f"{place.table}.states", "shop")
    assert states.rounds(place.key) == (1,)
    assert states.run(place.key) == "1"
    counted = place.counted()
    (place.folder / ".shop.model.json.mine").write_text("no draft")
    assert place.forget().exit_code == 0
    assert place.left() == {"shop.csv", ".shop.model.json.mine"}
    assert place.counted() == counted


@pytest.mark.parametrize("options", [(), ("--all",)])
def test_files_of_another_party_in_the_same_folders_stay(options: tuple[str, ...], place: Place) -> None:
    """Each file that bears the party's name has a twin of another party; its replaced model is that of a part."""
    twins = set[str]()
    for path in [*place.folder.rglob("*")]:
        if path.parent.suffix in (".states", ".search", ".ahead") and path.name.startswith("shop."):
            twin = path.with_name(path.name.replace("shop.", "telco.", 1))
            (shutil.copytree if path.is_dir() else shutil.copy)(path, twin)
            twins |= {file.name for file in twin.rglob("*")} if path.is_dir() else {twin.name}
    model = place.folder / "shop.model.json"
    model.unlink()
    place.part.name = "telco"
    place.part.save(model)
    place.part.name = "shop"
    place.part.save(model)
    (aside,) = replaced_files(model)
    assert len(twins) >= 6
    assert place.forget(*options).exit_code == 0
    assert place.left() == {"shop.csv", aside.name, *twins}


def test_replaced_models_are_deleted_with_all(place: Place) -> None:
    model = place.folder / "shop.model.json"
    place.part.metrics = {"auc": 0.5}
    place.part.save(model)
    (place.folder / "shop.model.0123456789abcdef.json").write_text("precious")
    retained = place.forget().output.split("retained:\n")[1]
    assert retained.count("model of another training; --all deletes it") == 2
    assert place.forget("--all").exit_code == 0
    assert place.left() == {"shop.csv", "shop.model.0123456789abcdef.json"}


def test_forget_keeps_the_work_of_another_training_on_the_table(place: Place) -> None:
    place.leave(b"\x01" * 32)
    retained = place.forget().output.split("retained:\n")[1]
    for name in ("states", "search", "ahead", "rows.npy", "table"):
        assert f"shop.csv.{name}: 1 more training has left files for this table; --all deletes them" in retained
    left = {name for name in place.left() if name.endswith(".json")}
    assert {name.split(".")[1] for name in left if "search" not in name} == {"01" * 8}
    assert {"shop.csv.rows.npy", "chunk-0.ready"} <= place.left()
    (place.folder / "shop.csv.ahead" / f"shop.{'01' * 8}" / "note.txt").write_text("mine")
    assert "it contains other files" in place.forget("--all").output
    assert place.left() == {"shop.csv", "note.txt"}


@pytest.mark.parametrize("used", ["shop.csv", "shop.model.json", "preprocessing", "ledger"])
def test_nothing_is_deleted_while_a_run_is_on(place: Place, used: str) -> None:
    before = place.left()
    if used == "ledger":
        sitting, disclosures = ("2", "2"), [Disclosure("scores", "bank", ("shop",), 3, 0)]
        reservation = place.ledger.reserve(
            Register.of_numbers(5), sitting, disclosures, lambda _: None, ahead=disclosures
        )
        done = place.forget()
        reservation.settle(disclosures)
    elif used == "preprocessing":
        store = DiskStore(Path(f"{place.table}.ahead") / f"shop.{place.key.hex()[:16]}")
        done = place.forget()
        store.close()
    else:
        with shared_locks(place.folder / used):
            done = place.forget()
    assert (done.exit_code, place.left()) == (2, before)
    assert "[SVFL-" in done.output
    assert place.forget().exit_code == 0


def test_a_damaged_part_is_deleted_and_what_is_none_is_not(place: Place) -> None:
    model = place.folder / "shop.model.json"
    model.write_bytes(model.read_bytes()[:-40])
    other = place.folder / "precious.json"
    write_checked(other, b"{}")
    for options in (["--model", str(other)], ["--log", str(other)], ["--model", str(place.table)]):
        before = place.left()
        done = place.forget(*options)
        assert (done.exit_code, place.left()) == (2, before), done.output
    place.forget()
    assert not model.exists()


def test_faults_of_forgetting_are_seen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors: deleting files of a running training, and deleting the names of used chunks together with the chunks."""
    with monkeypatch.context() as fault:
        fault.setattr(forget, "exclusive_lock", nullcontext)
        with shared_locks(place.table):
            assert place.forget().exit_code == 0  # and so `test_nothing_is_deleted_while_a_run_is_on` fails
    before, delete = place.counted(), forget._delete

    def greedy(left: Any, key: str, every: bool, ledger: DisclosureLedger) -> Any:
        ledger.path.unlink()
        return delete(left, key, every, ledger)

    monkeypatch.setattr(forget, "_delete", greedy)
    assert place.forget().exit_code == 0
    assert place.counted() != before  # and so `test_all_that_it_left_is_deleted_and_nothing_that_counts` fails


@pytest.mark.parametrize("line", ["[" * 100_000, "[1]", "9" * 10_000, '"\\ud800"'])
def test_a_nested_or_other_line_is_no_log(place: Place, line: str) -> None:
    place.log.write_text(line)
    done = place.forget()
    assert (done.exit_code, "SVFL-FILE-WRONG-KIND" in done.output) == (2, True)


@pytest.mark.parametrize("place_of_line", [0, 1, -1])
def test_a_file_with_one_line_that_is_no_event_is_no_log(place: Place, place_of_line: int) -> None:
    events = place.log.read_text().splitlines() * 3
    events[place_of_line] = '{"note": "keep"}'
    place.log.write_text("\n".join([*events, ""]))
    before = place.left()
    done = place.forget()
    assert done.exit_code == 2, done.output
    assert place.left() == before

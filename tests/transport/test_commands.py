"""Commands in real processes, on Parquet files that count as large: killed and restarted, and on a terminal."""

import contextlib
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

import securevfl as vfl
from securevfl.data.row_order import read_rows, write_rows
from securevfl.data.store import table_path
from securevfl.disclosure.ledger import DisclosureLedger, default_ledger
from securevfl.training.model_part import ModelPart
from tests.forked import Forked, run_forked

LARGE = """
from securevfl.training import new_rows
from securevfl.data import load as tables
from securevfl.cli.main import main
tables.MAX_IN_MEMORY_BYTES, new_rows.BLOCK = 0, 100
main()
"""
BAR_CHARACTER = "━"
ROUND = '"event": "round"'
TERMINAL = {"TERM": "xterm", "COLUMNS": "100"}


@pytest.fixture
def ready(meet: Any) -> Callable[[int], Any]:
    """Write kits of two parties for a number of epochs, a Parquet file for each, and row orders that differ."""

    def make(epochs: int) -> Any:
        meeting = meet(2, job=meet.job(epochs=epochs, batch_size=64))
        bank, shop = vfl.datasets.breast_cancer()
        order = np.random.default_rng(2).permutation(len(shop))
        for party in (bank, shop.take(order)):
            labels = {} if party.y is None else {"y": party.y}
            table = {"id": party.ids, **labels, **dict(zip(party.columns, party.X.T, strict=True))}
            parquet.write_table(pa.table(table), meeting.folder / f"{party.name}.parquet")
        write_rows(meeting.folder / "shop.parquet", np.argsort(order))
        return meeting

    return make


def start(meeting: Any, party: str, verb: str, *options: str, stderr: Any = subprocess.PIPE) -> "subprocess.Popen[str]":
    """Start a command of this party."""
    arguments = {
        "align": ["align", "--party", party],
        "join": [
            "join",
            f"{party}/job.toml",
            "--party",
            party,
            "--checkpoint-every",
            "5",
            "--log",
            f"{party}/log.jsonl",
        ],
        "predict": ["predict", f"{party}.model.json"],
    }[verb]
    if verb == "join":
        (party_here,) = (candidate for candidate in vfl.datasets.breast_cancer() if candidate.name == party)
        arguments += meeting.accepts(party_here)
    return Forked(
        [
            sys.executable,
            "-c",
            LARGE,
            *arguments,
            "--peers",
            f"{party}/peers.toml",
            "--data",
            f"{party}.parquet",
            *options,
        ],
        cwd=meeting.folder,
        env=os.environ | TERMINAL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def through(*processes: Any) -> list[str]:
    """Return each process's stdout and stderr."""
    outputs = []
    for process in processes:
        out, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        outputs.append(out + (errors or ""))
    return outputs


def until_round(meeting: Any, party: str, done: int) -> None:
    deadline = time.monotonic() + 240
    while meeting.log(party).count(ROUND) < done:
        assert time.monotonic() < deadline, meeting.log(party)
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_and_started_again_from_the_same_copy(ready: Any, running: list[Any]) -> None:
    meeting = ready(100)
    copy = table_path(meeting.folder / "shop.parquet")
    bank, shop = start(meeting, "bank", "join"), start(meeting, "shop", "join")
    running += [bank, shop]
    until_round(meeting, "shop", 20)
    shop.kill()
    shop.wait()
    before, done = copy.stat(), meeting.log("shop").count(ROUND)
    shop = start(meeting, "shop", "join")
    running.append(shop)
    until_round(meeting, "shop", done + 1)
    assert (copy.stat().st_ino, copy.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    through(bank, shop)
    left = {path.name for path in meeting.folder.iterdir() if path.is_file()}
    assert left == {"bank.parquet", "shop.parquet", "shop.parquet.rows.npy", "bank.model.json", "shop.model.json"}
    run = vfl.simulate(meeting.job, vfl.datasets.breast_cancer())
    for name, part in run.parts.items():
        np.testing.assert_array_equal(ModelPart.load(meeting.folder / f"{name}.model.json").theta, part.theta)

    outputs = through(start(meeting, "bank", "predict", "--out", "found.csv"), start(meeting, "shop", "predict"))
    assert outputs == [
        "569 of 569 rows are scored; the scores are in found.csv\n",
        "569 rows predicted; only bank receives the scores\n",
    ]
    predicted = csv.read_csv(meeting.folder / "found.csv")
    tables = {party.name: party.X for party in vfl.datasets.breast_cancer()}
    np.testing.assert_allclose(predicted["probability"].to_numpy(), run.predict_proba(tables)[:, 1], atol=1e-12)
    assert predicted["prediction"].to_pylist() == run.predict(tables).tolist()
    assert predicted["id"].to_pylist() == list(range(569))
    outputs = through(start(meeting, "bank", "predict"), start(meeting, "shop", "predict"))
    assert outputs[0] == (meeting.folder / "found.csv").read_text()
    assert {path.name for path in meeting.folder.iterdir() if path.is_file()} == left | {"found.csv"}
    entries = {name: DisclosureLedger.find(default_ledger(name)).read().entries for name in ("bank", "shop")}
    trained = ModelPart.load(meeting.folder / "bank.model.json").run
    assert {entry.run for entry in entries["bank"]} == {trained}  # it was killed, and still counts as one run
    scores = [entry for entry in entries["shop"] if entry.disclosure.kind == "scores" and entry.run != trained]
    assert [entry.disclosure.count for entry in scores] == [569, 569]
    assert len({entry.table for entry in entries["shop"]}) == 1


@pytest.mark.long
def test_predictions_that_break_off_leave_no_file(ready: Any, running: list[Any]) -> None:
    meeting = ready(1)
    for name, part in vfl.simulate(meeting.job, vfl.datasets.breast_cancer()).parts.items():
        part.save(meeting.folder / f"{name}.model.json")
    write_rows(meeting.folder / "shop.parquet", np.arange(569))  # another order than the bank's
    running += [start(meeting, "bank", "predict", "--out", "found.csv"), start(meeting, "shop", "predict")]
    for process in running:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 2
        assert "different order" in errors
    assert not list(meeting.folder.glob("*found.csv*"))


def on_a_terminal(begin: Any) -> str:
    """Return the text that the process of `begin` shows on its stderr, which is a terminal."""
    ours, theirs = pty.openpty()
    process = begin(theirs)
    os.close(theirs)
    screen = b""
    with contextlib.suppress(OSError):  # Linux reports in this way that the other end is closed
        while piece := os.read(ours, 4096):
            screen += piece
    os.close(ours)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, screen.decode()
    assert BAR_CHARACTER not in out
    return screen.decode()


@pytest.mark.long
def test_an_alignment_takes_one_row_of_each_id(ready: Any, running: list[Any]) -> None:
    meeting = ready(1)
    path = meeting.folder / "bank.parquet"
    table = parquet.read_table(path)
    repeated = pa.concat_tables([table.slice(0, 50), table])  # each of the first 50 ids has two rows
    parquet.write_table(repeated, path)
    running += [start(meeting, "bank", "align"), start(meeting, "shop", "align")]
    _, errors = running[0].communicate(timeout=240)
    assert "SVFL-ID-DUPLICATE" in errors
    running[1].kill()
    running += [start(meeting, "bank", "align", "--duplicates", "last"), start(meeting, "shop", "align")]
    through(*running[-2:])
    rows = read_rows(path, of=len(repeated))
    shop_rows = read_rows(meeting.folder / "shop.parquet", of=len(table))
    assert sorted(rows.tolist()) == list(range(50, len(repeated)))
    shop_ids = parquet.read_table(meeting.folder / "shop.parquet")["id"].to_numpy()
    np.testing.assert_array_equal(repeated["id"].to_numpy()[rows], shop_ids[shop_rows])


@pytest.mark.parametrize("verb", ["align", "join"])
@pytest.mark.long
def test_a_bar_on_a_terminal_and_nowhere_else(ready: Any, running: list[Any], verb: str) -> None:
    meeting = ready(3)
    bank = start(meeting, "bank", verb)
    running.append(bank)
    screen = on_a_terminal(lambda terminal: start(meeting, "shop", verb, stderr=terminal))
    assert BAR_CHARACTER in screen
    assert {"align": "aligning", "join": "reading"}[verb] in screen  # the line of a training: tests/cli/test_live.py
    assert ("reading" in screen) == (verb == "join")
    _, errors = bank.communicate(timeout=240)
    assert (bank.returncode, errors) == (0, "")


@pytest.mark.long
def test_training_shows_a_bar_on_a_terminal_and_nowhere_else(ready: Any) -> None:
    meeting = ready(3)
    options = [f"--data={name}={meeting.folder / name}.parquet" for name in ("bank", "shop")]
    line = [sys.executable, "-c", LARGE, "train", str(meeting.kit("bank") / "job.toml"), *options]
    screen = on_a_terminal(
        lambda terminal: Forked(line, env=os.environ | TERMINAL, stdout=subprocess.PIPE, stderr=terminal, text=True)
    )
    assert BAR_CHARACTER in screen
    assert "reading" in screen
    quiet = run_forked(line, env=os.environ | TERMINAL, capture_output=True, check=True, text=True)
    assert quiet.stderr == ""
    assert BAR_CHARACTER not in quiet.stdout
    assert not list(meeting.folder.glob(".*"))

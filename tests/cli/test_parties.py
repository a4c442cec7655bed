"""The commands certs, kit, align, join and predict: the files they write, and one line and exit code 2 on errors."""

import json
import logging
import signal
import socket
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import typer
from pyarrow import csv
from typer.testing import CliRunner, Result

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.cli.party_commands import _helper
from securevfl.cli.signals import exit_on_signal, service_signals
from securevfl.job import Job
from securevfl.organisations.toml_writer import to_toml
from securevfl.transport.peers import Peers


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def fails(*arguments: object) -> str:
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    return done.stderr


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    done = run("kit", tmp_path / "kits", "--party", "bank=localhost:7301", "--party", "shop")
    assert done.exit_code == 0, done.output
    assert "securevfl align --party NAME --data FILE --peers peers.toml" in done.output
    return tmp_path / "kits"


@pytest.fixture
def bank_csv(tmp_path: Path) -> Path:
    party = vfl.datasets.breast_cancer()[0]
    table = {"id": party.ids, "y": party.y, **dict(zip(party.columns, party.X.T, strict=True))}
    csv.write_csv(pa.table(table), tmp_path / "bank.csv")
    return tmp_path / "bank.csv"


def test_certificates(tmp_path: Path) -> None:
    folder = tmp_path / "authority"
    assert run("certs", "init", folder).exit_code == 0
    assert run("certs", "issue", folder, "bank", "--host", "bank.example.org", "--host", "10.0.0.1").exit_code == 0
    printed = run("certs", "show", folder / "bank.pem", folder / "ca.pem").stdout
    assert "name         bank" in printed
    assert "bank.example.org, 10.0.0.1" in printed
    assert (folder / "bank.key").stat().st_mode & 0o777 == 0o600
    assert "bank" in fails("certs", "issue", folder, "bank")
    before = (folder / "bank.pem").read_bytes()
    assert run("certs", "issue", folder, "bank", "--replace").exit_code == 0
    assert (folder / "bank.pem").read_bytes() != before
    assert "nowhere.pem" in fails("certs", "show", tmp_path / "nowhere.pem")


def test_kits(kits: Path) -> None:
    assert {path.name for path in kits.iterdir()} == {"authority", "bank", "shop"}
    peers = Peers.load(kits / "shop" / "peers.toml")
    assert peers.parties == ("bank", "shop")
    assert peers.address == {"bank": "localhost:7301"}
    assert Job.load(kits / "bank" / "job.toml").digest == Job.load(kits / "shop" / "job.toml").digest
    assert "[SVFL-PARTIES-COUNT]" in fails("kit", kits, "--party", "bank=localhost:1")
    assert "neither bank nor shop" in fails("kit", kits, "--party", "bank", "--party", "shop")
    relayed = run("kit", kits, "--party", "bank", "--party", "shop", "--hub", "relay=localhost:7300")
    assert relayed.exit_code == 0
    assert (kits / "relay" / "relay.pem").exists()
    assert Peers.load(kits / "bank" / "peers.toml").hub == "relay"


def test_kits_have_the_given_job_and_what_options_add(tmp_path: Path) -> None:
    job = vfl.Job(
        model=vfl.Poisson(), epochs=7, seed=5, test_fraction=0.3, evaluate_every=2, accepts=("small_metrics", "scores")
    )
    (tmp_path / "job.toml").write_text(to_toml(job.to_dict()))
    names = ("--party", "bank=localhost:7301", "--party", "shop", "--job", tmp_path / "job.toml")
    cases: list[tuple[tuple[str, ...], tuple[str, ...]]] = [((), ()), (("--accept", "rank"), ("rank",))]
    for number, (options, added) in enumerate(cases):
        folder = tmp_path / f"kits{number}"
        assert run("kit", folder, *names, *options).exit_code == 0
        expected = Job.from_dict(job.to_dict() | {"accepts": [*job.accepts, *added]})
        for name in ("bank", "shop"):
            assert Job.load(folder / name / "job.toml") == expected


def test_errors_are_lines(kits: Path, bank_csv: Path, tmp_path: Path) -> None:
    peers = kits / "bank" / "peers.toml"
    printed = fails("align", "--party", "bank", "--data", bank_csv, "--id", "ident", "--peers", peers)
    assert "'ident'" in printed
    assert "[SVFL-PARTIES-NAME]" in fails("align", "--party", "telco", "--data", bank_csv, "--peers", peers)
    printed = fails("join", kits / "bank" / "job.toml", "--party", "shop", "--data", bank_csv)
    assert "shop has labels" in printed
    join = ("join", kits / "bank" / "job.toml", "--party", "bank", "--data", bank_csv, "--timeout", "1", "--listen")
    assert "[SVFL-ADDRESS]" in fails(*join, "here")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    printed = fails(*join, f"127.0.0.1:{port}")
    assert printed.startswith("bank has waited 1 s for shop: no connection to shop: it has not called")
    assert printed.endswith("[SVFL-PEER-AWAY]\n")


def test_a_table_may_be_missing_where_the_job_has_a_server(kits: Path, tmp_path: Path) -> None:
    missing = fails("join", kits / "shop" / "job.toml", "--party", "shop")
    assert "[SVFL-COMMAND-USAGE]" in missing
    fdml = vfl.Job(model=vfl.Logistic(), optimizer=vfl.FDML(lr=0.1), protocol=vfl.Protocol(residual="open"))
    assert _helper(fdml, "hub").role == "server"


@pytest.mark.parametrize("option", ["--id", "--columns", "--duplicates"])
def test_a_name_that_no_party_has_is_refused(option: str, bank_csv: Path, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('model = "logistic"\n')
    tables = ["--data", f"bank={bank_csv}", "--data", f"shop={bank_csv}"]
    message = fails("explain", tmp_path / "job.toml", *tables, option, "Bank=last")
    assert f"{option} Bank=last begins with 'Bank', and the parties of this command are bank, shop" in message
    assert f"{option} bank=last" in message


def test_columns_that_are_missing_are_named(kits: Path, bank_csv: Path, tmp_path: Path) -> None:
    job = vfl.Job(model="logistic", protocol="open", epochs=1)
    parts = vfl.simulate(job, vfl.datasets.breast_cancer()).parts
    parts["bank"].save(tmp_path / "bank.model.json")
    table = csv.read_csv(bank_csv)
    csv.write_csv(table.drop_columns([table.column_names[3]]), tmp_path / "new.csv")
    printed = fails(
        "predict", tmp_path / "bank.model.json", "--data", tmp_path / "new.csv", "--peers", kits / "bank" / "peers.toml"
    )
    assert "[SVFL-TABLE-COLUMNS]" in printed
    assert "[SVFL-" in fails("predict", bank_csv, "--data", bank_csv)


def test_a_row_order_of_another_file_is_refused(kits: Path, bank_csv: Path) -> None:
    np.save(f"{bank_csv}.rows.npy", np.arange(1000))
    printed = fails("join", kits / "bank" / "job.toml", "--party", "bank", "--data", bank_csv)
    assert "align again" in printed


def testevents_for_people(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from securevfl.cli.event_output import events
    from securevfl.runtime import eventlog

    with events(True, tmp_path / "log"):
        eventlog.emit("bank", "round", {"round": 3, "of": 8})
        logs = [handler for handler in eventlog.LOGGER.handlers if isinstance(handler, logging.FileHandler)]
    assert [log.stream for log in logs] == [None]  # it is closed
    eventlog.emit("bank", "later", {})
    printed = capsys.readouterr().err
    assert printed.endswith(" bank: round, round 3, of 8\n")
    with events(False, None):
        eventlog.emit("bank", "round", {"round": 4})
        eventlog.warn("bank", "connection interrupted", {"peer": "shop"})
        eventlog.emit("bank", "key changed", {"peer": "shop"}, logging.ERROR)
    printed = capsys.readouterr().err
    assert printed.endswith(" bank: key changed, peer shop\n")
    assert printed.count("\n") == 1
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert json.loads(line)["event"] == "round"
    assert not [handler for handler in eventlog.LOGGER.handlers if not isinstance(handler, logging.NullHandler)]


@pytest.mark.parametrize("signals", [exit_on_signal, partial(service_signals, lambda: False)])
@pytest.mark.parametrize("error", [None, KeyboardInterrupt, ValueError])
def test_signals_have_their_earlier_handlers_again(signals: Any, error: type[BaseException] | None) -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    with suppress(typer.Exit, KeyboardInterrupt, ValueError), signals():
        assert signal.getsignal(signal.SIGTERM) != before[0]
        if error is not None:
            raise error
    assert [signal.getsignal(number) for number in numbers] == before

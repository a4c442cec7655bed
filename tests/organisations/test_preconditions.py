"""Every command that connects to peers, each with one unmet precondition: nothing is sent and nothing is recorded.

A party that stops after it has disclosed something has to disclose more when it is started again. So a command must
notice an account, a file, a disk, a port or a package that it cannot use before it connects to anybody.
"""

from __future__ import annotations

import gc
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.account import database
from securevfl.cli.main import app
from securevfl.data.load import read_aligned
from securevfl.data.read_options import ReadOptions
from securevfl.data.row_order import write_rows
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.ledger_contents import LedgerContents
from securevfl.disclosure.limits import Limit
from securevfl.organisations.kit import init_certs, write_kit
from securevfl.protocols.shares.disk_store import DiskStore
from securevfl.training.run_setup import run_key
from securevfl.training.session import material_folder
from securevfl.transport import listener as listener_module
from securevfl.transport.peers import Peers
from tests.builders import cancer_parties, write_tables
from tests.forked import Forked

ROWS = 240


@dataclass(frozen=True)
class Command:
    """A command of one party.

    Attributes:
        party: the party; the bank calls the shop.
        words: the command with its options.
        outputs: the options that name a file to write.
        folders: the options that name a folder to write to.
        package: a package that the command needs; empty if it needs no optional package.
        ledger: whether the command opens the party's account.
        locks_material: whether the command uses the folder of precomputed material.
    """

    party: str
    words: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    package: str = ""
    ledger: bool = True
    locks_material: bool = False


TABLE = ("--data", "{party}.csv", "--peers", "{party}/peers.toml")
SHORT = ("--timeout", "1", "--patience", "1")
PEERS = ("--peers", "{party}/peers.toml", *SHORT)
JOIN = ("join", "{party}/job.toml", "--party", "{party}", *TABLE, *SHORT)
COMMANDS = {
    "align": Command("bank", ("align", "--party", "bank", *TABLE, *SHORT), ("--json", "--log")),
    "prepare": Command(
        "bank",
        ("prepare", "bank/job.toml", "--party", "bank", *TABLE, *SHORT),
        ("--log",),
        ("--preprocessing",),
        locks_material=True,
    ),
    "join": Command(
        "bank", JOIN, ("--save", "--html", "--json", "--log"), ("--checkpoints", "--preprocessing"), locks_material=True
    ),
    "join at the called party": Command(
        "shop", JOIN, ("--save", "--html", "--json", "--log"), ("--checkpoints", "--preprocessing")
    ),
    "join with a network": Command("bank", ("join", "bank/neural.toml", *JOIN[2:]), package="torch"),
    "join with noise": Command("bank", ("join", "bank/noise.toml", *JOIN[2:]), package="dp_accounting"),
    "predict": Command("bank", ("predict", "bank.part.json", *TABLE, *SHORT), ("--out", "--unscored", "--log"), ()),
    "predict at the called party": Command("shop", ("predict", "shop.part.json", *TABLE, *SHORT), ("--log",)),
    "serve": Command(
        "shop",
        ("serve", "shop.part.json", *TABLE, "--patience", "1", "--monitor", "127.0.0.1:{free}"),
        ("--log",),
        package="prometheus_client",
    ),
    "score": Command("bank", ("score", "bank.part.json", *TABLE, *SHORT), ("--out", "--unscored", "--log")),
    "gateway": Command(
        "bank",
        ("score", "bank.part.json", *TABLE, *SHORT, "--http", "127.0.0.1:{free}", "--http-token", "token"),
        ("--log",),
        package="starlette",
    ),
    "compare": Command(
        "bank", ("compare", "bank/job.toml", "--party", "bank", *TABLE, *SHORT), ("--html", "--json", "--log")
    ),
    "compare at the called party": Command("shop", ("compare", "shop/job.toml", "--party", "shop", *TABLE, *SHORT)),
    "correlate": Command("bank", ("correlate", "--party", "bank", *TABLE, *SHORT), ("--html", "--json", "--log")),
    "correlate at the called party": Command("shop", ("correlate", "--party", "shop", *TABLE, *SHORT)),
    "fairness": Command(
        "bank", ("fairness", "--party", "bank", *TABLE, *SHORT, "--predictions", "predicted.csv"), ("--json", "--log")
    ),
    "fairness at the called party": Command(
        "shop", ("fairness", "--party", "shop", "--data", "groups.csv", *PEERS, "--group", "group")
    ),
    "line": Command("bank", ("line", "--party", "bank", *PEERS), ("--json", "--log"), ledger=False),
    "line at the called party": Command("shop", ("line", "--party", "shop", *PEERS), ledger=False),
    "relay": Command("hub", ("relay", "--party", "hub", *PEERS), ("--log",), ledger=False),
}

NEURAL = """
batch_size = "all"
epochs = 1
protocol = { residual = "ckks" }
optimizer = { name = "fedbcd", lr = 0.1, local_steps = 1 }

[model]
name = "neural"
loss = "logistic"
modules = { bank = "net.py:network" }
module_weights = { bank = 11 }
"""
NOISE = """
accepts = ["columns"]
batch_size = 32
test_fraction = 0.2
epochs = 1
protocol = { residual = "open" }

[model]
name = "logistic"

[optimizer]
name = "fdml"
lr = 0.1
stored = { name = "masks", noise = { epsilon = 1.0, delta = 1e-5, clip = 2.0 } }
"""
CODES = {
    "account damaged": "SVFL-LEDGER-DAMAGED",
    "account locked": "SVFL-FILE-IN-USE",
    "counter unusable": "SVFL-FILE-UNUSABLE",
    "no space": "SVFL-FILE-NO-SPACE",
    "port taken": "SVFL-ADDRESS",
    "output unwritable": "SVFL-FILE-UNUSABLE",
    "model exists": "SVFL-FILE-EXISTS",
    "material locked": "SVFL-FILE-IN-USE",
    "package missing": "SVFL-EXTRA-MISSING",
}
HOLD_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


def _cells() -> list[tuple[str, str]]:
    """List the commands with the preconditions that each of them has."""
    cells = []
    for name, command in COMMANDS.items():
        account = ("account damaged", "account locked", "counter unusable", "no space") if command.ledger else ()
        more = {
            "port taken": command.party != "bank",
            "output unwritable": bool(command.outputs or command.folders),
            "model exists": "--save" in command.outputs,
            "material locked": command.locks_material,
            "package missing": bool(command.package),
        }
        cells += [(name, broken) for broken in (*account, *(broken for broken, has in more.items() if has))]
    return cells


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> dict[str, Any]:
    """Write kits, tables and model parts of two parties, and a kit of a hub. The bank calls the shop."""
    folder = tmp_path_factory.mktemp("kits")
    parties = cancer_parties(rows=ROWS)
    port, free = free_port(), free_port()
    peers = Peers(active="bank", passives=("shop",), address={"shop": f"127.0.0.1:{port}"})
    job = vfl.Job(model="logistic", epochs=1)
    init_certs(folder / "authority", peers)
    for name in peers.everyone:
        write_kit(folder / name, name, job, peers, folder / "authority")
    hub = Peers(active="bank", passives=("shop",), hub="hub", address={"hub": f"127.0.0.1:{port}"})
    init_certs(folder / "hub authority", hub)
    write_kit(folder / "hub", "hub", job, hub, folder / "hub authority")
    for party, path in zip(parties, write_tables(folder, parties).values(), strict=True):
        write_rows(path, np.arange(ROWS))
        if party.name == "shop":
            lines = path.read_text().splitlines()
            grouped = [f"{line},{('group', 'ab'[number % 2])[number > 0]}" for number, line in enumerate(lines)]
            (folder / "groups.csv").write_text("\n".join(grouped) + "\n")
    for name, part in vfl.simulate(job, parties).parts.items():
        part.save(folder / f"{name}.part.json")
    (folder / "token").write_text("a token of at least sixteen characters")
    rows = "\n".join(f"{row_id},{label}" for row_id, label in zip(parties[0].ids, parties[0].y, strict=True))
    (folder / "predicted.csv").write_text(f"id,prediction\n{rows}\n")
    (folder / "bank" / "neural.toml").write_text(NEURAL)
    (folder / "bank" / "noise.toml").write_text(NOISE)
    (folder / "bank" / "net.py").write_text("raise AssertionError('a network must not be loaded before consent')")
    (folder / "a file").write_text("this is not a folder")
    return {"folder": folder, "port": port, "free": free}


class Neighbour:
    """What the other party sees of a command: connections of the bank, or the open port of a called party."""

    def __init__(self, command: Command, port: int) -> None:
        self.contacts = 0
        self._calls, self._port = command.party == "bank", port
        self._stopped = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", port)) if self._calls else None
        self._thread = threading.Thread(target=self._accept if self._calls else self._probe)

    def _accept(self) -> None:
        assert self._socket is not None
        self._socket.settimeout(0.02)
        while not self._stopped.is_set():
            with suppress(OSError):
                self._socket.accept()[0].close()
                self.contacts += 1

    def _probe(self) -> None:
        while not self._stopped.wait(0.01):
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=0.5):
                self.contacts += 1

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(10)
        if self._socket is not None:
            self._socket.close()


def _words(command: Command, kits: dict[str, Any]) -> list[str]:
    return [word.format(party=command.party, free=kits["free"]) for word in command.words]


def _account(party: str) -> Path:
    """Create a party's account with the limits that a service needs, and close it."""
    ledger = DisclosureLedger.open(party, None)
    for kind in ("scores", "ids"):
        ledger.set_limit(kind, Limit(100_000))
    path = ledger.path
    del ledger
    gc.collect()
    return path


def _entered(party: str) -> tuple[object, ...]:
    """Return all that a party's account counts."""
    contents: LedgerContents = DisclosureLedger.open(party, None).read()
    return contents.entries, contents.tries, contents.reserved


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock an account in another process."""
    words = [sys.executable, "-c", HOLD_LOCK, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        yield
        holder.kill()


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    yield
    path.write_bytes(content)


def _lock_material(folder: Path) -> DiskStore:
    """Use the folder of precomputed material of the bank's job, as another process would."""
    job = vfl.Job.load(folder / "bank" / "job.toml")
    bank = read_aligned("bank", folder / "bank.csv", job, ReadOptions(id_column="id", label_column="y"))
    material = material_folder(Path("bank.csv.ahead"), bank, run_key(job, bank))
    assert material is not None
    return DiskStore(material)


@pytest.mark.slow  # run by itself: after other tests, their garbage can close the stream that pytest captures
@pytest.mark.parametrize(("name", "broken"), _cells())
def test_nothing_is_sent_and_nothing_is_entered(
    name: str, broken: str, kits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, folder = COMMANDS[name], kits["folder"]
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SECUREVFL_ALLOW", "net.py:network")
    monkeypatch.setattr(database, "_LOCK_TIMEOUT", 0.2)
    monkeypatch.setattr(listener_module, "_RELEASE_SECONDS", 0.1)
    account = _account(command.party)
    before = _entered(command.party)
    gc.collect()
    words = [_words(command, kits)]
    with ExitStack() as stack:
        if broken == "account damaged":
            stack.enter_context(_damaged(account))
        elif broken == "account locked":
            stack.enter_context(_locked(account))
        elif broken == "counter unusable":
            state = os.environ["SECUREVFL_STATE"]
            monkeypatch.setenv("SECUREVFL_STATE", str(folder / "a file" / "state"))
            stack.callback(monkeypatch.setenv, "SECUREVFL_STATE", state)
        elif broken == "no space":
            usage = shutil.disk_usage(folder)
            monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
        elif broken == "output unwritable":
            options = (*command.outputs, *command.folders)
            words = [[*words[0], option, str(folder / "a file" / "output")] for option in options]
        elif broken == "model exists":
            (folder / "existing.json").write_text("{}")
            words[0] += ["--save", "existing.json"]
        elif broken == "material locked":
            stack.callback(_lock_material(folder).close)
        elif broken == "package missing":
            monkeypatch.setitem(sys.modules, command.package, None)
        neighbour: Neighbour | None = None
        if broken == "port taken":
            stack.enter_context(socket.create_server(("127.0.0.1", kits["port"])))
        else:
            neighbour = stack.enter_context(Neighbour(command, kits["port"]))
        for line in words:
            done = CliRunner().invoke(app, line)
            assert done.exit_code == 2, (line, done.output)
            assert f"[{CODES[broken]}]" in done.stderr, (line, done.stderr)
            assert "Traceback" not in done.output
        assert neighbour is None or neighbour.contacts == 0
    gc.collect()
    assert _entered(command.party) == before


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_whose_preconditions_hold_makes_contact(
    name: str, kits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this, the test above would also pass for commands that fail for another reason."""
    command = COMMANDS[name]
    if command.package:
        pytest.importorskip(command.package)
    monkeypatch.chdir(kits["folder"])
    monkeypatch.setenv("SECUREVFL_ALLOW", "net.py:network")
    _account(command.party)
    (kits["folder"] / "bank" / "net.py").write_text("from torch import nn\nnetwork = nn.Linear(10, 1)\n")
    words = _words(command, kits)
    with Neighbour(command, kits["port"]) as neighbour:
        if name in ("serve", "gateway"):  # they run until SIGTERM
            service = Forked([sys.executable, "-m", "securevfl.cli.main", *words], stderr=subprocess.PIPE, text=True)
            while not neighbour.contacts and service.poll() is None:
                time.sleep(0.01)
            service.kill()
            printed = service.communicate()[1]
        else:
            printed = CliRunner().invoke(app, words).output
    assert neighbour.contacts > 0, printed


def test_every_command_that_meets_peers_is_in_the_table() -> None:
    """A command that reaches peers has the option --patience."""
    root = typer.main.get_command(app)
    context = click.Context(root)
    commands = {name: root.get_command(context, name) for name in root.list_commands(context)}
    with_peers = {
        name for name, command in commands.items() if any("--patience" in option.opts for option in command.params)
    }
    assert with_peers == {command.words[0] for command in COMMANDS.values()}

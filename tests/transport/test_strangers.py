"""Many connections of strangers at the gateway and at a party's port: clients are served, and a training continues."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.organisations import http_server
from securevfl.organisations.http_api import application
from securevfl.organisations.http_server import HttpAddress
from securevfl.organisations.join import join
from securevfl.training.model_part import ModelPart
from securevfl.transport.acceptor import Acceptor
from securevfl.transport.listener import CONNECTIONS_IN_ALL, FIRST_BYTE_SECONDS
from securevfl.transport.peers import split_address
from securevfl.transport.tls import Credentials
from tests.transport.processes import at_each

TOKEN = "a token of an application"
HEALTH_SECONDS = 1.0
"""Within this time the gateway answers, unless other processes use the machine."""
COUNTS = [
    pytest.param((60, 20, 20), id="100 strangers"),
    pytest.param((1_100, 200, 200), id="1,500 strangers", marks=pytest.mark.slow),
]
"""Silent connections, half-open TLS handshakes and slow requests."""


@contextmanager
def strangers(port: int, counts: tuple[int, int, int], kind: str) -> Iterator[None]:
    """Let strangers connect to a port while the block runs."""
    line = [sys.executable, "-m", "tests.transport.strangers", str(port), *map(str, counts), kind]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield
        assert process.poll() is None, "the strangers have gone"
    finally:
        process.kill()
        process.communicate()


@contextmanager
def party_port(meet: Any) -> Iterator[int]:
    """Open the port in peers.toml, as `join` and `serve` do."""
    meeting = meet(2)
    address = meeting.peers.address["bank"]
    acceptor = Acceptor(Credentials(meeting.kit("bank"), "bank"), ["shop"], address, lambda *_: _no_line(), streams=2)
    try:
        yield split_address("bank", address)[1]
    finally:
        acceptor.stop()


def _no_line() -> Any:
    raise AssertionError("a stranger has reached the party")


@contextmanager
def http_port(meet: Any) -> Iterator[int]:
    """Open a port for HTTP clients, as `score --http` and `serve --monitor` do."""
    meeting, port = meet(2), meet.free_port()
    kit = meeting.kit("bank")
    fake: Any = SimpleNamespace(party="bank", types={}, id_columns=None, connected=True, waiting=0, blocks=0)
    address = HttpAddress(f"127.0.0.1:{port}", TOKEN, kit / "bank.pem", kit / "bank.key")
    server = http_server.HttpServer(application(fake, TOKEN), address.listen)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield port
    finally:
        server.stop()
        thread.join(60)


@pytest.mark.parametrize("open_port", [party_port, http_port])
def test_silent_connections_are_closed_at_every_port(meet: Any, open_port: Any) -> None:
    with open_port(meet) as port:
        silent = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(CONNECTIONS_IN_ALL + 20)]
        deadline = time.monotonic() + 60  # gRPC alone holds a silent connection for 120 s
        for connection in silent:
            with connection:
                connection.settimeout(max(0.1, deadline - time.monotonic()))
                assert connection.recv(1) == b""


@pytest.mark.long
@pytest.mark.parametrize("counts", COUNTS)
def test_the_gateway_answers_without_waiting_for_strangers(meet: Any, counts: tuple[int, int, int]) -> None:
    """On a busy machine one answer may be late, but none of ten waits until a stranger's time limit has passed."""
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    seconds = []
    with http_port(meet) as port, strangers(port, counts, "gateway"):
        for _ in range(10):
            began = time.monotonic()
            assert httpx.get(f"https://127.0.0.1:{port}/health", verify=anyone, timeout=30).status_code == 200
            seconds.append(time.monotonic() - began)
            time.sleep(0.3)
    print(f"{sum(counts):,} strangers at the gateway: /health in {max(seconds):.2f} s at most")
    assert min(seconds) < HEALTH_SECONDS, seconds
    assert max(seconds) < FIRST_BYTE_SECONDS, seconds


@pytest.mark.long
@pytest.mark.parametrize("counts", COUNTS)
def test_a_training_runs_on_and_the_ledger_opens(meet: Any, tmp_path: Path, counts: tuple[int, int, int]) -> None:
    keys: dict[str, Any] = {"optimizer": vfl.FedSGD(lr=0.1), "protocol": "open", "accepts": ["columns", "rank"]}
    job = vfl.Job(model=vfl.Logistic(), epochs=40, batch_size="all", **keys)
    meeting = meet(2, None, job)
    listeners = [name for name in ("bank", "shop") if meeting.peers.listens(name)]
    (listener,) = listeners
    port = split_address(listener, meeting.peers.address[listener])[1]
    begun, attacked = threading.Event(), threading.Event()
    results: dict[str, Any] = {}

    def train(party: vfl.Party, kit: Path) -> Any:
        def on_round(done: int, of: int) -> None:
            if done == 3:
                begun.set()
                attacked.wait(120)
            time.sleep(0.02)

        options: dict[str, Any] = {"timeout": 60, "patience": 20, "ledger": tmp_path / f"{party.name}.ledger"}
        return join(job, party, kit / "peers.toml", on_round=on_round, **options)

    training = threading.Thread(target=lambda: results.update(at_each(meeting, train)), daemon=True)
    training.start()
    assert begun.wait(120)
    with strangers(port, counts, "party"):
        attacked.set()
        began = time.monotonic()
        assert DisclosureLedger(tmp_path / f"{listener}.ledger", listener).pseudonym(b"a row")
        assert DisclosureLedger(tmp_path / "other.ledger", listener).pseudonym(b"a row")
        opened = time.monotonic() - began
        training.join(240)
    assert not training.is_alive()
    assert all(isinstance(part, ModelPart) for part in results.values()), results
    expected = vfl.simulate(job, vfl.datasets.breast_cancer())
    for name, part in results.items():
        assert (part.theta == expected.parts[name].theta).all()
    print(f"{sum(counts):,} strangers at a party's port: its training ended, and two ledgers opened in {opened:.2f} s")

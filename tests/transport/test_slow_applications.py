"""Clients without a token at the gateway's port: requests that never end, and silent connections."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from securevfl.errors import ConfigError
from securevfl.organisations import http_server
from securevfl.organisations.http_api import application
from securevfl.organisations.http_framing import refuse_ambiguous_framing
from securevfl.organisations.http_server import HttpAddress
from tests.builders import raises_code

TOKEN = "a token of an application"
HEAD = b"POST /v1/scores HTTP/1.1\r\nHost: bank\r\nContent-Length: 400\r\n"
SAYS = {
    "nothing": b"",
    "half of a head": HEAD,
    "a head and half of a body": HEAD + b"Authorization: Bearer a token of an application\r\n\r\n{",
    "a body that was refused": HEAD + b"\r\n{",
    "another head after an answer": b"GET /health HTTP/1.1\r\nHost: bank\r\n\r\n" + HEAD,
}


@pytest.fixture
def port(free_port: Any) -> Any:
    """Return the port of a gateway that closes requests after one second and accepts eight connections."""
    number = free_port()
    fake: Any = SimpleNamespace(party="bank", types={}, id_columns=None, connected=True, waiting=0, blocks=0)
    server = http_server.HttpServer(
        application(fake, TOKEN),
        HttpAddress(f"127.0.0.1:{number}", TOKEN).listen,
        max_connections=8,
        request_seconds=1.0,
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield number
    server.stop()
    thread.join()


def until_closed(connection: socket.socket, *, drips: bytes) -> float:
    """Return how long the gateway keeps a connection open that sends a byte now and then."""
    began = time.monotonic()
    connection.settimeout(0.1)
    while time.monotonic() - began < 20:
        try:
            if drips:
                connection.send(drips)
            if not connection.recv(4096):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - began


@pytest.mark.parametrize("says", SAYS)
def test_a_request_that_never_ends_is_hung_up_on(says: str, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.send(SAYS[says])
        assert until_closed(connection, drips=b"a" if says != "nothing" else b"") < 15


def test_many_that_say_nothing_shut_nobody_out(port: int) -> None:
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
    for connection in idle:
        connection.send(HEAD)
    try:
        deadline = time.monotonic() + 15
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        for connection in idle:
            connection.close()


FRAMING_HEADERS = (b"content-length", b"Content-Length", b"transfer-encoding")
AMBIGUOUS = {
    "length beside chunked": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    "chunked beside length": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    "two lengths": b"Content-Length: 4\r\nContent-Length: 40\r\n",
    "two encodings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "another encoding": b"Transfer-Encoding: gzip, chunked\r\n",
    "other capitals": b"content-LENGTH: 4\r\ntransfer-ENCODING: chunked\r\n",
}


@pytest.mark.parametrize("framing", AMBIGUOUS)
@pytest.mark.parametrize("path", [b"/v1/scores", b"/health", b"/none"])
def test_a_request_with_two_ends_gets_exactly_one_refusal(framing: str, path: bytes, port: int) -> None:
    hidden = b"GET /openapi.json HTTP/1.1\r\nHost: bank\r\n\r\n"
    head = b"POST " + path + b" HTTP/1.1\r\nHost: bank\r\n" + AMBIGUOUS[framing] + b"\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(head + b"0\r\n\r\n" + hidden)
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
    assert answer.count(b"HTTP/1.1 ") == 1, answer
    assert answer.split()[1] in (b"400", b"501"), answer
    assert b"openapi" not in answer


@pytest.mark.parametrize("headers", [*product(FRAMING_HEADERS, repeat=2), *product(FRAMING_HEADERS, repeat=3)])
def test_the_check_of_framing_counts_every_header(headers: tuple[bytes, ...]) -> None:
    """The server itself refuses or merges some of these requests before the check sees them."""
    sent, passed_on = list[dict[str, Any]](), []

    async def application(*_: object) -> None:
        passed_on.append(headers)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    checked = refuse_ambiguous_framing(application)
    for repeats in (headers[:1], headers):
        scope = {"type": "http", "headers": [(b"host", b"bank"), *((name, b"4") for name in repeats)]}
        asyncio.run(checked(scope, None, send))
    assert len(passed_on) == 1
    assert [message.get("status") for message in sent] == [400, None]
    assert (b"connection", b"close") in sent[0]["headers"]


@pytest.mark.parametrize("option", ["--http", "--monitor"])
@pytest.mark.parametrize(("certificate", "key"), [("bank.pem", None), (None, "bank.key")])
def test_a_certificate_and_its_key_come_together(option: str, certificate: str | None, key: str | None) -> None:
    paths = [None if name is None else Path(name) for name in (certificate, key)]
    with raises_code(ConfigError, "SVFL-TLS-CERTIFICATE"):
        http_server.ListenAddress(option, "127.0.0.1:5999", *paths)


LONG_PATH = """
import socket, sys
from securevfl.errors import ConfigError
from securevfl.organisations.http_server import HttpServer, ListenAddress
try:
    HttpServer(None, ListenAddress("--http", f"127.0.0.1:{sys.argv[1]}"))
except ConfigError as error:
    print(error.code, error)
with socket.socket() as again:
    again.bind(("127.0.0.1", int(sys.argv[1])))
"""


def test_a_long_path_of_temporary_files_is_named(free_port: Any, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    command = [sys.executable, "-c", LONG_PATH, str(free_port())]
    done = subprocess.run(command, env=os.environ | {"TMPDIR": str(folder)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("SVFL-ADDRESS")
    assert "TMPDIR" in done.stdout
    assert not any(folder.iterdir())

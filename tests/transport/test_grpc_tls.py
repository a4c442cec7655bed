"""Which peers are accepted, and the errors that the others receive."""

import contextlib
import logging
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import securevfl as vfl
from securevfl.errors import ConfigError, TransportError
from securevfl.organisations.join import join
from securevfl.transport import certs
from securevfl.transport.acceptor import STREAM_METHOD
from securevfl.transport.endpoint import Endpoint
from securevfl.transport.grpc_tls13 import UNUSABLE_TLS12_SUITE, grpc
from securevfl.transport.tls import Credentials
from tests.builders import raises_code

LONG_AGO = datetime.now(UTC) - timedelta(days=400)


def bad_certificate(folder: Path, authority: Path, kind: str, party: str) -> Path:
    """A folder with a pair for `party` that its peers must refuse."""
    shutil.copytree(authority, folder)
    if kind == "unknown authority":
        certs.init(folder, replace=True)
    if kind == "wrong name":
        certs.issue(folder, "stranger", ["localhost"])
        for suffix in (".pem", ".key"):
            shutil.copyfile(folder / f"stranger{suffix}", folder / f"{party}{suffix}")
    elif kind == "self-signed":
        certs.init(folder, name=party, replace=True)
        for suffix in (".pem", ".key"):
            shutil.copyfile(folder / f"ca{suffix}", folder / f"{party}{suffix}")
    else:
        now = LONG_AGO if kind == "expired" else None
        if now is not None:
            certs.init(folder, replace=True, days=4000, now=now)
            shutil.copyfile(folder / "ca.pem", authority / "ca.pem")  # the authority that the peers also trust
        certs.issue(folder, party, ["localhost"], replace=True, days=300, now=now)
    return folder


@contextlib.contextmanager
def tls_server(port: int, folder: Path, party: str, highest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> Iterator[None]:
    """Run a TLS server that presents this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{party}.pem", folder / f"{party}.key")
    context.maximum_version = highest
    context.set_alpn_protocols(["h2"])
    listener = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), context.wrap_socket(line, server_side=True) as tls:
                tls.recv(1)

    threading.Thread(target=serve, daemon=True).start()
    yield
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@contextlib.contextmanager
def plain_server(port: int, greeting: bytes) -> Iterator[None]:
    """Answer every caller in another protocol, at once or after its first bytes."""
    listener = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = listener.accept()
                with contextlib.suppress(OSError), line:
                    line.sendall(greeting or (line.recv(1) and b"HTTP/1.1 400 Bad Request\r\n\r\n"))
                    line.shutdown(socket.SHUT_WR)
                    while line.recv(4096):
                        pass

    threading.Thread(target=serve, daemon=True).start()
    yield
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


CAUSES = {
    "unknown authority": "signed by an unknown authority",
    "expired": "expired on",
    "wrong name": "belongs to stranger, not to bank",
    "self-signed": "is self-signed",
}


@pytest.mark.parametrize("kind", CAUSES)
def test_a_caller_refuses_a_server_and_says_why(meet: Any, tmp_path: Path, kind: str) -> None:
    meeting = meet(2, addressed=["bank"])
    bad = bad_certificate(tmp_path / "bad", tmp_path / "authority", kind, "bank")
    if kind == "expired":
        shutil.copyfile(bad / "ca.pem", meeting.kit("shop") / "ca.pem")
        certs.issue(bad, "shop", replace=True)
        for suffix in (".pem", ".key"):
            shutil.copyfile(bad / f"shop{suffix}", meeting.kit("shop") / f"shop{suffix}")
    shop = vfl.datasets.breast_cancer(2)[1]
    with (
        tls_server(int(meeting.peers.address["bank"].split(":")[1]), bad, "bank"),
        pytest.raises(TransportError, match=rf"shop refused bank at 127.0.0.1:\d+: .*{CAUSES[kind]}"),
    ):
        join(meeting.job, shop, meeting.kit("shop") / "peers.toml", timeout=20)


def test_a_caller_refuses_tls_1_2(meet: Any) -> None:
    meeting = meet(2, addressed=["bank"])
    shop = vfl.datasets.breast_cancer(2)[1]
    port = int(meeting.peers.address["bank"].split(":")[1])
    with (
        tls_server(port, meeting.kit("bank"), "bank", ssl.TLSVersion.TLSv1_2),
        raises_code(TransportError, "SVFL-TLS-VERSION", peer="bank"),
    ):
        join(meeting.job, shop, meeting.kit("shop") / "peers.toml", timeout=20)


@pytest.fixture
def bank(meet: Any) -> Iterator[Any]:
    """Return a live endpoint and the messages that were delivered to it."""
    meeting = meet(2, addressed=["bank"])
    meeting.delivered = []
    endpoint = Endpoint(
        Credentials(meeting.kit("bank"), "bank"),
        meeting.peers,
        lambda _, packet: meeting.delivered.append(packet),
        lambda _, error: meeting.delivered.append(error),
    )
    meeting.line = endpoint.lines["shop"]
    meeting.port = int(meeting.peers.address["bank"].split(":")[1])
    endpoint.start()
    yield meeting
    endpoint.close(0)


def dial(port: int, folder: Path | None, party: str) -> None:
    """Perform a handshake with the bank's port and read one byte. Raise the error that occurs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if folder is not None:
        context.load_cert_chain(folder / f"{party}.pem", folder / f"{party}.key")
    with socket.create_connection(("127.0.0.1", port), 5) as line, context.wrap_socket(line) as tls:
        assert tls.recv(1)


@pytest.mark.parametrize("kind", ["unknown authority", "expired", "self-signed", "none"])
def test_a_server_refuses_a_caller(bank: Any, tmp_path: Path, kind: str) -> None:
    dial(bank.port, bank.kit("shop"), "shop")
    folder = None
    if kind == "expired":
        certs.issue(tmp_path / "authority", "shop", replace=True, days=300, now=LONG_AGO)
        folder = tmp_path / "authority"
    elif kind != "none":
        folder = bad_certificate(tmp_path / "bad", tmp_path / "authority", kind, "shop")
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        dial(bank.port, folder, "shop")
    assert bank.delivered == []


def test_a_caller_learns_that_its_certificate_was_refused(bank: Any, tmp_path: Path) -> None:
    bad = bad_certificate(tmp_path / "bad", tmp_path / "authority", "unknown authority", "shop")
    both = (bad / "ca.pem").read_bytes() + (tmp_path / "authority" / "ca.pem").read_bytes()
    (bad / "ca.pem").write_bytes(both)
    shop = vfl.datasets.breast_cancer(2)[1]
    with raises_code(TransportError, "SVFL-PEER-REFUSED", peer="bank"):
        join(bank.job, shop, bank.peers, certs=bad, timeout=20)


def test_both_ends_of_a_failed_handshake_learn_the_reason(
    bank: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = bad_certificate(tmp_path / "bad", tmp_path / "authority", "unknown authority", "shop")
    dial(bank.port, bank.kit("shop"), "shop")
    assert "handshakes have failed" not in bank.line.cause
    shop = vfl.datasets.breast_cancer(2)[1]
    with raises_code(TransportError, "SVFL-TLS-CERTIFICATE", peer="bank"):
        join(bank.job, shop, bank.peers, certs=bad, timeout=20)
    deadline = time.monotonic() + 240
    while "handshakes have failed" not in bank.line.cause and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "one side refused the other's certificate, and the output at shop states the reason" in bank.line.cause
    (failure,) = [record for record in caplog.records if "handshakes fail" in record.getMessage()]
    assert failure.levelno == logging.ERROR  # is printed even without --verbose
    assert bank.delivered == []


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-x\r\n"])
def test_who_calls_another_program_is_told_at_once(meet: Any, greeting: bytes) -> None:
    meeting = meet(2, addressed=["bank"])
    shop = vfl.datasets.breast_cancer(2)[1]
    with (
        plain_server(int(meeting.peers.address["bank"].split(":")[1]), greeting),
        raises_code(TransportError, "SVFL-ADDRESS", peer="bank"),
    ):
        join(meeting.job, shop, meeting.kit("shop") / "peers.toml", timeout=20)


def test_a_party_of_another_job_is_told_so(bank: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certs.issue(tmp_path / "authority", "telco")
    peers = bank.peers.model_copy(update={"passives": ("telco",)})
    shop = vfl.datasets.breast_cancer(2)[1]
    telco = vfl.Party("telco", shop.X, aligned=True)
    refusal = "bank refused the connection of telco: securevfl://party/telco is not a party of this run"
    with pytest.raises(TransportError, match=refusal):
        join(bank.job, telco, peers, certs=tmp_path / "authority", timeout=20)
    assert "is not a party of this run" in caplog.text


def test_plaintext_and_tls_1_2_are_refused(bank: Any) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{bank.port}") as channel, pytest.raises(grpc.RpcError):
        list(channel.stream_stream(STREAM_METHOD)(iter([b"x"]), timeout=5))
    context = Credentials(bank.kit("shop"), "shop").context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", bank.port), 5) as line,
        pytest.raises((ssl.SSLError, ConnectionError)),
        context.wrap_socket(line),
    ):
        pass


def test_credentials_of_another_party_are_not_taken(meet: Any, tmp_path: Path) -> None:
    meeting = meet(2)
    for suffix in (".pem", ".key"):
        shutil.copyfile(meeting.kit("bank") / f"bank{suffix}", meeting.kit("shop") / f"shop{suffix}")
    with raises_code(ConfigError, "SVFL-TLS-CERTIFICATE", party="shop"):
        Credentials(meeting.kit("shop"), "shop")


ALONE = """
import os
import sys
from pathlib import Path
{first}
before = dict(os.environ)
from securevfl.transport.tls import Credentials
Credentials(Path(sys.argv[1]), "shop")
assert dict(os.environ) == before, "children would inherit it"
"""


@pytest.mark.parametrize(
    ("first", "environment", "says"),
    [
        ("", {}, ""),
        ("", {"GRPC_SSL_CIPHER_SUITES": "ECDHE-ECDSA-AES256-GCM-SHA384", "GRPC_VERBOSITY": "NONE"}, ""),
        ("import grpc", {"GRPC_SSL_CIPHER_SUITES": UNUSABLE_TLS12_SUITE}, ""),
        ("import grpc", {}, "Import securevfl.transport.grpc_tls13 before grpc"),
        # gRPC has read the environment before it is changed
        (
            f"import grpc; os.environ['GRPC_SSL_CIPHER_SUITES'] = '{UNUSABLE_TLS12_SUITE}'",
            {},
            "Import securevfl.transport.grpc_tls13 before grpc",
        ),
    ],
)
def test_grpc_is_told_when_it_is_imported_and_nobody_else_is(
    meet: Any, first: str, environment: dict[str, str], says: str
) -> None:
    command = [sys.executable, "-c", ALONE.format(first=first), str(meet(2).kit("shop"))]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert (done.returncode == 0) == (not says), done.stderr
    assert says in done.stderr

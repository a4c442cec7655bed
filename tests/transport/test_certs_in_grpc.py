"""Certificates in real connections: which parties accept which, and with which version of TLS."""

import socket
import ssl
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import pytest

from securevfl.errors import TransportError
from securevfl.transport.certificate_checks import check_peer
from securevfl.transport.certificate_names import server_name
from securevfl.transport.certs import init, issue
from securevfl.transport.grpc_tls13 import grpc
from securevfl.transport.identity import Identity
from tests.transport.test_certs import identity


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    init(tmp_path / "certs")
    issue(tmp_path / "certs", "bank", ["localhost", "127.0.0.1"])
    issue(tmp_path / "certs", "shop")
    return tmp_path / "certs"


class WhoAreYou(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Checks that a client is `expected` and answers with its verdict."""

    def __init__(self, ca: bytes, expected: str) -> None:
        self.ca, self.expected = ca, expected

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(self.answer)

    def answer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            check_peer(context.auth_context()["x509_pem_cert"][0], self.ca, self.expected)
        except TransportError as error:
            return str(error).encode()
        return b"welcome"


@contextmanager
def serving(folder: Path, party: str = "bank", client: str = "shop") -> Iterator[int]:
    credentials = identity(folder, party)
    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[WhoAreYou(credentials.ca, client)])
    port = server.add_secure_port("127.0.0.1:0", credentials.server_credentials())
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def ask(credentials: Identity, port: int, options: list[tuple[str, str]]) -> bytes:
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials.channel_credentials(), options) as channel:
        return bytes(channel.unary_unary("/who/are_you")(b"", timeout=5))


def override(party: str) -> list[tuple[str, str]]:
    return [("grpc.ssl_target_name_override", server_name(party))]


def test_grpc_accepts_both_ends(folder: Path) -> None:
    with serving(folder) as port:
        assert ask(identity(folder, "shop"), port, override("bank")) == b"welcome"
        assert ask(identity(folder, "shop"), port, []) == b"welcome"


def test_grpc_after_rotation(folder: Path) -> None:
    before = identity(folder, "shop")
    issue(folder, "shop", replace=True)
    with serving(folder) as port:
        assert ask(identity(folder, "shop"), port, override("bank")) == b"welcome"
        assert ask(before, port, override("bank")) == b"welcome"


def test_the_server_sees_which_party_calls(folder: Path) -> None:
    issue(folder, "clinic")
    with serving(folder) as port:
        assert b"belongs to clinic, not to shop" in ask(identity(folder, "clinic"), port, override("bank"))


def test_the_client_insists_on_the_party(folder: Path) -> None:
    with serving(folder, party="shop", client="bank") as port, pytest.raises(grpc.RpcError) as caught:
        ask(identity(folder, "bank"), port, override("clinic"))
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_grpc_refuses_other_authorities(folder: Path, tmp_path: Path) -> None:
    init(tmp_path / "other")
    issue(tmp_path / "other", "shop")
    stranger = identity(tmp_path / "other", "shop")
    with serving(folder) as port, pytest.raises(grpc.RpcError):
        ask(stranger, port, override("bank"))
    stranger.ca = (folder / "ca.pem").read_bytes()
    with serving(folder) as port, pytest.raises(grpc.RpcError):
        ask(stranger, port, override("bank"))


def test_the_connection_is_tls_1_3(folder: Path) -> None:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "shop.pem", folder / "shop.key")
    context.set_alpn_protocols(["h2"])
    with (
        serving(folder) as port,
        socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=server_name("bank")) as tls,
    ):
        assert tls.version() == "TLSv1.3"
        certificate = tls.getpeercert(binary_form=True)
    assert certificate is not None
    check_peer(certificate, (folder / "ca.pem").read_bytes(), "bank")

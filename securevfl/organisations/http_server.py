"""The uvicorn server of a gateway, and the address at which it listens."""

from __future__ import annotations

import ipaddress
import signal
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from securevfl.base.extras import import_extra
from securevfl.errors import ConfigError
from securevfl.organisations.gateway import Gateway
from securevfl.organisations.http_api import application
from securevfl.organisations.http_framing import refuse_ambiguous_framing
from securevfl.transport.listener import listen_on
from securevfl.transport.peers import split_address

REQUEST_SECONDS = 20.0  # seconds for a request to arrive completely
MAX_CONNECTIONS = 256  # a connection uses at most four file descriptors, and a process usually has 1,024


@dataclass(frozen=True)
class HttpAddress:
    """The address for clients, with its token and certificate.

    Attributes:
        address: host:port.
        token: the token that clients send as `Authorization: Bearer`.
        certificate: file of the certificate for TLS.
        key: file of its key.

    Raises:
        ConfigError: the address is not on this machine and has no certificate, or the token is too short.
    """

    address: str
    token: str = field(repr=False)
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        host, _ = self.host_port
        try:
            local = host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            local = False
        if not local and (self.certificate is None or self.key is None):
            raise ConfigError(
                f"--http {self.address} needs TLS, because other machines can reach it",
                "give --http-cert and --http-key, or listen on 127.0.0.1",
                code="SVFL-ADDRESS",
            )
        if len(self.token) < 16:
            raise ConfigError("the file of --http-token has fewer than 16 characters", code="SVFL-HTTP-TOKEN")

    @property
    def host_port(self) -> tuple[str, int]:
        """The host and the port."""
        try:
            return split_address("--http", self.address)
        except ValueError:
            raise ConfigError(
                f"--http {self.address} is not of the form host:port",
                "write it as in 127.0.0.1:8080",
                code="SVFL-ADDRESS",
            ) from None


class HttpServer:
    """A uvicorn server of an ASGI application behind a listener.

    Args:
        app: the ASGI application.
        address: the address, and the certificate if there is one.

    Raises:
        ConfigError: uvicorn is not installed, or the address cannot be used.
    """

    def __init__(self, app: Any, address: HttpAddress) -> None:
        uvicorn = import_extra("uvicorn", "serve", "--http")

        config = uvicorn.Config(
            refuse_ambiguous_framing(app),
            ssl_certfile=None if address.certificate is None else str(address.certificate),
            ssl_keyfile=None if address.key is None else str(address.key),
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=30,
            lifespan="off",
            http="h11",
            ws="none",
        )
        self._server = uvicorn.Server(config)
        self._listener = listen_on(
            "--http",
            *address.host_port,
            tls=address.certificate is not None,
            in_all=MAX_CONNECTIONS,
            request_seconds=REQUEST_SECONDS,
        )
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(self._listener.server_path))

    @property
    def started(self) -> bool:
        """Whether requests are answered."""
        return bool(self._server.started)

    def run(self) -> None:
        """Serve until `stop` is called, or until SIGTERM or SIGINT if this is the main thread."""
        self._socket.listen(2048)
        self._listener.start()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._listener.stop()
            self._socket.close()

    def stop(self) -> None:
        """Let running requests finish, then end `run`."""
        self._server.should_exit = True


def serve_http(gateway: Gateway, address: HttpAddress) -> None:
    """Serve a gateway until SIGTERM or SIGINT; requests that wait are answered first.

    Args:
        gateway: the gateway.
        address: the address, and the certificate if there is one.

    Raises:
        ConfigError: uvicorn is not installed, or the address cannot be used.
    """
    server = HttpServer(application(gateway, address.token), address)
    # after `run`, uvicorn raises the signal that stopped it again; the process then exits normally
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    gateway.start()
    try:
        server.run()
    finally:
        gateway.stop()

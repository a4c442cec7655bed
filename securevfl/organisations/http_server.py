"""The uvicorn server of a gateway or of a status port, in a thread of its own, and the address at which it listens."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from securevfl.base.extras import import_extra
from securevfl.errors import ConfigError
from securevfl.transport.listener import listen_on
from securevfl.transport.peers import split_address

REQUEST_SECONDS = 20.0  # seconds for a request to arrive completely
MAX_CONNECTIONS = 256  # a connection uses at most four file descriptors, and a process usually has 1,024
_SHUTDOWN_SECONDS = 30  # seconds for running requests to finish
_START_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class ListenAddress:
    """An address of this machine at which an HTTP server listens.

    Attributes:
        option: the option that names it, for messages.
        address: host:port.
        certificate: file of the certificate for TLS; None to listen without TLS.
        key: file of its key.

    Raises:
        ConfigError: the address is not of the form host:port, or only one of certificate and key is given.
    """

    option: str
    address: str
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        _ = self.host_port
        if (self.certificate is None) != (self.key is None):
            raise ConfigError(
                f"{self.option} {self.address} has a certificate without its key, or a key without its certificate",
                f"give both {self.option}-cert and {self.option}-key, or none of them",
                code="SVFL-TLS-CERTIFICATE",
            )

    @property
    def host_port(self) -> tuple[str, int]:
        """The address as a pair of host (text) and port (integer)."""
        try:
            return split_address(self.option, self.address)
        except ValueError:
            raise ConfigError(
                f"{self.option} {self.address} is not of the form host:port",
                "write it as in 127.0.0.1:8080",
                code="SVFL-ADDRESS",
            ) from None

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can reach it."""
        host, _ = self.host_port
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


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
        if not self.listen.is_local and (self.certificate is None or self.key is None):
            raise ConfigError(
                f"--http {self.address} needs TLS, because other machines can reach it",
                "give --http-cert and --http-key, or listen on 127.0.0.1",
                code="SVFL-ADDRESS",
            )
        if len(self.token) < 16:
            raise ConfigError("the file of --http-token has fewer than 16 characters", code="SVFL-HTTP-TOKEN")

    @property
    def listen(self) -> ListenAddress:
        """This address in the form that `HttpServer` takes."""
        return ListenAddress("--http", self.address, self.certificate, self.key)


class HttpServer:
    """A uvicorn server of an ASGI application. A `transport.listener.Listener` accepts its connections.

    Args:
        app: the ASGI application.
        address: the address, and the certificate if there is one.
        max_connections: maximum number of connections; `MAX_CONNECTIONS` by default.
        request_seconds: seconds for a request to arrive completely.

    Raises:
        ConfigError: uvicorn is not installed, or the address or the certificate cannot be used.
    """

    def __init__(
        self,
        app: Any,
        address: ListenAddress,
        max_connections: int | None = None,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        uvicorn = import_extra("uvicorn", "serve", address.option)
        config = uvicorn.Config(
            app,
            ssl_certfile=None if address.certificate is None else str(address.certificate),
            ssl_keyfile=None if address.key is None else str(address.key),
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            lifespan="off",
            http="h11",
            ws="none",
        )
        try:
            config.load()
        except OSError as cause:  # ssl.SSLError is a subclass of OSError
            raise ConfigError(
                f"{address.option}: the certificate or its key cannot be used ({type(cause).__name__})",
                "name a certificate in PEM and the key that belongs to it",
                code="SVFL-TLS-CERTIFICATE",
            ) from None
        self._server = uvicorn.Server(config)
        self._listener = listen_on(
            address.option,
            *address.host_port,
            tls=address.certificate is not None,
            in_all=MAX_CONNECTIONS if max_connections is None else max_connections,
            request_seconds=request_seconds,
        )
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(str(self._listener.server_path))
        except OSError:
            self._socket.close()
            self._listener.stop()
            raise ConfigError(
                f"{address.option}: no socket can be created in the folder of temporary files",
                "set TMPDIR to a folder with a short path, such as /tmp, and with free space",
                code="SVFL-ADDRESS",
            ) from None

    @property
    def started(self) -> bool:
        """Whether requests are answered."""
        return bool(self._server.started)

    def run(self) -> None:
        """Serve until `stop` is called. Call it in a thread: in the main thread uvicorn would handle the signals."""
        try:
            self._socket.listen(2048)
            self._listener.start()
            self._server.run(sockets=[self._socket])
        finally:
            self._listener.stop()
            self._socket.close()

    def stop(self) -> None:
        """Let running requests finish, then end `run`."""
        self._server.should_exit = True


@contextmanager
def running(server: HttpServer, name: str) -> Iterator[threading.Thread]:
    """Run a server in a thread while the context is entered.

    Args:
        server: the server.
        name: name of the thread.

    Yields:
        The thread, which lives as long as the server answers.

    Raises:
        ConfigError: the server has ended while it started.
    """
    thread = threading.Thread(target=server.run, name=name, daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise ConfigError(f"the {name} cannot start", "read the log above this message", code="SVFL-ADDRESS")
            time.sleep(_START_POLL_SECONDS)
        yield thread
    finally:
        server.stop()
        thread.join()

"""The uvicorn server of a gateway, and the address at which it listens."""

from __future__ import annotations

import ipaddress
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from securevfl.base.extras import import_extra
from securevfl.errors import ConfigError
from securevfl.organisations.gateway import Gateway
from securevfl.organisations.http_api import application
from securevfl.organisations.http_limits import limit_http_connections
from securevfl.transport.peers import split_address

REQUEST_SECONDS = 20.0  # seconds for a request to come whole

MAX_CONNECTIONS = 512  # at once; a process has 1,024 files as a rule


@dataclass(frozen=True)
class HttpAddress:
    """The address at which applications ask, with its token and certificate.

    ConfigError unless it is this machine alone, or it has a certificate and key for TLS.
    token: what applications send as `Authorization: Bearer`.
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
                f"--http {self.address}: TLS was expected beyond this machine, no certificate came; give "
                "--http-cert and --http-key, or listen on 127.0.0.1"
            )
        if len(self.token) < 16:
            raise ConfigError("--http-token: a file with 16 characters or more was expected, fewer are in it")

    @property
    def host_port(self) -> tuple[str, int]:
        """The host and the port of the address, apart."""
        try:
            return split_address("--http", self.address)
        except ValueError:
            raise ConfigError(f"--http: host:port was expected, {self.address} came; as in 127.0.0.1:8080") from None


def serve_http(gateway: Gateway, place: HttpAddress) -> None:
    """Serve a gateway until SIGTERM or SIGINT, which let requests that wait end first. ConfigError if uvicorn is not
    installed."""
    server = http_server(application(gateway, place.token), place)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))  # raised again by uvicorn once it has ended
    gateway.start()
    try:
        server.run()
    finally:
        gateway.stop()


def http_server(asked: Any, place: HttpAddress) -> Any:
    """Return uvicorn's server of an ASGI application. ConfigError if uvicorn is not installed."""
    uvicorn = import_extra("uvicorn", "serve", "--http")
    from uvicorn.protocols.http.h11_impl import H11Protocol

    host, port = place.host_port
    config = uvicorn.Config(
        asked,
        host=host,
        port=port,
        ssl_certfile=None if place.certificate is None else str(place.certificate),
        ssl_keyfile=None if place.key is None else str(place.key),
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=30,
        lifespan="off",
        http=limit_http_connections(H11Protocol, seconds=REQUEST_SECONDS, connections=MAX_CONNECTIONS),
        ws="none",
    )
    return uvicorn.Server(config)

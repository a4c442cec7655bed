"""Check that a port is free before gRPC listens on it.

gRPC listens on those addresses of a host that it can bind and does not report the others.
"""

from __future__ import annotations

import errno
import socket
import time
from contextlib import closing, suppress

from securevfl.errors import ConfigError

_WAIT = 2.0  # seconds for a listener of this process, or of one that was killed, to be gone


def require_free(me: str, host: str, port: int) -> None:
    """ConfigError if another program listens on this port of the host, "::" being all addresses, in any family."""
    deadline = time.monotonic() + _WAIT
    while (taken := _address_in_use(host, port)) is not None:
        if time.monotonic() > deadline:
            raise ConfigError(
                f"{me}: port {port} was expected to be free, another program listens on {taken}; end it, or take "
                "another port in the address of peers.toml, at all parties"
            )
        time.sleep(0.05)


def _address_in_use(host: str, port: int) -> str | None:
    """Find the first address at which somebody else listens; None if there is none."""
    with suppress(OSError):
        hosts = ["0.0.0.0", "::"] if host == "::" else [host]  # noqa: S104  it is what the party asked for
        found = [each for name in hosts for each in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)]
        for family, kind, protocol, _, address in dict.fromkeys(found):
            with closing(socket.socket(family, kind, protocol)) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                try:
                    probe.bind(address)
                    probe.listen(1)
                except OSError as cause:
                    if cause.errno == errno.EADDRINUSE:
                        return str(address[0])
    return None

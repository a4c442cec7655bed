"""Check that a port is free before gRPC listens on it.

If a host has several addresses, gRPC listens on those that it can bind and does not report the others. So it would not
report another program that listens on one of them.
"""

from __future__ import annotations

import errno
import socket
import time
from contextlib import closing, suppress

from securevfl.errors import ConfigError

_WAIT = 2.0  # seconds to wait for the port of an earlier listener of this process, or of a killed process, to be free


def require_free(me: str, host: str, port: int) -> None:
    """Raise ConfigError if another program listens on a port.

    Args:
        me: name of this party, which the error states.
        host: the host to check; "::" stands for all IPv4 and IPv6 addresses.
        port: the port to check.

    Raises:
        ConfigError: another program listens on one of the addresses.
    """
    deadline = time.monotonic() + _WAIT
    while (used_address := _address_in_use(host, port)) is not None:
        if time.monotonic() > deadline:
            raise ConfigError(
                f"party {me} cannot listen on port {port}: another program listens on {used_address}",
                "stop that program, or change the port in the party's address in peers.toml at all parties",
                code="SVFL-ADDRESS",
                party=me,
                port=port,
            )
        time.sleep(0.05)


def _address_in_use(host: str, port: int) -> str | None:
    """Return the first address on which another program listens, or None."""
    with suppress(OSError):
        hosts = ["0.0.0.0", "::"] if host == "::" else [host]  # noqa: S104  the party asked to listen on all addresses
        addresses = [info for name in hosts for info in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)]
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
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

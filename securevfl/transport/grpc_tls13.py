"""gRPC that accepts only TLS 1.3. All modules of this package import gRPC from here.

gRPC for Python has no argument for the minimum TLS version of a channel or a server (grpc issue 37305). It reads a list
of cipher suites for TLS 1.2 from the environment once, when it is first imported. A list of suites that no certificate
can use leaves only TLS 1.3. This module therefore sets the list while it imports gRPC and then restores the
environment. The list applies to all users of gRPC in the process, because gRPC offers nothing narrower. Only a process
that opens or inspects a connection imports this module. Processes that import the package, train locally or issue
certificates are not affected, and neither are their children.

If other code imported gRPC before, TLS 1.2 can no longer be disabled, and `require_tls13_only` raises an error.
`transport.tls.require_tls13` also checks the open port.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from securevfl.errors import ConfigError

SUITES_VARIABLE = "GRPC_SSL_CIPHER_SUITES"
UNUSABLE_TLS12_SUITE = "ECDHE-PSK-AES128-CBC-SHA"  # no party can use it, because it needs a pre-shared key


def _started_with_suites() -> bool:
    """Return whether the process started with the variable. gRPC does not see later changes of `os.environ`."""
    try:
        environment = Path("/proc/self/environ").read_bytes()
    except OSError:
        return False
    return f"{SUITES_VARIABLE}={UNUSABLE_TLS12_SUITE}".encode() in environment.split(b"\0")


TLS13_ONLY = "grpc" not in sys.modules or _started_with_suites()


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# gRPC must not print refused handshakes on stderr, because this package logs them
with _environment(
    GRPC_SSL_CIPHER_SUITES=UNUSABLE_TLS12_SUITE, GRPC_VERBOSITY=os.environ.get("GRPC_VERBOSITY", "ERROR")
):
    import grpc

__all__ = ["TLS13_ONLY", "grpc", "require_tls13_only"]


def require_tls13_only() -> None:
    """Raise ConfigError if gRPC in this process may use TLS 1.2."""
    if not TLS13_ONLY:
        raise ConfigError(
            "gRPC would accept TLS 1.2, because other code imported grpc first",
            "import securevfl.transport.grpc_tls13 before grpc, or start Python with "
            f"{SUITES_VARIABLE}={UNUSABLE_TLS12_SUITE} in its environment; to set it in os.environ has no effect",
            code="SVFL-TLS-VERSION",
        )

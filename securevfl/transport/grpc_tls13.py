"""gRPC that takes TLS 1.3 and nothing below it. Whoever needs gRPC here imports it from this module.

gRPC for Python has no argument for the lowest TLS version (grpc issue 37305), neither for a channel nor for a server.
It does take a list of cipher suites for TLS 1.2, once, from the environment of the process, when it is first imported;
a list that no certificate can serve leaves TLS 1.3 alone. So the list is in the environment while gRPC is imported
here, and the environment is then as it was. What it does to gRPC holds for the whole process, other users of gRPC
included: gRPC offers nothing narrower. But only a process that opens a line, or looks at one, imports this module;
those that import the package, train in one process or make certificates are left alone, and so are their children.

If other code imported gRPC before, TLS 1.2 can no longer be disabled, and `require_tls13_only` refuses. `transport.tls`
 checks on the live port besides.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from securevfl.errors import ConfigError

SUITES_VARIABLE = "GRPC_SSL_CIPHER_SUITES"
UNUSABLE_TLS12_SUITE = "ECDHE-PSK-AES128-CBC-SHA"  # needs a pre-shared key, and nobody here has one
TLS13_ONLY = (
    "grpc" not in sys.modules or os.environ.get(SUITES_VARIABLE) == UNUSABLE_TLS12_SUITE
)  # set so at the start of the process


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


# refused handshakes are in our own log
with _environment(
    GRPC_SSL_CIPHER_SUITES=UNUSABLE_TLS12_SUITE, GRPC_VERBOSITY=os.environ.get("GRPC_VERBOSITY", "ERROR")
):
    import grpc

__all__ = ["TLS13_ONLY", "grpc", "require_tls13_only"]


def require_tls13_only() -> None:
    """ConfigError if gRPC in this process may take TLS 1.2."""
    if not TLS13_ONLY:
        raise ConfigError(
            "TLS 1.3 alone cannot be had: grpc was imported first; import securevfl.transport.grpc_tls13 before grpc, "
            f"or start the process with {SUITES_VARIABLE}={UNUSABLE_TLS12_SUITE}"
        )

"""How frames travel: threads in one process, gRPC between organisations.

gRPC for Python has no argument for the lowest TLS version (grpc issue 37305). It does take a list of cipher suites for
TLS 1.2, once, from the environment, when it is first imported; a list that no certificate can serve leaves TLS 1.3
alone. `transport.tls` checks on the live port that it does.
"""

import os
import sys

NO_TLS_12 = "ECDHE-PSK-AES128-CBC-SHA"  # needs a pre-shared key, and nobody here has one

if "grpc" not in sys.modules:
    os.environ["GRPC_SSL_CIPHER_SUITES"] = NO_TLS_12
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # refused handshakes are in our own log

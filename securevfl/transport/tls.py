"""Mutual TLS 1.3: a party's credentials, who is calling, and why a handshake failed.

Both ends check the other by name: the server asks for a certificate and reads the caller's name from it, the client
insists on the DNS name that stands for the party it calls. gRPC tells little of a handshake that fails, so the caller
then looks again with the ssl module, fetches the certificate and names the cause.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from securevfl.crypto.scheme import Secret
from securevfl.errors import ConfigError, CryptoError, TransportError
from securevfl.transport.certs import Identity, check_peer, key_fingerprint, server_name

# gRPC that takes TLS 1.3 and nothing below it. Whoever needs gRPC here imports it from this module.
#
# gRPC for Python has no argument for the lowest TLS version (grpc issue 37305), neither for a channel nor for a server.
# It does take a list of cipher suites for TLS 1.2, once, from the environment of the process, when it is first
# imported; a list that no certificate can serve leaves TLS 1.3 alone. So the list is in the environment while gRPC is
# imported here, and the environment is then as it was. What it does to gRPC holds for the whole process, other users of
# gRPC included: gRPC offers nothing narrower. But only a process that opens a line, or looks at one, imports this
# module; those that import the package, train in one process or make certificates are left alone, and so are their
# children.
#
# Where gRPC was imported before, by somebody else, TLS 1.2 cannot be had out of it any more, and `require_alone`
# refuses. `transport.tls` checks on the live port besides.


SUITES = "GRPC_SSL_CIPHER_SUITES"
NO_TLS_12 = "ECDHE-PSK-AES128-CBC-SHA"  # needs a pre-shared key, and nobody here has one
ALONE = "grpc" not in sys.modules or os.environ.get(SUITES) == NO_TLS_12  # set so at the start of the process


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
with _environment(GRPC_SSL_CIPHER_SUITES=NO_TLS_12, GRPC_VERBOSITY=os.environ.get("GRPC_VERBOSITY", "ERROR")):
    import grpc

__all__ = ["ALONE", "grpc", "require_alone"]


def require_alone() -> None:
    """ConfigError if gRPC in this process may take TLS 1.2."""
    if not ALONE:
        raise ConfigError(
            "TLS 1.3 alone cannot be had: grpc was imported first; import securevfl.transport.tls before grpc, "
            f"or start the process with {SUITES}={NO_TLS_12}"
        )


_NOT_TLS = {"wrong version number", "record layer failure", "packet length too long", "http request"}


class Credentials(Secret):
    """What a party shows and trusts: <party>.pem, .key and ca.pem of one folder. ConfigError if they do not fit."""

    __slots__ = ("_folder", "ca", "certificate", "identity", "party")

    def __init__(self, folder: Path, party: str) -> None:
        require_alone()
        certificate = folder / f"{party}.pem"
        self.identity = Identity(certificate, folder / f"{party}.key", folder / "ca.pem")
        self.party = party
        self.ca = self.identity.ca
        self.certificate = x509.load_pem_x509_certificate(self.identity.certificate).public_bytes(
            serialization.Encoding.DER
        )
        self._folder = folder
        if self.identity.party != party:
            raise ConfigError(f"{certificate}: the certificate of {party} was expected, it names {self.identity.party}")

    def context(self) -> ssl.SSLContext:
        """Make a context for a look at a server with the ssl module: it shows this certificate and checks nothing."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(self._folder / f"{self.party}.pem", self._folder / f"{self.party}.key")
        return context


def verify(certificate: bytes, signature: bytes, data: bytes) -> str:
    """Verify that the key of a certificate (DER, checked before) signed `data`, and return the fingerprint of that key.
    Raises CryptoError if it did not."""
    key = x509.load_der_x509_certificate(certificate).public_key()
    try:
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise InvalidSignature
        key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise CryptoError("a signature does not belong to the certificate that was shown; issue it again") from None
    return key_fingerprint(key)


def caller(auth: Mapping[str, Sequence[bytes]], known: Collection[str]) -> tuple[str, bytes]:
    """Which of the `known` parties is calling, by gRPC's auth context, and its certificate, for `check_peer`.

    TransportError if it is none of them.
    """
    shown = [name.decode("utf-8", "replace") for name in auth.get("x509_subject_alternative_name", ())]
    for party in known:
        if server_name(party) in shown:
            return party, next(iter(auth.get("x509_pem_cert", ())), b"")
    raise TransportError(f"{shown[0] if shown else 'a caller without a name'} is no party here; compare peers.toml")


def diagnose(host: str, port: int, peer: str, credentials: Credentials, timeout: float = 5.0) -> TransportError | None:
    """Find what is wrong between us and the certificate at host:port; None if that is not what keeps us apart."""
    me, where = credentials.party, f"{peer} at {host}:{port}"
    try:
        with (
            socket.create_connection((host, port), timeout) as line,
            credentials.context().wrap_socket(line, server_hostname=server_name(peer)) as probe,
        ):
            certificate = probe.getpeercert(binary_form=True) or b""
            check_peer(certificate, credentials.ca, peer)
            if probe.version() != "TLSv1.3":
                return TransportError(f"{where} does not speak TLS 1.3, which is required; update it")
            probe.settimeout(1.0)  # under TLS 1.3 a server looks at our certificate after we are through
            if not probe.recv(1):
                return TransportError(f"{where} refused the certificate of {me}; compare both ca.pem and the dates")
    except ssl.SSLError as error:
        reason = (error.reason or "handshake failed").lower().replace("_", " ")
        if reason in _NOT_TLS:
            return TransportError(
                f"{where}: another program answers there, which does not speak TLS; end it at {peer}, or give {peer} "
                "another port in the address of peers.toml, at all parties"
            )
        if "alert" not in reason:
            return None
        return TransportError(f"{where} refused the certificate of {me}: {reason}; compare both copies of ca.pem")
    except TransportError as error:
        return TransportError(f"{me} refused {where}: {error}")
    except OSError:
        return None
    return None


def require_tls13(port: int, credentials: Credentials, host: str = "localhost") -> None:
    """Check that our own port refuses TLS 1.2, by calling it. Raises ConfigError if it answers."""
    context = credentials.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    try:
        with socket.create_connection((host, port), 5.0) as line, context.wrap_socket(line):
            pass
    except OSError:
        return
    raise ConfigError("TLS 1.3 alone was expected, this gRPC accepts TLS 1.2; see securevfl.transport.tls")

"""Mutual TLS 1.3: a party's credentials, who is calling, and why a handshake failed.

Both ends check the other by name: the server asks for a certificate and reads the caller's name from it, the client
insists on the DNS name that stands for the party it calls. gRPC tells little of a handshake that fails, so the caller
then looks again with the ssl module, fetches the certificate and names the cause.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from securevfl.crypto.secret import Secret
from securevfl.errors import ConfigError, CryptoError, TransportError
from securevfl.transport.certificate_checks import check_peer
from securevfl.transport.certificate_names import server_name
from securevfl.transport.grpc_tls13 import require_tls13_only
from securevfl.transport.identity import Identity
from securevfl.transport.pem_files import key_fingerprint

_NOT_TLS = {"wrong version number", "record layer failure", "packet length too long", "http request"}


class Credentials(Secret):
    """What a party shows and trusts: <party>.pem, .key and ca.pem of one folder. ConfigError if they do not fit."""

    __slots__ = ("_folder", "ca", "certificate", "identity", "party")

    def __init__(self, folder: Path, party: str) -> None:
        require_tls13_only()
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


def verify_signature(certificate: bytes, signature: bytes, data: bytes) -> str:
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


def identify_caller(auth: Mapping[str, Sequence[bytes]], known: Collection[str]) -> tuple[str, bytes]:
    """Which of the `known` parties is calling, by gRPC's auth context, and its certificate, for `check_peer`.

    TransportError if it is none of them.
    """
    shown = [name.decode("utf-8", "replace") for name in auth.get("x509_subject_alternative_name", ())]
    for party in known:
        if server_name(party) in shown:
            return party, next(iter(auth.get("x509_pem_cert", ())), b"")
    raise TransportError(
        f"{shown[0] if shown else 'a identify_caller without a name'} is no party here; compare peers.toml"
    )


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

"""Mutual TLS 1.3: a party's credentials, the identity of a client, and the reason why a handshake failed.

Both sides check the name of the other. The server requires a certificate and reads the client's name from it. The
client requires the DNS name that is derived from the name of the party that it calls. gRPC reports little about a
failed handshake, so the client then connects again with the ssl module, fetches the server's certificate and names the
cause.
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
    """A party's certificate and key, and the authorities that it trusts.

    Args:
        folder: the folder of <party>.pem, <party>.key and ca.pem.
        party: name of the party.

    Raises:
        ConfigError: the files cannot be used, or belong to another party.
    """

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
            raise ConfigError(
                f"{certificate} is the certificate of {self.identity.party}, not of {party}",
                "bring the certificate that was issued for this party",
                code="SVFL-TLS-CERTIFICATE",
                path=str(certificate),
                party=party,
            )

    def context(self) -> ssl.SSLContext:
        """Return a context of the ssl module that presents this certificate and does not verify the server's.

        It is used for diagnoses only; the connections of a run verify both sides.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(self._folder / f"{self.party}.pem", self._folder / f"{self.party}.key")
        return context


def verify_signature(certificate: bytes, signature: bytes, data: bytes) -> str:
    """Verify a signature with the key of a certificate that was checked before.

    Args:
        certificate: the certificate, in DER.
        signature: the signature (ECDSA-SHA256).
        data: the signed data.

    Returns:
        The fingerprint of the key.

    Raises:
        CryptoError: the signature is not valid.
    """
    key = x509.load_der_x509_certificate(certificate).public_key()
    try:
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise InvalidSignature
        key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise CryptoError(
            "a signature does not belong to the certificate that was presented",
            "issue the certificate again",
            code="SVFL-CRYPTO-KEY",
        ) from None
    return key_fingerprint(key)


def identify_caller(auth: Mapping[str, Sequence[bytes]], known: Collection[str]) -> tuple[str, bytes]:
    """Identify the client of a gRPC call.

    Args:
        auth: gRPC's authentication context.
        known: names of the parties that may connect.

    Returns:
        The name of the party, and its certificate for `check_peer`.

    Raises:
        TransportError: the client is none of these parties.
    """
    names = [name.decode("utf-8", "replace") for name in auth.get("x509_subject_alternative_name", ())]
    for party in known:
        if server_name(party) in names:
            return party, next(iter(auth.get("x509_pem_cert", ())), b"")
    raise TransportError(
        f"{names[0] if names else 'a client without a name'} is not a party of this run",
        "compare peers.toml at both parties",
        code="SVFL-PEER-REFUSED",
    )


def diagnose(host: str, port: int, peer: str, credentials: Credentials, timeout: float = 5.0) -> TransportError | None:
    """Find out why TLS with a peer fails.

    Args:
        host: host of the peer.
        port: port of the peer.
        peer: name of the peer.
        credentials: key and certificate of this party.
        timeout: seconds for the connection.

    Returns:
        The cause, or None if TLS is not the reason why the parties cannot connect.
    """
    me, server = credentials.party, f"{peer} at {host}:{port}"

    def cause(problem: str, remedy: str | None, code: str) -> TransportError:
        return TransportError(problem, remedy, code=code, peer=peer, address=f"{host}:{port}")

    try:
        with (
            socket.create_connection((host, port), timeout) as connection,
            credentials.context().wrap_socket(connection, server_hostname=server_name(peer)) as probe,
        ):
            certificate = probe.getpeercert(binary_form=True) or b""
            check_peer(certificate, credentials.ca, peer)
            if probe.version() != "TLSv1.3":
                return cause(f"{server} does not support TLS 1.3, which is required", "update it", "SVFL-TLS-VERSION")
            probe.settimeout(1.0)  # a TLS 1.3 server refuses our certificate only after our handshake has finished
            if not probe.recv(1):
                return cause(
                    f"{server} refused the certificate of {me}",
                    "compare ca.pem and the validity of the certificates at both parties",
                    "SVFL-PEER-REFUSED",
                )
    except ssl.SSLError as error:
        reason = (error.reason or "handshake failed").lower().replace("_", " ")
        if reason in _NOT_TLS:
            return cause(
                f"{server}: another program, which does not use TLS, answers at this address",
                f"stop it at {peer}, or change the port in the address of {peer} in peers.toml at all parties",
                "SVFL-ADDRESS",
            )
        if "alert" not in reason:
            return None
        return cause(
            f"{server} refused the certificate of {me} ({reason})",
            "compare ca.pem at both parties",
            "SVFL-PEER-REFUSED",
        )
    except TransportError as error:
        return cause(f"{me} refused {server}: {error.problem}", error.remedy, error.code)
    except OSError:
        return None
    return None


def require_tls13(port: int, credentials: Credentials, host: str = "localhost") -> None:
    """Check that this party's port refuses TLS 1.2, by connecting to it.

    Args:
        port: the port.
        credentials: key and certificate of this party.
        host: the host on which it listens.

    Raises:
        ConfigError: the port accepts TLS 1.2.
    """
    context = credentials.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    try:
        with socket.create_connection((host, port), 5.0) as connection, context.wrap_socket(connection):
            pass
    except OSError:
        return
    raise ConfigError(
        "gRPC in this process accepts TLS 1.2, and only TLS 1.3 is allowed",
        "import securevfl.transport.grpc_tls13 before any other module that imports grpc",
        code="SVFL-TLS-VERSION",
    )

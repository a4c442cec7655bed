"""A party's key and certificate, and the authorities that it trusts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from securevfl.crypto.secret import Secret
from securevfl.errors import ConfigError
from securevfl.transport.certificate_checks import check_usable
from securevfl.transport.certificate_names import party_of
from securevfl.transport.pem_files import key_fingerprint, parse_certificate, parse_key, read_pem


class Identity(Secret):
    """A party's key and certificate, checked when they are read.

    Args:
        certificate: path of <party>.pem.
        key: path of <party>.key.
        ca: path of ca.pem. It may contain several authorities while one replaces another.
        now: time at which the certificate must be valid; the current time by default.

    Raises:
        ConfigError: a file is missing, other users can read the key, the key belongs to another certificate, or peers
            would refuse the certificate.
    """

    __slots__ = ("_key", "_signer", "ca", "certificate", "key", "party")

    def __init__(self, certificate: Path, key: Path, ca: Path, now: datetime | None = None) -> None:
        self.certificate, self.ca = read_pem(certificate), read_pem(ca)
        if not key.exists():
            raise ConfigError(
                f"{key} is missing",
                f"copy the key of {certificate.name} into the same folder",
                code="SVFL-TLS-KEY",
                path=str(key),
            )
        self._key = read_pem(key)
        if key.stat().st_mode & 0o077:
            raise ConfigError(
                f"other users can read the key {key}",
                "run `chmod 600` on it, and issue a new certificate if another user may have read it",
                code="SVFL-FILE-READABLE-BY-OTHERS",
                path=str(key),
            )
        parsed = parse_certificate(self.certificate)
        self._signer = parse_key(key, self._key)
        self.key = key_fingerprint(parsed.public_key())
        if self._signer.public_key() != parsed.public_key():
            raise ConfigError(f"{key} is not the key of {certificate}", code="SVFL-TLS-KEY", path=str(key))
        party = party_of(parsed)
        if party is None:
            raise ConfigError(
                f"{certificate} does not name a party",
                "use a certificate that was issued for a party of securevfl",
                code="SVFL-TLS-CERTIFICATE",
                path=str(certificate),
            )
        self.party = party
        check_usable(certificate, self.certificate, self.ca, party, now)

    def sign(self, data: bytes) -> bytes:
        """Sign data with this party's key (ECDSA-SHA256)."""
        return self._signer.sign(data, ec.ECDSA(hashes.SHA256()))

    def server_credentials(self, called: Callable[[], None] = lambda: None) -> Any:
        """Return grpc.ServerCredentials that require a certificate of the same authority from every client.

        Args:
            called: a function that is called before each handshake; gRPC reports nothing else about handshakes.

        Returns:
            The credentials.
        """
        from securevfl.transport.grpc_tls13 import grpc

        configuration = grpc.ssl_server_certificate_configuration(
            [(self._key, self.certificate)], root_certificates=self.ca
        )
        return grpc.dynamic_ssl_server_credentials(configuration, called, require_client_authentication=True)

    def channel_credentials(self) -> Any:
        """Return grpc.ChannelCredentials that present this certificate.

        Open the channel with the option ("grpc.ssl_target_name_override", server_name(peer)). TLS then ends the
        connection unless the server is that party.
        """
        from securevfl.transport.grpc_tls13 import grpc

        return grpc.ssl_channel_credentials(
            root_certificates=self.ca, private_key=self._key, certificate_chain=self.certificate
        )

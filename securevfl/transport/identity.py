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
    """A party's key and certificate and the authorities it trusts, checked when they are read.

    ConfigError if a file is missing, the key can be read by others or belongs to another certificate, or a peer would
    refuse the certificate. `ca` may hold several authorities one after the other, while one takes over from another.
    """

    __slots__ = ("_key", "_signer", "ca", "certificate", "key", "party")

    def __init__(self, certificate: Path, key: Path, ca: Path, now: datetime | None = None) -> None:
        self.certificate, self.ca = read_pem(certificate), read_pem(ca)
        if not key.exists():
            raise ConfigError(f"{key} is not there; put the key beside {certificate.name} that was made for it")
        self._key = read_pem(key)
        if key.stat().st_mode & 0o077:
            raise ConfigError(f"{key}: other users can read this key; chmod 600 it, and issue again if anyone may have")
        own = parse_certificate(self.certificate)
        self._signer = parse_key(key, self._key)
        self.key = key_fingerprint(own.public_key())
        if self._signer.public_key() != own.public_key():
            raise ConfigError(f"{key} is not the key of {certificate}; bring the two files that were issued together")
        party = party_of(own)
        if party is None:
            raise ConfigError(f"{certificate} names no party; expected one made by securevfl for a party")
        self.party = party
        check_usable(certificate, self.certificate, self.ca, party, now)

    def sign(self, data: bytes) -> bytes:
        """ECDSA-SHA256 by this party's key."""
        return self._signer.sign(data, ec.ECDSA(hashes.SHA256()))

    def server_credentials(self, called: Callable[[], None] = lambda: None) -> Any:
        """grpc.ServerCredentials that ask every client for a certificate of the same authority; `called` is called
        before each handshake, of which gRPC says no more."""
        from securevfl.transport.grpc_tls13 import grpc

        own = grpc.ssl_server_certificate_configuration([(self._key, self.certificate)], root_certificates=self.ca)
        return grpc.dynamic_ssl_server_credentials(own, called, require_client_authentication=True)

    def channel_credentials(self) -> Any:
        """grpc.ChannelCredentials that show this certificate.

        Open the channel with the option ("grpc.ssl_target_name_override", server_name(peer)), so that TLS itself ends
        the connection unless the server is that party.
        """
        from securevfl.transport.grpc_tls13 import grpc

        return grpc.ssl_channel_credentials(
            root_certificates=self.ca, private_key=self._key, certificate_chain=self.certificate
        )

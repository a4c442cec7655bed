"""The names in a certificate: the party, its hosts, and a DNS name derived from the party's name for TLS."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from urllib.parse import unquote

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from securevfl.errors import ConfigError

_DOMAIN = ".party.securevfl.internal"
PARTY_URI = "securevfl://party/"
_MAX_NAME_BYTES = 64  # of a common name in a certificate (RFC 5280)
_HOST = re.compile(r"(?=.{1,253}$)(?!-)[A-Za-z0-9_-]{1,63}(\.(?!-)[A-Za-z0-9_-]{1,63})*")


def server_name(party: str) -> str:
    """Return the DNS name that identifies a party in its certificate.

    It is derived from a hash of the party's name, so that it is the same on every machine of the party. TLS compares
    it, but nobody looks it up in the DNS.
    """
    return f"{hashlib.sha256(valid_name(party).encode()).hexdigest()[:32]}{_DOMAIN}"


def valid_name(name: str) -> str:
    """Return the name of a party or an authority, or raise ConfigError if it is invalid."""
    if not name.replace("-", "").replace("_", "").isalnum() or len(name.encode()) > _MAX_NAME_BYTES:
        raise ConfigError(
            f"the name {name!r} is invalid",
            "use letters, digits, - and _, up to 64 bytes in UTF-8",
            code="SVFL-PARTIES-NAME",
            name=name,
        )
    return name


def host_name(host: str) -> x509.GeneralName:
    """Convert a host to the form that a certificate contains, or raise ConfigError if it is not a host."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _HOST.fullmatch(host):
            raise ConfigError(
                f"{host!r} is not a host",
                "pass an ASCII DNS name or an IP address, without a port",
                code="SVFL-ADDRESS",
                host=host,
            ) from None
        if host.casefold().endswith(_DOMAIN):
            raise ConfigError(
                f"the host {host!r} cannot be certified, because names under {_DOMAIN[1:]} are reserved for parties",
                "leave it out",
                code="SVFL-ADDRESS",
                host=host,
            ) from None
        return x509.DNSName(host)


def _alternative_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise ConfigError(
            "the names in the certificate are malformed", "issue a new certificate", code="SVFL-TLS-CERTIFICATE"
        ) from None


def party_of(certificate: x509.Certificate) -> str | None:
    """Return the party that a certificate names, or None unless it names exactly one."""
    names = _alternative_names(certificate)
    uris = names.get_values_for_type(x509.UniformResourceIdentifier) if names else []
    parties = [unquote(uri.removeprefix(PARTY_URI)) for uri in uris if uri.startswith(PARTY_URI)]
    return parties[0] if len(parties) == 1 else None


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names and IP addresses in a certificate."""
    names = _alternative_names(certificate)
    if names is None:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def common_name(name: x509.Name) -> str:
    """Return the common name of a subject or issuer, or its full name if it has none."""
    attributes = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(attributes[0].value) if attributes else name.rfc4514_string()


def certificate_fingerprint(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of a certificate, as hexadecimal bytes separated by colons."""
    return certificate.fingerprint(hashes.SHA256()).hex(":")

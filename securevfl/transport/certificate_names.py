"""The names in a certificate: the party, its hosts and the DNS name that stands for the party in TLS."""

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

_HOST = re.compile(r"(?=.{1,253}$)(?!-)[A-Za-z0-9_-]{1,63}(\.(?!-)[A-Za-z0-9_-]{1,63})*")


def server_name(party: str) -> str:
    """Return the DNS name in a party's certificate, the same on whatever machine it runs. Made by hashing, never
    resolved."""
    return f"{hashlib.sha256(valid_name(party).encode()).hexdigest()[:32]}{_DOMAIN}"


def valid_name(name: str) -> str:
    if not name.replace("-", "").replace("_", "").isalnum() or len(name) > 64:
        raise ConfigError(f"name {name!r}: up to 64 letters, digits, - and _ were expected; rename it")
    return name


def host_name(host: str) -> x509.GeneralName:
    """Convert a host to the form in which it stands in a certificate. Raises ConfigError if it is no host, or is a name
    that stands for a party."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _HOST.fullmatch(host):
            raise ConfigError(
                f"host {host!r}: a DNS name in ASCII or an IP address, without port, was expected"
            ) from None
        if host.casefold().endswith(_DOMAIN):
            raise ConfigError(f"host {host!r}: names under {_DOMAIN[1:]} stand for parties; leave it out") from None
        return x509.DNSName(host)


def _alternative_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise ConfigError("the names in the certificate cannot be read; issue a new one") from None


def party_of(certificate: x509.Certificate) -> str | None:
    names = _alternative_names(certificate)
    uris = names.get_values_for_type(x509.UniformResourceIdentifier) if names else []
    parties = [unquote(uri.removeprefix(PARTY_URI)) for uri in uris if uri.startswith(PARTY_URI)]
    return parties[0] if len(parties) == 1 else None


def hosts_of(certificate: x509.Certificate) -> list[str]:
    names = _alternative_names(certificate)
    if names is None:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else name.rfc4514_string()


def certificate_fingerprint(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(hashes.SHA256()).hex(":")

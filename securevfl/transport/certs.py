"""Certificates: who is at the other end of a connection.

One authority (`init`), run by whoever the parties trust to say who is who, signs one certificate a party (`issue`):

    ca.pem, ca.key        the authority; ca.pem goes to every party, ca.key stays where it was made
    bank.pem, bank.key    the party "bank"; both go to the bank, by a safe way, and the key to no one else

A party that lets nobody see its key makes it itself, and the authority signs and revokes certificates by openssl
(docs/two-organisations.md): any X.509 certificate that names its party as below is one. ca.pem may also hold the
authority's list of revoked certificates (X.509 CRL); `check_peer` refuses these at each handshake. The list has no date
after which a party would miss a newer one: a party with an old ca.pem does not know.

A certificate names its party by the URI securevfl://party/<name> and by a DNS name made from it (`server_name`), which
lets a gRPC client insist on the party and not only on the machine. Host names and addresses stand beside them. Keys
are ECDSA P-256, which the BoringSSL inside gRPC accepts; files are written at once or not at all, keys readable by
their owner only. Nothing is overwritten unasked: `replace=True` makes a new key under the same name and keeps the old
pair beside it as <name>.old-<key id>, valid until it expires, so that peers need not change at the same moment.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from securevfl.crypto.secret import Secret
from securevfl.errors import ConfigError, TransportError

# Certificates, keys and lists of revoked certificates as PEM files, read with errors that name the file.
#
# Files are written at once or not at all, and what another takes the place of is kept beside it under another name.


_LIST = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


def read(path: Path) -> bytes:
    """Read the bytes of a file. Raises ConfigError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; name the file that init or issue made") from None


def parse(data: bytes) -> x509.Certificate:
    """Parse the first certificate, in PEM or DER. Raises ConfigError if there is none."""
    try:
        if data.startswith(b"-----"):
            return x509.load_pem_x509_certificate(data)
        return x509.load_der_x509_certificate(data)
    except (ValueError, x509.InvalidVersion):
        raise ConfigError("a certificate (PEM or DER) was expected, something else came; name the .pem file") from None


def authorities_of(ca: bytes) -> list[x509.Certificate]:
    """All certificates of a ca.pem. ConfigError if there is none."""
    try:
        return x509.load_pem_x509_certificates(ca)
    except ValueError:
        raise ConfigError("certificates of authorities (PEM) were expected, something else came; name ca.pem") from None


def revocation_lists(ca: bytes) -> list[x509.CertificateRevocationList]:
    """All lists of revoked certificates of a ca.pem. ConfigError if one cannot be read."""
    try:
        return [x509.load_pem_x509_crl(each) for each in _LIST.findall(ca)]
    except ValueError:
        raise ConfigError("a list of revoked certificates in ca.pem cannot be read; get ca.pem again") from None


def key_of(path: Path, data: bytes) -> ec.EllipticCurvePrivateKey:
    """Parse the key that was read from `path`. Raises ConfigError if it is not an ECDSA key in PEM without password."""
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: an ECDSA key in PEM, without password, was expected; name the .key file")
    return key


def private(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Serialise the key as its file holds it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def key_fingerprint(key: PublicKeyTypes) -> str:
    """SHA-256 of a public key (DER, SubjectPublicKeyInfo) in hex; the same in every certificate of that key."""
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, info)).hexdigest()


def set_aside(path: Path) -> None:
    """Keep a certificate or key that is about to be replaced as <name>.old-<key id>, or with its serial number too."""
    if not path.exists():
        return
    data, serial = read(path), ""
    if path.suffix == ".pem":
        certificate = parse(data)
        key, serial = certificate.public_key(), f"-{certificate.serial_number:x}"
    else:
        key = key_of(path, data).public_key()
    tag = x509.SubjectKeyIdentifier.from_public_key(key).digest.hex()[:8]
    aside = path.with_stem(f"{path.stem}.old-{tag}")
    if aside.exists() and aside.read_bytes() != data:
        aside = path.with_stem(f"{path.stem}.old-{tag}{serial}")
    if not aside.exists():
        os.link(path, aside)


def write(path: Path, data: bytes, mode: int, *, replace: bool) -> None:
    """Write a file through a temporary one. Raises ConfigError if the file exists and not `replace`."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # unlike a rename, fails if the file has appeared meanwhile
    except FileExistsError:
        raise ConfigError(f"{path} exists; ask for its replacement to make a new key and keep the old one") from None
    finally:
        Path(temporary).unlink(missing_ok=True)


# When certificates end: said from SOON days before, so that nobody is refused unawares.


SOON = 30  # days


def warning(name: str, days_left: int) -> str:
    """Say what to do about a certificate that ends soon or has ended; empty if it does not."""
    if days_left > SOON:
        return ""
    when = "has ended" if days_left < 0 else f"ends in {days_left} days"
    return f"the certificate of {name} {when}, and peers refuse it then; issue another with --replace"


def ends_soon(folder: Path, party: str) -> list[str]:
    """Warnings of a party's own certificate and of the authorities it trusts, in the folder of its kit."""
    found = {party: [parse(read(folder / f"{party}.pem"))]}
    found["the authority"] = authorities_of(read(folder / "ca.pem"))
    days = {
        name: min((each.not_valid_after_utc - datetime.now(UTC)).days for each in own) for name, own in found.items()
    }
    return [line for name, left in days.items() if (line := warning(name, left))]


_DOMAIN = ".party.securevfl.internal"
_URI = "securevfl://party/"
_HOST = re.compile(r"(?=.{1,253}$)(?!-)[A-Za-z0-9_-]{1,63}(\.(?!-)[A-Za-z0-9_-]{1,63})*")
_CLOCK_SKEW = timedelta(hours=1)


@dataclass(frozen=True)
class Summary:
    """What a certificate says. `days_left` counts whole days and is negative once it has expired.

    fingerprint: SHA-256 of the certificate. key: that of its public key, which stays when a certificate is renewed.
    """

    name: str
    hosts: tuple[str, ...]
    issuer: str
    fingerprint: str
    key: str
    valid_from: datetime
    valid_until: datetime
    days_left: int
    serial: str
    revokes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Describe the certificate for people, one fact a line."""
        return [
            f"name         {self.name}",
            f"hosts        {', '.join(self.hosts) or 'none'}",
            f"issuer       {self.issuer}",
            f"fingerprint  {self.fingerprint}",
            f"key          {self.key}",
            f"valid from   {self.valid_from:%Y-%m-%d %H:%M} UTC",
            f"valid until  {self.valid_until:%Y-%m-%d %H:%M} UTC",
            f"days left    {self.days_left}",
            f"serial       {self.serial}",
            *(f"revokes      {line}" for line in self.revokes),
            *([f"warning      {line}"] if (line := warning(self.name, self.days_left)) else []),
        ]


class Identity(Secret):
    """A party's key and certificate and the authorities it trusts, checked when they are read.

    ConfigError if a file is missing, the key can be read by others or belongs to another certificate, or a peer would
    refuse the certificate. `ca` may hold several authorities one after the other, while one takes over from another.
    """

    __slots__ = ("_key", "_signer", "ca", "certificate", "key", "party")

    def __init__(self, certificate: Path, key: Path, ca: Path, now: datetime | None = None) -> None:
        self.certificate, self.ca = read(certificate), read(ca)
        if not key.exists():
            raise ConfigError(f"{key} is not there; put the key beside {certificate.name} that was made for it")
        self._key = read(key)
        if key.stat().st_mode & 0o077:
            raise ConfigError(f"{key}: other users can read this key; chmod 600 it, and issue again if anyone may have")
        own = parse(self.certificate)
        self._signer = key_of(key, self._key)
        self.key = key_fingerprint(own.public_key())
        if self._signer.public_key() != own.public_key():
            raise ConfigError(f"{key} is not the key of {certificate}; bring the two files that were issued together")
        party = _party(own)
        if party is None:
            raise ConfigError(f"{certificate} names no party; expected one made by securevfl for a party")
        self.party = party
        check_own(certificate, self.certificate, self.ca, party, now)

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


def server_name(party: str) -> str:
    """Return the DNS name in a party's certificate, the same on whatever machine it runs. Made by hashing, never
    resolved."""
    return f"{hashlib.sha256(_valid_name(party).encode()).hexdigest()[:32]}{_DOMAIN}"


def init(
    folder: Path, *, name: str = "securevfl", days: int = 3650, replace: bool = False, now: datetime | None = None
) -> Path:
    """Make an authority and return the path of its certificate, folder/ca.pem. Raises ConfigError if there is one and
    not `replace`."""
    now = _now(now)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _valid_name(name))])
    certificate = (
        _builder(subject, subject, key.public_key(), now, now + _days(days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _store_pair(folder / "ca.pem", certificate, key, replace)


def issue(
    folder: Path,
    party: str,
    hosts: Sequence[str] = (),
    *,
    days: int = 365,
    replace: bool = False,
    now: datetime | None = None,
) -> Path:
    """Make a key and a certificate for a party with the authority in `folder`; returns folder/<party>.pem.

    hosts: DNS names and IP addresses, without ports, under which the party serves. The certificate ends with the
    authority at the latest. ConfigError if the authority is missing or has expired, a name cannot be used, or the party
    has a certificate already and not `replace`.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    if _valid_name(party).casefold() == "ca":
        raise ConfigError("a party cannot be called ca: that name is the authority's; rename the party")
    now = _now(now)
    authority, authority_key = _authority(folder, now)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, party)])
    names = [x509.UniformResourceIdentifier(_URI + quote(party, safe="")), x509.DNSName(server_name(party))]
    until = min(now + _days(days), authority.not_valid_after_utc)
    certificate = (
        _builder(subject, authority.subject, key.public_key(), now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName([*names, *map(_host_name, hosts)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return _store_pair(folder / f"{party}.pem", certificate, key, replace)


def show(path: Path, now: datetime | None = None) -> Summary:
    """Summarise what the certificate in a file says. Raises ConfigError if there is none."""
    data = read(path)
    certificate = parse(data)
    until = certificate.not_valid_after_utc
    own = _party(certificate)
    hosts = [host for host in _hosts(certificate) if own is None or host != server_name(own)]
    return Summary(
        name=own or _common_name(certificate.subject),
        hosts=tuple(hosts),
        issuer=_common_name(certificate.issuer),
        fingerprint=_fingerprint(certificate),
        key=bytes.fromhex(key_fingerprint(certificate.public_key())).hex(":"),
        valid_from=certificate.not_valid_before_utc,
        valid_until=until,
        days_left=(until - _now(now)) // timedelta(days=1),
        serial=f"{certificate.serial_number:x}",
        revokes=tuple(
            f"{entry.serial_number:x} since {entry.revocation_date_utc:%Y-%m-%d %H:%M} UTC"
            for revoked in revocation_lists(data)
            for entry in revoked
        ),
    )


def check_peer(peer: bytes, ca: bytes, expected_party: str, now: datetime | None = None) -> None:
    """Whether the certificate `peer` (PEM or DER) is that of `expected_party`, signed by an authority in `ca` (PEM).

    Returns nothing if so; TransportError naming the cause if it is unreadable, self-signed, of an unknown authority,
    not yet valid, expired, revoked, or of another party.
    """
    now = _now(now)
    try:
        certificate = parse(peer)
        own = _party(certificate)
    except ConfigError:
        raise TransportError(f"{expected_party} showed something that is not a certificate") from None
    authorities = authorities_of(ca)
    issuer = next((authority for authority in authorities if _signed_by(certificate, authority)), None)
    if _signed_by(certificate, certificate):
        raise TransportError(
            f"the certificate shown for {expected_party} is self-signed; expected one signed by your authority"
        )
    if issuer is None:
        known = ", ".join(_fingerprint(authority)[:23] for authority in authorities)
        raise TransportError(
            f"the certificate shown for {expected_party} is signed by an unknown authority; expected {known}...: "
            "compare ca.pem with the peer's"
        )
    for what, each in (("the certificate of", certificate), ("the authority behind", issuer)):
        if now < each.not_valid_before_utc:
            start = f"{each.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
            raise TransportError(f"{what} {expected_party} is not yet valid, only from {start}; check both clocks")
        if now > each.not_valid_after_utc:
            until = f"{each.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
            raise TransportError(f"{what} {expected_party} has expired, on {until}; issue a new one")
    if (since := _revoked_on(certificate, issuer, ca)) is not None:
        raise TransportError(
            f"the certificate of {expected_party} was revoked by its authority on {since:%Y-%m-%d %H:%M} UTC; "
            "issue a new one"
        )
    if own != expected_party:
        raise TransportError(
            f"wrong name: expected a certificate of {expected_party}, it is of {own or 'no party'}; check the address"
        )


def check_own(path: Path, certificate: bytes, ca: bytes, party: str, now: datetime | None = None) -> None:
    """Whether peers would take a certificate, read from `path`. ConfigError with the cause if not."""
    try:
        check_peer(certificate, ca, party, now)
    except TransportError as error:
        raise ConfigError(f"{path}: peers would refuse it: {error}") from None


def _authority(folder: Path, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Read the certificate and the key of the authority in a folder. Raises ConfigError if it is missing, its files do
    not fit, or it has expired."""
    authority, path = parse(read(folder / "ca.pem")), folder / "ca.key"
    key = key_of(path, read(path))
    if key.public_key() != authority.public_key():
        raise ConfigError(f"{folder}: ca.key is not the key of ca.pem; bring the two files that were made together")
    if now >= authority.not_valid_after_utc:
        raise ConfigError(f"the authority in {folder} has expired; make a new one with init(..., replace=True)")
    return authority, key


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether this authority has issued the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _revoked_on(certificate: x509.Certificate, issuer: x509.Certificate, ca: bytes) -> datetime | None:
    """Since when a certificate is revoked by its issuer, according to ca.pem; None if it is not.

    ConfigError if a list in `ca` is signed by none of the authorities in it.
    """
    for revoked in revocation_lists(ca):
        if _is_list_of(issuer, revoked):
            entry = revoked.get_revoked_certificate_by_serial_number(certificate.serial_number)
            if entry is not None:
                return entry.revocation_date_utc
        elif not any(_is_list_of(authority, revoked) for authority in authorities_of(ca)):
            raise ConfigError("a list of revoked certificates in ca.pem is of none of its authorities; get it again")
    return None


def _is_list_of(authority: x509.Certificate, revoked: x509.CertificateRevocationList) -> bool:
    key = authority.public_key()
    return (
        isinstance(key, ec.EllipticCurvePublicKey)
        and revoked.issuer == authority.subject
        and revoked.is_signature_valid(key)
    )


def _now(now: datetime | None) -> datetime:
    return datetime.now(UTC) if now is None else now.astimezone(UTC)


def _days(days: int) -> timedelta:
    if days < 1:
        raise ConfigError(f"a certificate of {days} days was asked for; expected 1 or more")
    return timedelta(days=days)


def _valid_name(name: str) -> str:
    if not name.replace("-", "").replace("_", "").isalnum() or len(name) > 64:
        raise ConfigError(f"name {name!r}: up to 64 letters, digits, - and _ were expected; rename it")
    return name


def _host_name(host: str) -> x509.GeneralName:
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


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise ConfigError("the names in the certificate cannot be read; issue a new one") from None


def _party(certificate: x509.Certificate) -> str | None:
    names = _alternative_names(certificate)
    uris = names.get_values_for_type(x509.UniformResourceIdentifier) if names else []
    parties = [unquote(uri.removeprefix(_URI)) for uri in uris if uri.startswith(_URI)]
    return parties[0] if len(parties) == 1 else None


def _hosts(certificate: x509.Certificate) -> list[str]:
    names = _alternative_names(certificate)
    if names is None:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def _common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else name.rfc4514_string()


def _fingerprint(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(hashes.SHA256()).hex(":")


def _store_pair(path: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, replace: bool) -> Path:
    """Write the key, then the certificate beside it at `path`; what was there is kept under another name."""
    key_path = path.with_suffix(".key")
    there = [each for each in (path, key_path) if each.exists()]
    if there and not replace:
        raise ConfigError(f"{there[0]} exists; ask for its replacement to make a new key and keep the old one aside")
    for each in there:
        set_aside(each)
    write(key_path, private(key), 0o600, replace=replace)
    write(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644, replace=replace)
    return path

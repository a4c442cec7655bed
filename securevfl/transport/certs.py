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

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from securevfl.errors import ConfigError
from securevfl.transport.certificate_checks import utc_now
from securevfl.transport.certificate_expiry import expiry_warning
from securevfl.transport.certificate_names import (
    PARTY_URI,
    certificate_fingerprint,
    common_name,
    host_name,
    hosts_of,
    party_of,
    server_name,
    valid_name,
)
from securevfl.transport.pem_files import (
    keep_old_copy,
    key_fingerprint,
    key_pem,
    parse_certificate,
    parse_key,
    read_pem,
    revocation_lists,
    write_pem,
)

_CLOCK_SKEW = timedelta(hours=1)


@dataclass(frozen=True)
class CertificateSummary:
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
            *([f"warning      {line}"] if (line := expiry_warning(self.name, self.days_left)) else []),
        ]


def init(
    folder: Path, *, name: str = "securevfl", days: int = 3650, replace: bool = False, now: datetime | None = None
) -> Path:
    """Make an authority and return the path of its certificate, folder/ca.pem. Raises ConfigError if there is one and
    not `replace`."""
    now = utc_now(now)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, valid_name(name))])
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
    if valid_name(party).casefold() == "ca":
        raise ConfigError("a party cannot be called ca: that name is the authority's; rename the party")
    now = utc_now(now)
    authority, authority_key = _authority(folder, now)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, party)])
    names = [x509.UniformResourceIdentifier(PARTY_URI + quote(party, safe="")), x509.DNSName(server_name(party))]
    until = min(now + _days(days), authority.not_valid_after_utc)
    certificate = (
        _builder(subject, authority.subject, key.public_key(), now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName([*names, *map(host_name, hosts)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return _store_pair(folder / f"{party}.pem", certificate, key, replace)


def show(path: Path, now: datetime | None = None) -> CertificateSummary:
    """Summarise what the certificate in a file says. Raises ConfigError if there is none."""
    data = read_pem(path)
    certificate = parse_certificate(data)
    until = certificate.not_valid_after_utc
    own = party_of(certificate)
    hosts = [host for host in hosts_of(certificate) if own is None or host != server_name(own)]
    return CertificateSummary(
        name=own or common_name(certificate.subject),
        hosts=tuple(hosts),
        issuer=common_name(certificate.issuer),
        fingerprint=certificate_fingerprint(certificate),
        key=bytes.fromhex(key_fingerprint(certificate.public_key())).hex(":"),
        valid_from=certificate.not_valid_before_utc,
        valid_until=until,
        days_left=(until - utc_now(now)) // timedelta(days=1),
        serial=f"{certificate.serial_number:x}",
        revokes=tuple(
            f"{entry.serial_number:x} since {entry.revocation_date_utc:%Y-%m-%d %H:%M} UTC"
            for revoked in revocation_lists(data)
            for entry in revoked
        ),
    )


def _authority(folder: Path, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Read the certificate and the key of the authority in a folder. Raises ConfigError if it is missing, its files do
    not fit, or it has expired."""
    authority, path = parse_certificate(read_pem(folder / "ca.pem")), folder / "ca.key"
    key = parse_key(path, read_pem(path))
    if key.public_key() != authority.public_key():
        raise ConfigError(f"{folder}: ca.key is not the key of ca.pem; bring the two files that were made together")
    if now >= authority.not_valid_after_utc:
        raise ConfigError(f"the authority in {folder} has expired; make a new one with init(..., replace=True)")
    return authority, key


def _days(days: int) -> timedelta:
    if days < 1:
        raise ConfigError(f"a certificate of {days} days was asked for; expected 1 or more")
    return timedelta(days=days)


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


def _store_pair(path: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, replace: bool) -> Path:
    """Write the key, then the certificate beside it at `path`; what was there is kept under another name."""
    key_path = path.with_suffix(".key")
    there = [each for each in (path, key_path) if each.exists()]
    if there and not replace:
        raise ConfigError(f"{there[0]} exists; ask for its replacement to make a new key and keep the old one aside")
    for each in there:
        keep_old_copy(each)
    write_pem(key_path, key_pem(key), 0o600, replace=replace)
    write_pem(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644, replace=replace)
    return path

"""Certificates that identify the parties.

One *authority* (`init`), which all parties trust for this, signs one certificate for each party (`issue`):
    ca.pem, ca.key        the authority; every party gets ca.pem, and ca.key stays with the authority
    bank.pem, bank.key    the party "bank"; only the bank gets both, over a secure channel
A certificate names its party by the URI securevfl://party/<name> and by a DNS name that is derived from it
(`server_name`), so that a gRPC client can check that it reached the right party. It also contains host names. Keys are
ECDSA P-256. A party may also generate its key itself and have it signed with openssl (docs/two-organisations.md).
ca.pem may contain revocation lists (X.509 CRL), which `check_peer` applies.

Files are written atomically, and only their owner can read keys. `replace=True` keeps the old pair as <name>.old-<key
id>; it is valid until it expires.
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
    file_exists,
    keep_old_copy,
    key_fingerprint,
    key_pem,
    parse_certificate,
    parse_key,
    read_pem,
    revocation_lists,
    write_pem,
)

MAX_DAYS = 36_500
"""The longest validity of a certificate."""
_CLOCK_SKEW = timedelta(hours=1)  # certificates are valid from this time before now, because clocks differ


@dataclass(frozen=True)
class CertificateSummary:
    """The content of a certificate.

    Attributes:
        name: the party, or the common name if the certificate names no party.
        hosts: DNS names and IP addresses.
        issuer: common name of the authority.
        fingerprint: SHA-256 of the certificate.
        key: SHA-256 of its public key, which stays the same when a certificate is renewed for the same key.
        valid_from: start of its validity.
        valid_until: end of its validity.
        days_left: full days until it expires; negative once it has expired.
        serial: serial number in hexadecimal.
        revokes: serial number and date of each certificate that revocation lists in the file revoke.
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
        """Describe the certificate for people, one fact per line."""
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
    """Create an authority.

    Args:
        folder: the folder for ca.pem and ca.key.
        name: common name of the authority.
        days: validity of the authority's certificate in days.
        replace: whether an existing authority may be replaced.
        now: start of its validity; the current time by default.

    Returns:
        The path of its certificate, folder/ca.pem.

    Raises:
        ConfigError: the folder contains an authority and `replace` is False.
    """
    now = utc_now(now)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, valid_name(name))])
    certificate = (
        _builder(subject, subject, key.public_key(), now, now + _validity(days))
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
    """Generate a key and a certificate for a party.

    Args:
        folder: the folder of the authority.
        party: name of the party.
        hosts: DNS names and IP addresses of the party's server, without ports.
        days: validity in days. The certificate expires with the authority at the latest.
        replace: whether an existing certificate may be replaced.
        now: start of its validity; the current time by default.

    Returns:
        The path of the certificate, folder/<party>.pem.

    Raises:
        ConfigError: the authority is missing or has expired, a name is invalid, or the party has a certificate and
            `replace` is False.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    if valid_name(party).casefold() == "ca":
        raise ConfigError(
            "a party cannot be named ca, because that is the name of the authority's files",
            "rename the party",
            code="SVFL-PARTIES-NAME",
        )
    now = utc_now(now)
    authority, authority_key = _authority(folder, now)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, party)])
    names = [x509.UniformResourceIdentifier(PARTY_URI + quote(party, safe="")), x509.DNSName(server_name(party))]
    until = min(now + _validity(days), authority.not_valid_after_utc)
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
    """Summarise the certificate in a file, or raise ConfigError if there is none."""
    data = read_pem(path)
    certificate = parse_certificate(data)
    until = certificate.not_valid_after_utc
    party = party_of(certificate)
    hosts = [host for host in hosts_of(certificate) if party is None or host != server_name(party)]
    return CertificateSummary(
        name=party or common_name(certificate.subject),
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
            for revocations in revocation_lists(data)
            for entry in revocations
        ),
    )


def _authority(folder: Path, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Read the certificate and the key of the authority in a folder.

    Args:
        folder: the folder with ca.pem and ca.key.
        now: the time at which the authority must be valid.

    Returns:
        The authority's certificate and private key.

    Raises:
        ConfigError: a file is missing, the key belongs to another certificate, or the authority has expired.
    """
    authority, path = parse_certificate(read_pem(folder / "ca.pem")), folder / "ca.key"
    key = parse_key(path, read_pem(path))
    if key.public_key() != authority.public_key():
        raise ConfigError(
            f"ca.key in {folder} is not the key of ca.pem",
            "use the two files that `securevfl certs init` wrote together",
            code="SVFL-TLS-KEY",
            path=str(path),
        )
    if now >= authority.not_valid_after_utc:
        raise ConfigError(
            f"the authority in {folder} has expired",
            "replace it with `securevfl certs init --replace`",
            code="SVFL-TLS-CERTIFICATE",
            path=str(folder / "ca.pem"),
        )
    return authority, key


def _validity(days: int) -> timedelta:
    if not 1 <= days <= MAX_DAYS:
        raise ConfigError(
            f"a certificate cannot be valid for {days} days",
            f"pass a number from 1 to {MAX_DAYS}",
            code="SVFL-JOB-OPTION",
            days=days,
        )
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
    """Write the key, then the certificate to `path`. Existing files are renamed, not overwritten."""
    key_path = path.with_suffix(".key")
    existing = [file for file in (path, key_path) if file.exists()]
    if existing and not replace:
        raise file_exists(existing[0])
    for file in existing:
        keep_old_copy(file)
    write_pem(key_path, key_pem(key), 0o600, replace=replace)
    write_pem(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644, replace=replace)
    return path

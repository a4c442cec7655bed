"""A certificate for a key that never leaves its party: the party asks, the authority signs.

1. party       `request`      makes <party>.key and <party>.csr (PKCS #10), in a folder of its own; the .csr goes out
2. authority   `read_request` checks it; who it is, is settled by comparing the key's fingerprint, by telephone say
3. authority   `grant`        signs; <party>.pem and ca.pem go back to the party

Of a request the authority takes the public key, the common name and the hosts, and nothing else it may ask for. That
the sender has the key is proved by the request's signature. A new key is a new request in a new folder, so that the
old pair serves until the new certificate is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from securevfl.errors import ConfigError
from securevfl.transport import certs, pem, revocation

_MAX = 16384  # bytes; one of ours has about 500


@dataclass(frozen=True)
class Request:
    """What a party asks for. The signature has been checked; the name is what the sender says."""

    party: str
    hosts: tuple[str, ...]
    public: ec.EllipticCurvePublicKey

    def lines(self) -> list[str]:
        """Describe the request for people, one fact a line; the key is shown as in `Summary`."""
        key = bytes.fromhex(pem.key_fingerprint(self.public)).hex(":")
        return [f"name         {self.party}", f"hosts        {', '.join(self.hosts) or 'none'}", f"key          {key}"]


def request(folder: Path, party: str, hosts: Sequence[str] = ()) -> Path:
    """Make folder/<party>.key, which only its owner can read, and the request folder/<party>.csr; return the path of
    the latter.

    ConfigError if one of the two is there, or a name or host cannot be used; nothing is written then.
    """
    certs.server_name(party)  # refuses what cannot be a name
    names = [certs.host_name(host) for host in hosts]
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, party)])
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    wanted = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    key_path, path = folder / f"{party}.key", folder / f"{party}.csr"
    for each in (key_path, path):
        if each.exists():
            raise ConfigError(f"{each} exists; for a new key make the request in a new folder")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    pem.write(key_path, pem.private(key), 0o600, replace=False)
    try:
        pem.write(path, wanted, 0o644, replace=False)
    except BaseException:
        key_path.unlink()
        raise
    return path


def read_request(path: Path) -> Request:
    """Read what a request asks for. Raises ConfigError, which names what is wrong, if it is no request that can be
    granted."""
    data = pem.read(path)
    if len(data) > _MAX:
        raise ConfigError(f"{path}: a request of at most {_MAX} bytes was expected, {len(data)} came; ask for another")
    try:
        wanted = x509.load_pem_x509_csr(data)
        names = wanted.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        public, signed = wanted.public_key(), wanted.is_signature_valid
        hosts = _hosts(wanted)
    except (ValueError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise ConfigError(
            f"{path}: a certificate request (PKCS #10 in PEM) was expected, something else came; name the .csr file"
        ) from None
    if not isinstance(public, ec.EllipticCurvePublicKey) or public.curve.name != "secp256r1":
        raise ConfigError(f"{path}: an ECDSA P-256 key was expected, {_kind(public)} came; make the request again")
    if not signed:
        raise ConfigError(f"{path}: the signature does not belong to the key in the request; ask for it again")
    if len(names) != 1:
        raise ConfigError(f"{path}: one common name, the party's, was expected, {len(names)} came; ask for another")
    party = str(names[0].value)
    certs.server_name(party)
    for host in hosts:
        certs.host_name(host)
    return Request(party, hosts, public)


def grant(
    folder: Path, wanted: Request, *, days: int = 365, replace: bool = False, now: datetime | None = None
) -> Path:
    """Signs a request with the authority in `folder`; returns folder/<party>.pem.

    ConfigError if the party has a certificate or another key there and not `replace`, which sets them aside; if the
    key is one that was revoked; and as `certs.certify`.
    """
    certificate = certs.certify(folder, wanted.party, wanted.hosts, wanted.public, days=days, now=now)
    ca = pem.read(folder / "ca.pem")
    for old in revocation.issued(folder, wanted.party):
        if old.public_key() == wanted.public and revocation.revoked_on(old, pem.parse(ca), ca) is not None:
            raise ConfigError(f"{wanted.party}: this key was revoked; a request with a new key is needed")
    path, key_path = folder / f"{wanted.party}.pem", folder / f"{wanted.party}.key"
    other_key = key_path.exists() and pem.read_key(key_path).public_key() != wanted.public
    there = [each for each, is_there in ((path, path.exists()), (key_path, other_key)) if is_there]
    if there and not replace:
        raise ConfigError(f"{there[0]} exists; ask for its replacement to grant this request and keep it aside")
    for each in there:
        pem.set_aside(each)
    pem.write(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644, replace=replace)
    if other_key:
        key_path.unlink()
    return path


def _hosts(wanted: x509.CertificateSigningRequest) -> tuple[str, ...]:
    try:
        names = wanted.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))


def _kind(key: object) -> str:
    if isinstance(key, rsa.RSAPublicKey):
        return f"RSA of {key.key_size} bits"
    return f"ECDSA {key.curve.name}" if isinstance(key, ec.EllipticCurvePublicKey) else "another kind"

"""Read and write certificates, keys and revocation lists as PEM files.

Files are written atomically. A replaced file stays next to the new one under another name.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from securevfl.errors import ConfigError

_LIST = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


def read_pem(path: Path) -> bytes:
    """Read the bytes of a file. Raises ConfigError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; name the file that init or issue made") from None


def parse_certificate(data: bytes) -> x509.Certificate:
    """Parse the first certificate, in PEM or DER. Raises ConfigError if there is none."""
    try:
        if data.startswith(b"-----"):
            return x509.load_pem_x509_certificate(data)
        return x509.load_der_x509_certificate(data)
    except (ValueError, x509.InvalidVersion):
        raise ConfigError("a certificate (PEM or DER) was expected, something else came; name the .pem file") from None


def parse_authorities(ca: bytes) -> list[x509.Certificate]:
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


def parse_key(path: Path, data: bytes) -> ec.EllipticCurvePrivateKey:
    """Parse the key that was read from `path`. Raises ConfigError if it is not an ECDSA key in PEM without password."""
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: an ECDSA key in PEM, without password, was expected; name the .key file")
    return key


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Serialise the key as its file holds it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def key_fingerprint(key: PublicKeyTypes) -> str:
    """SHA-256 of a public key (DER, SubjectPublicKeyInfo) in hex; the same in every certificate of that key."""
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, info)).hexdigest()


def keep_old_copy(path: Path) -> None:
    """Keep a certificate or key that is about to be replaced as <name>.old-<key id>, or with its serial number too."""
    if not path.exists():
        return
    data, serial = read_pem(path), ""
    if path.suffix == ".pem":
        certificate = parse_certificate(data)
        key, serial = certificate.public_key(), f"-{certificate.serial_number:x}"
    else:
        key = parse_key(path, data).public_key()
    tag = x509.SubjectKeyIdentifier.from_public_key(key).digest.hex()[:8]
    aside = path.with_stem(f"{path.stem}.old-{tag}")
    if aside.exists() and aside.read_bytes() != data:
        aside = path.with_stem(f"{path.stem}.old-{tag}{serial}")
    if not aside.exists():
        os.link(path, aside)


def write_pem(path: Path, data: bytes, mode: int, *, replace: bool) -> None:
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

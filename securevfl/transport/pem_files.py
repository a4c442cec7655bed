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
    """Read the bytes of a file, or raise ConfigError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}",
            "name the file that `securevfl certs init` or `securevfl certs issue` wrote",
            code="SVFL-FILE-UNUSABLE",
            path=str(path),
        ) from None


def parse_certificate(data: bytes) -> x509.Certificate:
    """Parse the first certificate in PEM or DER, or raise ConfigError."""
    try:
        if data.startswith(b"-----"):
            return x509.load_pem_x509_certificate(data)
        return x509.load_der_x509_certificate(data)
    except (ValueError, x509.InvalidVersion):
        raise ConfigError(
            "the data is not a certificate in PEM or DER", "name the .pem file", code="SVFL-FILE-WRONG-KIND"
        ) from None


def parse_authorities(ca: bytes) -> list[x509.Certificate]:
    """Parse all certificates of a ca.pem, or raise ConfigError if there is none."""
    try:
        return x509.load_pem_x509_certificates(ca)
    except ValueError:
        raise ConfigError(
            "the file of authorities contains no certificate in PEM", "name ca.pem", code="SVFL-FILE-WRONG-KIND"
        ) from None


def revocation_lists(ca: bytes) -> list[x509.CertificateRevocationList]:
    """Parse all revocation lists of a ca.pem, or raise ConfigError if one is damaged."""
    try:
        return [x509.load_pem_x509_crl(block) for block in _LIST.findall(ca)]
    except ValueError:
        raise ConfigError(
            "a revocation list in ca.pem is damaged", "get ca.pem from the authority again", code="SVFL-FILE-DAMAGED"
        ) from None


def parse_key(path: Path, data: bytes) -> ec.EllipticCurvePrivateKey:
    """Parse the private key that was read from `path`, or raise ConfigError."""
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(
            f"{path} is not an ECDSA key in PEM without a password",
            "name the .key file",
            code="SVFL-TLS-KEY",
            path=str(path),
        )
    return key


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Serialise a private key as PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def key_fingerprint(key: PublicKeyTypes) -> str:
    """Return the SHA-256 of a public key (DER, SubjectPublicKeyInfo) in hexadecimal.

    It is the same in every certificate of the key.
    """
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, info)).hexdigest()


def keep_old_copy(path: Path) -> None:
    """Copy a certificate or key that will be replaced to <name>.old-<key id>.

    If another certificate of the same key has that name, the serial number is added.
    """
    if not path.exists():
        return
    data, serial = read_pem(path), ""
    if path.suffix == ".pem":
        certificate = parse_certificate(data)
        key, serial = certificate.public_key(), f"-{certificate.serial_number:x}"
    else:
        key = parse_key(path, data).public_key()
    key_id = x509.SubjectKeyIdentifier.from_public_key(key).digest.hex()[:8]
    copy = path.with_stem(f"{path.stem}.old-{key_id}")
    if copy.exists() and copy.read_bytes() != data:
        copy = path.with_stem(f"{path.stem}.old-{key_id}{serial}")
    if not copy.exists():
        os.link(path, copy)


def write_pem(path: Path, data: bytes, mode: int, *, replace: bool) -> None:
    """Write a file atomically.

    Args:
        path: path of the file to write.
        data: its content.
        mode: its permissions.
        replace: whether an existing file may be replaced.

    Raises:
        ConfigError: the file exists and `replace` is False.
    """
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
            os.link(temporary, path)  # unlike a rename, this fails if the file has appeared meanwhile
    except FileExistsError:
        raise file_exists(path) from None
    finally:
        Path(temporary).unlink(missing_ok=True)


def file_exists(path: Path) -> ConfigError:
    """Return the error for a key or certificate that exists already."""
    return ConfigError(
        f"{path} exists",
        "pass --replace (or replace=True) to write a new key and keep the old one under another name",
        code="SVFL-FILE-EXISTS",
        path=str(path),
    )

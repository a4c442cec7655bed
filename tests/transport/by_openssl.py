"""A certificate authority run with openssl, as in docs/two-organisations.md: sign a
party's key, revoke a certificate.
"""

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")

EXTENSIONS = """
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = URI:securevfl://party/{party}, DNS:{mark}.party.securevfl.internal{hosts}
"""
LISTS = """
[ca]
default_ca = authority
[authority]
database = index.txt
crlnumber = number.txt
default_md = sha256
default_crl_days = 3650
"""


def openssl(line: str, folder: Path) -> str:
    """Run openssl in a folder and return its output."""
    done = subprocess.run(["openssl", *line.split()], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def request(folder: Path, party: str) -> Path:
    """Create a party's key and its request in a separate folder; return the path of the request."""
    folder.mkdir(mode=0o700, exist_ok=True)
    openssl(f"genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {party}.key", folder)
    openssl(f"req -new -key {party}.key -subj /CN={party} -out {party}.csr", folder)
    return folder / f"{party}.csr"


def grant(authority: Path, csr: Path, hosts: Sequence[str] = ()) -> Path:
    """Sign a request at the authority, for the party that its file is named by; return the path of the certificate."""
    party = csr.stem
    mark = hashlib.sha256(party.encode()).hexdigest()[:32]
    names = "".join(f", DNS:{host}" for host in hosts)
    (authority / "party.ext").write_text(EXTENSIONS.format(party=party, mark=mark, hosts=names))
    sign = f"x509 -req -in {csr.resolve()} -CA ca.pem -CAkey ca.key -days 365 -extfile party.ext -out {party}.pem"
    openssl(sign, authority)
    return authority / f"{party}.pem"


def revoke(authority: Path, party: str) -> Path:
    """Put a party's certificate on the authority's list, and that behind the certificate in ca.pem; return its path."""
    for name, text in (("index.txt", ""), ("number.txt", "01\n"), ("lists.cnf", LISTS)):
        if not (authority / name).exists():
            (authority / name).write_text(text)
    by = "ca -config lists.cnf -cert ca.pem -keyfile ca.key"
    openssl(f"{by} -revoke {party}.pem", authority)
    openssl(f"{by} -gencrl -out revoked.pem", authority)
    alone = openssl("x509 -in ca.pem", authority)
    (authority / "ca.pem").write_text(alone + (authority / "revoked.pem").read_text())
    return authority / "ca.pem"

"""Certificates for keys that stay with their party, and certificates that are taken back."""

import os
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from typer.testing import CliRunner, Result

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.errors import ConfigError
from securevfl.transport import pem
from securevfl.transport.certs import Identity, check_peer, init, issue, server_name, show
from securevfl.transport.requests import grant, read_request, request
from securevfl.transport.tls import Credentials
from tests.transport.at_once import together

NOW = datetime(2030, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    init(tmp_path / "authority")
    return tmp_path / "authority"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sign(
    path: Path,
    key: Any,
    *,
    names: tuple[str, ...] = ("bank",),
    hosts: tuple[x509.GeneralName, ...] = (),
    extensions: tuple[x509.ExtensionType, ...] = (),
) -> Path:
    """Writes a request made by hand."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name) for name in names])
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return path


def test_the_key_stays_and_the_certificate_fits(authority: Path, tmp_path: Path) -> None:
    own = tmp_path / "bank"
    asked = request(own, "bank", ["bank.example.org", "10.0.0.7"])
    assert mode(own) == 0o700
    assert mode(own / "bank.key") == 0o600
    assert {path.name for path in own.iterdir()} == {"bank.key", "bank.csr"}
    assert b"PRIVATE" not in asked.read_bytes()
    wanted = read_request(asked)
    assert (wanted.party, wanted.hosts) == ("bank", ("bank.example.org", "10.0.0.7"))
    issued = grant(authority, wanted)
    assert not (authority / "bank.key").exists()
    assert show(issued).hosts == wanted.hosts
    assert f"key          {show(issued).key}" in wanted.lines()
    for path in (issued, authority / "ca.pem"):
        shutil.copyfile(path, own / path.name)
    identity = Identity(own / "bank.pem", own / "bank.key", own / "ca.pem")
    assert identity.party == "bank"
    assert identity.key == show(issued).key.replace(":", "")


def test_nothing_is_overwritten_or_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request(tmp_path / "own", "bank")
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=r"bank\.key exists; for a new key make the request in a new folder"):
        request(tmp_path / "own", "bank")
    for party, host in (("a/b", "h"), ("ok", "*.h"), ("ok", server_name("bank"))):
        with pytest.raises(ConfigError):
            request(tmp_path / "own", party, [host])
    link = os.link

    def full(source: str, target: Path) -> None:
        if target.suffix == ".csr":
            raise OSError(28, "No space left on device")
        link(source, target)

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="No space"):
        request(tmp_path / "own", "shop")
    assert contents(tmp_path) == before


def test_only_name_key_and_hosts_are_taken(authority: Path, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    greedy = (
        x509.BasicConstraints(ca=True, path_length=None),
        x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.CODE_SIGNING]),
        x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00"),
    )
    hosts = (
        x509.DNSName("bank.example.org"),
        x509.UniformResourceIdentifier("securevfl://party/shop"),
        x509.RFC822Name("a@example.org"),
    )
    path = grant(authority, read_request(sign(tmp_path / "csr", key, hosts=hosts, extensions=greedy)))
    plain = issue(authority, "shop")
    asked, usual = (pem.parse(each.read_bytes()).extensions for each in (path, plain))
    assert [each.oid for each in asked] == [each.oid for each in usual]
    for kind in (x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage):
        assert asked.get_extension_for_class(kind).value == usual.get_extension_for_class(kind).value
    names = asked.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [
        x509.UniformResourceIdentifier("securevfl://party/bank"),
        x509.DNSName(server_name("bank")),
        x509.DNSName("bank.example.org"),
    ]
    check_peer(path.read_bytes(), (authority / "ca.pem").read_bytes(), "bank")


def bad_request(path: Path, kind: str) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    match kind:
        case "rsa":
            return sign(path, rsa.generate_private_key(65537, 1024))
        case "curve":
            return sign(path, ec.generate_private_key(ec.SECP384R1()))
        case "names":
            return sign(path, key, names=("bank", "shop"))
        case "no name":
            return sign(path, key, names=())
        case "ca":
            return sign(path, key, names=("ca",))
        case "another party":
            return sign(path, key, hosts=(x509.DNSName(server_name("shop")),))
        case "wildcard":
            return sign(path, key, hosts=(x509.DNSName("*.example.org"),))
        case "large":
            path.write_bytes(sign(path, key).read_bytes() + b"\n" * 20_000)
        case "certificate":
            init(path.parent / "other")
            shutil.copyfile(path.parent / "other" / "ca.pem", path)
        case "nothing":
            path.write_bytes(b"")
        case "signature":
            der = bytearray(
                x509.load_pem_x509_csr(sign(path, key).read_bytes()).public_bytes(serialization.Encoding.DER)
            )
            der[-3] ^= 1
            path.write_bytes(x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM))
        case "other key":  # the name changed under the signature
            data = x509.load_pem_x509_csr(sign(path, key).read_bytes()).public_bytes(serialization.Encoding.DER)
            path.write_bytes(
                x509.load_der_x509_csr(data.replace(b"bank", b"shop")).public_bytes(serialization.Encoding.PEM)
            )
    return path


BAD = {
    "rsa": "ECDSA P-256 key was expected, RSA of 1024 bits came",
    "curve": "ECDSA P-256 key was expected, ECDSA secp384r1 came",
    "names": "one common name, the party's, was expected, 2 came",
    "no name": "one common name, the party's, was expected, 0 came",
    "ca": "cannot be called ca",
    "another party": "stand for parties",
    "wildcard": "without port, was expected",
    "large": "at most 16384 bytes",
    "certificate": r"a certificate request \(PKCS #10 in PEM\) was expected",
    "nothing": r"a certificate request \(PKCS #10 in PEM\) was expected",
    "signature": "signature does not belong",
    "other key": "signature does not belong",
}


@pytest.mark.parametrize("kind", BAD)
def test_requests_that_are_refused(authority: Path, tmp_path: Path, kind: str) -> None:
    path = bad_request(tmp_path / "bad.csr", kind)
    before = contents(authority)
    with pytest.raises(ConfigError, match=BAD[kind]):
        grant(authority, read_request(path))
    assert contents(authority) == before


def test_a_new_key_and_a_new_certificate_for_the_same_key(authority: Path, tmp_path: Path) -> None:
    first = read_request(request(tmp_path / "first", "bank"))
    old = grant(authority, first).read_bytes()
    with pytest.raises(ConfigError, match=r"bank\.pem exists"):
        grant(authority, first)
    renewed = [grant(authority, first, replace=True).read_bytes() for _ in range(2)]
    second = grant(authority, read_request(request(tmp_path / "second", "bank")), replace=True).read_bytes()
    assert not list(authority.glob("bank*.key"))
    assert {path.read_bytes() for path in authority.glob("bank.old-*.pem")} == {old, *renewed}
    for each in (old, *renewed, second):
        check_peer(each, (authority / "ca.pem").read_bytes(), "bank")
    keys = [pem.parse(each).public_key() for each in (old, *renewed, second)]
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_a_key_made_at_the_authority_gives_way(authority: Path, tmp_path: Path) -> None:
    issue(authority, "bank")
    key = (authority / "bank.key").read_bytes()
    wanted = read_request(request(tmp_path / "own", "bank"))
    (authority / "bank.pem").unlink()
    with pytest.raises(ConfigError, match=r"bank\.key exists"):
        grant(authority, wanted)
    grant(authority, wanted, replace=True)
    assert not (authority / "bank.key").exists()
    (kept,) = authority.glob("bank.old-*.key")
    assert kept.read_bytes() == key
    assert mode(kept) == 0o600


def run(*arguments: object, answer: str = "") -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=answer)


def test_commands(tmp_path: Path) -> None:
    own, folder = tmp_path / "own", tmp_path / "authority"
    assert run("certs", "init", folder).exit_code == 0
    told = run("certs", "request", own, "bank", "--host", "bank.example.org").stdout
    assert "bank.example.org" in told
    ask = ("certs", "issue", folder, "--request", own / "bank.csr")
    before = contents(folder)
    shown = run(*ask, answer="n\n")
    assert shown.exit_code == 1
    assert told.splitlines()[:3] == shown.stdout.splitlines()[:3]
    assert run(*ask).exit_code == 1  # nobody there to answer
    for wrong, words in (
        ((*ask[:3], "shop", *ask[3:]), "a request of shop was expected, it is of bank"),
        ((*ask, "--host", "h"), "leave the option out"),
        (ask[:3], "neither came"),
    ):
        done = run(*wrong, answer="y\n")
        assert done.exit_code == 2
        assert words in done.stderr
    assert contents(folder) == before
    assert run(*ask, answer="y\n").exit_code == 0
    assert run(*ask[:3], "bank", *ask[3:], "--replace").exit_code == 0
    assert "revoked" in run("certs", "revoke", folder, "bank").stdout
    done = run("certs", "revoke", folder, "bank")
    assert done.exit_code == 2
    assert "no certificate of bank that is not revoked yet" in done.stderr
    done = run(*ask[:3], "bank", *ask[3:], "--replace")
    assert "this key was revoked" in done.stderr


PAGE = Path(__file__).parents[2] / "docs" / "two-organisations.md"


@pytest.mark.skipif(not PAGE.exists(), reason="not beside a checkout")
def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked, made, signed = re.findall(r"^securevfl (certs .*)$", PAGE.read_text(), re.MULTILINE)
    assert run(*asked.split()).exit_code == 0
    shutil.copy("own/bank.csr", "bank.csr")  # by mail
    assert run(*made.split()).exit_code == 0
    assert run(*signed.split(), answer="y\n").exit_code == 0
    told = run("kit", "kits", "--party", "bank=localhost:7301", "--party", "shop=localhost:7302").stdout
    assert "put bank.key" in told
    shutil.copy("own/bank.key", "kits/bank/bank.key")
    assert Credentials(Path("kits/bank"), "bank").party == "bank"


def test_a_kit_without_a_key(tmp_path: Path) -> None:
    kits = tmp_path / "kits"
    init(kits / "authority")
    grant(kits / "authority", read_request(request(tmp_path / "own", "bank")))
    make = ("kit", kits, "--party", "bank=localhost:7301", "--party", "shop")
    told = run(*make).stdout
    assert f"{kits / 'bank'}: put bank.key, which bank has, beside bank.pem" in told
    assert f"{kits / 'shop'}\n" in told
    assert {path.name for path in (kits / "bank").iterdir()} == {"job.toml", "peers.toml", "ca.pem", "bank.pem"}
    with pytest.raises(ConfigError, match=r"bank\.key is not there; put the key beside bank\.pem"):
        Credentials(kits / "bank", "bank")
    shutil.copyfile(kits / "shop" / "shop.key", kits / "bank" / "bank.key")
    done = run(*make)
    assert done.exit_code == 2
    assert "other users can read" in done.stderr
    (kits / "bank" / "bank.key").chmod(0o600)
    assert "is not the key of" in run(*make).stderr
    shutil.copy(tmp_path / "own" / "bank.key", kits / "bank" / "bank.key")
    assert run(*make).exit_code == 0
    assert Credentials(kits / "bank", "bank").party == "bank"


@pytest.mark.parametrize("hub", [None, "bank"])
def test_parties_with_keys_of_their_own_train(meet: Any, tmp_path: Path, hub: str | None) -> None:
    for name in ("bank", "shop", "telco"):
        request(tmp_path / name, name, ["localhost"])
    init(tmp_path / "authority")
    for name in ("bank", "shop", "telco"):
        grant(tmp_path / "authority", read_request(tmp_path / name / f"{name}.csr"))
    meeting = meet(3, hub)
    assert not [path for path in (tmp_path / "authority").glob("*.key") if path.stem != "ca"]
    trained = vfl.simulate(meeting.job, vfl.datasets.breast_cancer(3))
    for name, part in together(meeting).items():
        assert (part.theta == trained.parts[name].theta).all()

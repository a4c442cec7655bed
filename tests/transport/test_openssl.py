"""Certificates by openssl for keys that stay with their party, by the commands of docs/two-organisations.md."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.errors import ConfigError
from securevfl.transport.certs import init, issue, show
from securevfl.transport.identity import Identity
from securevfl.transport.tls import Credentials
from tests.builders import raises_code
from tests.transport.by_openssl import grant, needs_openssl, openssl, request
from tests.transport.processes import together

pytestmark = needs_openssl
PAGE = Path(__file__).parents[2] / "docs" / "two-organisations.md"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.long
@pytest.mark.skipif(not PAGE.exists(), reason="no checkout")
def test_the_commands_of_the_page(tmp_path: Path) -> None:
    """They run in one shell: the bank's key never leaves its folder, and its certificate is revoked at the end."""
    part = PAGE.read_text().split("## A private key that nobody else sees")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
    bank, authority, kit, revoke = blocks
    before = f'securevfl() {{ "{sys.executable}" -m securevfl.cli.main "$@"; }}\nset -e\n'

    def shell(text: str) -> str:
        done = subprocess.run(["sh", "-c", before + text], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (fingerprint,) = re.findall(r"= (\S+)$", shell(bank), re.MULTILINE)
    signed = shell(authority)
    assert signed.count(fingerprint) == 2  # of the request, and of the certificate
    assert show(tmp_path / "kits/authority/bank.pem").hosts == ("bank.example.org",)
    assert "bank copies its bank.key" in shell(kit)
    assert not (tmp_path / "kits/authority/bank.key").exists()
    shutil.copy(tmp_path / "own/bank.key", tmp_path / "kits/bank/bank.key")
    assert Credentials(tmp_path / "kits/bank", "bank").party == "bank"
    shell(revoke)
    number = show(tmp_path / "kits/authority/bank.pem").serial
    assert [line.split()[0] for line in show(tmp_path / "kits/authority/ca.pem").revokes] == [number]
    shutil.copy(tmp_path / "kits/authority/ca.pem", tmp_path / "kits/bank/ca.pem")
    with raises_code(ConfigError, "SVFL-TLS-CERTIFICATE"):
        Credentials(tmp_path / "kits/bank", "bank")


def test_openssl_takes_what_is_issued_and_signed(tmp_path: Path) -> None:
    init(tmp_path / "authority")
    issue(tmp_path / "authority", "shop", ["shop.example.org"])
    signed = grant(tmp_path / "authority", request(tmp_path / "own", "bank"), ["bank.example.org"])
    for purpose in ("sslclient", "sslserver"):
        printed = openssl(f"verify -CAfile ca.pem -purpose {purpose} -x509_strict shop.pem", tmp_path / "authority")
        assert printed == "shop.pem: OK\n"
    for name in ("ca.pem", "bank.pem"):
        shutil.copy(tmp_path / "authority" / name, tmp_path / "own")
    identity = Identity(*(tmp_path / "own" / name for name in ("bank.pem", "bank.key", "ca.pem")))
    assert identity.party == "bank"
    assert identity.key == show(signed).key.replace(":", "")


def test_a_kit_without_a_key(tmp_path: Path) -> None:
    kits = tmp_path / "kits"
    init(kits / "authority")
    grant(kits / "authority", request(tmp_path / "own", "bank"))
    make = ("kit", kits, "--party", "bank=localhost:7301", "--party", "shop")
    printed = run(*make).stdout
    assert f"{kits / 'bank'}: bank copies its bank.key into this folder" in printed
    assert f"{kits / 'shop'}\n" in printed
    assert {path.name for path in (kits / "bank").iterdir()} == {"job.toml", "peers.toml", "ca.pem", "bank.pem"}
    with raises_code(ConfigError, "SVFL-TLS-KEY"):
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
    init(tmp_path / "authority")
    for name in ("bank", "shop", "telco"):
        grant(tmp_path / "authority", request(tmp_path / name, name), ["localhost"])
    meeting = meet(3, hub)
    assert not [path for path in (tmp_path / "authority").glob("*.key") if path.stem != "ca"]
    trained = vfl.simulate(meeting.job, vfl.datasets.breast_cancer(3))
    for name, part in together(meeting).items():
        assert (part.theta == trained.parts[name].theta).all()

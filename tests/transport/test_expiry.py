"""Certificates that expire soon are reported, revocations are listed, and a kit states where its files go."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.errors import TransportError
from securevfl.organisations.join import join
from securevfl.runtime import eventlog
from securevfl.transport import certs, pem_files
from securevfl.transport.certificate_expiry import WARNING_DAYS, expiry_warning, expiry_warnings
from tests.transport.by_openssl import needs_openssl, revoke


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_from_thirty_days_on() -> None:
    assert expiry_warning("bank", WARNING_DAYS + 1) == ""
    assert "expires in 30 days" in expiry_warning("bank", WARNING_DAYS)
    assert "has expired" in expiry_warning("bank", -1)


@needs_openssl
def test_show_warns_and_lists_what_is_revoked(tmp_path: Path) -> None:
    certs.init(tmp_path)
    certs.issue(tmp_path, "bank", [], days=20)
    certs.issue(tmp_path, "shop", [], days=200)
    assert "warning      the certificate of bank expires in" in run("certs", "show", tmp_path / "bank.pem").stdout
    assert "warning" not in run("certs", "show", tmp_path / "shop.pem", tmp_path / "ca.pem").stdout
    assert "revokes" not in run("certs", "show", tmp_path / "ca.pem").stdout
    number = f"{pem_files.parse_certificate(pem_files.read_pem(tmp_path / 'shop.pem')).serial_number:x}"
    assert f"serial       {number}" in run("certs", "show", tmp_path / "shop.pem").stdout
    revoke(tmp_path, "shop")
    assert f"revokes      {number} since 2" in run("certs", "show", tmp_path / "ca.pem").stdout


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(("days", "warns"), [((300, 20), True), ((20, 25), True), ((300, 300), False)])
def test_any_of_several_authorities_is_reported(
    tmp_path: Path, days: tuple[int, int], order: tuple[int, int], warns: bool
) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder, validity in zip(folders, days, strict=True):
        certs.init(folder, days=validity)
    certs.issue(folders[0], "bank", days=min(days[0], 200))
    (folders[0] / "ca.pem").write_bytes(b"".join([(folders[k] / "ca.pem").read_bytes() for k in order]))
    reported = [warning for warning in expiry_warnings(folders[0], "bank") if "of the authority" in warning]
    assert len(reported) == warns
    assert all(f"expires in {min(days) - 1} days" in warning for warning in reported)


def test_join_warns_on_the_screen_and_in_the_log(meet: Any, tmp_path: Path) -> None:
    meeting = meet(2)
    kit = meeting.kit("bank")
    assert expiry_warnings(kit, "bank") == []
    authority = meeting.folder / "authority"
    certs.issue(authority, "bank", ["127.0.0.1"], days=10, replace=True)
    for name in ("bank.pem", "bank.key"):
        (kit / name).write_bytes((authority / name).read_bytes())
    handler = eventlog.write_to(tmp_path / "log")
    try:
        with pytest.raises(TransportError):
            join(meeting.job, vfl.datasets.breast_cancer()[0], kit / "peers.toml", timeout=1)
    finally:
        eventlog.LOGGER.removeHandler(handler)
        handler.close()
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    (reason,) = (event["reason"] for event in events if event["event"] == "certificate expires")
    assert reason.startswith("the certificate of bank expires in ")


def test_a_kit_says_what_goes_where_and_has_a_port_a_party(tmp_path: Path) -> None:
    done = run("kit", tmp_path / "kits", "--party", "bank=localhost:7301", "--party", "shop=localhost:7302")
    for word in ("Send each party only its own folder", "Keep ", "authority/shop.key"):
        assert word in done.stdout
    done = run("kit", tmp_path / "more", "--party", "bank=localhost:7301", "--party", "shop=localhost:7301")
    assert done.exit_code == 2
    assert "bank and shop have the same address localhost:7301" in done.stderr

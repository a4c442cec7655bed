"""A peer that returns with another certificate key is reported; a new certificate of the same key is not."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

import securevfl as vfl
from securevfl.organisations.join import join
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.run_setup import run_key
from securevfl.transport import certs
from securevfl.transport.certs import show
from tests.transport.by_openssl import grant, needs_openssl, request
from tests.transport.processes import at_each

pytestmark = needs_openssl


class Cut(Exception):
    """Raised in place of a lost process."""


def run(meeting: Any, cut_at: int | None = None) -> dict[str, Any]:
    """Let all parties join in threads. Return each result or error."""

    def on_round(done: int, of: int) -> None:
        if done == cut_at:
            raise Cut

    def play(party: vfl.Party, kit: Path) -> Any:
        states = Checkpoints(kit / "states", party.name, every=2)
        return join(
            meeting.job, party, kit / "peers.toml", timeout=20, patience=5, checkpoints=states, on_round=on_round
        )

    return at_each(meeting, play)


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    records = [json.loads(record.getMessage()) for record in caplog.records if record.name == "securevfl"]
    return [event for event in records if event["event"] == name]


@pytest.mark.parametrize("change", ["new key", "same key"])
def test_a_changed_key_is_told(meet: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str) -> None:
    authority = tmp_path / "authority"
    certs.init(authority)
    for name in ("bank", "shop"):
        grant(authority, request(tmp_path / name, name))
    meeting = meet(2)
    caplog.set_level(logging.INFO, "securevfl")
    run(meeting, cut_at=5)
    before = {name: show(authority / f"{name}.pem").key.replace(":", "") for name in ("bank", "shop")}
    identified = [(event["party"], event["peer"], event["key"]) for event in events(caplog, "peer identified")]
    assert sorted(identified) == [("bank", "shop", before["shop"]), ("shop", "bank", before["bank"])]
    for party in vfl.datasets.breast_cancer(2):
        states, key = Checkpoints(meeting.kit(party.name) / "states", party.name), run_key(meeting.job, party)
        assert states.load(key, states.rounds(key)[-1]).identities == before

    if change == "new key":
        certs.issue(authority, "bank", replace=True)
        shutil.copy(authority / "bank.key", meeting.kit("bank") / "bank.key")
    else:
        grant(authority, meeting.kit("bank") / "bank.csr")
    assert (authority / "bank.pem").read_bytes() != (meeting.kit("bank") / "bank.pem").read_bytes()
    shutil.copy(authority / "bank.pem", meeting.kit("bank") / "bank.pem")
    caplog.clear()
    parts = run(meeting)

    assert {event["round"] for event in events(caplog, "resumed")} == {4}
    now = show(authority / "bank.pem").key.replace(":", "")
    changed = events(caplog, "key changed")
    if change == "new key":
        assert {event["party"] for event in changed} == {"bank", "shop"}
        for event in changed:
            assert (event["peer"], event["earlier_key"], event["key"]) == ("bank", before["bank"], now)
            assert "bank has another key than up to round 4" in event["reason"]
        assert {record.levelname for record in caplog.records if "key changed" in record.getMessage()} == {"ERROR"}
    else:
        assert changed == []
        assert now == before["bank"]
    undisturbed = vfl.simulate(meeting.job, vfl.datasets.breast_cancer(2))
    for name, part in parts.items():
        assert (part.theta == undisturbed.parts[name].theta).all()

"""What a partner is worth, between organisations: one consent for all models, and all measurements entered first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.data.load import write_rows
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConsentError, TransportError
from securevfl.organisations import comparing
from securevfl.organisations.comparing import compare_with
from securevfl.organisations.conversation import Venue
from securevfl.protocols.shares.score_ledger import Ledger
from tests.forked import Forked
from tests.training.test_comparison import tables
from tests.transport.at_once import at_each

JOB = vfl.Job(model=vfl.Trees(trees=2, depth=2, own_score=False), seed=2)
LINE: dict[str, Any] = {"timeout": 20, "patience": 5}
COMMAND = "from securevfl.cli.main import main; main()"
TOLD = {"logistic": 0, "bins": 1, "trees": 2}  # and how many have been trained before


def refused(sheet: Any) -> None:
    raise ConsentError("not agreed")


def held_out(party: vfl.Party) -> list[bytes]:
    return party.keys_of(JOB.schedule(party.register).test)


def start(meeting: Any, party: str, *options: str) -> subprocess.Popen[str]:
    own = ["compare", f"{party}/job.toml", "--party", party, "--data", f"{party}.csv", "--ledger", f"{party}.ledger"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    env = os.environ | {"COLUMNS": "100"}
    return Forked([sys.executable, "-c", COMMAND, *own, *options], cwd=meeting.folder, env=env, text=True, **pipes)


def ended(*processes: Any) -> list[tuple[int, str, str]]:
    outputs = [process.communicate(timeout=240) for process in processes]
    return [(process.returncode, *each) for process, each in zip(processes, outputs, strict=True)]


def test_commands_of_two_organisations_agree_once_and_compare(meet: Any, running: list[Any]) -> None:
    """Without consent nothing is entered; with it all models are compared; the same again is refused by the ledger."""
    meeting = meet(2, None, JOB)
    for party in tables(1600):
        columns = [f"{party.name}{j}" for j in range(3)] + ["y"] * party.active
        rows = party.X if party.y is None else np.column_stack([party.X, party.y])
        lines = [
            ",".join(["id", *columns]),
            *(f"{k}," + ",".join(map(repr, row)) for k, row in enumerate(rows.tolist())),
        ]
        (meeting.folder / f"{party.name}.csv").write_text("\n".join(lines) + "\n")
        write_rows(meeting.folder / f"{party.name}.csv", np.arange(1600))
    digests = {}
    for name in ("bank", "shop"):  # each asks for its own consent; the other has given it or not
        pair = [start(meeting, "bank"), start(meeting, "shop")] if not digests else [
            start(meeting, "bank", "--accept", digests["bank"]), start(meeting, "shop")
        ]  # fmt: skip
        running += pair
        for (code, _, said), who in zip(ended(*pair), ("bank", "shop"), strict=True):
            assert code != 0
            if who == name:
                assert "--accept" in said, said
                digests[name] = re.search(r"--accept ([0-9a-f]{16})", said).group(1)  # type: ignore[union-attr]
                assert "3 trainings for a comparison" in said
    ledgers = {name: DisclosureLedger(meeting.folder / f"{name}.ledger", name) for name in digests}
    shop = tables(1600)[1]
    assert Ledger(ledgers["shop"].scores).measured(held_out(shop)) == 0
    pair = [start(meeting, name, "--accept", digest) for name, digest in digests.items()]
    running += pair
    (code, table, said), (other, nothing, why) = ended(*pair)
    assert (code, other) == (0, 0), said + why
    for word in ("bank alone", "bank, shop", *TOLD, "The best AUC rises by"):
        assert word in table
    assert "none is kept" in nothing
    assert "0." not in nothing
    assert Ledger(ledgers["shop"].scores).measured(held_out(shop)) == 3
    assert len({entry.run for entry in ledgers["shop"].read().entries}) == 3
    assert not [*meeting.folder.rglob("*model.json")]
    pair = [start(meeting, name) for name in digests]
    running += pair
    assert any("with this it would be 6" in each for _, _, each in ended(*pair))
    assert Ledger(ledgers["shop"].scores).measured(held_out(shop)) == 3


def test_measurements_are_in_the_ledger_before_the_first_training(
    meet: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where another party breaks off there; one that has refused its consent leaves nothing in anybody's."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    meeting, parties = meet(2, None, JOB), tables(600)
    ledgers = {party.name: DisclosureLedger(tmp_path / f"{party.name}.ledger", party.name) for party in parties}
    job = JOB.model_copy(update={"accepts": ("small_metrics",)})
    seen: list[int] = []

    def stopped(*_: Any, **__: Any) -> None:
        seen.append(Ledger(ledgers["shop"].scores).measured(held_out(parties[1])))
        raise TransportError("stopped here")

    def compared(party: vfl.Party, kit: Path) -> Any:
        consent = refused if party.name == who else None
        return compare_with(
            job, party, Venue.of(kit / "peers.toml", **LINE), ledger=ledgers[party.name], consent=consent
        )

    monkeypatch.setattr(comparing, "take_part", stopped)
    for who in ("bank", "shop"):
        found = at_each(meeting, compared, parties)
        assert isinstance(found[who], ConsentError)
        assert not seen
        assert Ledger(ledgers["shop"].scores).measured(held_out(parties[1])) == 0
    who = "nobody"
    assert all(isinstance(each, TransportError) for each in at_each(meeting, compared, parties).values())
    assert set(seen) == {3}
    assert not any(ledger.read().entries for ledger in ledgers.values())

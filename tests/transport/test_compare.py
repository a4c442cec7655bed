"""`compare` between organisations: one consent for all models, and all measurements
recorded before the first training.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.data.row_order import write_rows
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, ConsentError, LabelError, PeerStopped, ProtocolError, TransportError
from securevfl.organisations import compare
from securevfl.organisations.compare import compare_with
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from tests.builders import raises_code
from tests.forked import Forked
from tests.training.test_comparison import tables
from tests.transport.processes import at_each

COMPARED_JOB = vfl.Job(model=vfl.Trees(trees=2, depth=2, boosted_score=False), seed=2)
LINE: dict[str, Any] = {"timeout": 20, "patience": 5}
COMMAND = "from securevfl.cli.main import main; main()"
TOLD = {"logistic": 0, "bins": 1, "trees": 2}  # models, and how many were trained before each


def refused(sheet: Any) -> None:
    raise ConsentError("not agreed")


def held_out(party: vfl.Party) -> list[bytes]:
    return party.keys_of(COMPARED_JOB.schedule(party.register).test)


def start(meeting: Any, party: str, *options: str) -> subprocess.Popen[str]:
    arguments = [
        "compare",
        f"{party}/job.toml",
        "--party",
        party,
        "--data",
        f"{party}.csv",
        "--ledger",
        f"{party}.ledger",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    env = os.environ | {"COLUMNS": "100"}
    return Forked(
        [sys.executable, "-c", COMMAND, *arguments, *options], cwd=meeting.folder, env=env, text=True, **pipes
    )


def ended(*processes: Any) -> list[tuple[int, str, str]]:
    outputs = [process.communicate(timeout=240) for process in processes]
    return [(process.returncode, *streams) for process, streams in zip(processes, outputs, strict=True)]


@pytest.mark.long
def test_commands_of_two_organisations_agree_once_and_compare(meet: Any, running: list[Any]) -> None:
    """Without consent nothing is recorded. With it all models are compared, and the ledger refuses the same again."""
    meeting = meet(2, None, COMPARED_JOB)
    for party in tables(1600):
        columns = [f"{party.name}{j}" for j in range(party.X.shape[1])] + ["y"] * party.active
        rows = party.X if party.y is None else np.column_stack([party.X, party.y])
        lines = [
            ",".join(["id", *columns]),
            *(f"{k}," + ",".join(map(repr, row)) for k, row in enumerate(rows.tolist())),
        ]
        (meeting.folder / f"{party.name}.csv").write_text("\n".join(lines) + "\n")
        write_rows(meeting.folder / f"{party.name}.csv", np.arange(1600))
    digests = {}
    for name in ("bank", "shop"):  # each command asks for its consent; the other party has given it or not
        pair = [start(meeting, "bank"), start(meeting, "shop")] if not digests else [
            start(meeting, "bank", "--accept", digests["bank"]), start(meeting, "shop")
        ]  # fmt: skip
        running += pair
        for (code, _, errors), who in zip(ended(*pair), ("bank", "shop"), strict=True):
            assert code != 0
            if who == name:
                assert "--accept" in errors, errors
                digests[name] = re.search(r"--accept ([0-9a-f]{16})", errors).group(1)  # type: ignore[union-attr]
                assert "This comparison trains 3 models" in errors
    ledgers = {name: DisclosureLedger(meeting.folder / f"{name}.ledger", name) for name in digests}
    shop = tables(1600)[1]
    assert ScoreLedger(ledgers["shop"].path).evaluation_count(held_out(shop)) == 0
    pair = [start(meeting, name, "--accept", digest) for name, digest in digests.items()]
    running += pair
    (code, table, errors), (other, nothing, why) = ended(*pair)
    assert (code, other) == (0, 0), errors + why
    for word in ("bank alone", "bank, shop", *TOLD, "The best AUC rises by"):
        assert word in table
    assert "no model is stored" in nothing
    assert "0." not in nothing
    assert ScoreLedger(ledgers["shop"].path).evaluation_count(held_out(shop)) == 3
    assert len({entry.run for entry in ledgers["shop"].read().entries}) == 3
    assert not [*meeting.folder.rglob("*model.json")]
    pair = [start(meeting, name) for name in digests]
    running += pair
    assert any("at most" in output and "evaluations" in output for _, _, output in ended(*pair))
    assert ScoreLedger(ledgers["shop"].path).evaluation_count(held_out(shop)) == 3


def test_measures_are_in_the_ledger_before_the_first_training(
    meet: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """This also holds if another party stops there. If a party refuses consent, nothing is in any ledger."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    meeting, parties = meet(2, None, COMPARED_JOB), tables(600)
    ledgers = {party.name: DisclosureLedger(tmp_path / f"{party.name}.ledger", party.name) for party in parties}
    job = COMPARED_JOB.model_copy(update={"accepts": ("small_metrics",)})
    seen: list[int] = []

    def stopped(*_: Any, **__: Any) -> None:
        seen.append(ScoreLedger(ledgers["shop"].path).evaluation_count(held_out(parties[1])))
        raise TransportError("stopped here")

    def compared(party: vfl.Party, kit: Path) -> Any:
        consent = refused if party.name == who else None
        return compare_with(
            job, party, PeerSettings.of(kit / "peers.toml", **LINE), ledger=ledgers[party.name], consent=consent
        )

    monkeypatch.setattr(compare, "take_part", stopped)
    for who in ("bank", "shop"):
        results = at_each(meeting, compared, parties)
        assert isinstance(results[who], ConsentError)
        assert not seen
        assert ScoreLedger(ledgers["shop"].path).evaluation_count(held_out(parties[1])) == 0
    who = "nobody"
    broken = at_each(meeting, compared, parties)
    assert all(isinstance(error, TransportError) for error in broken.values())
    assert all("interrupted the training of logistic" in str(error) for error in broken.values())
    assert set(seen) == {3}
    assert not any(ledger.read().entries for ledger in ledgers.values())


def venue(kit: Path) -> PeerSettings:
    return PeerSettings.of(kit / "peers.toml", **LINE)


@pytest.mark.parametrize("name", ["bank", "shop"])
def test_sizes_of_a_comparison_stay_those_agreed_on(meet: Any, tmp_path: Path, name: str) -> None:
    """One party adds a column to its table after the consent; the other one refuses the first training."""
    meeting, parties = meet(2, None, COMPARED_JOB), tables(1600)
    (party,) = (party for party in parties if party.name == name)
    (other,) = (party for party in parties if party.name != name)
    wider = vfl.Party(name, np.hstack([party.X, party.X[:, :1] ** 2]), party.y, ids=party.ids)

    def compared(at: vfl.Party, kit: Path) -> Any:
        def exchange(model: str) -> None:
            if at is party and model == "logistic, bank, shop":
                vars(party).clear()
                vars(party).update(vars(wider))

        return compare_with(COMPARED_JOB, at, venue(kit), ledger=tmp_path / f"{at.name}.ledger", on_model=exchange)

    results = at_each(meeting, compared, parties)
    assert isinstance(results[other.name], ProtocolError), results
    assert f"number of columns of {name}" in str(results[other.name])
    entries = DisclosureLedger(tmp_path / f"{other.name}.ledger", other.name).read().entries
    assert not entries


@pytest.mark.slow
def test_three_parties_compare_with_labels_at_the_named_party(meet: Any, tmp_path: Path) -> None:
    meeting, parties, trained = meet(3, None, COMPARED_JOB), tables(1600, parties=3), list[str]()

    def compared(party: vfl.Party, kit: Path) -> Any:
        rounds = [(0, 0)]

        def on_round(done: int, of: int) -> None:
            assert done <= of
            rounds.append((done, of))

        comparison = compare_with(
            COMPARED_JOB,
            party,
            venue(kit),
            ledger=tmp_path / f"{party.name}.ledger",
            on_model=trained.append,
            on_round=on_round,
        )
        assert sum(before > after for (before, _), (after, _) in pairwise(rounds)) == 2  # from one training to the next
        return comparison

    comparisons = at_each(meeting, compared, parties)
    assert comparisons["shop"] is comparisons["telco"] is None, comparisons
    assert [(row.columns, row.model) for row in comparisons["bank"].rows] == [
        *(("bank alone", name) for name in TOLD),
        *(("bank, shop, telco", name) for name in TOLD),
    ]
    assert trained.count("trees, bank, shop, telco") == 3
    for party in parties[1:]:
        ledger = DisclosureLedger(tmp_path / f"{party.name}.ledger", party.name)
        assert ScoreLedger(ledger.path).evaluation_count(held_out(party)) == 3


def test_a_party_out_of_evaluations_stops_and_advises_nobody(meet: Any, tmp_path: Path) -> None:
    meeting, parties = meet(2, None, COMPARED_JOB), tables(1600)
    ledgers = {party.name: DisclosureLedger(tmp_path / f"{party.name}.ledger", party.name) for party in parties}
    ScoreLedger(ledgers["shop"].path).record_evaluation("bank", held_out(parties[1]), times=2)

    def compared(party: vfl.Party, kit: Path) -> Any:
        return compare_with(COMPARED_JOB, party, venue(kit), ledger=ledgers[party.name])

    results = at_each(meeting, compared, parties)
    assert "at most 4 evaluations" in str(results["shop"])
    assert isinstance(results["bank"], PeerStopped)
    assert "go on" not in str(results["bank"])
    assert ScoreLedger(ledgers["shop"].path).evaluation_count(held_out(parties[1])) == 2


def test_two_comparisons_at_once_are_one(meet: Any, tmp_path: Path) -> None:
    """The second comparison would otherwise meet the first one's partner between two trainings."""
    meeting, (bank, _) = meet(2, None, COMPARED_JOB), tables(1600)
    ledger = DisclosureLedger(tmp_path / "bank.ledger", "bank")
    with compare.exclusive_comparison(ledger), raises_code(ConfigError, "SVFL-LEDGER-BUSY", party="bank"):
        compare_with(COMPARED_JOB, bank, venue(meeting.folder / "bank"), ledger=ledger)


@pytest.mark.parametrize("classes", [3, 10])
def test_several_classes_are_refused_before_anything_is_sent(classes: int, meet: Any, tmp_path: Path) -> None:
    meeting, (bank, _) = meet(2, None, COMPARED_JOB), tables(1600)
    several = vfl.Party("bank", bank.X, np.arange(1600) % classes, ids=np.arange(1600))
    with raises_code(LabelError, "SVFL-LABEL-CLASSES"):
        compare_with(COMPARED_JOB, several, venue(meeting.folder / "bank"), ledger=tmp_path / "bank.ledger")

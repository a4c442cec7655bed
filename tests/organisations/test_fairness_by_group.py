"""Rates by group where another party has the groups: against plain counts, through the door, and what is not told."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.base.roles import ACTIVE, PARTNER, Roles
from securevfl.cli.main import app
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.limits import Limit
from securevfl.errors import LabelError, LeakageError, PartiesError, TableError
from securevfl.organisations import fairness_by_group as module
from securevfl.organisations.fairness_by_group import ask_groups, count_groups, give_groups, groups_told
from securevfl.protocols.shares.group_counts import STEP, GroupCounts
from tests.organisations.test_correlate import Seen
from tests.transport.conftest import meet as meet
from tests.transport.test_predict import each

N = 2000
DRAW = np.random.default_rng(4)
GROUP = np.repeat(["south", "north", "east", "west", "isle"], [900, 700, 300, 60, 40])
Y = (DRAW.random(N) < np.where(GROUP == "north", 0.5, 0.3)).astype(int)
SAID = np.where(DRAW.random(N) < 0.8, Y, 1 - Y)
BANK = vfl.Party("bank", DRAW.normal(size=(N, 1)), Y, ids=range(N))
SHOP = vfl.Party("shop", DRAW.normal(size=(N, 1)), ids=range(N))
TOLD = {"south": ["south"], "north": ["north"], "east": ["east"], "others": ["west", "isle"]}


def counts(rows: np.ndarray) -> list[int]:
    pairs = [(1, 1), (1, 0), (0, 1), (0, 0)]
    return [int(((said == SAID) & (label == Y) & rows).sum()) for said, label in pairs]


def check(found: dict[str, dict[str, float]]) -> None:
    assert list(found) == list(TOLD)
    for name, own in found.items():
        hit, false, missed, rest = counts(np.isin(GROUP, TOLD[name]))
        assert abs(own["rows"] - (hit + false + missed + rest)) < 4 * STEP
        assert abs(own["rate"] * own["rows"] - hit - missed) < 2 * STEP
        assert abs(own["selected"] * own["rows"] - hit - false) < 2 * STEP
        assert abs(own["true_positive"] - hit / (hit + missed)) < 2 * STEP / (hit + missed - 2 * STEP)
        assert abs(own["false_positive"] - false / (false + rest)) < 2 * STEP / (false + rest - 2 * STEP)


def test_rates_are_those_of_the_groups_and_counts_alone_are_told() -> None:
    seen = Seen()
    check(count_groups(BANK, SAID, SHOP, GROUP, observe=seen))
    known = {item.message for item in module.declares(Roles.of((("bank", ACTIVE), ("shop", PARTNER))))}
    assert {type(event.message) for event in seen.events} <= known
    told = [(me, entry.to, entry.numbers, entry.about) for me, entry in seen.entries if entry.kind == "columns"]
    assert told == [("shop", "bank", 16, ("shop",))]
    (message,) = [
        each.message for each in seen.events if each.direction == "recv" and isinstance(each.message, GroupCounts)
    ]
    assert len(message.words) == 16 * 9 // 8  # a sign and 2,000 rows over 8


def test_counts_are_right_in_the_mean_and_rounded_anew() -> None:
    """A count errs by 4 rows at most in deviation, four of them by 8, the mean of 12 looks by 2.3: 12 is five times as
    much. Shares that are cut and not rounded would be 16 too low."""
    looks = np.array([[own["rows"] for own in count_groups(BANK, SAID, SHOP, GROUP).values()] for _ in range(12)])
    assert (looks.std(axis=0) > 1).all()
    assert np.abs(looks.mean(axis=0) - [900, 700, 300, 100]).max() < 12


def test_marks_that_are_weights_read_as_many_rows_as_a_count_has_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A party that deviates gives 16, 32 .. as the marks of rows: of 7 rows a count, 28 in one look, it has the groups.
    Of the 9 bits of a count one is a sign and one is the rounding."""
    rows = np.arange(4 * 7).reshape(4, 7) * 70
    weights = np.zeros((N, 4), np.int64)
    for cell, own in enumerate(rows):
        weights[own, cell] = 2 * STEP << np.arange(7)
    raw: list[Any] = []

    def asked(*words: Any) -> Any:
        raw.append(module_counts(*words))
        return raw[-1]

    module_counts = module.counted_by_group
    monkeypatch.setattr(module, "_outcomes", lambda *_: weights)
    monkeypatch.setattr(module, "counted_by_group", asked)
    count_groups(BANK, SAID, SHOP, GROUP)
    ((names, told),) = raw
    sums = np.rint(np.mod(told, 2**9 * STEP) / (2 * STEP)).astype(int)  # groups x 4
    for group, own in zip(names, sums, strict=True):
        read = (own[:, None] >> np.arange(7)) & 1
        assert read.astype(bool).tolist() == np.isin(GROUP[rows], TOLD[group]).tolist()


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ((300, 200), ["a", "b"]),
        ((300, 200, 150, 99), ["a", "b", "others"]),  # 99 rows alone would follow from the rest
        ((300, 200, 60, 50), ["a", "b", "others"]),
        ((300, 99), None),
        ((300, 120, 1), ["a", "others"]),
    ],
)
def test_groups_under_100_rows_are_not_told_nor_follow(sizes: tuple[int, ...], names: list[str] | None) -> None:
    values = np.repeat(list("abcd")[: len(sizes)], sizes)
    if names is None:
        with pytest.raises(TableError, match="2 to 50"):
            groups_told(values)
        return
    found, marks = groups_told(values)
    assert found == names
    assert (marks.sum(axis=0) >= 100).all()
    assert (marks.sum(axis=1) == 1).all()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(LabelError, match="labels of two classes"):
        count_groups(SHOP, SAID, BANK, GROUP)
    with pytest.raises(TableError, match="one group for each of 2,000 rows"):
        count_groups(BANK, SAID, SHOP, GROUP[:5])
    few = np.arange(300)
    with pytest.raises(TableError, match="400 rows or more"):
        count_groups(BANK.take(few), SAID[few], SHOP.take(few), np.repeat(["a", "b"], 150))


def test_between_organisations_with_consent_and_limits(meet: Any) -> None:
    meeting, sheets = meet(2), list[str]()
    rows = np.arange(0, N, 4)

    def ask(name: str) -> Any:
        kit = meeting.kit(name)
        if name == "bank":
            return ask_groups(BANK.take(rows), SAID[rows], kit / "peers.toml", timeout=20, patience=5)
        groups = np.where(np.isin(GROUP, ["south"]), "south", "rest")[rows]
        keys: dict[str, Any] = {"ledger": kit / "ledger", "consent": sheets.append, "timeout": 20, "patience": 5}
        return give_groups(SHOP.take(rows), groups, kit / "peers.toml", **keys)

    found = each(meeting, ask)
    assert found["shop"] == list(found["bank"])
    ledger = DisclosureLedger.find(meeting.kit("shop") / "ledger")
    (entry,) = ledger.read().entries
    assert (entry.told.kind, entry.told.count, entry.told.share) == ("columns", 8, 0.008)
    ledger.set_limit("columns", Limit(15))
    assert "8 counts, rounded at random to 8 rows" in sheets[0]
    refused = each(meeting, ask)
    assert isinstance(refused["shop"], LeakageError)
    with pytest.raises(PartiesError, match="one other party"):
        give_groups(SHOP, GROUP, meet(3).kit("shop") / "peers.toml")


def test_the_command_at_a_party_that_has_both(tmp_path: Path) -> None:
    with (tmp_path / "bank.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "y", "region", "a"], *zip(range(N), Y, GROUP, range(N), strict=True)])
    with (tmp_path / "out.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "prediction"], *zip(range(N), SAID.astype(float), strict=True)])
    own = ["fairness", "--party", "bank", "--data", str(tmp_path / "bank.csv"), "--group", "region"]
    result = CliRunner().invoke(
        app, [*own, "--predictions", str(tmp_path / "out.csv"), "--json", str(tmp_path / "f.json")]
    )
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "f.json").read_text())
    for name, rows in TOLD.items():
        hit, _, missed, _ = counts(np.isin(GROUP, rows))
        assert found[name]["true_positive"] == pytest.approx(hit / (hit + missed))
    assert CliRunner().invoke(app, own[:5]).exit_code == 2

"""Rates by group if another party has the groups: compared with plain counts, recorded, and without other values."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.base.roles import ACTIVE, PARTNER, Roles
from securevfl.cli.main import app
from securevfl.credit import fairness_by_group as module
from securevfl.credit.fairness_by_group import (
    local_group_rates,
    merge_small_groups,
    provide_groups,
    request_group_rates,
    simulate_group_rates,
)
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.summed_bits import MAX_STATISTICS_SHARE
from securevfl.errors import LabelError, LeakageError, PartiesError, ProtocolError, TableError
from securevfl.protocols.shares.group_counts import COUNT_STEP, GroupCounts, bits_per_count, disclosed_counts
from securevfl.runtime.clock import WallClock
from securevfl.runtime.party_threads import run_threads
from tests.builders import raises_code
from tests.organisations.test_correlate import Seen
from tests.transport.conftest import meet as meet
from tests.transport.processes import each

N = 4000
DRAW = np.random.default_rng(4)
GROUP = np.repeat(["south", "north", "east", "west", "isle"], [1800, 1400, 600, 120, 80])
Y = (DRAW.random(N) < np.where(GROUP == "north", 0.5, 0.3)).astype(int)
SAID = np.where(DRAW.random(N) < 0.8, Y, 1 - Y)
BANK = vfl.Party("bank", DRAW.normal(size=(N, 1)), Y, ids=range(N))
SHOP = vfl.Party("shop", DRAW.normal(size=(N, 1)), ids=range(N))
ROLES = ("bank", "shop")
TOLD = {"south": ["south"], "north": ["north"], "east": ["east"], "others": ["west", "isle"]}


def counts(rows: np.ndarray) -> list[int]:
    pairs = [(1, 1), (1, 0), (0, 1), (0, 0)]
    return [int(((predicted == SAID) & (label == Y) & rows).sum()) for predicted, label in pairs]


def check(by_group: dict[str, dict[str, float]]) -> None:
    assert list(by_group) == list(TOLD)
    for name, rates in by_group.items():
        hit, false, missed, true_negatives = counts(np.isin(GROUP, TOLD[name]))
        assert abs(rates["rows"] - (hit + false + missed + true_negatives)) < 4 * COUNT_STEP
        assert abs(rates["rate"] * rates["rows"] - hit - missed) < 2 * COUNT_STEP
        assert abs(rates["selected"] * rates["rows"] - hit - false) < 2 * COUNT_STEP
        assert abs(rates["true_positive"] - hit / (hit + missed)) < 2 * COUNT_STEP / (hit + missed - 2 * COUNT_STEP)
        assert abs(rates["false_positive"] - false / (false + true_negatives)) < 2 * COUNT_STEP / (
            false + true_negatives - 2 * COUNT_STEP
        )


def test_rates_are_those_of_the_groups_and_counts_alone_are_told() -> None:
    seen = Seen()
    check(simulate_group_rates(BANK, SAID, SHOP, GROUP, observe=seen))
    known = {item.message for item in module.declares(Roles.of((("bank", ACTIVE), ("shop", PARTNER))))}
    assert {type(event.message) for event in seen.events} <= known
    disclosed = [(me, entry.to, entry.numbers, entry.about) for me, entry in seen.entries if entry.kind == "columns"]
    assert disclosed == [("shop", "bank", 16, ("shop",))]
    (message,) = [
        event.message for event in seen.events if event.direction == "recv" and isinstance(event.message, GroupCounts)
    ]
    assert len(message.words) == 16 * 9 // 8  # 4,000 rows over 8


@pytest.mark.parametrize("groups", [2, 3, 4, 5])
def test_every_number_of_groups_is_told(groups: int) -> None:
    names = np.array(["a", "b", "c", "d", "e"])[np.arange(N) % groups]
    by_group = simulate_group_rates(BANK, SAID, SHOP, names)
    assert list(by_group) == sorted(set(names))
    for name, rates in by_group.items():
        assert abs(rates["rows"] - (names == name).sum()) < 4 * COUNT_STEP


@pytest.mark.parametrize("groups", [2, 3, 5])
def test_empty_cells_and_full_ones_are_counted(groups: int) -> None:
    """Without errors, with errors alone, and with one predicted class: half of the counts are 0."""
    names = np.array(["a", "b", "c", "d", "e"])[np.arange(N) % groups]
    for predicted in (Y, 1 - Y, np.zeros(N, int), np.ones(N, int)):
        by_group = simulate_group_rates(BANK, predicted, SHOP, names)
        for name, rates in by_group.items():
            rows, positive = names == name, Y == 1
            assert abs(rates["rows"] - rows.sum()) < 4 * COUNT_STEP
            assert abs(rates["selected"] * rates["rows"] - (predicted[rows] == 1).sum()) < 2 * COUNT_STEP
            for rate, members in (("true_positive", rows & positive), ("false_positive", rows & ~positive)):
                of_members = (predicted[members] == 1).mean()
                assert abs(rates[rate] - of_members) < 2 * COUNT_STEP / (members.sum() - 2 * COUNT_STEP)


def test_counts_are_right_in_the_mean_and_rounded_anew() -> None:
    """A count errs by 4 rows at most in deviation, four of them by 8, the mean of 20 looks by 1.8: 12 is 6.7 times as
    much, which four groups exceed once in 1e10. Shares that are cut and not rounded would be 16 too low."""
    looks = np.array(
        [[rates["rows"] for rates in simulate_group_rates(BANK, SAID, SHOP, GROUP).values()] for _ in range(20)]
    )
    assert (looks.std(axis=0) > 1).all()
    assert np.abs(looks.mean(axis=0) - [1800, 1400, 600, 200]).max() < 12


def test_of_two_groups_one_is_told_and_the_other_is_what_is_left() -> None:
    seen, where = Seen(), np.where(GROUP == "south", "south", "rest")
    by_group = simulate_group_rates(BANK, SAID, SHOP, where, observe=seen)
    assert [entry.numbers for _, entry in seen.entries if entry.kind == "columns"] == [4]
    assert sum(rates["rows"] for rates in by_group.values()) == N
    for name, rates in by_group.items():
        hit, false, missed, _ = counts(where == name)
        assert abs(rates["rate"] * rates["rows"] - hit - missed) < 2 * COUNT_STEP
        assert abs(rates["selected"] * rates["rows"] - hit - false) < 2 * COUNT_STEP


def look(file: Path, outcomes: np.ndarray, names: list[str], marks: np.ndarray, columns: int = 1) -> Any:
    """Return the bank's result of one request with these outcomes; the shop counts it in a reopened ledger."""
    bank, shop = (vfl.Party(name, DRAW.normal(size=(len(marks), columns)), ids=range(len(marks))) for name in ROLES)
    ledger = DisclosureLedger(file, "shop")
    give = partial(module._provide, shop, names, marks, ledger, None, peer="bank")
    return run_threads({"bank": partial(module._request, bank, outcomes, peer="shop"), "shop": give}, WallClock)["bank"]


def test_groups_of_one_name_are_refused(tmp_path: Path) -> None:
    """Their rates would replace each other in the result, which has names as keys."""
    marks = np.eye(3, dtype=int)[np.arange(N) % 3]
    outcomes = np.eye(4, dtype=int)[np.arange(N) % 4]
    assert list(look(tmp_path / "first", outcomes, ["a", "b", "c"], marks)) == ["a", "b", "c"]
    for names in (["a", "b", "a"], ["a", "a", "a"]):
        with raises_code(ProtocolError, "SVFL-PROTOCOL-VALUES", party="shop"):
            look(tmp_path / "".join(names), outcomes, names, marks)


def read_from(rows: np.ndarray, names: tuple[str, ...], opened: np.ndarray) -> np.ndarray:
    """Return the group of each of these rows (4 x m), where m rows of each outcome had the marks 16, 32 and so on."""
    sums = np.rint(np.mod(opened, 2 ** bits_per_count(N) * COUNT_STEP) / (2 * COUNT_STEP)).astype(int)  # groups x 4
    read = ((sums[:, :, None] >> np.arange(rows.shape[1])) & 1).astype(bool)
    return np.array(names)[read.argmax(axis=0)]


@pytest.mark.parametrize(("groups", "most"), [(GROUP, 32), (np.arange(N) % 2, 96)], ids=["four", "two"])
def test_weights_in_place_of_marks_read_only_counted_bits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, groups: np.ndarray, most: int
) -> None:
    """A party that deviates reads k - 1 rows a count of k bits, 4 x 8 in a look: of all rows, by all looks that the
    ledger lets through, .8 and 2.4 %. The next is refused, also by a process that has just begun, and of a table
    with other columns."""
    names, marks = merge_small_groups(groups)
    raw, read, bits = list[Any](), 0, bits_per_count(N) - 1
    receive = module.receive_group_counts

    def telling(*words: Any) -> Any:
        raw.append(receive(*words))
        return raw[-1]

    monkeypatch.setattr(module, "receive_group_counts", telling)
    weights = np.zeros((N, 4), np.int64)
    while read < most:
        rows = (read + np.arange(4 * bits)).reshape(4, bits)
        weights[rows, np.arange(4)[:, None]] = 2 * COUNT_STEP << np.arange(bits)
        look(tmp_path / "shop", weights, names, marks)
        assert (read_from(rows, *raw.pop()) == np.array(names)[marks.argmax(axis=1)[rows]]).all()
        weights[rows], read = 0, read + rows.size
    assert read <= MAX_STATISTICS_SHARE * N
    for columns in (1, 2):
        with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party="shop", peer="bank"):
            look(tmp_path / "shop", weights, names, marks, columns)


def test_repeated_requests_find_counts_and_then_are_refused(tmp_path: Path) -> None:
    """All looks that there are at 4,000 rows in two groups are 3: their mean errs by .41 x 8 / sqrt(3) = 1.9 rows, so
    one row more or less is not found. Sums of two counts are held to eight deviations."""
    names, marks = merge_small_groups(np.arange(N) % 2)
    outcomes, selected = np.eye(4, dtype=np.int64)[np.arange(N) % 4], np.arange(N) % 4 < 2
    looks = [look(tmp_path / "shop", outcomes, names, marks) for _ in range(3)]
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        look(tmp_path / "shop", outcomes, names, marks)
    mean = np.mean([[rates["rows"] * rates["selected"] for rates in by_group.values()] for by_group in looks], axis=0)
    assert np.abs(mean - selected @ marks).max() < 8 * 1.9 * 2**0.5


@pytest.mark.parametrize(
    ("sizes", "fewest"), [((500, 500), 934), ((900, 100), 2559), ((9, 7, 3, 1), 2866), ((1,) * 4, 2400)]
)
def test_fewest_rows_of_a_first_look(sizes: tuple[int, ...], fewest: int) -> None:
    place = np.repeat(np.arange(len(sizes)), np.array(sizes) * 100)
    marks = (place[:, None] == np.arange(len(sizes))).astype(np.int64)
    assert module._min_rows(marks) == fewest
    a_row = module._information_content(marks) / len(marks)
    numbers = disclosed_counts(len(sizes))
    assert numbers * bits_per_count(fewest) <= MAX_STATISTICS_SHARE * a_row * fewest
    assert numbers * bits_per_count(fewest - 1) > MAX_STATISTICS_SHARE * a_row * (fewest - 1)


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
        with raises_code(TableError, "SVFL-TABLE-GROUPS"):
            merge_small_groups(values)
        return
    merged, marks = merge_small_groups(values)
    assert merged == names
    assert (marks.sum(axis=0) >= 100).all()
    assert (marks.sum(axis=1) == 1).all()


def test_merged_groups_have_a_name_of_their_own() -> None:
    """A group that is named like merged groups is not confused with them, whether it is large or merged itself."""
    for sizes in ((300, 200, 60, 50), (300, 60, 200, 50), (60, 50, 300, 200)):
        values = np.repeat(["others", "a", "b", "(others)"], sizes)
        names, marks = merge_small_groups(values)
        assert len(set(names)) == len(names) == 3
        for name, members in zip(names[:-1], marks.T[:-1].astype(bool), strict=True):
            assert set(values[members]) == {name}
        assert not set(values[marks[:, -1] == 1]) & set(names[:-1])
        by_group = local_group_rates(BANK.take(np.arange(len(values))), SAID[: len(values)], values)
        assert sum(rates["rows"] for rates in by_group.values()) == len(values)


def test_what_does_not_fit_is_refused() -> None:
    with raises_code(LabelError, "SVFL-LABEL-CLASSES"):
        simulate_group_rates(SHOP, SAID, BANK, GROUP)
    with raises_code(TableError, "SVFL-TABLE-SHAPE"):
        simulate_group_rates(BANK, SAID, SHOP, GROUP[:5])
    few = np.arange(300)
    with raises_code(TableError, "SVFL-TABLE-TOO-FEW-ROWS"):
        simulate_group_rates(BANK.take(few), SAID[few], SHOP.take(few), np.repeat(["a", "b"], 150))


def test_between_organisations_with_consent_and_limits(meet: Any) -> None:
    meeting, sheets = meet(2), list[str]()
    rows = np.arange(0, N, 4)

    def ask(name: str) -> Any:
        kit = meeting.kit(name)
        if name == "bank":
            return request_group_rates(BANK.take(rows), SAID[rows], kit / "peers.toml", timeout=20, patience=5)
        groups = np.where(np.isin(GROUP, ["south"]), "south", "rest")[rows]
        keys: dict[str, Any] = {"ledger": kit / "ledger", "consent": sheets.append, "timeout": 20, "patience": 5}
        return provide_groups(SHOP.take(rows), groups, kit / "peers.toml", **keys)

    by_party = each(meeting, ask)
    assert by_party["shop"] == list(by_party["bank"])
    ledger = DisclosureLedger.find(meeting.kit("shop") / "ledger")
    (entry,) = ledger.read().entries
    assert (entry.disclosure.kind, entry.disclosure.count, entry.disclosure.share) == ("columns", 4, 4 / 141)
    assert all(len(line) <= 80 for line in sheets[0].splitlines())
    assert "4 counts of 7 bits, rounded at random to 8 rows" in sheets[0]
    assert "0.028 of the bits in the groups of all rows" in sheets[0]
    refused = each(meeting, ask)
    assert isinstance(refused["shop"], LeakageError)
    assert "have received 2.84%, and bank would receive 2.84% more" in str(refused["shop"])
    assert "the first count of such groups needs about 941" in str(refused["shop"])
    with raises_code(PartiesError, "SVFL-PEERS-FILE", party="shop"):
        provide_groups(SHOP, GROUP, meet(3).kit("shop") / "peers.toml")


def test_the_command_at_a_party_that_has_both(tmp_path: Path) -> None:
    with (tmp_path / "bank.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "y", "region", "a"], *zip(range(N), Y, GROUP, range(N), strict=True)])
    with (tmp_path / "out.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "prediction"], *zip(range(N), SAID.astype(float), strict=True)])
    arguments = ["fairness", "--party", "bank", "--data", str(tmp_path / "bank.csv"), "--group", "region"]
    result = CliRunner().invoke(
        app, [*arguments, "--predictions", str(tmp_path / "out.csv"), "--json", str(tmp_path / "f.json")]
    )
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "f.json").read_text())
    by_group = written["groups"]
    assert written["positive"] == "1"
    assert "positive class: 1\n" in result.output
    for name, rows in TOLD.items():
        hit, _, missed, _ = counts(np.isin(GROUP, rows))
        assert by_group[name]["true_positive"] == pytest.approx(hit / (hit + missed))
    named = [*arguments, "--predictions", str(tmp_path / "out.csv"), "--json", str(tmp_path / "g.json"), "--positive"]
    assert CliRunner().invoke(app, [*named, "0"]).exit_code == 0
    complement = json.loads((tmp_path / "g.json").read_text())
    other = complement["groups"]
    assert complement["positive"] == "0"
    assert {name: 1 - rates["rate"] for name, rates in other.items()} == pytest.approx(
        {name: rates["rate"] for name, rates in by_group.items()}
    )
    assert CliRunner().invoke(app, [*named, "none"]).exit_code == 2
    assert CliRunner().invoke(app, arguments[:5]).exit_code == 2

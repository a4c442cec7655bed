"""Joint statistics of tables before and after a training.

Each number is recorded in the ledger before it is disclosed, is limited, and is rounded separately.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import securevfl as vfl
from securevfl.credit import correlate, fairness_by_group
from securevfl.crypto.prg import Prg
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.disclosure.summed_bits import MAX_STATISTICS_SHARE, check_statistics, statistics_disclosure
from securevfl.errors import LeakageError, TableError
from securevfl.protocols.shares import column_correlations, group_counts
from securevfl.protocols.shares.column_correlations import RoundedProducts
from securevfl.protocols.shares.group_counts import GroupCounts
from securevfl.runtime.clock import WallClock
from securevfl.runtime.observer import Event, Observer
from securevfl.runtime.party_threads import run_threads
from tests.builders import raises_code

Ledgers = dict[str, DisclosureLedger]
TOLD = (RoundedProducts, GroupCounts)


def random_tables(rows: int) -> tuple[vfl.Party, vfl.Party]:
    draw = np.random.default_rng(0)
    y = draw.integers(0, 2, rows)
    return vfl.Party("bank", draw.normal(size=(rows, 3)), y, ids=range(rows)), vfl.Party(
        "shop", draw.normal(size=(rows, 2)), ids=range(rows)
    )


def columns(rows: int, ledgers: Ledgers, observe: Observer | None = None) -> None:
    """Request correlations of columns; each party discloses 12 numbers."""
    correlate.correlate(random_tables(rows), ledgers=ledgers, observe=observe)


def groups(rows: int, ledgers: Ledgers, observe: Observer | None = None) -> None:
    """Request outcomes by group; the shop discloses 12 numbers."""
    bank, shop = random_tables(rows)
    names, marks = fairness_by_group._groups(shop, np.arange(rows) % 3)
    outcomes = fairness_by_group._outcomes(bank, bank.y, None)  # type: ignore[arg-type]
    roles: dict[str, Callable[..., Any]] = {
        "bank": partial(fairness_by_group._request, bank, outcomes, peer="shop"),
        "shop": partial(fairness_by_group._provide, shop, names, marks, ledgers["shop"], None, peer="bank"),
    }
    run_threads(roles, WallClock, observe=observe)


LOOKS = {"columns": (columns, 1000, column_correlations), "groups": (groups, 400, group_counts)}


def kept(folder: Path) -> Ledgers:
    return {name: DisclosureLedger(folder / name, name) for name in ("bank", "shop")}


class Counted:
    """Note the disclosures in each ledger at the moment when numbers are sent."""

    def __init__(self, ledgers: Ledgers) -> None:
        self.ledgers, self.entered = ledgers, dict[str, int]()

    def __call__(self, event: Event) -> None:
        if event.direction == "send" and isinstance(event.message, TOLD):
            self.entered[event.me] = sum(entry.disclosure.numbers for entry in self.ledgers[event.me].read().entries)

    def note(self, me: str, fact: object) -> None:
        """Do nothing for entries."""


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param([("columns", 1000)] * 5, id="columns"),
        pytest.param([("groups", 4000)] * 2, id="groups"),
        pytest.param([("columns", 1000), ("columns", 1000), ("groups", 4000)], id="one after the other"),
        pytest.param([("groups", 4000), ("columns", 1000)], id="of a quarter of the rows, which all may be about"),
        pytest.param([("columns", 1000), ("columns", 4000), ("groups", 4000), ("columns", 1000)], id="in turn"),
    ],
)
def test_statistics_are_debited_before_they_are_sent(looks: list[tuple[str, int]], tmp_path: Path) -> None:
    """All requests but the last succeed, with their 12 numbers on disk before they are sent.

    The last one would exceed the limit on joint statistics of both kinds, and discloses nothing of the shop.
    """
    ledgers = kept(tmp_path)
    seen = Counted(ledgers)
    for number, (name, rows) in enumerate(looks[:-1], 1):
        LOOKS[name][0](rows, ledgers, seen)  # type: ignore[arg-type]
        assert sum(entry.disclosure.numbers for entry in ledgers["shop"].read().entries) == 12 * number
        assert seen.entered.pop("shop") == 12 * number
    name, rows = looks[-1]
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        LOOKS[name][0](rows, ledgers, seen)  # type: ignore[arg-type]
    assert "shop" not in seen.entered


@pytest.mark.parametrize("name", LOOKS)
def test_a_row_fewer_than_the_least_is_refused(name: str, tmp_path: Path) -> None:
    look, rows, _ = LOOKS[name]
    with raises_code(TableError, "SVFL-TABLE-TOO-FEW-ROWS"):
        look(rows - 1, kept(tmp_path))


@pytest.mark.parametrize("name", LOOKS)
def test_each_number_is_rounded_by_itself(name: str, tmp_path: Path) -> None:
    """Numbers that are rounded with one random number would have exact differences."""
    look, rows, module = LOOKS[name]
    drawn = list[np.ndarray]()

    class Recorded(Prg):
        """Note the output."""

        __slots__ = ()

        def array(self, *of: Any, **keys: Any) -> Any:
            drawn.append(super().array(*of, **keys))
            return drawn[-1]

    with mock.patch.object(module, "Prg", Recorded):
        look(10 * rows, kept(tmp_path))
    words = np.concatenate([words_of.ravel() for words_of in drawn])
    assert len(words) == 12 * (2 if name == "columns" else 1)
    assert len(np.unique(words)) == len(words)


@pytest.mark.parametrize("full", ["bank", "telco", "mill"])
def test_joint_statistics_count_disclosures_to_all_peers(full: str) -> None:
    def told(peer: str, share: float) -> Disclosure:
        return statistics_disclosure(peer, "shop", round(10_000 * share), 8, 80_000.0)

    look = [told(peer, 0.002) for peer in ("bank", "telco", "mill")]
    before = [LedgerEntry("t", "r", "", told(full, MAX_STATISTICS_SHARE - 0.001))]
    check_statistics("shop", [], "", before)
    for disclosure in look:
        with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
            check_statistics("shop", [disclosure], "", before)
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        check_statistics("shop", look, "", before)

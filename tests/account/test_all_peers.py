"""Limits hold for the rows of an owner: several names of one organisation learn no more than one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import securevfl as vfl
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger, total_of, total_to
from securevfl.disclosure.limits import DISCLOSURE_KINDS, KIND_TOTALS, Limit
from securevfl.disclosure.summed_bits import MAX_STATISTICS_SHARE, check_statistics, statistics_disclosure
from securevfl.errors import LeakageError
from tests.builders import raises_code

ROWS = 300
IDS = np.arange(ROWS)
SHOP = vfl.Party("shop", np.random.default_rng(1).normal(size=(ROWS, 40)), ids=IDS)


def bank(name: str) -> vfl.Party:
    X = np.random.default_rng(0).normal(size=(ROWS, 3))
    return vfl.Party(name, X, (X[:, 0] > 0).astype(float), ids=IDS)


def numbers_read(names: list[str], folder: Path) -> int:
    """Return how many numbers about each row of the shop these names read, one job after another, until refused."""
    ledger = DisclosureLedger(folder / "shop.ledger", "shop")
    protocol = vfl.Protocol(sum="direct", residual=vfl.Ckks())
    keys = {"model": vfl.Logistic(), "optimizer": vfl.FedBCD(lr=0.1), "protocol": protocol, "batch_size": "all"}
    job = vfl.Job(**keys, epochs=3, test_fraction=0, accepts=("rank", "fresh_equations", "label_auc"))
    for _ in range(10):
        for name in names:
            ledgers = {"shop": ledger, name: DisclosureLedger(folder / name, name)}
            try:
                vfl.simulate(job, [bank(name), SHOP], ledgers=ledgers)
            except LeakageError as error:
                if error.code != "SVFL-LEAK-NOT-ACCEPTED":
                    raise
                return total_of(ledger.read().entries, "columns").count
    raise AssertionError("nothing was refused")


def test_four_names_of_a_bank_read_no_more_numbers_than_one(tmp_path: Path) -> None:
    alone = numbers_read(["bank"], tmp_path / "one")
    together = numbers_read([f"bank{number}" for number in range(4)], tmp_path / "four")
    assert together <= alone < 20
    ledger = DisclosureLedger(tmp_path / "four" / "shop.ledger", "shop")
    assert sum(total_to(ledger.read().entries, "columns", f"bank{number}").count for number in range(4)) == together


@pytest.mark.parametrize("kind", ["labels", "columns", "scores", "ids"])
def test_a_limit_is_that_of_all_peers(kind: str, tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    ledger.set_limit(kind, Limit(10))  # type: ignore[arg-type]
    for number in range(5):
        disclosure = Disclosure(kind, f"bank{number}", ("shop",), 2, 100)  # type: ignore[arg-type]
        ledger.record(SHOP.register, (f"run {number}", ""), [disclosure])
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        ledger.record(SHOP.register, ("run 5", ""), [Disclosure(kind, "bank9", ("shop",), 1, 100)])  # type: ignore[arg-type]
    before, refusals = ledger.forecast(SHOP.register, [Disclosure(kind, "bank9", ("shop",), 1, 100)])  # type: ignore[arg-type]
    assert total_of(before, kind).count == 10  # type: ignore[arg-type]
    assert "all peers together at most 10" in refusals[0]


@pytest.mark.parametrize("earlier", [(), ("bank1",), ("bank0",), ("bank0", "bank1")])
def test_a_sheet_shows_the_sum_over_peers_of_earlier_runs(earlier: tuple[str, ...], tmp_path: Path) -> None:
    """The limit is in the row of the sum over all peers as soon as another peer has received something."""
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    ledger.set_limit("columns", Limit(30))
    for name in earlier:
        ledger.record(SHOP.register, (f"run of {name}", ""), [Disclosure("columns", name, ("shop",), 2, 40)])
    job = vfl.Job(
        model=vfl.Logistic(), optimizer=vfl.FedBCD(lr=0.1), protocol=vfl.Protocol(sum="direct", residual=vfl.Ckks()),
        batch_size="all", epochs=3, test_fraction=0, accepts=("rank", "fresh_equations", "label_auc"),
    )  # fmt: skip
    sheet = vfl.explain(job, [SHOP], others={"bank1": 3}, ledgers={"shop": ledger}).partition("your limits")[2]
    of_all = [line for line in sheet.splitlines() if "all peers" in line]
    assert len(of_all) == ("bank0" in earlier), sheet
    (limited,) = [line for line in sheet.splitlines() if "at most 30" in line]
    assert limited in (of_all or [line for line in sheet.splitlines() if "bank1" in line])


def test_two_peers_at_once_share_a_limit(tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    ledger.set_limit("columns", Limit(10))

    def reserve(name: str) -> object:
        disclosures = [Disclosure("columns", name, ("shop",), 6, 40)]
        return ledger.reserve(SHOP.register, (f"run of {name}", ""), disclosures, lambda before: None, ahead=[])

    first = reserve("bank1")
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        reserve("bank2")
    first.settle([])  # type: ignore[attr-defined]
    reserve("bank2")


def statistics_to(peers: Sequence[str], ledger: DisclosureLedger, run: str) -> None:
    disclosures = [statistics_disclosure(peer, "shop", 100, 8, 80_000.0) for peer in peers]  # 1 % of the bits to each
    ledger.record(SHOP.register, (run, ""), disclosures, partial(check_statistics, "shop", disclosures, ""))


def disclosed_to(peers: Sequence[str], ledger: DisclosureLedger, run: str, *, kind: str, limit: Limit) -> None:
    ledger.set_limit(kind, limit)  # type: ignore[arg-type]
    disclosures = [Disclosure(kind, peer, ("shop",), 1, 100) for peer in peers]  # type: ignore[arg-type]
    ledger.reserve(SHOP.register, (run, ""), disclosures, lambda before: None, ahead=[]).settle(disclosures)


LIMITS: dict[str, Callable[[Sequence[str], DisclosureLedger, str], None]] = {
    "joint statistics": statistics_to,
    **{kind: partial(disclosed_to, kind=kind, limit=Limit(3)) for kind in DISCLOSURE_KINDS},
    **{f"share of {kind}": partial(disclosed_to, kind=kind, limit=Limit(0.03, share=True)) for kind in KIND_TOTALS},
}
"""Functions that disclose one number to each peer in one run. Three numbers reach the limit, for any receivers."""


@pytest.mark.parametrize("limit", LIMITS)
def test_peers_of_one_run_share_a_limit(limit: str, tmp_path: Path) -> None:
    """A run with three peers reaches the limit; two runs with two other peers each would exceed it."""
    threes, twos = (DisclosureLedger(tmp_path / name, "shop") for name in ("threes", "twos"))
    LIMITS[limit](["bank1", "bank2", "bank3"], threes, "run")
    LIMITS[limit](["bank1", "bank2"], twos, "run")
    for ledger, refused in ((threes, ["bank4"]), (twos, ["bank3", "bank4"])):
        with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
            LIMITS[limit](refused, ledger, "next run")
    assert (len(threes.read().entries), len(twos.read().entries)) == (3, 2)


def test_receivers_of_one_run_add_up_except_for_equal_values(tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "bank.ledger", "bank")
    different = [Disclosure("labels", name, ("bank",), 10, 100) for name in ("shop", "telco")]
    same = [Disclosure("labels", name, ("bank",), 30, 100, "equal values") for name in ("shop", "telco")]
    ledger.record(SHOP.register, ("run", ""), [*different, *same])
    assert total_of(ledger.read().entries, "labels").count == 20 + 30


def test_four_names_share_the_joint_statistics(tmp_path: Path) -> None:
    ledger, admitted = DisclosureLedger(tmp_path / "shop.ledger", "shop"), 0
    for number in range(8):
        disclosures = [statistics_disclosure(f"bank{number % 4}", "shop", 100, 8, 80_000.0)]  # 1 % of the bits
        try:
            ledger.record(
                SHOP.register,
                (f"joint statistics {number}", ""),
                disclosures,
                lambda before, new=disclosures: check_statistics("shop", new, "", before),  # type: ignore[misc]
            )
        except LeakageError:
            break
        admitted += 1
    assert admitted == round(100 * MAX_STATISTICS_SHARE) == 3

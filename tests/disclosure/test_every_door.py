"""All methods that admit a disclosure add it to earlier ones about tables that share rows, up to the limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl.base.normal_distribution import normal_cdf
from securevfl.data.id_keys import id_keys
from securevfl.data.register import Register
from securevfl.disclosure import label_auc
from securevfl.disclosure.column_recovery import (
    MAX_NUMBERS_PER_COLUMN,
    component_variances,
    numbers_for_recovery,
    variance_share,
)
from securevfl.disclosure.counts import Disclosure, Kind, earlier_share
from securevfl.disclosure.information_content import InformationContent, code_bits, entropies
from securevfl.disclosure.label_bits import count_singled_out, label_entropy
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.disclosure.leverage import HIGH_LEVERAGE, leverages, measure_leverage
from securevfl.disclosure.limits import DISCLOSURE_KINDS, Limit, sum_disclosures
from securevfl.disclosure.summed_bits import MAX_STATISTICS_SHARE, check_statistics, statistics_disclosure
from securevfl.errors import LeakageError
from tests.builders import raises_code

LIMIT, EARLIER = 100, 60
"""Numbers that the owner allows, and numbers that a run about the first table has disclosed."""


def rows(start: int, stop: int) -> Register:
    return Register.of_ids(id_keys("shop", [list(range(start, stop))]))


TABLES: dict[str, tuple[Register, bool]] = {
    "the same": (rows(0, 100), True),
    "one shared row": (rows(99, 199), True),
    "a part": (rows(20, 40), True),
    "no shared row": (rows(100, 200), False),
    "without ids": (Register.of_numbers(30), True),
}
"""Second tables, and whether what the first one has disclosed counts for them."""


def disclosed(kind: Kind, count: int, learner: str = "bank") -> Disclosure:
    return Disclosure(kind, learner, ("shop",), count, 1000 if kind in ("labels", "columns") else 0)


def through_record(ledger: DisclosureLedger, table: Register, item: Disclosure) -> None:
    ledger.record(table, ("run 2", ""), [item])


def through_check(ledger: DisclosureLedger, table: Register, item: Disclosure) -> None:
    ledger.check_admission(table, ("run 2", ""), [item], lambda before: None)


def through_reserve(ledger: DisclosureLedger, table: Register, item: Disclosure) -> None:
    ledger.reserve(table, ("run 2", ""), [item], lambda before: None, ahead=[]).settle([])


def through_lease(ledger: DisclosureLedger, table: Register, item: Disclosure) -> None:
    reservation = ledger.reserve(table, ("run 2", ""), [], lambda before: None, ahead=[])
    try:
        reservation.lease([item])
    finally:
        reservation.settle([])


def through_answer(ledger: DisclosureLedger, table: Register, item: Disclosure) -> None:
    ledger.record(table, (f"training {table.name}", ""), [disclosed("ids" if item.kind == "labels" else "labels", 1)])
    ledger.record_answer(f"training {table.name}", "run 2", item)


def through_forecast(ledger: DisclosureLedger, table: Register, item: Disclosure) -> None:
    _, reasons = ledger.forecast(table, [item])
    if reasons:
        raise LeakageError("\n".join(reasons), "", code="SVFL-LIMIT-REACHED")


DOORS: dict[str, Callable[[DisclosureLedger, Register, Disclosure], None]] = {
    "record": through_record,
    "check_admission": through_check,
    "reserve": through_reserve,
    "lease": through_lease,
    "record_answer": through_answer,
    "forecast": through_forecast,
}


@pytest.mark.parametrize("kind", DISCLOSURE_KINDS)
@pytest.mark.parametrize("door", DOORS)
def test_every_gate_counts_tables_that_share_rows(door: str, kind: Kind, tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    ledger.set_limit(kind, Limit(LIMIT))
    ledger.record(TABLES["the same"][0], ("run 1", ""), [disclosed(kind, EARLIER)])
    other = next(name for name in DISCLOSURE_KINDS if name != kind)
    ledger.record(TABLES["the same"][0], ("run 0", ""), [disclosed(other, LIMIT)])
    for name, (table, counts) in TABLES.items():
        allowed = LIMIT - (EARLIER if counts else 0)
        DOORS[door](ledger, table, disclosed(kind, allowed))  # replaces what was recorded about the table before
        with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
            DOORS[door](ledger, table, disclosed(kind, allowed + 1))
        if name == "one shared row":
            with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):  # all peers share the limit
                DOORS[door](ledger, table, disclosed(kind, allowed + 1, "telco"))
        ledger.record(table, ("run 2", ""), [])
        for peer in ("bank", "telco"):
            ledger.record_answer("training", "run 2", Disclosure(kind, peer, ("shop",), 0, 0))


def test_every_limit_is_checked_at_its_edge(tmp_path: Path) -> None:
    for share, allowed in ((0.25, True), (0.251, False)):
        ledger = DisclosureLedger(tmp_path / f"{share}.ledger", "shop")
        ledger.set_limit(*Limit.parse("columns", "25%"))
        item = Disclosure("columns", "bank", ("shop",), round(1000 * share), 1000)
        if allowed:
            ledger.record(rows(0, 50), ("run", ""), [item])
        else:
            with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
                ledger.record(rows(0, 50), ("run", ""), [item])


def test_disclosures_of_tables_count_for_their_common_rows(tmp_path: Path) -> None:
    """Equations about all rows of a table of 100 count in full for the 10 that another table shares."""
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    table = rows(0, 100)
    ledger.record(table, ("run 1", ""), [Disclosure("labels", "bank", ("shop",), 7, 100)])
    (entry,) = ledger.counted_for(rows(90, 190))
    assert (entry.disclosure.count, entry.disclosure.capacity) == (7, 10)
    (entry,) = ledger.counted_for(rows(98, 190))
    assert (entry.disclosure.count, entry.disclosure.capacity) == (7, 7)  # at most all that the rows contain
    (entry,) = ledger.counted_for(rows(0, 300))
    assert (entry.disclosure.count, entry.disclosure.capacity) == (7, 100)
    assert ledger.counted_for(rows(100, 190)) == []
    ledger.record(rows(95, 200), ("run 2", ""), [Disclosure("columns", "bank", ("shop",), 3, 10)])
    entries, shared = ledger.table_disclosures(table.name)
    assert sorted((entry.disclosure.kind, entry.disclosure.count) for entry in entries) == [
        ("columns", 3),
        ("labels", 7),
    ]
    assert list(shared.values()) == [5]


# --- arithmetic of counts


@pytest.mark.parametrize("seed", range(6))
def test_earlier_shares_are_those_of_a_loop(seed: int) -> None:
    draw = np.random.default_rng(seed)

    def item() -> Disclosure:
        kind: Kind = str(draw.choice(["labels", "columns"]))  # type: ignore[assignment]
        about = tuple(sorted(draw.choice(["shop", "telco", "insurer"], draw.integers(1, 3), replace=False)))
        groups = ["training", "held out", "correlations"] if kind == "columns" else ["training", "bins", "verdicts"]
        identity = str(draw.choice(["", "x", "y"]))
        learner = str(draw.choice(["bank", "telco"]))
        return Disclosure(
            kind,
            learner,
            about,
            int(draw.integers(1, 9)),
            int(draw.integers(0, 3) * 10),
            identity,
            str(draw.choice(groups)),  # type: ignore[arg-type]
        )

    before, new, same_job = [item() for _ in range(30)], item(), [item() for _ in range(2)]
    known, total = {other.identity for other in (new, *same_job)} - {""}, 0.0
    by_identity: dict[str, float] = {}
    for other in before:
        if other.kind != new.kind or not set(other.about) & set(new.about):
            continue
        if "verdicts" in (other.group, new.group) or (other.identity and other.identity in known):
            continue
        sums = "correlations" in (other.group, new.group)
        if new.kind == "columns" and new.capacity and not sums:
            share = other.count / new.capacity
        else:
            share = other.count / other.capacity if other.capacity else 0.0
        if other.identity:
            by_identity[other.identity] = max(share, by_identity.get(other.identity, 0.0))
        else:
            total += share
    assert earlier_share(new, before, same_job) == pytest.approx(total + sum(by_identity.values()))


@pytest.mark.parametrize("seed", range(6))
def test_totals_are_those_of_a_loop_over_runs_groups_and_steps(seed: int) -> None:
    """Sessions add up; of groups, and of sets of summed parties, the largest counts; an equal identity counts once."""
    draw = np.random.default_rng(seed)
    entries: list[tuple[str, Disclosure]] = []
    for _ in range(14):
        steps = None if draw.random() < 0.5 else (first := int(draw.integers(0, 4)), first + int(draw.integers(1, 4)))
        group: Any = str(draw.choice(["training", "held out", "bins"]))
        identity = str(draw.choice(["", "", "b"]))
        count = int(draw.integers(1, 9))
        about = ("shop",) if draw.random() < 0.5 else ("shop", "telco")
        item = Disclosure("labels", "bank", about, count, 10, identity, group, steps=steps)
        entries.append((str(draw.choice(["run 1", "run 2"])), item))

    def of_sessions(items: list[Disclosure]) -> int:
        always = sum(item.count for item in items if item.steps is None)
        steps = [
            sum(i.count for i in items if i.steps is not None and i.steps[0] <= step < i.steps[1]) for step in range(9)
        ]
        return always + max(steps)

    total = max((item.count for _, item in entries if item.identity), default=0)
    for run in ("run 1", "run 2"):
        for is_bits in (False, True):
            items = [
                item
                for name, item in entries
                if name == run and not item.identity and (item.group == "bins") == is_bits
            ]
            keys = {(item.about, item.group) for item in items}
            total += max((of_sessions([i for i in items if (i.about, i.group) == key]) for key in keys), default=0)
    measured = sum_disclosures(entries)
    assert measured.count == total
    assert measured.share == pytest.approx(total / 10)
    assert measured.runs == len({run for run, _ in entries})


def test_entropies_of_rare_labels_columns_and_codes() -> None:
    for positives in (0, 1, 5, 50, 99):
        p = positives / 100
        expected = -sum(q * math.log2(q) for q in (p, 1 - p) if q)
        assert label_entropy(np.arange(100) < positives) == pytest.approx(expected)
    assert code_bits(5, 2) == pytest.approx(math.log2(5 * 4))
    assert code_bits(3, 9) == pytest.approx(math.log2(6))
    X = np.column_stack([np.arange(64) % 2, np.arange(64) % 4, np.zeros(64)]).astype(float)
    assert entropies(X).tolist() == pytest.approx([1, 2, 0])
    independent = np.column_stack([np.arange(64) % 2, (np.arange(64) // 2) % 4]).astype(float)
    content = InformationContent.of(independent)
    assert content.bits == pytest.approx(3)
    assert content.max_share == pytest.approx(2 / 3)
    twice = InformationContent.of(np.column_stack([independent[:, 1], independent[:, 1]]))
    assert twice.bits == pytest.approx(2)  # the second column adds nothing


def test_leverage_is_the_diagonal_of_the_hat_matrix() -> None:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(40, 4))
    X[:, 2] = 0
    X[3, 2] = 1.0
    X = np.column_stack([X, X[:, 0] + X[:, 1]])  # a dependent column adds nothing
    hat = X @ np.linalg.pinv(X)
    np.testing.assert_allclose(leverages(X), np.diag(hat), atol=1e-9)
    measured = measure_leverage([X, X[10:]])
    assert (measured.rows, measured.singled_out) == (70, 1)
    assert measured.largest == pytest.approx(1.0)
    for value, singled in ((HIGH_LEVERAGE - 1e-6, 0), (HIGH_LEVERAGE + 1e-6, 1)):
        column = np.ones((10, 1)) * math.sqrt((1 - value) / 9)
        column[0] = math.sqrt(value)
        assert measure_leverage([column]).singled_out == singled
    bins = np.zeros((30, 3))
    bins[:, 0] = 1
    bins[:10, 1] = 1
    bins[:9, 2] = 1  # two bins that differ by row 9
    assert count_singled_out(bins) == 1


@pytest.mark.parametrize("together", [1, 30, 1 << 16])
def test_batches_decomposed_together_have_the_same_leverage(together: int) -> None:
    draw = np.random.default_rng(0)
    for rows, columns in ((1, 2), (5, 3), (3, 5), (4, 0)):
        sizes = [rows + k // 8 for k in range(11)]
        batches = [1000.0**-k * draw.integers(0, 2, (size, columns)) for k, size in enumerate(sizes)]
        single = np.concatenate([leverages(X) for X in batches])
        measured = measure_leverage(iter(batches), together=together)
        assert (measured.rows, measured.singled_out) == (len(single), (single > HIGH_LEVERAGE).sum())
        assert measured.largest == pytest.approx(single.max())


def test_recovery_counts_follow_the_bits_of_the_columns() -> None:
    draw = np.random.default_rng(1)
    reals = draw.normal(size=(200, 6))
    assert numbers_for_recovery(reals) == MAX_NUMBERS_PER_COLUMN * 6
    binary = (draw.random((200, 5)) < 0.5).astype(float)
    assert numbers_for_recovery(binary) == pytest.approx(5 * 2 / 50)
    grid = draw.integers(0, 64, (200, 1)).astype(float)
    assert numbers_for_recovery(grid) == pytest.approx((math.log2(grid.max() - grid.min() + 1) + 1) / 50)
    assert numbers_for_recovery(np.ones((20, 3))) == math.inf
    one_factor = reals[:, :1] + 1e-3 * reals[:, 1:2] * np.arange(1, 7)
    assert numbers_for_recovery(one_factor) == 1.0
    Z = (reals - reals.mean(axis=0)) / np.linalg.norm(reals - reals.mean(axis=0), axis=0)
    expected = np.linalg.svd(Z, compute_uv=False) ** 2 / 6
    np.testing.assert_allclose(component_variances(reals), expected)
    for numbers in (1, 3, 6):
        assert variance_share(reals, numbers) == pytest.approx(min(1.0, expected[:numbers].sum()))


def test_the_smallest_safe_batch_is_that_of_a_search() -> None:
    for p, outputs, epochs, reshuffle, limit in ((3, 1, 4, False, 0.7), (5, 2, 10, True, 0.8), (1, 1, 60, True, 0.6)):
        size = label_auc.smallest_batch(p, outputs, epochs, reshuffle, limit)
        assert label_auc.expected_label_auc(p, size, outputs, epochs, reshuffle) <= limit
        assert size == 1 or label_auc.expected_label_auc(p, size - 1, outputs, epochs, reshuffle) > limit
    for k, share in enumerate(label_auc.TABLE_SHARES):
        p = round(share * 256)
        assert label_auc.expected_label_auc(p, 256, 1, 7, False) == pytest.approx(label_auc.FIXED_AUC[k], abs=1e-3)
        assert label_auc.expected_label_auc(2 * p, 256, 2, 7, False) == pytest.approx(label_auc.FIXED_AUC[k], abs=1e-3)
        for j, epochs in enumerate(label_auc.TABLE_EPOCHS):
            measured = label_auc.expected_label_auc(p, 256, 1, int(epochs), True)
            assert measured == pytest.approx(label_auc.RESHUFFLED_AUC[k, j], abs=1e-3)
    first = label_auc.expected_label_auc(1, 256, 1, 1, False)
    quarter = label_auc.expected_label_auc(1, 1024, 1, 1, False)
    halved = normal_cdf(0.5 * float(label_auc._normal_scores(np.array([first]))[0]))
    assert quarter == pytest.approx(halved, abs=1e-6)
    assert label_auc.expected_label_auc(2, 256, 1, 80, True) == pytest.approx(
        label_auc.expected_label_auc(4, 256, 1, 40, True)
    )


def test_joint_statistics_are_refused_just_above_their_share() -> None:
    allowed = statistics_disclosure("bank", "shop", 30, 20, 20 * 1000.0)
    assert (allowed.capacity, allowed.share) == (1000, MAX_STATISTICS_SHARE)
    assert statistics_disclosure("bank", "shop", 1, 20, 5.0).capacity == 1
    check_statistics("shop", [allowed], "fewer", [])
    earlier = LedgerEntry("table", "run", "now", statistics_disclosure("bank", "shop", 1, 20, 20 * 1000.0), "")
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED", peer="bank"):
        check_statistics("shop", [allowed], "fewer", [earlier])
    of_another = LedgerEntry("table", "run", "now", statistics_disclosure("telco", "shop", 1, 20, 20 * 1000.0), "")
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED", peer="bank"):
        check_statistics("shop", [allowed], "fewer", [of_another])

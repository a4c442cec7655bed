"""A peer that chooses the rows of its jobs: the owner's ledger counts jobs on tables that share rows.

First the peer claims to lack the ids with the smallest digests. Then many jobs
share a small set of rows, jobs split rows in halves, and tables have unknown rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import securevfl as vfl
from securevfl.audit.attacks.cross_round import solve
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.credit.correlate import correlate
from securevfl.data.id_keys import order_by_value
from securevfl.data.register import Register
from securevfl.disclosure.counts import Disclosure, Kind, earlier_share
from securevfl.disclosure.ledger import DisclosureLedger, total_to
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.disclosure.limits import Limit
from securevfl.disclosure.summed_bits import check_statistics
from securevfl.errors import LeakageError
from tests.builders import raises_code

ROWS, COLUMNS, JOBS, LEFT_OUT = 8192, 16, 6, 1024
SEALED_JOB = vfl.Job(
    model=vfl.Logistic(),
    optimizer=vfl.FedBCD(local_steps=5, lr=0.1),
    protocol=vfl.Protocol(residual=vfl.Ckks()),
    batch_size=256,
    epochs=1,
    accepts=["columns"],
)


def overlapping_tables() -> list[vfl.Party]:
    """Return five columns that determine the labels, and sixteen of noise."""
    generator = np.random.default_rng(0)
    columns, noise = generator.normal(size=(ROWS, 5)), generator.normal(size=(ROWS, COLUMNS))
    y = columns.sum(axis=1) + generator.normal(size=ROWS) > 0
    return [vfl.Party("bank", columns, y.astype(int), ids=range(ROWS)), vfl.Party("shop", noise, ids=range(ROWS))]


def chosen(parties: Sequence[vfl.Party], jobs: int = JOBS) -> Iterator[np.ndarray]:
    """Return the rows of each job, without the ids with the smallest digests of the jobs before."""
    keys = parties[0].keys
    assert keys is not None
    by_digest = order_by_value(keys)
    return (np.sort(by_digest[k * LEFT_OUT :]) for k in range(jobs))


def admitted(folder: Path, parties: Sequence[vfl.Party], jobs: int) -> list[np.ndarray]:
    local = {party.name: DisclosureLedger(folder / party.name, party.name) for party in parties}
    went = []
    for rows in chosen(parties, jobs):
        try:
            vfl.simulate(SEALED_JOB, [party.take(rows) for party in parties], ledgers=local)
        except LeakageError as refused:
            assert "earlier jobs on this table disclosed other equations" in str(refused)  # noqa: PT017 which of many
            continue
        went.append(rows)
    return went


def test_omitting_ids_does_not_make_another_table(tmp_path: Path) -> None:
    assert len(admitted(tmp_path, overlapping_tables(), 2)) == 1


@pytest.mark.long
def test_such_jobs_reveal_labels_as_one_job_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The attack uses all jobs that the bank's ledger admits, with columns of noise."""
    parties, equations = overlapping_tables(), []
    (_, labelled) = (parties[1], parties[0])
    for rows in admitted(tmp_path, parties, JOBS):
        pair = RealIdealPair(SEALED_JOB, [party.take(rows) for party in parties], 0)
        equations += [(rows[which], A, b) for which, A, b in pair.real("shop").equations()]
    residuals = -solve(equations, ROWS, 1)[:, 0]
    requested = ~np.isnan(residuals)
    auc = float(roc_auc_score(labelled.labels[requested], residuals[requested]))
    with capsys.disabled():
        print(f"\nlabels by {COLUMNS} columns of noise, least ids left out of {JOBS} jobs: AUC {auc:.3f}")
    assert auc < 0.67


def about(kind: Kind, count: int, of: int = 100, group: str = "training") -> Disclosure:
    return Disclosure(kind, "bank", ("shop",), count, of, group=group)  # type: ignore[arg-type]


def register(rows: Sequence[int] | np.ndarray) -> Register:
    return vfl.Party("shop", np.arange(len(rows))[:, None], ids=np.asarray(rows)).register


TOLD = [about("labels", 30), about("columns", 30), about("columns", 30, 1000, "correlations"), about("scores", 30)]


@pytest.mark.parametrize("disclosed", TOLD, ids=["labels", "columns", "bits", "scores"])
def test_limits_hold_over_jobs_with_omitted_ids(disclosed: Disclosure, tmp_path: Path) -> None:
    """This holds for each kind of number, as the ledger counts it."""
    ledger, (party, *_) = DisclosureLedger(tmp_path / "shop.ledger", "shop"), overlapping_tables()
    ledger.set_limit(disclosed.kind, Limit(70))
    rows = list(chosen([party], 3))
    for k in range(2):
        ledger.record(party.take(rows[k]).register, (f"run {k}", ""), [disclosed])
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party="shop") as refused:
        ledger.record(party.take(rows[2]).register, ("run 2", ""), [disclosed])
    assert "90" in str(refused.value)


def test_joint_statistics_add_up_over_omitted_ids(tmp_path: Path) -> None:
    """Joint statistics of 2 % and 2.9 % of the bits of the columns: each fits a limit of 3 %, both do not."""
    draw = np.random.default_rng(5)
    bank = vfl.Party("bank", draw.normal(size=(3 * LEFT_OUT, 5)), ids=range(3 * LEFT_OUT))
    shop = vfl.Party("shop", draw.integers(0, 2, (3 * LEFT_OUT, 4)).astype(float), ids=range(3 * LEFT_OUT))
    defaults = {"shop": DisclosureLedger(tmp_path / "shop.ledger", "shop")}
    first, second = chosen([bank], 2)
    correlate([bank.take(first), shop.take(first)], ledgers=defaults)
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party="shop", peer="bank"):
        correlate([bank.take(second), shop.take(second)], ledgers=defaults)
    correlate([bank.take(second), shop.take(second)], ledgers={"shop": DisclosureLedger(tmp_path / "new", "shop")})


@pytest.mark.parametrize("disclosed", TOLD, ids=["labels", "columns", "bits", "scores"])
def test_a_small_set_of_rows_in_many_jobs_is_counted(disclosed: Disclosure, tmp_path: Path) -> None:
    """A dozen jobs, each with 500 other rows and the same 50: a table of all would disclose most of the 50."""
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    small, jobs = np.arange(50), 12
    for k in range(jobs):
        ledger.record(register(np.concatenate([small, 1000 * (k + 1) + np.arange(500)])), (f"run {k}", ""), [disclosed])
    before = [
        entry.disclosure for entry in ledger.counted_for(register(np.concatenate([small, 90_000 + np.arange(5000)])))
    ]
    assert sum(item.count for item in before) == 30 * jobs
    alone = [entry.disclosure for entry in ledger.counted_for(register(3000 + np.arange(500)))]
    assert sum(item.count for item in alone) == 30
    if disclosed.group == "correlations":
        assert sum(item.share for item in before) == pytest.approx(jobs * 0.03 * 11, rel=0.02)  # 550 rows over 50
        with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party="shop"):
            check_statistics("shop", [disclosed], "", [LedgerEntry("t", "r", "", item) for item in before])
    elif disclosed.kind == "labels":
        assert earlier_share(disclosed, before) == pytest.approx(jobs * 1.0)  # 165 equations about 50 rows
    else:
        assert earlier_share(disclosed, before) == pytest.approx(jobs * 0.3)


def test_halves_and_whole_count_at_the_most_disclosed_row(tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    for name, rows, count in (("a", range(400), 5), ("b", range(400, 1000), 7), ("c", range(300, 500), 1)):
        ledger.record(register(rows), (name, ""), [about("columns", count)])
    counted = total_to(ledger.counted_for(register(range(1000))), "columns", "bank")
    assert (counted.count, counted.runs) == (8, 2)  # rows 400 to 499: neither 5 + 7, nor 7
    assert total_to(ledger.counted_for(register(range(300))), "columns", "bank").count == 5
    assert ledger.counted_for(register(range(2000, 2010))) == []


def test_equations_count_fully_for_few_shared_rows(tmp_path: Path) -> None:
    """To a peer that knows the other rows, p equations about n rows are p equations about s of them."""
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    ledger.record(register(range(1000)), ("run", ""), [about("labels", 20, 1000)])
    shares = {
        s: earlier_share(
            about("labels", 1), [entry.disclosure for entry in ledger.counted_for(register(range(1000 - s, 2000)))]
        )
        for s in (1000, 500, 100, 20, 5, 1)
    }
    assert shares == pytest.approx({1000: 0.02, 500: 0.04, 100: 0.2, 20: 1.0, 5: 1.0, 1: 1.0})
    assert all(less <= more for less, more in pairwise(shares.values()))


def test_tables_without_ids_count_for_all_rows(tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    ledger.record(Register.of_numbers(100), ("first", ""), [about("columns", 4)])
    assert total_to(ledger.counted_for(register(range(5, 300))), "columns", "bank").count == 4
    ledger.record(Register.of_numbers(200), ("run", ""), [about("columns", 3)])
    ledger.record(register(range(900, 1000)), ("another", ""), [about("columns", 2)])
    assert total_to(ledger.counted_for(register(range(5, 300))), "columns", "bank").count == 7
    assert total_to(ledger.counted_for(Register.of_numbers(7)), "columns", "bank").count == 9

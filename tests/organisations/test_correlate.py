"""Correlations of parties' columns: compared with numpy on pooled columns, recorded, limited and attacked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

import securevfl as vfl
from securevfl.base.roles import ACTIVE, PARTNER, Roles
from securevfl.credit import correlate as module
from securevfl.credit.correlate import correlate, correlate_with
from securevfl.credit.correlations import Correlations, OwnColumns, page_of
from securevfl.disclosure.counts import Disclosure, earlier_share
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.limits import Limit
from securevfl.disclosure.summed_bits import MAX_STATISTICS_SHARE
from securevfl.errors import IdError, LeakageError, TableError
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.shares import column_correlations, summed_products
from securevfl.protocols.shares.column_correlations import CORRELATION_LEVELS, CorrelationEncoding, RoundedProducts
from securevfl.runtime.disclosure_gate import DisclosureRecord
from securevfl.runtime.observer import Event, Observer
from tests.builders import raises_code
from tests.transport.conftest import meet as meet
from tests.transport.processes import each

N = 3000


def pooled(n: int = N, seed: int = 0) -> np.ndarray:
    """Return five columns of a bank and four of a shop: some correlated, one heavy-tailed, one nearly a sum."""
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(n, 9))
    X[:, 5] = 0.9 * X[:, 0] + 0.4 * X[:, 5]
    X[:, 6] = X[:, 1] + X[:, 2] + 0.5 * X[:, 6]
    X[:, 3] = np.exp(1.5 * X[:, 3])
    X[:, 8] = X[:, 8] > 2
    return X


def unlabelled_parties(X: np.ndarray, split: int = 5) -> list[vfl.Party]:
    ids = range(len(X))
    return [vfl.Party("bank", X[:, :split], ids=ids), vfl.Party("shop", X[:, split:], ids=ids)]


class Seen(Observer):
    """The messages between parties, and the disclosures that their gates recorded."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.entries: list[tuple[str, DisclosureRecord]] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def note(self, me: str, fact: object) -> None:
        if isinstance(fact, DisclosureRecord):
            self.entries.append((me, fact))


def test_correlations_are_those_of_the_pooled_columns() -> None:
    """Errors of correlations are below 1/30 whatever is drawn. Those of R^2 = 1 - 1 / VIF have a deviation of .04 at
    most, and were .146 at most in 20,000 drawings: .25 is six deviations."""
    X = pooled()
    by_party = correlate(unlabelled_parties(X))
    pooled_correlations = np.corrcoef(X.T)
    inflation = np.diag(np.linalg.inv(pooled_correlations))
    for name, rows, columns in (("bank", slice(0, 5), slice(5, 9)), ("shop", slice(5, 9), slice(0, 5))):
        (result,) = by_party[name]
        assert np.abs(result.R - pooled_correlations[rows, columns]).max() < 1 / CORRELATION_LEVELS + 1e-3
        np.testing.assert_allclose(
            result.local_inflation, np.diag(np.linalg.inv(pooled_correlations[rows, rows])), rtol=1e-6
        )
        np.testing.assert_allclose(1 / result.joint_inflation, 1 / inflation[rows], rtol=0, atol=0.25)
    bank = by_party["bank"][0]
    assert bank.high()[0][:2] == (bank.columns[0], 1)
    assert inflation[0] > 5 > 2 > bank.local_inflation[0]


def test_inflation_is_exact_where_nothing_is_rounded() -> None:
    X = pooled()
    columns_of_bank, other = (OwnColumns.of(party.name, party.table) for party in unlabelled_parties(X))
    K = columns_of_bank.Q.T @ other.Q / N
    np.testing.assert_allclose(
        columns_of_bank.joint_inflation(K, 0.0), np.diag(np.linalg.inv(np.corrcoef(X.T)))[:5], rtol=1e-8
    )


def test_three_parties_and_several_stretches_of_rows() -> None:
    X = pooled(1203)
    ids = [f"n{k}" for k in range(len(X))]
    cuts = {"bank": slice(0, 3), "shop": slice(3, 6), "telco": slice(6, 9)}
    tables = [vfl.Party(name, X[:, at], ids=ids) for name, at in cuts.items()]
    with mock.patch.object(summed_products, "ROWS_PER_SUMMED_PRODUCT", 500):
        results = correlate(tables)
    exact = np.corrcoef(X.T)
    for name, pairs in results.items():
        assert [result.other for result in pairs] == [other for other in cuts if other != name]
        for pair in pairs:
            assert np.abs(pair.R - exact[cuts[name], cuts[pair.other]]).max() < 1 / CORRELATION_LEVELS + 1e-3


def test_texts_constants_and_gaps() -> None:
    X = pooled()
    gaps = np.array(X)
    gaps[::7, 1] = np.nan
    words = np.where(X[:, 2] > 0, "yes", "no")
    table = pa.table({"a": gaps[:, 0], "word": words, "b": gaps[:, 1], "same": np.ones(N)})
    columns = OwnColumns.of("bank", vfl.Party("bank", table, ids=range(N)).table)
    assert columns.names == ("a", "b")
    filled = np.where(np.isnan(gaps[:, 1]), np.nanmean(gaps[:, 1]), gaps[:, 1])
    np.testing.assert_allclose(columns.Z[:, 1], (filled - filled.mean()) / filled.std(), atol=1e-12)
    with raises_code(TableError, "SVFL-TABLE-CONSTANT"):
        OwnColumns.of("bank", vfl.Party("bank", table.select(["word"]), ids=range(N)).table)


def test_all_that_passes_is_declared_and_entered() -> None:
    seen = Seen()
    correlate(unlabelled_parties(pooled(1200)), observe=seen)
    known = {item.message for item in module.declares(Roles.of((("bank", ACTIVE), ("shop", PARTNER))))}
    assert {type(event.message) for event in seen.events} <= known
    assert all(isinstance(item, MessageDeclaration) for item in column_correlations.declares())
    disclosed = [(me, entry) for me, entry in seen.entries if entry.kind == "columns"]
    assert sorted((me, entry.to, entry.numbers, entry.bits, entry.about, entry.group) for me, entry in disclosed) == [
        ("bank", "shop", 40, 6, ("bank",), "correlations"),
        ("shop", "bank", 40, 6, ("shop",), "correlations"),
    ]
    words = [event.message.words for event in seen.events if isinstance(event.message, RoundedProducts)]
    assert {len(message_words) for message_words in words} == {30}  # 40 numbers of 6 bits and no more


def test_ledgers_count_them_and_refuse_what_goes_too_far(tmp_path: Path) -> None:
    X = np.random.default_rng(5).normal(size=(1000, 9))
    tables = unlabelled_parties(X)
    ledgers = {party.name: DisclosureLedger(tmp_path / party.name, party.name) for party in tables}
    correlate(tables, ledgers=ledgers)
    (entry,) = ledgers["shop"].read().entries
    assert (entry.disclosure.kind, entry.disclosure.learner, entry.disclosure.count) == ("columns", "bank", 40)
    bits = 1000 * 4 * (3 + np.log2((2 * np.pi * np.e) ** 0.5))  # bits of a normal number in steps of 1/8
    assert entry.disclosure.share == pytest.approx(40 * 6 / bits, rel=0.03)
    correlate(tables, ledgers=ledgers)
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        correlate(tables, ledgers={party.name: DisclosureLedger(tmp_path / party.name, party.name) for party in tables})
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):  # also for other columns
        correlate(unlabelled_parties(X[:, ::-1]), ledgers=ledgers)
    other = DisclosureLedger(tmp_path / "limited", "shop")
    other.set_limit("columns", Limit(39))
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        correlate(tables, ledgers={"shop": other})
    assert other.read().entries == ()


def test_two_peers_of_one_request_share_the_limit(tmp_path: Path) -> None:
    """Correlations with ten columns disclose 2.4 % of the bits of a single column, to each of two peers."""
    X, seen = np.random.default_rng(9).normal(size=(1000, 21)), Seen()
    columns = {"shop": slice(20, 21), "bank": slice(0, 10), "telco": slice(10, 20)}
    tables = [vfl.Party(name, X[:, part], ids=range(1000)) for name, part in columns.items()]
    ledger = DisclosureLedger(tmp_path / "shop", "shop")
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party="shop", peer="bank, telco") as refused:
        correlate(tables, ledgers={"shop": ledger}, observe=seen)
    (share,) = re.findall(r"would receive ([\d.]+)% more", str(refused.value))
    assert float(share) / 2 < 100 * MAX_STATISTICS_SHARE < float(share)
    assert not any(event.me == "shop" and isinstance(event.message, RoundedProducts) for event in seen.events)
    assert not ledger.read().entries


def test_a_column_of_few_values_bounds_what_is_told() -> None:
    """A 0/1 column, one in ten, holds .47 bits a row: 12 bits for each column of a peer are held against these."""
    X = np.random.default_rng(6).normal(size=(5000, 3))
    X[:, 2] = np.arange(5000) % 10 == 0
    columns_of_shop = OwnColumns.of("shop", vfl.Party("shop", X, ids=range(5000)).table)
    disclosure = module._disclosure("shop", columns_of_shop, module._information_content(columns_of_shop), "bank", 4)
    assert disclosure.share == pytest.approx(12 * 4 / (5000 * 0.469), rel=0.01)
    assert "x2 has the least information, 0.47 bits per row" in module._remedy(columns_of_shop)


def test_weights_in_place_of_columns_read_only_counted_bits(tmp_path: Path) -> None:
    """A deviating party multiplies rows by 2^(L - 2), 2^(L - 3) .. over the distance of a 0/1 column's two values.

    It reads 5 of them from a number of 6 bits. With three columns, each of which is disclosed twice, it reads 30 rows a
    request, and 60 of 3,000 rows before it is refused.
    """
    mark = np.random.default_rng(8).integers(0, 2, N)
    bank, shop = vfl.Party("bank", pooled()[:, :3], ids=range(N)), vfl.Party("shop", mark[:, None], ids=range(N))
    encoding, raw, read = CorrelationEncoding(N), list[Any](), list[bool]()
    low, high = np.unique(encoding.encode_partner(OwnColumns.of("shop", shop.table).Z)).tolist()
    run_protocol = module.rounded_correlations

    def telling(context: Any, *words: Any) -> Any:
        matrices = run_protocol(context, *words)
        raw.extend(matrices if context.me == "bank" else [])
        return matrices

    def look() -> None:
        blocks = [weights[:, :3], weights[:, 3:]]
        with (
            mock.patch.object(CorrelationEncoding, "encode_active", side_effect=blocks),
            mock.patch.object(module, "rounded_correlations", telling),
        ):
            correlate([bank, shop], ledgers={"shop": DisclosureLedger(tmp_path / "shop", "shop")})

    for start in (0, 30):
        rows, weights = start + np.arange(30).reshape(6, 5), np.zeros((N, 6), np.int64)
        weights[rows, np.arange(6)[:, None]] = np.rint(2.0 ** (encoding.bits - 1 - np.arange(5)) / (high - low))
        look()
        sums = np.concatenate(raw, axis=0)[:, 0] * CORRELATION_LEVELS - (
            weights.sum(axis=0) * low / 2.0**encoding.shift
        )
        levels = np.mod(np.rint(np.mod(sums, 64) / 2), 32).astype(int)
        read += ((levels[:, None] >> np.arange(4, -1, -1)) & 1).astype(bool).ravel().tolist()
        raw.clear()
    assert read == mark[: len(read)].astype(bool).tolist()
    assert len(read) == 60 <= MAX_STATISTICS_SHARE * N
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        look()


def test_a_training_counts_earlier_correlations_by_their_share() -> None:
    earlier = Disclosure("columns", "bank", ("shop",), 40, 4000, group="correlations")
    planned = Disclosure("columns", "bank", ("shop",), 3, 10)
    assert earlier_share(planned, [earlier]) == 0.01
    assert earlier_share(planned, [Disclosure("columns", "bank", ("shop",), 4, 10)]) == 0.4


@pytest.mark.parametrize(
    ("rows", "columns", "refusal"),
    [(900, 5, "1,000 rows or more"), (1000, 8, None), (1150, 12, "100 for each column")],
    ids=["few rows", "enough", "many columns"],
)
def test_tables_that_would_tell_of_rows_are_refused(rows: int, columns: int, refusal: str | None) -> None:
    tables = unlabelled_parties(np.random.default_rng(1).normal(size=(rows, columns + 1)), columns)
    if refusal is None:
        correlate(tables)
        return
    with raises_code(TableError, "SVFL-TABLE-TOO-FEW-ROWS"):
        correlate(tables)


def test_rows_in_another_order_are_refused() -> None:
    X = pooled(1200)
    bank, shop = unlabelled_parties(X)
    with raises_code(IdError, "SVFL-ID-ORDER"):
        correlate([bank, shop.take(np.arange(len(X))[::-1])])
    with raises_code(TableError, "SVFL-TABLE-ROW-COUNT"):
        correlate([bank, shop.take(np.arange(1100))])


def marking(n: int, marks: int = 10) -> tuple[float, float]:
    """Return the correlation of the shop's rows as a bank reads them with the true rows, with and without rounding.

    The bank's columns are 1 at one row each.
    """
    shop = np.random.default_rng(n).normal(size=(n, 10))
    bank = np.zeros((n, marks))
    bank[np.arange(marks), np.arange(marks)] = 1.0
    ids = range(n)
    (result,) = correlate([vfl.Party("bank", bank, ids=ids), vfl.Party("shop", shop, ids=ids)])["bank"]
    true = ((shop - shop.mean(axis=0)) / shop.std(axis=0))[:marks]
    exact = np.corrcoef(np.column_stack([bank, shop]).T)[:marks, marks:]
    read, sharp = (float(np.corrcoef(correlations.ravel(), true.ravel())[0, 1]) for correlations in (result.R, exact))
    return read, sharp


def test_marks_that_are_repeated_read_rows_and_then_are_refused(tmp_path: Path) -> None:
    """Three marking columns over 1,000 rows of normal columns are answered four times; then they are refused.

    The bank reads 3 rows of 10 values at a correlation of .98 (.92 from one request). By Fisher's z, .8 is 6.2
    deviations away, which is missed once in 4e9.
    """
    n, draw = 1000, np.random.default_rng(3)
    shop = draw.normal(size=(n, 10))
    bank = np.zeros((n, 3))
    bank[np.arange(3), np.arange(3)] = 1.0
    roles = [vfl.Party("bank", bank, ids=range(n)), vfl.Party("shop", shop, ids=range(n))]
    repeats = [correlate(roles, ledgers={"shop": DisclosureLedger(tmp_path / "s", "shop")})["bank"] for _ in range(4)]
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        correlate(roles, ledgers={"shop": DisclosureLedger(tmp_path / "s", "shop")})
    true = ((shop - shop.mean(axis=0)) / shop.std(axis=0))[:3]
    assert np.corrcoef(np.mean([repeat.R for (repeat,) in repeats], axis=0).ravel(), true.ravel())[0, 1] > 0.8


def test_an_indicator_column_reads_a_row_that_rounding_blurs() -> None:
    """A bank that brings marks reads 100 values of a thousand rows at .92 and of 20,000 at .46: by Fisher's z the
    bounds are 7 deviations away and more. Exact numbers would be read as they are."""
    few, exact = marking(1000)
    assert exact > 0.999
    assert few > 0.7
    many, exact = marking(20_000)
    assert exact > 0.999
    assert many < 0.9


def test_a_fixed_rounding_in_place_of_a_random_one_is_found() -> None:
    """The mean of 10,000 roundings is the share itself, to 6.5 deviations of .0046, missed once in 1e10; without the
    dither it is the one below."""
    numbers = CorrelationEncoding(5000)
    share = np.full(10_000, int(17.3 * 2**numbers.shift), np.uint64)

    def mean() -> float:
        return float(column_correlations._rounded(numbers, share).mean())

    assert abs(mean() - 17.3) < 0.03
    with mock.patch.object(column_correlations.Prg, "array", lambda self, shape, kind: np.zeros(shape, kind)):
        assert mean() == 17.0


def test_between_organisations_with_consent(meet: Any) -> None:
    meeting, sheets = meet(2), {}
    X = pooled(1200)[:, [0, 1, 2, 4, 5, 6, 7]]
    bank, shop = unlabelled_parties(X, 4)

    def ask(name: str) -> Any:
        table = bank if name == "bank" else shop
        kit = meeting.kit(name)
        return correlate_with(
            table, kit / "peers.toml", ledger=kit / "ledger", timeout=20, patience=5,
            consent=lambda sheet: sheets.__setitem__(name, sheet),
        )  # fmt: skip

    by_party = each(meeting, ask)
    assert np.abs(by_party["shop"][0].R - np.corrcoef(X.T)[4:, :4]).max() < 1 / CORRELATION_LEVELS + 1e-3
    assert all(len(line) <= 80 for sheet in sheets.values() for line in sheet.splitlines())
    assert "reveals   the same numbers to bank: 24 of 6 bits about 3 x 1,200 values, 0.00" in sheets["shop"]
    assert "0 of these bits in earlier joint statistics with any peer; at most 0.03 in all" in sheets["shop"]
    (entry,) = DisclosureLedger.find(meeting.kit("shop") / "ledger").read().entries
    assert entry.disclosure.numbers == 24


def test_a_page_and_json_of_what_was_found() -> None:
    R = np.array([[0.9, 0.0], [0.1, -0.6]])
    result = Correlations("bank", "shop", ("a", "b<"), R, np.ones(2), np.array([5.0, 1.5]))
    page = page_of([result])
    assert "b&lt;" in page
    assert "column 2" in page
    assert json.loads(str(result))["correlations"] == R.tolist()
    assert result.high() == [("a", 1, 0.9), ("b<", 2, -0.6)]


@pytest.mark.parametrize(("mine", "others"), [(2, 30), (3, 10), (4, 4)])
def test_rounding_does_not_bias_inflation_for_any_column_counts(mine: int, others: int) -> None:
    """The noise of all entries in a row of K is subtracted, whichever party has more columns."""
    generator, variance = np.random.default_rng(mine), 0.005
    Z = generator.normal(size=(2000, mine))
    columns = OwnColumns.of("bank", vfl.Party("bank", Z, ids=range(len(Z))).table)
    K = np.zeros((mine, others))
    K[0, 0] = 0.8
    exact = columns.joint_inflation(K, 0.0)
    drawn = [columns.joint_inflation(K + generator.normal(0, np.sqrt(variance), K.shape), variance) for _ in range(400)]
    # a factor near 1 varies by less than 0.1 a drawing, and their mean by 0.005
    np.testing.assert_allclose(1 / np.mean(1 / np.array(drawn), axis=0), exact, rtol=0.12)

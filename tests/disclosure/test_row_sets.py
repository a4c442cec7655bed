"""Sets of rows against plain Python sets: order of the tables, damaged files and large sets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from securevfl.data.id_keys import id_keys
from securevfl.data.register import Register
from securevfl.disclosure import row_sets as module
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.row_sets import RowSet, RowSets, TableRows
from securevfl.errors import DataError
from tests.builders import raises_code

SALT = bytes(range(32))


def register(rows: Sequence[int] | np.ndarray) -> Register:
    return Register.of_ids(id_keys("shop", [np.asarray(rows).tolist()]))


def drawn(seed: int, tables: int = 12, rows: int = 700) -> list[np.ndarray]:
    """Tables of any size in a world of some hundred rows, a few of them equal, one without a row of any other."""
    draw = np.random.default_rng(seed)
    drawn_rows = [draw.permutation(rows)[: draw.integers(1, rows)] for _ in range(tables - 2)]
    return [*drawn_rows, drawn_rows[1][::-1], 5000 + np.arange(9)]


def entered(sets: RowSets, tables: Sequence[np.ndarray]) -> tuple[dict[str, RowSet], list[TableRows]]:
    known = dict[str, RowSet]()
    for k, rows in enumerate(tables):
        row_set = sets.members(register(rows), known)
        known[str(k)] = sets.write(str(k), row_set)
    return known, [sets.known(name, known) for name in known]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("block", "piece"), [(1 << 10, 256), (module.MAX_BLOCK_BYTES, module.READ_BYTES)])
def test_shared_rows_and_the_worst_row_are_those_of_plain_sets(
    seed: int, block: int, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BLOCK_BYTES", block)
    monkeypatch.setattr(module, "READ_BYTES", piece)  # marks, and bits behind them, in several pieces
    monkeypatch.setattr(module, "WEIGHED_BYTES", 16)
    sets, tables = RowSets(tmp_path, SALT), drawn(seed)
    known, members = entered(sets, tables)
    weights = np.random.default_rng(seed).integers(0, 9, (3, len(tables))).astype(float)
    for row_set, rows in zip(members, tables, strict=True):
        assert sets.count_shared(row_set, known) == {
            str(k): len(set(rows) & set(other)) for k, other in enumerate(tables)
        }
        contains = np.array([np.isin(rows, other) for other in tables])  # tables x rows
        np.testing.assert_array_equal(
            (weights * sets.worst(row_set, known, weights)).sum(axis=1), (weights @ contains).max(1)
        )
    another = np.arange(300, 900)
    new = sets.members(register(another), known)  # a table that has not been entered
    assert sets.count_shared(new, known) == {str(k): len(set(another) & set(other)) for k, other in enumerate(tables)}
    assert len(new.new) == len(set(another) - {row for rows in tables for row in rows})


def test_a_row_has_one_place_whatever_table_it_comes_with(tmp_path: Path) -> None:
    sets, tables = RowSets(tmp_path, SALT), drawn(0)
    known, _ = entered(sets, tables)
    assert sum(entry.new for entry in known.values()) == len({row for rows in tables for row in rows})
    assert known["10"].new == 0  # an earlier table in another order
    firsts = [entry.first for entry in known.values()]
    assert firsts == sorted(firsts)
    assert all(entry.first % 8 == 0 for entry in known.values())


def test_two_rows_of_one_mark_count_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = id_keys("shop", [range(20)])
    twice = Register(21, bytes(32), None, lambda: iter([keys, keys[:1]]))
    assert len(RowSets(tmp_path, SALT).members(twice, {}).new) == 20


def told(count: int) -> list[Disclosure]:
    return [Disclosure("columns", "bank", ("shop",), count, 10)]


@pytest.fixture
def full(tmp_path: Path) -> DisclosureLedger:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    for k, rows in enumerate((range(300), range(200, 600), range(100, 900))):
        ledger.record(register(rows), (f"run {k}", ""), told(3))
    return ledger


def test_any_damage_to_the_rows_of_a_table_is_refused_by_name(full: DisclosureLedger) -> None:
    """A bit, a cut, a longer file, another table's, none: by a table that is new, one that is known, and one shown."""
    new, known = register(range(40)), register(range(300))
    for path in sorted(full.rows_path.iterdir()):
        content = path.read_bytes()
        other = next(file.read_bytes() for file in full.rows_path.iterdir() if file != path)
        flips = [
            content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :]
            for at in (0, len(content) // 2, len(content) - 1)
        ]
        for spoilt in (*flips, content[:-1], content + b"\0", other, b"", None):
            path.write_bytes(spoilt) if spoilt is not None else path.unlink()
            with raises_code(DataError, "SVFL-LEDGER-DAMAGED", path=str(path)):
                full.record(new, ("another", ""), told(1))
            with raises_code(DataError, "SVFL-LEDGER-DAMAGED", path=str(path)):
                full.counted_for(known)
            with raises_code(DataError, "SVFL-LEDGER-DAMAGED", path=str(path)):
                full.table_disclosures(known.name)
        path.write_bytes(content)
    full.record(new, ("another", ""), told(1))


def test_a_table_that_was_written_and_not_entered_is_written_again(full: DisclosureLedger) -> None:
    """As by a process that was killed between the two: others have taken the places since."""
    sets = RowSets(full.rows_path, full.read().salt)
    left, other = register(range(5000, 5100)), register(range(7000, 7050))
    sets.write(left.name, sets.members(left, full.read().sets))
    full.record(other, ("other", ""), told(1))
    full.record(left, ("left", ""), told(1))
    assert full.table_disclosures(left.name)[1] == {}
    assert full.table_disclosures(other.name)[1] == {}


LARGE = """
import os, sys, time
from pathlib import Path
import numpy as np
from securevfl.data.register import KEYS_PER_READ, Register
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.ledger_contents import KnownTable, LedgerContents, LedgerEntry
from securevfl.disclosure.row_sets import RowSets, TableRows
N, TABLES = 10_000_000, 100
ledger = DisclosureLedger(Path(sys.argv[1]) / "shop.ledger", "shop")
disclosures = [Disclosure("columns", peer, ("shop",), 3, 1000) for peer in ("bank", "telco")]
def digests():  # of the ids, which are computed beforehand
    for at in range(0, N, KEYS_PER_READ):
        yield np.random.Philox(key=at).random_raw(2 * min(KEYS_PER_READ, N - at)).view(np.uint8).reshape(-1, 16)
register = Register(N, bytes(32), None, digests)
start = time.process_time()
for _ in digests():
    pass
reading = time.process_time() - start
ledger.record(register, ("run", ""), disclosures)
book = ledger.read()
for k in range(1, TABLES):  # any half of the rows each, and none by itself
    bits = np.frombuffer(os.urandom(N // 8), np.uint8)
    members = RowSets(ledger.rows_path, book.salt).write(str(k), TableRows(bits, np.empty(0, np.uint64)))
    book.tables[str(k)] = KnownTable(N // 2, "", members)
entries = tuple(LedgerEntry(name, name, "", disclosure) for name in book.tables for disclosure in disclosures)
with ledger._changing() as change:
    change.contents = LedgerContents("shop", book.salt, {}, book.tables, entries)
new = Register(N - 1000, bytes(31) + b"1", None, lambda: (digest[:-6] for digest in digests()))
start = time.process_time()
ledger.record(Register(sum(map(len, new.ids())), new.key, None, new.ids), ("new", ""), disclosures)
print(time.process_time() - start - 2 * reading)
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


@pytest.mark.slow
def test_a_job_on_ten_million_rows_is_admitted_after_a_hundred_others(tmp_path: Path) -> None:
    """In two seconds of processor time, excluding reading of digests, and in 250 MB for the process.

    Nearly every row is in tables that no other row shares.
    """
    process = subprocess.run([sys.executable, "-c", LARGE, str(tmp_path)], capture_output=True, text=True, check=True)
    seconds, memory = map(float, process.stdout.split())
    print(f"admitted in {seconds:.2f} s of processor time, {memory / 1000:.0f} MB at most")
    assert seconds < 2
    assert memory < 250_000

"""Records of disclosed scores persist across runs, processes and kills."""

from __future__ import annotations

import multiprocessing
import os
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from securevfl.protocols.score_ledger.row_digests import COMMITMENT_BYTES
from securevfl.protocols.score_ledger.row_ledger import ROW_NEW, ROW_REFUSED, ROW_STORED, ScoreLedger
from tests.protocols.test_shares_predict import Model, Open, admit, names


def states(ledger: ScoreLedger, model: bytes, peer: str, rows: list[bytes], columns: int = 40) -> list[int]:
    return list(admit(ledger, model, peer, rows, columns))  # type: ignore[no-untyped-call]


def keep(ledger: ScoreLedger, model: bytes, peer: str, rows: list[bytes]) -> None:
    question = ledger.query(model, peer, rows, b"".join(row.ljust(COMMITMENT_BYTES) for row in rows))
    ledger.store(question, [b"part of " + row for row in rows])


def test_a_ledger_counts_across_runs_and_peers_together(tmp_path: Path):
    path = tmp_path / "scores"
    for model in (b"1", b"2", b"3"):
        ScoreLedger(path).record_model(model, 20, names(2))
    assert states(ScoreLedger(path), b"1", "bank", names(5, 5), 12) == [ROW_NEW] * 5
    keep(ScoreLedger(path), b"1", "bank", names(5, 5))
    assert states(ScoreLedger(path), b"1", "bank", names(2, 9), 12) == [ROW_STORED, ROW_NEW]
    assert states(ScoreLedger(path), b"1", "shop", names(1, 9), 12) == [ROW_NEW]
    assert states(ScoreLedger(path), b"2", "shop", names(1, 9), 12) == [ROW_NEW]
    assert states(ScoreLedger(path), b"3", "bank", names(2, 8), 12) == [
        ROW_NEW,
        ROW_REFUSED,
    ]  # scores under two models, for every peer
    assert path.stat().st_mode & 0o777 == 0o600


def test_ledgers_that_share_a_file_see_each_others_records(tmp_path: Path):
    path = tmp_path / "scores"
    ScoreLedger(path).record_model(b"m", 20, names(2))
    one, other = ScoreLedger(path), ScoreLedger(path)
    assert states(one, b"m", "bank", names(3, 10)) == [ROW_NEW] * 3
    keep(one, b"m", "bank", names(3, 10))
    assert other.commitments(names(2), np.ones((2, 3))) == one.commitments(names(2), np.ones((2, 3)))
    assert states(other, b"m", "bank", names(3, 12)) == [ROW_STORED, ROW_NEW, ROW_NEW]
    rows, X = names(2, 20), np.full((2, 40), 123.25)
    one.admit(one.query(b"m", "bank", rows, one.commitments(rows, X)), X)
    content = b"".join(item.read_bytes() for item in path.parent.glob(f"{path.name}*"))  # including the write-ahead log
    assert len(content) > 10_000
    assert rows[0] not in content
    assert X[:1].tobytes()[:8] not in content


def killed(path: Path, rows: list[bytes]) -> None:
    """Admit rows, and stop the process when the ledger claims them."""
    ledger = ScoreLedger(path)
    with ledger.claim() as claim:
        admit(ledger, b"m", "bank", rows, claim=claim)  # type: ignore[no-untyped-call]
        os._exit(1)


def test_a_row_claimed_by_another_process_is_waited_for(tmp_path: Path):
    path = tmp_path / "scores"
    ScoreLedger(path).record_model(b"m", 20, names(2))
    with ScoreLedger(path).claim() as claim:
        admit(ScoreLedger(path), b"m", "bank", names(3, 10), claim=claim)  # type: ignore[no-untyped-call]
        impatient = ScoreLedger(path, claim_timeout=0.05)
        assert states(impatient, b"m", "bank", names(4, 10)) == [ROW_REFUSED] * 3 + [ROW_NEW]
        with ThreadPoolExecutor(4) as pool:
            others = [pool.submit(states, ScoreLedger(path), b"m", "bank", names(3, 10)) for _ in range(4)]
            time.sleep(0.1)
            assert not any(other.done() for other in others)
            keep(ScoreLedger(path), b"m", "bank", names(3, 10))
            assert [other.result() for other in others] == [[ROW_STORED] * 3] * 4
    process = multiprocessing.get_context("spawn").Process(target=killed, args=(path, names(3, 20)))
    process.start()
    process.join()
    assert states(ScoreLedger(path), b"m", "bank", names(3, 20)) == [ROW_NEW] * 3
    assert not [*(tmp_path / "scores.locks").iterdir()]


def test_rows_of_a_refused_query_are_released(tmp_path: Path):
    ledger = ScoreLedger(tmp_path / "scores")
    ledger.record_model(b"m", 20, names(2))
    for _ in range(4):
        assert states(ledger, b"m", "bank", names(1, 10)) == [ROW_NEW]
    assert states(ledger, b"m", "bank", names(1, 10)) == [ROW_REFUSED]
    row = names(1, 11)
    for _ in range(6):
        assert states(ledger, b"m", "bank", row) == [ROW_NEW]
        ledger.release(ledger.query(b"m", "bank", row, row[0].ljust(COMMITMENT_BYTES)))
    assert ledger.disclosed_bits(row) == [(0, 0)]


def test_a_large_ledger_opens_at_once_and_takes_no_memory(tmp_path: Path):
    """With a hundred thousand rows of a training, the process has pages of the file in memory, but no rows."""
    path = tmp_path / "scores"
    ScoreLedger(path).record_model(b"m", 20, (b"%d" % row for row in range(100_000)))
    assert path.stat().st_size < 3_000_000
    tracemalloc.start()
    ledger = ScoreLedger(path)
    assert states(ledger, b"m", "bank", [b"7", b"new"]) == [ROW_REFUSED, ROW_NEW]
    assert tracemalloc.get_traced_memory()[1] < 200_000
    tracemalloc.stop()


def test_the_column_of_ones_does_not_raise_the_number_of_models():
    """A party may score under fewer models than a fourth of its columns; the column of ones does not count."""
    model, widths = Model(9, 4), []

    class Watching(Open):
        def admit(self, *arguments, **keys):
            widths.append(arguments[1].shape[1])
            return super().admit(*arguments, **keys)

    block = model.columns(5)
    model.ask([block], [names(5)], {"a": Watching()}, to="b", raw={"a": block["a"][:, :8], "b": block["b"]})
    assert widths == [8]

"""Interrupted and resumed training on shares, preprocessing on disk, and malformed messages."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import securevfl as vfl
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing
from securevfl.data.schedule import subset_sizes
from securevfl.errors import ConfigError, ProtocolError
from securevfl.families.shares.shares_job import trains_on_shares
from securevfl.families.shares.shares_plan import make_plan
from securevfl.protocols.party_context import LocalResources
from securevfl.protocols.shares import column_blocks
from securevfl.protocols.shares import iteration as iteration
from securevfl.protocols.shares.column_blocks import LocalColumns
from securevfl.protocols.shares.disk_store import DiskStore
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.iteration import LookupRequest, MaskedResidual, MaskedSum, MaskedTables
from securevfl.protocols.shares.preprocessing_store import MemoryStore, PreprocessingStore
from securevfl.protocols.shares.shares_params import RowBlock
from securevfl.protocols.shares.spent_chunks import SpentChunks
from tests.builders import raises_code
from tests.protocols.test_shares import (
    RATE,
    Case,
    Killed,
    Run,
    WatchedActive,
    WatchedPartner,
    WatchedPassive,
    breast,
    floats,
)


@pytest.fixture(scope="module", params=[(6, 9), (4, 9, 5), (4, 6, 3, 2)], ids=["two", "three", "four"])
def run(request):
    case = Case(*breast(*request.param), 120)
    visits = 4 if len(request.param) == 2 else 1
    return Run(case, [case.order * visits, case.order[::-1] * 3]).go()


@pytest.mark.parametrize("stop", [("a", 3), ("b", 3), ("b", 1), ("c", 2)])
def test_an_interrupted_training_resumes_from_common_states(stop):
    case = Case(*breast(4, 6, 5, rows=200), 100)
    visits = case.order * 3
    first = Run(case, [visits], stop=stop)
    with pytest.raises(Killed):
        first.go()
    reached = {name: len(states) - 1 for name, states in first.states.items()}
    done = min(reached.values())
    assert max(reached.values()) - done <= 1
    resumed = Run(case, [visits[done:]], states={name: first.states[name][done] for name in case.names}).go()
    assert resumed.states["a"][-1].iterations == len(visits)
    theta, _ = floats(case, visits)
    assert np.abs(resumed.weights - theta).max() < 0.05


def sums_read(case):
    """Return how well A ranks the sums after a step by the messages delta of one iteration in two sessions."""
    first = Run(case, [[0]]).go()
    second = Run(case, [[0]], states={name: first.states[name][-1] for name in "ab"}).go()
    ring = ShareRing(case.numbers.bits)
    deltas = [ring.unpack(run.received(LookupRequest)[-1].delta, (200,)) for run in (first, second)]
    _, f = floats(case, [0])
    return stats.spearmanr(ring.signed(ring.reduce(deltas[1] - deltas[0])), f[case.batches[0], 0]).statistic


def test_a_reused_keystream_reveals_sums_and_ours_is_fresh(monkeypatch):
    """If psi and gamma repeat, delta - delta' is g - g'; g of the first iteration is known except for the label."""
    case = Case(*breast(rows=200), 200, rate=3.0)
    assert abs(sums_read(case)) < 0.45  # 200 rows: six standard errors of .071
    prg = Prg
    fixed = {name: bytes([number] * 32) for number, name in enumerate("ab")}
    monkeypatch.setattr(prg, "fresh", lambda label: prg(fixed[threading.current_thread().name], label))
    assert sums_read(case) > 0.95


def test_a_visit_is_gone_through_once():
    case = Case(*breast(rows=100), 100)
    with raises_code(ProtocolError, "SVFL-PROTOCOL-REPEATED"):
        Run(case, [[0]], repeat=2).go()
    store = MemoryStore()
    store.put(0, bytes(16), 0, [b"one", b"two"])
    assert store.take(0, 0) == b"one"
    for place in (0, 2):
        with raises_code(ProtocolError, "SVFL-PROTOCOL-REPEATED"):
            store.take(0, place)
    assert store.take(0, 1) == b"two"


def test_on_disk_a_spent_chunk_does_not_survive_its_process(tmp_path: Path):
    store = DiskStore(tmp_path)
    records = [bytes([i]) * (i + 1) for i in range(40)]
    store.put(3, b"three".ljust(16), 7, records)
    store.put(4, b"four".ljust(16), 47, records)
    with raises_code(ConfigError, "SVFL-FILE-IN-USE"):
        DiskStore(tmp_path)
    for place in range(20):
        assert store.take(3, place) == records[place]
    store.close()
    again = DiskStore(tmp_path)  # as a new process after a crash
    assert again.unused_chunks == (4,)
    with pytest.raises(ProtocolError):
        again.take(3, 20)
    assert (again.chunk(4).name, again.chunk(4).first) == (b"four".ljust(16), 47)
    assert again.take(4, 0) == records[0]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    again.drop(4)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_copied_or_restored_chunk_is_discarded(tmp_path: Path):
    """A chunk is discarded after a backup of the folder, or of one chunk with its marker, was restored, wherever to."""
    folder, backup = tmp_path / "ahead", tmp_path / "backup"
    store = DiskStore(folder)
    store.put(0, b"none".ljust(16), 0, [b"one", b"two"])
    store.put(1, b"more".ljust(16), 2, [b"one", b"two"])
    store.close()
    assert folder.stat().st_mode & 0o777 == 0o700
    shutil.copytree(folder, backup)
    reopened = DiskStore(folder)
    assert reopened.unused_chunks == (0, 1)
    reopened.take(0, 0)
    reopened.close()
    for name in ("chunk-0.ready", "chunk-0.bound"):
        shutil.copy2(backup / name, folder / name)
    (folder / "chunk-0.spent").unlink()
    assert DiskStore(folder).unused_chunks == (1,)
    assert DiskStore(backup).unused_chunks == ()
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    assert not DiskStore(folder).chunk_numbers


def test_a_name_is_spent_once_over_copies_of_a_chunk(tmp_path: Path):
    """A chunk's name is used once, also by another process with another folder, as after
    only the folder was restored.
    """
    names = SpentChunks(tmp_path / "own" / "names")
    other = SpentChunks(tmp_path / "own" / "names")
    names.spend(b"one".ljust(16))
    assert other.contains(b"one".ljust(16))
    assert not other.contains(b"two".ljust(16))
    with raises_code(ProtocolError, "SVFL-PROTOCOL-REPEATED"):
        other.spend(b"one".ljust(16))
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "own", tmp_path / "own" / "names")} == {0o700, 0o600}


def test_preprocessing_restored_at_all_parties_is_refused(tmp_path: Path, monkeypatch):
    """An attack in which folders are restored with their old inodes and times, which no file system permits."""
    case = Case(*breast(rows=100), 100)
    monkeypatch.setattr(DiskStore, "_is_original", lambda *_: True)
    desks = {name: LocalResources(account=tmp_path / f"{name}.chunks") for name in case.names}

    def stores():
        return {name: DiskStore(tmp_path / name) for name in case.names}

    Run(case, [[0, 0]], ready=stores(), desks=desks, train=False).go()
    shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}.backup"))
    Run(case, [[0, 0]], ready=stores(), desks=desks, make=False).go()
    for name in case.names:  # the folders are restored, but not the parties' lists of used names
        shutil.rmtree(tmp_path / name)
        shutil.copytree(tmp_path.with_name(f"{tmp_path.name}.backup") / name, tmp_path / name)
    with raises_code(ProtocolError, "SVFL-PROTOCOL-REPEATED"):
        Run(case, [[0, 0]], ready=stores(), desks=desks, make=False).go()


def test_a_record_is_marked_spent_before_it_is_handed_out(tmp_path: Path, monkeypatch):
    """If a crash occurs while the mark is written, nobody receives the record; directly
    afterwards, the mark remains.
    """
    store = DiskStore(tmp_path)
    store.put(0, bytes(16), 0, [b"mask"] * 20)

    def crash(*_):
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr("securevfl.protocols.shares.disk_store.write_atomic", crash)
        with pytest.raises(OSError):
            store.take(0, 0)
    assert (tmp_path / "chunk-0.ready").exists()
    store.close()
    store = DiskStore(tmp_path)
    store.take(0, 0)
    assert (tmp_path / "chunk-0.spent").exists()
    store.close()
    assert DiskStore(tmp_path).unused_chunks == ()


@pytest.mark.parametrize("make", [lambda path: MemoryStore(100), lambda path: DiskStore(path, 100)])
def test_a_store_is_bounded(make, tmp_path: Path):
    store: PreprocessingStore = make(tmp_path)
    store.put(0, bytes(16), 0, [bytes(60)])
    with raises_code(ConfigError, "SVFL-JOB-TOO-LARGE"):
        store.put(1, bytes(16), 1, [bytes(60)])
    with raises_code(ProtocolError, "SVFL-STATE"):
        store.put(0, bytes(16), 0, [b""])
    store.drop(0)
    store.put(1, bytes(16), 1, [bytes(60)])


@pytest.mark.parametrize("parts", [[0, 0, 1, 1, 2, 2], [0, 1, 1, 2], [0, 0, 1, 2]], ids=str)
@pytest.mark.parametrize("make", [lambda path: MemoryStore(), DiskStore], ids=["memory", "disk"])
def test_each_part_of_an_iteration_is_taken_once_in_order(make, parts: list[int], tmp_path: Path):
    """A store gives out the next part of the current iteration or the first one of the next, and never another one."""
    store: PreprocessingStore = make(tmp_path)
    records = {(number, part): b"%d %d" % (number, part) for number in range(3) for part in range(2)}
    store.write(0, bytes(16), 0, 3, [(*key, data) for key, data in records.items()])
    current, following = -1, 0
    for number in parts:
        step = (number, 0 if number > current else following)
        for other in records.keys() - {(current, following), (current + 1, 0)}:
            with raises_code(ProtocolError, "SVFL-PROTOCOL-REPEATED"):
                store.take(0, *other)
        assert store.take(0, *step) == records[step]
        current, following = number, step[1] + 1
    store.close()


@pytest.mark.parametrize("make", [lambda path: MemoryStore(100), lambda path: DiskStore(path, 100)])
def test_a_dropped_chunk_leaves_nothing_to_the_next_one(make, tmp_path: Path):
    """A chunk with the number of an earlier one has its own records, sizes and order, used or not."""
    store: PreprocessingStore = make(tmp_path)
    files = {path.name for path in tmp_path.iterdir()}
    for count, name in ((3, b"a"), (1, b"b"), (2, b"c"), (3, b"a")):
        records = [bytes([number]) * (10 * count + number) for number in range(count)]
        store.put(0, name * 16, count, records)
        assert store.free_bytes == 100 - sum(map(len, records))
        assert (store.chunk(0).name, store.chunk(0).first, store.chunk(0).count) == (name * 16, count, count)
        assert [store.peek(0, number) for number in range(count)] == records
        assert [store.take(0, number) for number in range(count - 1)] == records[:-1]
        store.drop(0)
        assert (store.free_bytes, store.chunk_numbers) == (100, ())
        assert {path.name for path in tmp_path.iterdir()} == files
        with raises_code(ProtocolError, "SVFL-PROTOCOL-REPEATED"):
            store.peek(0, 0)
    store.close()


def test_a_training_from_disk_is_as_good(tmp_path: Path):
    case = Case(*breast(rows=200), 100)
    ready = {name: DiskStore(tmp_path / name) for name in "ab"}
    run = Run(case, [case.order * 2, case.order * 2], ready=ready).go()
    theta, _ = floats(case, case.order * 4)
    assert np.abs(run.weights - theta).max() < 0.05
    assert DiskStore(tmp_path / "a").unused_chunks == ()


def test_what_was_prepared_in_one_session_serves_another(tmp_path: Path):
    case = Case(*breast(4, 6, 5, rows=200), 100)
    chunks = [case.order * 2, case.order]

    def stores():
        return {name: DiskStore(tmp_path / name) for name in case.names}

    Run(case, chunks, ready=stores(), train=False).go()
    run = Run(case, chunks, ready=stores(), make=False).go()
    theta, _ = floats(case, [*chunks[0], *chunks[1]])
    assert np.abs(run.weights - theta).max() < 0.05
    with raises_code(ProtocolError, "SVFL-PROTOCOL-REPEATED"):
        Run(case, chunks, ready=stores(), make=False).go()


def test_chunks_that_were_not_made_together_are_refused(tmp_path: Path):
    case = Case(*breast(rows=100), 100)
    ready = {}
    for session in "xy":
        ready[session] = {name: DiskStore(tmp_path / session / name) for name in case.names}
        Run(case, [[0, 0]], ready=ready[session], train=False).go()
    with raises_code(ProtocolError, "SVFL-PROTOCOL-MESSAGE"):
        Run(case, [[0, 0]], ready={"a": ready["x"]["a"], "b": ready["y"]["b"]}, make=False).go()


def test_a_chunk_for_another_visit_is_refused():
    case = Case(*breast(rows=100), 100)
    first = Run(case, [[0]]).go()
    ready = {name: MemoryStore() for name in "ab"}
    Run(case, [[0]], ready=ready, train=False).go()
    with raises_code(ProtocolError, "SVFL-STATE"):
        Run(case, [[0]], ready=ready, make=False, states={name: first.states[name][-1] for name in "ab"}).go()


# --- a peer that sends altered messages ------------------------------------------------------------------------------


def tampered(kind, change):
    """Run a training in which messages of one kind are changed in transit."""
    case = Case(*breast(6, 5, 4, rows=100), 100)

    class Changed:
        def _send(self, name, message):
            super()._send(name, change(message) if type(message) is kind else message)

    class A(Changed, WatchedActive):
        pass

    class B(Changed, WatchedPartner):
        pass

    class C(Changed, WatchedPassive):
        pass

    return Run(case, [[0, 0]], kinds={"a": A, "b": B, "c": C})


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (LookupRequest, lambda m: LookupRequest(m.chunk, m.delta, m.offsets[:-1])),
        (LookupRequest, lambda m: LookupRequest(m.chunk, m.delta, b"\xff" * len(m.offsets))),
        (LookupRequest, lambda m: LookupRequest(m.chunk, m.delta[:-1], m.offsets)),
        (MaskedTables, lambda m: MaskedTables(m.entries[:-1])),
        (MaskedTables, lambda m: MaskedTables(b"")),
        (MaskedSum, lambda m: MaskedSum(m.chunk, m.words + b"0")),
        (MaskedResidual, lambda m: MaskedResidual(m.words[:-1])),
    ],
    ids=["short places", "places beyond", "short delta", "short tables", "no tables", "long part", "short delta to C"],
)
def test_messages_of_another_size_end_the_run_with_a_word(kind, change):
    with pytest.raises(ProtocolError) as caught:
        tampered(kind, change).go()
    assert caught.value.code in ("SVFL-PROTOCOL-SIZE", "SVFL-PROTOCOL-VALUES")


def test_sizes_that_do_not_fit_are_refused_beforehand():
    with raises_code(ConfigError, "SVFL-JOB-TOO-LARGE"):
        FixedPointEncoding(2**30, 1e-3, table_bits=8)
    assert FixedPointEncoding(256, 0.1).min_bits == 43
    assert FixedPointEncoding(256, 0.1).bits == 48
    assert FixedPointEncoding(256, 0.1).reach == 31
    assert FixedPointEncoding(256, 0.1).f_w == 19 + 3
    assert FixedPointEncoding(32, 0.1).bits == FixedPointEncoding(32, 0.1).min_bits == 40
    assert FixedPointEncoding(2, 4.0).f_w == 6 + 2


@pytest.mark.parametrize("parties", range(2, 9))
@pytest.mark.parametrize("model", ["logistic", "one_vs_rest", "square", "quantile", "trees"])
def test_there_are_numbers_for_any_number_of_rows(parties: int, model: str) -> None:
    """As n grows, first W and then residuals get fewer bits; a batch has at most as many rows as the bits permit."""
    job = vfl.Job(model=model)
    assert trains_on_shares(job)
    bits = list[tuple[int, int]]()
    for rows in (50, 2**14, 199_999, 200_000, 262_144, 400_000, 2**20, 5_000_000, 2**28):
        numbers = make_plan(job, rows=subset_sizes(rows)[-1], batches=1, parties=parties).numbers
        assert numbers.bits <= 56
        bits.append((numbers.w, numbers.f_g))
    assert bits == sorted(bits, reverse=True)
    assert all(bit >= (5, 8) for bit in bits[:4]) or parties > 2
    assert bits[-1] >= (3, 7)


@pytest.mark.parametrize("rows", [500, 8_000])
def test_coarse_numbers_change_weights_less_than_sampling(rows: int) -> None:
    """Weights with W^T g = 0 and with X^T g = 0 differ by a few hundredths of their standard errors."""
    draw = np.random.default_rng(rows)
    X = np.column_stack([draw.normal(size=(rows, 6)), draw.random(rows) < 0.05, np.ones(rows)])
    y = np.where(draw.random(rows) < 1 / (1 + np.exp(-X @ draw.normal(size=8) / 2)), 1.0, -1.0)[:, None]
    P = np.linalg.inv(X.T @ X / (4 * rows) + 0.01 * np.eye(8))
    numbers = FixedPointEncoding(rows, 0.5, w=3, f_g=7, m=8, spare=0)
    W, of_w, of_x = numbers.encode_steps(X, 0.5, P) * 2.0**-numbers.f_w, np.zeros((8, 1)), np.zeros((8, 1))
    residual = vfl.Logistic().loss.residual
    for _ in range(200):
        of_w = of_w - W.T @ residual(X @ of_w, y)
        of_x = of_x - P @ X.T @ residual(X @ of_x, y) * (0.5 / rows)
    p = 1 / (1 + np.exp(-X @ of_x))
    errors = np.sqrt(np.diag(np.linalg.inv((X * p * (1 - p)).T @ X)))
    assert np.abs((of_w - of_x)[:, 0] / errors).max() < 0.1


@pytest.mark.parametrize("spooled", [False, True])
def test_columns_of_one_batch_become_integers_once(tmp_path, spooled, monkeypatch):
    """With a preconditioner, W is a product of n x d with d x d matrices; preprocessing
    and iterations use the same W.
    """
    read = []
    if spooled:
        monkeypatch.setattr(column_blocks, "_CACHE_BYTES_WITH_SPILL", 0)
    folder, numbers = (tmp_path if spooled else None), FixedPointEncoding(50, RATE)
    columns = LocalColumns(numbers, RATE, lambda k: read.append(k) or np.eye(50, 3) - 1, np.eye(3), folder)
    piece = RowBlock(0, 0, 50)
    g = np.arange(50, dtype=np.uint64)[:, None]
    for steps in (True, False):
        first, second = (columns.factor(piece, steps=steps) for _ in range(2))
        np.testing.assert_array_equal(first, second)
        assert first.dtype == second.dtype
    X, W = (columns.factor(piece, steps=steps).astype(np.int64) for steps in (False, True))
    assert not np.array_equal(X, W)
    ring = ShareRing(numbers.bits)
    np.testing.assert_array_equal(columns.sums(piece, g[:3]), ring.of(X @ g[:3].view(np.int64)))
    np.testing.assert_array_equal(columns.change(piece, g), ring.of(W.T @ g.view(np.int64)))
    assert read == [0]

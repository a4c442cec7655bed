"""Loops over blocks give the same result for every size: one row fewer, exactly, and one row more than full blocks.

Each case states a constant with the number of rows of a block, and a function of a number of rows. Its result with
small blocks must be its result with one block.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

import securevfl as vfl
from securevfl.base.chunked_matrix import RowChunk, SparseRows
from securevfl.crypto import curve
from securevfl.crypto.identifiers import canonical_ids
from securevfl.crypto.kernel import row_encoding, row_plaintexts
from securevfl.crypto.kernel.gradient import KernelGradient
from securevfl.crypto.kernel.opening_checks import MIN_CHECKS
from securevfl.crypto.kernel.row_encoding import column_norms
from securevfl.crypto.kernel.row_plaintexts import SealedBlocks
from securevfl.crypto.scheme import OpeningShape
from securevfl.crypto.transfers import binary_field, okvs, vole_prf
from securevfl.data import content_digest, csv_file, forest, location_scale, party, register
from securevfl.data.forest import Forest
from securevfl.data.id_keys import id_keys
from securevfl.data.party import Party
from securevfl.data.preparation import SourceColumn
from securevfl.data.readers import read_party
from securevfl.data.register import Register
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import CryptoError
from securevfl.families.fdskl import fdskl_participant
from securevfl.families.shares import shares_participant
from securevfl.models.metrics import evaluate
from securevfl.protocols.score_ledger import row_digests, row_ledger
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.shares import column_blocks, forward_sums, iteration, table_lookup
from securevfl.training import new_rows
from tests.builders import parties_of, raises_code, random_blocks
from tests.hard_tables import sizes_around

BLOCK = 8
"""Rows, or values, of a block in these tests."""


class Case(NamedTuple):
    """A loop over blocks: the constants with the size of a block, and a result for a number of rows."""

    constants: tuple[tuple[ModuleType, str], ...]
    result: Callable[[int], Any]
    sizes: Sequence[int] = tuple(sizes_around(BLOCK))


def normal_matrix(rows: int, columns: int = 2) -> Any:
    return np.random.default_rng([rows, columns]).normal(size=(rows, columns))


def blocks_of(source: new_rows.NewRows) -> list[Any]:
    """Return all rows, read twice: blocks of full size but the last, and the same rows each time."""
    first, second = (list(source.blocks()) for _ in range(2))
    sizes = [len(X) for _, X in first]
    assert [len(X) for _, X in second] == sizes
    assert all(size == new_rows.SCORED_ROWS_PER_BLOCK for size in sizes[:-1])
    assert sum(sizes) == source.count
    assert not sizes or 0 < sizes[-1] <= new_rows.SCORED_ROWS_PER_BLOCK
    return [np.concatenate([X for _, X in first]).tolist(), [i for ids, _ in first for i in ids or []]]


def taken_rows(rows: int) -> Any:
    indexed = new_rows.IndexedRows("shop", list(range(100, 100 + rows)), normal_matrix(rows))
    return blocks_of(indexed.take(np.random.default_rng(rows).permutation(rows)))


def digest_of_party(rows: int) -> Any:
    one = Party("shop", normal_matrix(rows), ids=range(rows))
    turned = Party("shop", normal_matrix(rows)[::-1], ids=range(rows)[::-1])
    assert one.content == turned.content
    return one.content


def keys_of_register(rows: int) -> Any:
    pieces = Register.of_ids(id_keys("shop", [list(range(rows))])).ids
    assert pieces is not None
    return np.concatenate(list(pieces())).tolist()


def leaves_of_forest(rows: int) -> Any:
    sources = [SourceColumn(name, (j,)) for j, name in enumerate("ab")]
    drawn = Forest.draw(normal_matrix(rows), sources, bytes(32), trees=3, depth=2, bins=4)
    assert drawn.counts.sum() == 3 * rows
    return [drawn.numbers(normal_matrix(rows)).tolist(), drawn.counts.tolist()]


def recorded_model(rows: int) -> Any:
    ledger = ScoreLedger(None)
    ids = [f"row {row}".encode() for row in range(rows)]
    X = np.repeat(normal_matrix((rows + 1) // 2), 2, axis=0)[:rows]  # pairs of equal rows
    ledger.record_model(b"model", 20, ids, X)
    with ledger._file.reading() as tables:
        alike = tables.execute("SELECT columns, alike FROM models").fetchone()
    assert alike == (rows, rows - rows % 2)
    return [ledger.count_trained(b"model", ids), ledger.count_trained(b"model", [*ids, b"another"])]


def decoded_values(rows: int) -> Any:
    keys, values = (np.random.default_rng([rows, k]).integers(0, 2**63, (rows, 2), np.uint64) for k in range(2))
    seed, table = okvs.encode(keys, values)
    assert okvs.decode(seed, keys, table)[0].tolist() == values.tolist()
    both = okvs.decode(seed, keys, table, table ^ table)
    return [values.tolist() == both[0].tolist(), both[1].any()]


def blinded_points(rows: int) -> Any:
    """Hash ids to points and blind them twice; an invalid point is refused at every position."""
    points, (one, other) = curve.hash_to_group(canonical_ids(list(range(rows)))), (curve.Blinder(), curve.Blinder())
    assert curve.check_points(points) == rows
    assert one.unblind(other.blind(one.blind(points))) == other.blind(points)
    for start in range(0, len(points), curve.POINT_BYTES):
        with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
            curve.check_points(points[:start] + bytes(curve.POINT_BYTES) + points[start + curve.POINT_BYTES :])
    return points


def words_of(rows: int, seed: int) -> Any:
    return np.random.default_rng([rows, seed]).integers(0, 2**63, (rows, 2), np.uint64)


def multiplied_elements(rows: int) -> Any:
    return binary_field.Multiplier(bytes(range(16)))(words_of(rows, 0)).tolist()


def hashed_sums(rows: int) -> Any:
    return vole_prf.PrfHash(bytes(32)).values(words_of(rows, 0), words_of(rows, 1)).tolist()


class UnitRows(SparseRows):
    """Row i has the entries i + 1 and -1 in the columns i % 3 and 3."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, 4

    def columns(self, start: int, stop: int) -> Any:
        return np.unique(np.append(np.arange(start, stop) % 3, 3))

    def part(self, start: int, stop: int) -> tuple[Any, Any]:
        columns = self.columns(start, stop)
        entries = np.zeros((stop - start, 4))
        entries[np.arange(stop - start), np.arange(start, stop) % 3] = np.arange(start, stop) + 1.0
        entries[:, 3] = -1.0
        return columns, entries[:, columns]


def norms_of_sparse_rows(rows: int) -> Any:
    norms, X = column_norms(RowChunk(UnitRows(rows))), np.zeros((rows, 4))
    X[np.arange(rows), np.arange(rows) % 3], X[:, 3] = np.arange(rows) + 1.0, -1.0
    largest = np.abs(X).max(axis=0)
    unit = np.abs(X) / np.where(largest > 0, largest, 1.0)
    np.testing.assert_allclose(norms.largest, largest)
    np.testing.assert_allclose(norms.squares, (unit**2).sum(axis=0))
    np.testing.assert_allclose(norms.absolute, unit.sum(axis=0))
    return rows


def measured_on_shares(rows: int) -> Any:
    """Measure a model on this number of held-out rows; the figures are those of its exact scores, but for rounding."""
    blocks = random_blocks(2, 4 * rows, 2)
    y = (sum(block.sum(axis=1) for block in blocks) > 0).astype(int)
    shares = vfl.Shares(open_weights=("bank", "shop"), scores="exact")
    job = vfl.Job(model="logistic", protocol=vfl.Protocol(shares=shares), epochs=10, batch_size="all",
                  test_fraction=0.25, accepts=["small_metrics", "opened_weights", "exact_scores"])  # fmt: skip
    parties = parties_of(blocks, y)
    with tempfile.TemporaryDirectory() as folder:
        ledgers = {party.name: DisclosureLedger(Path(folder) / party.name, party.name) for party in parties}
        run, test = vfl.simulate(job, parties, ledgers=ledgers), job.schedule(parties[0].register).test
        entries = [entry.disclosure for ledger in ledgers.values() for entry in ledger.read().entries]
    counts = [(entry.learner, entry.kind, entry.count) for entry in entries]
    assert len(test) == run.active.held_out == rows
    f = run.decision({party.name: party.X[test] for party in parties})
    exact = evaluate(job.model.loss, f, y[test], np.array([0, 1]))
    assert run.metrics["auc"] == pytest.approx(exact["auc"], abs=0.1)
    assert run.metrics["loss"] == pytest.approx(exact["loss"], abs=0.1)
    assert exact["auc"] > 0.9  # with the label of another row, a row is as good as noise
    return [sum(int(count) for _, _, count in run.active.calibration), counts]


LOOKUPS = (
    (table_lookup, "SUMS_PER_LOOKUP"),
    *((module, "_ROWS_PER_ENCODING") for module in (column_blocks, forward_sums)),
    (iteration, "_ROWS_PER_TABLE_CHUNK"),
)
CASES: dict[str, Case] = {
    "a key-value store": Case(((okvs, "_KEYS_AT_ONCE"),), decoded_values),
    "points": Case(((curve, "_CHUNK"),), blinded_points),
    "products in a field": Case(((binary_field, "_ELEMENTS_AT_ONCE"),), multiplied_elements),
    "a pseudorandom function": Case(((vole_prf, "_KEYS_AT_ONCE"),), hashed_sums),
    "norms of sparse rows": Case(((row_encoding, "SPARSE_ROWS_AT_ONCE"),), norms_of_sparse_rows),
    "a measurement on shares": Case(LOOKUPS, measured_on_shares, (3 * BLOCK + 1,)),
    "rows of a request": Case(((new_rows, "SCORED_ROWS_PER_BLOCK"),), taken_rows),
    "a party without a table": Case(
        ((new_rows, "SCORED_ROWS_PER_BLOCK"),), lambda rows: blocks_of(new_rows.no_rows(rows))
    ),
    "content": Case(((party, "MAX_CHUNK_VALUES"),), digest_of_party),
    "keys": Case(((register, "KEYS_PER_READ"),), keys_of_register),
    "trees": Case(((forest, "CHUNK_ROWS"),), leaves_of_forest),
    "a trained model": Case(((row_ledger, "DIGEST_CHUNK_ROWS"), (row_digests, "DIGEST_CHUNK_ROWS")), recorded_model),
}


@pytest.mark.parametrize("name", CASES)
def test_results_do_not_depend_on_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    for rows in case.sizes:
        whole = case.result(rows)
        with monkeypatch.context() as patch:
            for module, constant in case.constants:
                patch.setattr(module, constant, BLOCK)
            assert case.result(rows) == whole, rows


def test_pieces_are_those_of_a_loop_over_blocks() -> None:
    size = row_plaintexts.BLOCKS_PER_PIECE
    for start in range(2 * size + 2):
        assert row_plaintexts.starts_piece(start) == (start in (0, size, 2 * size))
        for stop in range(start + 1, 3 * size + 2):
            numbers = sorted({block // size for block in range(start, stop)})
            assert list(row_plaintexts.pieces_of(range(start, stop))) == numbers
            sealed = SealedBlocks(range(4 * size), {piece: [bytes([piece])] for piece in range(4)})
            assert sorted(sealed.some(range(start, stop)).pieces) == numbers


@pytest.mark.parametrize("pieces", [1, 2])
def test_encrypted_products_are_right_at_exactly_full_pieces(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row fewer, exactly, and one row more than one, two and four sample blocks, with small pieces."""
    monkeypatch.setattr(row_plaintexts, "BLOCKS_PER_PIECE", pieces)
    holder = KernelGradient().keygen(columns=2)
    evaluator = KernelGradient().evaluator(holder.public)

    def blocks(rows: int) -> int:
        return holder._parameters.choose(rows, 1, 2 + MIN_CHECKS, holder._openings).sample_blocks

    rows_per_block = next(rows for rows in range(1, 1 << 14) if blocks(rows + 1) == 2)
    generator = np.random.default_rng(pieces)
    for rows in (*sizes_around(rows_per_block, 2)[1:], 4 * rows_per_block):
        X, g = generator.normal(size=(rows, 2)), generator.uniform(-1, 1, (rows, 1))
        prepared, product, count = evaluator.prepare(X), None, 0
        for piece, _ in holder.encrypt_pieces(g, bound=1.0):
            evaluator.encode(prepared, piece, product)
            product = evaluator.transpose_product(prepared, piece, product)
            count += 1
        assert count == -(-blocks(rows) // pieces)
        blinded, mask = evaluator.blind(product)
        opened = evaluator.unblind(holder.open(blinded, OpeningShape(rows, 1, 2)), mask)
        np.testing.assert_allclose(opened, X.T @ g, atol=1e-3 * rows)


def score(job: vfl.Job, module: ModuleType, constant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = random_blocks(2, 120, 3)
    y = (sum(block.sum(axis=1) for block in blocks) > 0).astype(int)
    run = vfl.simulate(job, parties_of(blocks, y))
    new = dict(zip(("bank", "shop"), random_blocks(2, 4 * BLOCK, 3, seed=9), strict=True))
    whole = run.decision(new)
    for rows in (BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 3 * BLOCK):
        with monkeypatch.context() as patch:
            patch.setattr(module, constant, BLOCK)
            scored = run.decision({name: X[:rows] for name, X in new.items()})
        assert scored.shape == (rows, 1)
        np.testing.assert_allclose(scored, whole[:rows], atol=2.0**-12)


ACCEPTS = ("columns", "rank", "fresh_equations")


@pytest.mark.filterwarnings("ignore")
def test_scores_on_shares_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = vfl.Shares(open_weights=("bank", "shop"), scores="exact")
    job = vfl.Job(model="logistic", protocol=vfl.Protocol(shares=shares), epochs=10, batch_size="all")
    for constant in ("SCORE_BLOCK_ROWS", "INPUT_BLOCK_ROWS"):
        score(job, shares_participant, constant, monkeypatch)


@pytest.mark.filterwarnings("ignore")
def test_scores_of_kernel_models_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[str, Any] = {"batch_size": 60, "epochs": 1, "accepts": ACCEPTS}
    kernel = vfl.Job(
        model={"name": "kernel", "gamma": 0.1, "block_size": 32}, protocol={"sum": "direct"}, optimizer="fdskl", **keys
    )
    score(kernel, fdskl_participant, "PREDICTION_BLOCK_ROWS", monkeypatch)


@pytest.mark.parametrize("rows", sizes_around(BLOCK))
def test_a_sample_of_rows_has_all_of_them_up_to_its_limit(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    X = normal_matrix(rows)
    monkeypatch.setattr(location_scale, "MAX_QUANTILE_ROWS", BLOCK)
    sampled = location_scale.quartiles(X, np.arange(rows))
    if rows <= BLOCK:
        np.testing.assert_allclose(sampled.mean, np.median(X, axis=0))
    assert content_digest.MAX_CHUNK_VALUES > 0
    assert sampled.low[0] >= X[:, 0].min()
    assert (sampled.low[0] == X[:, 0].min()) or rows > BLOCK


@pytest.mark.filterwarnings("ignore")
def test_files_of_exactly_full_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CSV file whose blocks end before, at and after the end of a row, and in a quoted line break."""
    for rows in (1, 2, 7, 8, 9):
        lines = [f'{row:03},"a\n{row % 2}",{row}.5' for row in range(rows)]
        path = tmp_path / f"{rows}.csv"
        path.write_text("\n".join(["id,t,x", *lines, ""]))
        for size in (len(lines[0]) + 1, 2 * len(lines[0]) + 1, 2 * len(lines[0]) + 2, 2 * len(lines[0]) + 3, 1 << 20):
            monkeypatch.setattr(csv_file, "CSV_BLOCK_BYTES", max(size, 40))
            read = read_party("shop", path)
            assert read.ids is not None
            assert read.ids.tolist() == [f"{row:03}" for row in range(rows)]
            assert read.X[:, 1].tolist() == [row + 0.5 for row in range(rows)]

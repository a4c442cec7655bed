"""New rows from files: the same in every format, read in blocks, and checked before the first row is returned."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders import raises_code
from pyarrow import csv, parquet

import securevfl as vfl
from securevfl import errors
from securevfl.data import table_source
from securevfl.data.preparation import FittedPreparation
from securevfl.data.read_options import ReadOptions
from securevfl.data.row_order import write_rows
from securevfl.data.scaling import Scaling
from securevfl.families.state import State
from securevfl.training import new_rows
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import IndexedRows, NewRows, rows_of_array, rows_of_file
from securevfl.training.run import check_outputs

N = 60
GENERATOR = np.random.default_rng(5)
X = GENERATOR.normal(size=(N, 3))
IDS = GENERATOR.permutation(1000)[:N]
SECRET = 987654.125


@pytest.fixture(scope="module")
def part() -> ModelPart:
    """Return a model of the columns a, b, c of the shop."""
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.1),
        protocol=vfl.Protocol(residual="open"),
        batch_size=30,
        epochs=1,
        accepts=["columns"],
    )
    parties = [
        vfl.Party("bank", X[:, :1], X[:, 0] > 0, aligned=True),
        vfl.Party("shop", X, columns=["a", "b", "c"], aligned=True),
    ]
    return vfl.simulate(job, parties).parts["shop"]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_rows, "SCORED_ROWS_PER_BLOCK", 16)
    monkeypatch.setattr(table_source, "BATCH_BYTES", 8 * 3 * 7)


def table(X: np.ndarray = X) -> pa.Table:
    """Return columns in another order, with one that the model does not know."""
    n = len(X)
    return pa.table({"c": X[:, 2], "note": ["text"] * n, "a": X[:, 0], "id": IDS[:n], "b": X[:, 1]})


def write(path: Path, table: pa.Table) -> Path:
    if path.suffix == ".csv":
        csv.write_csv(table, path)
    elif path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=25)
    else:
        numbers = np.column_stack([table[name].to_numpy() for name in "cab"])
        np.savez(path, X=numbers, ids=table["id"].to_numpy(), columns=list("cab"))
    return path


def read(rows: NewRows) -> tuple[list[str], np.ndarray, list[int]]:
    blocks = list(rows.blocks())
    ids = [str(row_id) for block_ids, _ in blocks for row_id in block_ids or ()]
    return ids, np.concatenate([numbers for _, numbers in blocks]), [len(numbers) for _, numbers in blocks]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize("order", [None, GENERATOR.permutation(N)[:50]], ids=["file order", "aligned"])
def test_every_format_gives_the_same_blocks(
    tmp_path: Path, part: ModelPart, suffix: str, order: np.ndarray | None
) -> None:
    path = write(tmp_path / f"t{suffix}", table())
    if order is not None:
        write_rows(path, order)
    rows = rows_of_file(part, path)
    selected = np.arange(N) if order is None else order
    expected = rows_of_array(part, X[selected], IDS[selected])
    for _ in range(2):
        ids, numbers, sizes = read(rows)
        assert ids == IDS[selected].astype(str).tolist()
        np.testing.assert_array_equal(numbers, X[selected])
        assert sizes == [16, 16, 16, len(selected) - 48]
    assert (rows.count, rows.order) == (len(selected), expected.order)
    assert len(os.listdir(tmp_path)) == 1 + (order is not None)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_one_row(tmp_path: Path, part: ModelPart, suffix: str) -> None:
    rows = rows_of_file(part, write(tmp_path / f"t{suffix}", table(X[:1])))
    np.testing.assert_array_equal(read(rows)[1], X[:1])


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize("aligned", [False, True])
def test_what_is_wrong_is_named(tmp_path: Path, part: ModelPart, suffix: str, aligned: bool) -> None:
    path = tmp_path / f"t{suffix}"
    spoiled = X.copy()
    spoiled[7, 1], spoiled[8, 1] = np.nan, SECRET
    write(path, table(spoiled))
    if aligned:
        write_rows(path, np.arange(N)[::-1])
    with raises_code(errors.TableError, "SVFL-TABLE-MISSING-VALUES") as caught:
        rows_of_file(part, path)
    assert str(SECRET) not in str(caught.value)
    write_rows(path, np.arange(N + 1))
    with raises_code(errors.TableError, "SVFL-TABLE-CHANGED"):
        rows_of_file(part, write(path, table()))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_that_are_missing_or_hold_text_are_named(tmp_path: Path, part: ModelPart, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    with raises_code(errors.TableError, "SVFL-TABLE-COLUMNS"):
        rows_of_file(part, write(path, table().drop_columns(["a", "b"])))
    text = table().set_column(0, "c", pa.array([f"{SECRET} EUR"] * N))
    with raises_code(errors.TableError, "SVFL-TABLE-TYPE") as caught:
        rows_of_file(part, write(path, text))
    assert str(SECRET) not in str(caught.value)
    with raises_code(errors.IdError, "SVFL-ID-COLUMN"):
        rows_of_file(part, write(path, table()), ReadOptions(id_column="ident"))
    twice = pa.concat_tables([table(), table()])
    with raises_code(errors.IdError, "SVFL-ID-DUPLICATE"):
        rows_of_file(part, write(path, twice))


PROGRAM = """
import sys
from pathlib import Path
from securevfl.training import new_rows
from securevfl.data import store, table_source
from securevfl.families.participant import State
from securevfl.training.model_part import ModelPart

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

table_source.BATCH_BYTES, store.BUCKET_BYTES = 4 << 20, 8 << 20
part = ModelPart.load(sys.argv[2])
before = peak()
rows = new_rows.rows_of_file(part, Path(sys.argv[1]))
assert sum(len(X) for _, X in rows.blocks()) == rows.count
print(peak() - before)
"""


def grown(folder: Path, part: ModelPart, rows: int, *, aligned: bool) -> int:
    """Bytes of memory that a process takes for a table of 100 columns in one row group.

    One thread decodes columns. Several would use separate buffers, and the number in use depends on the load of the
    machine (up to 30 MB between two runs of the same table).
    """
    path, numbers = folder / "t.parquet", np.random.default_rng(0).normal(size=(rows, 100))
    columns = {"id": np.arange(rows), **{f"c{j}": numbers[:, j] for j in range(100)}}
    parquet.write_table(pa.table(columns), path, row_group_size=rows, use_dictionary=False, data_page_size=1 << 16)
    if aligned:
        write_rows(path, np.arange(rows)[::-1])
    wide = ModelPart(
        **{
            **vars(part),
            "preparation": FittedPreparation([f"c{j}" for j in range(100)]),
            "scaling": Scaling.none(100),
            "state": State(theta=np.zeros((100, 1))),
        }
    )
    wide.save(folder / "part.json")
    command = [sys.executable, "-c", PROGRAM, str(path), str(folder / "part.json")]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # this variable sets the number of Arrow's threads
    return int(subprocess.run(command, check=True, capture_output=True, text=True, env=one_thread).stdout) << 10


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.slow
def test_memory_hardly_grows_with_the_table(tmp_path: Path, part: ModelPart, aligned: bool) -> None:
    more = grown(tmp_path, part, 160_000, aligned=aligned) - grown(tmp_path, part, 40_000, aligned=aligned)
    assert more < 30 << 20  # of 96 MB more


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_every_id_stays_beside_its_own_values_in_any_order(tmp_path: Path, part: ModelPart, suffix: str) -> None:
    """With ids of two columns, every prediction is written next to its own id in any row order."""
    columns = {"who": [f"Ann {row}" for row in range(N)], "day": [f"2024-01-{1 + row % 28:02}" for row in range(N)]}
    wide = pa.table({**columns, "a": X[:, 0], "b": X[:, 1], "c": X[:, 2]})
    path, options = tmp_path / f"t{suffix}", ReadOptions(id_column="who,day")
    (csv.write_csv if suffix == ".csv" else parquet.write_table)(wide, path)
    in_file = rows_of_file(part, path, options)
    row_of = {row_id: row for row, row_id in enumerate(read(in_file)[0])}
    write_rows(path, np.random.default_rng(1).permutation(N)[:50])
    aligned = rows_of_file(part, path, options)
    ids, numbers, _ = read(aligned)
    for row_id, values in zip(ids, numbers, strict=True):
        assert str(aligned.written[row_id][0]) == columns["who"][row_of[row_id]]
        np.testing.assert_array_equal(values, X[row_of[row_id]])


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("duplicates", ["first", "last"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_messages_name_the_row_of_the_file(
    tmp_path: Path, part: ModelPart, suffix: str, duplicates: Any, aligned: bool
) -> None:
    """This also holds if an alignment has another order, and if only one of several rows of an id is used."""
    repeated = pa.concat_tables([table().slice(0, 20), table()])
    path = write(tmp_path / f"t{suffix}", repeated)
    options = ReadOptions(duplicates=duplicates)
    remaining = np.arange(20, 80) if duplicates == "last" else np.r_[:20, 40:80]
    if aligned:
        write_rows(path, remaining := np.random.default_rng(2).permutation(remaining)[:50])
    rows = IndexedRows.of("shop", rows_of_file(part, path, options))
    assert rows.file_rows is not None
    np.testing.assert_array_equal(rows.file_rows, remaining)
    ids = [str(row_id) for row_id in repeated["id"].to_pylist()]
    assert [ids[row] for row in rows.file_rows.tolist()] == [str(row_id) for row_id in rows.ids]
    f = np.zeros((len(remaining), 2))
    f[31:, 1] = np.inf
    with raises_code(errors.RangeError, "SVFL-TRAINING-RANGE", row=remaining[31] + 1):
        check_outputs(f, "bank", "shop", rows.file_rows)
    with raises_code(errors.RangeError, "SVFL-TRAINING-RANGE", row=32):
        check_outputs(f, "bank", "shop")
    f[40, 0] = np.nan
    with raises_code(errors.DivergenceError, "SVFL-TRAINING-DIVERGED"):
        check_outputs(f, "bank", "shop")

"""Arrow IPC files and folders of files give the same table as one Parquet file: in memory, on disk and for new rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from builders import raises_code

import securevfl as vfl
from securevfl.data.columns import columns_of
from securevfl.data.load import is_large, read_parties
from securevfl.data.read_options import ReadOptions
from securevfl.data.readers import column_names, read_ids, read_party
from securevfl.data.source_type import source_type
from securevfl.data.store import copy_to_temporary_table, store_table
from securevfl.errors import TableError
from securevfl.training.new_rows import rows_of_file

N = 300
GENERATOR = np.random.default_rng(2)
TABLE = pa.table(
    {
        "id": [f"k{row}" for row in range(N)],
        "a": GENERATOR.normal(size=N),
        "town": pa.array(GENERATOR.choice(["Bonn", "Jena", "Ulm"], N)).dictionary_encode(),
        "code": pa.array(GENERATOR.integers(1, 4, N)).dictionary_encode(),
    }
)
Y = (GENERATOR.normal(size=N) > 0).astype(int)


def write_ipc(table: pa.Table, path: Path) -> None:
    pyarrow.feather.write_feather(table, path, compression="uncompressed")


def folder_of(write: Callable[[pa.Table, Path], None], suffix: str) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        table = folder / "table"
        table.mkdir()
        for part in range(3):
            write(TABLE.slice(part * 120, 120), table / f"part-{part}{suffix}")
        (table / "_SUCCESS").touch()
        return table

    return build


def one_file(suffix: str) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        write_ipc(TABLE, folder / f"t{suffix}")
        return folder / f"t{suffix}"

    return build


SOURCES: dict[str, Callable[[Path], Path]] = {
    "arrow": one_file(".arrow"),
    "feather": one_file(".feather"),
    "ipc": one_file(".ipc"),
    "folder of Parquet files": folder_of(pq.write_table, ".parquet"),
    "folder of Arrow files": folder_of(write_ipc, ".arrow"),
}


@pytest.mark.filterwarnings("ignore::securevfl.errors.DataNotice")
@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_table_of_a_parquet_file(kind: str, tmp_path: Path) -> None:
    path = SOURCES[kind](tmp_path)
    pq.write_table(TABLE, tmp_path / "t.parquet")
    expected = read_party("shop", tmp_path / "t.parquet")
    party, stored = read_party("shop", path), copy_to_temporary_table("shop", path)
    assert party.digest == expected.digest == stored.digest
    assert dict(party.types) == dict(expected.types)
    assert read_ids(path).tolist() == TABLE["id"].to_pylist()
    assert column_names(path) == TABLE.column_names
    assert not is_large(path)
    lead = vfl.Party("bank", GENERATOR.normal(size=(N, 2)), Y, ids=TABLE["id"].to_pylist())
    job = vfl.Job(
        model=vfl.Logistic(l2=1e-2),
        optimizer=vfl.FedBCD(lr=0.3),
        protocol="open",
        batch_size=100,
        epochs=2,
        accepts=["columns"],
    )
    part = vfl.simulate(job, [lead, party]).parts["shop"]
    blocks = list(rows_of_file(part, path).blocks())
    np.testing.assert_array_equal(np.concatenate([X for _, X in blocks]), part.table(party.table))
    assert is_large(path, 0)
    pyarrow.csv.write_csv(pa.table({"id": TABLE["id"], "y": Y}).append_column("b", TABLE["a"]), tmp_path / "bank.csv")
    parties, _ = read_parties({"bank": tmp_path / "bank.csv", "shop": path}, job=job, max_in_memory_bytes=0)
    np.testing.assert_array_equal(parties[1].X[:], party.X)


def test_batches_are_small_and_numbers_are_scored_from_disk(tmp_path: Path) -> None:
    numbers = TABLE.select(["id", "a"])
    write_ipc(numbers, tmp_path / "t.arrow")
    source = source_type(tmp_path / "t.arrow")("shop", tmp_path / "t.arrow", ReadOptions(chosen=["a"]))
    sizes = [len(batch) for batch in source.numbers(70)]
    assert max(sizes) <= 70
    assert sum(sizes) == N


def test_a_copy_is_renewed_if_a_file_of_the_folder_changes(tmp_path: Path) -> None:
    path = SOURCES["folder of Parquet files"](tmp_path)
    before = store_table("shop", path, tmp_path / "copy").X[:]
    part = path / "part-1.parquet"
    table = pq.read_table(part)
    pq.write_table(table.set_column(1, "a", pa.array(np.zeros(len(table)))), part)
    after = store_table("shop", path, tmp_path / "copy").X[:]
    assert (after != before).any(axis=1).sum() == len(table)


def test_folders_that_are_no_table_are_errors(tmp_path: Path) -> None:
    def refused(code: str, name: str, **parts: pa.Table) -> None:
        (tmp_path / name).mkdir()
        for part, table in parts.items():
            stem, _, suffix = part.partition("_")
            path = tmp_path / name / f"{stem}.{suffix}"
            (pyarrow.csv.write_csv if suffix == "csv" else pq.write_table)(table, path)
        for read in (read_party, copy_to_temporary_table):
            with raises_code(TableError, code):
                read("shop", tmp_path / name)

    plain = TABLE.select(["id", "a"])
    refused("SVFL-TABLE-UNREADABLE", "empty")
    refused("SVFL-TABLE-UNREADABLE", "csv", one_csv=plain)
    refused("SVFL-TABLE-UNREADABLE", "mixed", one_csv=plain, two_parquet=plain)
    refused("SVFL-TABLE-COLUMNS", "columns", one_parquet=plain, two_parquet=plain.append_column("b", TABLE["a"]))
    changed = plain.set_column(1, "a", pa.array(["1"] * N))
    refused("SVFL-TABLE-TYPE", "types", one_parquet=plain, two_parquet=changed)
    (tmp_path / "t.arrow").write_bytes(b"no Arrow file")
    with raises_code(TableError, "SVFL-TABLE-UNREADABLE"):
        read_party("shop", tmp_path / "t.arrow")


def test_folders_of_a_partition_are_columns(tmp_path: Path) -> None:
    for year in (2023, 2024):
        (tmp_path / "t" / f"year={year}").mkdir(parents=True)
        rows = TABLE.select(["id", "a"]).slice(150 * (year - 2023), 150)
        pq.write_table(rows, tmp_path / "t" / f"year={year}" / "part.parquet")
    party = read_party("shop", tmp_path / "t")
    assert party.columns == ["a", "year"]
    np.testing.assert_array_equal(party.X[:, 1], np.repeat([2023, 2024], 150))


class Stream:
    """An object of another library, which only has the Arrow PyCapsule interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


class Batch:
    """A batch of another library, which only has the Arrow PyCapsule interface."""

    def __init__(self, table: pa.Table) -> None:
        self._batch = table.combine_chunks().to_batches()[0]

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self._batch.__arrow_c_array__(requested_schema)


@pytest.mark.parametrize("kind", [Stream, Batch])
def test_everything_with_the_arrow_interface_is_a_table(kind: Any) -> None:
    table = TABLE.drop_columns("id")
    columns, expected = columns_of("shop", kind(table)), columns_of("shop", table)
    np.testing.assert_array_equal(columns.X, expected.X)
    assert columns.categories == expected.categories

"""Tables from files: every format gives the same party, and errors name file and column but no value."""

import csv as csv_module
import os
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from builders import raises_code
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv, parquet

from securevfl import errors
from securevfl.data import csv_file
from securevfl.data.load import read_parties
from securevfl.data.read_options import ReadOptions
from securevfl.data.readers import read_ids, read_party, read_table
from securevfl.data.validation import MISSING_TEXTS

N = 30
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(N, 3))
Y = np.arange(N) % 2
IDS = GENERATOR.permutation(1000)[:N]
SECRET = "987654.125"  # must never be seen in a message


def table(ids: np.ndarray = IDS, y: np.ndarray | None = Y, X: np.ndarray = X) -> pa.Table:
    columns = {"id": ids, **({} if y is None else {"y": y}), **{f"c{j}": X[:, j] for j in range(X.shape[1])}}
    return pa.table(columns)


def write(path: Path, table: pa.Table) -> Path:
    if path.name.endswith(".csv"):
        csv.write_csv(table, path)
    elif path.name.endswith((".csv.gz", ".csv.zst")):
        with pa.output_stream(path) as file:
            csv.write_csv(table, file)
    elif path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        names = [name for name in table.schema.names if name not in ("id", "y")]
        arrays = {"X": np.column_stack([table[name].to_numpy() for name in names]), "ids": table["id"].to_numpy()}
        labels = {"y": table["y"].to_numpy()} if "y" in table.schema.names else {}
        np.savez(path, **arrays, **labels, columns=np.array(names))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".csv.zst", ".parquet", ".npz"])
def test_every_format_gives_the_same_party(tmp_path: Path, suffix: str) -> None:
    party = read_party("bank", write(tmp_path / f"t{suffix}", table()))
    np.testing.assert_array_equal(party.X, X)
    np.testing.assert_array_equal(party.y, Y)
    assert party.y is not None
    assert party.y.dtype == np.int64
    assert party.ids is not None
    assert party.ids.astype(str).tolist() == IDS.astype(str).tolist()
    assert party.columns == ["c0", "c1", "c2"]


def test_columns_are_told_apart_by_the_names_given(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", table())
    party = read_party("bank", path, ReadOptions(id_column="id", label_column="c1"))
    assert party.columns == ["y", "c0", "c2"]
    np.testing.assert_array_equal(party.y, X[:, 1])
    assert not read_party("bank", path, ReadOptions(label_column="none")).active


def test_ids_and_labels_of_a_csv_stay_text_where_they_are_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,y,a\n007,yes,1\n7,no,2\n")
    party = read_party("bank", path)
    assert party.ids is not None
    assert party.ids.tolist() == ["007", "7"]
    assert party.y is not None
    assert party.y.tolist() == ["yes", "no"]


def test_other_number_types_and_unnamed_row_indices_of_parquet(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": ["a", "b"],
            "flag": [True, False],
            "amount": pa.array([1, 3]).cast(pa.decimal128(21, 2)),
            "half": pa.array(np.array([0.5, 1.5], np.float16)),
            "__index_level_0__": [8, 9],
        }
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    party = read_party("shop", tmp_path / "t.parquet")
    assert party.columns == ["flag", "amount", "half"]
    assert party.X.tolist() == [[1.0, 1.0, 0.5], [0.0, 3.0, 1.5]]


def test_shuffled_and_dropped_rows_align(tmp_path: Path) -> None:
    order = GENERATOR.permutation(N)[:-4]
    lead = write(tmp_path / "bank.csv", table(IDS[2:], Y[2:], X[2:]))
    other = write(tmp_path / "shop.parquet", table(IDS[order], None, X[order] + 100))
    (bank, shop), missing = read_parties({"bank": lead, "shop": other})
    shared_rows = [row for row in range(2, N) if row in order]
    np.testing.assert_array_equal(bank.X, X[shared_rows])
    np.testing.assert_array_equal(shop.X, X[shared_rows] + 100)
    assert set(missing["bank"]) == {str(IDS[row]) for row in order if row < 2}
    assert set(missing["shop"]) == {str(IDS[row]) for row in range(2, N) if row not in order}


CSV = st.lists(
    st.tuples(
        st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1),
        st.floats(allow_nan=False),
        st.sampled_from(["", "NA", "1.5", " 2 ", "-3e-7"]),
    ),
    min_size=1,
)


def plainly(path: Path) -> dict[str, list[str | None]]:
    """Read the columns of a file with the standard library; missing values are None."""
    with path.open(encoding="utf-8", newline="") as file:
        names, *rows = (row for row in csv_module.reader(file) if row)
    columns = zip(*rows, strict=True)
    return {
        name: [None if text in MISSING_TEXTS else text for text in column]
        for name, column in zip(names, columns, strict=True)
    }


@given(CSV, st.sampled_from([csv_module.QUOTE_MINIMAL, csv_module.QUOTE_ALL, csv_module.QUOTE_NONNUMERIC]))
def test_a_csv_is_read_as_the_standard_library_reads_it(rows: list[tuple[str, float, str]], quoting: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv_module.writer(file, quoting=quoting).writerows([("id", "a", "b"), *rows])
        expected = plainly(path)
        if None in expected["id"]:
            with pytest.raises(errors.IdError):
                read_table(path, ReadOptions(chosen=["a", "b"]))
            return
        table = read_table(path, ReadOptions(chosen=["a", "b"]))
    assert table.ids is not None
    assert table.ids.tolist() == expected["id"]
    for j, name in enumerate(("a", "b")):
        numbers = [np.nan if text is None else float(text) for text in expected[name]]
        np.testing.assert_array_equal(table.columns.X[:, j], numbers)


def test_a_csv_is_read_in_blocks_with_values_of_two_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_file, "CSV_BLOCK_BYTES", 40)
    lines = [f'"{row}",{row / 8},{row % 3}' for row in range(20)]
    lines[10] = '"two\nlines",1.25,1'
    (tmp_path / "t.csv").write_text("\n".join(["id,a,y", *lines, ""]) + "\n" * 9 + "20,2.5,2\n")
    party = read_party("bank", tmp_path / "t.csv")
    assert party.ids is not None
    assert party.ids.tolist() == [*map(str, range(10)), "two\nlines", *map(str, range(11, 21))]
    np.testing.assert_array_equal(party.X[:, 0], [row / 8 for row in range(21)])
    np.testing.assert_array_equal(party.y, [row % 3 for row in range(21)])


def mixed(value: str) -> str:
    """Return a column of numbers with one value that is not a number."""
    return "id,a\n" + "".join(f"{k},{k}.5\n" for k in range(25)) + f"99,{value}\n"


@pytest.mark.parametrize(
    ("content", "kind", "code", "fields"),
    [
        (mixed(f"{SECRET} EUR"), errors.TableError, "SVFL-TABLE-TYPE", {"column": "a"}),
        (mixed(f"{SECRET[0]}_{SECRET}"), errors.TableError, "SVFL-TABLE-TYPE", {"column": "a"}),
        (f"id,a\n1,{SECRET}\n2,inf\n", errors.TableError, "SVFL-TABLE-MISSING-VALUES", {"columns": ["a"]}),
        (f'id,a,b\n1,{SECRET},"1,5"\n2,3,1\n', errors.TableError, "SVFL-TABLE-TYPE", {"column": "b"}),
        (f"id\ta\tb\n1\t{SECRET}\t1,5\n2\t3\t1\n", errors.TableError, "SVFL-TABLE-TYPE", {"column": "b"}),
        (f"id|a|b\n1|{SECRET}|1\n", errors.TableError, "SVFL-TABLE-HEADER", {}),
        (f"id;a;b\n1;{SECRET};1.000,5\n2;3;1.5\n", errors.TableError, "SVFL-TABLE-TYPE", {"column": "b", "row": 1}),
        (f"id,a\n1,{SECRET}\n2,{SECRET}\n", errors.TableError, "SVFL-TABLE-CONSTANT", {"columns": ["a"]}),
        (f"id,a,b\n1,{SECRET},\n2,3,\n", errors.TableError, "SVFL-TABLE-EMPTY-COLUMN", {"column": "b"}),
        (f'id,a\n1,2\n"2\n",{SECRET},3\n', errors.TableError, "SVFL-TABLE-RAGGED", {"line": 4}),
        (f"id,a\n1,2\n2,{SECRET},3\n", errors.TableError, "SVFL-TABLE-RAGGED", {"line": 3}),
        (f"id,a\n1,{SECRET}\n1,2\n", errors.IdError, "SVFL-ID-DUPLICATE", {"duplicates": 1}),
        (f"id,a\n1,{SECRET}\n,2\n", errors.IdError, "SVFL-ID-MISSING", {"missing": 1}),
        (f"id,y,a\n1,,{SECRET}\n2,1,3\n", errors.LabelError, "SVFL-LABEL-MISSING", {"missing": 1}),
        (f"key,a\n1,{SECRET}\n", errors.IdError, "SVFL-ID-COLUMN", {"column": "id"}),
        (f"1,0,{SECRET}\n2,1,3\n", errors.TableError, "SVFL-TABLE-HEADER", {}),
        (f"id,a,a\n1,2,{SECRET}\n", errors.TableError, "SVFL-TABLE-HEADER", {"columns": ["a"]}),
        (f",id,a\n0,1,{SECRET}\n", errors.TableError, "SVFL-TABLE-HEADER", {"column_number": 1}),
        ("id,a\n", errors.TableError, "SVFL-TABLE-EMPTY", {}),
        ("id\n1\n", errors.TableError, "SVFL-TABLE-EMPTY", {}),
        ("", errors.TableError, "SVFL-TABLE-EMPTY", {}),
        ("id,a", errors.TableError, "SVFL-TABLE-EMPTY", {}),
        (f"id,a\n1,{SECRET}\n".encode() + b"\xe9,2\n", errors.TableError, "SVFL-TABLE-ENCODING", {}),
        ("id,ä\n1,é\n".encode("latin-1"), errors.TableError, "SVFL-TABLE-ENCODING", {}),
    ],
)
def test_errors_in_csv_files_name_file_and_column(
    tmp_path: Path, content: str | bytes, kind: type[errors.DataError], code: str, fields: dict[str, object]
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with raises_code(kind, code, file=str(path), **fields) as caught:
        read_party("bank", path)
    assert str(path) in str(caught.value)
    assert SECRET not in str(caught.value)


def test_other_kinds_in_parquet_are_told_by_column(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"id": [1, 2], "a": [1, 2], "b": pa.array([1, 2], pa.duration("s"))}), path)
    with raises_code(errors.TableError, "SVFL-TABLE-TYPE"):
        read_party("bank", path)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "dictionary.parquet"])
def test_texts_and_gaps_are_read_as_they_are(tmp_path: Path, suffix: str) -> None:
    """A text that looks like a number is a text in a column of texts; numbers remain numbers."""
    path = tmp_path / f"t.{suffix}"
    texts = pa.array(["b", "3", None, "a", "3"])
    texts = texts.dictionary_encode() if "dictionary" in suffix else texts
    table = pa.table({"id": ["p", "q", "r", "s", "t"], "n": [1.5, None, 2, 3, 4], "t": texts})
    if suffix == "csv":
        csv.write_csv(table, path)
    else:
        parquet.write_table(table, path)
    party = read_party("shop", path)
    assert party.columns == ["n", "t"]
    assert party.categories == {"t": ("3", "a", "b")}
    np.testing.assert_array_equal(party.X, [[1.5, 2], [np.nan, 0], [2, np.nan], [3, 1], [4, 0]])


def test_an_npz_with_objects_is_refused(tmp_path: Path) -> None:
    """Objects need pickle, which runs code."""
    np.savez(tmp_path / "t.npz", X=np.array([[1, None]], object))
    with raises_code(errors.TableError, "SVFL-TABLE-UNREADABLE"):
        read_party("bank", tmp_path / "t.npz")


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"y": Y}, "SVFL-TABLE-UNREADABLE"),
        ({"X": X[:, 0]}, "SVFL-TABLE-SHAPE"),
        ({"X": X.astype(str)}, "SVFL-TABLE-TYPE"),
        ({"X": X, "y": Y[:3]}, "SVFL-TABLE-SHAPE"),
        ({"X": X, "ids": IDS[:3]}, "SVFL-TABLE-SHAPE"),
        ({"X": X, "columns": ["a"]}, "SVFL-TABLE-SHAPE"),
    ],
)
def test_bad_npz_is_told(tmp_path: Path, arrays: dict[str, np.ndarray], says: str) -> None:
    np.savez(tmp_path / "t.npz", **arrays)
    with raises_code(errors.TableError, says):
        read_party("bank", tmp_path / "t.npz")


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.csv.zst", "t.parquet", "t.npz", "t.xlsx"])
def test_missing_and_damaged_files_are_told(tmp_path: Path, name: str) -> None:
    with raises_code(errors.TableError, "SVFL-TABLE-UNREADABLE"):
        read_party("bank", tmp_path / name)
    (tmp_path / name).write_bytes(b"\x1f\x8bPK PAR1 nothing")
    with pytest.raises(errors.TableError) as caught:
        read_party("bank", tmp_path / name)
    assert caught.value.code in {"SVFL-TABLE-UNREADABLE", "SVFL-TABLE-ENCODING"}
    assert caught.value.fields.get("file", name).endswith(name)


def test_exactly_one_file_has_labels_and_all_have_ids(tmp_path: Path) -> None:
    lead, other = write(tmp_path / "a.csv", table()), write(tmp_path / "b.csv", table(y=None))
    with raises_code(errors.PartiesError, "SVFL-PARTIES-LABELS"):
        read_parties({"bank": lead, "shop": lead})
    with raises_code(errors.PartiesError, "SVFL-PARTIES-LABELS"):
        read_parties({"bank": other, "shop": other})
    np.savez(tmp_path / "c.npz", X=X)
    with raises_code(errors.IdError, "SVFL-ID-MISSING"):
        read_parties({"bank": lead, "shop": tmp_path / "c.npz"})


@pytest.mark.parametrize(
    ("separator", "point"),
    [(";", ","), (";", "."), ("\t", "."), (",", ".")],
    ids=["german", "semicolons", "tabs", "csv"],
)
@pytest.mark.parametrize("quote", ["", '"'])
def test_what_parts_values_is_seen_in_the_first_line(tmp_path: Path, separator: str, point: str, quote: str) -> None:
    labels = [0.5, -1.25, 3.0]
    rows = [
        [f"{quote}00{k}{quote}", f"{label}".replace(".", point), f"{1e-3 * k}".replace(".", point), f"{k}"]
        for k, label in enumerate(labels)
    ]
    lines = [separator.join(row) for row in [["id", "y", "a b", "c"], *rows]]
    (tmp_path / "t.csv").write_text("\r\n".join(lines) + "\r\n")
    party = read_party("bank", tmp_path / "t.csv")
    np.testing.assert_array_equal(party.X, [[0, 0], [1e-3, 1], [2e-3, 2]])
    assert party.columns == ["a b", "c"]
    assert party.y is not None
    assert party.y.tolist() == labels
    assert party.ids is not None
    assert party.ids.tolist() == ["000", "001", "002"]
    assert read_ids(tmp_path / "t.csv").tolist() == ["000", "001", "002"]


def spoiled(suffix: str, folder: Path) -> Iterator[Path]:
    """Return tables with recognisable values, each damaged: truncated, a changed byte, a wrong row or value."""
    cells = [[f"{SECRET}{row}{column}" for column in range(3)] for row in range(40)]
    path = folder / f"t{suffix}"
    table = pa.table({name: [row[j] for row in cells] for j, name in enumerate(("id", "a", "b"))})
    content = write(path, table).read_bytes()
    for at in range(20, len(content), max(1, len(content) // 25)):
        for damaged in (content[:at], content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]):
            path.write_bytes(damaged)
            yield path
    if suffix == ".csv":
        for wrong in (f"{SECRET},{SECRET}", f'"{SECRET}', f"{SECRET},{SECRET} EUR,1", f"{SECRET},{SECRET},1,2"):
            path.write_bytes(content + wrong.encode() + b"\n")
            yield path


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".csv.zst", ".parquet"])
def test_no_error_of_reading_holds_a_value(tmp_path: Path, suffix: str) -> None:
    """An error about a damaged file never contains the reading library's message, since that contains values."""
    caught = list[BaseException]()
    for path in spoiled(suffix, tmp_path):
        for read in (partial(read_party, "shop"), read_ids):
            with suppress(errors.DataError):
                try:
                    read(path)
                except Exception as error:
                    caught.append(error)
                    raise
    assert len(caught) > 10
    for error in caught:
        assert SECRET not in "".join(traceback.format_exception(error))
        assert str(error).startswith(f"{tmp_path}/t{suffix}")


def test_reading_starts_no_threads_of_its_own(tmp_path: Path) -> None:
    """Parties may share a machine, and measure processor time."""
    path = write(tmp_path / "t.csv", table())
    read_party("bank", path)
    before = len(os.listdir("/proc/self/task"))
    for _ in range(3):
        read_party("bank", path)
    assert len(os.listdir("/proc/self/task")) == before

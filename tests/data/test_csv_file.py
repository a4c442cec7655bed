"""CSV files that people write by hand or with a spreadsheet: no row disappears without an error that names its line."""

from __future__ import annotations

import csv
import gzip
import io
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from builders import raises_code
from hypothesis import example, given
from hypothesis import strategies as st

from securevfl.data.csv_file import CsvFile
from securevfl.data.readers import read_party, read_table
from securevfl.errors import TableError


def lines(rows: int = 30) -> list[str]:
    return [f"c{k:05},{5 - k % 2} inch,{k}.5,{k * k}" for k in range(rows)]


def write(folder: Path, content: list[str], header: str = "id,size,a,b") -> Path:
    path = folder / "shop.csv"
    path.write_text("\n".join([header, *content, ""]))
    return path


@pytest.mark.parametrize(("opens", "closes"), [(9, 20), (9, 10), (0, 29), (9, None)])
def test_a_quotation_mark_that_swallows_rows_names_its_line(tmp_path: Path, opens: int, closes: int | None) -> None:
    content = lines()
    content[opens] = (
        content[opens].replace(" inch", ' inch"').replace(f"{opens:05},", f'{opens:05},"').replace('inch"', "inch")
    )
    if closes is not None:
        content[closes] = content[closes].replace("inch", 'inch"')
    for separator in ("\n", "\r\n"):
        path = write(tmp_path, content)
        path.write_bytes(path.read_bytes().replace(b"\n", separator.encode()))
        with raises_code(TableError, "SVFL-TABLE-QUOTES", line=opens + 2):
            read_party("shop", path)


@pytest.mark.parametrize("sizes", [('"55 PC', '"44 PC'), ('5" PC"', '"6')])
def test_sizes_in_inches_are_read_or_named(tmp_path: Path, sizes: tuple[str, str]) -> None:
    content = lines()
    content[4], content[8] = (f"c{k:05},{size},{k}.5,{k * k}" for k, size in zip((4, 8), sizes, strict=True))
    with raises_code(TableError, "SVFL-TABLE-QUOTES"):
        read_party("shop", write(tmp_path, content))
    marks = [line.replace(" inch", '" PC') for line in lines()]
    assert len(read_party("shop", write(tmp_path, marks))) == 30


def test_values_with_line_breaks_are_values(tmp_path: Path) -> None:
    content = [line.replace("5 inch", '"Main St 5\nBerlin, Mitte\n, ,"') for line in lines()]
    party = read_party("shop", write(tmp_path, content))
    assert len(party) == 30
    assert any("Berlin, Mitte" in text for text in party.categories["size"])


@given(st.lists(st.tuples(st.text('ab,\n" ;', max_size=8), st.text("xy\n,", max_size=6)), min_size=1, max_size=8))
@example([("", "\n,,,\n")])
@example([("", "\nx,,,\n")])
def test_no_row_of_a_file_written_by_a_library_disappears(values: list[tuple[str, str]]) -> None:
    text = io.StringIO()
    rows = [(f"k{number}", first, second, number) for number, (first, second) in enumerate(values)]
    csv.writer(text, lineterminator="\n").writerows([("id", "a", "b", "c"), *rows])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes(text.getvalue().encode())
        inner = [line for pair in values for value in pair for line in value.split("\n")[1:-1]]
        # a line that looks like a row, as after a stray quotation mark, is refused
        if any(line.partition(",")[0].strip() and line.count(",") >= 3 for line in inner):
            with suppress(TableError):
                assert CsvFile(path).table(["id"])["id"].to_pylist() == [row[0] for row in rows]
        else:
            assert CsvFile(path).table(["id"])["id"].to_pylist() == [row[0] for row in rows]


@pytest.mark.parametrize("before", ["", "\n", "  \r\n\n", "\ufeff"])
def test_names_over_two_lines_blanks_and_blank_lines_above(tmp_path: Path, before: str) -> None:
    path = tmp_path / "bank.csv"
    path.write_bytes((before + 'id, y ,"spent\n(EUR)", b0\n1,0,2.5,1\n2,1,3.5,4\n').encode())
    party = read_party("bank", path)
    assert party.active
    assert party.columns == ["spent (EUR)", "b0"]
    assert party.X.tolist() == [[2.5, 1], [3.5, 4]]
    assert party.ids is not None
    assert party.ids.tolist() == ["1", "2"]
    path.write_bytes((before + 'id,"spent\n(EUR)",spent (EUR)\n1,0,2\n').encode())
    with raises_code(TableError, "SVFL-TABLE-HEADER", columns=["spent (EUR)"]):
        read_party("bank", path)


def test_a_ragged_line_is_named_beside_a_very_long_text(tmp_path: Path) -> None:
    content = lines()
    content[3] = f"c3,{'x' * 200_000},1,2"
    content[7] += ",1"
    with raises_code(TableError, "SVFL-TABLE-RAGGED", line=9):
        read_table(write(tmp_path, content))
    content[7] = f"c7,{'x' * 9_000_000},1,2"
    with raises_code(TableError, "SVFL-TABLE-UNREADABLE"):
        read_table(write(tmp_path, content))


def test_the_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, lines())
    path.write_bytes(path.read_bytes().replace(b"c00007,", b"c\xe907,"))
    with raises_code(TableError, "SVFL-TABLE-ENCODING") as caught:
        read_table(path)
    assert "line 9 is not UTF-8" in str(caught.value)


@pytest.mark.parametrize("start", [b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"PAR1", b"ARROW1", b"%PDF-1.7", b"\x1f\x8b"])
def test_files_of_other_formats_are_named_by_their_format(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "shop.csv"
    path.write_bytes(start + b"\x00\xff\n" * 20)
    with raises_code(TableError, "SVFL-TABLE-UNREADABLE"):
        read_table(path)
    compressed = tmp_path / "shop.csv.gz"
    compressed.write_bytes(gzip.compress(start + b"\x00\xff\n" * 20))
    with raises_code(TableError, "SVFL-TABLE-UNREADABLE"):
        read_table(compressed)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_delimiter_at_the_end_of_lines_is_named(tmp_path: Path, delimiter: str) -> None:
    path = write(tmp_path, ["c1,1,2,", "c2,3,4,"], "id,a,b,")
    path.write_text(path.read_text().replace(",", delimiter))
    with raises_code(TableError, "SVFL-TABLE-HEADER", column_number=4) as caught:
        read_table(path)
    assert "ends in a delimiter" in str(caught.value)


@pytest.mark.parametrize("letters", ["", "ä", "äö", "größe", "数量", "prix (€)"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_no_row_is_lost_below_a_header_of_any_letters(tmp_path: Path, letters: str, mark: str, end: str) -> None:
    path = tmp_path / "shop.csv"
    for count in (1, 2, 5):
        names = ["id", *(f"{letters}{number}" for number in range(count))]
        rows = [[f"k{row}", *map(str, range(count))] for row in range(3)]
        path.write_bytes((mark + end.join(",".join(cells) for cells in [names, *rows]) + end).encode())
        file = CsvFile(path)
        assert file.names == names
        assert [list(row.values()) for row in file.table(names).to_pylist()] == rows

"""Ids of several columns: different spellings get one form, by tables that are the same in all versions of Python."""

from __future__ import annotations

import datetime
import itertools
import re
import textwrap
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from builders import raises_code
from hypothesis import given
from hypothesis import strategies as st

import securevfl as vfl
from securevfl.data.composite_ids import IdColumns, _character_table, compose_ids, normalise, requested_id
from securevfl.data.load import read_parties
from securevfl.data.parquet_source import ParquetSource
from securevfl.data.read_options import ReadOptions
from securevfl.data.readers import id_rule_version, read_ids, read_party, read_table
from securevfl.errors import DataNotice, IdError

SPANS = (0, 0x33FF), (0xA640, 0xA7FF), (0xF900, 0xFB06), (0xFE00, 0xFE2F), (0xFF00, 0xFFEF)
UNICODE_VERSION = "14.0.0"  # the version of Unicode from which rule 1 was derived


def plainly(letter: str) -> str:
    """Apply the rule to one letter, by Python's own tables."""
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", letter).casefold())
    letters = (letter for letter in text if unicodedata.category(letter)[0] in "LN")
    return "".join(str(unicodedata.decimal(letter, letter)) for letter in letters)


def entries() -> Iterator[str]:
    """Return the content of the rule's file: spans of letters that the rule changes."""
    letters = (number for low, high in SPANS for number in range(low, high + 1))
    changed = {
        n: plainly(chr(n)) for n in letters if unicodedata.category(chr(n)) != "Cn" and plainly(chr(n)) != chr(n)
    }
    while changed:
        first = last = next(iter(changed))
        text = changed.pop(first)
        while (following := changed.get(last + 1)) is not None and len(text) < 2:
            if following != (chr(ord(text) + last + 1 - first) if text else ""):
                break
            del changed[(last := last + 1)]
        yield f"{first:X}" + f"-{last:X}" * (last > first) + f"={text}" * bool(text)


def table_text() -> str:
    return textwrap.fill(" ".join(entries()), 118, break_long_words=False, break_on_hyphens=False) + "\n"


@pytest.mark.skipif(unicodedata.unidata_version != UNICODE_VERSION, reason="other tables of Unicode")
def test_the_tables_that_ship_are_those_of_the_rule() -> None:
    shipped = Path(vfl.__file__).parent / "data" / "letters_1.txt"
    assert shipped.read_text(encoding="utf-8") == table_text()


def test_the_tables_are_the_same_under_every_python() -> None:
    """The letters that this Python's tables know have the same meaning in every version."""
    for number, text in _character_table().items():
        assert text == plainly(chr(number)), hex(number)


@pytest.mark.parametrize(
    ("values", "form"),
    [
        (
            ["Müller-Lüdenscheidt", "MU\u0308LLER  LU\u0308DENSCHEIDT", " müller\u00a0lüdenscheidt."],
            "mullerludenscheidt",
        ),
        (["Straße 7", "STRASSE \uff17", "strasse-\u0667"], "strasse7"),
        (["ﬁn & Söhne", "FIN SOHNE"], "finsohne"),
        (["Ελλάς", "ΕΛΛΑΣ"], "ελλασ"),
        (["한국", unicodedata.normalize("NFD", "한국")], unicodedata.normalize("NFD", "한국")),
        (["が", unicodedata.normalize("NFD", "が")], "か"),
        (["漢字"], "漢字"),
        (["---", "\u0301"], ""),
    ],
)
def test_what_is_written_in_several_ways_has_one_form(values: list[str], form: str) -> None:
    assert {normalise(value) for value in values} == {form}
    assert normalise(form) == form


def test_values_are_parted_and_gaps_counted() -> None:
    assert compose_ids([["An na", "Ann"], ["B", "ab"], [7, 7.0]]) == ["2|anna|b|7", "2|ann|ab|7"]
    for gap in (None, float("nan"), " ", "--"):
        with raises_code(IdError, "SVFL-ID-MISSING"):
            compose_ids([["a", gap, "c"], [gap, 2, 3]])


def name_tables(folder: Path, kind: str) -> dict[str, Path]:
    bank = {"name": ["Zoë Ü", "Ann O'Hara", "Bo"], "born": ["1980-01-02", "1990-03-04", "2000-05-06"], "a": [1.0, 2, 4]}
    shop = {"who": ["BO", "ZOE U", "Cy"], "day": ["20000506", "1980/01/02", "20000506"], "b": [1.0, 0, 3]}
    files = {}
    for name, columns in (("bank", bank | {"y": [0, 1, 1]}), ("shop", shop)):
        files[name] = folder / f"{name}.{kind}"
        if kind == "parquet":
            pa.parquet.write_table(pa.table(columns), files[name])
        else:
            rows = zip(*columns.values(), strict=True)
            files[name].write_text("\n".join(";".join(map(str, row)) for row in [columns, *rows]), encoding="utf-8")
    return files


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_files_are_read_by_several_columns_which_are_no_features(kind: str, tmp_path: Path) -> None:
    paths = name_tables(tmp_path, kind)
    assert read_ids(paths["shop"], id_column="who, day").tolist() == [
        "2|bo|2000-05-06",
        "2|zoeu|1980-01-02",
        "2|cy|2000-05-06",
    ]
    bank = read_party("bank", paths["bank"], ReadOptions(id_column="name,born"))
    assert bank.columns == ["a"]
    assert set(bank.ids.tolist()) >= {"2|zoeu|1980-01-02", "2|annohara|1990-03-04"}
    table = read_table(paths["shop"], ReadOptions(id_column="who,day", chosen=["b"]))
    np.testing.assert_array_equal(table.columns.X[:, 0], [1, 0, 3])
    shop = read_party("shop", paths["shop"], ReadOptions(id_column="who,day"))
    both = vfl.align([bank, shop])
    assert [party.X[:, 0].tolist() for party in both] == [[1, 4], [0, 1]]
    assert both.missing == {"bank": ["2|cy|2000-05-06"], "shop": ["2|annohara|1990-03-04"]}
    if kind == "parquet":
        source = ParquetSource("shop", paths["shop"], ReadOptions(id_column="who,day"))
        assert source.columns == ["b"]
        np.testing.assert_array_equal(source.keys(), shop.keys)
    with raises_code(IdError, "SVFL-ID-COLUMN"):
        read_ids(paths["shop"], id_column="who,last")


def test_rows_that_are_written_alike_are_named(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    path.write_text("who,day,b\nZoë,1,2\nANN,1,3\nzoe,1,4\n", encoding="utf-8")
    with raises_code(IdError, "SVFL-ID-DUPLICATE"):
        read_party("shop", path, ReadOptions(id_column="who,day"))
    assert (id_rule_version(path, "who,day"), id_rule_version(path, "who,"), id_rule_version(path, "who")) == (
        2,
        2,
        None,
    )


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_comma_behind_one_column_brings_it_to_the_rule(kind: str, tmp_path: Path) -> None:
    paths = {}
    for name, columns in (
        ("bank", {"client": ["KD-0012", "KD-7"], "y": [0, 1], "a": [1.0, 2.0]}),
        ("shop", {"who": ["kd0012", "kd 0099"], "b": [3.0, 4.0]}),
    ):
        paths[name] = tmp_path / f"{name}.{kind}"
        if kind == "parquet":
            pa.parquet.write_table(pa.table(columns), paths[name])
        else:
            rows = zip(*columns.values(), strict=True)
            paths[name].write_text("\n".join(",".join(map(str, row)) for row in [columns, *rows]), encoding="utf-8")
    with raises_code(IdError, "SVFL-ID-NO-MATCH"):
        read_parties(paths, {"bank": ReadOptions("client"), "shop": ReadOptions("who")})
    (bank, shop), missing = read_parties(paths, {"bank": ReadOptions("client,"), "shop": ReadOptions("who,")})
    assert (bank.columns, shop.columns) == (["a"], ["b"])
    assert (bank.X.tolist(), shop.X.tolist()) == ([[1.0]], [[3.0]])
    assert missing == {"bank": ["2|kd0099"], "shop": ["2|kd7"]}


BORN = [datetime.date(1980, 5, 1), datetime.date(1999, 12, 31), datetime.date(2001, 2, 3)]


@pytest.mark.parametrize(
    ("bank", "shop"),
    [
        ([1, 10, -5], ["1.0", "10.00", "-5"]),
        (["1,5", "15", "0.50"], [1.5, 15.0, 0.5]),
        (["\u22125", "+7", "5-"], ["-5", 7, "-5.0"]),
        (["007", "7", "70"], ["007.0", Decimal("7.00"), np.float32(70)]),
        (BORN, [f"{day:%Y/%m/%d}" for day in BORN]),
        (BORN, [datetime.datetime.combine(day, datetime.time(13)) for day in BORN]),
        ([f"{day:%Y%m%d}" for day in BORN], np.array(BORN, "datetime64[ns]")),
        (["1980-05-01 00:00:00"], ["1980-05-01T10:00:00+02:00"]),
    ],
)
def test_equal_numbers_and_days_are_equal_ids(bank: Iterable[Any], shop: Iterable[Any]) -> None:
    first, second = compose_ids([list(bank)]), compose_ids([list(shop)])
    assert first == second


DIFFERENT = [1, 10, "-1", "1.5", "15", "0015", "0.15", "1980-05-01", "1980-05-10", "01.05.1980", "1e5", "100000"]


def test_signs_points_and_leading_zeros_distinguish_ids() -> None:
    assert len(set(compose_ids([DIFFERENT]))) == len(DIFFERENT)


@given(st.lists(st.decimals(-10_000, 10_000, places=2), min_size=2, max_size=20))
def test_numbers_have_one_id_if_and_only_if_they_are_equal(numbers: list[Decimal]) -> None:
    for write in (str, float, lambda number: f"{number:.4f}", lambda number: str(number).replace(".", ",")):
        ids = compose_ids([[write(number) for number in numbers]])
        assert ids == compose_ids([numbers])
        assert len(set(ids)) == len(set(numbers))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_advice_counts_its_matches_and_shows_no_id(kind: str, tmp_path: Path) -> None:
    """The bank's 10 is not the shop's 1.0, which a rule that drops points would join."""
    paths = {}
    for name, columns in (
        ("bank", {"id": [f"{k + 1}" for k in range(60)], "y": [k % 2 for k in range(60)], "a": np.arange(60.0)}),
        ("shop", {"id": [f"{k}.0" for k in range(1, 61)], "b": np.arange(60.0) ** 1.5}),
    ):
        paths[name] = tmp_path / f"{name}.{kind}"
        if kind == "parquet":
            pa.parquet.write_table(pa.table(columns), paths[name])
        else:
            rows = zip(*columns.values(), strict=True)
            paths[name].write_text("\n".join(",".join(map(str, row)) for row in [columns, *rows]))
    with raises_code(IdError, "SVFL-ID-NO-MATCH", matches=60) as caught:
        read_parties(paths)
    assert "by reading '9.9' of shop as '9'" in str(caught.value)
    (bank, shop), missing = read_parties(paths, ReadOptions("id,"))
    assert len(bank) == 60
    assert not any(missing.values())
    np.testing.assert_allclose(shop.X[:, 0], bank.X[:, 0] ** 1.5)
    shop_rows = [f"-{k},{k}.5" for k in range(1, 61)]
    paths["shop"] = tmp_path / "others.csv"
    paths["shop"].write_text("\n".join(["id,b", *shop_rows]))
    for id_column in ("id", "id,"):  # other people: no rule matches them
        with raises_code(IdError, "SVFL-ID-NO-MATCH") as caught:
            read_parties(paths, ReadOptions(id_column))
        assert "--id COLUMN," not in str(caught.value)
    assert not any(f"{k}" in str(caught.value).replace("99", "") for k in (31, 47, 58))


def write_zero_tables(folder: Path, bank: Iterable[Any], shop: Iterable[Any], columns: str = "id") -> dict[str, Path]:
    """Write a table of the bank with these ids and labels, and one of the shop with others."""
    paths = {"bank": folder / "bank.csv", "shop": folder / "shop.csv"}
    for (name, path), ids in zip(paths.items(), (bank, shop), strict=True):
        label = ",y" if name == "bank" else ""
        lines = [f"{value},{k % 7}" + (f",{k % 2}" if label else "") for k, value in enumerate(ids)]
        path.write_text("\n".join([f"{columns},{name[0]}{label}", *lines]))
    return paths


@pytest.mark.parametrize("id_column", ["id", "id,", "id,zip"])
def test_lost_leading_zeros_get_advice(id_column: str, tmp_path: Path) -> None:
    composite = id_column == "id,zip"
    bank = [f"{k:08}" + (",01067" if composite else "") for k in range(1, 301)]
    shop = [f"{k}" + (",1067" if composite else "") for k in range(1, 301)]
    paths = write_zero_tables(tmp_path, bank, shop, "id,zip" if composite else "id")
    with raises_code(IdError, "SVFL-ID-NO-MATCH", matches=300) as caught:
        read_parties(paths, ReadOptions(id_column))
    text = str(caught.value)
    assert "300 ids would match without their leading zeros" in text
    assert "zeros that shop has lost" in text
    assert "99999999" in text
    texts = re.sub(r"300 ids|\d+%", "", text)
    assert not any(digit in texts for digit in "12345678"), "no id is shown"


def test_rows_left_out_by_lost_zeros_are_noticed(tmp_path: Path) -> None:
    """Ids without leading zeros match, and the others are left out."""
    bank, shop = [f"{k:03}" for k in range(1, 301)], [f"{k}" for k in range(1, 301)]
    with pytest.warns(DataNotice) as notices:
        parties, _ = read_parties(write_zero_tables(tmp_path, bank, shop))
    assert len(parties[0]) == 201
    assert any("99 more ids would match" in str(notice.message) for notice in notices)
    tables = [
        vfl.Party("bank", np.arange(300.0)[:, None], np.arange(300) % 2, ids=bank),
        vfl.Party("shop", np.arange(300.0)[:, None], ids=shop),
    ]
    with pytest.warns(DataNotice) as notices:
        assert len(vfl.align(tables)[0]) == 201
    assert ["99 more ids" in str(notice.message) for notice in notices] == [True]
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataNotice)
        assert len(vfl.align([tables[0], vfl.Party("shop", np.arange(90.0)[:, None], ids=bank[9:99])])[0]) == 90


def test_people_that_differ_by_zeros_get_no_advice() -> None:
    tables = [
        vfl.Party("bank", np.arange(4.0)[:, None], np.arange(4) % 2, ids=["07", "007", "08", "008"]),
        vfl.Party("shop", np.arange(2.0)[:, None], ids=["7", "8"]),
    ]
    with raises_code(IdError, "SVFL-ID-NO-MATCH") as caught:
        vfl.align(tables)
    assert "leading zeros:" not in str(caught.value)


@pytest.mark.parametrize("lost", [("shop",), ("shop", "club"), ("bank", "club"), ("bank",)])
def test_all_parties_that_lost_zeros_are_named(lost: tuple[str, ...], tmp_path: Path) -> None:
    """Nobody shares an id in the first join; in the second one only ids without leading zeros are shared."""
    for numbers in (range(1, 100), range(1, 500)):
        paths = {}
        for name in ("bank", "shop", "club"):
            ids = [f"{number}" if name in lost else f"{number:03}" for number in numbers]
            label = ",y" if name == "bank" else ""
            rows = [f"{value},{k}" + (f",{k % 2}" if label else "") for k, value in enumerate(ids)]
            paths[name] = tmp_path / f"{name}.csv"
            paths[name].write_text("\n".join([f"id,{name}_x{label}", *rows]))
        if len(numbers) == 99:
            with raises_code(IdError, "SVFL-ID-NO-MATCH", matches=99) as caught:
                read_parties(paths)
            text = str(caught.value)
        else:
            with pytest.warns(DataNotice) as notices:
                read_parties(paths)
            (text,) = (str(notice.message) for notice in notices if "leading zeros" in str(notice.message))
        assert f"that {' and '.join(lost)} ha{'s' if len(lost) == 1 else 've'} lost" in text


def test_a_good_join_is_not_searched_for_lost_zeros() -> None:
    ids = [f"{k:06}" for k in range(1000)]
    other = [str(int(value)) if k < 10 else value for k, value in enumerate(ids)]
    for count, noticed in ((10, False), (11, True)):
        other[count - 1] = str(count - 1)
        tables = [
            vfl.Party("bank", np.arange(1000.0)[:, None], np.arange(1000) % 2, ids=ids),
            vfl.Party("shop", np.arange(1000.0)[:, None], ids=other),
        ]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            vfl.align(tables)
        assert bool([item for item in caught if "leading zeros" in str(item.message)]) == noticed


@pytest.mark.parametrize("names", [["name"], ["name", "born"], ["name", "born", "town"]])
def test_a_requested_id_has_exactly_the_columns_of_the_id(names: list[str]) -> None:
    """A row that is requested by an object of other columns may be another row, so it is refused."""
    key, row_id = IdColumns(names, by_rule=True), {"name": "Ann", "born": "2001-02-03", "town": "Bonn"}
    exact = {name: row_id[name] for name in names}
    composed = compose_ids([[value] for value in exact.values()])[0]
    for ordered in itertools.permutations(exact.items()):  # an application may write the columns in any order
        assert requested_id(key, dict(ordered)) == composed
    incomplete = [{name: exact[name] for name in names if name != lacking} for lacking in names]
    renamed = [{name.upper(): value for name, value in exact.items()}]
    values = ["Ann", list(exact.values())] if len(names) > 1 else []  # the value of one column is an id
    for wrong in (exact | {"city": "Bonn"}, *incomplete, *renamed, *values):
        with raises_code(IdError, "SVFL-ID-INVALID"):
            requested_id(key, wrong)

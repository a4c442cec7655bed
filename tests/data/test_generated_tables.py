"""Generated tables: every reader pairs rows by id, and loses none of them without an error, a notice or a list."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import securevfl as vfl
from securevfl.data.load import read_parties
from securevfl.data.read_options import ReadOptions
from securevfl.errors import DataNotice, IdError

FILES = "csv", "parquet", "arrow", "folder"
FRAMES = "pandas", "polars", "dict", "index"
JOB = vfl.Job(
    model=vfl.Logistic(l2=1e-2),
    optimizer=vfl.FedBCD(lr=0.5),
    protocol="open",
    batch_size=40,
    epochs=2,
    accepts=["columns"],
)
ID_KINDS: dict[str, st.SearchStrategy[Any]] = {
    "numbers": st.integers(0, 10**9),
    "texts": st.text("abc-0123456789", min_size=1, max_size=8).map(lambda text: f"k{text}"),
    "codes": st.integers(0, 99_999).map(lambda number: f"{number:05}"),
}


def write(kind: str, folder: Path, ids: list[Any], columns: dict[str, Any]) -> Path:
    table = pa.table({"id": ids} | columns)
    if kind == "folder":
        path = folder / "parts"
        path.mkdir()
        for start in range(0, len(ids), 7):
            pq.write_table(table.slice(start, 7), path / f"{start:04}.parquet")
        return path
    path = folder / f"t.{kind}"
    if kind == "arrow":
        pyarrow.feather.write_feather(table, path, compression="uncompressed")
    else:
        (pq.write_table if kind == "parquet" else pyarrow.csv.write_csv)(table, path)
    return path


def party_from_frame(kind: str, name: str, ids: list[Any], columns: dict[str, Any], duplicates: Any) -> vfl.Party:
    columns = dict(columns)
    y = columns.pop("y", None)
    if kind == "index":
        frame = pd.DataFrame(columns, index=pd.Index(ids, name="id"))
        return vfl.Party(name, frame, None if y is None else pd.Series(y, index=frame.index), duplicates=duplicates)
    frames = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "dict": dict}
    return vfl.Party(name, frames[kind](columns), y, ids=ids, duplicates=duplicates)


@given(st.data(), st.sampled_from([*FILES, *FRAMES]), st.sampled_from(sorted(ID_KINDS)))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_are_paired_by_id(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, reader: str, id_kind: str
) -> None:
    people = data.draw(st.lists(ID_KINDS[id_kind], min_size=12, max_size=40, unique=True))
    repeated = data.draw(st.lists(st.integers(0, len(people) - 1), max_size=4))
    duplicates = data.draw(st.sampled_from(["refuse", "first", "last"]))
    left = data.draw(st.permutations(range(len(people))))[data.draw(st.integers(0, 3)) :]
    right = [*data.draw(st.permutations(range(len(people)))), *repeated]
    copies = np.array([*[0] * len(people), *range(1, len(repeated) + 1)]) / 16
    bank = {"value": [float(person) for person in left], "y": [place % 2 for place in range(len(left))]}
    shop = {"value": (np.array(right) + copies).tolist(), "same": [1.0, *[0.0] * (len(right) - 1)]}
    ids = [people[person] for person in left], [people[person] for person in right]
    folder, refused = tmp_path_factory.mktemp("tables"), ""
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        try:
            if reader in FILES:
                paths = {}
                for name, party_ids, columns in (("bank", ids[0], bank), ("shop", ids[1], shop)):
                    (folder / name).mkdir()
                    paths[name] = write(reader, folder / name, party_ids, columns)
                parties, missing = read_parties(paths, ReadOptions(duplicates=duplicates))
                large, _ = read_parties(paths, ReadOptions(duplicates=duplicates), job=JOB, max_in_memory_bytes=0)
                for one, other in zip(parties, large, strict=True):
                    np.testing.assert_array_equal(one.X, other.X[:])
            else:
                pairs = ("bank", ids[0], bank), ("shop", ids[1], shop)
                aligned = vfl.align([party_from_frame(reader, *pair, duplicates) for pair in pairs])
                parties, missing = list(aligned), aligned.missing
        except IdError as error:
            refused = error.code
    if refused or (repeated and duplicates == "refuse"):
        assert (refused, bool(repeated), duplicates) == ("SVFL-ID-DUPLICATE", True, "refuse")
        return
    first, second = parties
    values, partner_values = first.X[:, 0], second.X[:, first.columns.index("value")]
    np.testing.assert_array_equal(values, np.floor(partner_values))
    assert len(first) == len(second) == len(left)
    assert len(missing["bank"]) == len(people) - len(left)
    expected_labels = {float(person): place % 2 for place, person in enumerate(left)}
    assert first.labels.tolist() == [expected_labels[value] for value in values.tolist()]
    counted = [str(notice.message) for notice in notices if issubclass(notice.category, DataNotice)]
    assert any(f"{len(repeated):,} of {len(right):,} rows are left out" in text for text in counted) == bool(repeated)
    last = {float(person): copy for person, copy in zip(right, copies.tolist(), strict=True)}
    for value, partner_value in zip(values.tolist(), partner_values.tolist(), strict=True):
        assert partner_value - value == (0 if duplicates == "first" else last[value])


@pytest.fixture(scope="module")
def trained() -> tuple[vfl.Run, pd.DataFrame, pd.DataFrame]:
    draw = np.random.default_rng(0)
    index = pd.Index([f"k{row}" for row in range(120)], name="id")
    bank = pd.DataFrame(draw.normal(size=(120, 2)), index, ["a", "b"])
    shop = pd.DataFrame(draw.normal(size=(120, 2)), index, ["s", "t"])
    y = (bank["a"] - shop["s"] > 0).astype(int)
    return vfl.simulate(JOB, [vfl.Party("bank", bank, y), vfl.Party("shop", shop)]), bank, shop


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_new_rows_and_labels_are_paired_by_id(
    trained: tuple[vfl.Run, pd.DataFrame, pd.DataFrame], data: st.DataObject
) -> None:
    run, bank, shop = trained
    expected = pd.Series(run.predict_proba({"bank": bank, "shop": shop})[:, 1], bank.index)
    chosen = data.draw(st.lists(st.sampled_from(list(bank.index)), min_size=2, max_size=30, unique=True))
    order = data.draw(st.permutations(chosen))
    new = {"bank": bank.loc[chosen], "shop": shop.loc[order]}
    np.testing.assert_allclose(run.predict_proba(new)[:, 1], expected.loc[chosen])
    y = pd.Series([place % 2 for place in range(len(chosen))], chosen)
    shuffled = y.loc[order]
    assert run.evaluate(new, shuffled) == pytest.approx(run.evaluate(new, y), nan_ok=True)
    other = shop.loc[[name for name in shop.index if name not in chosen][: len(chosen)]]
    with pytest.raises(IdError):
        run.predict_proba({"bank": bank.loc[chosen], "shop": other})

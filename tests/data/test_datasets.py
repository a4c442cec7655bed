"""Generated and sample tables, and the files that they are written to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import securevfl as vfl
from securevfl.data.readers import read_party
from securevfl.errors import ConfigError, TableError
from tests.builders import raises_code


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_each_party_gets_its_own_file(suffix: str, count: int, tmp_path: Path) -> None:
    tables = vfl.datasets.breast_cancer(count)
    paths = vfl.datasets.save(tables, str(tmp_path / f"{{}}.{suffix}"))
    for party, path in zip(tables, paths, strict=True):
        assert path.stem == party.name
        read = read_party(party.name, path)
        assert list(read.columns) == list(party.columns)
        assert [str(name) for name in read.ids] == [str(name) for name in party.ids]
        np.testing.assert_array_equal(np.asarray(read.X), np.asarray(party.X))


@pytest.mark.parametrize("pattern", ["all.csv", "all.parquet", ""])
def test_a_pattern_without_a_place_for_the_name_is_refused(pattern: str, tmp_path: Path) -> None:
    with raises_code(ConfigError, "SVFL-FILE-EXISTS"):
        vfl.datasets.save(vfl.datasets.loans(30), str(tmp_path / pattern))
    assert not any(tmp_path.iterdir())
    (bank, _) = vfl.datasets.loans(30)
    assert vfl.datasets.save([bank], str(tmp_path / "one.csv")) == [tmp_path / "one.csv"]


@pytest.mark.parametrize(
    ("name", "has_labels", "is_refused"), [("id", False, True), ("y", True, True), ("y", False, False)]
)
def test_columns_that_would_replace_ids_or_labels_are_refused(
    name: str, has_labels: bool, is_refused: bool, tmp_path: Path
) -> None:
    X, y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1]) if has_labels else None
    party = vfl.Party("bank", X, y, ids=["p", "q", "r", "s"], columns=["a", name])
    pattern = str(tmp_path / "{}.csv")
    if is_refused:
        with raises_code(TableError, "SVFL-TABLE-HEADER", party="bank"):
            vfl.datasets.save([party], pattern)
        assert not any(tmp_path.iterdir())
    else:
        (path,) = vfl.datasets.save([party], pattern)
        assert path.read_text().splitlines()[0] == '"id","a","y"'


@pytest.mark.parametrize("rows", [0, 1, 2, 19])
def test_a_table_of_few_generated_loans_is_refused(rows: int) -> None:
    with raises_code(TableError, "SVFL-TABLE-TOO-FEW-ROWS"):
        vfl.datasets.loans(rows)


@pytest.mark.parametrize("seed", range(20))
def test_the_smallest_generated_table_varies(seed: int) -> None:
    for party in vfl.datasets.loans(20, seed=seed):
        assert np.isfinite(np.asarray(party.X)).all()
        assert party.y is None or set(party.y) == {"late", "on time"}

"""Special codes, such as -1 for no account, are no amounts: for every reader, type, preparation and place."""

from __future__ import annotations

import datetime
import itertools
import warnings
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from builders import raises_code

import securevfl as vfl
from securevfl.credit.explanations import reasons
from securevfl.credit.onnx_export import to_onnx
from securevfl.credit.scorecard import scorecard
from securevfl.data.column_transforms import ImputedTransform
from securevfl.data.column_types import read_types
from securevfl.data.columns import Columns, columns_of
from securevfl.data.load import read_parties
from securevfl.data.preparation import Preparation, fit_preparation
from securevfl.data.read_options import ReadOptions
from securevfl.data.readers import read_party, read_table
from securevfl.data.woe import NumericWoe, Woe, number_bins
from securevfl.errors import ConfigError, DataNotice, TableError
from securevfl.organisations.gateway_rows import RequestedRow
from securevfl.organisations.http_requests import ScoreRequests
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import rows_of_file

N = 600
GENERATOR = np.random.default_rng(11)
CODE = GENERATOR.choice([0, 1, 2], N, p=[0.7, 0.2, 0.1])  # 0: an amount, 1 and 2: two codes
AMOUNTS = GENERATOR.integers(5, 400, N)
DAYS = [datetime.date(2010, 1, 1) + datetime.timedelta(days=int(day)) for day in AMOUNTS]
IDS = [f"k{row}" for row in range(N)]
Y = (GENERATOR.normal(size=N) + 2 * (CODE == 1) - 2 * (CODE == 2) > 0).astype(int)  # the codes decide, not the amounts

WRITTEN: dict[str, tuple[dict[str, Any], list[str], tuple[str, str]]] = {
    "number": ({}, [f"{amount}" for amount in AMOUNTS], ("-1", "-2")),
    "percent": ({"type": "percent"}, [f"{amount}%" for amount in AMOUNTS], ("-1", "-2")),
    "currency": ({"type": "currency", "unit": "EUR"}, [f"{amount} EUR" for amount in AMOUNTS], ("-1", "-2")),
    "date": ({"type": "date"}, [str(day) for day in DAYS], ("1900-01-01", "9999-12-31")),
    "decimals": ({"type": "number", "decimal": ","}, [f"{amount},5" for amount in AMOUNTS], ("-1", "-2")),
}
READER_NAMES = "csv", "parquet", "dict", "polars", "arrow", "batches", "duckdb", "lazy"


def values_of(kind: str) -> list[str]:
    _, amounts, codes = WRITTEN[kind]
    return [amounts[row] if not code else codes[code - 1] for row, code in enumerate(CODE.tolist())]


def declaration(kind: str) -> dict[str, Any]:
    keys, _, codes = WRITTEN[kind]
    return {"c": keys | {"special": codes}}


def write(folder: Path, suffix: str, columns: dict[str, Any]) -> Path:
    path, table = folder / f"t.{suffix}", pa.table({"id": IDS} | columns)
    (pq.write_table if suffix == "parquet" else pyarrow.csv.write_csv)(table, path)
    return path


def read(reader: str, values: list[Any], folder: Path, **options: Any) -> Columns:
    columns = {"c": values, "n": list(range(len(values)))}
    if reader in ("csv", "parquet"):
        return read_table(write(folder, reader, columns), ReadOptions(**options)).columns
    table = pa.table(columns)
    frames: dict[str, Any] = {
        "dict": columns,
        "polars": pl.DataFrame(columns),
        "arrow": table,
        "batches": table.to_batches(),
        "duckdb": duckdb.from_arrow(table),
        "lazy": pl.LazyFrame(columns),
    }
    return columns_of("shop", frames[reader], **options)


@pytest.mark.filterwarnings("ignore::securevfl.errors.DataNotice")
@pytest.mark.parametrize("reader", READER_NAMES)
@pytest.mark.parametrize("kind", WRITTEN)
def test_every_reader_finds_the_codes_of_a_type(kind: str, reader: str, tmp_path: Path) -> None:
    declared = read_types(declaration(kind))
    values: list[Any] = [float(value) for value in values_of(kind)] if kind == "number" else values_of(kind)
    columns = read(reader, values, tmp_path, declared=declared)
    assert columns.type_of("c").special == WRITTEN[kind][2]
    codes = [number for _, number in columns.special_codes("c")]
    for code in (1, 2):
        np.testing.assert_array_equal(columns.X[:, 0] == codes[code - 1], code == CODE)
    new = read(reader, values, tmp_path, known=columns.types)  # new rows of a model
    np.testing.assert_array_equal(new.X, columns.X)
    step = fit_preparation("shop", columns, np.arange(N), Preparation()).steps[0]
    assert isinstance(step, ImputedTransform)
    amounts = columns.X[CODE == 0, 0]
    assert step.special_fill == np.median(amounts)
    prepared = step.apply(columns.X[:, 0], ())
    names = step.features
    for code in (1, 2):
        mark = prepared[:, names.index(f"c={WRITTEN[kind][2][code - 1]}")]
        np.testing.assert_array_equal(mark, code == CODE)
    assert set(prepared[CODE > 0, 0]) == {np.median(amounts)}
    np.testing.assert_array_equal(prepared[CODE == 0, 0], amounts)


JOBS = {
    "indicator": {},
    "bins": {"bins": 5},
    "clip": {"clip": 0.05},
    "woe": {"woe": {"bins": 6, "rows": 40}},
    "declared bins": {},
    "declared bins with woe": {"woe": {"bins": 6, "rows": 40}},
}


DECLARED_BINS: dict[str, Any] = {way: {"bins": [100, 200, 300]} for way in JOBS if way.startswith("declared")}


def job_of(prepare: dict[str, Any]) -> vfl.Job:
    return vfl.Job(
        model=vfl.Logistic(l2=1e-3),
        optimizer=vfl.FedBCD(lr=0.5),
        protocol=vfl.Protocol(residual="open"),
        batch_size=150,
        epochs=30,
        accepts=("columns",),
        prepare=prepare,
    )


@pytest.mark.filterwarnings("ignore::securevfl.errors.DataNotice")
@pytest.mark.parametrize(("way", "suffix"), zip(JOBS, itertools.cycle(["csv", "parquet"]), strict=False))
def test_training_prediction_export_points_reasons_and_gateway(way: str, suffix: str, tmp_path: Path) -> None:
    raw = [float(value) for value in values_of("number")]
    noise = GENERATOR.normal(size=N).tolist()
    for name in ("bank", "shop"):
        (tmp_path / name).mkdir()
    labels = {"y": Y.tolist()}
    paths = {
        "bank": write(tmp_path / "bank", suffix, labels | {"c": raw, "b": noise}),
        "shop": write(tmp_path / "shop", suffix, {"s": noise[::-1]}),
    }
    options = {
        "bank": ReadOptions(declared=read_types({"c": {"special": ["-1", "-2"], **DECLARED_BINS.get(way, {})}})),
        "shop": ReadOptions(),
    }
    job = job_of(JOBS[way])
    parties, _ = read_parties(paths, options, job=job)
    plain, _ = read_parties(paths, job=job)
    run = vfl.simulate(job, parties)
    assert run.metrics["auc"] > 0.68
    if way in ("indicator", "clip"):  # as amounts, the codes only shift the column
        assert vfl.simulate(job, plain).metrics["auc"] < run.metrics["auc"] - 0.1
    if "woe" not in way:  # weights of evidence need a table in memory
        stored, _ = read_parties(paths, options, job=job, max_in_memory_bytes=0)
        assert vfl.simulate(job, stored).metrics == run.metrics
    part = run.parts["bank"]
    part.save(tmp_path / "bank.json")
    part = ModelPart.load(tmp_path / "bank.json")
    expected = part.rows(parties[0].table)
    frame = pl.DataFrame({"c": raw, "b": noise})
    np.testing.assert_array_equal(part.rows(frame), expected)
    new = rows_of_file(part, paths["bank"])
    np.testing.assert_array_equal(part.scaling(np.concatenate([X for _, X in new.blocks()])), expected)
    # a request to a gateway
    body = b'{"rows": [%s]}' % b", ".join(
        b'{"id": "%s", "columns": {"c": %s, "b": %r}}' % (IDS[row].encode(), written, noise[row])
        for row, written in [(0, b"-1"), (1, b'"-2"'), (2, b"77")]
    )
    requested = ScoreRequests(part.preparation.types).parse(body)
    assert all(isinstance(row, RequestedRow) for row in requested)
    columns = {name: [row.columns[name] for row in requested if row.columns] for name in ("c", "b")}
    direct = {"c": [-1.0, -2.0, 77.0], "b": noise[:3]}
    np.testing.assert_array_equal(part.rows(columns), part.rows(direct))
    if way in DECLARED_BINS:
        at_edges = {"c": [99.0, 100.0, -2.0, 300.0], "b": [0.0] * 4}
        assert len({tuple(row) for row in part.rows(at_edges).tolist()}) == 4
    # the export, the scorecard and the reasons
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(to_onnx(part), providers=["CPUExecutionProvider"])
    (exported,) = session.run(["part"], {"X": np.column_stack([raw, noise])})
    d = len(part.features)
    np.testing.assert_allclose(exported, expected @ part.theta[:d] + part.theta[d:].sum(axis=0), rtol=1e-9, atol=1e-9)
    points = {line.bin: line.points for line in scorecard([part]).lines if line.column == "c"}
    assert points["-1"] < points["-2"] - 20  # the code -1 makes the positive class likelier, so it costs points
    first = next(row for row in range(N) if CODE[row] == 1)
    assert reasons(part, {"c": raw, "b": [0.0] * N}, most=1)[first] == ["c"]


def test_rare_codes_and_the_column_of_a_code_that_varies_little() -> None:
    values = np.arange(400.0)
    values[:3], values[3:60] = -1, -2
    declared = read_types({"c": {"special": ["-1", "-2", "-3"]}})
    columns = columns_of("shop", {"c": values, "n": np.arange(400)}, declared=declared)
    step = fit_preparation("shop", columns, np.arange(400), Preparation()).steps[0]
    assert step.features == ["c", "c=-2"]
    prepared = step.apply(np.array([-1.0, -2.0, -3.0, 399.0]), ())
    median = np.median(values[60:])
    np.testing.assert_array_equal(prepared, [[median, 0], [median, 1], [median, 0], [399, 0]])
    codes = (("-1", -1.0), ("-2", -2.0), ("-3", -3.0))
    bins = number_bins("c", values, gaps=False, options=Woe(bins=4, rows=30), codes=codes)
    assert isinstance(bins, NumericWoe)
    assert bins.bins <= Woe(bins=4).slots
    numbers = bins.bin_numbers(np.array([-1.0, -2.0, -3.0]), ())
    assert numbers[1] == bins.bins - 1  # a bin of its own
    assert numbers[0] == numbers[2] == bins.bin_numbers(np.array([median]), ())[0]
    only = columns_of("shop", {"c": [-1.0] * 200 + [-2.0] * 200, "n": np.arange(400)}, declared=declared)
    with raises_code(TableError, "SVFL-TABLE-EMPTY-COLUMN", column="c"):
        fit_preparation("shop", only, np.arange(400), Preparation())


@pytest.mark.filterwarnings("ignore::securevfl.errors.DataNotice")
@pytest.mark.parametrize("way", JOBS)
def test_few_gaps_and_codes_are_treated_like_the_median(way: str) -> None:
    """The median is each of three values in turn, and two of them are edges of bins."""
    bins = {"bins": [1, 2]} if way in DECLARED_BINS else {}
    declared, options = read_types({"c": {"special": ["-1"], **bins}}), Preparation(**JOBS[way])
    for median in (0.0, 1.0, 2.0):
        values = [*[0.0, 1.0, 2.0] * 100, *[median] * 101, *[-1.0, np.nan] * 2]
        columns = columns_of("shop", {"c": values, "n": np.arange(len(values))}, declared=declared)
        step = fit_preparation("shop", columns, np.arange(len(values)), options).steps[0]
        code, gap, ordinary = step.apply(np.array([-1.0, np.nan, median]), ()).tolist()
        assert code == gap == ordinary
        assert len(set(map(tuple, step.apply(np.array([0.0, 1.0, 2.0]), ()).tolist()))) == 3


def test_many_codes_fit_into_the_bins_whose_counts_are_disclosed() -> None:
    codes = tuple((str(-k), float(-k)) for k in range(1, 21))
    values = np.concatenate([np.repeat([number for _, number in codes], 60), np.arange(3000.0), [np.nan] * 60])
    for bins in (2, 3, 10):
        step = number_bins("c", values, gaps=True, options=Woe(bins=bins), codes=codes)
        assert step.bins <= Woe(bins=bins).slots
        assert (np.bincount(step.bin_numbers(values, ()).astype(int)) >= 50).all()


def test_codes_that_cannot_be_used_are_errors(tmp_path: Path) -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION"):
        read_types({"c": {"type": "category", "special": ["a"]}})
    with raises_code(ConfigError, "SVFL-JOB-OPTION"):
        read_types({"c": {"missing": ["-1"], "special": ["-1"]}})
    for keys, values in (
        ({"special": ["A"]}, [1.0, 2.0]),
        ({"special": ["-1"]}, ["red", "green"]),
        ({"type": "date", "special": ["-1"]}, ["2020-01-01", "2020-01-02"]),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataNotice)
            with raises_code(TableError, "SVFL-TABLE-TYPE", column="c"):
                columns_of("shop", {"c": values, "n": [1, 2]}, declared=read_types({"c": keys}))


def test_figures_leave_codes_out(tmp_path: Path) -> None:
    raw = [float(value) for value in values_of("number")]
    path = write(tmp_path, "csv", {"y": Y.tolist(), "c": raw, "b": (AMOUNTS + 0.5).tolist()})
    party = read_party("shop", path, ReadOptions(declared=read_types({"c": {"special": ["-1", "-2"]}})))
    figures = vfl.describe(party).columns[0]
    amounts = AMOUNTS[CODE == 0]
    assert figures.quartiles == tuple(np.quantile(amounts, [0, 0.25, 0.5, 0.75, 1]))
    assert f"special codes in {(CODE > 0).mean():.1%}" in figures.notes
    assert figures.missing == 0
    assert figures.iv is not None
    assert figures.iv > 0.5  # the bins of the codes
    assert figures.auc == pytest.approx(0.5, abs=0.1)  # of the amounts alone


@pytest.mark.parametrize("seed", range(4))
def test_the_most_frequent_codes_get_bins_in_any_order(seed: int) -> None:
    """Of five codes with enough rows, two have a place of their own among four bins."""
    generator = np.random.default_rng(seed)
    rows_of_code = {-1.0: 60, -2.0: 70, -3.0: 80, -4.0: 90, -5.0: 100}
    codes = tuple((f"{code:g}", code) for code in generator.permutation(list(rows_of_code)).tolist())
    values = np.concatenate([np.arange(400.0), *(np.full(rows, code) for code, rows in rows_of_code.items())])
    step = number_bins("c", generator.permutation(values), False, Woe(bins=4, rows=50), codes)
    bins = dict(zip([code for _, code in codes], step.special_bins, strict=True))
    alone = {code for code in bins if bins[code] > len(step.edges)}
    assert alone == {-4.0, -5.0}
    assert bins[-4.0] != bins[-5.0]

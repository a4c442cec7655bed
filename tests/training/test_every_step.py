"""Every kind of preparation step (clip, bins, codes, texts) at its boundaries: all uses of it agree with loops.

Uses are training, file, export, points and explanations. Rows are at each boundary (edge) of a step, at the two
floating-point numbers next to it, at 0, missing, and of known, rare and unknown texts. The model has a weight for each
feature that differs from all others.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.credit.explanations import heaviest, reasons, shapley
from securevfl.credit.onnx_export import to_onnx
from securevfl.credit.scorecard import BASE, ScorecardScale, scorecard
from securevfl.data import preparation as preparations
from securevfl.data.bin_edges import MAX_CODES_AT_AN_END, MIN_BIN_ROWS, find_bin_edges, format_number, shortest_between
from securevfl.data.column_transforms import (
    BinTransform,
    CodeTransform,
    ColumnTransform,
    DateTransform,
    NumericTransform,
    OneHotTransform,
)
from securevfl.data.columns import columns_of
from securevfl.data.preparation import MIN_FEATURE_ROWS, TRANSFORMS, FittedPreparation, Preparation, fit_preparation
from securevfl.data.scaling import Scaling
from securevfl.data.woe import (
    BinIndicators,
    CategoricalWoe,
    NumericWoe,
    Woe,
    WoeTransform,
    apply_class_counts,
    number_bins,
    text_bins,
)
from securevfl.families.state import State
from securevfl.training.model_part import ModelPart
from tests.hard_tables import around, discrete_column

Row = float | str | None
EDGES = (-1.0, 0.0, 2.0, 3.5)
WEIGHTS = (0.3, -0.2, 0.5, 0.1, -0.7, 0.9)


def bin_of(value: float) -> int:
    return sum(value >= edge for edge in EDGES)


def marked(value: float, fill: float) -> tuple[float, float]:
    return (fill, 1.0) if math.isnan(value) else (value, 0.0)


GROUPS = (("Ulm", "ulm"), ("Jena", "(missing)"))
"""Texts that share a category."""
MARKED, UNMARKED = (("-1", -1.0), ("0", 0.0)), (("96", 96.0),)
"""Special codes on two edges of the bins, and one that was too rare for a column of its own."""
CODES = dict((*MARKED, *UNMARKED))


def special(value: float, fill: float) -> tuple[float, float, float]:
    """Return the value, or the replacement of a code, and the 0/1 columns of the two frequent codes."""
    return (fill if value in CODES.values() else value), float(value == -1), float(value == 0)


def date_features(value: float) -> list[float]:
    if math.isnan(value):
        return [math.nan] * 3
    date = datetime.date(1970, 1, 1) + datetime.timedelta(days=math.floor(value))
    return [value, float(date.month), float(date.weekday())]


STEPS: dict[str, tuple[ColumnTransform, Callable[[Any], list[float]]]] = {
    "number": (NumericTransform(column="a"), lambda v: [v]),
    "number filled": (NumericTransform(column="a", fill=2.0, indicator=True), lambda v: [*marked(v, 2.0)]),
    "number clipped": (
        NumericTransform(column="a", low=-1.0, high=3.5, fill=0.0),
        lambda v: [min(max(marked(v, 0.0)[0], -1.0), 3.5)],
    ),
    "number clipped below": (NumericTransform(column="a", low=-1.0), lambda v: [v if math.isnan(v) else max(v, -1.0)]),
    "number clipped above": (NumericTransform(column="a", high=2.0), lambda v: [min(v, 2.0)]),
    "number squashed": (
        NumericTransform(column="a", centre=2.0, spread=0.5, fill=2.0),
        lambda v: [math.asinh((marked(v, 2.0)[0] - 2.0) / 0.5)],
    ),
    "number with codes": (
        NumericTransform(column="a", marked=MARKED, unmarked=UNMARKED, special_fill=1.5),
        lambda v: [*special(v, 1.5)],
    ),
    "number with codes and gaps": (
        NumericTransform(
            column="a", low=-0.5, high=3.0, fill=2.0, indicator=True, marked=MARKED, unmarked=UNMARKED, special_fill=1.5
        ),
        lambda v: [
            min(max(special(marked(v, 2.0)[0], 1.5)[0], -0.5), 3.0),
            *special(v, 1.5)[1:],
            float(math.isnan(v)),
        ],
    ),
    "number with codes, squashed": (
        NumericTransform(column="a", centre=2.0, spread=0.5, marked=MARKED, unmarked=UNMARKED, special_fill=2.0),
        lambda v: [math.asinh((special(v, 2.0)[0] - 2.0) / 0.5), *special(v, 2.0)[1:]],
    ),
    "bins with codes": (
        BinTransform(
            column="a", edges=EDGES, fill=2.0, indicator=True, marked=MARKED, unmarked=UNMARKED, special_fill=-3.0
        ),
        lambda v: [
            *(float(special(marked(v, 2.0)[0], -3.0)[0] >= edge) for edge in EDGES),
            *special(v, 0.0)[1:],
            float(math.isnan(v)),
        ],
    ),
    "number_evidence with codes": (
        NumericWoe(
            column="a",
            edges=EDGES,
            missing=2,
            special=(*MARKED, *UNMARKED),
            special_bins=(5, 6, 2),
            weights=(*WEIGHTS, 1.3),
        ),
        lambda v: [(*WEIGHTS, 1.3)[{-1.0: 5, 0.0: 6, 96.0: 2}.get(v, 2 if math.isnan(v) else bin_of(v))]],
    ),
    "dates": (DateTransform(column="a", parts=("month", "weekday")), date_features),
    "bins": (
        BinTransform(column="a", edges=EDGES),
        lambda v: [math.nan if math.isnan(v) else float(v >= e) for e in EDGES],
    ),
    "bins filled": (
        BinTransform(column="a", edges=EDGES, fill=2.0, indicator=True),
        lambda v: [*(float(marked(v, 2.0)[0] >= edge) for edge in EDGES), marked(v, 2.0)[1]],
    ),
    "number_evidence": (
        NumericWoe(column="a", edges=EDGES, weights=WEIGHTS[:5]),
        lambda v: [math.nan if math.isnan(v) else WEIGHTS[bin_of(v)]],
    ),
    "number_evidence missing apart": (
        NumericWoe(column="a", edges=EDGES, missing=5, weights=WEIGHTS),
        lambda v: [WEIGHTS[5 if math.isnan(v) else bin_of(v)]],
    ),
    "number_evidence missing joined": (
        NumericWoe(column="a", edges=EDGES, missing=2, weights=WEIGHTS[:5]),
        lambda v: [WEIGHTS[2 if math.isnan(v) else bin_of(v)]],
    ),
    "number_evidence one bin": (NumericWoe(column="a", edges=(), missing=0, weights=(0.3,)), lambda v: [0.3]),
    "texts": (
        OneHotTransform(column="a", base="Ulm", categories=("Bonn", "Jena"), other=True),
        lambda v: [float(v == "Bonn"), float(v == "Jena"), float(v not in ("Ulm", "Bonn", "Jena"))],
    ),
    "texts without others": (
        OneHotTransform(column="a", base="Ulm", categories=("Bonn", "Jena")),
        lambda v: [float(v == "Bonn"), float(v == "Jena")],
    ),
    "texts with missing": (
        OneHotTransform(column="a", base="Ulm", categories=("(missing)", "Bonn")),
        lambda v: [float(not v), float(v == "Bonn")],  # an empty text is missing,
    ),
    "codes": (
        CodeTransform(column="a", categories=("Ulm", "Bonn", "Jena")),
        lambda v: [float({"Ulm": 1, "Bonn": 2, "Jena": 3}.get(v, 0))],
    ),
    "texts merged": (
        OneHotTransform(column="a", base="{Ulm, ulm}", categories=("{Jena, (missing)}", "Bonn"), groups=GROUPS),
        lambda v: [float(not v or v == "Jena"), float(v == "Bonn")],
    ),
    "texts merged with others": (
        OneHotTransform(column="a", base="Bonn", categories=("{Ulm, ulm}", "(missing)"), groups=GROUPS[:1], other=True),
        lambda v: [float(v in ("Ulm", "ulm")), float(not v), float(v in ("Jena", "Trier"))],
    ),
    "codes merged": (
        CodeTransform(column="a", categories=("Bonn", "{Ulm, ulm}", "{Jena, (missing)}"), groups=GROUPS),
        lambda v: [float({"Bonn": 1, "Ulm": 2, "ulm": 2, "Jena": 3, "Trier": 0}.get(v or "Jena", 0))],
    ),
    "text_evidence merged": (
        CategoricalWoe(
            column="a", categories=("{Ulm, ulm}", "{Jena, (missing)}"), other=2, groups=GROUPS, weights=WEIGHTS[:3]
        ),
        lambda v: [WEIGHTS[{"Ulm": 0, "ulm": 0, "Jena": 1}.get(v or "Jena", 2)]],
    ),
    "text_evidence": (
        CategoricalWoe(column="a", categories=("Ulm", "Bonn"), other=2, weights=WEIGHTS[:3]),
        lambda v: [WEIGHTS[{"Ulm": 0, "Bonn": 1}.get(v, 2)]],
    ),
    "text_evidence joined": (
        CategoricalWoe(column="a", categories=("Ulm", "Bonn"), other=0, weights=WEIGHTS[:2]),
        lambda v: [WEIGHTS[{"Ulm": 0, "Bonn": 1}.get(v, 0)]],
    ),
}
"""Steps by name, with the features of one value as the documentation of the step states them."""

EXPORTED = NumericTransform, BinTransform, NumericWoe


def values_for(step: ColumnTransform) -> list[Row]:
    if isinstance(step, OneHotTransform | CodeTransform | CategoricalWoe):
        return ["Ulm", "Bonn", "Jena", "Trier", "", None, "ulm"]
    numbers = [*around([*EDGES, -1.0, 2.5, 3.5]).tolist(), -1e9, 1e9, -0.0, 1.0, 96.0]
    if isinstance(step, DateTransform):
        return [0.0, 30.0, 31.0, 59.0, -1.0, 364.0, 365.0, 11016.0, 11016.5, 19722.0]
    allowed = isinstance(step, NumericWoe) and step.missing is not None
    return [*numbers, math.nan] if allowed or getattr(step, "fill", None) is not None else list(numbers)


def table_of(step: ColumnTransform, values: list[Row]) -> Any:
    import pandas as pd

    dates = isinstance(step, DateTransform)
    column = pd.Series(pd.to_datetime(values, unit="D", origin="unix") if dates else values)
    return pd.DataFrame({"a": column, "b": np.arange(len(values)) % 3})


def part_of(step: ColumnTransform) -> ModelPart:
    """Return the part of a party with the columns a, which the step prepares, and b."""
    steps = (step, NumericTransform(column="b"))
    count = len(step.features) + 1
    draw = np.random.default_rng(7)
    mean = draw.normal(size=count)
    mean[-1] = 1.0  # so that the column b contributes exactly 0 in some rows
    return ModelPart(
        name="bank",
        role="active",
        job=vfl.Job(model="logistic", protocol="open", optimizer={"name": "fedbcd", "lr": 0.1}).to_dict(),
        parties=["bank", "shop"],
        preparation=FittedPreparation(["a", "b"], steps),
        scaling=Scaling(mean, draw.uniform(0.5, 2, count)),
        state=State(theta=draw.normal(size=(count + 1, 1))),
        outputs=1,
        classes=np.array([0, 1]),
    )


def test_every_kind_of_step_is_among_them() -> None:
    assert {step.name for step, _ in STEPS.values()} == set(TRANSFORMS)


@pytest.mark.parametrize("name", STEPS)
def test_shapley_values_are_those_of_single_values(name: str, tmp_path: Path) -> None:
    step, features = STEPS[name]
    part, values = part_of(step), values_for(step)
    table = table_of(step, values)
    expected = np.array([[*features(value), row % 3] for row, value in enumerate(values)], np.float64)
    assert len(part.features) == expected.shape[1]
    prepared = part.table(table)
    tolerance = 1e-12 if "squashed" in name else 0.0
    np.testing.assert_allclose(prepared, expected, rtol=tolerance)
    part.save(tmp_path / "bank.json")
    np.testing.assert_array_equal(ModelPart.load(tmp_path / "bank.json").table(table), prepared)
    scaled = (expected - part.scaling.mean) / part.scaling.deviation
    np.testing.assert_allclose(part.rows(table), scaled, rtol=1e-12)
    contributions = scaled * part.theta[:-1, 0]
    by_column = np.column_stack([contributions[:, :-1].sum(axis=1), contributions[:, -1]])
    np.testing.assert_allclose(shapley(part, table)[:, :, 0], by_column, rtol=1e-9, atol=1e-12)
    assert (by_column[:, 1] == 0).any()
    ranked = [sorted(range(2), key=lambda j: (-row[j], j)) for row in by_column]
    assert heaviest(part, part.rows(table), 2).tolist() == ranked
    raising = [["ab"[j] for j in order if row[j] > 0] for order, row in zip(ranked, by_column, strict=True)]
    assert reasons(part, table) == raising
    assert reasons(part, table, most=1, codes={"a": "R1"}) == [
        ["R1" if name == "a" else name for name in names[:1]] for names in raising
    ]
    linear = prepared @ np.ravel(list(part.coefficients().values())) + part.constant()
    np.testing.assert_allclose(linear, contributions.sum(axis=1) + part.theta[-1, 0], rtol=1e-9)


@pytest.mark.parametrize("name", [name for name, (step, _) in STEPS.items() if isinstance(step, EXPORTED)])
@pytest.mark.parametrize("clip", [None, 2.0])
def test_the_export_equals_the_part_on_every_edge(name: str, clip: float | None) -> None:
    runtime = pytest.importorskip("onnxruntime")
    step, _ = STEPS[name]
    part = part_of(step)
    part.scaling = Scaling(part.scaling.mean, part.scaling.deviation, clip)
    table = table_of(step, values_for(step))
    session = runtime.InferenceSession(to_onnx(part), providers=["CPUExecutionProvider"])
    (exported,) = session.run(["part"], {"X": table.to_numpy(np.float64)})
    exact = part.rows(table) @ part.theta[:-1] + part.theta[-1]
    np.testing.assert_allclose(exported, exact, rtol=1e-9, atol=1e-9)


POINTED = [
    name
    for name, (step, _) in STEPS.items()
    if not isinstance(step, DateTransform | CodeTransform) and "squashed" not in name
]


@pytest.mark.parametrize("name", POINTED)
@pytest.mark.parametrize("leads", [True, False])
def test_points_add_up_to_the_score_of_every_edge(name: str, leads: bool) -> None:
    """Somebody with the printed lines adds up the points of each value; the base belongs to the leading party."""
    step, _ = STEPS[name]
    part, scale = part_of(step), ScorecardScale(500, 20, 40)
    part.parties = ["bank", "shop"] if leads else ["shop", "bank"]
    card = scorecard([part], scale)
    base = [line.points for line in card.lines if line.column == BASE]
    assert len(base) == leads
    for row, value in enumerate(values_for(step)):
        points = sum(base) + points_of(card, "a", value) + points_of(card, "b", float(row % 3))
        f = float((part.rows(table_of(step, values_for(step)))[row] @ part.theta[:-1, 0]).sum())
        expected = -scale.factor * f
        if leads:
            expected += 500 - scale.factor * (part.theta[-1, 0] + math.log(20))
        assert points == pytest.approx(expected, rel=1e-6, abs=1e-6), value


def points_of(card: Any, column: str, value: Row) -> float:
    points = {line.bin: line.points for line in card.lines if line.column == column}
    for name in [name for name in points if name.startswith("{")]:
        points |= dict.fromkeys(name[1:-1].split(", "), points[name])
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return points.get("(missing)", points.get("(other)", math.nan))
    if isinstance(value, str):
        return points.get(value if value else "(missing)", points.get("(other)", math.nan))
    if f"{value + 0.0:g}" in points and value in CODES.values():
        return points[f"{value + 0.0:g}"]
    if any(name.startswith("[") for name in points):
        (name,) = [
            name
            for name in points
            if name.startswith("[") and float(name[1:-1].split(", ")[0]) <= value < float(name[1:-1].split(", ")[1])
        ]
        return points[name]
    (unit,) = [name for name in points if name.startswith("each unit")]
    words = unit.split()
    low = float(words[words.index("from") + 1]) if "from" in words else -math.inf
    high = float(words[words.index("to") + 1]) if "to" in words else math.inf
    return points["at 0"] + points[unit] * min(max(value, low), high)


def test_a_score_of_so_many_points_has_the_odds_that_they_state() -> None:
    scale = ScorecardScale.read("600:50:20")
    odds = scale.of(np.array([-math.log(50), -math.log(100), -math.log(25)]))
    assert odds == pytest.approx([600, 620, 580])


# --- fitting


@pytest.mark.parametrize("bins", [2, 3, 4, 10])
@pytest.mark.parametrize("seed", range(3))
def test_bins_of_discrete_columns_are_full_with_round_edges(bins: int, seed: int) -> None:
    generator = np.random.default_rng([bins, seed])
    values = discrete_column(400, generator, gaps=0.0)
    values[:30] = 96.0
    edges = find_bin_edges(values, bins)
    assert edges == sorted(set(edges))
    counts = [int(((values >= low) & (values < high)).sum()) for low, high in pairwise([-np.inf, *edges, np.inf])]
    assert min(counts) >= MIN_BIN_ROWS
    distinct = np.unique(values)
    for edge in edges:  # an edge separates two neighbouring values, and is the shortest number that does
        below, above = distinct[distinct < edge].max(), distinct[distinct >= edge].min()
        assert below < edge <= above
    assert any(distinct[distinct >= edge].min() == 96.0 for edge in edges)  # the code is a bin by itself
    if bins >= 10:
        frequent = [value for value in distinct if (values == value).sum() >= MIN_BIN_ROWS]
        assert (
            sum(any(distinct[distinct >= edge].min() == value for edge in edges) for value in frequent)
            >= len(frequent) - 1
        )


@pytest.mark.parametrize("rows", [MIN_BIN_ROWS - 1, MIN_BIN_ROWS, MIN_BIN_ROWS + 1])
def test_a_bin_and_a_code_need_exactly_the_minimum_of_rows(rows: int) -> None:
    ordinary = np.repeat([0.0, 1.0, 2.0], 100)
    enough = rows >= MIN_BIN_ROWS
    for value in (5.0, 96.0, -96.0, -1.0):
        edges = find_bin_edges(np.append(ordinary, np.full(rows, value)), 10)
        parts = np.digitize([value, 0.0 if value < 0 else 2.0], edges)
        assert (parts[0] != parts[1]) == enough, value
    codes = np.repeat(100.0 + np.arange(MAX_CODES_AT_AN_END), rows)
    edges = find_bin_edges(np.append(ordinary, codes), 4)
    assert len(set(np.digitize(codes, edges))) == (
        MAX_CODES_AT_AN_END if enough else len(set(np.digitize(codes, edges)))
    )


@pytest.mark.parametrize(("value", "apart"), [(200.0, False), (370.0, False), (385.0, True), (-200.0, True)])
def test_only_codes_far_from_other_values_get_a_separate_bin(value: float, apart: bool) -> None:
    """The last ordinary value is 199 and lies about 90 from the median, so a code begins near 199 + 2 * 90."""
    ordinary = np.arange(200.0)
    edges = find_bin_edges(np.append(ordinary, np.full(MIN_BIN_ROWS, value)), 4)
    code, neighbour = np.digitize([value, 199.0 if value > 0 else 0.0], edges)
    assert (code != neighbour) == apart


def test_quantile_bins_of_distinct_values_have_equal_sizes() -> None:
    for rows, bins in ((200, 4), (201, 4), (199, 4), (1000, 10)):
        values = np.random.default_rng(rows).permutation(rows).astype(float)
        counts = np.bincount(np.digitize(values, find_bin_edges(values, bins)))
        assert len(counts) == bins
        assert counts.max() - counts.min() <= bins


def test_the_shortest_number_between_two_values() -> None:
    for below, value, edge in (
        (1.0, 2.0, 2.0),
        (0.123456, 0.123499, 0.12349),
        (12.34, 12.345678, 12.345),
        (0.0, 0.1, 0.1),
    ):
        assert shortest_between(below, value) == edge, (below, value)
    for value in (0.1, 1e-7, 123456.789, -3.7):
        below = math.nextafter(value, -math.inf)
        assert below < shortest_between(below, value) <= value
        assert float(format_number(value)) == value


@pytest.mark.parametrize("rows", [20, 50])
def test_evidence_bins_have_at_least_the_rows_of_the_option(rows: int) -> None:
    options = Woe(bins=4, rows=rows)
    for extra in (-1, 0, 1):
        values = np.repeat([0.0, 1.0, 2.0], [rows + extra, 2 * rows, rows + extra])
        fitted = number_bins("a", values, False, options)
        assert fitted.edges == ((1.0, 2.0) if extra >= 0 else ()) or extra < 0
        counts = np.bincount(fitted.bin_numbers(values, ()).astype(int), minlength=fitted.bins)
        assert counts.min() >= rows
        assert len(counts) == (3 if extra >= 0 else fitted.bins) <= options.bins
        gaps = np.append(np.repeat([0.0, 1.0], 100), np.full(rows + extra, np.nan))
        joined = number_bins("a", gaps, True, options)
        assert joined.missing == (2 if extra >= 0 else int(np.searchsorted([1.0], 0.5, side="right")))
        texts = text_bins("a", {"x": 100, "y": rows + extra, "z": rows + extra}, options)
        assert texts.categories == (("x", "y", "z") if extra >= 0 else ("x",))
        assert texts.other == (0 if extra >= 0 else 1)
        rare = text_bins("a", {"x": 100, "y": rows + extra}, Woe(bins=2, rows=rows))
        assert rare.categories == (("x", "y") if extra >= 0 else ("x",))
        assert rare.other == 0
    many = text_bins("a", {"e": 60, "d": 60, "c": 90, "b": 70, "a": 60}, Woe(bins=3, rows=50))
    assert many.categories == ("c", "b", "a")  # ties by name
    assert many.other == 3


def test_evidence_is_its_formula_with_one_rare_class() -> None:
    """The two classes have very different sizes, so that exchanged or missing terms of the formula differ."""
    positives, rows = np.array([3, 0, 7]), np.array([400, 100, 500])
    s = 0.5
    fitted = CategoricalWoe(column="a", categories=("x", "y", "z"), other=0).with_counts(
        positives, rows, Woe(smoothing=s)
    )
    P, N = 10, 990
    iv = 0.0
    for p, count, weight in zip(positives, rows, fitted.weights, strict=True):
        n = count - p
        assert weight == pytest.approx(math.log((p + s) / (P + 2 * s)) - math.log((n + s) / (N + 2 * s)))
        iv += (p / P - n / N) * weight
    assert fitted.iv == pytest.approx(iv)
    at = CategoricalWoe(column="a", categories=("x", "y", "z"), other=0)
    assert any(at.with_counts(positives, rows, Woe(iv=fitted.iv)).weights)  # a column exactly at the minimum is used
    assert not any(at.with_counts(positives, rows, Woe(iv=math.nextafter(fitted.iv, 9))).weights)


def test_counts_of_several_columns_belong_to_their_bins() -> None:
    """Columns with fewer bins than slots, and the requested counts from which all others follow."""
    generator = np.random.default_rng(5)
    options = Woe(bins=3, rows=20)
    steps: list[WoeTransform] = [
        NumericWoe(column="a", edges=(0.5,)),
        NumericWoe(column="b", edges=(0.5, 1.5), missing=3),
        CategoricalWoe(column="c", categories=("x",), other=1),
    ]
    numbers = np.column_stack([generator.integers(0, step.bins, 300).astype(float) for step in steps])
    positive = generator.random(300) < 0.05
    bins = BinIndicators(numbers, options.slots)
    dense = np.zeros((300, 3 * options.slots))
    for row, line in enumerate(numbers):
        for j, number in enumerate(line):
            dense[row, j * options.slots + int(number)] = 1
    np.testing.assert_array_equal(bins[slice(0, 300)], dense)
    np.testing.assert_array_equal(bins[slice(7, 9)], dense[7:9])
    assert bins.rows.tolist() == dense.sum(axis=0).tolist()
    assert bins.positives(positive).tolist() == dense[positive].sum(axis=0).tolist()
    requested = bins.requested
    assert requested.shape == (300, options.counts(3))
    matrix = requested[slice(0, 300)]
    assert requested.rows.tolist() == matrix.sum(axis=0).tolist()
    counts = matrix[positive].sum(axis=0).astype(int)
    assert requested.expand(counts).tolist() == bins.positives(positive).tolist()
    weighted = apply_class_counts(steps, bins, bins.positives(positive), options)
    for j, (step, fitted) in enumerate(zip(steps, weighted, strict=True)):
        of_step = [int((positive & (numbers[:, j] == k)).sum()) for k in range(step.bins)]
        of_rows = [int((numbers[:, j] == k).sum()) for k in range(step.bins)]
        assert fitted == step.with_counts(np.array(of_step), np.array(of_rows), options)


def fitted(column: Any, train: Any = slice(None), **options: Any) -> FittedPreparation:
    import pandas as pd

    table = columns_of("bank", pd.DataFrame({"a": column, "b": np.arange(len(column)) % 3}), None)
    return fit_preparation("bank", table, np.arange(len(column))[train], Preparation(**options))


@pytest.mark.parametrize("few", [MIN_FEATURE_ROWS - 1, MIN_FEATURE_ROWS, MIN_FEATURE_ROWS + 1])
def test_columns_of_gaps_and_rare_texts_need_the_minimum_rows(few: int) -> None:
    rows, enough = 60, few >= MIN_FEATURE_ROWS
    numbers = np.arange(rows, dtype=float)
    numbers[:few] = np.nan
    (step, _) = fitted(numbers).steps
    assert (step.indicator, step.fill) == (enough, np.median(numbers[few:]))
    texts = np.array(["x"] * (rows - few) + ["y"] * few)
    (step, _) = fitted(texts).steps
    assert (step.base, step.categories, step.other) == ("x", ("y",) if enough else (), False)
    texts = np.array(["x"] * (rows - few) + [f"rare {k}" for k in range(few)])
    (step, _) = fitted(texts).steps
    assert (step.base, step.categories, step.other) == ("x", (), enough)
    (step, _) = fitted(texts, texts="codes").steps
    assert step.categories == ("x",)
    ties = np.array(["b"] * 20 + ["c"] * 20 + ["a"] * 20)
    (step, _) = fitted(ties).steps
    assert (step.base, step.categories) == ("a", ("b", "c"))
    shared = np.array(["x"] * 900 + ["y"] * 10 + ["z"] * 9 + ["x"] * 81)
    (step, _) = fitted(shared, rare=0.01).steps
    assert (step.categories, step.other) == (("y",), True)


def test_clipping_and_squashing_follow_training_quantiles() -> None:
    values = np.append(np.arange(101.0), [1e6] * 20)
    train = slice(0, 101)
    (step, _) = fitted(values, train, clip=0.05, tails="keep").steps
    assert (step.low, step.high) == (5.0, 95.0)
    assert fitted(values, train).steps == ()  # held-out rows decide nothing
    with pytest.warns(vfl.errors.DataNotice):
        (step, _) = fitted(np.append(np.arange(100.0), 1e6)).steps
    low, centre, high = np.quantile(np.append(np.arange(100.0), 1e6), [0.25, 0.5, 0.75])
    assert (step.centre, step.spread) == (centre, (high - low) / preparations.QUARTILES)
    spread = np.tile([0.0, 1.0, 2.0, 3.0, 4.0], 20)
    for distance, squashed in ((preparations.MIN_TAIL_DISTANCE, False), (preparations.MIN_TAIL_DISTANCE + 0.01, True)):
        column = np.append(spread, [2.0 + 2.0 * distance])
        table = columns_of("bank", column[:, None], ["a"])
        heavy = preparations._heavy_tailed_columns(table, np.arange(len(column)), Preparation())
        assert bool(heavy) == squashed
    constant = np.append(np.zeros(99), 1.0)
    (step, _) = fitted(constant, clip=0.02).steps
    assert (step.low, step.high) == (None, None)  # clipping would leave a constant

"""Bins that a party declares: over edges and their neighbours, jobs, readers, and families; a loop is the reference."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from builders import raises_code, write_table
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.credit.bin_table import bin_table
from securevfl.credit.onnx_export import to_onnx
from securevfl.credit.scorecard import ScorecardScale, scorecard
from securevfl.data.column_types import ColumnType, read_types
from securevfl.data.columns import columns_of
from securevfl.data.declared_bins import MIN_DECLARED_ROWS, declared_text_woe
from securevfl.data.preparation import Preparation, fit_preparation
from securevfl.data.validation import MISSING_TEXTS
from securevfl.data.woe import Woe
from securevfl.errors import ConfigError, DataNotice, TableError
from securevfl.protocols.sums.direct_sum import Summand
from securevfl.runtime.abort import Abort
from securevfl.runtime.codec import encode_message
from securevfl.runtime.observer import Event
from securevfl.training.model_part import ModelPart
from tests.disclosure.test_account import EXAMPLES, example
from tests.hard_tables import around

N = 1200
EDGES = (1000.25, 2000.5, 5000.75)
SPECIAL = ("-999", "2000.5")
"""Codes, the second one on an edge."""
GROUPS = [["Ulm", "ulm"], ["Bonn", "Jena"]]
RNG = np.random.default_rng(8)
HIDDEN = RNG.normal(size=N)
INCOME = np.where(RNG.random(N) < 0.1, -999.0, np.round(2500 + 1500 * HIDDEN + 700 * RNG.normal(size=N), 1))
INCOME[RNG.random(N) < 0.1] = 2000.5
INCOME[RNG.random(N) < 0.1] = np.nan
TOWN = RNG.choice(["Ulm", "ulm", "Bonn", "Jena", "Trier", "Kiel", ""], N, p=[0.2, 0.1, 0.2, 0.2, 0.1, 0.1, 0.1])
VISITS = HIDDEN + RNG.normal(size=N)
LATE = (HIDDEN + RNG.normal(size=N) + (TOWN == "Bonn") < -0.5).astype(int)
DECLARED = {"income": {"type": "number", "bins": EDGES, "special": SPECIAL}, "town": {"bins": GROUPS}}
PREPARATIONS = {"steps": {}, "with bins": {"bins": 4}, "with woe": {"woe": {"bins": 8, "rows": 40}}}
NEW_INCOME = [*around([*EDGES, -999.0]), -np.inf, np.inf, 0.0, -0.0, np.nan]
NEW_TOWNS = ["Ulm", "ulm", "Bonn", "Jena", "Trier", "Kiel", "Paris", "BONN", "", None]


def bank_and_shop(columns: dict[str, Any] = DECLARED) -> list[vfl.Party]:
    bank = {"income": INCOME, "town": TOWN.astype(object)}
    return [
        vfl.Party("bank", bank, LATE, ids=range(N), columns=columns),
        vfl.Party("shop", {"visits": VISITS}, ids=range(N)),
    ]


def logistic_job(prepare: dict[str, Any]) -> vfl.Job:
    accepted = ("columns", "rank", "label_auc", "fresh_equations")
    return vfl.Job(model=vfl.Logistic(l2=1e-4), protocol="open", batch_size="all", epochs=8, prepare=prepare,
                   accepts=accepted)  # fmt: skip


@pytest.fixture(scope="module", params=PREPARATIONS)
def run(request: pytest.FixtureRequest) -> vfl.Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        return vfl.simulate(logistic_job(PREPARATIONS[request.param]), bank_and_shop())


def bin_of_number(value: float) -> str:
    """Name the bin of a value, as somebody with the list of edges does by hand."""
    if math.isnan(value):
        return "(missing)"
    for code in SPECIAL:
        if value == float(code):
            return code
    low = "-inf"
    for edge in EDGES:
        if value < edge:
            return f"[{low}, {edge!r})"
        low = repr(edge)
    return f"[{low}, inf)"


def bin_of_town(town: str | None) -> str:
    if not town:
        return "(missing)"
    for group in GROUPS:
        for text in group:
            if text == town:
                return "{" + ", ".join(group) + "}"
    return "(other)"


def test_points_by_hand_are_the_log_odds_of_the_model(run: vfl.Run, tmp_path: Path) -> None:
    """The scorecard, the stored part and the model agree on every edge, code, gap and text, to 1e-9."""
    scale = ScorecardScale(600, 50, 20)
    card = scorecard(run.parts, scale)
    points = {(line.column, line.bin): line.points for line in card.lines}
    assert len(points) == len(card.lines)
    assert {name for column, name in points if column == "income"} == {bin_of_number(value) for value in NEW_INCOME}
    rows = [(income, town) for income in NEW_INCOME for town in NEW_TOWNS]
    incomes, towns = [income for income, _ in rows], [town for _, town in rows]
    visits = np.linspace(-1, 1, len(rows))
    if run.job.prepare.woe or run.job.prepare.bins:  # one value, so that its points are those of one bin
        visits[:] = 0.0
    f = run.decision({"bank": {"income": incomes, "town": towns}, "shop": {"visits": visits}})[:, 0]
    for row, (income, town) in enumerate(rows):
        total = points["(base)", ""] + points["income", bin_of_number(income)] + points["town", bin_of_town(town)]
        if ("visits", "at 0") in points:
            (unit,) = [value for (column, name), value in points.items() if name.startswith("each unit")]
            total += points["visits", "at 0"] + visits[row] * unit
        else:
            (name,) = [
                name for column, name in points if column == "visits" and float(name[1:].split(",")[0]) <= 0
                and float(name[:-1].split(",")[1]) > 0
            ]  # fmt: skip
            total += points["visits", name]
        by_hand = (scale.points - total) / scale.factor - math.log(scale.odds)
        assert by_hand == pytest.approx(f[row], abs=1e-9), (income, town)
    run.parts["bank"].save(tmp_path / "bank.json")
    stored = ModelPart.load(tmp_path / "bank.json")
    columns = {"income": incomes, "town": towns}
    np.testing.assert_array_equal(stored.rows(columns), run.parts["bank"].rows(columns))
    assert stored.preparation.types["income"].edges == EDGES
    assert stored.preparation.types["town"].groups == tuple(map(tuple, GROUPS))


@pytest.mark.parametrize("prepare", PREPARATIONS)
def test_the_export_is_the_part_on_every_edge(prepare: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    bank, shop = bank_and_shop({"income": DECLARED["income"]})
    bank = bank.without(["town"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        part = vfl.simulate(logistic_job(PREPARATIONS[prepare]), [bank, shop]).parts["bank"]
    d = len(part.features)
    f = part.rows({"income": NEW_INCOME}) @ part.theta[:d] + part.theta[d:].sum(axis=0)
    session = runtime.InferenceSession(to_onnx(part), providers=["CPUExecutionProvider"])
    (exported,) = session.run(["part"], {"X": np.array(NEW_INCOME)[:, None]})
    np.testing.assert_allclose(exported, f, rtol=0, atol=1e-9)


def test_job_file_option_and_python_declare_the_same(tmp_path: Path) -> None:
    """In TOML under columns, in a file for --columns, and as an argument of Party; other keys make no difference."""
    for party in bank_and_shop():
        texts = {"town": TOWN} if party.name == "bank" else {}
        labels = {"y": LATE} if party.name == "bank" else {}
        numbers = {"income": INCOME} if party.name == "bank" else {"visits": VISITS}
        written = {
            name: ["" if value != value else repr(value) for value in numbers[name].tolist()] for name in numbers
        }
        write_table(tmp_path / f"{party.name}.csv", {"id": np.arange(N), **written, **texts, **labels})
    declaration = (
        'income = { type = "number", bins = [1000.25, 2000.5, 5000.75], special = [-999, 2000.5] }\n'
        'town = { bins = [["Ulm", "ulm"], ["Bonn", "Jena"]] }\n'
    )
    keys = 'model = { name = "logistic", l2 = 0.0001 }\nprotocol = "open"\nbatch_size = "all"\nepochs = 8\n'
    keys += 'accepts = ["columns", "rank", "label_auc", "fresh_equations"]\n'
    (tmp_path / "plain.toml").write_text(keys)
    (tmp_path / "declared.toml").write_text(f"{keys}[columns.bank]\n{declaration}")
    (tmp_path / "types.toml").write_text(declaration)
    tables = [f"--data={name}={tmp_path / name}.csv" for name in ("bank", "shop")]
    parts = []
    for job, option in (("declared", []), ("plain", [f"--columns=bank={tmp_path / 'types.toml'}"])):
        words = ["train", str(tmp_path / f"{job}.toml"), *tables, *option, "--save", str(tmp_path / job)]
        result = CliRunner().invoke(app, [*words, "--ledger", str(tmp_path / f"{job}.ledgers")])
        assert result.exit_code == 0, result.output
        parts.append(ModelPart.load(tmp_path / job / "bank.json"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        parts.append(vfl.simulate(logistic_job({}), bank_and_shop()).parts["bank"])
    assert parts[0].preparation.plain() == parts[1].preparation.plain() == parts[2].preparation.plain()
    for part in parts[1:]:
        np.testing.assert_allclose(part.theta, parts[0].theta, atol=1e-12)


@pytest.mark.parametrize(
    ("keys", "option"),
    [
        ({"bins": [2, 1]}, "bins"),
        ({"bins": [1, 1]}, "bins"),
        ({"bins": [1, math.nan]}, "bins"),
        ({"bins": [1, math.inf]}, "bins"),
        ({"bins": [1, "2"]}, "bins"),
        ({"bins": [True, 2]}, "bins"),
        ({"bins": 5}, "bins"),
        ({"bins": [["a"], []]}, "bins"),
        ({"bins": [["a"], ["a", "b"]]}, "bins"),
        ({"bins": [["a", "b"], ["{a, b}"]]}, "bins"),
        ({"bins": [1, ["a"]]}, "bins"),
        ({"bins": list(range(1001))}, "bins"),
        ({"type": "category", "bins": [1, 2]}, "bins"),
        ({"type": "date", "bins": [1, 2]}, "bins"),
        ({"type": "number", "bins": [["a"]]}, "bins"),
    ],
)
def test_declarations_that_cannot_be_used_are_refused(keys: dict[str, Any], option: str) -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option=option):
        ColumnType(**keys)
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="columns.c"):
        read_types({"c": keys})


def test_bins_belong_to_one_column_of_a_fitting_type() -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="columns.*"):
        read_types({"*": {"bins": [1]}})
    for values, bins in ((["a", "b"], [1.0]), ([1.0, 2.0], [["a"]]), (np.array(["2020-01-01"] * 2, "M8[D]"), [1.0])):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataNotice)
            with raises_code(TableError, "SVFL-TABLE-TYPE", column="c"):
                columns_of("bank", {"c": values, "n": [1, 2]}, declared=read_types({"c": {"bins": bins}}))


@pytest.mark.parametrize(
    "prepare", [Preparation(), Preparation(woe=Woe(rows=40)), Preparation(woe=Woe(bins=2, rows=20))]
)
@pytest.mark.parametrize("keys", [{"bins": [1000.25, 1000.5, 5000.75]}, {"bins": [1000.25, 9e9]}])
def test_bins_without_rows_are_refused_without_their_edges(prepare: Preparation, keys: dict[str, Any]) -> None:
    declared = read_types({"income": {"type": "number", **keys}})
    columns = columns_of("bank", {"income": INCOME, "n": HIDDEN}, declared=declared)
    with raises_code(TableError, "SVFL-TABLE-BINS", party="bank", column="income") as caught:
        fit_preparation("bank", columns, np.arange(N), prepare)
    texts = f"{caught.value} {caught.value.fields}"
    assert not any(str(edge) in texts for edge in (*keys["bins"], 1000, 9000000000))
    with raises_code(TableError, "SVFL-TABLE-BINS", column="town"):
        groups = read_types({"town": {"bins": [["Ulm"], ["Paris"]]}})
        fit_preparation("bank", columns_of("bank", {"town": TOWN.astype(object), "n": HIDDEN}, declared=groups),
                        np.arange(N), prepare)  # fmt: skip


@pytest.mark.parametrize("small", range(4))
@pytest.mark.parametrize(
    ("prepare", "fewest"),
    [
        (Preparation(), MIN_DECLARED_ROWS),
        (Preparation(bins=4), MIN_DECLARED_ROWS),
        (Preparation(woe=Woe(rows=20)), 20),
    ],
)
def test_a_bin_of_exactly_the_fewest_rows_is_accepted(prepare: Preparation, fewest: int, small: int) -> None:
    """Every row is at a lower edge, or just below the first one; a bin of one row fewer is refused."""
    at_edges, texts = [np.nextafter(1.0, -np.inf), 1.0, 2.0, 3.0], ["a", "b", "c", "d"]
    declared = read_types({"x": {"bins": [1, 2, 3]}, "t": {"bins": [[text] for text in texts]}})
    for rows in (fewest, fewest - 1):
        counts = [2 * fewest + 3] * 4
        counts[small] = rows
        for column, values in (("x", at_edges), ("t", np.array(texts, object))):
            columns = columns_of("bank", {column: np.repeat(values, counts)}, declared={column: declared[column]})
            if rows == fewest:
                assert fit_preparation("bank", columns, np.arange(sum(counts)), prepare).steps
                continue
            with raises_code(TableError, "SVFL-TABLE-BINS", party="bank", column=column):
                fit_preparation("bank", columns, np.arange(sum(counts)), prepare)


def test_more_bins_than_the_job_counts_are_refused() -> None:
    declared = read_types({"income": {"bins": [1000, 2000, 3000], "special": ["-999"]}})
    columns = columns_of("bank", {"income": INCOME, "n": HIDDEN}, declared=declared)
    with raises_code(TableError, "SVFL-TABLE-BINS", column="income"):
        fit_preparation("bank", columns, np.arange(N), Preparation(woe=Woe(bins=4, rows=20)))
    step = fit_preparation("bank", columns, np.arange(N), Preparation(woe=Woe(bins=5, rows=20))).steps[0]
    assert len(set(step.apply(np.array([500.0, 1500.0, 2500.0, 9999.0, -999.0, np.nan]), ())[:, 0])) == 6


def test_a_rare_code_is_reported_and_missing_texts_can_be_merged() -> None:
    values = INCOME.copy()
    values[:3] = -1.0
    declared = read_types(
        {"income": {"bins": [2000], "special": ["-1"]}, "town": {"bins": [["Ulm", "(missing)"], ["Bonn"]]}}
    )
    frame = {"income": values, "town": TOWN.astype(object)}
    columns = columns_of("bank", frame, declared=declared)
    with pytest.warns(DataNotice) as notices:
        prepared = fit_preparation("bank", columns, np.arange(N), Preparation(woe=Woe(rows=40)))
    assert any("1 special codes of column 'income'" in str(notice.message) for notice in notices)
    town = prepared.steps[1]
    by_text = town.apply(np.array([0.0, 1.0, np.nan]), ("Bonn", "Ulm"))[:, 0]
    assert by_text[1] == by_text[2] != by_text[0]


def test_other_bins_are_another_table_for_checkpoints() -> None:
    """A checkpoint, or precomputed material, of other edges must not be used, though the values are the same."""
    digests = {
        vfl.Party("bank", {"c": HIDDEN, "n": VISITS}, ids=range(N), columns={"c": keys}).digest
        for keys in ({}, {"bins": [0.0]}, {"bins": [0.5]}, {"special": ["0"]})
    }
    assert len(digests) == 4
    plain = vfl.Party("bank", {"c": HIDDEN, "n": VISITS}, ids=range(N))
    assert plain.digest == vfl.Party("bank", {"c": HIDDEN, "n": VISITS}, ids=range(N), columns={"c": "number"}).digest


class Eavesdropper:
    """Collects every message, as it is encoded for the peer."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def __call__(self, event: Event) -> None:
        if event.direction == "send":
            self.messages.append(encode_message(event.message))


SECRET_EDGE = 0.123456789


def holds_the_edge(message: bytes) -> bool:
    """Whether bytes contain the edge, as text or as a number of four or eight bytes."""
    numbers = [np.array(SECRET_EDGE, kind).tobytes() for kind in ("<f8", ">f8", "<f4", ">f4")]
    return any(written in message for written in (repr(SECRET_EDGE).encode(), *numbers))


def with_bins(party: vfl.Party) -> vfl.Party:
    """Return the party with an edge of its first column; a helper without columns as it is."""
    if not party.columns:
        return party
    frame = dict(zip(party.columns, party.X.T, strict=True))
    declared = {party.columns[0]: {"bins": [SECRET_EDGE]}}
    return vfl.Party(party.name, frame, party.y, ids=np.arange(len(party)), columns=declared)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_no_message_of_any_family_contains_an_edge(name: str) -> None:
    job, members = example(name)
    heard = Eavesdropper()
    run = vfl.simulate(job, [with_bins(party) for party in members], observe=heard)
    parts = [part for part in run.parts.values() if part.columns]
    assert all(part.preparation.types[part.columns[0]].edges == (SECRET_EDGE,) for part in parts)
    assert heard.messages
    assert not any(map(holds_the_edge, heard.messages))
    assert holds_the_edge(encode_message(Summand(np.array([[1.0, SECRET_EDGE]]))))  # it would be found


def test_an_error_about_bins_reaches_a_peer_as_a_reason_alone() -> None:
    heard = Eavesdropper()
    bank, shop = bank_and_shop({"income": {"bins": [1000.25, 9e9]}})
    with raises_code(TableError, "SVFL-TABLE-BINS"):
        vfl.simulate(logistic_job({}), [bank, shop], observe=heard)
    assert not any(b"9e+09" in message or b"1000.25" in message for message in heard.messages)
    error = TableError("bins 1000.25", code="SVFL-TABLE-BINS", column="income")
    assert encode_message(Abort.of(error, ["bank"])) == encode_message(
        Abort.of(TableError("", code="SVFL-TABLE-TYPE"), [])
    )


def test_bins_are_read_alike_from_disk_and_by_every_frame(tmp_path: Path) -> None:
    declared = read_types({"income": {"bins": EDGES, "special": SPECIAL}})
    frames: list[Any] = [{"income": INCOME, "n": HIDDEN}, pl.DataFrame({"income": INCOME, "n": HIDDEN})]
    steps = [
        fit_preparation("bank", columns_of("bank", frame, declared=declared), np.arange(N), Preparation()).plain()
        for frame in frames
    ]
    assert steps[0] == steps[1]
    assert steps[0][0]["edges"] == list(EDGES)


def notices_of(frame: dict[str, Any], declared: dict[str, Any], options: Preparation) -> list[str]:
    """Return the notices of a preparation that is fitted to all rows."""
    columns = columns_of("bank", frame, declared=read_types(declared))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit_preparation("bank", columns, np.arange(len(columns.X)), options)
    return [str(item.message) for item in caught]


@pytest.mark.parametrize("kind", ["woe", "0/1 columns"])
def test_texts_and_gaps_that_share_a_bin_are_reported(kind: str) -> None:
    options = Preparation(woe=Woe(rows=40)) if kind == "woe" else Preparation()
    few = 30 if kind == "woe" else 3
    town = np.array(["Ulm"] * 300 + ["Bonn"] * 300, object)
    declared = {"town": {"type": "category", "bins": [["Ulm"], ["Bonn"]]}}
    assert not notices_of({"town": town}, declared, options)
    for other in ("Kiel", ""):
        with_others = town.copy()
        with_others[:few] = other
        (notice,) = notices_of({"town": with_others}, declared, options)
        assert f"the {few} rows of column 'town'" in notice
        assert "share a bin with the most frequent bin" in notice
    with_both = town.copy()
    with_both[:50], with_both[50:52] = "Kiel", ""
    (notice,) = notices_of({"town": with_both}, declared, options)
    assert "the 2 missing texts of column 'town' share a bin with the texts outside the declared bins" in notice
    if kind == "woe":
        income = np.append(np.full(30, np.nan), np.arange(570.0))
        (notice,) = notices_of({"income": income}, {"income": {"bins": [200]}}, options)
        assert "the 30 missing values of column 'income' share a bin with the median" in notice


@pytest.mark.parametrize("rows", [(300, 200, 100), (100, 200, 300), (150, 300, 150), (200, 200, 200)])
@pytest.mark.parametrize("few", [1, 39, 40, 41])
def test_rare_other_texts_join_the_most_frequent_bin(rows: tuple[int, int, int], few: int) -> None:
    """With fewer than 40 rows they join it, whatever its place in the declaration; otherwise they are a bin."""
    groups = (("Ulm",), ("Bonn",), ("Kiel",))
    counts = dict(zip(("Ulm", "Bonn", "Kiel"), rows, strict=True)) | {"Paris": few}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataNotice)
        bins = declared_text_woe("bank", "town", counts, groups, Woe(rows=40))
    assert bins.other == (3 if few >= 40 else rows.index(max(rows)))


@pytest.mark.parametrize("kind", ["woe", "0/1 columns", "codes"])
def test_misspelled_texts_of_declared_bins_are_reported(kind: str) -> None:
    options = {"woe": Preparation(woe=Woe(rows=40)), "codes": Preparation(texts="codes")}.get(kind, Preparation())
    town = np.array(["Ulm"] * 300 + ["Bonn"] * 200 + ["Kiel"] * 100, object)
    for wrong, similar in (("bonn", True), ("Bon", True), (" Bonn", True), ("Paris", False)):
        declared = {"town": {"type": "category", "bins": [["Ulm", wrong], ["Kiel"]]}}
        (notice,) = notices_of({"town": town}, declared, options)
        assert "1 of 3 texts in the declared bins of column 'town' occur in no row (text 2 of bin 1)" in notice
        assert ("1 of them are similar" in notice) == similar
        party = vfl.Party("bank", {"town": town}, ids=range(600), columns=declared)
        noted = bin_table(party, "town").bins[0].note
        assert noted == f"no row has {wrong!r}" + ("; is it 'Bonn'?" if similar else "")


@pytest.mark.parametrize("text", sorted(MISSING_TEXTS))
def test_texts_that_mean_missing_are_no_texts_of_a_bin(text: str, tmp_path: Path) -> None:
    """No reader lets such a text through, so the bin would have no rows; the message says what to write instead."""
    for written in (text, f" {text} "):
        with raises_code(ConfigError, "SVFL-JOB-OPTION", option="columns.town") as caught:
            read_types({"town": {"bins": [["Ulm"], ["Bonn", written]]}})
        assert '"(missing)"' in str(caught.value)
    towns = [text, "Ulm", "Ulm", "Bonn"] * 50
    path = write_table(tmp_path / "t.csv", {"id": range(200), "town": towns, "y": [0, 1] * 100})
    types = tmp_path / "types.toml"
    types.write_text('town = { bins = [["Ulm"], ["(missing)"]] }\n')
    done = CliRunner().invoke(app, ["bins", "--data", str(path), "--column", "town", "--columns", str(types)])
    assert done.exit_code == 0, done.output
    assert re.search(r"\(missing\)\W+50\b", done.stdout)

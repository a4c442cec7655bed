"""The bins of a column that `bins` lists: against a loop, the model's weights, and every way to merge them."""

from __future__ import annotations

import itertools
import json
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import raises_code, write_table
from scipy import special
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.credit.bin_table import BinTable, bin_table
from securevfl.credit.monotone_bins import monotone_edges
from securevfl.data.column_types import read_types
from securevfl.data.woe import NumericWoe
from securevfl.errors import ConfigError, TableError

N = 900
RNG = np.random.default_rng(21)
HIDDEN = RNG.normal(size=N)
INCOME = np.where(RNG.random(N) < 0.1, -1.0, np.round(2000 + 900 * HIDDEN + 500 * RNG.normal(size=N)))
INCOME[:30] = np.nan
TOWN = np.where(RNG.random(N) < 0.05, "", RNG.choice(["Ulm", "Bonn", "Jena", "Kiel"], N, p=[0.4, 0.3, 0.2, 0.1]))
LATE = np.where(HIDDEN + 0.7 * RNG.normal(size=N) < -0.7, "yes", "no")


def bank(labels: Any = LATE, **columns: Any) -> vfl.Party:
    frame = {"income": INCOME, "town": TOWN.astype(object), "day": np.arange(N).astype("M8[D]")}
    declared = {"income": {"special": ["-1"]}, **columns}
    return vfl.Party("bank", frame, labels, ids=range(N), columns=declared)


def names_of(listed: BinTable) -> list[str]:
    return [one.bin for one in listed.bins]


def by_hand(listed: BinTable) -> list[list[Any]]:
    """Return rows, positives, rate, weight and part of the information value of each bin, from a loop over rows."""
    counts = {one.bin: [0, 0] for one in listed.bins}
    for value, town, label in zip(INCOME.tolist(), TOWN.tolist(), LATE.tolist(), strict=True):
        if listed.column == "town":
            name = next((name for name in counts if (town or "(missing)") in name.strip("{}").split(", ")), "(other)")
        elif math.isnan(value):
            name = "(missing)"
        elif value == -1:
            name = "-1"
        else:
            (name,) = [
                name
                for name in counts
                if name.startswith("[") and float(name[1:].split(", ")[0]) <= value < float(name[:-1].split(", ")[1])
            ]
        counts[name][0] += 1
        counts[name][1] += label == "yes"
    positives = sum(late for _, late in counts.values())
    figures = []
    for rows, late in counts.values():
        weight = math.log((late + 0.5) / (positives + 1)) - math.log((rows - late + 0.5) / (N - positives + 1))
        iv = (late / positives - (rows - late) / (N - positives)) * weight
        figures.append([rows, late, late / rows if rows else None, weight, iv])
    return figures


@pytest.mark.parametrize(
    ("column", "options"),
    [
        ("income", {}),
        ("income", {"bins": [1000, 2500]}),
        ("income", {"bins": [1000, 2500, 1e6]}),
        ("income", {"bins": [1000, 1500, 2000, 2500], "merge": [[2, 3], [4, 5]]}),
        ("income", {"monotone": True}),
        ("income", {"max_bins": 3, "min_rows": 200}),
        ("town", {}),
        ("town", {"bins": [["Ulm", "Kiel"], ["Jena"]]}),
        ("town", {"bins": [["Ulm", "(missing)"], ["Jena"]]}),
        ("town", {"merge": [[1, 4]]}),
    ],
)
def test_figures_are_those_of_a_loop(column: str, options: dict[str, Any]) -> None:
    listed = bin_table(bank(), column, **options)
    assert listed.positive == "yes"
    for one, (rows, late, rate, weight, iv) in zip(listed.bins, by_hand(listed), strict=True):
        assert (one.rows, one.positives) == (rows, late), one.bin
        assert one.share == rows / N
        assert one.rate == rate
        assert (one.weight, one.iv) == (pytest.approx(weight, abs=1e-12), pytest.approx(iv, abs=1e-12))
        assert bool(one.note) == (rows < options.get("min_rows", 50))
    assert listed.iv == pytest.approx(sum(one.iv or 0.0 for one in listed.bins), abs=1e-12)
    json.dumps(listed.plain(), allow_nan=False)
    assert "<h1>Bins of" in listed.page()


def test_the_declaration_gives_the_model_these_bins_and_weights() -> None:
    """A job with weights of evidence on all rows has the listed weights, and so does a second listing."""
    listed = bin_table(bank(), "income", bins=[1000, 1500, 2000, 2500], merge=[[2, 3]])
    declared = tomllib.loads(listed.declaration_line)
    assert declared == {"income": {"type": "number", "special": ["-1"], "bins": [1000, 2000, 2500]}}
    again = bank(**read_types(declared))
    assert bin_table(again, "income").cells() == listed.cells()
    job = vfl.Job(model=vfl.Logistic(), protocol="open", batch_size="all", epochs=2, prepare={"woe": {"rows": 30}},
                  accepts=("columns", "rank", "label_auc", "fresh_equations"))  # fmt: skip
    members = [again.without(["day"]), vfl.Party("shop", {"v": HIDDEN}, ids=range(N))]
    step = vfl.simulate(job, members).parts["bank"].preparation.steps[0]
    assert isinstance(step, NumericWoe)
    probes = np.array([0.0, 1000.0, 2000.0, 2500.0, -1.0, np.nan])
    weights = step.apply(probes, ())[:, 0]
    np.testing.assert_allclose(weights, [one.weight for one in listed.bins], atol=1e-12)
    assert step.iv == pytest.approx(listed.iv, abs=1e-12)


def test_texts_are_merged_with_missing_and_with_all_others() -> None:
    plain = bin_table(bank(), "town", min_rows=100)
    assert names_of(plain) == ["Ulm", "Bonn", "Jena", "(missing)", "(other)"]
    assert names_of(bin_table(bank(), "town", min_rows=100, merge=[[1, 4], [2, 3]])) == [
        "{Ulm, (missing)}",
        "{Bonn, Jena}",
        "(other)",
    ]
    joined = bin_table(bank(), "town", min_rows=100, merge=[[3, 5]])
    assert names_of(joined) == ["Ulm", "Bonn", "(missing)", "(other)"]
    assert joined.bins[-1].rows == np.isin(TOWN, ["Jena", "Kiel"]).sum()
    assert joined.declaration["bins"] == [["Ulm"], ["Bonn"], ["(missing)"]]


@pytest.mark.parametrize("sign", [1, -1])
def test_monotone_bins_rise_or_fall_and_keep_their_size(sign: int) -> None:
    present = INCOME > 0
    values, late = sign * INCOME[present], LATE[present] == "yes"
    edges = monotone_edges(values, late, bins=6, min_rows=40)
    assert 2 <= len(edges) + 1 <= 6
    bins = np.searchsorted(edges, values, side="right")
    assert np.bincount(bins).min() >= 40
    rates = np.bincount(bins, weights=late) / np.bincount(bins)
    assert (np.diff(sign * rates) < 0).all()
    # of all monotone divisions into two bins of values on a coarse grid, none has a higher likelihood
    (edge,) = monotone_edges(np.round(values, -2), late, bins=2, min_rows=1)
    likelihoods = {cut: _likelihood(late, np.round(values, -2) >= cut) for cut in np.unique(np.round(values, -2))[1:]}
    assert _likelihood(late, np.round(values, -2) >= edge) >= max(likelihoods.values()) - 3


def _likelihood(late: Any, above: Any) -> float:
    total = 0.0
    for rows in (late[above], late[~above]):
        for count in (rows.sum(), (~rows).sum()):
            total += count * math.log(count / len(rows)) if count else 0.0
    return total


@pytest.mark.parametrize("seed", range(12))
def test_monotone_bins_are_the_likeliest_of_all_divisions(seed: int) -> None:
    """Distinct values have between 3 and 3,000 rows, and all divisions with monotone shares are compared."""
    rng = np.random.default_rng(seed)
    counts = np.round(3 * 10 ** rng.uniform(0, 3, 7)).astype(int)
    positives = rng.binomial(counts, rng.uniform(0.1, 0.9, 7))
    values = np.repeat(np.arange(7.0), counts)
    late = np.concatenate([np.arange(n) < p for n, p in zip(counts, positives, strict=True)])

    def likelihood(cuts: Sequence[float]) -> float:
        bins = np.searchsorted(cuts, values, side="right")
        p, n = np.bincount(bins, weights=late), np.bincount(bins).astype(float)
        slopes = np.diff(p / n)
        if not ((slopes >= 0).all() or (slopes <= 0).all()):
            return -math.inf
        return float(special.xlogy(p, p / n).sum() + special.xlogy(n - p, 1 - p / n).sum())

    divisions = (cuts for size in range(7) for cuts in itertools.combinations(np.arange(1.0, 7.0), size))
    edges = monotone_edges(values, late, bins=7, min_rows=1)
    assert likelihood(edges) == pytest.approx(max(map(likelihood, divisions)), abs=1e-6)


def test_a_column_without_effect_has_one_monotone_bin() -> None:
    late = np.arange(400) % 2 == 0
    assert monotone_edges(np.repeat(np.arange(200.0), 2), late, bins=10, min_rows=20) == ()
    assert monotone_edges(np.ones(400), late, bins=10, min_rows=20) == ()


@pytest.mark.parametrize(
    ("column", "options", "code"),
    [
        ("nothing", {}, "SVFL-TABLE-COLUMNS"),
        ("day", {}, "SVFL-TABLE-TYPE"),
        ("income", {"bins": [["a"]]}, "SVFL-JOB-OPTION"),
        ("town", {"bins": [1, 2]}, "SVFL-JOB-OPTION"),
        ("income", {"bins": [2, 1]}, "SVFL-JOB-OPTION"),
        ("income", {"bins": [1], "monotone": True}, "SVFL-COMMAND-USAGE"),
        ("town", {"monotone": True}, "SVFL-COMMAND-USAGE"),
        ("income", {"bins": [1000, 2000], "merge": [[1, 3]]}, "SVFL-COMMAND-USAGE"),
        ("income", {"bins": [1000, 2000], "merge": [[3, 4]]}, "SVFL-COMMAND-USAGE"),
        ("income", {"bins": [1000, 2000], "merge": [[0, 1]]}, "SVFL-COMMAND-USAGE"),
        ("income", {"bins": [1000, 2000], "merge": [[1, 2], [2, 3]]}, "SVFL-COMMAND-USAGE"),
        ("income", {"bins": [1000, 2000], "merge": [[2]]}, "SVFL-COMMAND-USAGE"),
        ("income", {"bins": [1000, 2000], "merge": [[]]}, "SVFL-COMMAND-USAGE"),
        ("town", {"min_rows": 100, "merge": [[3, 3]]}, "SVFL-COMMAND-USAGE"),
        ("town", {"min_rows": 100, "merge": [[1, 2, 3, 4, 5]]}, "SVFL-COMMAND-USAGE"),
    ],
)
def test_bins_that_do_not_fit_are_refused(column: str, options: dict[str, Any], code: str) -> None:
    with raises_code(ConfigError if code not in ("SVFL-TABLE-COLUMNS", "SVFL-TABLE-TYPE") else TableError, code):
        bin_table(bank(), column, **options)


def test_without_labels_of_two_classes_rows_alone_are_counted() -> None:
    for labels in (None, np.arange(N) % 3):
        listed = bin_table(bank(labels), "income", bins=[1000])
        assert listed.heads == ["number", "bin", "rows", "share", "note"]
        assert [one.rate for one in listed.bins] == [None] * 4
        with raises_code(ConfigError, "SVFL-COMMAND-USAGE"):
            bin_table(bank(labels), "income", monotone=True)
    empty = vfl.Party("bank", {"c": np.append(-1.0, np.full(99, -1.0)), "n": np.arange(100)}, ids=range(100),
                      columns={"c": {"special": ["-1"]}})  # fmt: skip
    with raises_code(TableError, "SVFL-TABLE-EMPTY-COLUMN", column="c"):
        bin_table(empty, "c")


def test_the_command_lists_merges_and_writes(tmp_path: Path) -> None:
    texts = ["" if math.isnan(value) else f"{value:.0f}" for value in INCOME]
    path = write_table(tmp_path / "bank.csv", {"id": np.arange(N), "income": texts, "town": TOWN, "y": LATE})
    types = tmp_path / "types.toml"
    types.write_text('income = { type = "number", special = [-1] }\n')
    words = ["bins", "--data", str(path), "--column", "income", "--columns", str(types), "--bins", "1000,1500,2500"]
    done = CliRunner().invoke(app, [*words, "--merge", "1-2", "--json", str(tmp_path / "bins.json")])
    assert done.exit_code == 0, done.output
    expected = bin_table(bank(), "income", bins=[1500, 2500])
    assert json.loads((tmp_path / "bins.json").read_text())["bins"] == [vars(one) for one in expected.bins]
    assert done.stdout.splitlines()[-1] == expected.declaration_line
    types.write_text(expected.declaration_line + "\n")
    second = CliRunner().invoke(app, ["bins", "--data", str(path), "--column", "income", "--columns", str(types)])
    assert second.stdout == done.stdout
    for written in ('["Ulm", "Kiel"], ["Bonn"]', '[["Ulm", "Kiel"], ["Bonn"]]'):
        towns = CliRunner().invoke(app, ["bins", "--data", str(path), "--column", "town", "--bins", written])
        assert (
            towns.stdout.splitlines()[-1]
            == 'town = { type = "category", bins = [["Ulm", "Kiel"], ["Bonn"], ["(missing)"]] }'
        )
    merges = ("a", "1-", "3-2", "2", "2-2", "0-1", "1-3000000000", "20000-30000", "3-3,3", "-1")
    bins = ("1000;2000", "", "5 # c", "1]\nx = [2", "1]\n[t", "2,1", "nan", "true,2", '1,"a"', "{ a = 1 }")
    for option, value in [*(("--merge", text) for text in merges), *(("--bins", text) for text in bins)]:
        refused = CliRunner().invoke(app, ["bins", "--data", str(path), "--column", "income", f"{option}={value}"])
        assert refused.exit_code == 2, (value, refused.output)
        assert "[SVFL-" in refused.output, (value, refused.output)


@pytest.mark.parametrize("column", ["income", "town"])
def test_options_of_found_bins_have_no_effect_on_declared_ones(column: str, tmp_path: Path) -> None:
    table = {"id": np.arange(N), "income": INCOME, "town": TOWN, "y": LATE}
    words = ["bins", "--data", str(write_table(tmp_path / "bank.csv", table)), "--column", column]
    types = tmp_path / "types.toml"
    types.write_text('income = { bins = [1500, 2500] }\ntown = { bins = [["Ulm"], ["Bonn", "Jena"]] }\n')
    words += ["--columns", str(types)]
    refused = CliRunner().invoke(app, [*words, "--max-bins", "4"])
    assert refused.exit_code == 2
    assert f"--max-bins has no effect because {types} declares the bins" in " ".join(refused.output.split())
    assert "SVFL-COMMAND-USAGE" in refused.output
    notes = [CliRunner().invoke(app, [*words, "--min-rows", rows]).stdout.count("fewer than") for rows in ("20", "899")]
    assert notes[0] < notes[1]  # this option decides which bins get a note

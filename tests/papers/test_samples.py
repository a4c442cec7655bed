"""A sample that differs is noticed, pages state the origin of every part, and rows of real tables come out again."""

import json
import subprocess
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from builders import REAL_TABLES

from benchmarks.papers.origin import checked, is_current, origin, sources, words
from benchmarks.papers.page_cells import rounds_cell, typical
from benchmarks.papers.samples import REPETITIONS, compute, differences, sample
from benchmarks.papers.study import Part, Rows, Runs, median

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "papers" / "results"
MADE = {"commit": "abc12345", "date": "2026-11-27"}


def counting(values: list[float], *, varies: bool = False, name: str = "auc") -> Part:
    """Return a part whose k-th run reports the k-th of these values."""
    left = list(values)

    def run(data: Path | None, plan: Any, runs: Runs) -> Rows:
        return [{"method": "ours", name: left.pop(0), "cpu_s": 1.0, "rounds": None}]

    return Part(None, None, run, lambda row: varies)


def test_a_seeded_figure_is_compared_within_one_percent() -> None:
    stored = sample(counting([20.0] * 2), MADE)
    assert stored["rows"] == [{"method": "ours", "auc": [20.0, pytest.approx(0.2)], "rounds": None}]
    row = {"method": "ours", "auc": 20.1, "cpu_s": 99.0, "rounds": None}
    assert differences(stored["rows"], [row]) == []
    for other in ({"auc": 20.3}, {"rounds": 3.0}, {"method": "theirs"}):
        assert len(differences(stored["rows"], [row | other])) == 1
    assert len(differences(stored["rows"], [{"method": "ours"}])) == 2
    assert differences(stored["rows"], [row, row]) == ["2 rows instead of 1"]


def test_a_random_figure_is_compared_within_its_deviations() -> None:
    values = [0.7 + 0.005 * (-1) ** number for number in range(REPETITIONS)]
    stored = sample(counting(values, varies=True), MADE)["rows"]
    assert set(stored[0]) == {"method", "auc"}
    row = {"method": "ours", "auc": 0.735}
    assert differences(stored, [row]) == []
    assert differences(stored, [row | {"auc": 0.745}]) != []


def test_an_error_of_zero_may_be_a_few_rows_and_no_more() -> None:
    stored = sample(counting([0.0] * REPETITIONS, varies=True, name="error"), MADE)["rows"]
    assert differences(stored, [{"method": "ours", "error": 0.05}]) == []
    assert differences(stored, [{"method": "ours", "error": 0.06}]) != []


def test_a_figure_with_a_tolerance_above_itself_is_not_compared() -> None:
    values = [0.1 * (number % 4) for number in range(REPETITIONS)]
    assert sample(counting(values, varies=True, name="error"), MADE)["rows"] == [{"method": "ours"}]


def test_a_random_figure_of_a_row_that_does_not_vary_is_refused() -> None:
    with pytest.raises(ValueError) as refusal:
        sample(counting([0.7, 0.71]), MADE)
    assert "auc differs between repetitions" in str(refusal.value)


def test_the_origin_names_no_host_and_no_path() -> None:
    import platform

    here = json.dumps(origin(None))
    assert platform.node() not in here
    assert "/" not in here
    assert not is_current({"origin": {"commit": "0" * 40}})
    assert not is_current({"origin": {"commit": "HEAD", "stored_only": True}})


def test_the_origin_is_that_of_the_beginning_of_a_run() -> None:
    """The commit gets a mark if the sources differ at the end, and unfinished runs of other sources are not resumed."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs the history of the checkout")
    words = ["git", "-C", str(ROOT), "rev-list", "HEAD", "--max-parents=0"]
    first = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[-1]
    if is_current({"origin": {"commit": first}}):
        pytest.skip("the checkout has one commit")
    assert checked({"commit": first, "date": "then"}).items() >= {"commit": f"{first}+", "date": "then"}.items()
    here = origin(None)["commit"]
    assert checked({"commit": here})["commit"] == here
    assert sources().startswith(here.removesuffix("+"))
    assert ("-" in sources()) == here.endswith("+")


@pytest.mark.parametrize("name", ["fedbcd/loss", "celu/sweep", "celu/cosines", "ftl/overlap", "ftl/table2"])
def test_samples_notice_a_halved_step(name: str) -> None:
    """The sample of a part that trains at a given step differs if the code takes half of it."""
    pytest.importorskip("torch")
    paper, _, key = name.partition("/")
    part = import_module(f"benchmarks.papers.{paper}").PARTS[key]
    halved = replace(part, quick=replace(part.quick, step=part.quick.step / 2))
    stored = json.loads((RESULTS / f"{paper}.json").read_text())[key]["sample"]["rows"]
    assert differences(stored, compute(halved))


def test_the_page_states_the_origin_of_every_part() -> None:
    page = (RESULTS.parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    for file in sorted(RESULTS.glob("*.json")):
        for name, part in json.loads(file.read_text()).items():
            text = words(part["origin"], part["sample"])
            assert text in page, (file.stem, name)
            assert ("not computed again since" in text) == part["origin"].get("stored_only", False)


def test_the_median_counts_starts_that_miss_the_target() -> None:
    assert median([3.0, None, 1.0]) == 3.0
    assert median([None, None, 1.0]) is None
    row = {"rounds": None, "rounds_sd": None, "rounds_median": 3.0, "reached": 2, "runs": [3.0, None, 1.0]}
    assert rounds_cell(row) == "median 3.0 (2 of 3)"
    assert typical(row) == 3.0
    assert rounds_cell(row | {"rounds_median": None, "reached": 1}) == "- (1 of 3)"
    assert rounds_cell({"rounds": 2.0, "rounds_sd": 1.0}) == "2.0 ± 1.0"


@pytest.mark.realdata
@pytest.mark.skipif(not REAL_TABLES.is_dir(), reason="needs the real tables")
def test_rows_of_a9a_come_out_again() -> None:
    """Rounds of centralised training on a9a, in all splits of the stored row."""
    from benchmarks.papers import fdml_training as fdml

    part = json.loads((RESULTS / "fdml.json").read_text())["time"]
    stored = next(row for row in part["rows"] if row["training"] == "centralised")
    plan = fdml.Plan((2,), ("linear",), splits=part["plan"]["splits"])
    parties, rounds = fdml.tables(REAL_TABLES, 2), []
    for split in range(plan.splits):
        goal = fdml.central(plan, "linear", parties, split) - fdml.AUC_TOLERANCE
        curve, _ = fdml.plain(parties, plan, stored["step"], split, pushes_first=True, pooled=True)
        rounds.append(next(t for t, auc in curve if auc >= goal))
    assert sum(rounds) / len(rounds) == pytest.approx(stored["rounds"], abs=stored["rounds_sd"])


@pytest.mark.realdata
@pytest.mark.skipif(not REAL_TABLES.is_dir(), reason="needs the real tables")
def test_a_start_of_transfer_learning_comes_out_again() -> None:
    """Rounds of the last split and start at one small step, Q = 10 on one opening."""
    from benchmarks.papers import ftl, ftl_setting
    from benchmarks.papers.study import reached

    part = json.loads((RESULTS / "ftl.json").read_text())["small"]
    setting = replace(ftl.PARTS["small"].full.setting, one_opening=True, most=10 * 20)
    stored = [row for row in part["rows"] if row["q"] == 10 and row["one_opening"]]
    table = ftl_setting.shared_tables(REAL_TABLES, setting.table, setting.rows, setting.splits - 1)
    goals = ftl.goals_of(table, setting)
    curve = ftl.curve(table, setting, 10, part["plan"]["step"], goals[-1], setting.starts - 1)
    assert [reached(curve, goal) for goal in goals] == [pytest.approx(row["runs"][-1], abs=1) for row in stored]


@pytest.mark.realdata
@pytest.mark.skipif(not REAL_TABLES.is_dir(), reason="needs the real tables")
def test_a_start_of_fedbcd_comes_out_again() -> None:
    """Rounds of the first split and start with Q = 10, at the step on which the headline of FedBCD rests."""
    from benchmarks.papers import fedbcd
    from benchmarks.papers.study import reached
    from benchmarks.tables import support2

    rows = json.loads((RESULTS / "fedbcd.json").read_text())["linear"]["rows"]
    keys = {"parties": 2, "q": 10, "decay": "none"}
    stored = next(row for row in rows if all(row[name] == value for name, value in keys.items()))
    tables = support2(REAL_TABLES, 2)
    target = fedbcd.SHARE * fedbcd.pooled_auc(tables, fedbcd.job_of(fedbcd.FULL, 0))
    curve = fedbcd.curve(tables, fedbcd.Algorithm(2, 10, "none"), fedbcd.FULL, stored["one_step"], 0, target)
    assert reached(curve, target) == pytest.approx(stored["one_runs"][0], abs=1)

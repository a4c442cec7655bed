"""Benchmarks at toy sizes: every row has its figures, errors are small, and unavailable baselines are reported."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from benchmarks.memory import MemoryHeld
from securevfl.bench import baselines, comparison_table, he, start, stopwatch, sums
from securevfl.cli.main import app

KEYS = {
    *("engine", "n", "d", "encrypt_ms", "compute_ms", "blind_ms", "open_ms", "total_ms"),
    *("bytes_up", "bytes_down", "max_abs_error", "ratio_to_phe"),
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["bench", *[str(argument) for argument in arguments]])


@pytest.fixture(autouse=True)
def _inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use no process pool and short measurements, because the tests are about rows and not about speed."""
    monkeypatch.setattr(comparison_table, "process_pool", comparison_table.nullcontext)
    for module in (he, sums):
        monkeypatch.setattr(module, "median_of", lambda once, *, seconds, max_repetitions: (once(), 1))


@pytest.mark.slow
def test_he_writes_a_row_for_each_engine_and_size(tmp_path: Path) -> None:
    pytest.importorskip("phe")
    out = tmp_path / "out.json"
    done = run("he", "--sizes", "8x2,6x2", "--against", "phe,tenseal", "--json", out)
    assert done.exit_code == 0, done.output
    written = json.loads(out.read_text())
    assert set(written) == {"schema", "machine", "rows"}
    assert written["machine"]["cores"] >= 1
    names = ["phe", "tenseal", "paillier", "ckks"]
    assert [(row["engine"], row["n"]) for row in written["rows"]] == [(name, n) for n in (8, 6) for name in names]
    for row in written["rows"]:
        assert set(row) >= KEYS
        assert row["error"] is None
        assert row["max_abs_error"] < 1e-2
        steps = (row[f"{step}_ms"] or 0.0 for step in ("encrypt", "compute", "blind", "open"))
        assert row["total_ms"] == pytest.approx(sum(steps))
        phe = next(other for other in written["rows"] if other["engine"] == "phe" and other["n"] == row["n"])
        assert row["ratio_to_phe"] == pytest.approx(phe["total_ms"] / row["total_ms"])
        assert min(row["bytes_up"], row["bytes_down"]) > 0
    text = done.stdout[: done.stdout.rindex("\n\n")]
    assert max(map(len, text.splitlines())) <= 80


def test_tenseal_above_its_slots_is_a_row_with_an_error() -> None:
    row = he.baseline("tenseal", 2048, 5000, 1)
    assert "4096 slots" in row["error"]
    assert row["total_ms"] is None


def test_without_phe_there_is_no_ratio_and_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = he.run([(8, 2)], ["ckks"], [], bits=2048)
    assert rows[0]["ratio_to_phe"] is None
    monkeypatch.setattr(comparison_table, "find_spec", lambda name: None)
    done = run("he", "--sizes", "8x2", "--against", "phe")
    assert done.exit_code == 2
    assert "pip install 'securevfl[phe]'" in done.stderr


def test_a_large_phe_measurement_is_a_marked_slice() -> None:
    pytest.importorskip("phe")
    J, g = he.problem(40, 3)
    figures = baselines.phe_product(J, g[:, 0], 2048, seconds=0.4)
    assert figures.estimated
    assert figures.bytes_down == 40 * 512 + 3 * 8
    assert figures.max_abs_error < 1e-9
    assert baselines.phe_sum(sums.problem(2, 60), 2048, seconds=0.4).estimated


def test_sum_writes_its_rows(tmp_path: Path) -> None:
    pytest.importorskip("phe")
    out = tmp_path / "out.json"
    done = run("sum", "--parties", 3, "--size", 10, "--against", "phe", "--json", out)
    assert done.exit_code == 0, done.output
    rows = json.loads(out.read_text())["rows"]
    assert [row["engine"] for row in rows] == ["phe", "paillier", "ckks"]
    for row in rows:
        assert row["max_abs_error"] < 1e-6
        assert row["ratio_to_phe"] == pytest.approx(rows[0]["total_ms"] / row["total_ms"])


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (["he", "--sizes", "256"], "--sizes"),
        (["he", "--sizes", ","], "--sizes"),
        (["he", "--engines", "rsa"], "--engines"),
        (["he", "--against", "seal"], "--against"),
        (["sum", "--engines", "rsa"], "--engines"),
        (["sum", "--against", "tenseal"], "--against"),
        (["he", "--bits", "1024", "--engines", "paillier"], "2048"),
    ],
)
def test_unknown_names_are_reported(arguments: list[str], phrase: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert phrase in done.stderr


def test_the_median_repetition_is_reported() -> None:
    totals = iter([100.0, 5.0, 1.0, 9.0])

    def once() -> stopwatch.Stopwatch:
        watch = stopwatch.Stopwatch()
        watch.steps["encrypt"] = next(totals)
        return watch

    watch, count = stopwatch.median_of(once, seconds=0.0, max_repetitions=31)
    assert (watch.total, count) == (5.0, 3)


def test_problems_are_the_same_in_every_call() -> None:
    first, second = he.problem(20, 4), he.problem(20, 4)
    np.testing.assert_array_equal(first[0], second[0])
    assert np.abs(first[1]).max() <= 1.0


def test_start_has_a_row_for_each_way_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "STARTS", {name: start.STARTS[name] for name in ("python", "--version")})
    out = tmp_path / "out.json"
    done = run("start", "--repetitions", 1, "--json", out)
    assert done.exit_code == 0, done.output
    rows = json.loads(out.read_text())["rows"]
    assert [row["what"] for row in rows] == ["python", "--version"]
    assert all(row["wall_s"] > 0 and row["cpu_s"] > 0 for row in rows)


def test_memory_includes_child_processes():
    memory = MemoryHeld()
    script = "held = bytearray(50_000_000); print(len(held), flush=True); input()"
    with memory:
        memory._look()
        before = memory.megabytes
        command = [sys.executable, "-c", script]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
            assert started.stdout.readline().strip() == "50000000"
            memory._look()
            started.communicate("\n")
    assert memory.megabytes >= before + 47

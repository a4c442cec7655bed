"""Every bench command and every benchmark runs at its smallest size, so that none breaks unnoticed.

The benchmarks of the papers have separate tests (tests/papers). The benchmarks run in this process and share its
imports.
"""

from __future__ import annotations

import multiprocessing
import shlex
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import securevfl as vfl
from benchmarks.interaction_shares import shares_row
from benchmarks.shares import TABLE_JOBS, prediction
from securevfl.bench.start import STARTS
from securevfl.cli.main import app
from tests.builders import REAL_TABLES
from tests.forked import Forked

ROOT = Path(__file__).parents[2]
OUT = "OUT"  # a placeholder for a folder of the test

ALONE = {  # by benchmark: arguments of runs without a real table
    "defences": ["--seeds 1 breast_cancer"],
    "full_batch": ["--rows 200 --columns 2 3 --rounds 2 --json OUT/rows.json"],
    "fuzz": ["--frames 10 --live 1 --json OUT/rows.json"],
    "interactions": ["--tables exclusive-or --rows 300 --seeds 1 --shares --json OUT/rows.json", "--costs --rows 600"],
    "iteration_bytes": ["--rows 600 --columns 2"],
    "learning_picture": ["OUT/learning.svg"],
    "mode_picture": ["OUT/mode.svg"],
    "neural": ["--rows 8 --columns 3 --hidden 2 --steps 1", "--rows 64 --columns 3 --own 3 --batch 32 --epoch"],
    "ledger_rows": ["--rows 1000 --jobs 1"],
    "psi": ["--rows 100"],
    "rlwe_estimate": [""],
    "sums": ["--repeats 1 --only cpu --json OUT/rows.json"],
}
APART = {  # benchmarks that start processes of parties
    "default_job": ["--rows 2000 --columns 12 --iterations 2 --rtt-ms 1 --repeats 1"],
    "delay": ["--rtt-ms 1 --epochs 1 --repeats 1 --residuals open --json OUT/rows.json"],
    "estimates": ["--rows 1000 --columns 4 --kinds frame"],
    "faults": ["--runs 1"],
    "overlap": ["--rtt-ms 1 --hidden 4 --width 2 --batch 256 --epochs 1 --repeats 1 --json OUT/rows.json"],
    "many_rows": ["--rows 6000 --columns 12 --json OUT/rows.json"],
    "scale": ["--rows 1000 --columns 4 --batch 256 --residual open --json OUT/rows.json"],
}
ON_TABLES = {  # benchmarks that need the real tables
    "columns": ["REAL_TABLES --only 'direct, open' --rows 800", "REAL_TABLES --only 'partial score, breast' --seeds 1"],
    "early_stop": ["--data REAL_TABLES --tables breast"],
    "first_job": ["--data REAL_TABLES --tables breast --splits 0"],
    "opened": ["--data REAL_TABLES --rows 300 --seeds 1 --table-rows 300"],
    "organisations": ["--data REAL_TABLES --residuals open --rows 400 --batch 200 --epochs 1 --repeats 1"],
}
FIXED = {  # their measurements depend on full size and are tested in parts elsewhere; only their help is tested here
    "first_speed": "bounds for 30,000 and 266,667 rows",
    "gateway_load": "a gateway that is up; tests/transport/test_gateway.py sends one many requests at a time",
    "kernel_bars": "bars for batches of 256 and 4,096 rows and trainings on 200,000",
    "evaluation_bits": "all real tables; tests/disclosure/test_shares_outputs.py tests the figures of one job",
    "screens": "a browser, and every command that has a screen",
    "tuning": "six trainings of a table; tests/training/test_tuning.py tests a search",
}
COMMANDS = {  # by bench command: arguments
    "he": ["--sizes 8x2 --engines ckks"],
    "sum": ["--size 10 --engines ckks"],
    "start": ["--repetitions 1"],
}
COMMANDS_ON_TABLES = {  # by command of python -m benchmarks: arguments
    "shares": ["--data REAL_TABLES --sizes 16x2 --tables vehicle_scale"],
    "trees": ["--data REAL_TABLES --tables breast --trees 2 --floats"],
    "tree-schedule": ["--data REAL_TABLES --tables breast --seeds 1"],
    "rounds": ["--data REAL_TABLES --tables support2 --residuals open"],
}

FORKS = multiprocessing.get_context("forkserver")  # its processes share the imports of one server
FORKS.set_forkserver_preload(["securevfl.cli.main", "securevfl.organisations.join", "securevfl.training.simulate"])
SMALLER: dict[str, dict[str, Any]] = {  # by benchmark: objects of its modules that the test replaces by smaller ones
    "default_job": {"benchmarks.default_job.PROCESSES": FORKS},
    "delay": {"benchmarks.delay.PROCESSES": FORKS},
    "organisations": {"benchmarks.organisations.PROCESSES": FORKS},
    # their processes start by `python -m`, as those of `Forked` do
    "many_rows": {"subprocess.Popen": Forked},
    "scale": {"subprocess.Popen": Forked},
    "shares": {
        "benchmarks.shares.TABLE_JOBS": {
            "vehicle_scale": TABLE_JOBS["vehicle_scale"] | {"batch_size": 512, "epochs": 2}
        },
        "benchmarks.shares.BATCHES": 2,
        "benchmarks.shares.prediction": partial(prediction, 200, 3),
    },
    "start": {"securevfl.bench.start.STARTS": dict([*STARTS.items()][:2])},
    "tree-schedule": {"benchmarks.tree_schedule.Trees": partial(vfl.Trees, trees=2, depth=2, boosted_score=False)},
    "interactions": {"benchmarks.interactions.shares_row": partial(shares_row, components=4)},
}

LONG_BENCHMARKS = {"overlap"}  # six processes that import torch


def runs(table: dict[str, list[str]]) -> list[Any]:
    return [
        pytest.param(name, words, marks=[pytest.mark.slow] * (name in LONG_BENCHMARKS), id=f"{name} {words}".strip())
        for name, item in table.items()
        for words in item
    ]


def words_of(text: str, folder: Path) -> list[str]:
    return shlex.split(text.replace(OUT, str(folder)).replace("REAL_TABLES", str(REAL_TABLES)))


def shrink(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace what makes a benchmark long and has no option."""
    for target, smaller in SMALLER.get(name, {}).items():
        monkeypatch.setattr(target, smaller)


def started(name: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a benchmark's main as a separate process would."""
    monkeypatch.setattr(sys, "argv", [name, *words])
    import_module(f"benchmarks.{name}").main()


@pytest.fixture(autouse=True)
def _checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("needs a checkout")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))  # as Python does for a script
    monkeypatch.syspath_prepend(str(ROOT))


def test_every_benchmark_and_command_is_listed() -> None:
    scripts = {
        file.stem for file in (ROOT / "benchmarks").glob("[!_]*.py") if 'if __name__ == "__main__"' in file.read_text()
    }
    assert scripts == {*ALONE, *APART, *ON_TABLES, *FIXED}
    from benchmarks.__main__ import app as on_tables

    bench = next(group.typer_instance for group in app.registered_groups if group.name == "bench")
    for group, known in ((bench, COMMANDS), (on_tables, COMMANDS_ON_TABLES)):
        assert {command.name or command.callback.__name__ for command in group.registered_commands} == set(known)


@pytest.mark.parametrize("name", [*ALONE, *APART, *ON_TABLES, *FIXED])
def test_help_is_shown_and_nothing_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        started(name, ["--help"], monkeypatch)
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "words"), runs(ALONE))
def test_a_benchmark_runs(name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shrink(name, monkeypatch)
    started(name, words_of(words, tmp_path), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "words"), runs(APART))
def test_a_benchmark_of_processes_runs(name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shrink(name, monkeypatch)
    started(name, words_of(words, tmp_path), monkeypatch)


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.skipif(not REAL_TABLES.is_dir(), reason="needs the real tables")
@pytest.mark.parametrize(("name", "words"), runs(ON_TABLES))
def test_a_benchmark_of_tables_runs(name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shrink(name, monkeypatch)
    started(name, words_of(words, tmp_path), monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize(("name", "words"), runs(COMMANDS))
def test_a_command_runs(name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(name, monkeypatch)
    _runs(app, ["bench", name, *words_of(words, tmp_path)])


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.skipif(not REAL_TABLES.is_dir(), reason="needs the real tables")
@pytest.mark.parametrize(("name", "words"), runs(COMMANDS_ON_TABLES))
def test_a_command_on_tables_runs(name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.__main__ import app as on_tables

    shrink(name, monkeypatch)
    _runs(on_tables, [name, *words_of(words, tmp_path)])


def _runs(group: typer.Typer, words: list[str]) -> None:
    done = CliRunner().invoke(group, words)
    assert done.exit_code == 0, done.output

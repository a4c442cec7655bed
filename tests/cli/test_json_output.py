"""Results of commands as JSON: every command that reports has --json, "-" is stdout, and the schemas do not change.

`python -m tests.cli.test_json_output` stores the shapes again; a removed key, or one of another type, also needs a new
number in `securevfl.cli.json_output.SCHEMAS`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

import securevfl as vfl
from securevfl.audit.findings import Audit, Inference
from securevfl.cli.json_output import SCHEMAS
from securevfl.cli.main import app
from securevfl.credit.correlate import correlate
from securevfl.training.comparison import ComparedModel, Comparison, InteractionGain
from securevfl.training.json_report import part_report
from securevfl.training.tuning import Alternative, Tuning
from tests.forked import run_forked

STORED = Path(__file__).parents[1] / "vectors" / "json_output.json"
TABLES = ["--data", "bank=bank.csv", "--data", "shop=shop.csv"]
COMMANDS = {
    "explain": ["job.toml", *TABLES],
    "train": ["job.toml", *TABLES, "--ledger", "ledgers"],
    "describe": ["--data", "bank.csv"],
    "bins": ["--data", "bank.csv", "--column", "income"],
    "fairness": ["--party", "bank", "--data", "bank.csv", "--predictions", "predicted.csv", "--group", "grade"],
    "ledger": ["--ledger", "ledgers/shop.ledger"],
}
NEED_PEERS = {"align", "correlate", "join", "line"}
LONG = ("audit", "compare")
"""Commands that train many models; the shape of their results is that of small objects of the same classes."""
OF_OPTIONS = ("tune", "tune-alone")
"""Results of `compare --grid`, and of the same with --alone."""
NEED_FILES = {"drift": "tests/data/test_drift.py", "fetch": "tests/data/test_database.py"}
"""Commands that need a model or a database; the tests named here read their JSON."""
WITHOUT_RESULTS = {
    "demo": "shows how a job runs",
    "kit": "writes files",
    "prepare": "writes masks",
    "predict": "writes rows, as CSV",
    "score": "writes rows, as CSV, or answers requests in JSON",
    "serve": "logs events in JSON with --log",
    "relay": "logs events in JSON with --log",
    "forget": "deletes files",
    "scorecard": "writes the points as CSV",
    "reasons": "lists codes for one application",
    "export": "writes a file",
    "bench": "has --json in each of its commands",
    "certs": "writes files",
}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "securevfl.cli.main", *arguments]
    return run_forked(command, capture_output=True, text=True, cwd=folder, timeout=110)


def write_tables(folder: Path) -> None:
    """Write two tables, a job and predictions."""
    rng = np.random.default_rng(1)
    hidden = rng.normal(size=2000)
    bank = ["id,income,age,grade,y"]
    shop = ["id,visits,basket"]
    predicted = ["id,prediction"]
    for k, value in enumerate(hidden):
        label = int(value + 0.3 * rng.normal() > 0)
        bank.append(f"{k},{value + rng.normal():.4f},{rng.integers(18, 80)},{'ab'[k % 2]},{label}")
        shop.append(f"{k},{value + rng.normal():.4f},{rng.normal():.4f}")
        predicted.append(f"{k},{label if k % 7 else 1 - label}")
    for name, lines in (("bank", bank), ("shop", shop), ("predicted", predicted)):
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    (folder / "job.toml").write_text('model = "logistic"\nepochs = 3\naccepts = ["scores"]\n')


def shape(value: Any) -> Any:
    """Return the structure of a JSON value: keys, and the types of their values. Numbers and null are one type."""
    if isinstance(value, dict):
        return {key: shape(entry) for key, entry in sorted(value.items())}
    if isinstance(value, list):
        return [max((shape(entry) for entry in value), key=lambda one: len(str(one)))] if value else []
    return "number" if value is None or isinstance(value, int | float) else type(value).__name__


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """Run every command that needs one process, in an order in which each finds what it reads."""
    write_tables(folder)
    outputs = {}
    for command, arguments in COMMANDS.items():
        done = run(folder, command, *arguments, "--json", "-")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("{"), (command, done.stdout[:300])
        outputs[command] = json.loads(done.stdout)
    parties = [
        vfl.Party("bank", np.random.default_rng(0).normal(size=(1200, 2)), np.arange(1200) % 2, aligned=True),
        vfl.Party("shop", np.random.default_rng(1).normal(size=(1200, 2)), aligned=True),
    ]
    part = vfl.simulate(vfl.Job(model=vfl.Logistic(), epochs=2), parties).parts["bank"]
    outputs["join"] = part_report(part, alone={"auc": 0.5})
    outputs["correlate"] = {"parties": [pair.plain() for pair in correlate(parties)["bank"]]}
    rows = tuple(ComparedModel(columns, "trees", 0.6, 0.5, 1.0, "nothing") for columns in ("bank", "bank, shop"))
    interactions = InteractionGain(0.02, 0.01)
    outputs["compare"] = Comparison(rows, 100, 20, 0.01, pooled=rows[:1], interactions=interactions).plain()
    alternatives = (Alternative("l2 = 1", 0.5, 65), Alternative("l2 = 2", 0.6, 65))
    job = vfl.Job(model=vfl.Logistic())
    outputs["tune"] = Tuning(alternatives, "l2 = 1", job, part, 300, 800, ("bank received 1 bits",)).plain()
    outputs["tune-alone"] = vfl.cross_validate(job, {"l2": (0.1, 1.0)}, parties[0], folds=2).plain()
    attack = Inference("bank", "norms", "AUC", "a paper", 0.5, 0.5, 0.5, 0.1, np.bool_(False), "none")  # type: ignore[arg-type]
    outputs["audit"] = Audit("a job", {"bank": "active"}, [], [], [attack], []).plain()
    json.dumps(outputs, allow_nan=False)
    return outputs


# what depends on the job, the table or the attacks and not on the schema
VARIES = {
    "job",
    "history",
    "facts",
    "books",
    "counters",
    "columns",
    "attacks",
    "metrics",
    "metric_std_errors",
    "by_class",
}


def schema(value: Any) -> Any:
    """Return the shape without what depends on the job."""
    if isinstance(value, dict):
        return {key: "varies" if key in VARIES else schema(entry) for key, entry in value.items()}
    return [schema(entry) for entry in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return results(tmp_path_factory.mktemp("json"))


@pytest.mark.long
@pytest.mark.parametrize("command", [*COMMANDS, *LONG, *OF_OPTIONS, "join", "correlate"])
def test_the_schema_of_a_command_is_the_stored_one(command: str, outputs: dict[str, dict[str, Any]]) -> None:
    stored = json.loads(STORED.read_text())
    assert schema(shape(outputs[command])) == stored[command]
    if command in COMMANDS:
        assert outputs[command]["schema"] == f"securevfl.{command}/{SCHEMAS[command]}"
        assert outputs[command]["version"] == vfl.__version__


def test_every_command_that_reports_has_json() -> None:
    group = get_command(app)
    with group.make_context("securevfl", ["--help"], resilient_parsing=True) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            options = {option for parameter in command.params for option in parameter.opts}
            assert ("--json" in options) == (name not in WITHOUT_RESULTS), name
            assert (name in SCHEMAS) == (name not in WITHOUT_RESULTS), name
    assert set(SCHEMAS) == {*COMMANDS, *LONG, *NEED_PEERS, *NEED_FILES, *OF_OPTIONS}


def test_a_dash_is_stdout_and_text_goes_to_stderr(tmp_path: Path) -> None:
    write_tables(tmp_path)
    done = run(tmp_path, "describe", "--data", "bank.csv", "--json", "-")
    assert json.loads(done.stdout)["party"] == "bank"
    assert "income" in done.stderr
    assert not (tmp_path / "-").exists()
    both = run(tmp_path, "describe", "--data", "bank.csv", "--json", "out/new.json")
    assert "income" in both.stdout
    assert json.loads((tmp_path / "out" / "new.json").read_text()) == json.loads(done.stdout)
    page = run(tmp_path, "describe", "--data", "bank.csv", "--html", "-")
    assert page.stdout.startswith("<!")
    with (tmp_path / "all.log").open("a") as log:  # stdout may be a file that is continued
        log.write("before\n")
        log.flush()
        command = [sys.executable, "-m", "securevfl.cli.main", "describe", "--data", "bank.csv", "--json", "-"]
        run_forked(command, stdout=log, stderr=subprocess.DEVNULL, cwd=tmp_path, check=True)
        log.write("after\n")
    lines = (tmp_path / "all.log").read_text().splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("before", "{", "after")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        content = {command: schema(shape(value)) for command, value in results(Path(name)).items()}
    STORED.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")

"""The command as users run it: help, errors as lines and exit code 2, training from files, the JSON report."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import typer
from pyarrow import csv, parquet
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner, Result

import securevfl as vfl
from securevfl.cli.command_groups import HELP_GROUPS
from securevfl.cli.main import app
from securevfl.display.progress import ProgressLines
from securevfl.errors import ConfigError
from securevfl.models.metrics import area_under_curve
from securevfl.runtime.costs import CostCounters, Stage

ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "data"
OPEN_JOB_TEXT = """
batch_size = 40
epochs = 2
test_fraction = 0.25
model = "logistic"
optimizer = {name = "fedbcd", lr = 0.3}
protocol = {residual = "RESIDUAL"}
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write_open_job(folder: Path, residual: str = "open", text: str = OPEN_JOB_TEXT) -> Path:
    path = folder / "job.toml"
    path.write_text(text.replace("RESIDUAL", residual))
    return path


@pytest.fixture
def overlapping_tables(tmp_path: Path) -> list[str]:
    """Write files of two parties: the other party's rows are shuffled, and each lacks rows."""
    bank, shop = vfl.datasets.breast_cancer()
    order = np.random.default_rng(1).permutation(len(shop))
    csv.write_csv(arrow(bank.take(np.arange(200))), tmp_path / "bank.csv")
    parquet.write_table(arrow(shop.take(order[order >= 12])), tmp_path / "shop.parquet")
    return ["--data", f"bank={tmp_path / 'bank.csv'}", "--data", f"shop={tmp_path / 'shop.parquet'}"]


def arrow(party: vfl.Party) -> pa.Table:
    labels = {} if party.y is None else {"y": party.y}
    return pa.table({"id": party.ids, **labels, **dict(zip(party.columns, party.X.T, strict=True))})


def test_help_and_version_run_as_a_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "securevfl.cli.main", "--help"], capture_output=True, text=True, check=True
    )
    for command in ("demo", "train", "explain", "bench", "--install-completion", "Start with: securevfl demo"):
        assert command in done.stdout
    done = subprocess.run([sys.executable, "-m", "securevfl.cli.main", "--version"], capture_output=True, text=True)
    assert done.stdout == f"securevfl {vfl.__version__}\n"


def test_a_real_process_ends_with_code_2_and_no_traceback(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "securevfl.cli.main", "train", str(tmp_path / "none.toml")]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(str(tmp_path / "none.toml"))
    assert line.endswith("]"), "the code is at the end"


@pytest.mark.parametrize("command", [["train"], ["explain"], ["bench", "he"], ["bench", "sum"], ["demo"]])
def test_every_command_explains_itself(command: list[str]) -> None:
    assert run(*command, "--help").exit_code == 0


def test_a_job_trains_from_files_and_names_what_does_not_match(tmp_path: Path, overlapping_tables: list[str]) -> None:
    out = tmp_path / "new" / "out.json"
    done = run(
        "train",
        write_open_job(tmp_path, "ckks"),
        *overlapping_tables,
        "--json",
        out,
        "--save",
        tmp_path / "parts",
    )
    assert done.exit_code == 0, done.stderr
    assert "on the held-out rows" in done.stdout
    assert "Costs: " in done.stdout
    lacking = [line for line in done.stderr.splitlines() if "lacks" in line]
    where = "ids that other parties have; these rows are left out"  # and no id of a client on the screen
    assert lacking == [f"bank lacks 369 {where}", f"shop lacks 12 {where}"]

    report = json.loads(out.read_text())
    assert report["schema"] == "securevfl.train/1"
    assert report["ids_lacking"] == {"bank": 369, "shop": 12}
    assert report["metrics"]["auc"] > 0.9
    assert len(report["history"]) == report["costs"]["rounds"]
    messages = [party["messages"]["train"] for party in report["books"].values()]
    assert sum(kind["bytes"] for party in messages for kind in party.values()) == report["costs"]["bytes"]
    rounds = report["costs"]["rounds"]
    assert report["books"]["bank"]["operations"]["train"]["encrypt"]["count"] == rounds
    assert report["books"]["shop"]["operations"]["train"]["compute"]["count"] == rounds

    loaded = vfl.Run.load(tmp_path / "parts")
    assert loaded.metrics == pytest.approx(report["metrics"])


def test_training_from_files_is_training_from_arrays(tmp_path: Path, overlapping_tables: list[str]) -> None:
    """CSV and Parquet, shuffled, against the rows themselves; then npz of the same."""
    bank, shop = (party.take(np.arange(12, 200)) for party in vfl.datasets.breast_cancer())
    expected = vfl.simulate(vfl.Job.load(write_open_job(tmp_path)), [bank, shop])
    for party in (bank, shop):
        labels = {} if party.y is None else {"y": party.y}
        np.savez(tmp_path / f"{party.name}.npz", X=party.X, ids=party.ids, columns=party.columns, **labels)
    npz = [f"--data={party.name}={tmp_path / party.name}.npz" for party in (bank, shop)]
    for data in (overlapping_tables, npz):
        command = ["train", write_open_job(tmp_path), *data, "--save", tmp_path / "parts"]
        assert run(*command, "--replace").exit_code == 0
        refused = run(*command)
        assert (refused.exit_code, "SVFL-FILE-EXISTS" in refused.stderr) == (2, True)
        loaded = vfl.Run.load(tmp_path / "parts")
        for name, part in expected.parts.items():
            np.testing.assert_allclose(loaded.parts[name].theta, part.theta, atol=1e-12)


def test_explain_with_and_without_tables(tmp_path: Path, overlapping_tables: list[str]) -> None:
    path = write_open_job(tmp_path, "ckks")
    sheet = vfl.explain(vfl.Job.load(path))
    assert run("explain", path, "--details").stdout.startswith(sheet)
    assert run("explain", path).stdout.startswith(sheet.first_screen)
    sheet = run("explain", path, *overlapping_tables).stdout
    assert "shop (passive)" in sheet
    assert "p = 15 equations" in sheet


def test_explain_states_what_a_search_opens(tmp_path: Path, overlapping_tables: list[str]) -> None:
    (tmp_path / "job.toml").write_text('model = "logistic"\naccepts = ["small_metrics"]\n')
    explained = ["explain", tmp_path / "job.toml", *overlapping_tables, "--grid", "l2=0.1,1"]
    done = run(*explained, "--json", tmp_path / "search.json")
    assert "This search trains 2 alternatives" in done.stdout
    assert "so there are 3 measurements" in " ".join(done.stdout.lower().split())
    assert not json.loads((tmp_path / "search.json").read_text())["refusals"]
    (tmp_path / "job.toml").write_text('model = "logistic"\n')
    assert "the search measures them 3 times" in run(*explained).stdout
    assert "[SVFL-COMMAND-USAGE]" in run(*explained, "--year").stderr


def test_a_leak_is_refused_with_its_remedy(tmp_path: Path, overlapping_tables: list[str]) -> None:
    text = OPEN_JOB_TEXT.replace("batch_size = 40", "batch_size = 10")
    done = run("train", write_open_job(tmp_path, "ckks", text), *overlapping_tables, "--json", tmp_path / "out.json")
    assert done.exit_code == 2
    assert 'accepts = ["rank"]' in done.stderr
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('model = "logistic"\ncolour = 1', ["colour: unknown option"]),
        (OPEN_JOB_TEXT.replace("= 40", '= "many"'), ["batch_size: should be a whole number from 1 to"]),
        (OPEN_JOB_TEXT.replace("= 0.25", "= 1.5"), ["test_fraction: should be less than 1"]),
        (OPEN_JOB_TEXT.replace("RESIDUAL", "elgamal"), ["protocol.residual: must be one of open, paillier, ckks"]),
        (
            OPEN_JOB_TEXT.replace('"RESIDUAL"', '"open", sum = "diret"'),
            ["protocol.sum: there is no sum of this name; choose one of direct"],
        ),
        (
            OPEN_JOB_TEXT.replace('"RESIDUAL"', '{name = "paillier", bits = 1024}'),
            ["protocol.residual: a Paillier key of 1024 bits"],
        ),
        (
            OPEN_JOB_TEXT.replace('"RESIDUAL"', "{name = 3}"),
            ["protocol.residual: there is no residual of this name; choose one of"],
        ),
        (
            OPEN_JOB_TEXT.replace("lr = 0.3", 'lr = -1, mode = "both"'),
            ["optimizer.lr: ", "optimizer.mode: should be 'parallel'"],
        ),
        (
            OPEN_JOB_TEXT.replace("fedbcd", "adam"),
            ["optimizer: there is no optimizer of this name; choose one of fedbcd"],
        ),
        (
            OPEN_JOB_TEXT.replace('"logistic"', '{name = ["logistic"]}'),
            ["model: there is no model of this name; choose one of logistic"],
        ),
        (OPEN_JOB_TEXT + "self = 1\n", ["self: unknown option"]),
        ("x = [", ["the job file is not valid TOML"]),
    ],
)
def test_a_wrong_job_file_gets_one_line_a_problem(tmp_path: Path, text: str, lines: list[str]) -> None:
    path = write_open_job(tmp_path, text=text)
    done = run("explain", path)
    assert done.exit_code == 2
    assert done.stdout == ""
    messages = done.stderr.splitlines()
    assert len(messages) == len(lines)
    for line in lines:
        assert any(item.startswith(f"{path}: {line}") for item in messages), (line, messages)
    assert messages[-1].endswith("]"), "the code is at the end"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ([], "SVFL-PARTIES-COUNT"),
        (["bank"], "SVFL-COMMAND-USAGE"),
        (["bank=a.csv", "bank=b.csv"], "SVFL-COMMAND-USAGE"),
        (["bank=none.csv", "shop=b.csv"], "SVFL-TABLE-UNREADABLE"),
    ],
)
def test_wrong_data_options_are_told(tmp_path: Path, data: list[str], code: str) -> None:
    done = run("train", write_open_job(tmp_path), *(f"--data={item}" for item in data))
    assert done.exit_code == 2
    assert f"[{code}]" in done.stderr


def test_a_report_that_cannot_be_written_is_told_before_training(tmp_path: Path, overlapping_tables: list[str]) -> None:
    done = run("train", write_open_job(tmp_path), *overlapping_tables, "--json", tmp_path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "[SVFL-" in done.stderr
    (tmp_path / "file").touch()
    done = run("train", write_open_job(tmp_path), *overlapping_tables, "--json", tmp_path / "file" / "out.json")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "[SVFL-" in done.stderr
    done = run("train", write_open_job(tmp_path), *overlapping_tables, "--save", tmp_path / "file")
    assert "[SVFL-" in done.stderr


def test_a_report_is_strict_json(tmp_path: Path) -> None:
    from securevfl.base.files import write_json
    from securevfl.training.json_report import _by_stage

    write_json(tmp_path / "report.json", {"auc": float("nan"), "history": [{"loss": float("inf")}, (0.5, "text")]})
    report = json.loads((tmp_path / "report.json").read_text())
    assert report == {"auc": None, "history": [{"loss": None}, [0.5, "text"]]}
    ledger = CostCounters()
    ledger.add_message(Stage.TRAIN, "Summand", 10)
    ledger.add_message(Stage.TRAIN, "Summand", 5)
    ledger.add_message(Stage.SETUP, "Hello", 1)
    assert _by_stage(ledger.traffic, lambda tally: {"bytes": tally.amount}) == {
        "train": {"Summand": {"bytes": 15, "count": 2}},
        "setup": {"Hello": {"bytes": 1, "count": 1}},
    }


@pytest.mark.skipif(not (ROOT / "examples").is_dir(), reason="no checkout")
def test_the_examples_are_jobs() -> None:
    paths = sorted((ROOT / "examples").glob("*.toml"))
    assert paths
    for path in paths:
        vfl.Job.load(path)


@pytest.mark.realdata
@pytest.mark.skipif(not REAL.is_dir(), reason="the real tables are not here")
def test_a_real_pair_of_tables_aligns_and_trains(tmp_path: Path) -> None:
    guest = csv.read_csv(REAL / "default_credit_hetero_guest.csv.gz")
    host = csv.read_csv(REAL / "default_credit_hetero_host.csv.gz")
    generator = np.random.default_rng(0)
    guest = guest.take(generator.permutation(guest.num_rows)[:-1000])
    host = host.take(generator.permutation(host.num_rows)[:-2000])
    csv.write_csv(guest, tmp_path / "guest.csv")
    parquet.write_table(host, tmp_path / "host.parquet")
    shared = len(set(guest["id"].to_pylist()) & set(host["id"].to_pylist()))

    text = OPEN_JOB_TEXT.replace("= 40", "= 256").replace("epochs = 2", "epochs = 1").replace("0.3", "0.1")
    data = [f"--data=guest={tmp_path / 'guest.csv'}", f"--data=host={tmp_path / 'host.parquet'}"]
    done = run("train", write_open_job(tmp_path, text=text), *data, "--json", tmp_path / "out.json")
    assert done.exit_code == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["metrics"]["auc"] > 0.70
    assert report["ids_lacking"] == {"guest": host.num_rows - shared, "host": guest.num_rows - shared}


def test_audit_of_a_job_on_its_tables(tmp_path: Path, overlapping_tables: list[str]) -> None:
    result = run("audit", write_open_job(tmp_path, "open"), *overlapping_tables, "--html", tmp_path / "audit.html")
    assert result.exit_code == 0, result.output
    assert "othing exceeds the declaration" in result.output
    assert "<html" in (tmp_path / "audit.html").read_text().lower()


def test_a_job_of_three_lines_trains_as_long_as_guards_let_it(tmp_path: Path) -> None:
    """The job names the model and the protocol; defaults fill the rest. No further disclosure is accepted silently."""
    parties = vfl.datasets.breast_cancer()
    for party in parties:
        text = {"id": range(len(party)), **dict(zip(party.columns, party.X.T, strict=True))}
        text |= {"y": party.y} if party.y is not None else {}
        rows = zip(*text.values(), strict=True)
        lines = [",".join(text), *(",".join(map(str, row)) for row in rows)]
        (tmp_path / f"{party.name}.csv").write_text("\n".join(lines))
    path = tmp_path / "job.toml"
    path.write_text('model = "logistic"\nprotocol = "open"\ndata = { bank = "bank.csv", shop = "shop.csv" }\n')
    few = CliRunner().invoke(app, ["train", str(path)])
    assert few.exit_code == 0, few.output
    assert "the maximum, up to 50, that the leak checks allow" in few.output
    path.write_text("epochs = 10\n" + path.read_text())
    refused = CliRunner().invoke(app, ["train", str(path)])
    assert refused.exit_code == 2
    assert 'accept it with accepts = ["columns"]' in refused.output
    path.write_text(path.read_text() + 'accepts = ["columns"]\n')
    done = CliRunner().invoke(app, ["train", str(path)])
    assert done.exit_code == 0, done.output
    X = np.hstack([(party.X - party.X.mean(axis=0)) / party.X.std(axis=0) for party in parties])
    pooled = LogisticRegression(max_iter=1000).fit(X, parties[0].y)
    expected = area_under_curve(parties[0].y == 1, pooled.decision_function(X))
    assert float(done.output.split("AUC ")[1].split("±")[0]) == pytest.approx(expected, abs=0.005)
    path.write_text('model = "logistic"\nprotocol = "open"\ndata = ["bank.csv"]\n')
    assert "[SVFL-" in CliRunner().invoke(app, ["train", str(path)]).output


FDML = """
model = "logistic"
optimizer = {name = "fdml", lr = 0.3, tau = 4, stored = "masks"}
protocol = {residual = "open"}
batch_size = 40
epochs = 1
accepts = ["columns", "rank"]
"""


def test_a_job_with_a_server_trains_on_one_computer(tmp_path: Path, overlapping_tables: list[str]) -> None:
    done = run("train", write_open_job(tmp_path, text=FDML), *overlapping_tables)
    assert done.exit_code == 0, done.output
    assert "masks/open" in done.stdout
    assert "server (server)" in run("explain", write_open_job(tmp_path, text=FDML), *overlapping_tables).stdout


def test_new_rows_are_predicted_after_a_training(tmp_path: Path, overlapping_tables: list[str]) -> None:
    options = [word.replace("--data", "--predict") for word in overlapping_tables]
    text = OPEN_JOB_TEXT + 'accepts = ["columns", "rank"]\npositive = "0"\n'
    done = run(
        "train",
        write_open_job(tmp_path, text=text),
        *overlapping_tables,
        *options,
        "--predictions",
        tmp_path / "out.csv",
    )
    assert done.exit_code == 0, done.output
    assert "Positive class: 0." in done.stdout
    predicted = csv.read_csv(tmp_path / "out.csv")
    both = set(pa.array(csv.read_csv(tmp_path / "bank.csv")["id"]).to_pylist())
    both &= set(parquet.read_table(tmp_path / "shop.parquet")["id"].to_pylist())
    assert set(predicted["id"].to_pylist()) == both
    labels = dict(zip(*(csv.read_csv(tmp_path / "bank.csv")[name].to_pylist() for name in ("id", "y")), strict=True))
    bad = np.array([labels[row_id] == 0 for row_id in predicted["id"].to_pylist()])
    assert area_under_curve(bad, predicted["probability"].to_numpy()) > 0.95
    done = run("train", write_open_job(tmp_path, text=text), *overlapping_tables, *options[:2])
    assert done.exit_code == 2
    assert "[SVFL-PARTIES-NAME]" in done.stderr


def test_ids_that_occur_twice_are_found_by_their_rows(tmp_path: Path, overlapping_tables: list[str]) -> None:
    lines = (tmp_path / "bank.csv").read_text().splitlines()
    (tmp_path / "bank.csv").write_text("\n".join([*lines, lines[3], lines[7]]))
    done = run("train", write_open_job(tmp_path), *overlapping_tables)
    assert done.exit_code == 2
    assert "[SVFL-ID-DUPLICATE]" in done.stderr


def test_long_work_says_where_it_stands_outside_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = iter([0.0, 1.0, 40.0, 41.0])
    lines = ProgressLines("training", clock=lambda: next(seconds))
    for done in (1, 500, 501):
        lines.step(done, 1000)
    assert capsys.readouterr().err == "training: 500 of 1,000, 40 s\n"


def test_the_help_lists_all_commands_in_groups() -> None:
    command: Any = typer.main.get_command(app)
    offered = command.list_commands(command.make_context("securevfl", [], resilient_parsing=True))
    assert offered == [name for commands in HELP_GROUPS.values() for name in commands]
    options = {**os.environ, "COLUMNS": "80"}
    line = [sys.executable, "-m", "securevfl.cli.main", "--help"]
    lines = subprocess.run(line, capture_output=True, text=True, check=True, env=options).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    commands_of_help = [match for line in lines if (match := re.match(r"│ ([a-z]+)  +(\S.*?) +│$", line))]
    assert {match[1]: match[2] for match in commands_of_help} == {
        name: text for commands in HELP_GROUPS.values() for name, text in commands.items()
    }, "one line for each command"
    heads = [match[1] for line in lines if (match := re.match("╭─ (.*?) ─+╮$", line))]
    assert heads == ["Options", *HELP_GROUPS]


def commands_of(command: Any, context: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command, also those within a group, with the words that call it."""
    yield words, command
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from commands_of(command.get_command(context, name), context, (*words, name))


def test_every_help_fits_a_terminal_with_whole_words() -> None:
    """On 80 columns no line is longer, no word is cut or broken, and a text fills its lines."""
    group: Any = typer.main.get_command(app)
    context = group.make_context("securevfl", [], resilient_parsing=True)
    every = dict(commands_of(group, context))
    assert len(every) > 30
    for words, command in every.items():
        printed = CliRunner().invoke(app, [*words, "--help"], terminal_width=80).output
        lines = printed.splitlines()
        assert max(map(len, lines)) <= 80, words
        texts = [command.help, *(parameter.help for parameter in command.params if hasattr(parameter, "help"))]
        names = [name for parameter in command.params for name in parameter.opts if name.startswith("-")]
        expected = {word for text in [*filter(None, texts), *names] for word in text.split()}
        assert expected - set(re.sub("[│╭╮╰╯─]", " ", printed).split()) == set(), words
        prose = [line.strip() for line in printed.partition("╭")[0].splitlines()]
        for above, below in pairwise(prose[3:]):
            assert not above or not below or len(above) + len(below.split()[0]) >= 78, (words, above)


def test_every_command_reads_tables_with_data() -> None:
    group: Any = typer.main.get_command(app)
    context = group.make_context("securevfl", [], resilient_parsing=True)
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    readers = {
        name for name, command in commands.items() if any("--data" in parameter.opts for parameter in command.params)
    }
    assert readers >= {"align", "bins", "describe", "drift", "explain", "join", "predict", "reasons", "score", "train"}
    arguments = {
        (name, parameter.metavar)
        for name, command in commands.items()
        for parameter in command.params
        if parameter.param_type_name == "argument"
    }
    assert {metavar for _, metavar in arguments} == {"JOB.TOML", "MODEL.JSON", "FOLDER", "ADDRESS", "FILE.parquet"}
    assert {name for name, metavar in arguments if metavar == "FILE.parquet"} == {"fetch"}, "which writes this file"


def test_no_command_reads_a_database_as_its_table() -> None:
    needed = {
        "align": ["--party", "bank"],
        "bins": ["--column", "income"],
        "correlate": ["--party", "bank"],
        "describe": [],
        "drift": ["bank.model.json"],
        "fairness": ["--party", "bank"],
        "forget": ["--party", "bank"],
        "join": ["job.toml", "--party", "bank"],
        "predict": ["bank.model.json"],
        "prepare": ["job.toml", "--party", "bank"],
        "reasons": ["bank.model.json"],
        "score": ["bank.model.json"],
        "serve": ["bank.model.json"],
    }
    for command, words in needed.items():
        done = run(command, *words, "--data", "postgresql://u:hidden@h/d")
        assert isinstance(done.exception, ConfigError | SystemExit), command
        printed = done.output + str(done.exception)
        assert "securevfl fetch" in printed, command
        assert "hidden" not in printed, command

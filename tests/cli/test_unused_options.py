"""Every option of a command has an effect in the mode of the call, or is refused with a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from securevfl.cli.main import app
from tests.builders import job_file, random_parties, write_tables

RUN = CliRunner()
SESSION = {"--certs", "--listen", "--timeout", "--patience", "--verbose", "--log"}
TABLES = {"--data", "--query", "--id", "--label", "--columns", "--duplicates"}
REPORT = {"--json", "--html"}
# for each command, the words of a call in each of its modes, and the options that this mode does not use
MODES: dict[str, tuple[list[str], set[str]]] = {
    "compare here": (
        ["compare", "job.toml"],
        SESSION | {"--peers", "--accept", "--folds", "--scoring", "--save", "--checkpoints"},
    ),
    "compare --grid": (
        ["compare", "job.toml", "--grid", "l2=0.1,1"],
        SESSION | {"--peers", "--accept", "--folds", "--scoring", "--save", "--checkpoints", "--interactions"},
    ),
    "compare --alone": (
        ["compare", "job.toml", "--grid", "l2=0.1,1", "--alone"],
        SESSION | {"--peers", "--accept", "--ledger", "--save", "--checkpoints", "--interactions"},
    ),
    "compare --party": (
        ["compare", "job.toml", "--party", "bank"],
        {"--query", "--folds", "--scoring", "--save", "--checkpoints"},
    ),
    "compare --party --grid": (
        ["compare", "job.toml", "--party", "bank", "--grid", "l2=0.1,1"],
        {"--query", "--folds", "--scoring", "--interactions"},
    ),
    "explain": (["explain", "job.toml"], {"--scores", "--searched", "--classes"}),
    "explain --year": (["explain", "job.toml", "--year"], {"--html", "--details", "--classes", "--grid"}),
    "train": (["train", "job.toml"], {"--predictions", "--replace"}),
    "train --save --predict": (["train", "job.toml", "--save", "parts", "--predict", "bank=new.csv"], set()),
    "join": (["join", "job.toml", "--party", "bank"], {"--id", "--label", "--columns", "--duplicates"}),
    "join --data": (["join", "job.toml", "--party", "bank", "--data", "b.csv"], set()),
    "score": (
        ["score", "bank.json", "--data", "b.csv"],
        {"--http-token", "--http-cert", "--http-key", "--sessions"},
    ),
    "score --http": (["score", "bank.json", "--data", "b.csv", "--http", "127.0.0.1:0"], {"--out", "--unscored"}),
    "fairness without labels": (
        ["fairness", "--party", "shop", "--data", "s.csv", "--group", "g"],
        {"--positive", "--json"},
    ),
    "fairness without groups": (
        ["fairness", "--party", "bank", "--data", "b.csv", "--predictions", "p.csv"],
        {"--ledger", "--accept"},
    ),
    "fairness here": (
        ["fairness", "--party", "bank", "--data", "b.csv", "--predictions", "p.csv", "--group", "g"],
        SESSION | {"--peers", "--ledger", "--accept"},
    ),
    "bins --bins": (["bins", "--data", "b.csv", "--column", "age", "--bins", "1,2"], {"--max-bins", "--monotone"}),
}
VALUES = {"--accept": "0" * 16, "--grid": "l2=0.1,1", "--http": "127.0.0.1:0"}


def options_of(command: str) -> dict[str, Any]:
    """Return the options of a command by their long flag."""
    described = typer.main.get_command(app).get_command(None, command)  # type: ignore[attr-defined]
    return {max(option.opts, key=len): option for option in described.params if option.opts[0].startswith("-")}


def words_of(flag: str, option: Any) -> list[str]:
    """Return words that set an option."""
    if option.is_flag:
        return [flag]
    return [flag, VALUES.get(flag, "3")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change into a folder without any of the files that the commands name."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("mode", MODES)
def test_options_without_effect_are_refused(mode: str) -> None:
    words, unused = MODES[mode]
    options = options_of(words[0])
    assert unused <= set(options)
    for flag, option in options.items():
        if flag in words or flag in ("--help", "--install-completion", "--show-completion"):
            continue
        run = RUN.invoke(app, [*words, *words_of(flag, option)])
        assert run.exit_code == 2, flag
        is_refused = "no effect" in run.output or "cannot be combined" in run.output
        assert is_refused == (flag in unused), (flag, run.output)
        if flag in unused:
            assert flag in run.output
            assert "SVFL-COMMAND-USAGE" in run.output


def test_refusals_name_all_options_and_the_remedy() -> None:
    run = RUN.invoke(app, ["train", "job.toml", "--replace"])
    assert "--replace has no effect without --save. Leave it out, or add --save." in run.output
    run = RUN.invoke(app, ["compare", "job.toml", "--alone", "--grid", "l2=1,2", "--save", "m", "--listen", "h:1"])
    assert "--save, --listen have no effect with --alone. Leave them out." in run.output


BOTH = ["--data", "bank=bank.csv", "--data", "shop=shop.csv"]
MODES_WITH_NAMES = {
    "train": ["train", "job.toml", *BOTH],
    "audit": ["audit", "job.toml", *BOTH],
    "explain": ["explain", "job.toml", *BOTH],
    "explain --size": ["explain", "job.toml", "--data", "shop=shop.csv", "--size", "bank=3"],
    "compare": ["compare", "job.toml", *BOTH],
    "compare --grid": ["compare", "job.toml", *BOTH, "--grid", "l2=0.1,1"],
    "compare --alone": ["compare", "job.toml", "--data", "bank=bank.csv", "--grid", "l2=0.1,1", "--alone"],
    "compare --party": ["compare", "job.toml", "--party", "bank", "--data", "bank.csv"],
    "compare --party --grid": ["compare", "job.toml", "--party", "bank", "--data", "bank.csv", "--grid", "l2=0.1,1"],
}
"""A call of each command whose options name parties, in each of its modes."""


@pytest.mark.parametrize("argument", ["--id=shp=key", "--columns=shp=types.toml", "--duplicates=shp=first"])
@pytest.mark.parametrize("mode", MODES_WITH_NAMES)
def test_options_about_unknown_parties_are_refused(mode: str, argument: str, folder: Path) -> None:
    write_tables(folder, random_parties(rows=60, ids=True))
    job_file(folder / "job.toml", 'model = "logistic"\n')
    (folder / "types.toml").write_text("")
    run = RUN.invoke(app, [*MODES_WITH_NAMES[mode], argument])
    assert run.exit_code == 2
    assert "SVFL-PARTIES-NAME" in run.output
    assert argument.partition("=")[0] in run.output


@pytest.mark.parametrize("name", ["bnk", "shop"])
def test_a_size_is_of_another_party_of_the_peers(name: str, folder: Path) -> None:
    write_tables(folder, random_parties(rows=60, ids=True))
    job_file(folder / "job.toml", 'model = "logistic"\n')
    (folder / "peers.toml").write_text('active = "bank"\npassives = ["shop"]\naddress = { bank = "localhost:1" }\n')
    run = RUN.invoke(app, [*MODES_WITH_NAMES["explain --size"], "--size", f"{name}=4"])
    assert run.exit_code == 2
    assert "SVFL-PARTIES-NAME" in run.output


def test_every_command_whose_options_name_parties_is_tried() -> None:
    group: Any = typer.main.get_command(app)
    commands = {
        name
        for name in group.list_commands(None)
        if any((option.metavar or "").startswith(("NAME=", "[NAME=]")) for option in options_of(name).values())
    }
    assert commands - {"certs", "kit"} == {words[0] for words in MODES_WITH_NAMES.values()}

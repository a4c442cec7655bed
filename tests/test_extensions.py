"""Code of other packages: found by entry points, loaded where its party allows it, named where parties agree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import run_forked

HERE = Path(__file__).parent / "one_more"
TOOL = """
import typer

def register(app: typer.Typer) -> None:
    @app.command("rows")
    def rows(file: str) -> None:
        typer.echo(f"rows of {file}")

    @app.command("nothing")
    def nothing() -> None:
        typer.echo("nothing")
"""
ENTRY_POINTS = """
[securevfl.families]
relayed = made_up.relayed_method:Relayed

[securevfl.tools]
count = made_up.tool:register
largest-weight = made_up.largest_weight:register

[securevfl.attacks]
first_column = made_up.first_column:ATTACK
"""
EXTENSION_JOB_TEXT = """
accepts = ["columns", "seen_by_server"]
batch_size = 60
epochs = 1

[model]
name = "means"

[optimizer]
name = "relaying"
lr = 0.5

[protocol]
sum = "tree"
"""
COMMAND = "from securevfl.cli.main import main; main()"
SHEET = """
import sys
import securevfl as vfl
job = vfl.Job.load(sys.argv[1])
print(job.digest.hex())
parties = [*vfl.datasets.breast_cancer(parties=3), vfl.Helper("server", "server")]
print(vfl.explain(job, parties))
"""


def install(folder: Path, name: str = "made-up", *, family: str = "relayed_method") -> Path:
    """Leave what an installation of a package leaves: its modules, and a folder of facts about it."""
    package = folder / "made_up"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("")
    for module in (family, "first_column", "largest_weight"):
        (package / f"{module}.py").write_text((HERE / f"{module}.py").read_text())
    with (package / "first_column.py").open("a") as file:
        file.write("\n\nATTACK = FirstColumn()\n")
    (package / "tool.py").write_text(TOOL)
    facts = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


def run(folder: Path, *arguments: str, allow: str = "", code: str = COMMAND) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}", *arguments]
    env = os.environ | {"SECUREVFL_ALLOW": allow, "COLUMNS": "200"}
    return run_forked(words, capture_output=True, text=True, env=env)


@pytest.fixture
def extension_job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(EXTENSION_JOB_TEXT)
    return path


@pytest.mark.long
def test_an_allowed_family_is_loaded_and_is_on_the_sheet(tmp_path: Path, extension_job: Path) -> None:
    folder = install(tmp_path)
    refused = run(folder, str(extension_job), code=SHEET)
    assert refused.returncode == 1
    assert "to allow made-up, set SECUREVFL_ALLOW=made-up" in refused.stderr
    done = run(folder, str(extension_job), code=SHEET, allow="other, made-up")
    assert done.returncode == 0, done.stderr
    assert "code from the package made-up 1.0, digest " in " ".join(done.stdout.split())
    with (folder / "made_up" / "relayed_method.py").open("a") as file:
        file.write("\nCHANGED = 1\n")
    changed = run(folder, str(extension_job), code=SHEET, allow="made-up")
    assert changed.stdout.split()[0] != done.stdout.split()[0], "parties that run other code must not agree"


@pytest.mark.long
def test_a_tool_is_in_the_help_and_loaded_when_called(tmp_path: Path) -> None:
    folder = install(tmp_path)
    (folder / "made_up" / "__init__.py").write_text("print('loaded')\n")
    printed = run(folder, "--help")
    assert "A command of made-up." in printed.stdout
    assert "loaded" not in printed.stdout
    assert run(folder, "count", "rows", "a.csv").stdout.splitlines() == ["loaded", "rows of a.csv"]
    assert run(folder, "counts").returncode == 2


@pytest.mark.long
def test_an_attack_joins_those_of_the_audit(tmp_path: Path) -> None:
    folder = install(tmp_path)
    code = "from securevfl.audit.attacks import ATTACKS, load_more; print(load_more(), 'first_column' in ATTACKS)"
    assert run(folder, code=code).stdout == "{} False\n"
    assert "version='1.0'" in (output := run(folder, code=code, allow="made-up").stdout)
    assert output.endswith("True\n")


@pytest.mark.long
def test_a_name_that_two_bring_is_refused(tmp_path: Path, extension_job: Path) -> None:
    folder = install(install(tmp_path), "other-one")
    refused = run(folder, str(extension_job), code=SHEET, allow="made-up,other-one")
    assert "made-up and other-one both provide relayed" in refused.stderr
    assert refused.returncode == 1


WHOLE_RUN = """
import sys
from pathlib import Path
import securevfl as vfl
from securevfl.audit.report import run_audit
from securevfl.disclosure.ledger import DisclosureLedger
folder = Path(sys.argv[2])
job = vfl.Job.load(sys.argv[1])
parties = [vfl.Party(party.name, party.X[:180], None if party.y is None else party.y[:180], aligned=True)
           for party in vfl.datasets.breast_cancer(parties=3)] + [vfl.Helper("server", "server")]
print(vfl.explain(job, parties))
ledgers = {party.name: DisclosureLedger(folder / party.name, party.name) for party in parties}
vfl.simulate(job, parties, ledgers=ledgers)
linear = vfl.Job(model=vfl.Logistic(), optimizer=vfl.FedBCD(lr=0.3), protocol=vfl.Protocol(residual="open"),
                 batch_size=60, epochs=1, accepts=["columns"])
vfl.simulate(linear, parties[:2]).save(folder / "parts")
(entry,) = [entry for entry in ledgers["shop"].read().entries if entry.disclosure.learner == "server"]
print("entry:", entry.disclosure.learner, entry.disclosure.count, entry.disclosure.numbers)
audit = run_audit(job, parties, seeds=(0,))
print("audit:", audit.exit_code, *audit.skipped, sep="\\n")
"""


@pytest.mark.long
def test_sheet_ledger_and_audit_know_an_installed_package(tmp_path: Path, extension_job: Path) -> None:
    """An installed package adds a family with one output, one credit tool and one attack, by entry points alone."""
    folder = install(tmp_path)
    done = run(folder, str(extension_job), str(tmp_path), code=WHOLE_RUN, allow="made-up")
    assert done.returncode == 0, done.stderr
    sheet, _, rest = done.stdout.partition("entry: ")
    row = r"server +sums of means \(of 180 +columns of +180 in +64 "
    assert re.search(row, sheet)
    entry, _, audit = rest.partition("audit:\n")
    assert entry.split() == ["server", "2", str(2 * 180)]
    code, *skipped = audit.splitlines()
    assert code == "0"
    assert [line for line in skipped if line.startswith("first column: ")]
    printed = run(folder, "largest-weight", str(tmp_path / "parts" / "shop.json"), allow="made-up")
    assert printed.stdout.startswith("shop: "), printed.stderr

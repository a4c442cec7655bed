"""`securevfl ledger`, and the lines that other commands print and store about ledgers."""

import gc
import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv
from typer.testing import CliRunner, Result

import securevfl as vfl
from securevfl.cli.ledger_command import ROW_KEYS, _rows
from securevfl.cli.main import app
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger, default_ledger
from securevfl.disclosure.ledger_contents import LedgerContents, LedgerEntry
from securevfl.disclosure.limits import Limit
from securevfl.errors import LeakageError
from tests.builders import raises_code

SEALED_JOB_TEXT = """
batch_size = 128
epochs = 4
test_fraction = 0.25
model = "logistic"
optimizer = {name = "fedbcd", lr = 0.1}
protocol = {residual = "ckks"}
accepts = ["columns"]
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    done = run(*arguments)
    assert done.exit_code == 2
    return " ".join(done.stderr.split())


@pytest.fixture
def trained(tmp_path: Path) -> list[str]:
    """Return the arguments of `train` and `explain`, after one training that is in the ledgers of the user's data."""
    (tmp_path / "job.toml").write_text(SEALED_JOB_TEXT)
    options = [str(tmp_path / "job.toml")]
    for party in vfl.datasets.breast_cancer():
        labels = {} if party.y is None else {"y": party.y}
        table = {"id": party.ids, **labels, **dict(zip(party.columns, party.X.T, strict=True))}
        csv.write_csv(pa.table(table), tmp_path / f"{party.name}.csv")
        options += ["--data", f"{party.name}={tmp_path / party.name}.csv"]
    done = run("ledger", "--party", "bank", "--trust", "shop")
    assert "trusted to repeat jobs with the same equations: shop" in done.stdout
    done = run("train", *options, "--ledger", default_ledger("any").parent)
    assert done.exit_code == 0, done.stderr
    return options


def test_a_page_has_the_figures_of_all_ledgers(trained: list[str], tmp_path: Path) -> None:
    page = tmp_path / "ledger.html"
    for _ in range(2):  # a page that exists is replaced
        assert run("ledger", "--html", page).exit_code == 0
    text = page.read_text()
    for name in ("bank", "shop"):
        contents = DisclosureLedger.find(default_ledger(name)).read()
        assert f"<h2>{name}</h2>" in text
        for table in {entry.table for entry in contents.entries}:
            assert f"{name}: table {table[:8]}, {contents.tables[table].rows:,} rows" in text
        for entry in contents.entries:
            assert f'<td data-head="kind">{entry.disclosure.kind}</td>' in text
    assert "<dt>scores</dt>" in text
    assert "<script" not in text
    empty = run("ledger", "--ledger", tmp_path / "new.ledger", "--party", "new", "--limit", "ids=5", "--html", page)
    assert empty.exit_code == 0
    assert "Nothing was disclosed yet." in page.read_text()
    assert "ids 5" in page.read_text()


def test_it_shows_what_was_told_and_what_is_left(trained: list[str]) -> None:
    done = run("ledger")
    assert done.exit_code == 0
    for text in ("bank's disclosure ledger", "shop's disclosure ledger", "limits for each table, over all peers: none"):
        assert text in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    today = lines[next(k for k, line in enumerate(lines) if line[:1] == ["table"])][-1]
    assert ["shop", "labels", "1", "15", "0", "14%", "-", "-", today] in lines
    assert ["bank", "columns", "1", "4", "0", "27%", "-", "-", today] in lines
    assert not [line for line in done.stdout.splitlines() if len(line) > 80 and "ledger," not in line]


def test_limits_are_set_shown_kept_and_taken_away(trained: list[str]) -> None:
    done = run("ledger", "--party", "shop", "--limit", "columns=6", "--limit", "scores=1000")
    assert "limits for each table, over all peers: columns 6, scores 1,000" in done.stdout
    assert ["6", "2"] in [line.split()[-3:-1] for line in done.stdout.splitlines() if "columns" in line]
    message = refused("train", *trained, "--ledger", default_ledger("any").parent)
    assert (
        "party shop: its ledger allows all peers together at most 6 numbers about each row; bank has received 4 numbers"
        in message
    )
    assert "securevfl ledger --party shop --limit columns=8" in message
    done = run("ledger", "--party", "shop", "--limit", "columns=none")
    assert "limits for each table, over all peers: scores 1,000" in done.stdout
    assert run("train", *trained, "--ledger", default_ledger("any").parent).exit_code == 0


def test_explain_counts_earlier_disclosures(trained: list[str], tmp_path: Path) -> None:
    run("ledger", "--party", "shop", "--limit", "columns=6")
    sheet = " ".join(run("explain", *trained).stdout.split())
    for cells in (
        ("bank", "4 numbers about each row", "8 (53%)", "at most 6"),
        ("shop", "15 numbers about the", "none"),
    ):
        assert re.search(".*?".join(map(re.escape, cells)), sheet.partition("So far and your limits")[2])
    assert "would be refused: party shop: its ledger allows all peers together at most 6" in sheet
    assert "it receives 9 numbers about each row" in sheet  # 4 earlier, 4 now, and an evaluation
    elsewhere = tmp_path / "elsewhere.ledger"
    gc.collect()  # closes the ledger, whose commands ran in this process; an open file must not be renamed
    default_ledger("shop").rename(elsewhere)
    assert "would be refused: party shop" not in run("explain", *trained).stdout
    assert "would be refused: party shop" in run("explain", *trained, "--ledger", elsewhere).stdout


def test_a_simulation_counts_nothing_unless_it_is_told_to(trained: list[str]) -> None:
    before = {name: default_ledger(name).read_bytes() for name in ("bank", "shop")}
    assert run("train", *trained).exit_code == 0
    assert before == {name: default_ledger(name).read_bytes() for name in ("bank", "shop")}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--limit", "columns=1"], "SVFL-COMMAND-USAGE"),
        (["--party", "shop", "--limit", "columns"], "SVFL-COMMAND-USAGE"),
        (["--party", "shop", "--limit", "rows=1"], "SVFL-LIMIT-INVALID"),
        (["--party", "shop", "--limit", "scores=5%"], "SVFL-LIMIT-INVALID"),
        (["--party", "shop", "--limit", "columns=1.5"], "SVFL-LIMIT-INVALID"),
        (["--party", "nobody"], "SVFL-LEDGER-MISSING"),
        (["--ledger", "nowhere.ledger"], "SVFL-LEDGER-MISSING"),
    ],
)
def test_invalid_options_are_refused(trained: list[str], options: list[str], code: str) -> None:
    assert f"[{code}]" in refused("ledger", *options)


def test_a_change_concerns_one_ledger() -> None:
    """With several ledgers, an option that changes one is refused and changes none, until a party is named."""
    ledgers = [DisclosureLedger(default_ledger(name), name) for name in ("mill", "shop")]
    for ledger in ledgers:
        ledger.trust("bank")
    before = [ledger.read() for ledger in ledgers]
    for option in ("--limit ids=5", "--trust telco", "--distrust bank", "--reset-aborts telco"):
        assert "there are 2 ledgers (mill, shop)" in refused("ledger", *option.split())
        assert [ledger.read() for ledger in ledgers] == before
    assert run("ledger", "--party", "shop", "--distrust", "bank").exit_code == 0
    assert [ledger.read().trusts for ledger in ledgers] == [before[0].trusts, ()]


def test_there_may_be_none_yet_and_a_limit_may_come_first() -> None:
    assert "[SVFL-LEDGER-MISSING]" in refused("ledger")
    done = run("ledger", "--party", "shop", "--limit", "labels=25%")
    assert "limits for each table, over all peers: labels 25%" in done.stdout
    assert "nothing was disclosed yet" in done.stdout
    assert DisclosureLedger.find(default_ledger("shop")).read().limits["labels"].most == 0.25


def test_a_damaged_ledger_is_refused_by_name(trained: list[str]) -> None:
    path = default_ledger("shop")
    gc.collect()  # the file is checked in full when it is opened
    content = path.read_bytes()
    assert b'"columns"' in content
    path.write_bytes(content.replace(b'"columns"', b'"colomns"'))
    message = refused("ledger")
    assert str(path) in message.replace(" ", "")
    assert "[SVFL-LEDGER-DAMAGED]" in message


def test_the_limit_that_a_sheet_advises_bounds_the_default_job(tmp_path: Path) -> None:
    """A default job discloses bits about columns, so the advised limit is a percentage; a smaller one refuses it."""
    job, parties = vfl.Job(model="logistic"), vfl.datasets.loans()
    kind, percentage = re.findall(r"ledger --limit (\w+)=(\d+)%", " ".join(str(vfl.explain(job, parties)).split()))[0]
    assert kind == "columns"
    assert float(percentage) > 1.35, "the sheet of this job states 1.35 %"
    ledgers = {party.name: DisclosureLedger(tmp_path / party.name, party.name) for party in parties}
    ledgers["shop"].set_limit(*Limit.parse(kind, "1%"))
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        vfl.simulate(job, parties, ledgers=ledgers)
    assert not ledgers["shop"].read().entries


def test_each_peer_has_the_date_of_its_own_latest_disclosure() -> None:
    days = {"shop": ["2026-01-05", "2026-03-01"], "telco": ["2026-02-02"], "mill": ["2026-04-09", "2026-01-01"]}
    entries = tuple(
        LedgerEntry("table", f"run {day}", f"{day}T10:00:00", Disclosure("scores", peer, ("bank",), 5, 0))
        for peer, dates in days.items()
        for day in dates
    )
    rows = _rows(LedgerContents("bank", b"", entries=entries), entries)
    latest = {str(row[ROW_KEYS.index("peer")]): row[ROW_KEYS.index("latest")] for row in rows}
    assert latest == {peer: max(dates) for peer, dates in days.items()} | {"all": "2026-04-09"}


@pytest.mark.parametrize("limit", ["labels=30", "labels=30%", "columns=30", "columns=30%", "scores=30", "ids=30"])
def test_a_limit_that_is_used_up_is_stated(limit: str, tmp_path: Path) -> None:
    """A percentage as well as a number, from the last disclosure that it allows on, and not before."""
    kind, maximum = Limit.parse(*limit.split("="))  # type: ignore[misc]
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    for count in (299, 300):
        amount = (count, 1000) if "%" in limit else (count // 10, 0)
        ledger.record_answer("training", "run", Disclosure(kind, "bank", ("shop",), *amount))
        ledger.set_limit(kind, maximum)
        assert ("is used up" in run("ledger", "--ledger", ledger.path).stdout) == (count >= 300)

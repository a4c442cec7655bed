"""The file of a ledger: processes that write at once or are killed, damage, versions, and totals."""

import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from builders import raises_code
from hypothesis import given
from hypothesis import strategies as st

from securevfl.account.database import AccountDatabase
from securevfl.disclosure.counts import Disclosure, Kind
from securevfl.disclosure.ledger import DisclosureLedger, default_ledger, total_to
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.disclosure.limits import DISCLOSURE_KINDS, KIND_TOTALS, DisclosureTotal, Limit, sum_disclosures
from securevfl.errors import ConfigError, DataError, LeakageError, StorageError
from tests.disclosure.test_ledger import REGISTER, columns, told
from tests.forked import Forked, run_forked

KILLED = """
import os, signal, sys
from pathlib import Path
import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger
parties = vfl.datasets.breast_cancer()
own = {each.name: DisclosureLedger(Path(sys.argv[1]) / f"{each.name}.ledger", each.name) for each in parties}
job = vfl.Job(
    model=vfl.Logistic(), optimizer=vfl.FedBCD(lr=0.1), protocol=vfl.Protocol(residual="open"), epochs=4,
    batch_size=128, accepts=["columns"],
)
vfl.simulate(job, parties, ledgers=own, on_round=lambda done, of: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_killed_process_leaves_the_whole_run_entered(tmp_path: Path) -> None:
    assert run_forked([sys.executable, "-c", KILLED, str(tmp_path)]).returncode == -signal.SIGKILL
    shop = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    assert told(shop, "columns", "bank").count >= 4
    assert told(DisclosureLedger(tmp_path / "bank.ledger", "bank"), "labels", "shop").share == 1.0


BOOKS = """
import sys, time
from pathlib import Path
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.data.register import Register
path, name, times = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print(flush=True)
sys.stdin.readline()
for k in range(times):
    disclosure = Disclosure("columns", "bank", ("shop",), 1, 10)
    DisclosureLedger(path, "shop").record(Register.of_numbers(100), (f"{name} {k}", ""), [disclosure])
"""


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path, times = tmp_path / "new" / "shop.ledger", 25
    running = [
        Forked([sys.executable, "-c", BOOKS, str(path), name, str(times)], stdin=-1, stdout=-1, text=True)
        for name in ("a", "b")
    ]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()  # it has started
    for process in running:
        assert process.stdin is not None
        print("go", file=process.stdin, flush=True)
    assert [process.wait(120) for process in running] == [0, 0]
    assert told(DisclosureLedger(path, "shop"), "columns", "bank") == DisclosureTotal(
        2 * times, pytest.approx(5.0), 2 * times
    )
    assert {file.name for file in path.parent.iterdir()} == {"shop.ledger"}


def test_of_jobs_at_once_that_fit_the_limit_only_alone_one_goes(tmp_path: Path) -> None:
    for k in range(10):
        path = tmp_path / f"{k}.ledger"
        DisclosureLedger(path, "shop").set_limit("columns", Limit(8))
        together, went = threading.Barrier(4), []

        def run(name: int, path: Path = path, together: threading.Barrier = together, went: list[int] = went) -> None:
            together.wait()
            with suppress(LeakageError):
                DisclosureLedger(path, "shop").record(REGISTER, (str(name), ""), [columns(5)])
                went.append(name)

        threads = [threading.Thread(target=run, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(went) == 1
        assert told(DisclosureLedger(path, "shop"), "columns", "bank").count == 5


@pytest.fixture
def full(tmp_path: Path) -> DisclosureLedger:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    for run in range(5):
        ledger.record(REGISTER, (f"run {run}", ""), [columns(3), columns(2, learner="telco")])
    return ledger


def test_files_of_others_and_of_other_versions_are_told_apart(full: DisclosureLedger, tmp_path: Path) -> None:
    with raises_code(DataError, "SVFL-LEDGER-FOREIGN"):
        DisclosureLedger(full.path, "bank").read()
    assert DisclosureLedger.find(full.path).party == "shop"
    with full.database.changing() as tables:
        tables.execute("UPDATE meta SET schema = 9")
    with raises_code(DataError, "SVFL-LEDGER-FOREIGN"):
        AccountDatabase(full.path)
    with raises_code(DataError, "SVFL-LEDGER-MISSING"):
        DisclosureLedger.find(tmp_path / "none.ledger")
    (tmp_path / "file").touch()
    with raises_code(StorageError, "SVFL-FILE-UNUSABLE"):
        DisclosureLedger(tmp_path / "file" / "shop.ledger", "shop").record(REGISTER, ("run", ""), [columns(1)])


def test_contents_that_were_changed_by_hand_are_refused(full: DisclosureLedger) -> None:
    for section, item in (("entries", "{}"), ("limits", '"columns":7'), ("party", "3"), ("tries", "no")):
        with raises_code(DataError, "SVFL-LEDGER-DAMAGED"), full.database.changing() as tables:
            tables.execute("INSERT INTO ledger (section, item) VALUES (?, ?)", (section, item))
            full.read()
    assert told(full, "columns", "bank").count == 15


def read_without(ledger: DisclosureLedger, section: str) -> None:
    """Read the ledger without a section, and undo its removal."""
    with suppress(KeyboardInterrupt), ledger.database.changing() as tables:
        tables.execute("DELETE FROM ledger WHERE section = ?", (section,))
        ledger.read()
        raise KeyboardInterrupt  # ends the change without an effect


def test_a_ledger_without_any_of_its_sections(full: DisclosureLedger) -> None:
    full.set_limit("columns", Limit(40))
    with full.database.reading() as tables:
        sections = {name for (name,) in tables.execute("SELECT DISTINCT section FROM ledger")}
    assert {"party", "entries", "limits"} <= sections
    for section in sections - {"party"}:
        read_without(full, section)
    with raises_code(DataError, "SVFL-LEDGER-DAMAGED"):
        read_without(full, "party")
    assert told(full, "columns", "bank").count == 15


def test_the_file_has_one_record_for_each_fact(full: DisclosureLedger) -> None:
    """A change writes only the records that it adds or removes."""
    with full.database.reading() as tables:
        before = tables.execute("SELECT number FROM ledger").fetchall()
    full.set_limit("columns", Limit(40))
    full.set_limit("columns", Limit(50))
    full.record(REGISTER, ("run 2", ""), [columns(1)])
    with full.database.reading() as tables:
        after = tables.execute("SELECT number FROM ledger").fetchall()
    assert len(set(before) - set(after)) == 2  # both disclosures of run 2 were replaced by one
    assert len(set(after) - set(before)) == 2
    assert full.read().limits == {"columns": Limit(50)}


def test_what_a_check_raises_goes_through_and_enters_nothing(full: DisclosureLedger) -> None:
    before_check = full.read()

    def check(before: Sequence[LedgerEntry]) -> None:
        assert sum(item.disclosure.count for item in before) == 20  # of four runs, as the fifth is this one
        raise LeakageError("no")

    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED"):
        full.record(REGISTER, ("run 4", ""), [columns(1)], check)
    assert full.read() == before_check


def test_scores_count_with_the_training_table_of_the_model(full: DisclosureLedger) -> None:
    scores = Disclosure("scores", "bank", ("shop",), 700, 0)
    full.record_answer("run 2", "session a", scores)
    full.record_answer("another training", "session b", scores)
    entries = full.read().entries
    assert [entry.table for entry in entries[-2:]] == [REGISTER.name, "model another training"]
    assert total_to(full.forecast(REGISTER, [])[0], "scores", "bank") == DisclosureTotal(700, 0.0, 1)
    full.set_limit("scores", Limit(1000))
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party="shop"):
        full.record_answer("run 2", "session c", scores)


ANSWER = Disclosure("scores", "bank", ("shop",), 3, 0)
OTHER_ANSWERS = [
    ("another run", ANSWER),
    ("run", replace(ANSWER, kind="ids")),
    ("run", replace(ANSWER, learner="telco")),
    ("run", replace(ANSWER, about=("shop", "mill"))),
]
"""Answers that each differ from `ANSWER` of "run" in one respect."""


@pytest.mark.parametrize("count", [0, 50])
def test_a_later_count_replaces_its_earlier_answer_alone(count: int, tmp_path: Path) -> None:
    ledger, later = DisclosureLedger(tmp_path / "shop.ledger", "shop"), replace(ANSWER, count=count)
    for run, disclosure in (("run", ANSWER), *OTHER_ANSWERS, ("run", later)):
        ledger.record_answer("training", run, disclosure)
    entries = [(entry.run, entry.disclosure) for entry in ledger.read().entries]
    assert entries == OTHER_ANSWERS + [("run", later)] * (count > 0)


def _row_tags(ledger: DisclosureLedger) -> set[int]:
    with ledger.database.reading() as tables:
        select = "SELECT content FROM row_sets WHERE name = ? ORDER BY piece"
        content = b"".join(piece for (piece,) in tables.execute(select, (REGISTER.name,)))
    return set(np.frombuffer(content, "<u8").tolist())


def test_secrets_and_marks_stay_with_the_ledger(full: DisclosureLedger) -> None:
    book = full.read()
    assert repr(book.salt) not in repr(book)
    other = DisclosureLedger(full.path.with_name("other.ledger"), "shop")
    other.record(REGISTER, ("run", ""), [columns(1)])
    mine, theirs = (_row_tags(ledger) for ledger in (full, other))
    assert len(mine) == len(theirs) == 500
    assert not mine & theirs  # two ledgers cannot be compared
    assert REGISTER.ids is not None
    digests = {bytes(row_id)[at : at + 8] for piece in REGISTER.ids() for row_id in piece for at in (0, 8)}
    assert not digests & {digest.to_bytes(8, "little") for digest in mine}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (full.path, other.path))


def test_the_default_place_is_among_the_user_s_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert default_ledger("shop") == Path("/somewhere/securevfl/shop.ledger")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert default_ledger("shop") == Path.home() / ".local/share/securevfl/shop.ledger"


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["", "a", "b"]), st.integers(1, 9))))
def test_totals_count_a_basis_once_and_add_up_sessions(debits: list[tuple[int, str, int]]) -> None:
    total = sum_disclosures((f"run {run}", columns(count, identity=basis)) for run, basis, count in debits)
    bases = {basis or run: 0 for run, basis, _ in debits}
    for run, basis, count in debits:
        bases[basis or run] = max(bases[basis], count) if basis else bases[run] + count
    assert total.count == sum(bases.values())
    assert total.share == pytest.approx(total.count / 10)
    assert total.runs == len({run for run, _, _ in debits})


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "nan", "inf", "%", "-5%", "1e999"])
def test_limits_that_make_no_sense_are_refused(text: str) -> None:
    with raises_code(ConfigError, "SVFL-LIMIT-INVALID", kind="columns"):
        Limit.parse("columns", text)


def test_limits_as_they_are_written() -> None:
    so_far = DisclosureTotal(30, 0.301, 2)
    assert Limit.parse("labels", "25%") == ("labels", Limit(0.25, share=True))
    assert Limit.parse("scores", "none") == ("scores", None)
    assert not Limit(0.25, share=True).allows(so_far)
    assert Limit.parse("labels", Limit(0.25, share=True).needed(so_far))[1].allows(so_far)  # type: ignore[union-attr]
    assert Limit.parse("labels", Limit(3).needed(so_far))[1].allows(so_far)  # type: ignore[union-attr]
    assert (Limit(40).left(so_far), Limit(20).left(so_far), Limit(0.5, share=True).left(so_far)) == ("10", "0", "20%")
    for less, more in pairwise([DisclosureTotal(1, 0.1, 1), DisclosureTotal(1, 0.2, 1), DisclosureTotal(2, 0.2, 9)]):
        assert more.exceeds(less)
        assert not less.exceeds(more)


@pytest.mark.parametrize("kind", DISCLOSURE_KINDS)
@pytest.mark.parametrize("share", [False, True])
def test_a_limit_includes_itself_and_may_be_nothing(kind: Kind, share: bool) -> None:
    if share and kind not in KIND_TOTALS:
        return
    for percent in (0, 1, 30, 100):
        _, limit = Limit.parse(kind, f"{percent}%" if share else f"{percent}")
        assert limit is not None
        tenths = sum([percent / 1000] * 10)  # differs from percent / 100 by rounding
        assert limit.allows(DisclosureTotal(percent, tenths, 10))
        assert not limit.allows(DisclosureTotal(percent + 1, tenths + 1e-6, 10))

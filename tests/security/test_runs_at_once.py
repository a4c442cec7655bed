"""Concurrent jobs count like consecutive jobs: each is reserved completely when it is admitted, by a live process."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import securevfl as vfl
from securevfl.account.commit_counter import CommitCounter, CommitRecord
from securevfl.data.register import Register
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger, Reservation, total_to
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.disclosure.limits import Limit
from securevfl.errors import LeakageError, StorageError
from securevfl.training.checkpoint import Checkpoints
from tests.builders import raises_code
from tests.forked import Forked

REGISTER = Register.of_numbers(500)
ADMITTED = 20  # numbers about each row


def columns(count: int, kind: str = "columns") -> Disclosure:
    return Disclosure(kind, "bank", ("shop",), count, 40)  # type: ignore[arg-type]


def at_most_twenty(count: int) -> Callable[[Sequence[LedgerEntry]], None]:
    def check(before: Sequence[LedgerEntry]) -> None:
        if sum(entry.disclosure.count for entry in before) + count > ADMITTED:
            raise LeakageError("more numbers than the leak check lets pass")

    return check


def reserve(ledger: DisclosureLedger, run: str, count: int, ahead: int = 1, session: str = "") -> Reservation:
    return ledger.reserve(REGISTER, (run, session), [columns(count)], at_most_twenty(count), ahead=[columns(ahead)])


def entered(ledger: DisclosureLedger) -> int:
    return total_to(ledger.read().entries, "columns", "bank").count


def test_two_of_four_concurrent_jobs_are_admitted(tmp_path: Path) -> None:
    """A leak check admits 20 numbers. Each job discloses 10, and has recorded at most one when the next begins."""
    ledger, together, went = DisclosureLedger(tmp_path / "l", "shop"), threading.Barrier(4), list[Reservation]()

    def run(name: int) -> None:
        together.wait()
        with suppress(LeakageError):
            went.append(reserve(DisclosureLedger(tmp_path / "l", "shop"), str(name), 10))

    threads = [threading.Thread(target=run, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(went) == 2
    assert entered(ledger) == 2
    for item in went:
        item.lease([columns(10)])
        item.settle([columns(10)])
    assert entered(ledger) == ADMITTED
    with pytest.raises(LeakageError):
        reserve(ledger, "later", 1)


def test_a_run_that_stops_early_counts_what_it_disclosed(tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "l", "shop")
    first = reserve(ledger, "first", 15)
    with pytest.raises(LeakageError):
        reserve(ledger, "second", 10)
    first.settle([columns(4)])
    reserve(ledger, "second", 16).settle([columns(16)])
    assert list((tmp_path / "l.locks").iterdir()) == []


HOLDS = """
import sys
from pathlib import Path
from securevfl.account.commit_counter import CommitCounter, CommitRecord
from securevfl.disclosure.ledger import DisclosureLedger
from tests.security.test_runs_at_once import columns, reserve
kept = reserve(DisclosureLedger(Path(sys.argv[1]), "shop"), "run", 15, 3, "first")
print("holds", flush=True)
sys.stdin.readline()
"""


def test_a_killed_process_leaves_its_records_to_the_resumed_run(tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "l", "shop")
    held_out = Forked([sys.executable, "-c", HOLDS, str(ledger.path)], stdin=-1, stdout=-1, text=True)
    assert held_out.stdout is not None
    assert held_out.stdout.readline() == "holds\n"
    assert sum(entry.disclosure.count for entry in ledger.counted_for(REGISTER)) == 15
    for run in ("another", "run"):  # a second session of the same run must wait until the first one ends
        with pytest.raises(LeakageError):
            reserve(ledger, run, 10, session="second")
    held_out.send_signal(signal.SIGKILL)
    held_out.wait(60)
    assert sum(entry.disclosure.count for entry in ledger.counted_for(REGISTER)) == 3
    taken_over = reserve(ledger, "run", 15, session="second")
    assert len(list((tmp_path / "l.locks").iterdir())) == 1  # the reservation of the killed process has expired
    with pytest.raises(LeakageError):
        reserve(ledger, "another", 3)
    taken_over.settle([columns(15)])
    assert entered(ledger) == 18


def test_a_reservation_of_a_dead_process_expires(tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "l", "shop")
    with suppress(LeakageError):
        reserve(ledger, "first", 15, 2)  # not stored, as by a run that has failed
    assert sum(entry.disclosure.count for entry in ledger.counted_for(REGISTER)) == 2


def test_a_run_beyond_its_reservation_meets_the_limit(tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "l", "shop")
    ledger.set_limit("columns", Limit(ADMITTED))
    first, second = reserve(ledger, "first", 8), reserve(ledger, "second", 8)
    first.lease([columns(12)])
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party="shop"):
        second.lease([columns(9)])
    second.lease([columns(8)])
    assert entered(ledger) == 20


def test_a_lowered_limit_stops_a_running_job(tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "l", "shop")
    ledger.set_limit("columns", Limit(ADMITTED))
    run = reserve(ledger, "first", 15)
    ledger.set_limit("columns", Limit(6))
    run.lease([columns(6)])
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party="shop"):
        run.lease([columns(7)])


def test_an_unwritable_ledger_releases_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = DisclosureLedger(tmp_path / "l", "shop")
    run = reserve(ledger, "first", 15, 3)

    def no_room(counter: CommitCounter, record: CommitRecord) -> None:
        raise StorageError(tmp_path, OSError(28, "No space left on device"))

    monkeypatch.setattr(CommitCounter, "write", no_room)
    with raises_code(StorageError, "SVFL-FILE-NO-SPACE"):
        run.settle([columns(2)])
    assert sum(entry.disclosure.count for entry in ledger.counted_for(REGISTER)) == 3
    with raises_code(StorageError, "SVFL-FILE-NO-SPACE"):
        reserve(ledger, "second", 5)
    assert sum(entry.disclosure.count for entry in ledger.counted_for(REGISTER)) == 3


def small_batch_job(**keys: object) -> vfl.Job:
    defaults: dict[str, object] = {
        "model": vfl.Logistic(),
        "optimizer": vfl.FedBCD(lr=0.1),
        "batch_size": 16,
        "epochs": 3,
    }
    defaults |= {"protocol": vfl.Protocol(residual=vfl.Ckks()), "test_fraction": 0.25, "accepts": ["rank", "label_auc"]}
    return vfl.Job(**(defaults | keys))  # type: ignore[arg-type]


@pytest.fixture
def ledger_parties() -> list[vfl.Party]:
    return [party.take(np.arange(300)) for party in vfl.datasets.breast_cancer()]


def new_ledgers(folder: Path, parties: Sequence[vfl.Party]) -> dict[str, DisclosureLedger]:
    local = {party.name: DisclosureLedger(folder / party.name, party.name) for party in parties}
    local["bank"].trust("shop")
    return local


@pytest.mark.parametrize("limits", [False, True], ids=["leak check", "limit"])
def test_a_job_beside_a_running_one_is_refused_as_after_it(
    tmp_path: Path, ledger_parties: list[vfl.Party], limits: bool
) -> None:
    """The second job is refused at the first round of the first job, when 16 iterations are recorded.

    The leak check on columns refuses it, which admits either job alone, or a limit does.
    """
    ledgers, refused = new_ledgers(tmp_path, ledger_parties), list[str]()
    one = small_batch_job(accepts=["rank", "label_auc", *(["columns"] if limits else [])])
    if limits:
        ledgers["shop"].set_limit("columns", Limit(5))

    def another(done: int, of: int) -> None:
        if done == 1:
            with pytest.raises(LeakageError) as error:
                vfl.simulate(one, ledger_parties, ledgers=ledgers)
            refused.append(str(error.value))

    vfl.simulate(one, ledger_parties, ledgers=ledgers, on_round=another)
    with pytest.raises(LeakageError) as after:
        vfl.simulate(one, ledger_parties, ledgers=ledgers)
    assert refused == [str(after.value)]


class Cut(Exception):
    """Raised in place of a lost process."""


def test_a_resumed_training_fits_its_original_limit(tmp_path: Path, ledger_parties: list[vfl.Party]) -> None:
    """If a run crashes and resumes, only values that were disclosed twice count twice."""
    ledgers = new_ledgers(tmp_path, ledger_parties)
    ledgers["shop"].set_limit("columns", Limit(5))  # three epochs, one of them started twice, and the evaluation

    def cut(done: int, of: int) -> None:
        if done == 3:
            raise Cut

    def attempt(on_round: Callable[[int, int], None] | None) -> vfl.Run:
        states = {party.name: Checkpoints(tmp_path / "states", party.name, every=1) for party in ledger_parties}
        accepting = small_batch_job(accepts=["rank", "label_auc", "columns", "fresh_equations"])
        return vfl.simulate(accepting, ledger_parties, ledgers=ledgers, checkpoints=states, on_round=on_round)

    with pytest.raises(Cut):
        attempt(cut)
    attempt(None)
    assert total_to(ledgers["shop"].read().entries, "columns", "bank").count == 4

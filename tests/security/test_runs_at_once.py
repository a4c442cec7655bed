"""Jobs at once are jobs after one another: each is reserved whole when it is admitted, by a process that lives."""

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
from securevfl.data.register import Register
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger, LedgerEntry, Reservation, told_to
from securevfl.disclosure.limits import Limit
from securevfl.errors import LeakageError, StorageError
from securevfl.training.checkpoint import Checkpoints
from tests.forked import Forked

REGISTER = Register.of_numbers(500)
GUARD = 20  # numbers about each row


def columns(count: int, kind: str = "columns") -> Disclosure:
    return Disclosure(kind, "bank", ("shop",), count, 40)  # type: ignore[arg-type]


def guard(count: int) -> Callable[[Sequence[LedgerEntry]], None]:
    def check(before: Sequence[LedgerEntry]) -> None:
        if sum(entry.told.count for entry in before) + count > GUARD:
            raise LeakageError("more numbers than the guard lets pass")

    return check


def reserve(ledger: DisclosureLedger, run: str, count: int, ahead: int = 1, session: str = "") -> Reservation:
    return ledger.reserve(REGISTER, (run, session), [columns(count)], guard(count), ahead=[columns(ahead)])


def entered(ledger: DisclosureLedger) -> int:
    return told_to(ledger.read().entries, "columns", "bank").count


def test_of_four_jobs_begun_together_two_go_as_after_one_another(tmp_path: Path) -> None:
    """The guard lets 20 numbers pass and each job tells 10: none has entered more than one when the next begins."""
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
    for each in went:
        each.lease([columns(10)])
        each.settle([columns(10)])
    assert entered(ledger) == GUARD
    with pytest.raises(LeakageError):
        reserve(ledger, "later", 1)


def test_a_run_that_stops_early_uses_up_what_it_told(tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "l", "shop")
    first = reserve(ledger, "first", 15)
    with pytest.raises(LeakageError):
        reserve(ledger, "second", 10)
    first.settle([columns(4)])
    reserve(ledger, "second", 16).settle([columns(16)])
    assert list((tmp_path / "l.runs").iterdir()) == []


HOLDS = """
import sys
from pathlib import Path
from securevfl.disclosure.ledger import DisclosureLedger
from tests.security.test_runs_at_once import columns, reserve
kept = reserve(DisclosureLedger(Path(sys.argv[1]), "shop"), "run", 15, 3, "first")
print("holds", flush=True)
sys.stdin.readline()
"""


def test_a_process_that_is_killed_leaves_what_was_entered_and_its_run_is_taken_over(tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "l", "shop")
    held = Forked([sys.executable, "-c", HOLDS, str(ledger.path)], stdin=-1, stdout=-1, text=True)
    assert held.stdout is not None
    assert held.stdout.readline() == "holds\n"
    assert sum(entry.told.count for entry in ledger.before(REGISTER)) == 15
    for run in ("another", "run"):  # a session of the same run cannot go on as long as the first one lives
        with pytest.raises(LeakageError):
            reserve(ledger, run, 10, session="second")
    held.send_signal(signal.SIGKILL)
    held.wait(60)
    assert sum(entry.told.count for entry in ledger.before(REGISTER)) == 3
    taken_over = reserve(ledger, "run", 15, session="second")
    assert len(list((tmp_path / "l.runs").iterdir())) == 1  # what the killed process left is gone
    with pytest.raises(LeakageError):
        reserve(ledger, "another", 3)
    taken_over.settle([columns(15)])
    assert entered(ledger) == 18


def test_a_reservation_that_nothing_holds_any_more_is_over(tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "l", "shop")
    with suppress(LeakageError):
        reserve(ledger, "first", 15, 2)  # not kept, as by a run that has failed
    assert sum(entry.told.count for entry in ledger.before(REGISTER)) == 2


def test_a_run_that_tells_more_than_was_reserved_is_held_to_the_limit(tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "l", "shop")
    ledger.set_limit("columns", Limit(GUARD))
    first, second = reserve(ledger, "first", 8), reserve(ledger, "second", 8)
    first.lease([columns(12)])
    with pytest.raises(LeakageError, match=r"12 .* were told before, with this run it would be 21"):
        second.lease([columns(9)])
    second.lease([columns(8)])
    assert entered(ledger) == 20


def test_a_limit_that_is_lowered_meanwhile_ends_a_run_where_it_is(tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "l", "shop")
    ledger.set_limit("columns", Limit(GUARD))
    run = reserve(ledger, "first", 15)
    ledger.set_limit("columns", Limit(6))
    run.lease([columns(6)])
    with pytest.raises(LeakageError, match="6 numbers about each row at most"):
        run.lease([columns(7)])


def test_a_ledger_that_cannot_be_written_lets_go_of_what_it_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = DisclosureLedger(tmp_path / "l", "shop")
    run = reserve(ledger, "first", 15, 3)

    def no_room(path: Path, data: bytes) -> None:
        raise StorageError(path, OSError(28, "No space left on device"))

    monkeypatch.setattr("securevfl.disclosure.ledger.write_atomic", no_room)
    with pytest.raises(StorageError, match="make room"):
        run.settle([columns(2)])
    assert sum(entry.told.count for entry in ledger.before(REGISTER)) == 3
    with pytest.raises(StorageError, match="make room"):
        reserve(ledger, "second", 5)
    assert sum(entry.told.count for entry in ledger.before(REGISTER)) == 3


def job(**keys: object) -> vfl.Job:
    own: dict[str, object] = {"model": vfl.Logistic(), "optimizer": vfl.FedBCD(lr=0.1), "batch_size": 16, "epochs": 3}
    own |= {"protocol": vfl.Protocol(residual=vfl.Ckks()), "test_fraction": 0.25, "accepts": ["rank", "label_auc"]}
    return vfl.Job(**(own | keys))  # type: ignore[arg-type]


@pytest.fixture
def parties() -> list[vfl.Party]:
    return [party.take(np.arange(300)) for party in vfl.datasets.breast_cancer()]


def ledgers(folder: Path, parties: Sequence[vfl.Party]) -> dict[str, DisclosureLedger]:
    own = {party.name: DisclosureLedger(folder / party.name, party.name) for party in parties}
    own["bank"].trust("shop")
    return own


@pytest.mark.parametrize("limits", [False, True], ids=["guard", "limit"])
def test_a_job_begun_while_another_goes_on_is_refused_as_after_it(
    tmp_path: Path, parties: list[vfl.Party], limits: bool
) -> None:
    """The second is refused at the first round of the first, of which 16 visits are entered: by the guard on columns,
    which lets either go alone, or by a limit."""
    own, refused = ledgers(tmp_path, parties), list[str]()
    one = job(accepts=["rank", "label_auc", *(["columns"] if limits else [])])
    if limits:
        own["shop"].set_limit("columns", Limit(5))

    def another(done: int, of: int) -> None:
        if done == 1:
            with pytest.raises(LeakageError) as error:
                vfl.simulate(one, parties, ledgers=own)
            refused.append(str(error.value))

    vfl.simulate(one, parties, ledgers=own, on_round=another)
    with pytest.raises(LeakageError) as after:
        vfl.simulate(one, parties, ledgers=own)
    assert refused == [str(after.value)]


class Cut(Exception):
    """What takes the place of a lost process."""


def test_a_training_that_is_taken_up_fits_the_limit_that_it_fitted_at_first(
    tmp_path: Path, parties: list[vfl.Party]
) -> None:
    """Of a run that dies and goes on only what was told twice counts twice: nothing that had been reserved."""
    own = ledgers(tmp_path, parties)
    own["shop"].set_limit("columns", Limit(5))  # three epochs, one of which is begun twice, and its evaluation

    def cut(done: int, of: int) -> None:
        if done == 3:
            raise Cut

    def attempt(on_round: Callable[[int, int], None] | None) -> vfl.Run:
        states = {each.name: Checkpoints(tmp_path / "states", each.name, every=1) for each in parties}
        accepting = job(accepts=["rank", "label_auc", "columns", "fresh_equations"])
        return vfl.simulate(accepting, parties, ledgers=own, checkpoints=states, on_round=on_round)

    with pytest.raises(Cut):
        attempt(cut)
    attempt(None)
    assert told_to(own["shop"].read().entries, "columns", "bank").count == 4

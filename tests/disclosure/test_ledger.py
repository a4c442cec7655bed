"""The disclosure ledger: entered before anything is told, once a run, whole under cuts, crashes and other processes."""

import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import securevfl as vfl
from securevfl.consent.booking import Booking
from securevfl.data.ids import id_keys
from securevfl.data.register import Register
from securevfl.disclosure import ledger as ledger_module
from securevfl.disclosure.counts import Disclosure, Sizes
from securevfl.disclosure.ledger import DisclosureLedger, LedgerEntry, default_ledger, told_to
from securevfl.disclosure.limits import Limit, ToldTotal, total
from securevfl.errors import ConfigError, DataError, LeakageError, StorageError
from securevfl.runtime.channel import Event
from securevfl.runtime.door import Door
from securevfl.training.checkpoint import Checkpoints

EPOCHS = 4
REGISTER = Register.of_ids(id_keys("shop", [range(500)]))


def job(**keys: object) -> vfl.Job:
    own: dict[str, object] = {"model": vfl.Logistic(), "optimizer": vfl.FedBCD(lr=0.1), "batch_size": 128}
    own |= {"protocol": vfl.Protocol(residual=vfl.Ckks()), "epochs": EPOCHS, "test_fraction": 0.25}
    return vfl.Job(**(own | {"accepts": ["columns"]} | keys))  # type: ignore[arg-type]


def ledgers(folder: Path, parties: Sequence[vfl.Party]) -> dict[str, DisclosureLedger]:
    return {party.name: DisclosureLedger(folder / f"{party.name}.ledger", party.name) for party in parties}


def told(ledger: DisclosureLedger, kind: str, learner: str) -> ToldTotal:
    return told_to(ledger.read().entries, kind, learner)  # type: ignore[arg-type]


def columns(count: int, of: int = 10, *, learner: str = "bank", basis: str = "") -> Disclosure:
    return Disclosure("columns", learner, ("shop",), count, of, basis)


def test_each_party_enters_what_it_tells_and_nothing_else(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer(parties=3)
    own = ledgers(tmp_path, parties)
    vfl.simulate(job(), parties, ledgers=own)
    assert told(own["bank"], "labels", "shop") == told(own["bank"], "labels", "telco") == ToldTotal(10, 10 / 106, 1)
    assert told(own["shop"], "columns", "bank") == ToldTotal(EPOCHS, EPOCHS / 20, 1)
    assert told(own["telco"], "scores", "bank").count == 142
    for name, each in own.items():
        assert all(name in entry.told.about for entry in each.read().entries)
        assert stat.S_IMODE(each.path.stat().st_mode) == 0o600
    assert {entry.told.kind for entry in own["bank"].read().entries} == {"labels"}
    assert len({entry.run for each in own.values() for entry in each.read().entries}) == 1


def test_other_seeds_tell_the_same_of_labels_and_more_of_columns(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer()
    own = ledgers(tmp_path, parties)
    own["bank"].trust("shop")
    for seed in range(3):
        vfl.simulate(job(seed=seed), parties, ledgers=own)
    assert told(own["bank"], "labels", "shop") == ToldTotal(15, 15 / 106, 3)
    assert told(own["shop"], "columns", "bank").count == 3 * EPOCHS


def test_other_batches_on_the_same_table_are_refused_and_count_where_they_are_accepted(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer()
    own = ledgers(tmp_path, parties)
    vfl.simulate(job(), parties, ledgers=own)
    other = job(batch_size=100)
    with pytest.raises(LeakageError, match="earlier jobs on this table asked other equations"):
        vfl.simulate(other, parties, ledgers=own)
    assert vfl.simulate(other, parties)  # in another place nothing was told before
    vfl.simulate(other.model_copy(update={"accepts": ("columns", "fresh_equations")}), parties, ledgers=own)
    assert told(own["bank"], "labels", "shop").count == 30


def test_other_columns_and_a_lost_ledger_count_as_other_equations(tmp_path: Path) -> None:
    bank, shop = vfl.datasets.breast_cancer()
    own = ledgers(tmp_path, [bank, shop])
    own["bank"].trust("shop")
    vfl.simulate(job(), [bank, shop], ledgers=own)
    changed = shop.X.copy()
    changed[5, 3] += 1.0
    with pytest.raises(LeakageError, match="earlier jobs"):
        vfl.simulate(job(), [bank, vfl.Party("shop", changed, ids=shop.ids)], ledgers=own)
    vfl.simulate(job(), [bank, shop], ledgers=own)
    own["shop"].path.unlink()
    with pytest.raises(LeakageError, match="earlier jobs"):
        vfl.simulate(job(), [bank, shop], ledgers=own)


@pytest.mark.parametrize(("first", "related"), [(0, True), (30, True), (280, True), (300, False)])
def test_tables_that_share_rows_count_together(first: int, related: bool, tmp_path: Path) -> None:
    bank, shop = (
        vfl.Party(each.name, each.X, each.y, ids=np.arange(len(each))) for each in vfl.datasets.breast_cancer()
    )
    own = ledgers(tmp_path, [bank, shop])
    vfl.simulate(job(), [each.take(np.arange(300)) for each in (bank, shop)], ledgers=own)
    later = [each.take(np.arange(first, 568)) for each in (bank, shop)]
    if not related:
        vfl.simulate(job(), later, ledgers=own)
        return
    with pytest.raises(LeakageError, match="earlier jobs"):
        vfl.simulate(job(), later, ledgers=own)


def test_tables_without_ids_count_together_if_they_are_as_long(tmp_path: Path) -> None:
    parties = [vfl.Party(each.name, each.X, each.y, aligned=True) for each in vfl.datasets.breast_cancer()]
    own = ledgers(tmp_path, parties)
    vfl.simulate(job(), parties, ledgers=own)
    rows = np.random.default_rng(0).permutation(569)
    with pytest.raises(LeakageError, match="earlier jobs"):
        vfl.simulate(job(), [each.take(rows) for each in parties], ledgers=own)
    vfl.simulate(job(), [each.take(rows[:400]) for each in parties], ledgers=own)


def test_a_limit_refuses_before_anything_is_told_and_says_what_would_do(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer()
    own = ledgers(tmp_path, parties)
    own["bank"].trust("shop")
    own["shop"].set_limit("columns", Limit(6))
    vfl.simulate(job(), parties, ledgers=own)
    before, sent = own["shop"].path.read_bytes(), []

    def observe(event: Event) -> None:
        if (event.me, event.direction) == ("shop", "send"):
            sent.append(type(event.message).__name__)

    with pytest.raises(LeakageError) as refused:
        vfl.simulate(job(seed=1), parties, ledgers=own, observe=observe)
    assert str(refused.value) == (
        "party shop: its ledger lets bank be told 6 numbers about each row at most, 4 numbers about each row (27% of "
        "the columns) were told before, with this run it would be 8 numbers about each row (53% of the columns); run "
        "fewer epochs, or raise the limit: securevfl ledger --party shop --limit columns=8"
    )
    assert set(sent) <= {"Meeting", "Abort"}
    assert own["shop"].path.read_bytes() == before
    vfl.simulate(job(seed=1, epochs=2), parties, ledgers=own)
    own["shop"].set_limit("columns", Limit(10))
    vfl.simulate(job(seed=1), parties, ledgers=own)


def test_a_limit_that_is_reached_lets_pass_what_tells_nothing_new(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer()
    own = ledgers(tmp_path, parties)
    own["bank"].trust("shop")
    vfl.simulate(job(), parties, ledgers=own)
    own["bank"].set_limit("labels", Limit(0.01, share=True))
    vfl.simulate(job(seed=1), parties, ledgers=own)
    accepting = job(batch_size=100, accepts=["columns", "fresh_equations"])
    with pytest.raises(LeakageError, match=r"lets shop be told 1% of the residuals at most.*--limit labels=\d+%"):
        vfl.simulate(accepting, parties, ledgers=own)


class Cut(Exception):
    """What takes the place of a lost process."""


def test_a_training_taken_up_again_is_one_run(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer()
    own = ledgers(tmp_path, parties)
    seen: list[int] = []
    exact = job(protocol="open")

    def cut_at(at: int) -> Callable[[int, int], None]:
        def on_round(done: int, of: int) -> None:
            seen.append(told(own["shop"], "columns", "bank").count)
            if done == at:
                raise Cut

        return on_round

    def attempt(at: int) -> vfl.Run:
        states = {each.name: Checkpoints(tmp_path / each.name, each.name, every=3) for each in parties}
        return vfl.simulate(exact, parties, ledgers=own, checkpoints=states, on_round=cut_at(at))

    counts = []
    for at in (1, 5, 9):
        with pytest.raises(Cut):
            attempt(at)
        counts.append(told(own["shop"], "columns", "bank").count)
    run = attempt(0)
    counts.append(told(own["shop"], "columns", "bank").count)
    assert counts == [1, 3, 6, 9]  # epochs of each session, those that were begun and came again too
    assert min(seen) >= 1  # while it runs, what it tells is entered ahead
    assert told(own["shop"], "columns", "bank").runs == 1
    assert {entry.run for each in own.values() for entry in each.read().entries} == {run.parts["bank"].run}


def test_a_run_that_is_refused_elsewhere_leaves_nothing_with_those_that_told_nothing(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer()
    own = ledgers(tmp_path, parties)
    vfl.simulate(job(), parties, ledgers=own)
    own["shop"].set_limit("columns", Limit(4))
    entries = own["bank"].read().entries
    for _ in range(3):
        with pytest.raises(LeakageError, match="party shop"):
            vfl.simulate(job(batch_size=100, accepts=["columns", "fresh_equations"]), parties, ledgers=own)
    assert own["bank"].read().entries == entries


def test_a_second_try_never_takes_back_what_the_first_has_told(tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    sizes = Sizes("bank", 400, 0, 4, 100, EPOCHS, 1, {"shop": 10}, {"bank": 5, "shop": 10}, enough={"shop": 99.0})

    def attempt(session: str, rounds: int, *, silent: bool = False) -> int:
        door = Door("shop")
        booking = Booking(ledger, "run", "shop", REGISTER, job(), sizes, door, session=session)
        door.began(rounds)
        booking.settle(silent=silent)
        return told(ledger, "columns", "bank").count

    assert attempt("a", 0, silent=True) == 0
    assert ledger.read().entries == ()
    assert attempt("b", 9) == 3 + 1  # epochs begun, and the evaluation at the end
    assert attempt("c", 2) == 4 + 1 + 1
    assert attempt("d", 2, silent=True) == 6
    assert attempt("e", 16) == 6 + EPOCHS + 1


def test_a_run_that_stops_early_is_set_to_what_it_came_to(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer()
    own = ledgers(tmp_path, parties)
    easy = job(epochs=50, target=vfl.Target(metric="auc", value=0.9))
    run = vfl.simulate(easy, parties, ledgers=own)
    epochs = int(run.history[-1]["epoch"]) + 1
    assert epochs < 10
    assert told(own["shop"], "columns", "bank").count <= 4 * epochs + 1  # an evaluation a round, and one at the end


def test_a_run_is_entered_before_it_tells_anything(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer()
    own = ledgers(tmp_path, parties)
    missing: list[str] = []

    def observe(event: Event) -> None:
        named = type(event.message).__name__
        if event.direction == "send" and named != "Meeting" and not own[event.me].read().entries:
            missing.append(f"{event.me} {named}")

    vfl.simulate(job(), parties, ledgers=own, observe=observe)
    assert missing == []


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
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)]).returncode == -signal.SIGKILL
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
    told = Disclosure("columns", "bank", ("shop",), 1, 10)
    DisclosureLedger(path, "shop").book(Register.of_numbers(100), (f"{name} {k}", ""), [told])
"""


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path, times = tmp_path / "new" / "shop.ledger", 25
    running = [
        subprocess.Popen([sys.executable, "-c", BOOKS, str(path), name, str(times)], stdin=-1, stdout=-1, text=True)
        for name in ("a", "b")
    ]
    for each in running:
        assert each.stdout is not None
        each.stdout.readline()  # it has started
    for each in running:
        assert each.stdin is not None
        print("go", file=each.stdin, flush=True)
    assert [each.wait(120) for each in running] == [0, 0]
    assert told(DisclosureLedger(path, "shop"), "columns", "bank") == ToldTotal(
        2 * times, pytest.approx(5.0), 2 * times
    )
    assert {each.name for each in path.parent.iterdir()} == {"shop.ledger", "shop.ledger.lock"}


def test_of_jobs_at_once_that_fit_the_limit_only_alone_one_goes(tmp_path: Path) -> None:
    for k in range(10):
        path = tmp_path / f"{k}.ledger"
        DisclosureLedger(path, "shop").set_limit("columns", Limit(8))
        together, went = threading.Barrier(4), []

        def run(name: int, path: Path = path, together: threading.Barrier = together, went: list[int] = went) -> None:
            together.wait()
            with suppress(LeakageError):
                DisclosureLedger(path, "shop").book(REGISTER, (str(name), ""), [columns(5)])
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
        ledger.book(REGISTER, (f"run {run}", ""), [columns(3), columns(2, learner="telco")])
    return ledger


def test_a_damaged_file_is_refused_wherever_the_damage_is(full: DisclosureLedger) -> None:
    whole = full.path.read_bytes()
    generator = np.random.default_rng(0)
    for cut in [0, 1, 18, 40, *generator.integers(50, len(whole), 20).tolist(), len(whole) - 1]:
        full.path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=r"shop\.ledger: a whole ledger was expected.*put a copy of it back"):
            full.read()
    for at in generator.integers(20, len(whole), 60).tolist():
        spoilt = bytearray(whole)
        spoilt[at] ^= 1
        full.path.write_bytes(bytes(spoilt))
        with pytest.raises(DataError, match="a whole ledger was expected"):
            full.book(REGISTER, ("another", ""), [columns(1)])
        assert full.path.read_bytes() == bytes(spoilt)
    full.path.write_bytes(whole)
    assert told(full, "columns", "bank").count == 15


def test_files_of_others_and_of_other_versions_are_told_apart(full: DisclosureLedger, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the ledger of bank was expected, it is shop's"):
        DisclosureLedger(full.path, "bank").read()
    assert DisclosureLedger.find(full.path).party == "shop"
    full.path.write_bytes(full.path.read_bytes().replace(b"ledger/2", b"ledger/9", 1))
    with pytest.raises(DataError, match="another version wrote this one"):
        full.read()
    with pytest.raises(DataError, match=r"a ledger was expected there \(No such file"):
        DisclosureLedger.find(tmp_path / "none.ledger")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="a place to keep the ledger was expected"):
        DisclosureLedger(tmp_path / "file" / "shop.ledger", "shop").book(REGISTER, ("run", ""), [columns(1)])


def test_a_write_that_fails_leaves_the_file_as_it_was(full: DisclosureLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = full.path.read_bytes()

    def no_room(path: Path, data: bytes) -> None:
        raise StorageError(path, OSError(28, "No space left on device"))

    with monkeypatch.context() as patched:
        patched.setattr(ledger_module, "write_whole", no_room)
        with pytest.raises(StorageError, match="make room"):
            full.book(REGISTER, ("another", ""), [columns(1)])
    assert full.path.read_bytes() == whole
    full.book(REGISTER, ("another", ""), [columns(1)])


def test_what_a_check_raises_goes_through_and_enters_nothing(full: DisclosureLedger) -> None:
    whole = full.path.read_bytes()

    def check(before: Sequence[LedgerEntry]) -> None:
        assert sum(item.told.count for item in before) == 20  # of four runs, as the fifth is this one
        raise LeakageError("no")

    with pytest.raises(LeakageError, match="no"):
        full.book(REGISTER, ("run 4", ""), [columns(1)], check)
    assert full.path.read_bytes() == whole


def test_scores_of_a_model_count_with_the_table_it_was_trained_on(full: DisclosureLedger) -> None:
    scores = Disclosure("scores", "bank", ("shop",), 700, 0)
    full.answer("run 2", "session a", scores)
    full.answer("another training", "session b", scores)
    entries = full.read().entries
    assert [entry.table for entry in entries[-2:]] == [REGISTER.name, "model another training"]
    assert told_to(full.foresee(REGISTER, [])[0], "scores", "bank") == ToldTotal(700, 0.0, 1)
    full.set_limit("scores", Limit(1000))
    with pytest.raises(LeakageError, match=r"lets bank be told 1,000 scores at most.*evaluate or predict less"):
        full.answer("run 2", "session c", scores)


def test_secrets_and_marks_stay_in_the_file(full: DisclosureLedger) -> None:
    book = full.read()
    assert repr(book.salt) not in repr(book)
    other = DisclosureLedger(full.path.with_name("other.ledger"), "shop")
    other.book(REGISTER, ("run", ""), [columns(1)])
    mine, theirs = (each.read().tables[REGISTER.name].marks for each in (full, other))
    parts = [{marks[at : at + 8] for at in range(0, len(marks), 8)} for marks in (mine, theirs)]
    assert len(parts[0]) == len(parts[1]) == 500
    assert not parts[0] & parts[1]  # two ledgers cannot be compared


def test_the_default_place_is_among_the_user_s_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert default_ledger("shop") == Path("/somewhere/securevfl/shop.ledger")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert default_ledger("shop") == Path.home() / ".local/share/securevfl/shop.ledger"


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["", "a", "b"]), st.integers(1, 9))))
def test_totals_take_each_basis_once_and_add_up_the_sessions_of_a_run(told: list[tuple[int, str, int]]) -> None:
    found = total((f"run {run}", columns(count, basis=basis)) for run, basis, count in told)
    bases = {basis or run: 0 for run, basis, _ in told}
    for run, basis, count in told:
        bases[basis or run] = max(bases[basis], count) if basis else bases[run] + count
    assert found.count == sum(bases.values())
    assert found.share == pytest.approx(found.count / 10)
    assert found.runs == len({run for run, _, _ in told})


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "nan", "inf", "%", "-5%", "1e999"])
def test_limits_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--limit columns={text}: a whole number, a percentage"):
        Limit.parse("columns", text)


def test_limits_as_they_are_written() -> None:
    so_far = ToldTotal(30, 0.301, 2)
    assert Limit.parse("labels", "25%") == ("labels", Limit(0.25, share=True))
    assert Limit.parse("scores", "none") == ("scores", None)
    assert not Limit(0.25, share=True).allows(so_far)
    assert Limit.parse("labels", Limit(0.25, share=True).needed(so_far))[1].allows(so_far)  # type: ignore[union-attr]
    assert Limit.parse("labels", Limit(3).needed(so_far))[1].allows(so_far)  # type: ignore[union-attr]
    assert (Limit(40).left(so_far), Limit(20).left(so_far), Limit(0.5, share=True).left(so_far)) == ("10", "0", "20%")
    for less, more in pairwise([ToldTotal(1, 0.1, 1), ToldTotal(1, 0.2, 1), ToldTotal(2, 0.2, 9)]):
        assert more.exceeds(less)
        assert not less.exceeds(more)

"""The ledger records each disclosure in advance, once a run, and survives interruptions and other processes."""

import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import securevfl as vfl
from securevfl.consent.ledger_session import LedgerSession, SessionId
from securevfl.data.id_keys import id_keys
from securevfl.data.register import Register
from securevfl.disclosure.counts import Disclosure, Kind, RunShape
from securevfl.disclosure.ledger import DisclosureLedger, total_to
from securevfl.disclosure.limits import DISCLOSURE_KINDS, DisclosureTotal, Limit
from securevfl.errors import ConsentError, LeakageError, ProtocolError
from securevfl.families import leak_kinds
from securevfl.families.evaluations import EvaluationSchedule
from securevfl.protocols.permits import STOP_DECISION_BITS
from securevfl.protocols.shares.opened_loss import LOSS_SUM_BITS
from securevfl.runtime.disclosure_gate import DisclosureGate, DisclosureRecord
from securevfl.runtime.observer import Event
from securevfl.training.checkpoint import Checkpoints
from tests.builders import raises_code

EPOCHS = 4
REGISTER = Register.of_ids(id_keys("shop", [range(500)]))


def ckks_job(**keys: object) -> vfl.Job:
    defaults: dict[str, object] = {"model": vfl.Logistic(), "optimizer": vfl.FedBCD(lr=0.1), "batch_size": 128}
    defaults |= {"protocol": vfl.Protocol(residual=vfl.Ckks()), "epochs": EPOCHS, "test_fraction": 0.25}
    return vfl.Job(**(defaults | {"accepts": ["columns"]} | keys))  # type: ignore[arg-type]


def ledgers(folder: Path, parties: Sequence[vfl.Party]) -> dict[str, DisclosureLedger]:
    return {party.name: DisclosureLedger(folder / f"{party.name}.ledger", party.name) for party in parties}


def told(ledger: DisclosureLedger, kind: str, learner: str) -> DisclosureTotal:
    return total_to(ledger.read().entries, kind, learner)  # type: ignore[arg-type]


def columns(count: int, of: int = 10, *, learner: str = "bank", identity: str = "") -> Disclosure:
    return Disclosure("columns", learner, ("shop",), count, of, identity)


def test_each_party_enters_what_it_tells_and_nothing_else(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer(parties=3)
    by_party = ledgers(tmp_path, parties)
    vfl.simulate(ckks_job(), parties, ledgers=by_party)
    assert (
        told(by_party["bank"], "labels", "shop")
        == told(by_party["bank"], "labels", "telco")
        == DisclosureTotal(10, 10 / 106, 1)
    )
    assert told(by_party["shop"], "columns", "bank") == DisclosureTotal(EPOCHS, EPOCHS / 20, 1)
    assert told(by_party["telco"], "scores", "bank").count == 142
    for name, ledger in by_party.items():
        assert all(name in entry.disclosure.about for entry in ledger.read().entries)
        assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
    assert {entry.disclosure.kind for entry in by_party["bank"].read().entries} == {"labels"}
    assert len({entry.run for ledger in by_party.values() for entry in ledger.read().entries}) == 1


def test_other_seeds_tell_the_same_of_labels_and_more_of_columns(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer()
    by_party = ledgers(tmp_path, parties)
    by_party["bank"].trust("shop")
    for seed in range(3):
        vfl.simulate(ckks_job(seed=seed), parties, ledgers=by_party)
    assert told(by_party["bank"], "labels", "shop") == DisclosureTotal(15, 15 / 106, 3)
    assert told(by_party["shop"], "columns", "bank").count == 3 * EPOCHS


def test_other_batches_of_a_table_need_acceptance_and_count(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer()
    by_party = ledgers(tmp_path, parties)
    vfl.simulate(ckks_job(), parties, ledgers=by_party)
    other = ckks_job(batch_size=100)
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("fresh_equations",)):
        vfl.simulate(other, parties, ledgers=by_party)
    assert vfl.simulate(other, parties)  # other residuals were not disclosed before
    vfl.simulate(other.model_copy(update={"accepts": ("columns", "fresh_equations")}), parties, ledgers=by_party)
    assert told(by_party["bank"], "labels", "shop").count == 30


def test_other_columns_or_a_lost_ledger_count_as_new_equations(tmp_path: Path) -> None:
    bank, shop = vfl.datasets.breast_cancer()
    by_party = ledgers(tmp_path, [bank, shop])
    by_party["bank"].trust("shop")
    vfl.simulate(ckks_job(), [bank, shop], ledgers=by_party)
    changed = shop.X.copy()
    changed[5, 3] += 1.0
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("fresh_equations",)):
        vfl.simulate(ckks_job(), [bank, vfl.Party("shop", changed, ids=shop.ids)], ledgers=by_party)
    vfl.simulate(ckks_job(), [bank, shop], ledgers=by_party)
    by_party["shop"].path.unlink()
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("fresh_equations",)):
        vfl.simulate(ckks_job(), [bank, shop], ledgers=by_party)


@pytest.mark.parametrize(("first", "related"), [(0, True), (30, True), (280, True), (300, False)])
def test_tables_that_share_rows_count_together(first: int, related: bool, tmp_path: Path) -> None:
    bank, shop = (
        vfl.Party(party.name, party.X, party.y, ids=np.arange(len(party))) for party in vfl.datasets.breast_cancer()
    )
    by_party = ledgers(tmp_path, [bank, shop])
    vfl.simulate(ckks_job(), [party.take(np.arange(300)) for party in (bank, shop)], ledgers=by_party)
    later = [party.take(np.arange(first, 568)) for party in (bank, shop)]
    if not related:
        vfl.simulate(ckks_job(), later, ledgers=by_party)
        return
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED") as refused:
        vfl.simulate(ckks_job(), later, ledgers=by_party)
    assert "fresh_equations" in refused.value.fields["leaks"]  # type: ignore[operator]


def test_tables_without_ids_count_together_always(tmp_path: Path) -> None:
    """Their rows may be those of any other table: of one that is shorter, and of one with ids."""
    parties = [vfl.Party(party.name, party.X, party.y, aligned=True) for party in vfl.datasets.breast_cancer()]
    named = [vfl.Party(party.name, party.X, party.y, ids=np.arange(len(party))) for party in parties]
    rows = np.random.default_rng(0).permutation(569)
    for k, first in enumerate((parties, named)):
        by_party = ledgers(tmp_path / str(k), parties)
        vfl.simulate(ckks_job(), first, ledgers=by_party)
        for later in ([party.take(rows) for party in parties], [party.take(rows[:400]) for party in parties]):
            with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("fresh_equations",)):
                vfl.simulate(ckks_job(), later, ledgers=by_party)


def test_a_limit_refuses_before_disclosure_and_names_the_remedy(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer()
    by_party = ledgers(tmp_path, parties)
    by_party["bank"].trust("shop")
    by_party["shop"].set_limit("columns", Limit(6))
    vfl.simulate(ckks_job(), parties, ledgers=by_party)
    before, sent = by_party["shop"].path.read_bytes(), []

    def observe(event: Event) -> None:
        if (event.me, event.direction) == ("shop", "send"):
            sent.append(type(event.message).__name__)

    with pytest.raises(LeakageError) as refused:
        vfl.simulate(ckks_job(seed=1), parties, ledgers=by_party, observe=observe)
    assert str(refused.value) == (
        "party shop: its ledger allows all peers together at most 6 numbers about each row; bank has received 4 "
        "numbers about each row (27% of the columns) and would have received 8 numbers about each row (53% of the "
        "columns) after this run. To disclose less, run fewer epochs. To raise the limit: "
        "securevfl ledger --party shop --limit columns=8"
    )
    assert set(sent) <= {"RunHello", "Abort"}
    assert by_party["shop"].path.read_bytes() == before
    vfl.simulate(ckks_job(seed=1, epochs=2), parties, ledgers=by_party)
    by_party["shop"].set_limit("columns", Limit(10))
    vfl.simulate(ckks_job(seed=1), parties, ledgers=by_party)


def test_a_reached_limit_admits_runs_that_disclose_nothing_new(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer()
    by_party = ledgers(tmp_path, parties)
    by_party["bank"].trust("shop")
    vfl.simulate(ckks_job(), parties, ledgers=by_party)
    by_party["bank"].set_limit("labels", Limit(0.01, share=True))
    vfl.simulate(ckks_job(seed=1), parties, ledgers=by_party)
    accepting = ckks_job(batch_size=100, accepts=["columns", "fresh_equations"])
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party="bank"):
        vfl.simulate(accepting, parties, ledgers=by_party)


class Cut(Exception):
    """Raised in place of a lost process."""


def test_a_training_taken_up_again_is_one_run(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer()
    by_party = ledgers(tmp_path, parties)
    seen: list[int] = []
    exact = ckks_job(protocol="open")

    def cut_at(at: int) -> Callable[[int, int], None]:
        def on_round(done: int, of: int) -> None:
            seen.append(told(by_party["shop"], "columns", "bank").count)
            if done == at:
                raise Cut

        return on_round

    def attempt(at: int) -> vfl.Run:
        states = {party.name: Checkpoints(tmp_path / party.name, party.name, every=3) for party in parties}
        return vfl.simulate(exact, parties, ledgers=by_party, checkpoints=states, on_round=cut_at(at))

    counts = []
    for at in (1, 5, 9):
        with pytest.raises(Cut):
            attempt(at)
        counts.append(told(by_party["shop"], "columns", "bank").count)
    run = attempt(0)
    counts.append(told(by_party["shop"], "columns", "bank").count)
    assert counts == [1, 3, 6, 9]  # epochs of each session, including interrupted ones that were repeated
    assert min(seen) >= 1  # while a run is active, its disclosures are recorded in advance
    assert told(by_party["shop"], "columns", "bank").runs == 1
    assert {entry.run for ledger in by_party.values() for entry in ledger.read().entries} == {run.parts["bank"].run}


def test_a_run_refused_by_a_peer_records_nothing_undisclosed(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer()
    by_party = ledgers(tmp_path, parties)
    vfl.simulate(ckks_job(), parties, ledgers=by_party)
    by_party["shop"].set_limit("columns", Limit(4))
    entries = by_party["bank"].read().entries
    for _ in range(3):
        with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party="shop"):
            vfl.simulate(ckks_job(batch_size=100, accepts=["columns", "fresh_equations"]), parties, ledgers=by_party)
    assert by_party["bank"].read().entries == entries


def test_a_second_try_never_takes_back_what_the_first_has_told(tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    sizes = RunShape(
        "bank", 400, 0, 4, 100, EPOCHS, 1, {"shop": 10}, {"bank": 5, "shop": 10}, recovery_thresholds={"shop": 99.0}
    )

    def attempt(session: str, rounds: int, *, silent: bool = False) -> int:
        gate = DisclosureGate("shop")
        booking = LedgerSession(ledger, "shop", REGISTER, ckks_job(), sizes, gate, SessionId("run", session))
        gate.begin_iteration(rounds)
        booking.settle(silent=silent)
        return told(ledger, "columns", "bank").count

    assert attempt("a", 0, silent=True) == 0
    assert ledger.read().entries == ()
    assert attempt("b", 9) == 3 + 1  # started epochs, and the evaluation at the end
    assert attempt("c", 2) == 4 + 1 + 1
    assert attempt("d", 2, silent=True) == 6
    assert attempt("e", 16) == 6 + EPOCHS + 1


@pytest.mark.parametrize("kind", DISCLOSURE_KINDS)
@pytest.mark.parametrize("silent", [False, True])
def test_nothing_is_disclosed_after_the_end_of_a_session(kind: Kind, silent: bool, tmp_path: Path) -> None:
    """A thread may still answer a peer then, and nobody would enter what it sends."""
    sizes = RunShape("bank", 400, 0, 4, 100, EPOCHS, 1, {"shop": 10}, {"bank": 5, "shop": 10})
    ledger, gate = DisclosureLedger(tmp_path / "shop.ledger", "shop"), DisclosureGate("shop")
    session = LedgerSession(ledger, "shop", REGISTER, ckks_job(), sizes, gate, SessionId("run", "a"))
    session.settle(silent=silent)
    with raises_code(ProtocolError, "SVFL-STATE", party="shop"):
        gate.permit(DisclosureRecord("bank", kind, 1, 64, ("shop",)))
    gate.permit(DisclosureRecord("bank", kind, 1, 64, ("mill",)))  # about another party


def test_advance_entries_contain_past_evaluations(tmp_path: Path) -> None:
    """A killed process leaves only these.

    The first 16 of 40 iterations use subsets of the rows, and a run of 39 iterations would use subsets in 35.
    """
    job = vfl.Job(model="logistic", optimizer=vfl.BlockDescent(early_stop=0.0005), batch_size="growing", epochs=40)
    job = job.model_copy(update={"accepts": tuple(leak_kinds())})
    sizes = RunShape("bank", 100_000, 25_000, 1, 100_000, 40, 1, {"shop": 10}, {"bank": 5, "shop": 10})
    fixed = EvaluationSchedule.of_run(job, sizes).fixed
    assert len(fixed) == 3
    for until in range(1, 41):
        for party, group in (("bank", "verdicts"), ("shop", "evaluations")):
            ledger = DisclosureLedger(tmp_path / f"{party}{until}", party, until)
            LedgerSession(ledger, party, REGISTER, job, sizes, DisclosureGate(party), SessionId("run", "a"))
            entries = [entry.disclosure for entry in ledger.read().entries if entry.disclosure.group == group]
            bits = STOP_DECISION_BITS if party == "bank" else LOSS_SUM_BITS
            assert sum(item.count for item in entries) >= bits * sum(number <= until for number in fixed)


def test_scores_count_on_a_table_whose_first_try_was_refused(tmp_path: Path) -> None:
    """Such a training is counted under the first try's name, and its model has that of the session that trained it."""
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    sizes = RunShape(
        "bank", 400, 0, 4, 100, EPOCHS, 1, {"shop": 10}, {"bank": 5, "shop": 10}, recovery_thresholds={"shop": 99.0}
    )
    states = Checkpoints(tmp_path / "shop.states", "shop")

    def attempt(session: str, consent: Callable[[], None]) -> None:
        account = states.begin(b"job", session)
        booking = LedgerSession(
            ledger, "shop", REGISTER, ckks_job(), sizes, DisclosureGate("shop"), SessionId(account, session), consent
        )
        booking.settle(silent=False)

    def refused() -> None:
        raise ConsentError("no")

    with pytest.raises(ConsentError):
        attempt("first", refused)
    attempt("second", lambda: None)
    ledger.record_answer("second", "asked", Disclosure("scores", "bank", ("shop",), 3, 0))
    assert {entry.table for entry in ledger.read().entries} == {REGISTER.name}


def test_a_run_that_stops_early_is_set_to_what_it_came_to(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer()
    by_party = ledgers(tmp_path, parties)
    easy = ckks_job(epochs=50, target=vfl.Target(metric="auc", value=0.9))
    run = vfl.simulate(easy, parties, ledgers=by_party)
    epochs = int(run.history[-1]["epoch"]) + 1
    assert epochs < 10
    assert (
        told(by_party["shop"], "columns", "bank").count <= 4 * epochs + 1
    )  # an evaluation a round, and one at the end


def test_a_run_is_entered_before_it_tells_anything(tmp_path: Path) -> None:
    parties = vfl.datasets.breast_cancer()
    by_party = ledgers(tmp_path, parties)
    missing: list[str] = []

    def observe(event: Event) -> None:
        named = type(event.message).__name__
        if event.direction == "send" and named != "RunHello" and not by_party[event.me].read().entries:
            missing.append(f"{event.me} {named}")

    vfl.simulate(ckks_job(), parties, ledgers=by_party, observe=observe)
    assert missing == []

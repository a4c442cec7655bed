"""An abort that may depend on data is one bit: recorded before it is sent, limited, and forgiven by the owner only."""

from __future__ import annotations

import ast
import itertools
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.consent.ledger_session import LedgerSession, SessionId
from securevfl.disclosure.counts import Disclosure, Kind
from securevfl.disclosure.ledger import MAX_EARLY_ABORTS, DisclosureLedger
from securevfl.disclosure.limits import Limit
from securevfl.errors import DATA_DEPENDENT_REASONS, AnswerLimitError, LeakageError, StorageError, stop_reason_of
from securevfl.families.run_facts import pooled_run_facts
from securevfl.organisations import peer_session
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.runtime.disclosure_gate import DisclosureGate
from securevfl.transport.peers import Peers
from tests.builders import raises_code
from tests.parsed import nodes_of_package
from tests.transport.test_aborts import ERROR_KINDS, made


@pytest.fixture
def aborts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return sessions without a network: the code of each abort, and the attempts that were recorded before it."""
    seen: list[tuple[str, int]] = []

    def post(credentials: Any, peers: Peers, *args: Any, **keys: Any) -> Any:
        return SimpleNamespace(
            open=lambda wait: None, keys={}, me="shop", close=lambda wait: None, abandon=lambda: None, unfinished=False
        )

    def channel(*args: Any, **keys: Any) -> Any:
        def abort(others: Any, error: BaseException, **keys: Any) -> None:
            book = current[0].read()
            seen.append((stop_reason_of(error), sum(attempt.count for attempt in book.tries)))

        return SimpleNamespace(abort=abort, clock=SimpleNamespace(tick=lambda kind: None))

    monkeypatch.setattr(peer_session, "SecureTransport", post)
    monkeypatch.setattr(peer_session, "Channel", channel)
    monkeypatch.setattr(peer_session, "Credentials", lambda *args: None)
    monkeypatch.setattr(peer_session, "expiry_warnings", lambda *args: ())
    monkeypatch.setattr(peer_session, "_finish", lambda *args: None)
    return seen


current: list[DisclosureLedger] = []


def ending(ledger: DisclosureLedger, with_: tuple[str, ...], error: BaseException | None = None) -> None:
    """Run a session of this party with these others that ends with this error."""
    current[:] = [ledger]
    everyone = (*with_, ledger.party)
    address = {name: f"127.0.0.1:{7000 + at}" for at, name in enumerate(everyone)}
    peers = Peers(active=everyone[0], passives=everyone[1:], address=address)

    def talk(channel: Any) -> None:
        if error is not None:
            raise error

    run_session(ledger.party, PeerSettings(peers, Path()), {}, talk, ledger=ledger)


def ended(ledger: DisclosureLedger, with_: tuple[str, ...]) -> int:
    return sum(attempt.count for attempt in ledger.read().tries if attempt.peers == tuple(sorted(with_)))


@pytest.mark.parametrize("kind", ERROR_KINDS, ids=lambda kind: kind.__name__)
def test_data_dependent_errors_are_recorded_before_they_are_sent(
    kind: type[BaseException], aborts: list[tuple[str, int]], tmp_path: Path
) -> None:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    with pytest.raises(BaseException):  # noqa: B017
        ending(ledger, ("bank",), made(kind))
    ((code, before),) = aborts
    assert before == ended(ledger, ("bank",)) == (1 if code in DATA_DEPENDENT_REASONS else 0)


def test_refused_attempts_do_not_reveal_120_labels(aborts: list[tuple[str, int]], tmp_path: Path) -> None:
    """Each attempt asks a leak check whether a rare label has enough rows; 260 attempts read 120 labels."""
    ledger, answers = DisclosureLedger(tmp_path / "shop.ledger", "shop"), []
    for _ in range(260):
        try:
            ending(ledger, ("bank",), LeakageError("fewer rows of the rarest label than required"))
        except LeakageError as error:
            answers.append(error.code != "SVFL-LIMIT-REACHED")
    print(f"{sum(answers)} of 260 answers")
    assert sum(answers) == MAX_EARLY_ABORTS == len(aborts)


@pytest.mark.parametrize(
    ("kind", "learner", "known_count", "counted"),
    [
        ("ids", "bank", True, False),
        ("scores", "bank", True, False),
        ("ids", "bank", False, True),  # which rows may be scored depends on the table
        ("scores", "bank", False, True),
        ("ids", "telco", True, True),  # the limit is reached by answers that another party received
        ("scores", "telco", True, True),
    ],
)
def test_refused_requests_state_their_limit(
    kind: Kind,
    learner: str,
    known_count: bool,
    counted: bool,
    aborts: list[tuple[str, int]],
    tmp_path: Path,
) -> None:
    """A requesting party that can compute a refusal learns nothing by it, so no number of them blocks the service."""
    ledger, refused = DisclosureLedger(tmp_path / "shop.ledger", "shop"), 0
    ledger.set_limit(kind, Limit(10))
    ledger.record_answer("training", "first", Disclosure(kind, learner, ("shop",), 8, 0))
    for attempt in range(MAX_EARLY_ABORTS + 2):
        request = Disclosure(kind, "bank", ("shop",), 3, 0)
        with raises_code(AnswerLimitError, "SVFL-LIMIT-REACHED") as caught:
            ledger.record_answer("training", f"request {attempt}", request, known_count=known_count)
        with pytest.raises(LeakageError) as last:
            ending(ledger, ("bank",), caught.value)
        refused += isinstance(last.value, AnswerLimitError)
    assert {reason for reason, _ in aborts} == {"limit"}
    assert refused == (MAX_EARLY_ABORTS if counted else MAX_EARLY_ABORTS + 2)
    assert ended(ledger, ("bank",)) == (MAX_EARLY_ABORTS if counted else 0)


@pytest.mark.parametrize("kind", ["ids", "scores"])
@pytest.mark.parametrize("answered", list(itertools.product(("this", "another"), ("bank", "telco"))))
def test_a_refusal_follows_from_answers_about_its_table(kind: Kind, answered: tuple[str, str], tmp_path: Path) -> None:
    """Each of two peers has received answers about each of two tables, and most of them are of one peer and table."""
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    ledger.set_limit(kind, Limit(20))
    for training, learner in itertools.product(("this", "another"), ("bank", "telco")):
        count = 12 if (training, learner) == answered else 6
        ledger.record_answer(training, f"{training}, {learner}", Disclosure(kind, learner, ("shop",), count, 0))
    request = Disclosure(kind, "bank", ("shop",), 10, 0)
    for ask in (ledger.check_answer, partial(ledger.record_answer, known_count=True)):
        with raises_code(AnswerLimitError, "SVFL-LIMIT-REACHED") as caught:
            ask("this", "request", request)
        assert caught.value.depends_on_table == (answered != ("this", "bank"))


def test_a_check_of_a_limit_enters_nothing(tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    ledger.set_limit("scores", Limit(10))
    ledger.check_answer("training", "run", Disclosure("scores", "bank", ("shop",), 10, 0))
    with raises_code(AnswerLimitError, "SVFL-LIMIT-REACHED"):
        ledger.check_answer("training", "run", Disclosure("scores", "bank", ("shop",), 11, 0))
    assert not ledger.read().entries


def test_an_abort_that_cannot_be_recorded_is_reported_as_such(
    aborts: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")

    def full(self: DisclosureLedger, peers: Any) -> None:
        raise StorageError(self.path, OSError(28, "no room"))

    monkeypatch.setattr(DisclosureLedger, "record_early_abort", full)
    with pytest.raises(LeakageError):
        ending(ledger, ("bank",), LeakageError("no"))
    assert aborts == [("storage", 0)]


def test_all_peers_together_have_one_number_of_attempts(aborts: list[tuple[str, int]], tmp_path: Path) -> None:
    """Four names of one bank have no more attempts than one; the error names the peers that have used most."""
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    for attempt in range(MAX_EARLY_ABORTS):
        with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED"):
            ending(ledger, (f"bank-{attempt % 4}",) if attempt % 8 else ("bank-0", "telco"), LeakageError("no"))
    for others in (("bank-0",), ("bank-4",), ("bank-0", "telco")):
        with raises_code(LeakageError, "SVFL-LIMIT-REACHED", peers=others):
            ending(ledger, others)
    ledger.reset_early_aborts("bank-1")
    ending(ledger, ("bank-4",))


@pytest.mark.parametrize("kind", [tuple, list, set])
@pytest.mark.parametrize("others", list(itertools.permutations(("telco", "bank", "agency"))))
def test_attempts_do_not_depend_on_the_order_of_peers(kind: Any, others: tuple[str, ...], tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    for _ in range(3):
        ledger.record_early_abort(kind(others))
    assert ended(ledger, others) == 3
    for named in itertools.permutations(others):
        ledger.record_early_abort(named)
    assert ended(ledger, others) == 9
    (only,) = ledger.read().tries
    assert only.peers == tuple(sorted(others))


@pytest.mark.parametrize("forgiven", ["bank", "telco", "agency", "nobody"])
def test_sessions_of_every_set_with_a_peer_are_forgiven(forgiven: str, tmp_path: Path) -> None:
    """All sets of one, two and three peers, each with its own number of attempts."""
    ledger, peers = DisclosureLedger(tmp_path / "shop.ledger", "shop"), ("agency", "bank", "telco")
    sets = [group for size in (1, 2, 3) for group in itertools.combinations(peers, size)]
    for number, group in enumerate(sets, 1):
        for _ in range(number):
            ledger.record_early_abort(group)
    ledger.reset_early_aborts(forgiven)
    expected = {group: number for number, group in enumerate(sets, 1) if forgiven not in group}
    assert {attempt.peers: attempt.count for attempt in ledger.read().tries} == expected


def test_the_owner_forgives_by_a_command(aborts: list[tuple[str, int]], tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    for _ in range(MAX_EARLY_ABORTS):
        with pytest.raises(LeakageError):
            ending(ledger, ("bank",), LeakageError("no"))
    command = ["ledger", "--ledger", str(ledger.path)]
    text = CliRunner().invoke(app, command).output
    assert f"with all peers: {MAX_EARLY_ABORTS} of" in " ".join(text.split())
    assert CliRunner().invoke(app, [*command, "--reset-aborts", "bank"]).exit_code == 0
    ending(ledger, ("bank",))
    assert not ledger.read().tries


def test_a_peer_that_is_admitted_and_leaves_used_an_attempt(tmp_path: Path) -> None:
    """That a run was admitted is one bit as well, unless the run discloses more that is recorded."""
    rng = np.random.default_rng(0)
    bank = vfl.Party("bank", rng.normal(size=(400, 3)), rng.integers(0, 2, 400), ids=np.arange(400))
    shop = vfl.Party("shop", rng.normal(size=(400, 9)), ids=np.arange(400))
    job = vfl.Job(model=vfl.Logistic(), optimizer=vfl.FedSGD(lr=0.1), batch_size=200, epochs=1)
    ledger = DisclosureLedger(tmp_path / "bank.ledger", "bank")
    sizes = pooled_run_facts(job, [bank, shop]).shape
    booking = LedgerSession(ledger, "bank", bank.register, job, sizes, DisclosureGate("bank"), SessionId("run", "1"))
    booking.record_disconnect()
    booking.settle(silent=True)
    assert ended(ledger, ("shop",)) == 1
    again = LedgerSession(ledger, "bank", bank.register, job, sizes, DisclosureGate("bank"), SessionId("run", "2"))
    again.settle(silent=False)  # a session that ends normally is no abort, even if it disclosed nothing of this party
    assert ended(ledger, ("shop",)) == 1
    assert not ledger.read().entries


def test_every_session_states_its_ledger() -> None:
    """Only the measurement of links, which uses no table, has no ledger."""
    without = []
    for path, tree in nodes_of_package().items():
        for node in tree:
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "run_session":
                (local,) = [keyword.value for keyword in node.keywords if keyword.arg == "ledger"]
                if isinstance(local, ast.Constant):
                    without.append(path.name)
    assert without == ["line_measurement.py"]

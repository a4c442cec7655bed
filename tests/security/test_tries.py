"""An end that may follow from data is a bit a try: entered before it is told, limited, forgiven by the owner alone."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.consent.ledger_session import LedgerSession, SessionId
from securevfl.disclosure.ledger import MAX_EARLY_ABORTS, DisclosureLedger
from securevfl.errors import DATA_DEPENDENT_REASONS, LeakageError, StorageError, stop_reason_of
from securevfl.families.run_facts import pooled_run_facts
from securevfl.organisations import peer_session
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.runtime.disclosure_gate import DisclosureGate
from securevfl.transport.peers import Peers
from tests.transport.test_aborts import KINDS, made


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Conversations without a line; of each end its code, and how many tries were entered by then."""
    seen: list[tuple[str, int]] = []

    def post(credentials: Any, peers: Peers, *args: Any, **keys: Any) -> Any:
        return SimpleNamespace(
            open=lambda wait: None, keys={}, me="shop", close=lambda wait: None, abandon=lambda: None, unfinished=False
        )

    def channel(*args: Any, **keys: Any) -> Any:
        def abort(others: Any, error: BaseException, **keys: Any) -> None:
            book = current[0].read()
            seen.append((stop_reason_of(error), sum(each.count for each in book.tries)))

        return SimpleNamespace(abort=abort, clock=SimpleNamespace(tick=lambda kind: None))

    monkeypatch.setattr(peer_session, "SecureTransport", post)
    monkeypatch.setattr(peer_session, "Channel", channel)
    monkeypatch.setattr(peer_session, "Credentials", lambda *args: None)
    monkeypatch.setattr(peer_session, "expiry_warnings", lambda *args: ())
    monkeypatch.setattr(peer_session, "_part", lambda *args: None)
    return seen


current: list[DisclosureLedger] = []


def ending(ledger: DisclosureLedger, with_: tuple[str, ...], error: BaseException | None = None) -> None:
    """Hold a conversation of this party with these others that ends with this error."""
    current[:] = [ledger]
    everyone = (*with_, ledger.party)
    address = {name: f"127.0.0.1:{7000 + at}" for at, name in enumerate(everyone)}
    peers = Peers(active=everyone[0], passives=everyone[1:], address=address)

    def talk(channel: Any) -> None:
        if error is not None:
            raise error

    run_session(ledger.party, PeerSettings(peers, Path()), {}, talk, ledger=ledger)


def ended(ledger: DisclosureLedger, with_: tuple[str, ...]) -> int:
    return sum(each.count for each in ledger.read().tries if each.peers == tuple(sorted(with_)))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_that_may_follow_from_data_is_entered_before_it_is_told(
    kind: type[BaseException], told: list[tuple[str, int]], tmp_path: Path
) -> None:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    with pytest.raises(BaseException):  # noqa: B017
        ending(ledger, ("bank",), made(kind))
    ((code, before),) = told
    assert before == ended(ledger, ("bank",)) == (1 if code in DATA_DEPENDENT_REASONS else 0)


def test_120_labels_are_not_read_by_refused_tries(told: list[tuple[str, int]], tmp_path: Path) -> None:
    """Each try asks whether there are as many rows of a rare label, which a guard says; 260 tries read 120 labels."""
    ledger, answers = DisclosureLedger(tmp_path / "shop.ledger", "shop"), []
    for _ in range(260):
        try:
            ending(ledger, ("bank",), LeakageError("fewer rows of the rarest label than are asked for"))
        except LeakageError as error:
            answers.append(f"fewer than {MAX_EARLY_ABORTS}" not in str(error))
    print(f"{sum(answers)} of 260 answers")
    assert sum(answers) == MAX_EARLY_ABORTS == len(told)


def test_an_end_that_cannot_be_entered_is_told_as_that(
    told: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")

    def full(self: DisclosureLedger, peers: Any) -> None:
        raise StorageError(self.path, OSError(28, "no room"))

    monkeypatch.setattr(DisclosureLedger, "record_early_abort", full)
    with pytest.raises(LeakageError):
        ending(ledger, ("bank",), LeakageError("no"))
    assert told == [("storage", 0)]


def test_no_peer_locks_out_another(told: list[tuple[str, int]], tmp_path: Path) -> None:
    """Not alone, and not in company: those who meet the party without it have tries of their own."""
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    for others in (("bank",), ("bank", "telco")):
        for _ in range(MAX_EARLY_ABORTS):
            with pytest.raises(LeakageError, match=r"^no$"):
                ending(ledger, others, LeakageError("no"))
        with pytest.raises(LeakageError, match="--forgive bank"):
            ending(ledger, others)
    ending(ledger, ("telco",))
    ledger.reset_early_aborts("telco")
    ending(ledger, ("bank", "telco"))
    with pytest.raises(LeakageError, match="--forgive bank"):
        ending(ledger, ("bank",))


@pytest.mark.parametrize("kind", [tuple, list, set])
@pytest.mark.parametrize("others", list(itertools.permutations(("telco", "bank", "agency"))))
def test_in_whatever_order_peers_are_named_their_tries_are_the_same(
    kind: Any, others: tuple[str, ...], tmp_path: Path
) -> None:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    for _ in range(3):
        ledger.record_early_abort(kind(others))
    assert ended(ledger, others) == 3
    for named in itertools.permutations(others):
        ledger.record_early_abort(named)
    assert ended(ledger, others) == 9
    (only,) = ledger.read().tries
    assert only.peers == tuple(sorted(others))


def test_the_owner_forgives_by_a_command(told: list[tuple[str, int]], tmp_path: Path) -> None:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    for _ in range(MAX_EARLY_ABORTS):
        with pytest.raises(LeakageError):
            ending(ledger, ("bank",), LeakageError("no"))
    command = ["ledger", "--ledger", str(ledger.path)]
    shown = CliRunner().invoke(app, command).output
    assert f"ended early with bank: {MAX_EARLY_ABORTS} of {MAX_EARLY_ABORTS}" in " ".join(shown.split())
    assert CliRunner().invoke(app, [*command, "--forgive", "bank"]).exit_code == 0
    ending(ledger, ("bank",))
    assert not ledger.read().tries


def test_who_is_let_through_and_breaks_off_has_tried(tmp_path: Path) -> None:
    """That a run was admitted is a bit as well, unless it goes on to tell what is entered as told."""
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
    again.settle(silent=False)  # one that ended well, though nothing of this party was told
    assert ended(ledger, ("shop",)) == 1
    assert not ledger.read().entries


def test_every_conversation_says_whose_ledger_it_goes_by() -> None:
    """None only where no table is there: the lines are measured."""
    without = []
    for path in Path(vfl.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "run_session":
                (own,) = [each.value for each in node.keywords if each.arg == "ledger"]
                if isinstance(own, ast.Constant):
                    without.append(path.name)
    assert without == ["measure.py"]

"""A party that serves gives the same scores as a joint prediction, within its owner's limits, also after failures."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from builders import raises_code

import securevfl as vfl
from securevfl.credit.reason_codes import ReasonCodePolicy
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.limits import Limit
from securevfl.errors import STOP_REASONS, ConfigError, IdError, LeakageError, PartiesError, TransportError
from securevfl.organisations.align import align_privately
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.predict import predict_with
from securevfl.organisations.prediction import ScoreCounts
from securevfl.organisations.scoring import ScoreClient, score_rows, scoring_handshake, scoring_settings
from securevfl.organisations.serve import RequestOutcome, Server
from securevfl.organisations.session_manager import SessionLimits
from securevfl.protocols.alignment import psi_work
from securevfl.training.new_rows import IndexedRows, rows_of_array

CANCER_PARTIES = vfl.datasets.breast_cancer(3)


@pytest.fixture(scope="module")
def run() -> vfl.Run:
    job = vfl.Job(
        model=vfl.Logistic(l2=1e-3),
        optimizer=vfl.FedBCD(lr=0.3),
        protocol=vfl.Protocol(sum="pairwise", residual="open"),
        batch_size=200,
        epochs=2,
    )
    return vfl.simulate(job, CANCER_PARTIES)


def held(run: vfl.Run, name: str, rows: Any = slice(None)) -> IndexedRows:
    party = next(candidate for candidate in CANCER_PARTIES if candidate.name == name)
    part = run.parts[name]
    return IndexedRows.of(name, rows_of_array(part, party.X[rows], np.arange(len(party))[rows]))


def limits(ledger: DisclosureLedger, **most: int) -> DisclosureLedger:
    for kind, maximum in ({"scores": 10_000, "ids": 10_000} | most).items():
        ledger.set_limit(kind, Limit(maximum))  # type: ignore[arg-type]
    return ledger


@contextmanager
def serving(
    meeting: Any,
    run: vfl.Run,
    answers: int,
    *,
    code_policy: Mapping[str, ReasonCodePolicy] | None = None,
    session_limits: SessionLimits = SessionLimits(),  # noqa: B008
    max_ids_of: Mapping[str, int] | None = None,
    **options: Any,
) -> Iterator[dict[str, list[RequestOutcome]]]:
    """All parties but the leading one serve until they have answered this number of requests. Yields all outcomes."""
    ended: dict[str, list[RequestOutcome]] = {name: [] for name in meeting.peers.passives}

    def play(name: str) -> None:
        ledger = DisclosureLedger(meeting.folder / f"{name}.ledger", name)
        server = Server(
            run.parts[name],
            held(run, name),
            replace(PeerSettings.of(meeting.kit(name) / "peers.toml", timeout=20, patience=5), limits=session_limits),
            ledger=ledger if ledger.path.exists() else limits(ledger),
            on_request=ended[name].append,
            code_policy=(code_policy or {}).get(name),
            **options | ({} if max_ids_of is None else {"max_ids": max_ids_of[name]}),
        )
        with suppress(KeyboardInterrupt):  # a session that continues
            server.run(over)

    def over() -> bool:
        """Return whether the shop has answered this number of requests; it may be slightly later than the others."""
        deadline = time.monotonic() + 1
        while sum(request.outcome == "answered" for request in ended["shop"]) < answers:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    servers = [threading.Thread(target=play, args=(name,), daemon=True) for name in ended]
    for thread in servers:
        thread.start()
    yield ended
    for thread in servers:
        thread.join(240)
        assert not thread.is_alive()


def ask(meeting: Any, run: vfl.Run, rows: IndexedRows) -> tuple[ScoreCounts, dict[int, float]]:
    scores: dict[int, float] = {}

    def keep(ids: list[Any] | None, block: Any) -> None:
        assert ids is not None
        scores.update(zip(ids, block.proba[:, 1].tolist(), strict=True))

    venue = PeerSettings.of(meeting.kit("bank") / "peers.toml", timeout=20, patience=5)
    return score_rows(run.parts["bank"], rows, venue, on_block=keep), scores


def test_scores_are_those_of_the_run_for_rows_that_all_have(meet: Any, run: vfl.Run) -> None:
    meeting = meet(3)
    expected = run.predict_proba({party.name: party.X for party in CANCER_PARTIES})[:, 1]
    strangers = held(run, "bank", slice(0, 5))
    with serving(meeting, run, 2) as ended:
        answered, scores = ask(meeting, run, held(run, "bank", slice(100, 140)))
        assert answered == ScoreCounts(40, 40)
        assert scores == pytest.approx({row: expected[row] for row in range(100, 140)}, abs=1e-9)
        mixed = IndexedRows("bank", [0, 1, 2, 100_003, 100_004], strangers.X)
        answered, scores = ask(meeting, run, mixed)
        assert answered == ScoreCounts(5, 3)
        assert scores == pytest.approx({row: expected[row] for row in range(3)}, abs=1e-9)
    assert [request.outcome for request in ended["shop"]] == ["answered", "answered"]
    assert ended["telco"][1].counts == ScoreCounts(5, 3)
    disclosed = {
        (entry.disclosure.kind, entry.disclosure.count)
        for entry in DisclosureLedger.find(meeting.folder / "shop.ledger").read().entries
    }
    assert disclosed == {("ids", 40), ("scores", 40), ("ids", 5), ("scores", 3)}


@pytest.mark.parametrize(
    ("most", "size", "reason"),
    [
        ({"ids": 9}, 4, "its ledger allows all peers together at most 9 answers to whether an id is in the table"),
        ({"scores": 9}, 10, "its ledger allows all peers together at most 9 scores"),
    ],
)
def test_limits_hold_and_the_next_request_is_answered(
    meet: Any, run: vfl.Run, most: dict[str, int], size: int, reason: str
) -> None:
    """Ten rows come in requests of one session, of which the last one exceeds the limit."""
    meeting, before = meet(3), 9 // size
    limits(DisclosureLedger(meeting.folder / "shop.ledger", "shop"), **most)
    with serving(meeting, run, before + 1, max_ids=size) as ended:
        with pytest.raises(TransportError, match="has stopped") as refused:
            ask(meeting, run, held(run, "bank", slice(0, 10)))
        assert STOP_REASONS["limit"] in str(refused.value)
        assert not DisclosureLedger.find(meeting.folder / "shop.ledger").read().tries
        rows_left = min(4, 9 - before * size)
        assert ask(meeting, run, held(run, "bank", slice(0, rows_left)))[0].scored == rows_left
    last = {name: requests[before] for name, requests in ended.items()}
    assert [name for name, request in last.items() if request.outcome == "refused"] == ["shop"]
    assert reason in last["shop"].reason
    for requests in ended.values():
        assert {request.outcome for request in [*requests[:before], requests[-1]]} == {"answered"}
        assert all(requests[before].sent < request.sent for request in requests[:before])


def test_concurrent_clients_do_not_wait_for_a_stalled_one(meet: Any, run: vfl.Run) -> None:
    """Two sessions stay open. The third client is refused, and receives its scores once one of them has ended."""
    meeting, held_open, scored = meet(3), [threading.Event(), threading.Event()], list[int]()
    may_end = [threading.Event(), threading.Event()]

    def stay(number: int) -> None:
        def talk(channel: Any) -> None:
            asker = ScoreClient(
                run.parts["bank"], channel, DisclosureLedger.open("bank", meeting.folder / "bank.ledger")
            )
            held_open[number].set()
            assert may_end[number].wait(240)
            rows = held(run, "bank", slice(number, number + 3))
            scored.append(int(asker.ask(rows.ids, rows.X).scored.sum()))
            asker.end()

        venue = PeerSettings.of(meeting.kit("bank") / "peers.toml", timeout=20, patience=5)
        run_session("bank", scoring_settings(venue), scoring_handshake(run.parts["bank"]), talk, ledger=None)

    with serving(meeting, run, 3, session_limits=SessionLimits(max_sessions=2, max_waiting=0)) as ended:
        clients = [threading.Thread(target=stay, args=(number,), daemon=True) for number in range(2)]
        for number, client in enumerate(clients):
            client.start()
            assert held_open[number].wait(240)
        with pytest.raises(TransportError, match="maximum of 2 sessions"):
            ask(meeting, run, held(run, "bank", slice(0, 5)))
        may_end[1].set()
        clients[1].join(240)
        assert scored == [3]
        until(lambda: sum(thread.name == "session" for thread in threading.enumerate()) == 2)  # of two parties
        answered, _ = ask(meeting, run, held(run, "bank", slice(0, 5)))
        assert answered == ScoreCounts(5, 5)
        until(lambda: sum(thread.name.startswith("read ") for thread in threading.enumerate()) == 3)  # two lines
        may_end[0].set()
        clients[0].join(240)
    assert scored == [3, 3]
    assert [request.outcome for request in ended["shop"]] == ["answered"] * 3


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_invalid_request_ends_alone_with_its_reason(meet: Any, run: vfl.Run) -> None:
    meeting = meet(3)
    with serving(meeting, run, 1) as ended:
        with pytest.raises((ConfigError, TransportError), match="task"):
            predict_with(
                run.parts["bank"], CANCER_PARTIES[0].X[:3], meeting.kit("bank") / "peers.toml", timeout=20, patience=5
            )
        assert ask(meeting, run, held(run, "bank", slice(0, 4)))[0].scored == 4
    assert {request.outcome for request in ended["shop"][:-1]} == {"failed"}


def test_new_customers_are_said_to_be_unknown_and_count_as_asked(meet: Any, run: vfl.Run) -> None:
    meeting = meet(3)
    with serving(meeting, run, 1) as ended:
        strangers = IndexedRows("bank", [10**6, 10**7], held(run, "bank", slice(0, 2)).X)
        with raises_code(IdError, "SVFL-ID-NO-MATCH", party="bank"):
            ask(meeting, run, strangers)
    assert [request.counts for request in ended["shop"]] == [ScoreCounts(2, 0)]
    entries = DisclosureLedger.find(meeting.folder / "shop.ledger").read().entries
    assert [(entry.disclosure.kind, entry.disclosure.count) for entry in entries] == [("ids", 2)]


@pytest.mark.parametrize("other", [12, 7])
def test_more_rows_than_a_request_may_have_come_in_several(meet: Any, run: vfl.Run, other: int) -> None:
    """The smallest of all servers' limits counts, whichever server has it."""
    meeting, size = meet(3), min(9, other)
    with serving(meeting, run, 3, max_ids_of=dict(zip(meeting.peers.passives, (9, other), strict=True))) as ended:
        answered, scores = ask(meeting, run, held(run, "bank", slice(0, 20)))
    assert answered == ScoreCounts(20, 20)
    assert list(scores) == list(range(20))
    last = 20 - 2 * size
    for requests in ended.values():
        assert [request.counts for request in requests] == [ScoreCounts(rows, rows) for rows in (size, size, last)]
        assert requests[0].sent > requests[1].sent > requests[2].sent > 0  # the first one opens the session


def test_a_request_with_too_many_ids_learns_nothing(meet: Any, run: vfl.Run) -> None:
    meeting = meet(3)
    with serving(meeting, run, 1, max_ids=9) as ended:
        venue = PeerSettings.of(meeting.kit("bank") / "peers.toml", timeout=20, patience=5)
        with raises_code(TransportError, "SVFL-PEER-STOPPED", stopped="limit"):
            run_session(
                "bank", venue, scoring_handshake(run.parts["bank"]), partial(deviate, run, meeting, 10, 10), ledger=None
            )
        ask(meeting, run, held(run, "bank", slice(0, 4)))
    assert [request.outcome for request in ended["shop"]][-1:] == ["answered"]
    assert "answered" not in [request.outcome for request in ended["shop"][:-1]]


def deviate(run: vfl.Run, meeting: Any, ids_announced: int, ids_sent: int, channel: Any) -> Any:
    """Announce a number of ids, and request others."""
    part = run.parts["bank"]
    asking = ScoreClient(part, channel, DisclosureLedger(meeting.folder / "bank.ledger", "bank"))
    asking._announce(ids_announced)
    return align_privately("bank", range(ids_sent), channel, active="bank", passives=part.parties[1:], ledger=None)


@pytest.mark.parametrize("many", [4096, 20], ids=["by points", "by transfers"])
def test_who_asks_about_more_ids_than_it_says_is_told_nothing(
    meet: Any, run: vfl.Run, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attack: the peer announces one id, which is counted, and aligns with all possible ids."""
    meeting = meet(3)
    monkeypatch.setattr(psi_work, "MIN_ROWS_FOR_TRANSFERS", many)
    limits(DisclosureLedger(meeting.folder / "shop.ledger", "shop"), ids=10)
    venue = PeerSettings.of(meeting.kit("bank") / "peers.toml", None, None, 20, 5)
    with serving(meeting, run, 1, max_ids=10) as ended:
        with raises_code(TransportError, "SVFL-PEER-STOPPED", stopped="refused"):
            run_session(
                "bank",
                venue,
                scoring_handshake(run.parts["bank"]),
                partial(deviate, run, meeting, 1, len(CANCER_PARTIES[0])),
                ledger=None,
            )
        ask(meeting, run, held(run, "bank", slice(0, 4)))
    assert [request.outcome for request in ended["shop"]][-1:] == ["answered"]
    assert "answered" not in [request.outcome for request in ended["shop"][:-1]]


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (lambda run, at: Server(run.parts["bank"], held(run, "bank"), at), "Run `securevfl score` at bank"),
        (lambda run, at: score_rows(run.parts["shop"], held(run, "shop"), at, on_block=print), "securevfl serve"),
    ],
)
def test_who_leads_asks_and_who_does_not_answers(meet: Any, run: vfl.Run, do: Callable[..., Any], message: str) -> None:
    with pytest.raises(PartiesError, match=message):
        do(run, PeerSettings.of(meet(3).kit("bank") / "peers.toml"))


def test_nobody_serves_without_limits(meet: Any, run: vfl.Run) -> None:
    meeting = meet(3)
    ledger = DisclosureLedger(meeting.folder / "shop.ledger", "shop")
    ledger.set_limit("scores", Limit(10))
    with raises_code(ConfigError, "SVFL-LIMIT-MISSING", kinds=("ids",)):
        Server(run.parts["shop"], held(run, "shop"), PeerSettings.of(meeting.kit("shop") / "peers.toml"), ledger=ledger)


def test_requests_reveal_membership_and_every_id_is_counted(meet: Any, run: vfl.Run) -> None:
    """An attack: the leading party invents ids and learns which of them exist, up to the owner's limit."""
    meeting, X = meet(3), held(run, "bank", slice(0, 60)).X
    limits(DisclosureLedger(meeting.folder / "shop.ledger", "shop"), ids=60)
    guessed = [int(number) for number in np.random.default_rng(5).permutation(1200)[:60]]
    with serving(meeting, run, 1) as ended:
        _, scores = ask(meeting, run, IndexedRows("bank", guessed, X))
        assert set(scores) == {
            guess for guess in guessed if guess < len(CANCER_PARTIES[1])
        }  # each guess is confirmed or refuted
        assert 0 < len(scores) < len(guessed)
    assert ended["shop"][0].counts == ScoreCounts(60, len(scores))
    before = DisclosureLedger.find(meeting.folder / "shop.ledger")
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party="shop"):
        before.record_answer(run.parts["shop"].run, "next", Disclosure("ids", "bank", ("shop",), 1, 0))


def test_scores_of_a_party_with_one_column_tell_the_column() -> None:
    """An attack: f minus the local summand is a line in a peer's only column; two known rows give the rest."""
    bank, shop = vfl.datasets.breast_cancer(2)
    shop = vfl.Party("shop", shop.X[:, :1], ids=shop.ids)
    job = vfl.Job(
        model=vfl.Logistic(), optimizer=vfl.FedBCD(lr=0.3), protocol=vfl.Protocol(residual="open"), epochs=2,
        accepts=["columns"],
    )  # fmt: skip
    run = vfl.simulate(job, [bank, shop])
    f = run.decision({"bank": bank.X, "shop": shop.X})[:, 0]
    part = run.parts["bank"]
    other = f - part.rows(bank.X) @ part.theta[:-1, 0]
    slope = (shop.X[1, 0] - shop.X[0, 0]) / (other[1] - other[0])
    read = shop.X[0, 0] + slope * (other - other[0])
    np.testing.assert_allclose(read, shop.X[:, 0], rtol=1e-6)  # so scores are counted, and have a limit

"""A gateway answers or refuses each waiting row once, even if applications give up or disconnect."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.errors import TransportError
from securevfl.organisations import gateway
from securevfl.organisations.gateway import Gateway, ServiceUnavailable
from securevfl.organisations.gateway_rows import RequestedRow
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.training.new_rows import IndexedRows, rows_of_array
from securevfl.transport.peers import Peers
from tests.builders import raises_code


@pytest.fixture(scope="module")
def part() -> Any:
    job = vfl.Job(model=vfl.Logistic(), optimizer=vfl.FedBCD(lr=0.3), protocol=vfl.Protocol(residual="open"), epochs=1)
    return vfl.simulate(job.model_copy(update={"accepts": ("columns",)}), vfl.datasets.breast_cancer()).parts["bank"]


@pytest.fixture
def requests() -> list[list[Any]]:
    return []


@pytest.fixture
def waiting(part: Any, tmp_path: Path) -> Gateway:
    """A gateway that has not begun, whose parties are there."""
    bank = vfl.datasets.breast_cancer()[0]
    rows = IndexedRows.of("bank", rows_of_array(part, bank.X, np.arange(len(bank))))
    address = {name: f"127.0.0.1:{7000 + at}" for at, name in enumerate(part.parties)}
    venue = PeerSettings(Peers(active="bank", passives=part.parties[1:], address=address), tmp_path)
    gateway_ = Gateway(
        part, rows, venue, ledger=tmp_path / "bank.ledger", window=0.01, max_waiting_rows=8, max_sessions=1
    )
    gateway_._connected.add(0)
    return gateway_


def put_mark_of_the_end(gateway_: Gateway) -> None:
    gateway_._queue.put(None)


def patch_parties(part: Any, requests: list[list[Any]], gateway_: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parties that answer each block; the gateway stops after the first one."""

    def ask(ids: Any, X: Any) -> Any:
        requests.append([int(row_id) for row_id in ids])
        gateway_._stopping = True
        put_mark_of_the_end(gateway_)
        return SimpleNamespace(f=np.zeros((len(ids), part.outputs)), states=["scored"] * len(ids), reasons={})

    asker = SimpleNamespace(max_ids=4, ask=ask, stay=lambda: None, end=lambda: None)
    monkeypatch.setattr(gateway, "ScoreClient", lambda *arguments: asker)


def futures(answers: Any) -> list[Future[Any]]:
    return [answer for answer in answers if isinstance(answer, Future)]


def test_a_cancelled_request_costs_the_others_nothing(
    part: Any, waiting: Gateway, requests: list[list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_parties(part, requests, waiting, monkeypatch)
    cancelled, other = futures(waiting.ask([RequestedRow(0), RequestedRow(1)]))
    assert cancelled.cancel()
    waiting._talk(0, None)  # type: ignore[arg-type]
    assert requests == [[1]]
    assert other.result(0).state == "scored"


def test_who_gives_up_while_parties_answer_costs_others_nothing(
    part: Any, waiting: Gateway, requests: list[list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_parties(part, requests, waiting, monkeypatch)
    cancelled, other = futures(waiting.ask([RequestedRow(0), RequestedRow(1)]))
    monkeypatch.setattr(gateway, "prediction_of", lambda *arguments: cancelled.cancel() and vfl_predicted(*arguments))
    waiting._talk(0, None)  # type: ignore[arg-type]
    assert requests == [[0, 1]]
    assert other.result(0).state == "scored"


vfl_predicted = gateway.prediction_of


def test_the_gateway_survives_lost_parties_and_refuses_rows(
    part: Any, waiting: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One application has given up, two wait for one id, and one id was deferred to the next block."""
    calls = []

    def away(*arguments: Any, **keys: Any) -> None:
        calls.append(len(calls))
        if len(calls) == 2:
            waiting._stopping = True
            return
        block = waiting._next_block(2)
        gateway._refuse(block or [])
        raise TransportError("the parties are away")

    rows = futures(waiting.ask([RequestedRow(0), RequestedRow(1), RequestedRow(1), RequestedRow(2), RequestedRow(3)]))
    assert rows[0].cancel()
    monkeypatch.setattr(gateway, "run_session", away)
    monkeypatch.setattr(gateway, "_RECONNECT_PAUSE", 0.0)
    waiting._run(0)
    assert calls == [0, 1]  # it has tried again
    assert waiting.waiting <= 1  # the mark of the end
    for future in rows[1:]:
        with pytest.raises(ServiceUnavailable):
            future.result(0)


def test_a_request_that_has_no_room_leaves_no_row_behind(waiting: Gateway) -> None:
    first = futures(waiting.ask([RequestedRow(at) for at in range(5)]))
    assert waiting.waiting == len(first) == 5
    with raises_code(ServiceUnavailable, "SVFL-PEER-BUSY"):
        waiting.ask([RequestedRow(at) for at in range(5, 9)])
    assert waiting.waiting == 5


@pytest.mark.parametrize("rows", range(8))
def test_rows_that_wait_when_the_gateway_stops_are_still_taken(waiting: Gateway, rows: int) -> None:
    """In blocks of four: before the mark of the end there are fewer rows than a block has, as many, or more."""
    waiting.ask([RequestedRow(row) for row in range(rows)])
    put_mark_of_the_end(waiting)
    taken = []
    while (block := waiting._next_block(4)) is not None:
        taken += [int(queued.row_id) for queued in block]
    assert taken == list(range(rows))

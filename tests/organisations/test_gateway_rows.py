"""A gateway answers or refuses each waiting row once, even if applications give up or disconnect."""

from __future__ import annotations

import csv
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.cli.prediction_output import write_predictions
from securevfl.errors import TableError, TransportError
from securevfl.models.losses import LOSSES
from securevfl.organisations import gateway
from securevfl.organisations.gateway import Gateway, ServiceUnavailable
from securevfl.organisations.gateway_rows import RequestedRow
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.prediction import prediction_of
from securevfl.training.new_rows import IndexedRows, rows_of_array
from securevfl.transport.peers import Peers
from tests.builders import make_job, raises_code, random_parties


@pytest.fixture(scope="module")
def part() -> Any:
    job = vfl.Job(model=vfl.Logistic(), optimizer=vfl.FedBCD(lr=0.3), protocol=vfl.Protocol(residual="open"), epochs=1)
    return vfl.simulate(job.model_copy(update={"accepts": ("columns",)}), vfl.datasets.breast_cancer()).parts["bank"]


@pytest.fixture
def requests() -> list[list[Any]]:
    return []


@pytest.fixture
def waiting(part: Any, tmp_path: Path) -> Gateway:
    return gateway_of(part, vfl.datasets.breast_cancer()[0], tmp_path)


def gateway_of(part: Any, bank: vfl.Party, tmp_path: Path) -> Gateway:
    """Return a gateway that has not begun, whose parties are there."""
    rows = IndexedRows.of("bank", rows_of_array(part, bank.X, np.arange(len(bank))))
    address = {name: f"127.0.0.1:{7000 + at}" for at, name in enumerate(part.parties)}
    venue = PeerSettings(Peers(active="bank", passives=part.parties[1:], address=address), tmp_path)
    gateway_ = Gateway(
        part, rows, venue, ledger=tmp_path / "bank.ledger", window=0.01, max_waiting_rows=8, max_sessions=1
    )
    gateway_._connected.add(0)
    return gateway_


def outputs_of(rows: int, part: Any) -> Any:
    return np.tile(np.arange(1.0, part.outputs + 1), (rows, 1))


def put_mark_of_the_end(gateway_: Gateway) -> None:
    gateway_._queue.put(None)


def patch_parties(part: Any, requests: list[list[Any]], gateway_: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parties that answer each block; the gateway stops after the first one."""

    def ask(ids: Any, X: Any) -> Any:
        requests.append([int(row_id) for row_id in ids])
        gateway_._stopping = True
        put_mark_of_the_end(gateway_)
        return SimpleNamespace(f=outputs_of(len(ids), part), states=["scored"] * len(ids), reasons={})

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


vfl_predicted = prediction_of


@pytest.mark.parametrize("others", [0, 1, 3])
def test_a_lost_session_refuses_rows_that_nobody_else_answers(
    part: Any, waiting: Gateway, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its block is refused; rows that wait are refused if it was the last session, and the others take them if not.

    One application has given up, two wait for one id, and one id was deferred to the next block.
    """
    calls = []

    def away(*arguments: Any, **keys: Any) -> None:
        calls.append(len(calls))
        if len(calls) == 2:
            assert waiting.sessions == others
            waiting._stopping = True
            return
        gateway._refuse(waiting._next_block(3) or [])
        raise TransportError("the parties are away")

    waiting._connected.update(range(1, others + 1))
    rows = futures(waiting.ask([RequestedRow(row_id) for row_id in (0, 1, 1, 2, 3, 4)]))
    assert rows[0].cancel()
    monkeypatch.setattr(gateway, "run_session", away)
    monkeypatch.setattr(gateway, "_RECONNECT_PAUSE", 0.0)
    waiting._run(0)
    assert calls == [0, 1]  # it has tried a second time
    refused = {1, 3} if others else {1, 2, 3, 4, 5}
    assert {number for number, future in enumerate(rows) if number and future.done()} == refused
    for number in refused:
        with pytest.raises(ServiceUnavailable):
            rows[number].result(0)
    if others:
        assert [queued.row_id for queued in waiting._next_block(4) or []] == [1, 3, 4]
    assert waiting.waiting <= 1  # the marker of the queue's end


def test_a_request_that_has_no_room_leaves_no_row_behind(waiting: Gateway) -> None:
    first = futures(waiting.ask([RequestedRow(at) for at in range(5)]))
    assert waiting.waiting == len(first) == 5
    with raises_code(ServiceUnavailable, "SVFL-PEER-BUSY"):
        waiting.ask([RequestedRow(at) for at in range(5, 9)])
    assert waiting.waiting == 5


@pytest.mark.parametrize("rows", range(1, 9))
def test_the_queue_always_has_room_for_the_mark_of_its_end(waiting: Gateway, rows: int) -> None:
    """Of 8 places, rows get 7: in one request, and one after the other."""
    if rows == 8:
        with raises_code(ServiceUnavailable, "SVFL-PEER-BUSY"):
            waiting.ask([RequestedRow(at) for at in range(rows)])
        return
    waiting.ask([RequestedRow(at) for at in range(rows)])
    while waiting.waiting < 7:
        waiting.ask([RequestedRow(0)])
    with raises_code(ServiceUnavailable, "SVFL-PEER-BUSY"):
        waiting.ask([RequestedRow(0)])
    put_mark_of_the_end(waiting)  # a stopping gateway must not wait here


WRONG = {"a value": {"code": "SVFL-TABLE-TYPE"}, "a column": {"code": "SVFL-TABLE-COLUMNS"}}


@pytest.mark.parametrize("kind", WRONG)
def test_an_error_names_the_row_of_the_request(part: Any, waiting: Gateway, kind: str) -> None:
    """Rows with and without columns are mixed; one row after the other has a text, or lacks a column."""
    right: dict[str, Any] = dict.fromkeys(part.columns, 1.0)
    name, *_ = part.columns
    wrong = right | {name: "many"} if kind == "a value" else {key: 1.0 for key in right if key != name}
    mixed = [RequestedRow(0), RequestedRow(1, right), RequestedRow(2), RequestedRow(3), RequestedRow(4, right)]
    for position in range(len(mixed)):
        rows = [*mixed[:position], RequestedRow(9, wrong), *mixed[position:]]
        with raises_code(TableError, WRONG[kind]["code"], row=position + 1) as caught:
            waiting.ask(rows)
        assert f"row {position + 1}" in str(caught.value)
        assert waiting.waiting == 0


@pytest.mark.parametrize("rows", range(8))
def test_rows_that_wait_when_the_gateway_stops_are_still_taken(waiting: Gateway, rows: int) -> None:
    """Blocks have four rows; before the marker of the queue's end there are fewer, as many, or more rows."""
    waiting.ask([RequestedRow(row) for row in range(rows)])
    put_mark_of_the_end(waiting)
    order = []
    while (block := waiting._next_block(4)) is not None:
        order += [int(queued.row_id) for queued in block]
    assert order == list(range(rows))


CLASSIFYING = [loss for loss in LOSSES.values() if loss.classifies]


@pytest.mark.parametrize(
    ("loss", "classes"), [(loss, c) for loss in CLASSIFYING for c in (2, 3) if c == 2 or not loss.single]
)
def test_every_class_has_its_probability(
    loss: Any, classes: int, tmp_path: Path, requests: list[list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In answers of a gateway as in files. The rarest class sorts first; a single output is about it alone."""
    names = np.array(["z", "y", "a"])[-classes:]
    bank, shop = random_parties(rows=120, labels=classes, ids=True)
    bank = vfl.Party("bank", bank.X, names[bank.labels], ids=bank.ids)
    job = make_job(model=vfl.GeneralLinear(loss=loss.name), epochs=1, test_fraction=0.0)
    part = vfl.simulate(job, [bank, shop]).parts["bank"]
    asked = gateway_of(part, bank, tmp_path)
    patch_parties(part, requests, asked, monkeypatch)
    (answer,) = futures(asked.ask([RequestedRow(5)]))
    asked._talk(0, None)  # type: ignore[arg-type]
    result = answer.result(0)

    f = outputs_of(1, part)
    expected = dict(zip(part.classes.tolist(), loss.proba(f)[0].tolist(), strict=True))
    with write_predictions(part, tmp_path / "p.csv") as callbacks:
        callbacks["on_block"]([5], prediction_of(part, f))
    (row,) = csv.DictReader((tmp_path / "p.csv").open())
    heads = {"probability": "a"} if loss.single else {f"probability {name}": name for name in expected}
    assert list(row)[2:] == list(heads)
    assert {name: float(row[head]) for head, name in heads.items()} == {n: expected[n] for n in heads.values()}
    assert result.probability == (expected["a"] if loss.single else None)
    assert result.probabilities == (None if loss.single else expected)
    assert bool(part.calibration) == loss.single

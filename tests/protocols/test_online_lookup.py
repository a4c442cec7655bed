"""Requests about a server's table find the common ids, and disclose nothing beyond the granted number of ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from builders import raises_code

from securevfl.crypto.curve import POINT_BYTES
from securevfl.errors import LeakageError, ProtocolError, SecureVFLError
from securevfl.protocols.alignment import online_lookup
from securevfl.protocols.alignment.online_lookup import (
    EvaluatedPoints,
    NamedRows,
    QueryPoints,
    TableClient,
    TableServer,
    TableTags,
)
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.observer import Event
from securevfl.runtime.party_threads import run_threads

TABLE = [f"id {row}" for row in range(50)]


def run_session(
    questions: Sequence[Sequence[str]], ask: Callable[[TableClient, Channel, Sequence[str]], Any], **watching: Any
) -> tuple[list[Any], list[Any]]:
    """Return the common rows at a and b for each request."""

    def asker(channel: Channel) -> list[Any]:
        side = TableClient(channel, "b")
        return [ask(side, channel, question) for question in questions]

    def answerer(channel: Channel) -> list[Any]:
        table = TableServer(TABLE)
        table.open(channel, "a")
        return [table.answer(channel, "a", len(question)) for question in questions]

    results = run_threads({"a": asker, "b": answerer}, WallClock, **watching)
    return results["a"], results["b"]


def honest(side: TableClient, channel: Channel, ids: Sequence[str]) -> Any:
    return side.ask(ids)


@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_repeated_requests_find_common_rows_in_one_order(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_lookup, "_TAGS_PER_MESSAGE", chunk)
    questions = [["id 7", "new", "id 3", " id 49"], ["id 7"], ["none"], [*TABLE, "other"]]
    for question, rows, theirs in zip(questions, *run_session(questions, honest), strict=True):
        assert [question[row].strip() for row in rows] == [TABLE[row] for row in theirs]
        assert sorted(theirs.tolist()) == sorted(
            TABLE.index(identifier.strip()) for identifier in question if identifier.strip() in TABLE
        )


def test_messages_are_declared_and_points_never_repeat() -> None:
    events: list[Event] = []
    run_session([["id 7"], ["id 7"]], honest, observe=events.append)
    roles = {"a": "active", "b": "passive"}
    seen = {(type(event.message), roles[event.me], roles[event.peer]) for event in events if event.direction == "send"}
    assert seen == {
        (declaration.message, declaration.sender, declaration.receiver) for declaration in online_lookup.declares()
    }
    for kind, different in ((QueryPoints, 2), (EvaluatedPoints, 2), (NamedRows, 1), (TableTags, 1)):
        sent = {repr(event.message) for event in events if event.direction == "send" and type(event.message) is kind}
        assert len(sent) == different


def more_points(side: TableClient, channel: Channel, ids: Sequence[str]) -> None:
    side.ask([*ids, "id 1"])


def proofs_of(channel: Channel, ids: Sequence[str]) -> list[bytes]:
    """Request these ids and return their proofs, those of ids that are not in the server's table included."""
    blinder, canonical = online_lookup.Blinder(), online_lookup.canonical_ids(ids)
    channel.send("b", QueryPoints(blinder.blind(online_lookup.hash_to_group(canonical))))
    points = channel.recv("b", EvaluatedPoints).points
    return [tag.tobytes() for tag in online_lookup._tags(canonical, blinder.unblind(points))[:, 1]]


def name_rows(channel: Channel, *proofs: bytes) -> None:
    permit = channel.permit(online_lookup.DisclosureRecord("b", "ids", len(proofs), 1, about=("a",)))
    channel.send("b", NamedRows(b"".join(proofs)), permit=permit)


def other_rows(side: TableClient, channel: Channel, ids: Sequence[str]) -> None:
    """Play a requester that names a row of the server's table which it has not requested."""
    proofs_of(channel, ids)
    high, low = (words[:1] for words in side._known)
    name_rows(channel, np.array([high[0], low[0]], ">u8").tobytes())


def one_row_twice(side: TableClient, channel: Channel, ids: Sequence[str]) -> None:
    name_rows(channel, *[proofs_of(channel, ids)[0]] * 2)


def rows_in_another_order(side: TableClient, channel: Channel, ids: Sequence[str]) -> None:
    name_rows(channel, *sorted(proofs_of(channel, ids), reverse=True))


def an_id_that_is_not_in_the_table(side: TableClient, channel: Channel, ids: Sequence[str]) -> None:
    name_rows(channel, *sorted(proofs_of(channel, [*ids[1:], "new"])))


def half_a_proof_more(side: TableClient, channel: Channel, ids: Sequence[str]) -> None:
    name_rows(channel, *sorted(proofs_of(channel, ids)), b"\xff" * 8)


@pytest.mark.parametrize(
    ("deviate", "error", "code"),
    [
        (more_points, LeakageError, "SVFL-PROTOCOL-LIMIT"),
        (other_rows, ProtocolError, "SVFL-PROTOCOL-CHEATING"),
        (one_row_twice, ProtocolError, "SVFL-PROTOCOL-CHEATING"),
        (rows_in_another_order, ProtocolError, "SVFL-PROTOCOL-CHEATING"),
        (an_id_that_is_not_in_the_table, ProtocolError, "SVFL-PROTOCOL-CHEATING"),
        (half_a_proof_more, ProtocolError, "SVFL-PROTOCOL-CHEATING"),
    ],
)
def test_a_malicious_client_learns_nothing_beyond_its_grant(
    deviate: Callable[..., None], error: type[SecureVFLError], code: str
) -> None:
    with raises_code(error, code):
        run_session([["id 7", "id 8", "id 9"]], deviate)


@pytest.mark.parametrize(("granted", "named"), [(1, 2), (1, 6), (2, 3), (3, 3)])
def test_proofs_of_earlier_requests_name_no_further_rows(granted: int, named: int) -> None:
    """A client has the proofs of six rows from two requests, and names some of them in a third request."""
    proofs: list[bytes] = []

    def ask(side: TableClient, channel: Channel, ids: Sequence[str]) -> None:
        new = proofs_of(channel, ids)
        proofs.extend(new)
        name_rows(channel, *sorted(new if len(proofs) <= 6 else proofs[:named]))

    questions = [TABLE[:4], TABLE[4:6], TABLE[6 : 6 + granted]]
    if named > granted:
        with raises_code(ProtocolError, "SVFL-PROTOCOL-CHEATING", party="a"):
            run_session(questions, ask)
    else:
        assert sorted(run_session(questions, ask)[1][2].tolist()) == list(range(named))


def test_tags_are_uniform_without_the_key() -> None:
    """Two tables of the same ids have no tag in common; the mean of 1,600 bytes is within six standard errors."""
    tags = [bytes(TableServer(TABLE)._first.tobytes()) for _ in range(2)]
    halves = [{tags_of_run[at : at + 16] for at in range(0, len(tags_of_run), 16)} for tags_of_run in tags]
    assert not halves[0] & halves[1]
    octets = np.frombuffer(b"".join(tags), np.uint8)
    assert abs(octets.mean() - 127.5) < 6 * 73.9 / len(octets) ** 0.5
    assert POINT_BYTES == 2 * 16

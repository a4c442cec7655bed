"""Questions about a standing table: what both have is found, and nothing beyond what was granted is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from securevfl.crypto.curve import POINT_BYTES
from securevfl.errors import LeakageError, ProtocolError
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
    """What a and b have of each question, rows of its own."""

    def asker(channel: Channel) -> list[Any]:
        side = TableClient(channel, "b")
        return [ask(side, channel, each) for each in questions]

    def answerer(channel: Channel) -> list[Any]:
        table = TableServer(TABLE)
        table.open(channel, "a")
        return [table.answer(channel, "a", len(each)) for each in questions]

    found = run_threads({"a": asker, "b": answerer}, WallClock, **watching)
    return found["a"], found["b"]


def honest(side: TableClient, channel: Channel, ids: Sequence[str]) -> Any:
    return side.ask(ids)


@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_both_find_the_common_rows_in_one_order_question_after_question(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online_lookup, "_TAGS_PER_MESSAGE", chunk)
    questions = [["id 7", "new", "id 3", " id 49"], ["id 7"], ["none"], [*TABLE, "other"]]
    for asked, own, theirs in zip(questions, *run_session(questions, honest), strict=True):
        assert [asked[row].strip() for row in own] == [TABLE[row] for row in theirs]
        assert sorted(theirs.tolist()) == sorted(TABLE.index(each.strip()) for each in asked if each.strip() in TABLE)


def test_every_message_is_declared_and_the_same_id_is_asked_by_other_points() -> None:
    events: list[Event] = []
    run_session([["id 7"], ["id 7"]], honest, observe=events.append)
    roles = {"a": "active", "b": "passive"}
    seen = {(type(each.message), roles[each.me], roles[each.peer]) for each in events if each.direction == "send"}
    assert seen == {(each.message, each.sender, each.receiver) for each in online_lookup.declares()}
    for kind, different in ((QueryPoints, 2), (EvaluatedPoints, 2), (NamedRows, 1), (TableTags, 1)):
        sent = {repr(each.message) for each in events if each.direction == "send" and type(each.message) is kind}
        assert len(sent) == different


def more_points(side: TableClient, channel: Channel, ids: Sequence[str]) -> None:
    side.ask([*ids, "id 1"])


def other_rows(side: TableClient, channel: Channel, ids: Sequence[str]) -> None:
    """Marks a row by what it was sent of the table, and has not asked about."""
    channel.send("b", QueryPoints(channel_points(ids)))
    channel.recv("b", EvaluatedPoints)
    high, low = (each[:1] for each in side._known)
    proof = np.array([high[0], low[0]], ">u8").tobytes()
    channel.send(
        "b", NamedRows(proof), permit=channel.permit(online_lookup.DisclosureRecord("b", "ids", 1, 1, about=("a",)))
    )


def channel_points(ids: Sequence[str]) -> bytes:
    return online_lookup.Blinder().blind(online_lookup.hash_to_group(online_lookup.canonical_ids(ids)))


def one_row_twice(side: TableClient, channel: Channel, ids: Sequence[str]) -> None:
    blinder = online_lookup.Blinder()
    channel.send("b", QueryPoints(blinder.blind(online_lookup.hash_to_group(online_lookup.canonical_ids(ids)))))
    points = channel.recv("b", EvaluatedPoints).points
    tag = online_lookup._tags(online_lookup.canonical_ids(ids), blinder.unblind(points))[0, 1].tobytes()
    channel.send(
        "b", NamedRows(tag + tag), permit=channel.permit(online_lookup.DisclosureRecord("b", "ids", 1, 1, about=("a",)))
    )


@pytest.mark.parametrize(
    ("deviate", "error", "said"),
    [
        (more_points, LeakageError, "granted a to ask about 2 ids"),
        (other_rows, ProtocolError, "proofs of ids that both have"),
        (one_row_twice, ProtocolError, "proofs of ids that both have"),
    ],
)
def test_who_deviates_is_told_nothing_beyond_its_grant(
    deviate: Callable[..., None], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        run_session([["id 7", "new"]], deviate)


def test_tags_tell_nothing_of_ids_without_the_key() -> None:
    """Two tables of the same ids share no tag, and tags are uniform: six standard errors of 1,600 bytes' mean."""
    tags = [bytes(TableServer(TABLE)._first.tobytes()) for _ in range(2)]
    halves = [{each[at : at + 16] for at in range(0, len(each), 16)} for each in tags]
    assert not halves[0] & halves[1]
    octets = np.frombuffer(b"".join(tags), np.uint8)
    assert abs(octets.mean() - 127.5) < 6 * 73.9 / len(octets) ** 0.5
    assert POINT_BYTES == 2 * 16

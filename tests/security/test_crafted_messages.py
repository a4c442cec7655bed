"""What one party sends, altered in one field: every message of every family ends a run in good order, or changes it.

In good order means by an error of the library, of which a user is told one line. Which alterations are tried of a
field follows from its type, so that a new message is covered once a family has an example.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

import securevfl as vfl
from securevfl.data.party import Helper
from securevfl.errors import SecureVFLError
from securevfl.runtime import threads
from securevfl.runtime.channel import Channel
from securevfl.runtime.codec import Message
from securevfl.training import simulate
from tests.disclosure.test_account import EXAMPLES, example

QUICK = "ckks", "tree open", "evidence", "kernel pairwise", "shares", "transfer linearised", "fdml masks, labels shown"
WAITS = "nothing came from", "more to ask", "have not come"  # who is told of more than there is may wait for it


class Place(NamedTuple):
    """A field of the first or of the last message of a kind that a party sends."""

    who: str
    kind: str
    last: bool
    field: str


def altered(value: Any) -> Iterator[Any]:
    """Values that are not what a peer expects in place of this one."""
    match value:
        case np.ndarray():
            flat = value.reshape(-1)
            yield from (flat[:-1].copy(), flat[:0].copy(), np.concatenate([flat, np.zeros(1, flat.dtype)]))
            yield value[..., None]
            if flat.size and value.dtype.kind == "f":
                for bad in (np.nan, np.inf, 1e300):
                    flat = value.copy()
                    flat.flat[0] = bad
                    yield flat
            elif flat.size and value.dtype.kind in "iu":
                flat = value.copy()
                flat.flat[0] = np.iinfo(value.dtype).max
                yield from (flat, value.astype(np.float64))
        case bool():
            yield not value
        case int():
            yield from (value + 1, -1, 2**31, 2**62)
        case float():
            yield from (float("nan"), -1.0, float("inf"))
        case bytes():
            yield from (value[:-1], b"", value + b"\0", bytes(byte ^ 255 for byte in value[:1]) + value[1:])
            yield value[: len(value) // 2] + bytes(byte ^ 1 for byte in value[len(value) // 2 :])
        case str():
            yield from (value + "x", "")
        case list() | tuple():
            kind = type(value)
            yield from (kind(value[:-1]), kind(), kind([*value, *value]))
            yield from (kind([each, *value[1:]]) for each in (altered(value[0]) if value else ()))
        case dict():
            yield {}
            for key in [*value][:1]:
                yield from ({**value, key: each} for each in altered(value[key]))


class Liar:
    """Stands where messages are sent: counts what parties send, or alters one field of one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: dict[tuple[str, str], list[Message]] = {}
        self._plan: tuple[Place, int] | None = None
        self._seen: Counter[tuple[str, str]] = Counter()
        send, run = Channel.send, threads.run_threads

        def sends(channel: Channel, to: str, message: Message, lane: str = "", *, told: Any = None) -> None:
            send(channel, to, self._passed(channel.me, message), lane, told=told)

        monkeypatch.setattr(Channel, "send", sends)
        monkeypatch.setattr(
            simulate, "run_threads", lambda *roles, **options: run(*roles, **options | {"timeout": 3.0})
        )

    def _passed(self, me: str, message: Message) -> Message:
        key = me, type(message).__name__
        if self._plan is None:
            self.sent.setdefault(key, []).append(message)
            return message
        place, number = self._plan
        at = self._seen[key]
        self._seen[key] += 1
        if (place.who, place.kind) != key or at != (len(self.sent[key]) - 1 if place.last else 0):
            return message
        values = [*altered(getattr(message, place.field))]
        return msgspec.structs.replace(message, **{place.field: values[number % len(values)]}) if values else message

    def places(self) -> Iterator[tuple[Place, int]]:
        """Yield every place in what has been sent, and how many ways there are to alter it."""
        for (who, kind), messages in self.sent.items():
            for last in (False, True)[: len(messages)]:
                for field in messages[0].__struct_fields__:
                    yield Place(who, kind, last, field), len([*altered(getattr(messages[-last], field))])

    def alter(self, place: Place, number: int) -> None:
        """From now on alter this place, in the way of this number."""
        self._plan, self._seen = (place, number), Counter()


def outcome(job: vfl.Job, parties: list[vfl.Party | Helper]) -> str:
    """Run the job; return what a user is told of how it ended, empty if well."""
    try:
        vfl.simulate(job, parties)
    except SecureVFLError as error:
        return str(error)
    return ""


def ends(name: str, monkeypatch: pytest.MonkeyPatch, ways: int | None) -> None:
    """Alter every field of every kind of message of a family's example, in so many ways or all."""
    warnings.simplefilter("ignore")
    liar, generator = Liar(monkeypatch), np.random.default_rng(len(name))
    job, tables = example(name)
    assert outcome(job, tables) == ""
    refused = 0
    for place, count in [*liar.places()]:
        if ways is not None and (place.last or (place.kind == "Meeting" and place.who != tables[0].name)):
            continue
        for number in generator.permutation(count)[:ways]:
            liar.alter(place, int(number))
            told = outcome(job, tables)  # another error than the library's would pass through
            assert "\n" not in told, (place, number)
            refused += bool(told) and not any(wait in told for wait in WAITS)
    assert refused


@pytest.mark.parametrize("name", QUICK)
def test_a_message_altered_in_one_field_ends_in_good_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends(name, monkeypatch, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_a_message_altered_in_any_way_ends_in_good_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends(name, monkeypatch, None)

"""Every message of every family and command, altered in one field, leads to an error of the library or to a result.

The alterations of a field follow from its type, so a new message is covered as soon as a family has an example of it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

import securevfl as vfl
from securevfl.credit import correlate, fairness_by_group
from securevfl.credit.fairness_by_group import simulate_group_rates
from securevfl.errors import SecureVFLError
from securevfl.organisations.align import align_privately
from securevfl.protocols.alignment import psi_work
from securevfl.runtime import party_threads
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.codec import Message
from securevfl.training import run, simulate
from tests.disclosure.test_account import EXAMPLES, example
from tests.organisations import test_fairness_by_group as grouped
from tests.organisations import test_joint_statistics

SOME = 10  # places of an act that every run of the suite alters in one way
WAITS = "nothing came from", "more to ask", "have not come"  # a party that is announced too much may wait for it


Act = Callable[[], object]


class Place(NamedTuple):
    """A field of the first or of the last message of a type that a party sends."""

    who: str
    kind: str
    last: bool
    field: str


def altered(value: Any) -> Iterator[Any]:
    """Yield values that a peer does not expect in place of this one."""
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
            yield from (kind([item, *value[1:]]) for item in (altered(value[0]) if value else ()))
        case dict():
            yield {}
            for key in [*value][:1]:
                yield from ({**value, key: item} for item in altered(value[key]))


class Liar:
    """Intercepts sent messages: it counts them, or alters one field of one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: dict[tuple[str, str], list[Message]] = {}
        self._plan: tuple[Place, Callable[[Any], list[Any]], int] | None = None
        self._seen: Counter[tuple[str, str]] = Counter()
        # channels of earlier acts, whose threads may still send a message, and of the current one
        self._earlier: list[Channel] = []
        self._current: list[Channel] = []
        send, together = Channel.send, party_threads.run_threads

        def quick(*roles: Any, **options: Any) -> Any:
            return together(*roles, **options | {"timeout": 3.0})

        def sends(channel: Channel, to: str, message: Message, subchannel: str = "", *, permit: Any = None) -> None:
            if channel not in self._earlier:
                self._current += [channel] if channel not in self._current else []
                message = self._passed(channel.me, message)
            send(channel, to, message, subchannel, permit=permit)

        monkeypatch.setattr(Channel, "send", sends)
        for module in (simulate, run, correlate, fairness_by_group):
            monkeypatch.setattr(module, "run_threads", quick)

    def _passed(self, me: str, message: Message) -> Message:
        key = me, type(message).__name__
        if self._plan is None:
            self.sent.setdefault(key, []).append(message)
            return message
        place, changes, number = self._plan
        at = self._seen[key]
        self._seen[key] += 1
        if (place.who, place.kind) != key or at != (len(self.sent[key]) - 1 if place.last else 0):
            return message
        values = changes(getattr(message, place.field))
        return msgspec.structs.replace(message, **{place.field: values[number % len(values)]}) if values else message

    def places(self) -> Iterator[tuple[Place, int]]:
        """Yield every place in the sent messages, with the number of alterations."""
        for (who, kind), messages in self.sent.items():
            for last in (False, True)[: len(messages)]:
                for field in messages[0].__struct_fields__:
                    yield Place(who, kind, last, field), len([*altered(getattr(messages[-last], field))])

    def alter(self, place: Place, number: int) -> None:
        """Apply this alteration at this place from now on."""
        self._begin(place, lambda value: [*altered(value)], number)

    def lie(self, place: Place, change: Callable[[Any], Any]) -> None:
        """Send the changed value at this place from now on."""
        self._begin(place, lambda value: [change(value)], 0)

    def _begin(self, place: Place, changes: Callable[[Any], list[Any]], number: int) -> None:
        self._plan, self._seen = (place, changes, number), Counter()
        self._earlier, self._current = self._earlier + self._current, []


def outcome(act: Act) -> str:
    """Run the act and return the error message of the library, empty without an error. Other exceptions pass."""
    try:
        act()
    except SecureVFLError as error:
        return str(error)
    return ""


def trained(name: str, liar: Liar) -> Act:
    """Return an act that trains the example of a family."""
    job, tables = example(name)
    return lambda: vfl.simulate(job, tables)


def predicted(name: str, liar: Liar) -> Act:
    """Return an act that predicts rows by a model of the example."""
    job, tables = example(name)
    run = vfl.simulate(job, tables)
    liar.sent.clear()
    return lambda: run.predict({table.name: table.X for table in tables if isinstance(table, vfl.Party)})


def correlated(name: str, liar: Liar) -> Act:
    """Return an act that correlates columns of two parties."""
    one, other = test_joint_statistics.random_tables(3000)
    return lambda: vfl.correlate([one, other])


def counted(name: str, liar: Liar) -> Act:
    """Return an act that counts rates by groups of another party."""
    return lambda: simulate_group_rates(grouped.BANK, grouped.SAID, grouped.SHOP, grouped.GROUP)


def aligned(name: str, liar: Liar) -> Act:
    """Return an act that aligns the ids of three parties, or of two large parties by transfers."""
    local = {
        item: range(at, at + 200) for at, item in enumerate(("bank", "shop", "telco")[: 2 if "many" in name else 3])
    }
    lead, *others = local

    def role(me: str) -> Callable[[Channel], object]:
        return lambda channel: align_privately(me, local[me], channel, active=lead, passives=others, ledger=None)

    return lambda: party_threads.run_threads({item: role(item) for item in local}, WallClock, timeout=3.0)


ACTS: dict[str, Callable[[str, Liar], Act]] = (
    dict.fromkeys(EXAMPLES, trained)
    | {"predict shares": predicted, "predict ckks": predicted, "correlate": correlated, "count groups": counted}
    | {"align": aligned, "align many": aligned}
)
QUICK_CASES = [
    "ckks",
    "tree open",
    "evidence",
    "kernel pairwise",
    "shares",
    "transfer linearised",
    "fdml masks, labels shown",
]
QUICK_CASES += [name for name in ACTS if name not in EXAMPLES]


def ends(name: str, monkeypatch: pytest.MonkeyPatch, ways: int | None) -> None:
    """Alter every field of every message type of an act, in a few ways or in all."""
    warnings.simplefilter("ignore")
    if "many" in name:
        monkeypatch.setattr(psi_work, "MIN_ROWS_FOR_TRANSFERS", 100)
    liar, generator = Liar(monkeypatch), np.random.default_rng(len(name))
    act = ACTS[name](name.removeprefix("predict "), liar)
    assert outcome(act) == ""
    places = [*liar.places()]
    if ways is not None:  # the first messages of a few types and fields
        first = [item for item in places if not item[0].last]
        places = [first[int(at)] for at in generator.permutation(len(first))[:SOME]]
    refused = 0
    for place, count in places:
        for number in generator.permutation(count)[:ways]:
            liar.alter(place, int(number))
            disclosed = outcome(act)
            assert "\n" not in disclosed, (place, number)
            refused += bool(disclosed) and not any(wait in disclosed for wait in WAITS)
    assert refused


@pytest.mark.parametrize("name", QUICK_CASES)
def test_a_message_altered_in_one_field_is_handled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends(name, monkeypatch, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ACTS))
def test_a_message_altered_in_any_way_is_handled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends(name, monkeypatch, None)

"""Masks that cancel, and the sum that outlives dropped parties (Bonawitz et al. 2017)."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import securevfl as vfl
from securevfl.base.roles import Roles
from securevfl.errors import ConfigError, PeerLost, ProtocolError, TransportError
from securevfl.protocols.seat import Seat
from securevfl.protocols.spaces import Circle, Reals, Space
from securevfl.protocols.sums.dropout_sum import (
    Commit,
    Commits,
    DoubleMasked,
    DropoutCollector,
    DropoutMember,
    SeedShares,
    Survivors,
    Told,
)
from securevfl.protocols.sums.pairwise_sum import PairwiseMember, PairwiseSum
from securevfl.protocols.sums.topology import Topology
from securevfl.runtime.channel import Channel, Event
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.threads import run_threads

TOPOLOGIES: list[Topology] = ["tree", "star", "ring"]


class Gone(Exception):
    """A party falls silent."""


class Leaves(DropoutMember):
    """Falls silent right before a step."""

    def __init__(self, seat: Seat, threshold: int, step: int) -> None:
        super().__init__(seat, threshold)
        self.step = step

    def _commit(self, pair, self_seed):
        return self._unless(1, super()._commit, pair, self_seed)

    def _receive_commits(self):
        return self._unless(3, super()._receive_commits)

    def _open(self, *rest):
        return self._unless(5, super()._open, *rest)

    def _unless(self, step, act, *arguments):
        if step == self.step:
            raise Gone
        return act(*arguments)


def run_sums(
    sums: PairwiseSum,
    parts: dict[str, list[np.ndarray]],
    space: Space,
    *,
    member: Callable[[Seat], DropoutMember] | None = None,
    observe: Callable[[Event], None] | None = None,
    until_silent: Callable[[Channel, set[str]], None] | None = None,
    silent: set[str] | None = None,
) -> list[tuple[np.ndarray, tuple[str, ...]]]:
    """Every sum that party "a" collects, and who had dropped by then. `parts` holds those of the others.

    until_silent: "a" waits for each until it is silent, whatever its patience; `silent`: parties that are.
    """
    names, quiet = ("a", *parts), set() if silent is None else silent

    def play(channel: Channel) -> list[tuple[np.ndarray, tuple[str, ...]]]:
        seat = Seat(channel, Roles.sum("a", names[1:]), Meter(channel.clock, channel.books))
        if channel.me == "a":
            if until_silent is not None:
                until_silent(channel, quiet)
            role = sums.role(seat)
            shape = next(iter(parts.values()))[0].shape
            exchanges = len(next(iter(parts.values())))
            return [(role.collect(shape, space), getattr(role, "dropped", ())) for _ in range(exchanges)]
        own = sums.role(seat) if member is None else member(seat)
        try:
            for values in parts[channel.me]:
                own.contribute(values, space)
        except Gone:
            quiet.add(channel.me)
        return []

    return run_threads(dict.fromkeys(names, play), lambda: VirtualClock(vfl.Network()), timeout=20, observe=observe)[
        "a"
    ]


def circle_parts(names: Sequence[str], exchanges: int = 2) -> dict[str, list[np.ndarray]]:
    generator = np.random.default_rng(len(names))
    return {
        name: [generator.integers(2**32, size=5, dtype=np.uint64).astype(np.uint32) for _ in range(exchanges)]
        for name in names
    }


@settings(max_examples=30)
@given(st.data())
def test_masks_cancel_in_every_topology(data: st.DataObject) -> None:
    names = [f"p{k}" for k in range(data.draw(st.integers(2, 7)))]
    parts = circle_parts(names, data.draw(st.integers(1, 3)))
    sums = PairwiseSum(topology=data.draw(st.sampled_from(TOPOLOGIES)))
    for exchange, (got, _) in enumerate(run_sums(sums, parts, Circle())):
        assert np.array_equal(got, sum(own[exchange] for own in parts.values()))


@settings(max_examples=10)
@given(st.data())
def test_the_sum_is_that_of_those_who_stay(until_silent: Any, data: st.DataObject) -> None:
    """Parties leave before they commit, after they have committed, or before they open shares."""
    n = data.draw(st.integers(2, 8))
    names = [f"p{k}" for k in range(n)]
    t = data.draw(st.integers(n // 2 + 1, n))
    leaving = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=n - t))
    steps = {name: data.draw(st.sampled_from([1, 3, 5])) for name in leaving}
    parts = circle_parts(names)
    sums_of = run_sums(
        PairwiseSum(threshold=t),
        parts,
        Circle(),
        until_silent=until_silent,
        member=lambda seat: Leaves(seat, t, steps[seat.me]) if seat.me in steps else DropoutMember(seat, t),
    )
    first = sum(parts[name][0] for name in names if steps.get(name, 5) == 5)
    second = sum(parts[name][1] for name in names if name not in steps)
    assert np.array_equal(sums_of[0][0], first)
    assert np.array_equal(sums_of[1][0], second)
    assert set(sums_of[1][1]) == set(steps)


def test_many_parties_and_real_values(until_silent: Any) -> None:
    names = [f"p{k:02}" for k in range(24)]
    generator = np.random.default_rng(0)
    parts = {name: [generator.normal(size=300)] for name in names}
    dropping = set(names[3:24:3])
    t = PairwiseSum(threshold=2 / 3).needed(24)
    (got, dropped), *_ = run_sums(
        PairwiseSum(threshold=2 / 3),
        parts,
        Reals(),
        until_silent=until_silent,
        member=lambda seat: Leaves(seat, t, 3) if seat.me in dropping else DropoutMember(seat, t),
    )
    assert set(dropped) == dropping
    np.testing.assert_allclose(got, sum(parts[name][0] for name in names if name not in dropping), atol=1e-9)


@pytest.mark.parametrize("step", [1, 3, 5])
def test_too_few_end_the_sum(step: int) -> None:
    names = ["b", "c", "d", "e"]
    with pytest.raises(PeerLost, match="of at least 3 passive parties was expected"):
        run_sums(
            PairwiseSum(threshold=3, patience=1.0),
            circle_parts(names),
            Circle(),
            member=lambda seat: Leaves(seat, 3, step) if seat.me in "bc" else DropoutMember(seat, 3),
        )


def test_what_a_dropped_party_sends_late_is_not_added(until_silent: Any) -> None:
    called, names, silent = threading.Event(), ["b", "c", "d"], set[str]()

    class Late(DropoutMember):
        def _receive_commits(self) -> Commits:
            commits = super()._receive_commits()
            silent.add("c")
            assert called.wait(60)
            return commits

        def _receive_survivors(self, commits: Commits) -> frozenset[str]:
            raise Gone

    def watch(event: Event) -> None:
        if isinstance(event.message, Survivors):
            called.set()

    parts = circle_parts(names)
    for got, dropped in run_sums(
        PairwiseSum(threshold=2),
        {name: own[:1] for name, own in parts.items()},
        Circle(),
        member=lambda seat: (Late if seat.me == "c" else DropoutMember)(seat, 2),
        observe=watch,
        until_silent=until_silent,
        silent=silent,
    ):
        assert dropped == ("c",)
        assert np.array_equal(got, parts["b"][0] + parts["d"][0])


def test_a_silent_party_ends_a_singly_masked_sum(until_silent: Any) -> None:
    names = ("a", "b", "c", "d")

    def play(channel: Channel) -> None:
        role = PairwiseSum().role(Seat(channel, Roles.sum("a", names[1:]), Meter(channel.clock, channel.books)))
        if channel.me == "a":
            until_silent(channel, {"c"})
            role.collect((2,), Circle())
        elif channel.me != "c":
            role.contribute(np.zeros(2, np.uint32), Circle())

    with pytest.raises(TransportError, match="nothing came from c"):
        run_threads(dict.fromkeys(names, play), lambda: VirtualClock(vfl.Network()), timeout=60)


def test_parties_in_different_exchanges_are_refused() -> None:
    class Ahead(PairwiseMember):
        def contribute(self, values, space):
            self._round += seat_of.get(self._seat.me, 0)
            super().contribute(values, space)

    seat_of = {"c": 1}

    class Skips(PairwiseSum):
        def role(self, seat):
            role = super().role(seat)
            if isinstance(role, PairwiseMember):
                role.__class__ = Ahead
            return role

    with pytest.raises(ProtocolError, match="exchange 0 of the pairwise sum, it is in 1"):
        run_sums(Skips(), circle_parts(["b", "c"]), Circle())


def altered(change: Callable[[object], object]) -> Callable[[Seat], DropoutMember]:
    """Members of whom "b" changes what it sends."""

    class Alters(DropoutMember):
        def __init__(self, seat: Seat, threshold: int) -> None:
            super().__init__(seat, threshold)
            if seat.me == "b":
                send = seat.channel.send
                seat.channel.send = lambda to, message, lane="", told=None: send(to, change(message), lane, told=told)

    return lambda seat: Alters(seat, 2)


def another_key(message: object) -> object:
    return Commit(bytes(31) + b"\x09", message.sealed) if isinstance(message, Commit) else message


def too_few_sealed(message: object) -> object:
    return Commit(message.public, message.sealed[:1]) if isinstance(message, Commit) else message


def shares_of_another(message: object) -> object:
    if not isinstance(message, SeedShares):
        return message
    return SeedShares([b"\x02" + share[1:] if share[0] == 1 else share for share in message.shares])


@pytest.mark.parametrize(
    ("change", "match"),
    [(another_key, "came altered"), (too_few_sealed, "to share with"), (shares_of_another, "open its own share")],
)
def test_what_does_not_fit_is_refused(change: Callable[[object], object], match: str) -> None:
    with pytest.raises(ProtocolError, match=match):
        run_sums(PairwiseSum(threshold=2, patience=5), circle_parts(["b", "c", "d"]), Circle(), member=altered(change))


@pytest.mark.parametrize("called", [[], ["b"], ["c", "d"], ["b", "z"], ["b", "b"]])
def test_members_open_nothing_for_a_list_that_does_not_fit(called: list[str]) -> None:
    class Lies(DropoutCollector):
        def _gather(self, kind, names):
            found = super()._gather(kind, names)
            if kind is Told:
                told.update(found)
            if kind is DoubleMasked:
                for name in found:
                    those = called if name == "b" else list(found)
                    made = {
                        who: dict(zip([x for x in found if x != who], told[who].tags, strict=True)) for who in found
                    }
                    tags = [made.get(who, {}).get(name, b"") for who in those if who != name]
                    self._seat.channel.send(name, Survivors(those, tags), self._seat.lane)
                raise Gone
            return found

    opened: list[Event] = []
    told: dict[str, Told] = {}

    class Lying(PairwiseSum):
        def role(self, seat):
            return Lies(seat, 2, 5.0) if seat.me == "a" else super().role(seat)

    def observe(event: Event) -> None:
        if isinstance(event.message, SeedShares):
            opened.append(event)

    names = ("a", "b", "c", "d")

    def play(channel: Channel) -> None:
        role = Lying(threshold=2).role(Seat(channel, Roles.sum("a", names[1:]), Meter(channel.clock, channel.books)))
        if channel.me == "a":
            with pytest.raises(Gone):
                role.collect((2,), Circle())
        elif channel.me == "b":
            with pytest.raises(ProtocolError, match="No share is opened"):
                role.contribute(np.zeros(2, np.uint32), Circle())
        else:
            role.contribute(np.zeros(2, np.uint32), Circle())

    run_threads(dict.fromkeys(names, play), lambda: VirtualClock(vfl.Network()), timeout=20, observe=observe)
    assert {event.me for event in opened if event.direction == "send"} == {"c", "d"}


def test_options_that_protect_nothing_are_refused() -> None:
    for topology in ("tree", "ring"):
        with pytest.raises(ConfigError, match="topology = 'star'"):
            PairwiseSum(topology=topology, threshold=2)
    for threshold in (0.5, 0.0, 1.5, 1, 0, -3):
        with pytest.raises(ConfigError, match="threshold"):
            PairwiseSum(threshold=threshold)
    for threshold, passives in ((2, 4), (5, 4)):
        with pytest.raises(ConfigError, match="more than half"):
            PairwiseSum(threshold=threshold).needed(passives)
    with pytest.raises(ConfigError, match="patience"):
        PairwiseSum(patience=0)
    assert [PairwiseSum(threshold=2 / 3).needed(n) for n in (2, 3, 6, 9, 100)] == [2, 2, 4, 6, 67]

"""Sums with masks that each pair of parties shares and that cancel (Bonawitz et al. 2017)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from builders import raises_code
from hypothesis import given, settings
from hypothesis import strategies as st

import securevfl as vfl
from securevfl.base.roles import Roles
from securevfl.errors import ProtocolError, TransportError
from securevfl.protocols.number_spaces import Circle, Space
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums.pairwise_sum import PairwiseMember, PairwiseSum
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.party_threads import run_threads


def run_sums(sums: PairwiseSum, parts: dict[str, list[np.ndarray]], space: Space) -> list[np.ndarray]:
    """Return every sum that party "a" collects, and the others' messages in `parts`."""
    names = ("a", *parts)
    shape, exchanges = next(iter(parts.values()))[0].shape, len(next(iter(parts.values())))

    def play(channel: Channel) -> list[np.ndarray]:
        role = sums.role(PartyContext(channel, Roles.sum("a", names[1:]), Meter(channel.clock, channel.counters)))
        if channel.me == "a":
            return [role.collect(shape, space) for _ in range(exchanges)]
        for values in parts[channel.me]:
            role.contribute(values, space)
        return []

    return run_threads(dict.fromkeys(names, play), lambda: VirtualClock(vfl.Network()), timeout=20)["a"]


def circle_parts(names: Sequence[str], exchanges: int = 2) -> dict[str, list[np.ndarray]]:
    generator = np.random.default_rng(len(names))
    return {
        name: [generator.integers(2**32, size=5, dtype=np.uint64).astype(np.uint32) for _ in range(exchanges)]
        for name in names
    }


@settings(max_examples=30)
@given(st.data())
def test_masks_cancel(data: st.DataObject) -> None:
    names = [f"p{k}" for k in range(data.draw(st.integers(2, 7)))]
    parts = circle_parts(names, data.draw(st.integers(1, 3)))
    for exchange, got in enumerate(run_sums(PairwiseSum(), parts, Circle())):
        assert np.array_equal(got, sum(summands[exchange] for summands in parts.values()))


def test_a_silent_party_ends_the_sum(until_silent: Any) -> None:
    names = ("a", "b", "c", "d")

    def play(channel: Channel) -> None:
        role = PairwiseSum().role(
            PartyContext(channel, Roles.sum("a", names[1:]), Meter(channel.clock, channel.counters))
        )
        if channel.me == "a":
            until_silent(channel, {"c"})
            role.collect((2,), Circle())
        elif channel.me != "c":
            role.contribute(np.zeros(2, np.uint32), Circle())

    with raises_code(TransportError, "SVFL-PEER-AWAY"):
        run_threads(dict.fromkeys(names, play), lambda: VirtualClock(vfl.Network()), timeout=60)


def test_parties_in_different_exchanges_are_refused() -> None:
    class Ahead(PairwiseMember):
        def contribute(self, values, space):
            self._round += seat_of.get(self._context.me, 0)
            super().contribute(values, space)

    seat_of = {"c": 1}

    class Skips(PairwiseSum):
        def role(self, context):
            role = super().role(context)
            if isinstance(role, PairwiseMember):
                role.__class__ = Ahead
            return role

    with raises_code(ProtocolError, "SVFL-PROTOCOL-MESSAGE"):
        run_sums(Skips(), circle_parts(["b", "c"]), Circle())

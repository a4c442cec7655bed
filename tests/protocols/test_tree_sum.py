"""Masked sums over two trees: their trees, bytes and latencies."""

import numpy as np
import pytest
from builders import raises_code
from hypothesis import given, settings
from hypothesis import strategies as st

import securevfl as vfl
from securevfl.base.roles import Roles
from securevfl.crypto.fixed_point_ring import scale_bits
from securevfl.crypto.sum_trees import SumTree, star_tree
from securevfl.errors import ConfigError, ProtocolError, RangeError
from securevfl.protocols.number_spaces import Circle, Reals, Space
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums.residue_sums import unpack
from securevfl.protocols.sums.topologies import Topology, one_pass, protects, two_passes
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.costs import Stage
from securevfl.runtime.meter import Meter
from securevfl.runtime.observer import Event
from securevfl.runtime.party_threads import run_threads

TOPOLOGIES: list[Topology] = ["tree", "star", "ring"]


def one_sum(
    sums: vfl.TreeSum, parts: list[np.ndarray], space: Space, network: vfl.Network | None = None
) -> tuple[np.ndarray, list[Event], float]:
    """Return the sum, the sent messages and the active party's simulated seconds."""
    names = ["active", *(f"p{k}" for k in range(len(parts)))]
    events: list[Event] = []

    def play(channel: Channel) -> tuple[np.ndarray | None, float]:
        context = PartyContext(channel, Roles.sum(names[0], tuple(names[1:])), Meter(channel.clock, channel.counters))
        role = sums.role(context)
        channel.clock.stage = Stage.TRAIN
        if channel.me == "active":
            total = role.collect(parts[0].shape, space)
            return total, float(channel.clock.path().sum())
        role.contribute(parts[names.index(channel.me) - 1], space)
        return None, 0.0

    played = run_threads(
        dict.fromkeys(names, play), lambda: VirtualClock(network or vfl.Network()), timeout=30, observe=events.append
    )
    total, seconds = played["active"]
    assert total is not None
    return total, events, seconds


@settings(max_examples=30)
@given(st.data())
def test_equals_the_plain_sum_within_its_rounding(data: st.DataObject) -> None:
    passives = data.draw(st.integers(2, 7))
    shape = tuple(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=2)))
    bound = data.draw(st.sampled_from([1e-6, 1.0, 2.0**16, 1e9]))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    parts = [generator.uniform(-bound, bound, shape) for _ in range(passives)]
    sums = vfl.TreeSum(topology=data.draw(st.sampled_from(TOPOLOGIES)))
    got, *_ = one_sum(sums, parts, Reals(bound))
    exact = np.sum(np.array(parts, dtype=np.longdouble), axis=0)
    slack = passives * 2.0 ** -(scale_bits(bound, passives) + 1) + passives * bound * 2.0**-53
    assert got.shape == shape
    assert np.all(np.abs(got - exact) <= slack)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_trees_of_every_number_of_parties_protect(topology: Topology) -> None:
    for parties in range(3, 66):
        T1, T2 = two_passes(topology, parties)
        assert T1.parties == T2.parties == frozenset(range(parties))
        assert T1.root == T2.root == 0
        assert protects(T1, T2)
        if topology == "tree":
            assert T1.depth == T2.depth == int(np.ceil(np.log2(parties)))
        else:
            assert one_pass(topology, parties) == T1
            assert T2.depth <= np.ceil(np.log2(parties)) + 1


def test_pairs_that_protect_nothing_are_seen() -> None:
    tree, ring = one_pass("tree", 6), one_pass("ring", 6)
    assert not protects(tree, tree)
    assert not protects(ring, ring)
    assert not protects(star_tree(range(6), 0), star_tree(range(6), 0))
    assert not protects(star_tree(range(6), 0), tree)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_two_parties_are_refused(topology: Topology) -> None:
    for parties in (1, 2):
        with raises_code(ConfigError, "SVFL-LEAK-UNPROTECTED"):
            two_passes(topology, parties)


@pytest.mark.parametrize(("space", "width"), [(Reals(), 8), (Circle(), 4), (Circle(16), 2)], ids=str)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_bytes_a_value_and_pass(topology: Topology, space: Space, width: int) -> None:
    n = 1000
    parts = [np.zeros(n) if isinstance(space, Reals) else np.zeros(n, np.uint32) for _ in range(4)]
    _, events, _ = one_sum(vfl.TreeSum(topology=topology), parts, space)
    sent = [event for event in events if event.direction == "send"]
    assert len(sent) == 2 * len(parts)
    assert all(width * n < event.nbytes < width * n + 120 for event in sent)


def longest(tree: SumTree) -> int:
    """Return the number of messages on the longest path to the root."""
    height = dict.fromkeys(tree.parties, 0)
    for level in tree.levels:
        for sender, to in level:
            height[to] = max(height[to], height[sender] + 1)
    return height[tree.root]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_both_passes_take_the_latency_of_the_deeper_one(topology: Topology) -> None:
    latency = 100.0  # seconds, so that nothing else counts
    for passives in (2, 5, 8):
        sums = vfl.TreeSum(topology=topology)
        trees = sums.trees(passives + 1)
        network = vfl.Network(mbps=1e6, rtt_ms=2000 * latency)
        _, _, seconds = one_sum(sums, [np.zeros(3)] * passives, Reals(), network)
        assert max(map(longest, trees)) * latency <= seconds
        assert seconds < (max(tree.depth for tree in trees) + 0.5) * latency


def test_a_value_beyond_the_bound_is_refused() -> None:
    with raises_code(RangeError, "SVFL-CRYPTO-RANGE"):
        one_sum(vfl.TreeSum(), [np.array([2.0]), np.array([0.0])], Reals(1.0))


def test_parts_of_different_shape_are_refused() -> None:
    with raises_code(ProtocolError, "SVFL-PROTOCOL-SIZE"):
        one_sum(vfl.TreeSum(topology="star"), [np.zeros(3), np.zeros(2)], Reals())
    with raises_code(ProtocolError, "SVFL-PROTOCOL-SIZE"):
        unpack(bytes(7), (4,), Circle(16), "b")

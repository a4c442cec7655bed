"""Every sum protocol compared with a plain sum, for real numbers and phases (angles),
several at once over a channel.
"""

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from builders import raises_code

import securevfl as vfl
from securevfl.base.roles import Roles
from securevfl.errors import ConfigError, LeakageError, ProtocolError
from securevfl.protocols.number_spaces import Circle, Reals, Space
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.protocol_options import default_sum
from securevfl.protocols.sums.base import SumProtocol
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.party_threads import run_threads
from tests.small_keys import SMALL

TESTED_SUMS: list[SumProtocol] = [
    vfl.DirectSum(),
    vfl.TreeSum(),
    vfl.TreeSum(topology="star"),
    vfl.TreeSum(topology="ring"),
    vfl.PairwiseSum(),
    vfl.CipherSum(engine=vfl.Ckks()),
    vfl.CipherSum(engine=vfl.Ckks(), topology="star"),
    vfl.CipherSum(engine=SMALL),
]
NAMES = ["a", "b", "c", "d", "e"]


def seat_of(channel: Channel, names: list[str]) -> PartyContext:
    return PartyContext(channel, Roles.sum(names[0], tuple(names[1:])), Meter(channel.clock, channel.counters))


def together(names: list[str], play: Callable[[PartyContext], Any]) -> dict[str, Any]:
    roles = {name: lambda channel: play(seat_of(channel, names)) for name in names}
    return run_threads(roles, lambda: VirtualClock(vfl.Network()), timeout=30)


def part_of(name: str, exchange: int, space: Space) -> np.ndarray:
    generator = np.random.default_rng([ord(name), exchange])
    if isinstance(space, Reals):
        return generator.uniform(-space.bound, space.bound, (6, 2))
    return generator.integers(2**space.bits, size=(6, 2), dtype=np.uint64).astype(np.uint32)


def plain_sum(names: list[str], exchange: int, space: Space) -> np.ndarray:
    parts = [part_of(name, exchange, space) for name in names]
    if isinstance(space, Reals):
        return np.sum(parts, axis=0)
    total = sum(part.astype(object) for part in parts)
    return np.array(total % 2**space.bits, dtype=np.uint32)


def distance(got: np.ndarray, expected: np.ndarray, space: Circle) -> int:
    """Return the largest distance on the circle, in steps."""
    apart = (got.astype(np.int64) - expected.astype(np.int64)) % 2**space.bits
    return int(np.minimum(apart, 2**space.bits - apart).max())


def slack(sums: SumProtocol, space: Circle) -> int:
    """Return the tolerance of a sum of four phases in steps: only CKKS rounds, to 2^-26 of a turn per phase."""
    rounds = isinstance(sums, vfl.CipherSum) and isinstance(sums.engine, vfl.Ckks) and space.bits == 32
    return 4 * 2 ** (32 - 26) if rounds else 0


@pytest.mark.parametrize("space", [Reals(), Reals(1e-3), Circle(), Circle(16)], ids=str)
@pytest.mark.parametrize("sums", TESTED_SUMS, ids=repr)
def test_a_sum_is_that_of_the_parts(sums: SumProtocol, space: Space) -> None:
    def play(context: PartyContext) -> list[np.ndarray]:
        role = sums.role(context)
        if context.me == context.collector:
            return [role.collect((6, 2), space) for _ in range(3)]
        for exchange in range(3):
            role.contribute(part_of(context.me, exchange, space), space)
        return []

    for exchange, got in enumerate(together(NAMES, play)["a"]):
        expected = plain_sum(NAMES[1:], exchange, space)
        if isinstance(space, Reals):
            np.testing.assert_allclose(got, expected, atol=1e-6 * space.bound)
        else:
            assert got.dtype == np.uint32
            assert distance(got, expected, space) <= slack(sums, space)


@pytest.mark.parametrize("sums", TESTED_SUMS, ids=repr)
def test_every_party_collects_at_once_over_one_channel(sums: SumProtocol) -> None:
    """Each party has one context for every other party as collector, and runs each in a separate thread."""
    names, space = NAMES[:4], Circle()

    def play(context: PartyContext) -> list[np.ndarray]:
        collected: list[np.ndarray] = []
        failures: list[BaseException] = []

        def sit(active: str) -> None:
            try:
                role = sums.role(context.sum_to(active, subchannel=active))
                for exchange in range(2):
                    if active == context.me:
                        collected.append(role.collect((6, 2), space))
                    else:
                        role.contribute(part_of(context.me, exchange, space), space)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=sit, args=(active,)) for active in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return collected

    for name, collected in together(names, play).items():
        for exchange, got in enumerate(collected):
            expected = plain_sum([other for other in names if other != name], exchange, space)
            assert distance(got, expected, space) <= slack(sums, space)


@pytest.mark.parametrize("sums", TESTED_SUMS[1:], ids=repr)
def test_only_the_active_party_collects(sums: SumProtocol) -> None:
    def play(context: PartyContext) -> None:
        role = sums.role(context)
        wrong = role.contribute if context.me == context.collector else role.collect
        with raises_code(ProtocolError, "SVFL-STATE"):
            wrong((2,), Reals())

    together(NAMES[:3], play)


def test_auto_sum_is_direct_for_two_parties_and_else_pairwise() -> None:
    assert default_sum(1) == vfl.DirectSum()
    assert default_sum(2) == default_sum(9) == vfl.PairwiseSum()


@pytest.mark.parametrize("sums", [vfl.TreeSum(), vfl.PairwiseSum()], ids=repr)
def test_a_masked_sum_of_one_part_is_refused(sums: SumProtocol) -> None:
    two = vfl.datasets.breast_cancer(parties=2)
    job = vfl.Job(model=vfl.Logistic(), optimizer=vfl.FedBCD(lr=0.1), protocol=vfl.Protocol(sum=sums, residual="open"))
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED"):
        vfl.simulate(job, two)
    assert "would be refused" in vfl.explain(job, two)
    accepted = vfl.Job(**(job.to_dict() | {"accepts": ("single_passive", "columns")}))
    with raises_code(ConfigError, "SVFL-LEAK-UNPROTECTED"):
        vfl.simulate(accepted, two)


def test_coalitions_are_described_in_a_sentence() -> None:
    passives = ["bank", "post", "shop"]
    descriptions = [
        (vfl.DirectSum(), "the active party learns the outputs of bank alone"),
        (vfl.PairwiseSum(), "post, shop and the active party together learn the outputs of bank; fewer than 3 "),
    ]
    for sums, start in descriptions:
        assert sums.coalition(passives).startswith(start)


@pytest.mark.parametrize("topology", ["ring", "star", "tree"])
@pytest.mark.parametrize("count", [3, 4, 6, 7])
def test_the_stated_coalition_is_one_of_the_smallest(topology: Any, count: int) -> None:
    passives, sums = [f"p{k}" for k in range(count)], vfl.TreeSum(topology=topology)
    sizes = {name: len(others) for name, others in sums.coalitions(("active", *passives)).items()}
    stated = re.search(r"outputs of (p\d+)", sums.coalition(passives))
    assert stated is not None
    assert sizes[stated[1]] == min(sizes.values())


def test_explain_describes_coalitions_of_masked_sums() -> None:
    parties = vfl.datasets.breast_cancer(parties=4)
    for sums in ({"name": "tree", "topology": "ring"}, {"name": "cipher", "topology": "star"}, {"name": "pairwise"}):
        job = vfl.Job.from_dict(
            {
                "model": "logistic",
                "optimizer": {"name": "fedbcd", "lr": 0.1},
                "protocol": {"sum": sums, "residual": "open"},
            }
        )
        assert vfl.Job.from_dict(job.to_dict()) == job
        sheet = vfl.explain(job, parties)
        assert "together learn the outputs of" in sheet
        assert job.protocol.sum_for(3).coalition([party.name for party in parties[1:]]) in sheet

"""Outputs and open residuals in single precision: half the bytes, the same model up to rounding."""

from typing import Any

import numpy as np
import pytest
from builders import raises_code
from numpy.typing import NDArray

import securevfl as vfl
from securevfl.base.roles import Roles
from securevfl.errors import ConfigError, FrameError, ProtocolError
from securevfl.protocols.number_spaces import Reals
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.open_residual import Residual
from securevfl.protocols.sums.base import SumProtocol
from securevfl.protocols.sums.direct_sum import Summand
from securevfl.protocols.sums.pairwise_sum import MaskedSummand
from securevfl.protocols.sums.tree_sum import MaskedPartial
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.codec import decode_message, encode_message
from securevfl.runtime.meter import Meter
from securevfl.runtime.observer import Event
from securevfl.runtime.party_threads import run_threads

NAMES = ("a", "b", "c", "d")


def total(sums: SumProtocol, spaces: dict[str, Reals], observe: Any = None) -> NDArray[Any]:
    """Return the sum that the first of NAMES collects, in the number space of each party."""

    def play(channel: Channel) -> Any:
        role = sums.role(PartyContext(channel, Roles.sum(NAMES[0], NAMES[1:]), Meter(channel.clock, channel.counters)))
        if channel.me == NAMES[0]:
            return role.collect((300, 2), spaces[NAMES[0]])
        return role.contribute(part(channel.me), spaces[channel.me])

    results = run_threads(dict.fromkeys(NAMES, play), lambda: VirtualClock(vfl.Network()), timeout=30, observe=observe)
    return np.asarray(results[NAMES[0]])


def part(name: str) -> NDArray[Any]:
    return np.random.default_rng(ord(name)).normal(size=(300, 2))


TESTED_SUMS: list[SumProtocol] = [vfl.DirectSum(), vfl.TreeSum(), vfl.PairwiseSum()]


@pytest.mark.parametrize("sums", TESTED_SUMS, ids=str)
def test_a_sum_in_single_precision_differs_only_by_rounding(sums: SumProtocol) -> None:
    single = total(sums, dict.fromkeys(NAMES, Reals(bits=32)))
    exact = np.sum([part(name) for name in NAMES[1:]], axis=0)
    assert single.dtype == np.float64
    off = np.abs(single - exact).max()
    assert 0 < off < 3 * (2.0**-17 if sums.hides_parts else 2.0**-22)  # half steps of 2^-16, or of numbers below 4


def test_a_tree_moves_residues_of_four_bytes() -> None:
    sizes = []
    for bits in (64, 32):
        events: list[Event] = []
        total(vfl.TreeSum(), dict.fromkeys(NAMES, Reals(bits=bits)), events.append)  # type: ignore[arg-type]
        sizes += [{len(event.message.residues) for event in events if isinstance(event.message, MaskedPartial)}]
    assert sizes == [{8 * 600}, {4 * 600}]


def test_a_party_that_sends_other_numbers_than_agreed_is_named() -> None:
    spaces = dict.fromkeys(NAMES, Reals()) | {"c": Reals(bits=32)}
    with raises_code(ProtocolError, "SVFL-PROTOCOL-SIZE"):
        total(vfl.DirectSum(), spaces)


def test_a_message_takes_the_two_kinds_of_numbers_and_no_other() -> None:
    for kind in (np.float64, np.float32):
        g = decode_message(Residual, encode_message(Residual(0, np.ones((2, 1), kind)))).g
        assert (g.dtype, g.shape) == (np.dtype(kind), (2, 1))
    for other in (np.float16, np.int64):
        with raises_code(FrameError, "SVFL-FRAME"):
            decode_message(Summand, encode_message(Summand(np.ones((2, 1), other))))  # type: ignore[arg-type]


def job_of(precision: str, **keys: Any) -> vfl.Job:
    protocol = vfl.Protocol(residual="open", precision=precision)  # type: ignore[arg-type]
    options = {"model": vfl.Logistic(), "optimizer": vfl.FedBCD(lr=0.2), "protocol": protocol, "accepts": ["columns"]}
    return vfl.Job(**({"epochs": 2, "batch_size": 128, "test_fraction": 0.2} | options | keys))


@pytest.mark.parametrize("parties", [2, 3])
def test_single_precision_halves_the_bytes_of_a_training(parties: int) -> None:
    tables = vfl.datasets.breast_cancer(parties)
    runs, sizes = {}, {}
    for precision in ("single", "double"):
        events: list[Event] = []
        runs[precision] = vfl.simulate(job_of(precision), tables, observe=events.append)
        sizes[precision] = sum(payload(event) for event in events)
    single, double = (np.vstack([part.theta for part in runs[name].parts.values()]) for name in ("single", "double"))
    assert 0 < np.abs(single - double).max() < 1e-4
    assert 2 * sizes["single"] == sizes["double"] > 0


def payload(event: Event) -> int:
    """Return the bytes of the numbers in a party's part of a sum or in a residual sent in the clear."""
    match event.message:
        case Residual(_, values) | Summand(values):
            return values.nbytes
        case MaskedSummand(_, residues):
            return len(residues)
    return 0


def test_jobs_without_summed_outputs_reject_single_precision() -> None:
    protocol = vfl.Protocol(sum="tree", precision="single")
    with raises_code(ConfigError, "SVFL-JOB-OPTION"):
        vfl.Job(model=vfl.Kernel(gamma=0.1), optimizer=vfl.FDSKL(), protocol=protocol, epochs=1)

"""The lift, which converts shares of a number from k bits to L bits: every case, and the order of requests."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.errors import RangeError
from securevfl.protocols.shares.carry_lift import CarryLift
from securevfl.protocols.shares.iteration import RequestStep, lookup_requests
from tests.builders import raises_code


def lifted(lift: CarryLift, ring: ShareRing, u: Words, mask: Words, c: np.ndarray, pads: Words) -> Words:
    """Run both parties' parts of a lift of u, with A's masks. Return the sum of the shares."""
    low = lift.split(mask)
    b = lift.short_ring.reduce(u - low.low)
    answer = lift.answer(low, lift.request(b, c), pads)
    return ring.reduce(mask + lift.finish(b, c, pads[c, np.arange(len(c))], answer))


@pytest.mark.parametrize(("k", "bits"), [(4, 8), (4, 40), (5, 12), (6, 48), (8, 40), (8, 48), (8, 56)])
def test_every_case_is_lifted(k: int, bits: int) -> None:
    """All values of a, u and c are lifted, with masks whose other bits are 0, 1 and
    random, and with random keys (pads).
    """
    ring, prg = ShareRing(bits), Prg.fresh("test")
    lift = CarryLift(k, ring)
    a, u, c = (axis.ravel() for axis in np.meshgrid(np.arange(2**k), np.arange(2 ** (k - 1)), np.arange(2)))
    u, c = u.astype(np.uint64), c.astype(np.uint8)
    largest = 2 ** (bits - k) - 1
    for alpha in (np.uint64(0), np.uint64(largest), lift.high_ring.uniform(prg, len(a))):
        mask = a.astype(np.uint64) + (alpha << np.uint64(k))
        pads = lift.high_ring.uniform(prg, (2, len(a)))
        assert (lifted(lift, ring, u, mask, c, pads) == u).all()


@pytest.mark.parametrize("bits", [40, 48, 56])
def test_entries_of_sixteen_bits_are_lifted(bits: int) -> None:
    ring, prg, rng = ShareRing(bits), Prg.fresh("test"), np.random.default_rng(0)
    lift, count = CarryLift(16, ring), 200_000
    edges = np.array([0, 1, 2**15 - 2, 2**15 - 1, 2**15, 2**15 + 1, 2**16 - 1], np.uint64)
    pairs = np.array([(a, u) for a, u in product(edges, edges) if u < 2**15], np.uint64)
    a = np.concatenate([pairs[:, 0], rng.integers(0, 2**16, count).astype(np.uint64)])
    u = np.concatenate([pairs[:, 1], rng.integers(0, 2**15, count).astype(np.uint64)])
    mask = a + (lift.high_ring.uniform(prg, len(a)) << np.uint64(16))
    pads = lift.high_ring.uniform(prg, (2, len(a)))
    for bit in (0, 1):
        assert (lifted(lift, ring, u, mask, np.full(len(a), bit, np.uint8), pads) == u).all()


def test_numbers_with_the_top_bit_are_not_lifted() -> None:
    """The top bits do not determine the carry of such numbers, so tables must not contain them."""
    ring, prg = ShareRing(48), Prg.fresh("test")
    lift = CarryLift(8, ring)
    u, mask = np.full(256, 200, np.uint64), np.arange(256, dtype=np.uint64)
    c = np.zeros(256, np.uint8)
    assert (lifted(lift, ring, u, mask, c, lift.high_ring.uniform(prg, (2, 256))) != u).any()


def test_what_each_party_receives_is_uniform() -> None:
    """For every u and every a, for an honest e and for its complement."""
    ring, prg = ShareRing(40), Prg.fresh("test")
    lift, repeats = CarryLift(4, ring), 400
    for u, a in ((0, 0), (7, 0), (0, 15), (7, 15), (3, 8)):
        c = prg.array(repeats, np.uint8) & np.uint8(1)
        b = np.full(repeats, (u - a) % 16, np.uint64)
        e = lift.request(b, c)
        assert stats.binomtest(int(e.sum()), repeats).pvalue > 1e-9
        mask = lift.split(np.uint64(a) + (lift.high_ring.uniform(prg, repeats) << np.uint64(4)))
        pads = lift.high_ring.uniform(prg, (2, repeats))
        for sent in (e, e ^ 1):
            answer = lift.answer(mask, sent, pads)
            opened = lift.high_ring.reduce(answer[c, np.arange(repeats)] + pads[c, np.arange(repeats)])
            other = answer[1 - c, np.arange(repeats)]
            for words in (opened, other):
                octets = words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :4]
                assert stats.chisquare(np.bincount(octets.ravel(), minlength=256)).pvalue > 1e-9


def test_a_lift_needs_more_bits() -> None:
    for bits in (0, 8, 9):
        with raises_code(RangeError, "SVFL-CRYPTO-PARAMETERS"):
            CarryLift(bits, ShareRing(8))


@pytest.mark.parametrize("lifts", [False, True])
@pytest.mark.parametrize("blocks", range(1, 9))
def test_requests_name_each_block_once_before_any_answer(blocks: int, lifts: bool) -> None:
    requests = lookup_requests(blocks, lifts=lifts)
    everything = list(range(blocks))
    assert [step.block for step in requests if step.block is not None] == everything
    assert [block for step in requests for block in step.deltas] == everything
    assert [block for step in requests for block in step.carries] == (everything if lifts else [])
    answering = [step for step in requests if step.answered]
    for number, step in enumerate(requests):
        received = answering[: step.answers]
        assert all(item in requests[:number] for item in received)  # the answer to an earlier request
        tables = {item.block for item in received}
        lifted_blocks = {block for item in received for block in item.carries}
        assert set(step.carries) <= tables
        assert set(step.deltas) <= (lifted_blocks if lifts else tables)
    assert requests[-1] == RequestStep(None, range(0), range(blocks - 1, blocks), len(answering), answered=False)


@pytest.mark.parametrize("lifts", [False, True])
@pytest.mark.parametrize("blocks", range(1, 9))
def test_requests_keep_several_blocks_on_the_line(blocks: int, lifts: bool) -> None:
    requests = lookup_requests(blocks, lifts=lifts)
    ahead = min(blocks, 3)
    assert [step.answers for step in requests[:ahead]] == [0] * ahead
    for step in requests[ahead:blocks]:  # a block is requested as soon as the tables of the third one before arrive
        assert step.block is not None
        assert step.answers == step.block - ahead + 1
    carrying = [step for step in requests if step.carries]
    assert all(step.answers == step.carries.stop for step in carrying)  # bits are sent when the block's tables arrive
    unanswered = [step for step in requests if not step.answered]
    assert [step.block is None and not step.carries for step in unanswered] == [True] * len(unanswered)

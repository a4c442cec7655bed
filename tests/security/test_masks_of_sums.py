"""Masks of sums, weakened in several ways: each weakness shows in the sent messages."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.crypto.prg import Prg
from securevfl.crypto.sum_trees import SumTree
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums import pairwise_sum
from securevfl.protocols.sums.base import SumProtocol, SumRole
from securevfl.protocols.sums.pairwise_sum import MaskedSummand
from securevfl.protocols.sums.topologies import two_passes
from securevfl.protocols.sums.tree_sum import MaskedPartial, MaskPartial, TreeSumRole
from tests.security.test_collusion import NAMES, TESTED_SUMS, Transcript, knowledge, parts_of, solve


class SameTrees(vfl.TreeSum):
    """A tree sum with T2 = T1."""

    def trees(self, parties: int) -> tuple[SumTree, SumTree]:
        T1, _ = two_passes(self.topology, parties)
        return T1, T1


def test_equal_trees_are_caught() -> None:
    run = Transcript(SameTrees(), parts_of(NAMES))
    alone = [
        (coalition, target)
        for coalition in NAMES
        for target in NAMES[1:]
        if coalition != target and solve(knowledge(run, {coalition}), ("v", target)) is not None
    ]
    assert alone


class WithRole(vfl.TreeSum):
    """A tree sum with other masks."""

    def role(self, context: PartyContext) -> SumRole:
        return self.roles(context, *self.trees(len(context.parties)))

    def roles(self, context: PartyContext, T1: SumTree, T2: SumTree) -> SumRole:
        return TreeSumRole(context, T1, T2)


class NoMask(TreeSumRole):
    def _mask(self, part: np.ndarray) -> np.ndarray:
        return np.zeros_like(part)


class OneMask(TreeSumRole):
    """Uses the mask of the first exchange in all exchanges."""

    def _mask(self, part: np.ndarray) -> np.ndarray:
        if not hasattr(self, "first_mask"):
            self.first_mask = super()._mask(part)
        return self.first_mask.copy()


class SeededMask(TreeSumRole):
    """Draws masks from the job's seed."""

    def __init__(self, context: PartyContext, T1: SumTree, T2: SumTree) -> None:
        super().__init__(context, T1, T2)
        self._masks = Prg(context.seed.to_bytes(32, "big"), context.me)


class NoMaskSum(WithRole):
    def roles(self, context: PartyContext, T1: SumTree, T2: SumTree) -> SumRole:
        return NoMask(context, T1, T2)


class OneMaskSum(WithRole):
    def roles(self, context: PartyContext, T1: SumTree, T2: SumTree) -> SumRole:
        return OneMask(context, T1, T2)


class SeededMaskSum(WithRole):
    def roles(self, context: PartyContext, T1: SumTree, T2: SumTree) -> SumRole:
        return SeededMask(context, T1, T2)


MASKED: list[SumProtocol] = [sums for sums in TESTED_SUMS if isinstance(sums, vfl.TreeSum | vfl.PairwiseSum)]
CARRIERS = (MaskedPartial, MaskPartial, MaskedSummand)


def uniform(words: np.ndarray) -> bool:
    """Test bytes by chi-square with 255 degrees of freedom; a false alarm has P = 1e-12."""
    data = np.ascontiguousarray(words).view(np.uint8)
    counts, expected = np.bincount(data, minlength=256), len(data) / 256
    return bool(((counts - expected) ** 2 / expected).sum() < 450)


def carried(run: Transcript) -> dict[tuple[str, type], list[np.ndarray]]:
    """Return the messages of each party by type and exchange."""
    results: dict[tuple[str, type], list[np.ndarray]] = {}
    for event in run.events:
        if event.direction == "send" and isinstance(event.message, CARRIERS):
            words = np.frombuffer(event.message.residues, "<u4")
            results.setdefault((event.me, type(event.message)), []).append(words)
    return results


def every_message_is_uniform(sums: SumProtocol) -> bool:
    run = Transcript(sums, parts_of(NAMES[:5], shape=1 << 13, zero=True))
    return all(uniform(words) for sent in carried(run).values() for words in sent)


def rounds_tell_no_differences(sums: SumProtocol) -> bool:
    """Return whether differences of the messages of two exchanges with equal parts are uniform."""
    parts = {name: local * 2 for name, local in parts_of(NAMES[:5], shape=1 << 13).items()}
    run = Transcript(sums, parts)
    return all(uniform(second - first) for first, second in carried(run).values())


def sessions_differ(sums: SumProtocol) -> bool:
    """Return whether the messages of two runs of the same job have nothing in common."""
    first, second = (carried(Transcript(sums, parts_of(NAMES[:5], shape=1 << 13))) for _ in range(2))
    return all(uniform(second[place][0] - first[place][0]) for place in first)


@pytest.mark.parametrize("sums", MASKED, ids=repr)
@pytest.mark.parametrize("check", [every_message_is_uniform, rounds_tell_no_differences, sessions_differ])
def test_masks_are_uniform_fresh_and_not_seeded(sums: SumProtocol, check: Callable[[SumProtocol], bool]) -> None:
    assert check(sums)


def test_a_missing_mask_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert every_message_is_uniform(WithRole())
    assert not every_message_is_uniform(NoMaskSum())
    monkeypatch.setattr(pairwise_sum, "add_pair_masks", lambda *_: None)
    assert not every_message_is_uniform(vfl.PairwiseSum())


def test_a_mask_used_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not rounds_tell_no_differences(OneMaskSum())
    add = pairwise_sum.add_pair_masks

    def of_the_first_round(total: Any, me: str, pairs: dict[str, Prg], round: int) -> None:
        for prg in pairs.values():
            prg._next = 0
        add(total, me, pairs, 0)

    monkeypatch.setattr(pairwise_sum, "add_pair_masks", of_the_first_round)
    assert not rounds_tell_no_differences(vfl.PairwiseSum())


def test_a_seeded_generator_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not sessions_differ(SeededMaskSum())
    monkeypatch.setattr(
        pairwise_sum,
        "exchange_keys",
        lambda context, pair, among, *, domain: {
            peer: bytes(31) + bytes([ord(context.me) ^ ord(peer)])
            for peer in context.contributors
            if peer != context.me
        },
    )
    assert not sessions_differ(vfl.PairwiseSum())

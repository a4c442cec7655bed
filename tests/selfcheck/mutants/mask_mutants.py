"""Mutants (deliberate errors) of masked sums, over trees and pairwise."""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from securevfl.base.roles import COLLECTOR
from securevfl.crypto.key_agreement import KeyPair
from securevfl.crypto.prg import Prg
from securevfl.protocols.sums import pairwise_sum, topologies, tree_sum
from securevfl.protocols.sums.tree_sum import TreeSum, TreeSumRole
from securevfl.runtime.codec import Message
from selfcheck.mutants.mutant import Mutant, patched


def _no_mask(self: Any, part: Any) -> Any:
    return np.zeros_like(part)


def _kept_mask(self: Any, part: Any) -> Any:
    if not hasattr(self, "_first_mask"):
        self._first_mask = self._masks.array(part.shape, part.dtype.type)
    return self._first_mask.copy()


def _float_mask(self: Any, part: Any) -> Any:
    generator = np.random.default_rng(int.from_bytes(self._masks.array(1, np.uint64).tobytes(), "little"))
    return (generator.normal(size=part.shape) * 2.0**40).astype(np.int64).astype(part.dtype)


def _numpy_mask(self: Any, part: Any) -> Any:
    return np.random.default_rng().integers(0, 2**63, part.shape, np.uint64).astype(part.dtype) * part.dtype.type(3)


def _stdlib_mask(self: Any, part: Any) -> Any:
    raw = b"".join(random.getrandbits(64).to_bytes(8, "little") for _ in range(part.size))
    return np.frombuffer(raw, np.uint64).astype(part.dtype).reshape(part.shape)


def _even_mask(self: Any, part: Any) -> Any:
    mask = self._masks.array(part.shape, part.dtype.type)
    return mask & ~part.dtype.type(0xFF)


def _seeded(label: str) -> Prg:
    return Prg(bytes(range(64, 96)), label)


def _short_seed(label: str) -> Prg:
    return Prg(os.urandom(4) * 8, label)


def _hashed_short_seed(label: str) -> Prg:
    return Prg(hashlib.sha256(secrets.randbits(32).to_bytes(4, "little")).digest(), label)


def _one_tree(shape: Any, parties: int) -> Any:
    both = _two_passes(shape, parties)
    return both[0], both[0]


_two_passes = topologies.two_passes


_pair_masks = pairwise_sum.add_pair_masks


def _no_pair_masks(total: Any, me: str, pairs: Any, round: int) -> None:
    return


def _pair_masks_of_round_zero(total: Any, me: str, pairs: Any, round: int) -> None:
    for peer in pairs:
        if round == 0:
            pairs[peer].zero = pairs[peer].inner.array(total.shape, total.dtype.type)
        (np.add if me < peer else np.subtract)(total, pairs[peer].zero, out=total)


class _KeepsFirst:
    """A keystream that repeats its first array."""

    def __init__(self, key: bytes, label: str) -> None:
        self.inner, self.zero = Prg(key, label), None


def _alike_masks(total: Any, me: str, pairs: Any, round: int) -> None:
    for prg in pairs.values():
        total += prg.array(total.shape, total.dtype.type, number=round)


def _half_masks(total: Any, me: str, pairs: Any, round: int) -> None:
    bare = total.copy()
    _pair_masks(total, me, pairs, round)
    total[::2] = bare[::2]


@contextmanager
def _one_key_pair() -> Iterator[None]:
    """Each party's key pair is computed from its name, and so is the same in every session."""

    def make(self: Any) -> None:
        name = threading.current_thread().name.encode()
        self._private = X25519PrivateKey.from_private_bytes(hashlib.sha256(name).digest())
        self.public = self._private.public_key().public_bytes_raw()

    with mock.patch.object(KeyPair, "__init__", make):
        yield


class Diagnostics(Message, frozen=True):
    """A message that no protocol has."""

    note: bytes


_contribute = TreeSumRole.contribute


def _chatty(self: Any, values: Any, space: Any) -> None:
    self._context.channel.send(self._context.collector, Diagnostics(b"contributing"), "log")
    _contribute(self, values, space)


@contextmanager
def _undeclared_message() -> Iterator[None]:
    collect = TreeSumRole.collect

    def listen(self: Any, shape: Any, space: Any) -> Any:
        total = collect(self, shape, space)
        for passive in self._context.contributors:
            self._context.channel.recv(passive, Diagnostics, "log")
        return total

    with mock.patch.object(TreeSumRole, "contribute", _chatty), mock.patch.object(TreeSumRole, "collect", listen):
        yield


_tree_declares = TreeSum.declares


def _declares_less(self: Any, passives: Any) -> Any:
    return [item for item in _tree_declares(self, passives) if item.receiver == COLLECTOR]


MUTANTS = [
    Mutant(
        "tree: no mask",
        "parts are sent up T1 in the clear",
        "sum tree",
        "uniform",
        patched((TreeSumRole, "_mask", _no_mask)),
    ),
    Mutant(
        "tree: no mask on phases",
        "phases are sent up T1 in the clear",
        "phases tree",
        "uniform",
        patched((TreeSumRole, "_mask", _no_mask)),
    ),
    Mutant(
        "tree: one mask for all rounds",
        "a mask is drawn once and kept",
        "sum tree",
        "difference",
        patched((TreeSumRole, "_mask", _kept_mask)),
    ),
    Mutant(
        "tree: float mask",
        "a normal float instead of a ring element hides the part",
        "sum tree",
        "uniform",
        patched((TreeSumRole, "_mask", _float_mask)),
    ),
    Mutant(
        "tree: low byte unmasked",
        "the mask leaves the low byte of each residue",
        "sum tree",
        "uniform",
        patched((TreeSumRole, "_mask", _even_mask)),
    ),
    Mutant(
        "tree: mask from numpy",
        "the mask is drawn by numpy's generator",
        "sum tree",
        "generator",
        patched((TreeSumRole, "_mask", _numpy_mask)),
    ),
    Mutant(
        "tree: mask from random",
        "the mask is drawn by the standard library's Mersenne twister",
        "sum tree",
        "generator",
        patched((TreeSumRole, "_mask", _stdlib_mask)),
    ),
    Mutant(
        "tree: seeded generator",
        "every party's keystream has one fixed key",
        "sum tree",
        "nonce",
        patched((Prg, "fresh", staticmethod(_seeded))),
    ),
    Mutant(
        "tree: 32-bit seed",
        "the key of the masks is four random bytes, repeated",
        "sum tree",
        "weak",
        patched((Prg, "fresh", staticmethod(_short_seed))),
    ),
    Mutant(
        "tree: hashed 32-bit seed",
        "the key of the masks is a hash of 32 random bits",
        "sum tree",
        "short",
        patched((Prg, "fresh", staticmethod(_hashed_short_seed))),
    ),
    Mutant(
        "tree: T2 is T1",
        "masks are sent up the tree of the masked parts, so subtrees are shared",
        "sum tree",
        "difference",
        patched((tree_sum, "two_passes", _one_tree)),
    ),
    Mutant(
        "tree: T2 is T1, seen by the simulator",
        "as above",
        "simulator sum tree",
        "simulator",
        patched((tree_sum, "two_passes", _one_tree)),
    ),
    Mutant(
        "tree: mask kept, seen by the simulator",
        "a mask is drawn once and kept",
        "simulator sum tree",
        "simulator",
        patched((TreeSumRole, "_mask", _kept_mask)),
    ),
    Mutant(
        "tree: a message more",
        "parties report to the active one that they contribute",
        "sum tree",
        "declared",
        _undeclared_message,
    ),
    Mutant(
        "tree: declares less",
        "what passes between passive parties is not declared",
        "sum tree",
        "declared",
        patched((TreeSum, "declares", _declares_less)),
    ),
    Mutant(
        "pairwise: no masks",
        "parts go to the active party as they are",
        "pairwise masks recomputed",
        "derived",
        patched((pairwise_sum, "add_pair_masks", _no_pair_masks)),
    ),
    Mutant(
        "pairwise: no masks, seen by the simulator",
        "as above, over a star",
        "simulator sum pairwise",
        "simulator",
        patched((pairwise_sum, "add_pair_masks", _no_pair_masks)),
    ),
    Mutant(
        "pairwise: half of the rows",
        "every second row stays unmasked",
        "pairwise masks recomputed",
        "derived",
        patched((pairwise_sum, "add_pair_masks", _half_masks)),
    ),
    Mutant(
        "pairwise: masks of round 0",
        "the round does not enter the masks",
        "sum pairwise",
        "difference",
        patched((pairwise_sum, "add_pair_masks", _pair_masks_of_round_zero), (pairwise_sum, "Prg", _KeepsFirst)),
    ),
    Mutant(
        "pairwise: masks of one sign",
        "both ends add, so masks do not cancel",
        "sum pairwise",
        "output",
        patched((pairwise_sum, "add_pair_masks", _alike_masks)),
    ),
    Mutant(
        "pairwise: one key pair for ever",
        "key pairs are derived from the party's name",
        "sum pairwise",
        "fresh",
        _one_key_pair,
    ),
]

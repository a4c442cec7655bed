"""Mutants of the sums and the residuals, and of what is declared about them."""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from securevfl.audit.mutant import Mutant, patched
from securevfl.codec import Message
from securevfl.crypto import masks
from securevfl.crypto.agreement import KeyPair
from securevfl.crypto.prg import Prg, derive_key
from securevfl.protocols import dropout_sum, pairwise_sum, sealed_residual, topology, tree_sum
from securevfl.protocols.base import Reveal
from securevfl.protocols.cipher_sum import CipherAdder, CipherHolder, PartialSum
from securevfl.protocols.direct_sum import DirectSum, DirectSumRole
from securevfl.protocols.dropout_sum import DropoutMember
from securevfl.protocols.open_residual import OpenActive, OpenReply
from securevfl.protocols.sealed_residual import SealedG
from securevfl.protocols.tree_sum import TreeSum, TreeSumRole


def _no_mask(self: Any, part: Any) -> Any:
    return np.zeros_like(part)


def _kept_mask(self: Any, part: Any) -> Any:
    if not hasattr(self, "_kept"):
        self._kept = self._masks.array(part.shape, part.dtype.type)
    return self._kept.copy()


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


_two_passes = topology.two_passes
_pair_masks = pairwise_sum.add_pair_masks


def _no_pair_masks(total: Any, me: str, pairs: Any, round: int) -> None:
    return


def _pair_masks_of_round_zero(total: Any, me: str, pairs: Any, round: int) -> None:
    for peer in pairs:
        if round == 0:
            pairs[peer].zero = pairs[peer].inner.array(total.shape, total.dtype.type)
        (np.add if me < peer else np.subtract)(total, pairs[peer].zero, out=total)


class _KeepsFirst:
    """A keystream of which only the first array is used."""

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
    """Each party's key pair is the same in every session: made from its name."""

    def make(self: Any) -> None:
        name = threading.current_thread().name.encode()
        self._take(X25519PrivateKey.from_private_bytes(hashlib.sha256(name).digest()))

    with mock.patch.object(KeyPair, "__init__", make):
        yield


def _unmasked_double(name: str, values: Any, self_seed: bytes, pair_seeds: Any) -> Any:
    return np.array(values, order="C")


def _pairs_only(name: str, values: Any, self_seed: bytes, pair_seeds: Any) -> Any:
    total = np.array(values, order="C")
    for peer, seed in pair_seeds.items():
        masks._apply(total, seed, "pair mask", add=name < peer)
    return total


def _one_aead_key(self: Any, holder: str, owner: str) -> Any:
    """The key that seals shares forgets the round: one key and nonce for every sum."""
    peer = owner if holder == self._seat.me else holder
    return vars(dropout_sum)["ChaCha20Poly1305"](derive_key(self._keys[peer], "shares", owner))


def _clear_partial(self: Any, values: Any, space: Any) -> None:
    for child in self._below:
        self._channel.recv(child, PartialSum, self._lane)
    self._channel.send(self._above, PartialSum(np.ravel(values).astype(np.float64).tobytes()), self._lane)


def _clear_collect(self: Any, shape: Any, space: Any) -> Any:
    return np.frombuffer(self._channel.recv(self._head, PartialSum, self._lane).ciphertext).reshape(shape)


def _open_under_sealed_name(self: Any, g: Any, *, epoch: int, to: Any) -> None:
    for passive in to:
        self._seat.channel.send(passive, SealedG(np.ascontiguousarray(g).tobytes()))


def _nothing_owed(self: Any) -> None:
    return


def _read_open(self: Any, *, epoch: int) -> Any:
    data = self._seat.channel.recv(self._seat.active, SealedG).ciphertext
    return OpenReply(np.frombuffer(data).reshape(-1, self._seat.outputs))


def _per_sample(self: Any, sealed: bytes, model: Any, batch: Any) -> Any:
    """Asks for the gradient by the identity: every row's own residual."""
    X = model.jacobian(batch.X)
    prepared = self._evaluator.prepare(np.eye(len(X)))
    blinded, r = self._evaluator.blind(self._evaluator.transpose_product(prepared, sealed))
    self._seat.channel.send(self._seat.active, sealed_residual.Blinded(blinded))
    opened = self._seat.channel.recv(self._seat.active, sealed_residual.Opened)
    return X.T @ self._evaluator.unblind(opened.values, r)


class Diagnostics(Message, frozen=True):
    """A message that no protocol has."""

    note: bytes


_contribute = TreeSumRole.contribute
_publish = sealed_residual.SealedActive.publish
_open_publish = OpenActive.publish


def _chatty(self: Any, values: Any, space: Any) -> None:
    self._seat.channel.send(self._seat.active, Diagnostics(b"contributing"), "log")
    _contribute(self, values, space)


@contextmanager
def _undeclared_message() -> Iterator[None]:
    collect = TreeSumRole.collect

    def listen(self: Any, shape: Any, space: Any) -> Any:
        total = collect(self, shape, space)
        for passive in self._seat.passives:
            self._seat.channel.recv(passive, Diagnostics, "log")
        return total

    with mock.patch.object(TreeSumRole, "contribute", _chatty), mock.patch.object(TreeSumRole, "collect", listen):
        yield


def _repeated(self: Any, g: Any, *, epoch: int, to: Any) -> None:
    """One ciphertext for every batch of a shape in an epoch, as a cache keyed by shape would."""
    inner = self._holder.encrypt

    class Cached:
        kept = getattr(self, "_cached", {})

        def encrypt(self, g: Any, *, bound: float) -> bytes:
            return self.kept.setdefault((epoch, g.shape), inner(g, bound=bound))  # type: ignore[no-any-return]

        def __getattr__(self, name: str) -> Any:
            return getattr(holder, name)

    holder, self._cached = self._holder, Cached.kept
    if epoch == self._epoch:
        self._holder = Cached()
    try:
        _publish(self, g, epoch=epoch, to=to)
    finally:
        if isinstance(self._holder, Cached):
            self._holder = holder


def _noisy_publish(self: Any, g: Any, *, epoch: int, to: Any) -> None:
    _open_publish(self, np.sign(g), epoch=epoch, to=to)


_tree_declares = TreeSum.declares
_sealed_declares = sealed_residual.SealedResidual.declares


def _declares_less(self: Any, passives: Any) -> Any:
    return [item for item in _tree_declares(self, passives) if item.receiver == "active"]


def _declares_without_blinded(self: Any) -> Any:
    return [item for item in _sealed_declares(self) if item.message.__name__ != "Blinded"]


def _calls_output_uniform(self: Any, passives: Any) -> Any:
    return [replace(item, reveals=Reveal("uniform")) for item in _direct_declares(self, passives)]


_direct_declares = DirectSum.declares
_direct_contribute = DirectSumRole.contribute


def _other_values(self: Any, values: Any, space: Any) -> None:
    _direct_contribute(self, np.rint(values * 10) / 10, space)


MUTANTS = [
    Mutant(
        "tree: no mask", "parts go up T1 as they are", "sum tree", "uniform", patched((TreeSumRole, "_mask", _no_mask))
    ),
    Mutant(
        "tree: no mask on phases",
        "phases go up T1 as they are",
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
        "the mask comes from numpy's generator",
        "sum tree",
        "generator",
        patched((TreeSumRole, "_mask", _numpy_mask)),
    ),
    Mutant(
        "tree: mask from random",
        "the mask comes from the standard library's Mersenne twister",
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
        "masks go up the tree of the masked parts, so subtrees are shared",
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
        "parties tell the active one that they are contributing",
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
        "sum pairwise ring",
        "uniform",
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
        "sum pairwise tree",
        "uniform",
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
        "key pairs are made from the party's name",
        "sum pairwise",
        "fresh",
        _one_key_pair,
    ),
    Mutant(
        "dropout: no masks",
        "parts go to the active party as they are",
        "sum dropout",
        "uniform",
        patched((dropout_sum, "double_mask", _unmasked_double)),
    ),
    Mutant(
        "dropout: no self mask",
        "b_k is shared and not used",
        "sum dropout",
        "output",
        patched((dropout_sum, "double_mask", _pairs_only)),
    ),
    Mutant(
        "dropout: one key and nonce for shares",
        "the key that seals shares forgets the round",
        "sum dropout",
        "nonce",
        patched((DropoutMember, "_cipher", _one_aead_key)),
    ),
    Mutant(
        "cipher: partial sums in the clear",
        "bytes of floats under the name of a ciphertext",
        "sum cipher ckks",
        "hidden",
        patched((CipherAdder, "contribute", _clear_partial), (CipherHolder, "collect", _clear_collect)),
    ),
    Mutant(
        "direct: other numbers",
        "rounded outputs where forward outputs are declared",
        "sum direct",
        "plain",
        patched((DirectSumRole, "contribute", _other_values)),
    ),
    Mutant(
        "direct: called uniform",
        "parts in the clear are declared uniform",
        "sum direct",
        "plain",
        patched((DirectSum, "declares", _calls_output_uniform)),
    ),
    Mutant(
        "open: other numbers",
        "signs where residuals are declared",
        "residual open",
        "plain",
        patched((OpenActive, "publish", _noisy_publish)),
    ),
    Mutant(
        "sealed: open under a sealed name",
        "g as bytes of floats in a SealedG",
        "residual ckks",
        "hidden",
        patched(
            (sealed_residual.SealedActive, "publish", _open_under_sealed_name),
            (sealed_residual.SealedActive, "settle", _nothing_owed),
            (sealed_residual.SealedPassive, "reply", _read_open),
        ),
    ),
    Mutant(
        "sealed: per-sample residuals opened",
        "a party asks for I^T g and sees every row's residual",
        "residual ckks",
        "output",
        patched((sealed_residual.SealedPassive, "gradient", _per_sample)),
    ),
    Mutant(
        "sealed: a ciphertext again",
        "a cache keyed by shape hands out the last [[g]]",
        "residual ckks",
        "fresh",
        patched((sealed_residual.SealedActive, "publish", _repeated)),
    ),
    Mutant(
        "sealed: declares less",
        "the blinded product is not declared",
        "residual ckks",
        "declared",
        patched((sealed_residual.SealedResidual, "declares", _declares_without_blinded)),
    ),
]

"""Pair keys from public keys: X25519 (RFC 7748), then HKDF-SHA256 (RFC 5869).

The key is bound to its context: session, domain (what the key is for), and both parties' names with their public
keys, in the order of the names. Two parties that disagree on any of these get different keys. Public keys must come
over an authenticated channel: a peer that can replace them sits in the middle.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.prg import KEY_BYTES, Prg, encode_context
from securevfl.crypto.scheme import Secret
from securevfl.errors import ConfigError, CryptoError, RangeError

PUBLIC_BYTES = 32


class KeyPair(Secret):
    """An X25519 key pair. The private key never leaves."""

    __slots__ = ("_private", "public")

    public: bytes  # 32 bytes, safe to publish

    def __init__(self) -> None:
        """Draw a fresh pair from the operating system's generator."""
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()

    def agree(self, peer_public: bytes, *, session: str, own: str, peer: str, domain: str) -> bytes:
        """Derive the 32-byte key shared by parties `own` and `peer` in this session, for this domain.

        CryptoError if the peer's key is malformed, of low order (the shared secret would be zero) or this very key,
        or if the names are equal.
        """
        if own == peer or peer_public == self.public:
            raise CryptoError(
                f"key agreement of {own!r} with {peer!r}: expected two parties with two keys, got one twice"
            )
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(peer_public))
        except ValueError:
            raise CryptoError(
                f"key agreement: the public key of {peer!r} ({len(peer_public)} bytes) is no X25519 key of full order; "
                f"expected {PUBLIC_BYTES} bytes made by KeyPair, have {peer!r} send a new one"
            ) from None
        (first, first_key), (second, second_key) = sorted([(own, self.public), (peer, peer_public)])
        info = encode_context("securevfl", "agreement", session, domain, first, first_key, second, second_key)
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(shared)


# Numbers as residues, so that a uniform mask hides them perfectly.
#
# *The ring Z_2^b* for sums, b = 64 or 32. One public power-of-two scale 2^f, fixed by the bound and the number of
# terms, so that the sum of `terms` values within the bound cannot wrap: terms (bound 2^f + 1/2) <= 2^(b-1) - 1.
# Arithmetic is numpy's own on uint64 or uint32, which wraps. For four terms within 2^12, f is 48 or 16. A value is off
# by at most 2^-(f+1), a sum of q values by at most q 2^-(f+1), plus the rounding of the final float64 (2^-53 of the
# sum).
#
# *The circle Z_2^b* = [0, 2 pi), b = 32 or 16, for phases w^T x + b of random features (FDSKL, Algorithm 3), which
# enter only through a cosine. Wrapping is then harmless, no bound is needed, and adding a uniform element hides a phase
# perfectly; the paper's real mask in [0, 2 pi) added to an unwrapped real does not.
# `securevfl.families.fdskl.kernel_model` rounds phases to the circle, off by at most pi 2^-b radians and the rounding
# of its float64.


Ring = NDArray[np.uint64] | NDArray[np.uint32]
RingBits = Literal[32, 64]

MAX_TERMS = 2**32
COS_ERROR = math.pi * 2.0**-16 + 2.0**-25  # of `cos_circle`: half a table step, and the rounding of float32

_COS: NDArray[np.float32] = np.cos(np.arange(2**16) * (2 * math.pi / 2**16)).astype(np.float32)
_COS.flags.writeable = False


def scale_bits(bound: float, terms: int, bits: RingBits = 64) -> int:
    """Return the exponent f of the scale 2^f: the largest with terms (bound 2^f + 1/2) <= 2^(bits-1) - 1.

    ConfigError unless bound is finite and positive and 1 <= terms <= 2^32.
    """
    if not (math.isfinite(bound) and bound > 0):
        raise ConfigError("ring bound: expected a finite positive number; set it to the largest |value| a party sends")
    if not 1 <= terms <= MAX_TERMS:
        raise ConfigError(f"ring terms: expected 1 to {MAX_TERMS}, got {terms}; it is the number of values in a sum")
    room = ((1 << bits - 1) - 1 - Fraction(terms, 2)) / (terms * Fraction(bound))
    f = room.numerator.bit_length() - room.denominator.bit_length()
    return f if room >= Fraction(2) ** f else f - 1


def to_ring(v: Floats, bound: float, terms: int, bits: RingBits = 64) -> Ring:
    """v (any shape), rounded to multiples of 2^-f, mod 2^bits. RangeError if any |v| > bound or is not finite."""
    f = scale_bits(bound, terms, bits)
    v = np.asarray(v, dtype=np.float64)
    if not bool(np.all(np.abs(v) <= bound)):  # false for NaN too
        raise RangeError(f"to_ring: a value is not finite or beyond the agreed bound {bound:g}; pass values within it")
    steps = np.rint(np.ldexp(v, f)).astype(np.int64)
    return steps.view(np.uint64) if bits == 64 else steps.astype(np.uint32)


def from_ring(total: Ring, bound: float, terms: int) -> Floats:
    """Return the real sum behind a sum (mod 2^64, or 2^32 as uint32) of at most `terms` results of `to_ring`, with
    its bound and terms."""
    bits: RingBits = 64 if total.itemsize == 8 else 32
    signed = total.view(np.int64 if bits == 64 else np.int32)
    return np.ldexp(signed.astype(np.float64), -scale_bits(bound, terms, bits))


def cos_circle(circle: NDArray[np.uint32] | NDArray[np.uint16]) -> NDArray[np.float32]:
    """Cosine of each residue, from a table of 2^16 entries. Off by at most `COS_ERROR` (4.8e-5); 2^-25 for uint16."""
    steps = circle if circle.itemsize == 2 else (circle + np.uint32(1 << 15)) >> np.uint32(16)
    return np.take(_COS, steps, mode="clip")  # always in range; clip spares a check


# Sums over trees, and who can learn what from them (FDSKL, Gu et al. 2020: Algorithms 1 to 3, Definition 2).
#
# A tree is a public schedule of sends. Every party but the root sends once, to a party that has not sent yet: its own
# value plus all it has received. So what a receiver gets from a sender is the sum over the sender and everything below.
#
# The masked sum over two trees, among q >= 3 parties, T1 and T2 with the same root (the active party):
#
# 1. every party l draws a fresh uniform mask r_l in the ring or on the circle, for this exchange alone
# 2. along T1      partial sums of v_l + r_l; the root ends with xi = sum (v_l + r_l)
# 3. along T2      partial sums of r_l; the root ends with sum r_l
# 4. root          subtracts: it learns sum v_l, hence the sum over the others; nobody else learns anything
#
# Definition 2: two trees are totally different if they share no subtree, as a set of parties, of more than one and
# fewer than all parties. A shared subtree would hand its partial sum to whoever sees it in both. The definition is
# needed but not enough when inner nodes are parties: a party that receives the same single leaf in both trees learns it
# (star and star, or q = 3 with the same child), and unions of subtrees may coincide where subtrees do not.
# `build_trees` asks for `learned_sums` of every single party to be empty as well (for the root: to be the sum over all
# others).
#
# The paper leaves one party out of T2, whose mask then stays as the phase b of the random feature. But a b that is a
# function of the feature alone meets every row again, and each receiver learns differences of partial sums. Here masks
# are fresh, everyone sends them over T2, and whoever owns the feature adds its phase
# (`securevfl.families.fdskl.kernel_model`).
#
# Who learns what: cut the parties of a coalition C out of both trees. What C learns from T1 is exactly the masked sum
# of each remaining connected piece that does not contain the root (its top sends into C); likewise the sum of masks for
# the pieces of T2. A sum of v alone is a union of pieces of T1 that is also a union of pieces of T2. In particular C
# learns v_l alone if and only if it holds all neighbours of l in both trees. This is exact, not only for linear
# combinations: what C sees is a linear image of uniform masks.


Send = tuple[int, int]  # (sender, receiver)
Parties = frozenset[int]

_TRIES = 10_000


@dataclass(frozen=True, slots=True)
class SumTree:
    """A schedule: `levels[0]` first, the sends of one level side by side, the last one into `root`.

    ConfigError if a party sends twice, receives after or while it sends, or does not lead to the root.
    """

    levels: tuple[tuple[Send, ...], ...]
    root: int

    def __post_init__(self) -> None:
        sent: set[int] = set()
        for level in self.levels:
            senders = [sender for sender, _ in level]
            receivers = {receiver for _, receiver in level}
            busy = sent | set(senders)
            if len(set(senders)) < len(senders) or sent & set(senders) or busy & receivers or self.root in busy:
                raise ConfigError("tree: expected every party but the root to send once, after all it receives")
            sent = busy
        if self.parties != sent | {self.root}:
            raise ConfigError(f"tree: {sorted(self.parties - sent - {self.root})} receive and never send to the root")

    @property
    def parties(self) -> Parties:
        """All parties of the tree, the root among them."""
        return frozenset(party for level in self.levels for send in level for party in send) | {self.root}

    @property
    def depth(self) -> int:
        """Number of rounds of messages, one after the other."""
        return len(self.levels)

    def target(self, party: int) -> int | None:
        """Return the party to whom `party` sends; None for the root."""
        return next((to for level in self.levels for sender, to in level if sender == party), None)

    def sources(self, party: int) -> tuple[int, ...]:
        """List the parties from whom `party` receives before it sends, in order of time."""
        return tuple(sender for level in self.levels for sender, to in level if to == party)

    def subtrees(self) -> frozenset[Parties]:
        """List the leaf set of every inner node: what a receiver holds the sum of after each level."""
        below = {party: frozenset({party}) for party in self.parties}
        found = set()
        for level in self.levels:
            for sender, to in level:
                below[to] |= below[sender]
            found |= {below[to] for _, to in level}
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class SumTrees:
    """T1 for masked values, T2 for masks. Both have the same root and the same parties."""

    T1: SumTree
    T2: SumTree


def balanced(order: Sequence[int], root: int) -> SumTree:
    """Build the binary tree that halves `order` again and again: depth ceil(log2 q). A half is headed by its first
    party.

    ConfigError if `order` repeats a party or lacks the root.
    """
    if len(set(order)) != len(order) or root not in order:
        raise ConfigError(f"tree: expected every party once, the root {root} among them, got {list(order)}")
    levels: list[list[Send]] = []

    def merge(block: Sequence[int]) -> tuple[int, int]:
        if len(block) == 1:
            return block[0], 0
        middle = (len(block) + 1) // 2
        (head, h), (other, k) = merge(block[:middle]), merge(block[middle:])
        if other == root:
            head, other = other, head
        height = max(h, k) + 1
        while len(levels) < height:
            levels.append([])
        levels[height - 1].append((other, head))
        return head, height

    merge(order)
    return SumTree(tuple(tuple(level) for level in levels), root)


def star(parties: Iterable[int], root: int) -> SumTree:
    """Everyone sends to the root at once. Fit for sums that need no mask: the root sees each part."""
    return SumTree((tuple((party, root) for party in sorted(set(parties) - {root})),), root)


def chain(order: Sequence[int]) -> SumTree:
    """Each sends to the next; the last is the root. Depth q - 1."""
    return SumTree(tuple(((sender, to),) for sender, to in pairwise(order)), order[-1])


def totally_different(t1: SumTree, t2: SumTree) -> bool:
    """Definition 2: no subtree in common of more than one party, other than all parties. ConfigError as below."""
    _check_pair(t1, t2)
    return not (t1.subtrees() & t2.subtrees()) - {t1.parties}


def learned_sums(t1: SumTree, t2: SumTree, coalition: Iterable[int]) -> list[Parties]:
    """Find the smallest sets of other parties whose sum of v the coalition learns in the masked sum over T1 and T2.

    The sets are disjoint, and every sum that the coalition learns adds up some of them. A coalition with the root
    always learns the sum over all others. ConfigError if the roots or the parties differ.
    """
    _check_pair(t1, t2)
    C = frozenset(coalition)
    closed_pieces = [*_pieces(t1, C), *_pieces(t2, C)]
    open_pieces = [*_pieces(t1, C, closed=False), *_pieces(t2, C, closed=False)]
    unite = {party: party for party in t1.parties}

    def find(party: int) -> int:
        while unite[party] != party:
            unite[party] = unite[unite[party]]
            party = unite[party]
        return party

    for piece in (*closed_pieces, *open_pieces):
        first, *others = piece
        for party in others:
            unite[find(party)] = find(first)
    hidden = {find(party) for piece in open_pieces for party in piece}
    learned: dict[int, set[int]] = {}
    for party in t1.parties - C:
        if find(party) not in hidden:
            learned.setdefault(find(party), set()).add(party)
    return sorted((frozenset(parties) for parties in learned.values()), key=sorted)


def smallest_coalition(t1: SumTree, t2: SumTree, party: int) -> Parties | None:
    """Find the one smallest set of other parties that learns v of `party` alone by pooling all they receive.

    It is the neighbours of `party` in T1 and T2; every coalition that learns v contains it. None for the root, which
    sends nothing, so that no coalition of all others learns it from the trees alone. ConfigError as in `learned_sums`.
    """
    _check_pair(t1, t2)
    if party == t1.root:
        return None
    return frozenset(
        other for tree in (t1, t2) for level in tree.levels for send in level if party in send for other in send
    ) - {party}


def build_trees(q: int, root: int, seed: bytes) -> SumTrees:
    """Balanced trees over parties 0..q-1 with labels shuffled by a public seed.

    T1 and T2 are totally different, and no single party learns a sum of others' parts from them, except the root the
    sum over all others. The same arguments give the same trees everywhere. ConfigError unless q >= 3 and 0 <= root < q.
    """
    if q < 3:
        raise ConfigError(f"masked sum over trees: expected at least 3 parties, got {q}; a sum of two shows each part")
    if not 0 <= root < q:
        raise ConfigError(f"masked sum over trees: expected a root, one of 0..{q - 1}, got {root}")
    prg = Prg(hashlib.sha256(seed).digest(), "public tree labels")

    def shuffled() -> SumTree:
        return balanced(np.argsort(prg.array(q, np.uint64), kind="stable").tolist(), root)

    for _ in range(_TRIES):
        T1, T2 = shuffled(), shuffled()
        if totally_different(T1, T2) and not _learn_alone(T1, T2):
            return SumTrees(T1, T2)
    raise ConfigError(f"masked sum over trees: no fit pair for {q} parties in {_TRIES} tries; take another seed")


def _learn_alone(t1: SumTree, t2: SumTree) -> bool:
    """Whether some party by itself learns more than it should."""
    for party in t1.parties:
        allowed = [t1.parties - {party}] if party == t1.root else []
        if any(learned not in allowed for learned in learned_sums(t1, t2, {party})):
            return True
    return False


def _check_pair(t1: SumTree, t2: SumTree) -> None:
    if t1.root != t2.root or t1.parties != t2.parties:
        raise ConfigError("masked sum over trees: expected two trees with one root, over the same parties")


def _pieces(tree: SumTree, cut: Parties, *, closed: bool = True) -> list[Parties]:
    """List the connected pieces of the tree without the parties `cut`: those whose top sends into `cut` (`closed`).

    If not `closed`, only the piece of the root.
    """
    top: dict[int, int] = {}
    for level in reversed(tree.levels):
        for sender, to in level:
            top[sender] = sender if to in cut else top.setdefault(to, to)
    top.setdefault(tree.root, tree.root)
    members: dict[int, set[int]] = {}
    for party in tree.parties - cut:
        members.setdefault(top[party], set()).add(party)
    return [frozenset(piece) for head, piece in members.items() if (head != tree.root) == closed]

"""Sums over trees, and who can learn what from them (FDSKL, Gu et al. 2020: Algorithms 1 to 3, Definition 2).

A tree is a public schedule of sends. Every party but the root sends once, to a party that has not sent yet: its own
value plus all it has received. So what a receiver gets from a sender is the sum over the sender and everything below.

The masked sum over two trees, among q >= 3 parties, T1 and T2 with the same root (the active party):

1. every party l draws a fresh uniform mask r_l in the ring or on the circle, for this exchange alone
2. along T1      partial sums of v_l + r_l; the root ends with xi = sum (v_l + r_l)
3. along T2      partial sums of r_l; the root ends with sum r_l
4. root          subtracts: it learns sum v_l, hence the sum over the others; nobody else learns anything

Definition 2: two trees are totally different if they share no subtree, as a set of parties, of more than one and
fewer than all parties. A shared subtree would hand its partial sum to whoever sees it in both. The definition is
needed but not enough when inner nodes are parties: a party that receives the same single leaf in both trees learns it
(star and star, or q = 3 with the same child), and unions of subtrees may coincide where subtrees do not.
`build_trees` asks for `learned_sums` of every single party to be empty as well (for the root: to be the sum over all
others).

The paper leaves one party out of T2, whose mask then stays as the phase b of the random feature. But a b that is a
function of the feature alone meets every row again, and each receiver learns differences of partial sums. Here masks
are fresh, everyone sends them over T2, and whoever owns the feature adds its phase
(`securevfl.families.fdskl.kernel_model`).

Who learns what: cut the parties of a coalition C out of both trees. What C learns from T1 is exactly the masked sum
of each remaining connected piece that does not contain the root (its top sends into C); likewise the sum of masks for
the pieces of T2. A sum of v alone is a union of pieces of T1 that is also a union of pieces of T2. In particular C
learns v_l alone if and only if it holds all neighbours of l in both trees. This is exact, not only for linear
combinations: what C sees is a linear image of uniform masks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from securevfl.crypto.prg import Prg
from securevfl.errors import ConfigError

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


def balanced_tree(order: Sequence[int], root: int) -> SumTree:
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


def star_tree(parties: Iterable[int], root: int) -> SumTree:
    """Everyone sends to the root at once. Fit for sums that need no mask: the root sees each part."""
    return SumTree((tuple((party, root) for party in sorted(set(parties) - {root})),), root)


def chain_tree(order: Sequence[int]) -> SumTree:
    """Each sends to the next; the last is the root. Depth q - 1."""
    return SumTree(tuple(((sender, to),) for sender, to in pairwise(order)), order[-1])


def are_totally_different(t1: SumTree, t2: SumTree) -> bool:
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
        return balanced_tree(np.argsort(prg.array(q, np.uint64), kind="stable").tolist(), root)

    for _ in range(_TRIES):
        T1, T2 = shuffled(), shuffled()
        if are_totally_different(T1, T2) and not _learn_alone(T1, T2):
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

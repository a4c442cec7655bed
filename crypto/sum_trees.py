"""Sums over trees, and the information that coalitions learn from them (FDSKL, Gu et al. 2020: Algorithms 1 to 3).

A tree is a public schedule of messages. Every party except the root sends once, to a party that has not sent yet: the
sum of its value and of everything it has received. A receiver therefore gets the sum over the sender and all parties
below the sender.

The masked sum over two trees, for q >= 3 parties. T1 and T2 have the same root, the active party:

1. every party l draws a fresh uniform mask r_l in the ring or on the circle, for this exchange alone
2. along T1      partial sums of v_l + r_l; the root ends with xi = sum (v_l + r_l)
3. along T2      partial sums of r_l; the root ends with sum r_l
4. root          subtracts and learns sum v_l, and so the sum over the others; no other party learns anything

Definition 2: two trees are totally different if they share no subtree, as a set of parties, with more than one and
fewer than all parties. A party that sees a shared subtree in both trees would learn its partial sum. The definition is
necessary but not sufficient if inner nodes are parties: a party that receives the same single leaf in both trees learns
the leaf's value (star and star, or q = 3 with the same child), and unions of subtrees can coincide although no subtrees
do. `build_trees` therefore also requires that `learned_sums` of every single party is empty, or for the root only the
sum over all others.

The paper omits one party from T2, whose mask remains as the phase b of the random feature. But a phase that depends on
the feature alone is the same for every row, so receivers learn differences of partial sums. Here masks are fresh, all
parties send them over T2, and the owner of the feature adds its phase (`securevfl.families.fdskl.kernel_model`).

Who learns what: remove the parties of a coalition C from both trees. C learns from T1 exactly the masked sum of each
remaining connected piece without the root, whose top sends to C, and from T2 the sum of masks of the corresponding
pieces. C learns a sum of values alone if it is a union of pieces of T1 and also a union of pieces of T2. In particular,
C learns v_l alone if and only if it contains all neighbours of l in both trees. This is exact, and not only for linear
combinations: the view of C is a linear image of uniform masks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from securevfl.crypto.prg import Prg
from securevfl.errors import ConfigError

Send = tuple[int, int]
"""Sender and receiver of a message, as numbers of parties."""
Parties = frozenset[int]

_MAX_ATTEMPTS = 10_000


@dataclass(frozen=True, slots=True)
class SumTree:
    """A schedule of messages.

    Attributes:
        levels: the messages of each level, which are sent in parallel; the first level is sent first.
        root: the party that receives the sum.

    Raises:
        ConfigError: if a party sends twice, receives after it has sent, or is not connected to the root.
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
                raise ConfigError(
                    "in a tree of sums, every party except the root must send exactly once, after all that it receives",
                    "correct the tree",
                    code="SVFL-CRYPTO-PARAMETERS",
                )
            sent = busy
        if self.parties != sent | {self.root}:
            raise ConfigError(
                f"parties {sorted(self.parties - sent - {self.root})} of a tree of sums receive but never send",
                "connect them to the root",
                code="SVFL-CRYPTO-PARAMETERS",
            )

    @property
    def parties(self) -> Parties:
        """All parties of the tree, including the root."""
        return frozenset(party for level in self.levels for send in level for party in send) | {self.root}

    @property
    def depth(self) -> int:
        """Number of consecutive rounds of messages."""
        return len(self.levels)

    def target(self, party: int) -> int | None:
        """Return the party that `party` sends to, or None for the root."""
        return next((to for level in self.levels for sender, to in level if sender == party), None)

    def sources(self, party: int) -> tuple[int, ...]:
        """Return the parties that send to `party`, in order of time."""
        return tuple(sender for level in self.levels for sender, to in level if to == party)

    def subtrees(self) -> frozenset[Parties]:
        """Return the leaf set of every inner node: the parties whose sum a receiver has after each level."""
        below = {party: frozenset({party}) for party in self.parties}
        leaf_sets = set()
        for level in self.levels:
            for sender, to in level:
                below[to] |= below[sender]
            leaf_sets |= {below[to] for _, to in level}
        return frozenset(leaf_sets)


@dataclass(frozen=True, slots=True)
class SumTrees:
    """Two trees with the same root and parties: T1 for masked values, T2 for masks."""

    T1: SumTree
    T2: SumTree


def balanced_tree(order: Sequence[int], root: int) -> SumTree:
    """Build the binary tree of depth ceil(log2 q) that halves `order` recursively; the first party of a half heads it.

    Args:
        order: all q parties.
        root: one of them.

    Returns:
        The tree.

    Raises:
        ConfigError: if `order` repeats a party or does not contain the root.
    """
    if len(set(order)) != len(order) or root not in order:
        raise ConfigError(
            f"the order {list(order)} of parties must contain every party once, including the root {root}",
            "correct the order",
            code="SVFL-CRYPTO-PARAMETERS",
        )
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
    """Return the tree with all parties as children of the root, which sees every summand; for sums without masks."""
    return SumTree((tuple((party, root) for party in sorted(set(parties) - {root})),), root)


def chain_tree(order: Sequence[int]) -> SumTree:
    """Return the tree of depth q - 1 whose parties each send to the next one; the last party is the root."""
    return SumTree(tuple(((sender, to),) for sender, to in pairwise(order)), order[-1])


def are_totally_different(t1: SumTree, t2: SumTree) -> bool:
    """Return whether two trees are totally different (Definition 2); ConfigError as `learned_sums`."""
    _check_pair(t1, t2)
    return not (t1.subtrees() & t2.subtrees()) - {t1.parties}


def learned_sums(t1: SumTree, t2: SumTree, coalition: Iterable[int]) -> list[Parties]:
    """Return the smallest sets of other parties whose sum a coalition learns from a masked sum over two trees.

    The sets are disjoint, and every sum that the coalition learns is a sum over some of them. A coalition with the root
    always learns the sum over all others.

    Args:
        t1: the tree of masked values.
        t2: the tree of masks.
        coalition: parties that combine everything they receive.

    Returns:
        The sets, sorted.

    Raises:
        ConfigError: if the trees have different roots or parties.
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
    """Return the smallest coalition that learns the value of one party alone.

    It consists of the neighbours of the party in both trees, and every coalition that learns the value contains it.

    Args:
        t1: the tree of masked values.
        t2: the tree of masks.
        party: the party.

    Returns:
        The coalition, or None for the root, which sends nothing.

    Raises:
        ConfigError: if the trees have different roots or parties.
    """
    _check_pair(t1, t2)
    if party == t1.root:
        return None
    return frozenset(
        other for tree in (t1, t2) for level in tree.levels for send in level if party in send for other in send
    ) - {party}


def build_trees(q: int, root: int, seed: bytes) -> SumTrees:
    """Build two balanced trees over the parties 0 to q - 1, in orders that a public seed determines.

    The trees are totally different, and no single party except the root learns a sum of other parties' values. Equal
    arguments give equal trees at every party.

    Args:
        q: number of parties, at least 3.
        root: number of the root.
        seed: public bytes.

    Returns:
        The trees.

    Raises:
        ConfigError: if `q` or `root` is out of range, or no pair of trees is found.
    """
    if q < 3:
        raise ConfigError(
            f"a masked sum over trees needs at least 3 parties, but there are {q}: a sum of two reveals both values",
            "choose another sum for two parties",
            code="SVFL-PARTIES-COUNT",
        )
    if not 0 <= root < q:
        raise ConfigError(
            f"the root {root} of a masked sum over trees is not one of the parties 0 to {q - 1}",
            "correct the root",
            code="SVFL-CRYPTO-PARAMETERS",
        )
    prg = Prg(hashlib.sha256(seed).digest(), "public tree labels")

    def shuffled() -> SumTree:
        return balanced_tree(np.argsort(prg.array(q, np.uint64), kind="stable").tolist(), root)

    for _ in range(_MAX_ATTEMPTS):
        T1, T2 = shuffled(), shuffled()
        if are_totally_different(T1, T2) and not _learn_alone(T1, T2):
            return SumTrees(T1, T2)
    raise ConfigError(
        f"no suitable pair of trees for {q} parties was found in {_MAX_ATTEMPTS} attempts",
        "use another seed",
        code="SVFL-CRYPTO-PARAMETERS",
    )


def _learn_alone(t1: SumTree, t2: SumTree) -> bool:
    """Return whether a single party learns more than it should."""
    for party in t1.parties:
        allowed = [t1.parties - {party}] if party == t1.root else []
        if any(learned not in allowed for learned in learned_sums(t1, t2, {party})):
            return True
    return False


def _check_pair(t1: SumTree, t2: SumTree) -> None:
    if t1.root != t2.root or t1.parties != t2.parties:
        raise ConfigError(
            "the two trees of a masked sum have different roots or parties",
            "build both over the same parties with one root",
            code="SVFL-CRYPTO-PARAMETERS",
        )


def _pieces(tree: SumTree, cut: Parties, *, closed: bool = True) -> list[Parties]:
    """Return connected pieces of the tree without the parties `cut`.

    Args:
        tree: the tree.
        cut: the parties to remove.
        closed: True for the pieces whose top sends to a removed party, False for the piece of the root.

    Returns:
        The pieces.
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

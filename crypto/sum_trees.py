"""Trees along which parties add up masked values, and the sums that a coalition of parties learns from them.

A tree is a public schedule of messages between parties. Every party except the root sends once: the sum of its value
and of everything that it has received before. A receiver therefore gets the sum over the sender and all parties below
the sender. A masked sum (FDSKL, Gu et al. 2020, Algorithms 1 to 3) uses two trees T1 and T2 over q >= 3 parties, with
the same root. Party l has the value v_l, an integer modulo a power of two:

1. every party l draws a uniformly random mask r_l, a new one for each sum
2. along T1      parties add up v_l + r_l; the root obtains the sum of all v_l + r_l
3. along T2      parties add up r_l; the root obtains the sum of all r_l
4. root          subtracts, and so learns the sum of all v_l; no other party learns anything

A *coalition* is a set of parties that pool their values. Two trees are *totally different* (Definition 2 of the paper)
if they have no subtree with the same set of parties, apart from single parties and the set of all. `SumTrees` documents
what coalitions learn.
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
    """A tree, given as a schedule of messages.

    Attributes:
        levels: the messages of each level, as pairs of sender and receiver. Those of a level are sent in parallel, and
            the first level is sent first.
        root: the number of the party that receives the sum.

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
                    "in a tree of sums, every party except the root must send exactly once, after it has received all "
                    "its messages",
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
        """Number of levels, which is the number of messages that must be sent one after the other."""
        return len(self.levels)

    def target(self, party: int) -> int | None:
        """Return the party to which `party` sends, or None for the root."""
        return next((to for level in self.levels for sender, to in level if sender == party), None)

    def sources(self, party: int) -> tuple[int, ...]:
        """Return the parties that send to `party`, in the order of their messages."""
        return tuple(sender for level in self.levels for sender, to in level if to == party)

    def subtrees(self) -> frozenset[Parties]:
        """Return the sets of parties whose sum some receiver has after some level."""
        below = {party: frozenset({party}) for party in self.parties}
        leaf_sets = set()
        for level in self.levels:
            for sender, to in level:
                below[to] |= below[sender]
            leaf_sets |= {below[to] for _, to in level}
        return frozenset(leaf_sets)


@dataclass(frozen=True, slots=True)
class SumTrees:
    """Two trees with the same root and parties: T1 for masked values, and T2 for masks.

    Two trees are *totally different* (Definition 2 of the paper) if they have no subtree with the same set of parties,
    apart from single parties and the set of all. If they had one, a party to which this subtree sends in both trees
    could subtract the masks and learn the sum of the subtree's values. The definition is necessary but not sufficient
    here, because inner nodes are parties too. A party that receives the value of the same single leaf in both trees
    learns this value (for example in two stars). And unions of subtrees can be equal although no subtrees are.
    `build_trees` therefore also requires that `learned_sums` of every single party is empty; for the root it may
    contain the sum of all others.

    In the paper, one party sends no mask along T2. Its mask remains in the sum as the phase b of a random Fourier
    feature cos(w^T x + b). But b is the same for every row, so receivers learn differences of partial sums. Here all
    parties send masks along T2, and the owner of the feature adds a phase to its value
    (`securevfl.families.fdskl.kernel_model`).

    To compute what a coalition C learns, remove its parties from both trees, so that the trees fall apart into
    connected pieces. From T1, C learns the masked sum of each piece without the root, because the top party of the
    piece sends to C. From T2, it learns the sum of the masks of each piece. So C learns an unmasked sum over a set of
    parties if the set is a union of pieces of T1 and also a union of pieces of T2. In particular, C learns v_l if and
    only if it contains all neighbours of l in both trees. This statement is exact: C learns nothing else, because all
    it sees is a linear function of values and uniform masks.
    """

    T1: SumTree
    T2: SumTree


def balanced_tree(order: Sequence[int], root: int) -> SumTree:
    """Build a binary tree with ceil(log2 q) levels for q parties.

    The list of parties is divided into halves recursively; the first party of each half, or the root if it is in that
    half, receives the half's sum.

    Args:
        order: all q parties.
        root: the party that receives the sum, one of the q parties.

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
    """Return the tree in which all parties send directly to the root."""
    return SumTree((tuple((party, root) for party in sorted(set(parties) - {root})),), root)


def chain_tree(order: Sequence[int]) -> SumTree:
    """Return the tree in which each party sends to the next one in `order`; the last party is the root."""
    return SumTree(tuple(((sender, to),) for sender, to in pairwise(order)), order[-1])


def are_totally_different(t1: SumTree, t2: SumTree) -> bool:
    """Return whether two trees are totally different (Definition 2). Raise ConfigError like `learned_sums`."""
    _check_pair(t1, t2)
    return not (t1.subtrees() & t2.subtrees()) - {t1.parties}


def learned_sums(t1: SumTree, t2: SumTree, coalition: Iterable[int]) -> list[Parties]:
    """Return the smallest sets of other parties whose sums of values a coalition learns from a masked sum.

    The sets are disjoint. Every sum that the coalition learns is a sum over some of them. A coalition that contains the
    root always learns the sum over all others.

    Args:
        t1: the tree of masked values.
        t2: the tree of masks.
        coalition: parties that combine everything that they receive.

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
    """Return the smallest coalition of other parties that learns the value of one party.

    It consists of the neighbours of the party in both trees. Every coalition that learns the value contains it.

    Args:
        t1: the tree of masked values.
        t2: the tree of masks.
        party: the party whose value is learned.

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
    """Build two balanced trees over the parties 0 to q - 1, which are shuffled by a public seed.

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
            f"a masked sum over trees needs at least 3 parties, but there are {q}; with two parties, the sum reveals "
            "the other party's value",
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
    """Return whether a single party learns a sum of values other than the root's sum of all others."""
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
    """Return the connected pieces of a tree that remain if some parties are removed.

    Args:
        tree: the tree of parties.
        cut: the parties to remove.
        closed: True for the pieces without the root, whose top party sends to a removed party; False for the piece that
            contains the root.

    Returns:
        The connected pieces, as sets of parties.
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

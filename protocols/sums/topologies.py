"""Who sends to whom in a sum: tree, star or ring. Party 0 is the root, where the sum ends.

*One pass* (cipher sums): the shape itself, `one_pass`.

*Two passes* (tree sums): T1 has the shape asked for, and T2, which carries the masks, is another tree, since two
equal shapes would protect nothing (two stars show the root every part). `two_passes` makes T2 so that the pair keeps
what `protects` asks for:

    tree    T1 and T2 balanced, with shuffled labels (FDSKL 2020, Algorithm 3)
    star    T1 all to the root at once; T2 a balanced tree of the others, whose head alone sends to the root: the root
            sees every masked part, so it may see nothing but the sum of all masks
    ring    T1 a chain; T2 balanced, with shuffled labels. A second chain would hold the same set of parties just
    before
            the root, and the two parties there would know the total together
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from securevfl.crypto.sum_trees import (
    SumTree,
    are_totally_different,
    balanced_tree,
    build_trees,
    chain_tree,
    learned_sums,
    star_tree,
)
from securevfl.errors import ConfigError

Topology = Literal["tree", "star", "ring"]

_TRIES = 1000


def one_pass(topology: Topology, parties: int) -> SumTree:
    """Build the tree of this topology over parties 0..parties-1 with root 0."""
    match topology:
        case "tree":
            return balanced_tree(range(parties), 0)
        case "star":
            return star_tree(range(parties), 0)
        case "ring":
            return chain_tree([*range(1, parties), 0])


@lru_cache(maxsize=256)
def two_passes(topology: Topology, parties: int) -> tuple[SumTree, SumTree]:
    """T1 and T2 over parties 0..parties-1 with root 0, the same at every party. ConfigError if parties < 3."""
    if parties < 3:
        raise ConfigError(
            f"tree sum: expected at least two passive parties, got {parties - 1}; a sum of one part is that part, "
            'use sum = "direct"'
        )
    T1 = one_pass(topology, parties)
    match topology:
        case "tree":
            both = build_trees(parties, 0, b"tree sum")
            return both.T1, both.T2
        case "star":
            others = balanced_tree(range(1, parties), 1)
            return T1, SumTree((*others.levels, ((1, 0),)), 0)
        case "ring":
            for attempt in range(_TRIES):
                T2 = build_trees(parties, 0, f"ring sum {attempt}".encode()).T2
                if protects(T1, T2):
                    return T1, T2
    raise ConfigError(f"tree sum: no fit pair of trees for {parties} parties; use topology = 'tree'")


def protects(T1: SumTree, T2: SumTree) -> bool:
    """Totally different (Definition 2), and no party by itself learns a sum, except the root that over all others."""
    if not are_totally_different(T1, T2):
        return False
    for party in T1.parties:
        allowed = [T1.parties - {party}] if party == T1.root else []
        if learned_sums(T1, T2, {party}) != allowed:
            return False
    return True

"""The trees along which summands are added: tree, star or ring. Party 0 is the root, which receives the sum.

*One pass* (cipher sums): one tree of the chosen shape, `one_pass`.

*Two passes* (tree sums): T1 has the chosen shape and carries masked summands, T2 carries masks. Two equal trees would
protect nothing: with two stars the root sees every summand. `two_passes` chooses T2 so that `protects` is true:

    tree    T1 and T2 are balanced, with shuffled labels (FDSKL 2020, Algorithm 3).
    star    In T1 all parties send to the root. T2 is a balanced tree of the others, and only its root sends to party 0:
            party 0 sees every masked summand, so it must see only the sum of all masks.
    ring    T1 is a chain; T2 is balanced, with shuffled labels. If T2 were a chain too, the same parties would be just
            before the root in both, and the two parties there would learn the total together.
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

_MAX_ATTEMPTS = 1000


def one_pass(topology: Topology, parties: int) -> SumTree:
    """Return the tree of this shape over parties 0..parties-1 with root 0."""
    match topology:
        case "tree":
            return balanced_tree(range(parties), 0)
        case "star":
            return star_tree(range(parties), 0)
        case "ring":
            return chain_tree([*range(1, parties), 0])


@lru_cache(maxsize=256)
def two_passes(topology: Topology, parties: int) -> tuple[SumTree, SumTree]:
    """Return T1 and T2 over parties 0..parties-1 with root 0; all parties compute the same trees.

    Raise ConfigError if there are fewer than three parties.
    """
    if parties < 3:
        raise ConfigError(
            f"a tree sum needs at least two passive parties, the job has {parties - 1}",
            'use sum = "direct": a sum of one summand hides nothing',
            code="SVFL-LEAK-UNPROTECTED",
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
            for attempt in range(_MAX_ATTEMPTS):
                T2 = build_trees(parties, 0, f"ring sum {attempt}".encode()).T2
                if protects(T1, T2):
                    return T1, T2
    raise ConfigError(
        f"a tree sum finds no suitable pair of trees for {parties} parties in a ring",
        'use topology = "tree"',
        code="SVFL-JOB-UNSUPPORTED",
    )


def protects(T1: SumTree, T2: SumTree) -> bool:
    """Return whether the trees are totally different (Definition 2) and no single party learns a partial sum.

    The root learns the sum over all others.
    """
    if not are_totally_different(T1, T2):
        return False
    for party in T1.parties:
        allowed = [T1.parties - {party}] if party == T1.root else []
        if learned_sums(T1, T2, {party}) != allowed:
            return False
    return True

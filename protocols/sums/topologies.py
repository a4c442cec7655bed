"""The trees along which parties add up their summands, in the shape of a balanced tree, a star or a ring.

Every party receives partial sums from the parties below it, adds its value, and sends the result to the party above it.
Party 0 is the root, which receives the sum.

A protocol with encrypted summands uses one tree of the chosen shape (`one_pass`). A protocol with masked summands uses
two: T1 for summands plus random masks, and T2 for the masks alone, which the root subtracts. If both trees were equal,
a party could subtract a mask from a single masked summand: in two stars, the root sees every summand. `two_passes`
therefore chooses T2 so that no party alone learns a partial sum (`protects`):

    tree    T1 and T2 are balanced trees with differently shuffled parties (FDSKL 2020, Algorithm 3).
    star    In T1 all parties send to party 0. T2 is a balanced tree of all others, and only its root sends to party 0.
            So party 0 sees every masked summand, and only the sum of all masks.
    ring    T1 is a chain. T2 is a balanced tree with shuffled parties. If T2 were a chain too, the same parties would
            be next to the root in both trees, and two of them would learn the whole sum together.
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
    """Return the tree of this shape for the parties 0 to `parties` - 1, with party 0 as its root."""
    match topology:
        case "tree":
            return balanced_tree(range(parties), 0)
        case "star":
            return star_tree(range(parties), 0)
        case "ring":
            return chain_tree([*range(1, parties), 0])


@lru_cache(maxsize=256)
def two_passes(topology: Topology, parties: int) -> tuple[SumTree, SumTree]:
    """Return T1 and T2 for the parties 0 to `parties` - 1, with party 0 as their root.

    All parties compute the same trees. Raise ConfigError if there are fewer than three parties.
    """
    if parties < 3:
        raise ConfigError(
            f"a tree sum needs at least two passive parties, but the job has {parties - 1}",
            'use sum = "direct", because a sum of one summand hides nothing',
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
        f"there is no suitable pair of trees for a tree sum of {parties} parties in a ring",
        'use topology = "tree"',
        code="SVFL-JOB-UNSUPPORTED",
    )


def protects(T1: SumTree, T2: SumTree) -> bool:
    """Return whether two trees are totally different (FDSKL 2020, Definition 2) and hide all partial sums.

    They hide them if no single party learns a sum of some summands; the root learns only the sum of all others.
    """
    if not are_totally_different(T1, T2):
        return False
    for party in T1.parties:
        allowed = [T1.parties - {party}] if party == T1.root else []
        if learned_sums(T1, T2, {party}) != allowed:
            return False
    return True

"""Trees grow in groups of 16, so that one fits into the cache: leaf a of tree j of a group is place a * 16 + j of it.
The children of node p of a level of L nodes are the nodes p and L + p of the next one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.share_ring import Words
from securevfl.crypto.transfers.vole_pieces import GROUP, WORD
from securevfl.crypto.transfers.vole_public import VolePublic


def grow_trees(public: VolePublic, roots: Words, depth: int) -> tuple[Words, Words]:
    """Return the leaves (N, 2) of trees with these roots (trees, 2), and the sums (2, depth, trees, 2) of the left and
    of the right children at each level."""
    levels = np.empty((2, depth, len(roots), 2), np.uint64)
    out, room = _room(len(roots), depth)
    for start in range(0, len(roots), GROUP):
        nodes = np.ascontiguousarray(roots[None, start : start + GROUP])
        for level in range(depth):
            children = public.children(nodes, _into(out, room, start, level, depth))
            levels[:, level, start : start + GROUP] = np.bitwise_xor.reduce(children, axis=1)
            nodes = children.reshape(-1, GROUP, 2)
    return out[: len(roots) * WORD << depth].view(np.uint64).reshape(-1, 2), levels


def regrow_trees(public: VolePublic, chosen: Words, bits: NDArray[np.uint8]) -> tuple[Words, NDArray[np.intp]]:
    """Return the leaves (N, 2), zero at the one leaf of each tree that is not known, and which (trees,) that is.

    chosen (depth, trees, 2): the sum of the left children of a level where `bits` (depth, trees) has 0, else the right.
    """
    depth, trees = bits.shape
    out, room = _room(trees, depth)
    alpha, each = np.zeros(trees, np.intp), np.arange(GROUP)
    for start in range(0, trees, GROUP):
        nodes, missing = np.zeros((1, GROUP, 2), np.uint64), np.zeros(GROUP, np.intp)
        for level in range(depth):
            children = public.children(nodes, _into(out, room, start, level, depth))
            side = bits[level, start : start + GROUP].astype(np.intp)
            children[:, missing, each] = 0
            total = np.bitwise_xor.reduce(children, axis=1)[side, each]
            children[side, missing, each] = total ^ chosen[level, start : start + GROUP]
            missing = missing + (1 - side) * len(nodes)
            nodes = children.reshape(-1, GROUP, 2)
        alpha[start : start + GROUP] = missing
    return out[: trees * WORD << depth].view(np.uint64).reshape(-1, 2), alpha


def _room(trees: int, depth: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return octets for all leaves, and for two levels of a group that are no leaves."""
    return (
        np.empty((trees * WORD << depth) + WORD, np.uint8),
        np.empty((2, (GROUP * WORD << depth) + WORD), np.uint8),
    )


def _into(out: NDArray[np.uint8], room: NDArray[np.uint8], start: int, level: int, depth: int) -> NDArray[np.uint8]:
    return out[start * WORD << depth :] if level == depth - 1 else room[level % 2]

"""Punctured trees of a vector OLE, which are expanded in groups of 16 so that a group fits into the processor's cache.

Leaf a of tree j of a group has the position a * 16 + j in the group. The children of node p of a level with L nodes are
the nodes p and L + p of the next level.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.share_ring import Words
from securevfl.crypto.transfers.vole_pieces import ELEMENT_BYTES, TREES_PER_GROUP
from securevfl.crypto.transfers.vole_public import VolePublic


def grow_trees(public: VolePublic, roots: Words, depth: int) -> tuple[Words, Words]:
    """Expand trees.

    Args:
        public: the public functions of the session.
        roots: the roots (trees, 2).
        depth: depth of the trees.

    Returns:
        The leaves (N, 2), and the sums (2, depth, trees, 2) of the left and of the right children of each level.
    """
    levels = np.empty((2, depth, len(roots), 2), np.uint64)
    out, inner = _buffers(len(roots), depth)
    for start in range(0, len(roots), TREES_PER_GROUP):
        nodes = np.ascontiguousarray(roots[None, start : start + TREES_PER_GROUP])
        for level in range(depth):
            children = public.children(nodes, _target(out, inner, start, level, depth))
            levels[:, level, start : start + TREES_PER_GROUP] = np.bitwise_xor.reduce(children, axis=1)
            nodes = children.reshape(-1, TREES_PER_GROUP, 2)
    return out[: len(roots) * ELEMENT_BYTES << depth].view(np.uint64).reshape(-1, 2), levels


def regrow_trees(public: VolePublic, chosen: Words, bits: NDArray[np.uint8]) -> tuple[Words, NDArray[np.intp]]:
    """Expand trees from the sum of one side of each level, which leaves one leaf of each tree unknown.

    Args:
        public: the public functions of the session.
        chosen: the sum (depth, trees, 2) of the left children of a level if the bit is 0, else of the right ones.
        bits: the bits (depth, trees).

    Returns:
        The leaves (N, 2), zero at the unknown ones, and the number (trees,) of the unknown leaf of each tree.
    """
    depth, trees = bits.shape
    out, inner = _buffers(trees, depth)
    unknown, tree = np.zeros(trees, np.intp), np.arange(TREES_PER_GROUP)
    for start in range(0, trees, TREES_PER_GROUP):
        nodes, missing = np.zeros((1, TREES_PER_GROUP, 2), np.uint64), np.zeros(TREES_PER_GROUP, np.intp)
        for level in range(depth):
            children = public.children(nodes, _target(out, inner, start, level, depth))
            side = bits[level, start : start + TREES_PER_GROUP].astype(np.intp)
            children[:, missing, tree] = 0
            total = np.bitwise_xor.reduce(children, axis=1)[side, tree]
            children[side, missing, tree] = total ^ chosen[level, start : start + TREES_PER_GROUP]
            missing = missing + (1 - side) * len(nodes)
            nodes = children.reshape(-1, TREES_PER_GROUP, 2)
        unknown[start : start + TREES_PER_GROUP] = missing
    return out[: trees * ELEMENT_BYTES << depth].view(np.uint64).reshape(-1, 2), unknown


def _buffers(trees: int, depth: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return buffers for all leaves, and for two inner levels of a group."""
    return (
        np.empty((trees * ELEMENT_BYTES << depth) + ELEMENT_BYTES, np.uint8),
        np.empty((2, (TREES_PER_GROUP * ELEMENT_BYTES << depth) + ELEMENT_BYTES), np.uint8),
    )


def _target(out: NDArray[np.uint8], inner: NDArray[np.uint8], start: int, level: int, depth: int) -> NDArray[np.uint8]:
    return out[start * ELEMENT_BYTES << depth :] if level == depth - 1 else inner[level % 2]

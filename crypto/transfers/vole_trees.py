"""The binary trees of a vector OLE (vole.py), expanded from their roots or from sums of their nodes.

A node is an element of GF(2^128), that is 2 words, and its two children are pseudorandom functions of it. The sender
knows the roots and computes all leaves. The receiver knows, for each level, the sum (XOR) of all left or of all right
children, and computes all leaves except one; such a tree is called punctured. N is the number of leaves of all trees.

Trees are expanded in groups of 16, which fit into the processor's cache. Leaf number a of tree number j of a group is
at the position a * 16 + j of the group. If a level has L nodes, the left child of node number p is number p of the next
level, and its right child is number L + p.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.share_ring import Words
from securevfl.crypto.transfers.vole_pieces import ELEMENT_BYTES, TREES_PER_GROUP
from securevfl.crypto.transfers.vole_public import VolePublic


def grow_trees(public: VolePublic, roots: Words, depth: int) -> tuple[Words, Words]:
    """Expand trees from their roots, at the sender.

    Args:
        public: the public functions of the session.
        roots: the roots (trees, 2).
        depth: number of levels below the root.

    Returns:
        The leaves (N, 2); and the sums (2, depth, trees, 2) of all left and of all right children for each level.
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
    """Expand trees from one sum for each level, at the receiver; one leaf of each tree remains unknown.

    Args:
        public: the public functions of the session.
        chosen: for each level and tree, the sum of its left children if the bit is 0, otherwise of its right children
            (depth, trees, 2).
        bits: the bits (depth, trees).

    Returns:
        The leaves (N, 2), with zeros in place of unknown ones; and the number of the unknown leaf of each tree
        (trees,).
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
    """Return a buffer for the leaves of all trees, and two buffers for inner levels of one group."""
    return (
        np.empty((trees * ELEMENT_BYTES << depth) + ELEMENT_BYTES, np.uint8),
        np.empty((2, (TREES_PER_GROUP * ELEMENT_BYTES << depth) + ELEMENT_BYTES), np.uint8),
    )


def _target(out: NDArray[np.uint8], inner: NDArray[np.uint8], start: int, level: int, depth: int) -> NDArray[np.uint8]:
    return out[start * ELEMENT_BYTES << depth :] if level == depth - 1 else inner[level % 2]

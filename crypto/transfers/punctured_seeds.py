"""Punctured sets of seeds: one party has 8 seeds of each block, the other all of them except a secret one.

These are the base of oblivious transfers over the field of 8 elements (field_transfers.py). The puncturing party, A,
chooses a number Delta below 8 for each of 43 blocks; the other party, B, has all 8 seeds of a block. They are the
leaves of a binary tree with three levels, whose inner nodes are pseudorandom functions of their parents (Goldreich,
Goldwasser, Micali 1986; punctured by Boyle, Goldwasser, Ivan 2014). Each level needs one oblivious transfer, in which B
has two keys and A receives one of them (base_transfers.py). At a level, A knows all nodes except one, whose two
children it cannot compute. It needs the child on the side that does not lead to leaf Delta.

    level 1        the two keys of the transfer are the two nodes; A receives the one that does not lead to Delta
    levels 2, 3    B sends the XOR of all left children, encrypted with the first key, and that of all right children,
                   encrypted with the second key. A receives the key of the side that does not lead to Delta, decrypts
                   this sum, and subtracts the children that it knows
    check          B computes a check word of each leaf. It sends the XOR of the 8 check words of each block, and a
                   digest of all check words of all blocks. A computes the missing check word from the XOR, and the
                   digest must fit

Without the check, B could send wrong sums that are used only for some values of Delta: A's results would then show by a
later failure whether Delta is one of them. With the check, A's check words are those that the digest determines, or A
stops; B learns more than that A stopped only if it has guessed the path to leaf Delta (Roy 2022, "SoftSpokenOT",
section 6, figures 14 and 15). Seeds that other functions use are derived from leaves under another label than check
words.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES, derive_key
from securevfl.errors import CryptoError

SMALL_FIELD_BITS = 3
"""Number of levels of a tree, and of bits of an element of the field."""
ELEMENTS = 1 << SMALL_FIELD_BITS
"""Number of seeds of a block, which is the number of elements of the field."""
BLOCKS = 43
"""Number of blocks. The secret has 3 bits in each, 129 in all."""
TREE_BASES = SMALL_FIELD_BITS * BLOCKS
"""Number of base transfers, one for each level of each tree."""
TREES_BYTES = BLOCKS * (2 * (SMALL_FIELD_BITS - 1) + 1) * SYMMETRIC_KEY_BYTES + SYMMETRIC_KEY_BYTES
"""Length of B's message in bytes."""

T = TypeVar("T")
U = TypeVar("U")
Leaves = list[bytes]
"""The seeds of a block; an empty one is unknown."""


def fresh_secret() -> tuple[bytes, list[bool]]:
    """Return a random number below 8 for each block, a byte each, and the choices of A in the base transfers."""
    bits = int.from_bytes(os.urandom(-(-TREE_BASES // 8)), "little")
    secret = bytes(bits >> (SMALL_FIELD_BITS * block) & (ELEMENTS - 1) for block in range(BLOCKS))
    return secret, choices_of(secret)


def map_known(block: Leaves, compute: Callable[[list[bytes]], Sequence[T]], unknown: U) -> list[T | U]:
    """Compute a value for each seed of a block that is known.

    Args:
        block: the seeds of the block.
        compute: computes the values of all known seeds.
        unknown: the value of an unknown seed.

    Returns:
        A value for each seed of the block, in order.
    """
    values = iter(compute([seed for seed in block if seed]))
    return [next(values) if seed else unknown for seed in block]


def choices_of(secret: bytes) -> list[bool]:
    """Return A's choices: for each level of each tree, the side that does not lead to leaf number Delta."""
    return [not delta >> level & 1 for delta in secret for level in reversed(range(SMALL_FIELD_BITS))]


def grow(pairs: Sequence[tuple[bytes, bytes]], context: bytes) -> tuple[bytes, list[Leaves]]:
    """Compute all trees, at B.

    Args:
        pairs: both keys of each base transfer; their number is `TREE_BASES`.
        context: public bytes that identify the session, which the digest covers.

    Returns:
        The message for A, and the 8 seeds of each block.
    """
    message, words, blocks = list[bytes](), list[bytes](), list[Leaves]()
    for start in range(0, TREE_BASES, SMALL_FIELD_BITS):
        nodes = list(pairs[start])
        for pair in pairs[start + 1 : start + SMALL_FIELD_BITS]:
            nodes = [child for node in nodes for child in _children(node)]
            message += [_xor([key, *nodes[side::2]]) for side, key in enumerate(pair)]
        checks = [derive_key(leaf, "check of punctured seeds") for leaf in nodes]
        message.append(_xor(checks))
        words += checks
        blocks.append([_seed(leaf) for leaf in nodes])
    return b"".join([*message, _digest(context, words)]), blocks


def puncture(secret: bytes, keys: Sequence[bytes], context: bytes, message: bytes) -> list[Leaves]:
    """Compute all seeds except one of each block, at A.

    Args:
        secret: the number Delta of each block, a byte each.
        keys: A's key of each base transfer.
        context: public bytes that identify the session.
        message: B's message.

    Returns:
        The seeds of each block; the one with the number Delta is empty.

    Raises:
        CryptoError: the message has another length, or fails the check.
    """
    if len(message) != TREES_BYTES:
        raise CryptoError(
            f"received {len(message)} bytes of seed trees instead of {TREES_BYTES}",
            "run the same version of securevfl on both sides",
            code="SVFL-PROTOCOL-SIZE",
        )
    parts = [message[at : at + SYMMETRIC_KEY_BYTES] for at in range(0, len(message), SYMMETRIC_KEY_BYTES)]
    words, blocks, sent = list[bytes](), list[Leaves](), iter(parts)
    for block, delta in enumerate(secret):
        known = keys[block * SMALL_FIELD_BITS : (block + 1) * SMALL_FIELD_BITS]
        sides = [1 - (delta >> level & 1) for level in reversed(range(SMALL_FIELD_BITS))]
        nodes = [b"", b""]
        nodes[sides[0]] = known[0]
        for key, side in zip(known[1:], sides[1:], strict=True):
            sums = next(sent), next(sent)
            nodes = [child for node in nodes for child in (_children(node) if node else (b"", b""))]
            missing = nodes.index(b"") | side
            nodes[missing] = _xor([key, sums[side], *(node for node in nodes[side::2] if node)])
        checks = [derive_key(leaf, "check of punctured seeds") if leaf else b"" for leaf in nodes]
        checks[delta] = _xor([next(sent), *(word for word in checks if word)])
        words += checks
        blocks.append([_seed(leaf) if leaf else b"" for leaf in nodes])
    if not hmac.compare_digest(_digest(context, words), next(sent)):
        raise CryptoError("the received seed trees contradict each other", code="SVFL-PROTOCOL-CHEATING")
    return blocks


def _children(node: bytes) -> tuple[bytes, bytes]:
    return derive_key(node, "left node"), derive_key(node, "right node")


def _seed(leaf: bytes) -> bytes:
    return derive_key(leaf, "punctured seed")


def _xor(values: Sequence[bytes]) -> bytes:
    total = 0
    for value in values:
        total ^= int.from_bytes(value, "little")
    return total.to_bytes(SYMMETRIC_KEY_BYTES, "little")


def _digest(context: bytes, words: Sequence[bytes]) -> bytes:
    return hashlib.sha256(b"".join([context, *words])).digest()

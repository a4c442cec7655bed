"""Identities of disclosed values: if two disclosures have the same identity, they are the same values and count once.

An identity is computed from facts, such as the digest of a table, and not from the words that describe the values. So a
reworded description does not make values that were disclosed before count as new ones, or the other way round.
"""

from __future__ import annotations

import hashlib

from securevfl.crypto.key_derivation import encode_context


def identity_of(*facts: str | int | bytes) -> str:
    """Return the identity of values that these facts determine.

    Args:
        *facts: a name of the values, and all data and options that they depend on.

    Returns:
        32 hexadecimal digits, a digest of the facts.
    """
    return hashlib.sha256(encode_context("identity of disclosed values", *facts)).hexdigest()[:32]


EVERY_RESIDUAL = identity_of("every residual")
"""Identity of all residuals of a job, which are the same numbers for every receiver."""
EVERY_LABEL = identity_of("every label")
"""Identity of all labels, which are the same numbers for every receiver."""

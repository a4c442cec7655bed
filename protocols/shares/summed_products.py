"""Shares of X_A^T X_B, summed over all rows of two parties' columns of whole numbers: what looks at columns open.

1. A -> B   [[X_A]]_A, by stretches of rows, once both have met and made keys (share_products.py)
2. B -> A   masked X_B^T X_A         => shares of each product at both, added up over all stretches

A is the active party of a context of two. What comes is a ciphertext under another's key or uniform, so both learn
sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from securevfl.base.roles import ACTIVE, PARTNER
from securevfl.crypto.share_ring import Integers, ShareRing, Words
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares import share_products
from securevfl.protocols.shares.share_products import Products
from securevfl.protocols.shares.share_schemes import SHARE_SCHEMES

ROWS_PER_SUMMED_PRODUCT = 16_384  # rows of one product


def declares() -> list[MessageDeclaration]:
    """Declare what the messages reveal. Roles: active (who asks) and partner."""
    roles = {ACTIVE, PARTNER}
    return [each for each in share_products.declares() if {each.sender, each.receiver} == roles]


def summed_products(
    context: PartyContext, bits: int, blocks: Sequence[Integers], widths: Sequence[int], purpose: str
) -> tuple[Products, list[Words]]:
    """Return the session of one party, and its shares (d_A x d_B, modulo 2^bits) of the product of each of its blocks
    (n x d) with the other's of the same number, which has so many columns.

    purpose: what keys are made for.
    """
    ring, asks = ShareRing(bits), context.me == context.active
    (peer,) = context.roles.others(context.me)
    products = Products(context, context.roles.only(PARTNER), SHARE_SCHEMES["own"](bits))
    products.meet()
    holders, (evaluators,) = products.keys(0, (purpose,))
    mine, totals = [own.shape[1] for own in blocks], [np.zeros((1, 1), np.uint64) for _ in blocks]
    wide = max(widths) if asks else max(mine)  # of X_B
    for start in range(0, len(blocks[0]), ROWS_PER_SUMMED_PRODUCT):
        at = {start + k: own[start : start + ROWS_PER_SUMMED_PRODUCT] for k, own in enumerate(blocks)}
        n = len(at[start])
        work = products.work(len(at) * products.scheme.seconds(n, max(mine) if asks else max(widths), wide))
        if asks:
            vectors = {batch: ring.of(X) for batch, X in at.items()}
            products.ask(work, [peer], holders[0], vectors, columns=lambda _: wide, uses=1)  # 1
            shapes = {start + k: (width, mine[k]) for k, width in enumerate(widths)}
            found = products.opened(work, holders[0], peer, shapes)  # 2
        else:
            counts = {start + k: width for k, width in enumerate(widths)}
            found = products.answer(work, evaluators, counts, at.__getitem__)  # 1, 2
        totals = [ring.reduce(total + found[start + k].T) for k, total in enumerate(totals)]
    return products, totals

"""Products X_A^T X_B of the integer columns of two parties, as additive shares: the basis of joint statistics.

Party A (role "active") has columns X_A (n, d_A), and its partner B has columns X_B (n, d_B) about the same n rows. Each
obtains a random-looking matrix (d_A, d_B) modulo 2^L; the sum of the two is the product.

1. A -> B   chunks of rows of X_A, encrypted under A's key, after both have exchanged nonces and keys
            (share_products.py)
2. B -> A   the encrypted product with B's rows of the chunk, minus B's random share
   A, B     add up their shares over all chunks

Comments refer to these steps by number. Every received value is a ciphertext under the other party's key, or uniform,
so both learn the sizes only. A session has its own subchannel and keys (shares_session.py).
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

ROWS_PER_SUMMED_PRODUCT = 16_384


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active (the requesting party) and partner."""
    roles = {ACTIVE, PARTNER}
    return [item for item in share_products.declares() if {item.sender, item.receiver} == roles]


def summed_products(
    context: PartyContext, bits: int, blocks: Sequence[Integers], widths: Sequence[int], purpose: str
) -> tuple[Products, list[Words]]:
    """Multiply each group of this party's columns by the other party's group of columns with the same index.

    Args:
        context: the context of one of two parties.
        bits: the number of bits L; shares are integers modulo 2^L.
        blocks: groups of this party's columns as integers, each an array (n, d).
        widths: the number of columns of each of the other party's groups.
        purpose: a name for the statistics, such as "correlations"; encryption keys are derived from it.

    Returns:
        The session, which the parties can use for further messages; and this party's share (d_A, d_B) of each product.
    """
    ring, is_active = ShareRing(bits), context.me == context.active
    (peer,) = context.roles.others(context.me)
    products = Products(context, context.roles.only(PARTNER), SHARE_SCHEMES["own"](bits))
    products.greet()
    holders, (evaluators,) = products.send_keys(0, (purpose,)), products.receive_keys(0, (purpose,))
    my_widths, totals = [block.shape[1] for block in blocks], [np.zeros((1, 1), np.uint64) for _ in blocks]
    partner_width = max(widths) if is_active else max(my_widths)
    active_width = max(my_widths) if is_active else max(widths)
    for start in range(0, len(blocks[0]), ROWS_PER_SUMMED_PRODUCT):
        chunks = {start + k: block[start : start + ROWS_PER_SUMMED_PRODUCT] for k, block in enumerate(blocks)}
        n = len(chunks[start])
        executor = products.executor(len(chunks) * products.scheme.seconds(n, active_width, partner_width))
        if is_active:
            vectors = {batch: ring.of(X) for batch, X in chunks.items()}
            # step 1
            products.send_queries(executor, [peer], holders[0], vectors, columns=lambda _: partner_width, uses=1)
            shapes = {start + k: (width, my_widths[k]) for k, width in enumerate(widths)}
            shares = products.open_replies(executor, holders[0], peer, shapes)  # step 2
        else:
            counts = {start + k: width for k, width in enumerate(widths)}
            shares = products.answer_queries(executor, evaluators, counts, chunks.__getitem__)  # steps 1 and 2
        totals = [ring.reduce(total + shares[start + k].T) for k, total in enumerate(totals)]
    return products, totals

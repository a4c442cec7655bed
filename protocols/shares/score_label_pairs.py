"""How good a model on shares is on some rows: pairs (level of the sum, label) in a hidden order, and no row's score.

s = 2^step is the distance of two levels, k bits say which one. y: a bit of each row that the active party A chooses.

1. all      shares of H = X theta at A and its partner B (new_sums.py); A may take targets off its own. Where it does
            not, H that is beyond the levels is moved to their ends, in shares, by its highest bits (new_sums.py)
2. A        x_A = 2 i_A + y      B   x_B = 2 i_B         i the k bits of a share from s on; words of k + 1 bits
3. A, B     both words go through a shuffle (share_measures.py)
   A        of each pair the level i_A + i_B + 1, and y

As the fraction of a share is uniform, a level is H / s rounded up or down at random, without bias. Levels are those
modulo 2^k: sums that are not moved must lie within 2^(k - 1) s. Several outputs are shuffled each by itself, so that
no row's scores come together: a tuple of them finds its row again.

A learns how many rows of each label have each level, so all metrics of them, but of no row which it is; the most
extreme own parts remain better placed than others, so there must be FEW_ROWS rows, and FEW_ALIKE of each label: below
that the others must agree by name. A that deviates may mark rows by y, or by what it adds to its share, and reads
some of them for certain: k + 1 bits a row and evaluation is what any A learns at most, and B lets the same rows be
evaluated one time for each hundred of them (score_ledger.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.share_ring import ShareRing
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.shares import forward_sums, table_lookup
from securevfl.protocols.shares.forward_sums import ColumnSource, ForwardSums
from securevfl.protocols.shares.iteration import SharedState
from securevfl.protocols.shares.quantizer import Quantizer
from securevfl.protocols.shares.share_products import Products
from securevfl.protocols.shares.shares_params import SharesParams
from securevfl.protocols.shares.table_lookup import look_up_shares
from securevfl.protocols.shares.table_transfers import Transfers
from securevfl.protocols.shares.word_shuffle import Shuffle, declares_shuffle, run_shuffle

MIN_PAIR_ROWS, MIN_ROWS_PER_LABEL = 400, 100  # below which the others must agree by name

_TOLD = "of the rows measured, in a hidden order: the level of each sum, with a label of one bit"


def declares() -> list[MessageDeclaration]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    return [*forward_sums.declares(), *table_lookup.declares_lookup(), *declares_shuffle(_TOLD)]


@dataclass(frozen=True)
class ScoreLabelPairs:
    """Rows of each output in an order of its own: sums (n x c) as levels, and whether they were marked (n x c)."""

    f: Floats
    marked: NDArray[np.bool_]


class PairInputs(NamedTuple):
    """What the active party puts to the sums of rows: marks y (n x c), and what is taken off (n x c), if anything."""

    marks: NDArray[np.bool_]
    less: Floats | None


def open_pairs(
    products: Products,
    shuffle: Shuffle | None,
    terms: SharesParams,
    state: SharedState,
    X: ColumnSource,
    levels: Quantizer,
    marked: PairInputs | None = None,
    tops: Transfers | None = None,
) -> ScoreLabelPairs | None:
    """One party's side, with its columns X (n x d); the pairs at the active party, None elsewhere.

    shuffle: at the two holders, one that nobody has used, of blocks of n words for each output. state: measured once in
    a session. marked: at the active party. tops: at the two holders, transfers for tables by the highest bits, by which
    sums beyond the levels are moved to their ends; none where they wrap. ProtocolError if a peer sends something of
    another size.
    """
    context, numbers, ring = products.context, terms.encoding, ShareRing(terms.encoding.bits)
    h = ForwardSums(products, terms, state, "measure", state.visits, len(X)).block(0, X)  # 1
    if h is None or shuffle is None:
        return None
    if marked is not None and marked.less is not None:
        h = ring.reduce(
            h - ring.of(np.rint(np.ldexp(marked.less, numbers.f_x + numbers.f_theta)).astype(np.int64))
        )  # 1
    if tops is not None:
        moves = look_up_shares(
            products,
            tops,
            terms.partner,
            numbers.top_index(h),
            numbers.top_bits,
            levels.clip_shifts(numbers.top_knots),
            ShareRing(levels.bits),
        )  # 1
        h = ring.reduce(h + (moves << np.uint64(levels.shift(numbers))))
    own = levels.truncate(numbers, h) << np.uint64(1)
    if marked is not None:
        own |= marked.marks.astype(np.uint64)  # 2
    peer = terms.partner if context.me == context.active else context.active
    words = run_shuffle(context, peer, shuffle, own.T.ravel())  # 3
    if words is None:
        return None
    found = words.reshape(h.shape[1], h.shape[0]).T
    return ScoreLabelPairs(levels.dequantize(found >> np.uint64(1)), (found & np.uint64(1)).astype(bool))

"""Quality of a model on shares: pairs of a quantized score and a label in a hidden order, and no score of a known row.

s = 2^step is the spacing of two levels, and k the number of bits of a level. y is a bit of each row that the active
party A chooses.

1. all      shares of H = X theta at A and its partner B (forward_sums.py); A may subtract targets from its share. If it
            does not, H beyond the quantizer's range is clipped in the shares, by its highest bits (table_lookup.py)
2. A        x_A = 2 i_A + y      B   x_B = 2 i_B         i: the k bits of a share from s upwards; words of k + 1 bits
3. A, B     shuffle the words (word_shuffle.py)
   A        of each pair the level i_A + i_B + 1, and y

The fractional part of a share is uniform, so a level is H / s rounded up or down at random, without bias. Levels are
modulo 2^k: sums that are not clipped must be within 2^(k-1) s. Several outputs are shuffled separately, so that a row's
scores cannot be combined: a tuple of them would identify the row.

A learns how many rows of each label have each level, and thereby all metrics, but not which row has which level. Rows
with the most extreme values of A's columns can still be guessed better than others, so there have to be `MIN_PAIR_ROWS`
rows, and `MIN_ROWS_PER_LABEL` rows of each label; below that, the other parties must agree by name. If A deviates, it
may mark rows by y, or by what it adds to its share, and read some of them with certainty. It learns at most k + 1 bits
for each row and evaluation, and B lets a set of rows be evaluated once for each hundred of them
(protocols/score_ledger).
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

MIN_PAIR_ROWS = 400
"""With fewer rows, the other parties must agree by name."""

MIN_ROWS_PER_LABEL = 100
"""With fewer rows of a label, the other parties must agree by name."""

_PAIRS = "of the evaluated rows, in a hidden order: the quantized sum, with a label of one bit"


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active, partner, passive (any other party)."""
    return [*forward_sums.declares(), *table_lookup.declares_lookup(), *declares_shuffle(_PAIRS)]


@dataclass(frozen=True)
class ScoreLabelPairs:
    """Opened pairs; the rows of each output have an order of their own.

    Attributes:
        f: the quantized sums (n, c).
        marked: the bits y (n, c).
    """

    f: Floats
    marked: NDArray[np.bool_]


class PairInputs(NamedTuple):
    """The active party's inputs to the pairs.

    Attributes:
        marks: the bits y (n, c).
        less: values to subtract from the sums (n, c), or None.
    """

    marks: NDArray[np.bool_]
    less: Floats | None


def open_pairs(
    products: Products,
    shuffle: Shuffle | None,
    params: SharesParams,
    state: SharedState,
    X: ColumnSource,
    quantizer: Quantizer,
    inputs: PairInputs | None = None,
    top_transfers: Transfers | None = None,
) -> ScoreLabelPairs | None:
    """Run one party's side of an evaluation.

    Args:
        products: the session.
        shuffle: at the two holders, an unused shuffle with a block of n words for each output.
        params: the agreed parameters.
        state: this party's shares of the weights; each state is evaluated once in a session.
        X: this party's columns (n, d) of the rows.
        quantizer: the quantizer of the sums.
        inputs: at the active party, its inputs.
        top_transfers: at the two holders, transfers for tables indexed by the highest bits, with which sums beyond the
            range are clipped; None if they wrap.

    Returns:
        The pairs at the active party; None elsewhere.
    """
    context, encoding, ring = products.context, params.encoding, ShareRing(params.encoding.bits)
    h = ForwardSums(products, params, state, "measure", state.iterations, len(X)).block(0, X)  # 1
    if h is None or shuffle is None:
        return None
    if inputs is not None and inputs.less is not None:
        less = np.rint(np.ldexp(inputs.less, encoding.f_x + encoding.f_theta)).astype(np.int64)
        h = ring.reduce(h - ring.of(less))  # 1
    if top_transfers is not None:
        shifts = look_up_shares(
            products,
            top_transfers,
            params.partner,
            encoding.top_index(h),
            encoding.top_bits,
            quantizer.clip_shifts(encoding.top_knots),
            ShareRing(quantizer.bits),
        )  # 1
        h = ring.reduce(h + (shifts << np.uint64(quantizer.shift(encoding))))
    words = quantizer.truncate(encoding, h) << np.uint64(1)
    if inputs is not None:
        words |= inputs.marks.astype(np.uint64)  # 2
    peer = params.partner if context.me == context.active else context.active
    shuffled = run_shuffle(context, peer, shuffle, words.T.ravel())  # 3
    if shuffled is None:
        return None
    pairs = shuffled.reshape(h.shape[1], h.shape[0]).T
    return ScoreLabelPairs(quantizer.dequantize(pairs >> np.uint64(1)), (pairs & np.uint64(1)).astype(bool))

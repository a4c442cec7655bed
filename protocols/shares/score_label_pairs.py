"""Evaluation of a secret-shared model: the party with labels learns (rounded score, label) pairs in a hidden order.

The active party A has the labels, and B is its partner. The scores of n rows are their forward sums H = X @ theta, (n,
c) for c model outputs. No party knows H: A and B have random-looking shares h of it, whose sum modulo 2^L is H. Scores
are rounded to levels: multiples of s = 2^step, numbered modulo 2^k. y is a code of m bits for each row, which A
chooses: normally its class (m = 1), or a rounded count or amount (m = 2, securevfl/models/rounded_labels.py).

1. all      compute shares of H at A and B (forward_sums.py). A may subtract target values from its share. If it does
            not, A and B clip scores that exceed the range of the levels, without seeing them (table_lookup.py)
2. A        x_A = 2^m * i_A + y    i_A: A's share of the level, which is floor(h / s) mod 2^k
   B        x_B = 2^m * i_B        i_B: likewise
3. A, B     shuffle the words x_A + x_B of k + m bits (word_shuffle.py)
   A        reads the level i_A + i_B + 1 and the code y from each word

Comments refer to these steps by number. The fractional part of a share is uniform, so a level is H / s rounded up or
down at random, without bias. Scores that are not clipped must be between -2^(k-1) * s and 2^(k-1) * s. If a row has
several outputs, each output is shuffled separately, because a row could be recognized by the combination of its scores.

A learns how many rows of each code have each level, and can compute all metrics from that. It does not learn which row
has which level. Still, A can guess the scores of rows with extreme values in its columns better than those of other
rows. So there must be at least `MIN_PAIR_ROWS` rows, and `MIN_ROWS_PER_LABEL` rows of each label; for fewer, the other
parties must give their explicit consent. If A deviates, it may mark some rows by y, or by adding large numbers to its
share, and read their scores with certainty. It learns at most k + m bits of each row. It also learns no more than the
multiset of the words, because B permutes them: at most log2 C(n + 2^(k+m) - 1, n) bits about the columns of all n rows
(`word_shuffle.multiset_bits`). A training therefore opens pairs once, for its final model, with k + m = 8. A session
has its own subchannel and keys (shares_session.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.share_ring import ShareRing
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.shares import forward_sums, table_lookup
from securevfl.protocols.shares.fixed_point import FINE_BITS, FixedPointEncoding, table_distances
from securevfl.protocols.shares.forward_sums import ForwardSums
from securevfl.protocols.shares.iteration import SharedState
from securevfl.protocols.shares.pair_sums import ColumnSource
from securevfl.protocols.shares.quantizer import Quantizer
from securevfl.protocols.shares.rotated_tables import TableStarts, rotated_tables
from securevfl.protocols.shares.share_products import Products
from securevfl.protocols.shares.shares_params import SharesParams
from securevfl.protocols.shares.table_lookup import look_up_shares
from securevfl.protocols.shares.table_transfers import Transfers
from securevfl.protocols.shares.word_shuffle import Shuffle, declares_shuffle, run_shuffle

MIN_PAIR_ROWS = 400
"""With fewer rows, the other parties must give their explicit consent."""

MIN_ROWS_PER_LABEL = 100
"""With fewer rows of a label, the other parties must give their explicit consent."""

_PAIRS = "of the evaluated rows, in a hidden order: the quantized sum, with a label of one or two bits"


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active, partner, passive (any other party)."""
    return [*forward_sums.declares(), *table_lookup.declares_lookup(), *declares_shuffle(_PAIRS)]


@dataclass(frozen=True)
class ScoreLabelPairs:
    """The pairs that the active party has learned. Each column contains the rows in another random order.

    Attributes:
        f: the rounded scores (n, c).
        codes: the codes y that belong to them (n, c).
    """

    f: Floats
    codes: NDArray[np.uint8]

    @property
    def marked(self) -> NDArray[np.bool_]:
        """Whether the code of each pair (n, c) is not 0."""
        return self.codes.astype(bool)


class PairWords(NamedTuple):
    """The format of the words that are shuffled.

    Attributes:
        quantizer: the levels to which scores are rounded.
        code_bits: the number of bits m of a code.
    """

    quantizer: Quantizer
    code_bits: int = 1

    @property
    def bits(self) -> int:
        """The number of bits k + m of a word."""
        return self.quantizer.bits + self.code_bits


class PairInputs(NamedTuple):
    """The values that the active party alone contributes to an evaluation.

    Attributes:
        codes: the codes y (n, c) for each row and output, below 2^m.
        less: values to subtract from the scores before rounding (n, c), or None.
        centres: the score at the centre of the table that decides whether a score is clipped (n * c,).
    """

    codes: NDArray[np.uint8]
    less: Floats | None
    centres: Floats


def open_pairs(
    products: Products,
    shuffle: Shuffle | None,
    params: SharesParams,
    state: SharedState,
    X: ColumnSource,
    pair_words: PairWords,
    inputs: PairInputs | None = None,
    clip_transfers: Transfers | None = None,
) -> ScoreLabelPairs | None:
    """Evaluate the current model on some rows, together with all other parties.

    Args:
        products: this party's session of encrypted matrix products (share_products.py), with which step 1 multiplies
            columns by shares of the weights.
        shuffle: at A and B, an unused shuffle with a block of n words for each output; None elsewhere.
        params: the parameters of the training on which all parties agree (shares_params.py).
        state: this party's shares of the weights; each state is evaluated at most once in a session.
        X: this party's columns (n, d) of the rows.
        pair_words: the format of the words that are shuffled.
        inputs: at the active party, the codes of the rows and the values that it subtracts; None elsewhere.
        clip_transfers: at A and B, oblivious transfers for a fine table, with which scores beyond the range are
            clipped; if None, such scores wrap modulo 2^k levels.

    Returns:
        The pairs at the active party; None elsewhere.
    """
    quantizer, code_bits = pair_words
    context, encoding, ring = products.context, params.encoding, ShareRing(params.encoding.bits)
    h = ForwardSums(products, params, state, "measure", state.iterations, len(X)).block(0, X)  # step 1
    if h is None or shuffle is None:
        return None
    if inputs is not None and inputs.less is not None:
        less = np.rint(np.ldexp(inputs.less, encoding.f_x + encoding.f_theta)).astype(np.int64)
        h = ring.reduce(h - ring.of(less))  # step 1
    if clip_transfers is not None:
        tables = None if inputs is None else partial(_clip_tables, quantizer, encoding, inputs.centres)
        short_ring, index = ShareRing(quantizer.bits), encoding.fine_index(h)
        shifts = look_up_shares(
            products, clip_transfers, params.partner, index, FINE_BITS, tables, short_ring
        )  # step 1
        h = ring.reduce(h + (shifts << np.uint64(quantizer.shift(encoding))))
    words = quantizer.truncate(encoding, h) << np.uint64(code_bits)
    if inputs is not None:
        words |= inputs.codes.astype(np.uint64)  # step 2
    peer = params.partner if context.me == context.active else context.active
    shuffled = run_shuffle(context, peer, shuffle, words.T.ravel())  # step 3
    if shuffled is None:
        return None
    pairs = shuffled.reshape(h.shape[1], h.shape[0]).T
    codes = (pairs & np.uint64(2**code_bits - 1)).astype(np.uint8)
    return ScoreLabelPairs(quantizer.dequantize(pairs >> np.uint64(code_bits)), codes)


def _clip_tables(
    quantizer: Quantizer, encoding: FixedPointEncoding, centres: Floats, block: slice, first: TableStarts
) -> NDArray[Any]:
    """Return the tables of shifts that clip the scores of a block of sums, each rotated to start at an index."""
    of_tables, table_of_sum = np.unique(centres[block], return_inverse=True)
    shifts = quantizer.clip_shifts(table_distances(encoding.fine_knots, of_tables) + of_tables)
    return rotated_tables(shifts.T, table_of_sum, first)

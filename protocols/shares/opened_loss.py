"""Mean loss of a secret-shared model on some rows: the party with labels learns one sum over the rows, and no score.

All parties run this protocol to evaluate the current model: A, the active party with the labels y, learns the mean loss
and no row's loss. B is A's partner. H (n, c) are the model's outputs for n rows, the *forward sums* X @ theta. A
*share* of a secret number is one of two random-looking integers at A and at B that add up to it modulo a power of two.
T_y is a *fine table*: it lists the loss for label y at 256 values of H, over the range of H that the training covers.
The *lift* turns two shares modulo 2^16 into shares of the same number modulo 2^32, so that sums over many rows fit.

1. all      compute shares of H at A and B (forward_sums.py)
2. A, B     look up the entry of T_y at H for every row, modulo 2^16 (table_lookup.py): each gets a share of the entry
3. A, B     lift their shares of the entries to integers modulo 2^32 (lifted_shares.py)
4. B -> A   the sum of B's shares over all rows
   A        adds the sum of its shares, and obtains the sum of all rows' entries

Comments refer to these steps by number. A learns the sum; everything else that A or B receives is uniform.

The protocol reads the entry just below or just above H at random, so that the mean is the loss interpolated between the
two. Values of the table are the coefficients of the L2 projection of the loss on linear splines (projection.py), so
that interpolation has no bias. They may be slightly negative, and a constant makes them positive. A multiplies them by
a scale that no other party knows, so that the largest one just fits into 15 bits, and rounds them up or down at random.
The rounding of H is the larger error. Its standard deviation in the mean is about 0.4 * (the table's spacing) * (the
mean slope of the loss) / sqrt(n): some 0.04 / sqrt(n) for a spacing of 1/4.

A party A that deviates can put any words into its tables, and then learns the sum of the words that it wrote: 32 bits
of its choice about the columns of the other parties. B counts 32 bits about these columns for every sum. A session has
its own subchannel and keys (shares_session.py). In an oblivious transfer, *pads* are random numbers that hide all table
entries from B except the one that it reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing
from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.shares import forward_sums
from securevfl.protocols.shares.carry_lift import CarryLift
from securevfl.protocols.shares.fixed_point import FINE_BITS, FINE_ENTRY_BITS, FixedPointEncoding, table_distances
from securevfl.protocols.shares.forward_sums import ForwardSums
from securevfl.protocols.shares.iteration import SharedState
from securevfl.protocols.shares.lifted_shares import declares_lift, lift_shares
from securevfl.protocols.shares.pair_sums import ColumnSource
from securevfl.protocols.shares.projection import projected
from securevfl.protocols.shares.rotated_tables import TableStarts, rotated_tables
from securevfl.protocols.shares.share_products import Products, unpack_words
from securevfl.protocols.shares.shares_params import SharesParams
from securevfl.protocols.shares.table_lookup import declares_lookup, look_up_shares
from securevfl.protocols.shares.table_transfers import Transfers
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord

MIN_LOSS_ROWS, MAX_LOSS_ROWS = 20, 65_536
LOSS_SUM_BITS = 32
"""Bits of an opened sum: at most `MAX_LOSS_ROWS` entries below 2^15 are summed."""
_MAX_ENTRY = 2 ** (FINE_ENTRY_BITS - 1) - 1  # the lift requires that the highest bit of an entry is 0
_MAX_LOSS = 4096.0  # the loss of a row is clipped at this value
_OFFSET = 1.0  # added to each entry, so that projections, which may be slightly below 0, become positive
_ROUNDING_BITS = 16
_RING = ShareRing(LOSS_SUM_BITS)
EVALUATION_LIFT = CarryLift(FINE_ENTRY_BITS, _RING)


def select_measured(rows: NDArray[np.intp], outputs: int) -> NDArray[np.intp]:
    """Return which of some rows (n,) are measured: all, or the largest number of them, evenly spaced over the table.

    In a table that is sorted by time, the measured rows thus come from all periods.

    Args:
        rows: positions of the evaluated rows in the table, in any order.
        outputs: number of outputs of the model.

    Returns:
        The positions of the measured rows, ascending.
    """
    rows, limit = np.sort(rows), MAX_LOSS_ROWS // outputs
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), limit)).astype(np.intp)]


def rounding_deviation(loss: float, rows: int, curvature: float, spacing: float) -> float:
    """Return an upper bound of the standard deviation that the rounding of H adds to a measured mean loss.

    An output H that is rounded at random to multiples of the spacing has a deviation of at most spacing / 2, and
    spacing / sqrt(6) in the mean over all H. The slope g of a loss that is at least 0 and has a bounded second
    derivative is at most sqrt(2 * curvature * loss).

    Args:
        loss: the mean over the rows of the sum of their losses over all outputs.
        rows: the number of rows.
        curvature: the largest second derivative of the loss by an output.
        spacing: the distance of two entries of a fine table.

    Returns:
        The deviation.
    """
    return spacing / math.sqrt(6) * math.sqrt(2 * curvature * max(loss, 0.0) / max(rows, 1))


class LossTable(NamedTuple):
    """The loss function and the targets of each row; the active party computes its tables T_y from them.

    Attributes:
        values: computes the losses (m,) for forward sums (m, 1) and targets (m, k).
        targets: the targets of each row and output (n * c, k).
        minimizer: computes the forward sums of least loss (m, 1) from targets (m, k).
    """

    values: Callable[[Floats, Floats], Floats]
    targets: Floats
    minimizer: Callable[[Floats], Floats]


class LossTransfers(NamedTuple):
    """The oblivious transfers of A or B: random pads, so that B reads one table entry and A does not learn which.

    Attributes:
        tables: transfers that select an entry of a fine table, with pads of 16 bits.
        carries: transfers of one of two pads, for the lift of shares from 16 to 32 bits.
    """

    tables: Transfers
    carries: Transfers


class LossSum(DisclosingMessage, frozen=True):
    """The sum of the partner's shares over all rows (step 4)."""

    total: bytes


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active, partner, passive (any other party)."""
    return [
        *forward_sums.declares(),
        *declares_lookup(),
        *declares_lift(),
        MessageDeclaration(
            LossSum, "partner", "active", Reveal("output", "the sum of the losses of the evaluated rows")
        ),
    ]


class _LossEntries:
    """The active party's tables of losses as integers of 15 bits.

    Args:
        encoding: the fixed-point encoding of the training.
        table: the loss function and the targets of the rows.
    """

    def __init__(self, encoding: FixedPointEncoding, table: LossTable) -> None:
        self._encoding, self._table = encoding, table
        self._targets, table_of_sum = np.unique(table.targets, axis=0, return_inverse=True)
        self._table_of_sum = table_of_sum.ravel()
        self._centres = encoding.table_centres(table.minimizer(self._targets))
        farthest = encoding.fine_knots.min(), encoding.fine_knots.max()
        ends = [table.values((self._centres + distance)[:, None], self._targets) for distance in farthest]
        # a loss is convex, so its largest value is at an end of the table
        self._largest = min(float(np.max(ends)), _MAX_LOSS)
        self._scale = (_MAX_ENTRY - 1) / (self._largest + 2 * _OFFSET)
        self._prg = Prg.fresh("rounding of losses")

    def tables(self, block: slice, first: TableStarts) -> NDArray[np.uint16]:
        """Return the tables of a block of m forward sums: losses as integers, rounded at random.

        Args:
            block: the block of sums.
            first: the index of the entry that comes first in each table (m,).

        Returns:
            The entries (m, 2^FINE_BITS).
        """
        used, table_of_sum = np.unique(self._table_of_sum[block], return_inverse=True)
        centres, encoding = self._centres[used], self._encoding
        knots, spacing = (table_distances(encoding.fine_knots, centres) + centres).T, 2.0**encoding.fine_step
        lowest = knots.min(axis=1)
        coefficients = projected(self._clipped, self._targets[used], lowest, len(encoding.fine_knots), spacing)
        positions = np.rint((knots - lowest[:, None]) / spacing).astype(np.intp)
        loss = np.take_along_axis(coefficients, positions, axis=1).clip(-_OFFSET, self._largest + _OFFSET)
        fixed = np.ldexp((loss + _OFFSET) * self._scale, _ROUNDING_BITS).astype(np.uint32)
        entries = rotated_tables(fixed, table_of_sum, first)
        entries += self._prg.array(len(table_of_sum), np.uint16)[:, None]
        entries >>= np.uint32(_ROUNDING_BITS)
        return entries.astype(np.uint16)

    def mean(self, total: int) -> float:
        """Return the mean loss over all rows and outputs, from the opened sum of their table entries."""
        return total / self._scale / len(self._table_of_sum) - _OFFSET

    def _clipped(self, f: Floats, targets: Floats) -> Floats:
        return np.clip(self._table.values(f, targets), 0, self._largest)


def open_loss(
    products: Products,
    transfers: LossTransfers | None,
    params: SharesParams,
    state: SharedState,
    number: int,
    X: ColumnSource,
    table: LossTable | None,
    *,
    record_evaluation: Callable[[], None] = lambda: None,
) -> float | None:
    """Compute the mean loss of the current model on some rows, together with all other parties.

    Args:
        products: this party's session of encrypted matrix products (share_products.py), with which step 1 multiplies
            columns by shares of the weights.
        transfers: at A and B, the session's oblivious transfers; None elsewhere.
        params: the parameters of the training on which all parties agree (shares_params.py).
        state: this party's shares of the weights.
        number: a number that no other evaluation has in this session.
        X: this party's columns (n, d) of the rows.
        table: at the active party, the loss of the rows; None elsewhere.
        record_evaluation: a function that records the evaluation in this party's ledger, or raises an error if the
            ledger forbids it. The partner calls it while it waits for step 2, because only its message of step 4
            discloses anything; all other parties call it before step 1.

    Returns:
        At the active party, the mean loss over rows and outputs; None elsewhere.
    """
    context, encoding = products.context, params.encoding
    if context.me != params.partner:
        record_evaluation()
    h = ForwardSums(products, params, state, "loss", number, len(X)).block(0, X)  # step 1
    if h is None or transfers is None:
        return None
    index = encoding.fine_index(h).ravel()
    entries = None if table is None else _LossEntries(encoding, table)
    tables = None if entries is None else entries.tables
    short_ring = EVALUATION_LIFT.short_ring
    shares = look_up_shares(
        products, transfers.tables, params.partner, index, FINE_BITS, tables, short_ring, meanwhile=record_evaluation
    )  # step 2
    lifted = lift_shares(products, transfers.carries, params.partner, shares, EVALUATION_LIFT)  # step 3
    total = _RING.reduce(lifted.sum(dtype=np.uint64))
    if entries is None:
        record = DisclosureRecord(
            context.active, "columns", LOSS_SUM_BITS, 1, about=context.without_labels, group="evaluations"
        )
        products.send(context.active, LossSum(_RING.pack(total[None])), context.channel.permit(record))  # step 4
        return None
    (partner_total,) = unpack_words(params.partner, products.recv(params.partner, LossSum).total, _RING, (1,))  # step 4
    loss_sum = int(_RING.reduce(partner_total + total))
    if loss_sum > _MAX_ENTRY * index.size:
        raise ProtocolError(
            f"{params.partner} sent a share of a sum of losses that {index.size} table entries cannot have",
            code="SVFL-PROTOCOL-VALUES",
            party=params.partner,
        )
    return entries.mean(loss_sum)

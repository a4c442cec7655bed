"""Class counts by bin: a passive party learns how many rows of each of its bins are of the positive class.

Roles: the active party has the class of each row, y (n x 1) of -1 and +1. A passive party has the 0/1 matrix J (n x k)
of the bins of its rows, and the number of rows in each bin. The protocol is one exchange of a residual protocol, with y
instead of the residual g:

1. active -> passive   y            sent like a residual: [[y]] under the active party's key, or in the clear
2. passive             J^T y        by the steps of the residual protocol; if y is encrypted, the active party decrypts
                                    the blinded product
3. passive             positives = (J^T y + rows) / 2

If y is encrypted, a passive party learns its k counts, which are linear equations about the labels of all n rows, and
nothing else: decrypted values are dithered (`securevfl.crypto.kernel.row_products`) and rounded to integers here. The
number k is public and allows the largest number of bins of the job. Unused columns of J are 0, so nobody learns how
many bins a column has. In the clear, the passive party learns y.

A malicious party may multiply rows by numbers other than 0 and 1, for example by 1, 2, 4, ..., so that one number of
many bits would reveal the labels of many rows. The key holder therefore decrypts only log2(2n) bits of each of the k
counts, which is what a count of n rows needs, whatever a passive party requests. The ledger counts these bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import RowSource, materialize
from securevfl.errors import ProtocolError
from securevfl.protocols.differentiable import FixedJacobian
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import Agreement, Batch, ResidualProtocol

EVIDENCE_SUBCHANNEL = "evidence"

_MAX_ROUNDING_ERROR = 0.4  # of an opened count; the last bit of a word is 0.25 rows if a bin contains all rows


def count_bits(rows: int) -> int:
    """Return the bits of a word that holds any count among this number of rows."""
    return (2 * rows - 1).bit_length()


def send_classes(context: PartyContext, residual: ResidualProtocol, positive: NDArray[np.bool_]) -> None:
    """Act as the active party: `positive` (n,) marks rows of the positive class. Return when all counts are served."""
    role = residual.active(context, _agreement(len(positive)))
    role.publish(np.where(positive, 1.0, -1.0)[:, None], epoch=0, to=context.passives)  # 1
    role.close()


def receive_counts(
    context: PartyContext, residual: ResidualProtocol, bins: RowSource, rows: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Act as a passive party: return the number of rows of the positive class in each bin.

    Args:
        context: this party's context.
        residual: the residual protocol.
        bins: the 0/1 matrix of bins (n x k).
        rows: the number of rows in each bin (k,).

    Returns:
        The counts (k,).

    Raises:
        ProtocolError: if the received numbers are not counts of rows.
    """
    role = residual.passive(context, _agreement(len(bins)))
    J: Floats = materialize(bins)  # type: ignore[assignment]  # products accept a chunked matrix as well
    with context.channel.gate.about_rows("bins"):
        products = role.reply().gradient(FixedJacobian(), Batch(0, 0, J))[:, 0]  # 2
    role.close()
    counts = (products + rows) / 2  # 3
    rounded = np.rint(counts)
    if (np.abs(counts - rounded) > _MAX_ROUNDING_ERROR).any() or (rounded < 0).any() or (rounded > rows).any():
        raise ProtocolError(
            f"{context.me}: the class counts of its bins, computed with {context.active}, are not numbers of rows",
            'align both tables; if there are too many rows for the engine, use residual = "paillier"',
            code="SVFL-PROTOCOL-VALUES",
            party=context.active,
        )
    return rounded.astype(np.intp)


def _agreement(rows: int) -> Agreement:
    return Agreement(group="bins", word=count_bits(rows))

"""Class counts by bin: a passive party learns how many rows of each of its bins belong to the positive class.

A scorecard needs these counts to compute weights of evidence. The active party has the class of each of n rows as y (n,
1), which contains -1 and +1. A passive party has divided the values of its columns into k bins. It has the matrix J (n,
k), in which J[i, b] is 1 if row i falls into bin b and 0 otherwise, and the number of rows in each bin. The protocol is
one exchange of a residual protocol (`securevfl.protocols.residuals`), with y in place of the residual:

1. active -> passive   y            sent like a residual: encrypted under the active party's key, or in the clear
2. passive             J^T y        by the steps of the residual protocol; if y is encrypted, the active party decrypts
                                    the blinded product
3. passive             positives = (J^T y + rows) / 2

If y is encrypted, a passive party learns its k counts and nothing else. Each count is a linear equation about the
labels of all n rows. Under CKKS, the active party adds noise to decrypted values so that they reveal nothing about its
key (`securevfl.crypto.kernel.row_products`); the passive party rounds them to integers. The number k is public and is
computed from the largest number of bins that the job allows. Unused columns of J are 0, so nobody learns how many bins
a column really has. If y is sent in the clear, the passive party learns every label.

A malicious party could put other numbers than 0 and 1 into J, for example 1, 2, 4, ..., so that one decrypted number of
many bits would reveal the labels of many rows. The active party therefore decrypts only log2(2 * n) bits of each
product, enough for a count of n rows, whatever the passive party requests. The disclosure ledger counts these bits.
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

_MAX_ROUNDING_ERROR = 0.4  # largest accepted error of a decrypted count, in rows; the real error is at most 0.25 rows


def count_bits(rows: int) -> int:
    """Return the number of bits of a decrypted product, enough for any count of up to `rows` rows."""
    return (2 * rows - 1).bit_length()


def send_classes(context: PartyContext, residual: ResidualProtocol, positive: NDArray[np.bool_]) -> None:
    """Act as the active party, and return when all passive parties have received their counts.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        residual: the residual protocol, which sends y encrypted or in the clear.
        positive: whether each row (n,) belongs to the positive class.
    """
    role = residual.active(context, _agreement(len(positive)))
    role.publish(np.where(positive, 1.0, -1.0)[:, None], epoch=0, to=context.passives)  # step 1
    role.close()


def receive_counts(
    context: PartyContext, residual: ResidualProtocol, bins: RowSource, rows: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Act as a passive party: return the number of rows of the positive class in each bin.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        residual: the residual protocol, which sends y encrypted or in the clear.
        bins: the matrix J (n, k), 1 if a row falls into a bin and 0 otherwise.
        rows: the number of rows in each bin (k,).

    Returns:
        The counts (k,).

    Raises:
        ProtocolError: if a received number is not a whole number between 0 and the number of rows of its bin.
    """
    role = residual.passive(context, _agreement(len(bins)))
    J: Floats = materialize(bins)  # type: ignore[assignment]  # may be a chunked matrix, which products accept too
    with context.channel.gate.about_rows("bins"):
        products = role.reply().gradient(FixedJacobian(), Batch(0, 0, J))[:, 0]  # step 2
    role.close()
    counts = (products + rows) / 2  # step 3
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

"""Classes in bins: a passive party learns how many rows of each of its bins are of the positive class.

Roles: the active party has the class of each row, y (n x 1) of -1 and +1; a passive party has the 0/1 matrix J (n x k)
of the bins that its rows lie in, and knows how many rows each has. This is one exchange of a residual protocol, with y
in the place of g:

1. active -> passive   y            as the residual goes: [[y]] under the active party's key, or in the clear
2. passive             J^T y        by the residual's own steps: under encryption the active party opens noise
3. passive             positives = (J^T y + rows) / 2

Under encryption a passive party learns its k counts, linear equations about the labels of all n rows, and nothing else:
what is opened is dithered (`securevfl.crypto.kernel.row_products`), and rounded to whole numbers here. k is what
all know, room for the bins that a job allows; columns of J that are not needed are 0, so nobody learns how many bins a
column has. In the clear it learns y.

A party that deviates may multiply rows by other numbers than 0 and 1, as by 1, 2, 4 .., and a number of many bits would
name the label of many rows. So the key holder opens words: of each of k counts, whatever a passive party asks for, the
log2(2n) bits that a count of n rows needs, and no other bit of it. These bits are what the ledger counts.
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

_OFF = 0.4  # how far from a whole number of rows an opened count may be: a word is a quarter off where bins hold all


def count_bits(rows: int) -> int:
    """Return the bits of the word that tells a count among so many rows."""
    return (2 * rows - 1).bit_length()


def tell(context: PartyContext, residual: ResidualProtocol, later: NDArray[np.bool_]) -> None:
    """Act as the active party: `later` marks rows (n,) of the positive class. Returns when all have what they asked."""
    role = residual.active(context, _agreed(len(later)))
    role.publish(np.where(later, 1.0, -1.0)[:, None], epoch=0, to=context.passives)  # 1
    role.close()


def ask(context: PartyContext, residual: ResidualProtocol, bins: RowSource, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Ask, as a passive party, how many rows of the positive class (k,) each of its bins (n x k) has.

    rows: how many rows each bin has. ProtocolError if what comes back are no counts of rows.
    """
    role = residual.passive(context, _agreed(len(bins)))
    J: Floats = materialize(bins)  # type: ignore[assignment]  # where it is tall, products take it all the same
    with context.channel.gate.about_rows("bins"):
        opened = role.reply().gradient(FixedJacobian(), Batch(0, 0, J))[:, 0]  # 2
    role.close()
    counts = (opened + rows) / 2  # 3
    found = np.rint(counts)
    if (np.abs(counts - found) > _OFF).any() or (found < 0).any() or (found > rows).any():
        raise ProtocolError(
            f"{context.me}: whole numbers of rows of the positive class in its bins were expected of "
            f"{context.active}, other "
            'numbers came; do both hold the same rows, and not too many for the engine? Use residual = "paillier"'
        )
    return found.astype(np.intp)


def _agreed(rows: int) -> Agreement:
    return Agreement(group="bins", word=count_bits(rows))

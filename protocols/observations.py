"""Facts that a protocol reports to an observer in the same process: its progress, and what the party has learned.

The protocol reports a fact by `Channel.note`. The facts never leave the process. An audit runs all parties itself and
compares the facts with the messages. A protocol family may report facts of further types; an observer selects the types
that it knows. n is the number of rows of a batch, and c the number of model outputs per row. J is the derivative of a
party's outputs by its parameters, and g (n, c) the residual, the derivative of the loss by the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.protocols.differentiable import Jacobian
from securevfl.runtime.disclosure_gate import Group


@dataclass(frozen=True)
class IterationStarted:
    """Note to observers: this party begins an iteration on the batch with number `index`."""

    index: int


@dataclass(frozen=True)
class SumFinished:
    """The sum of the parties' outputs on batch `index` is complete; this party received it or contributed to it."""

    index: int


@dataclass(frozen=True)
class GradientLearned:
    """The party has learned its gradient J^T g on batch `index`.

    If `group` is "bins", it has learned J^T y instead, from which the class counts of k bins follow: J (n, k) is 1 if a
    training row falls into a bin and 0 otherwise, and y (n, 1) contains the classes of the rows, -1 or +1.
    """

    index: int
    J: Jacobian
    gradient: Floats
    group: Group = "training"


@dataclass(frozen=True)
class OutputsPushed:
    """The party has sent these forward outputs (n, c) on batch `index` without waiting for the other parties."""

    index: int
    values: Floats


@dataclass(frozen=True)
class OthersSumLearned:
    """The party has learned the sum of all other parties' forward outputs on batch `index`.

    Attributes:
        index: number of the batch.
        values: the sum (n, c).
        versions: for every party, this one included, how often it had updated its outputs before they were summed.
    """

    index: int
    values: Floats
    versions: Mapping[str, int]


@dataclass(frozen=True)
class PhasesLearned:
    """The party has learned the sum of all other parties' phases, which are angles of random Fourier features.

    Attributes:
        k: number of the block of random features.
        bits: a phase is an integer modulo 2^bits, which represents an angle between 0 and 2 pi.
        phases: the sum (n, D) for the D features of the block.
    """

    k: int
    bits: int
    phases: NDArray[np.uint32]


@dataclass(frozen=True)
class SharedResidual:
    """The party has received the residual of batch `index` in a form that hides it.

    Attributes:
        index: number of the batch.
        words: a secret share of the residual, or the residual plus a mask (n, c), as signed integers.
    """

    index: int
    words: Floats

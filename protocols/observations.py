"""Facts that a party's protocols note about its progress and about what it learns, for an observer in this process.

The facts never leave the process. An audit runs all parties itself and compares the facts with the messages
(`Channel.note`). A family of protocols may note facts of further types; an observer selects the types that it knows.
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
    """An iteration on batch `index` begins."""

    index: int


@dataclass(frozen=True)
class SumFinished:
    """The latest sum that this party collected or contributed to was of batch `index`."""

    index: int


@dataclass(frozen=True)
class GradientLearned:
    """The party has learned J^T g on batch `index`; in group `bins`, J^T y on all training rows."""

    index: int
    J: Jacobian
    gradient: Floats
    group: Group = "training"


@dataclass(frozen=True)
class OutputsPushed:
    """The party has pushed these forward outputs (n x c) on batch `index`."""

    index: int
    values: Floats


@dataclass(frozen=True)
class OthersSumLearned:
    """The party has learned the sum (n x c) of all others' forward outputs on batch `index`.

    Attributes:
        index: number of the batch.
        values: the sum.
        versions: by party, this one included, the version of the outputs in the sum.
    """

    index: int
    values: Floats
    versions: Mapping[str, int]


@dataclass(frozen=True)
class PhasesLearned:
    """The party has learned the sum of the others' phases of block k (n x D, residues modulo 2^bits)."""

    k: int
    bits: int
    phases: NDArray[np.uint32]


@dataclass(frozen=True)
class SharedResidual:
    """The party holds these words (n x c, as signed numbers): a share of, or a masked, residual of batch `index`."""

    index: int
    words: Floats

"""What a party's protocols note of what it does and learns, for whoever observes its channel in this process.

Nothing of it leaves the party: an audit that runs all parties itself reads it beside the messages (`Channel.note`). A
method may note facts of its own kinds; who observes picks those it knows.
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
    """A visit to batch `index` begins."""

    index: int


@dataclass(frozen=True)
class SumFinished:
    """The last sum that this party collected, or gave to, was of batch `index`."""

    index: int


@dataclass(frozen=True)
class GradientLearned:
    """The party has learned J^T g on batch `index`, or with the group `bins` of all training rows, y for g."""

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
    """The party has been told the sum of all others' forward outputs on batch `index` (n x c), of these versions by
    party, its own among them."""

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
    """What the party knows of the residual of batch `index`: a share or a masked one (n x c), as signed numbers."""

    index: int
    words: Floats

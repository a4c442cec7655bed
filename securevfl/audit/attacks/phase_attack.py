"""Base of the attacks on summed phases of a kernel model."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from securevfl.audit.attacks.base import Attack, Requirement, Score, fixed_remedy
from securevfl.audit.recording.party_view import PartyView
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows
from securevfl.families.fdskl.kernel_model import Kernel
from securevfl.protocols.number_spaces import Phases

PHASES: Requirement = (lambda job: isinstance(job.model, Kernel), "no phases are summed: the model is no kernel")


class PhaseAttack(Attack):
    """A party that is told sums of phases, after the others' columns. The score is how much of their variance it
    finds."""

    requirements = (PHASES,)
    remedy = fixed_remedy("frequencies of one's own; scale columns so that phases wrap")

    def score(self, pair: RealIdealPair) -> Score:
        views = pair.real(pair.active.name), pair.ideal(pair.active.name)
        real, simulated = (self.share_of_columns(view, pair) for view in views)
        return Score(real, simulated, 0.0)

    @abstractmethod
    def share_of_columns(self, view: PartyView, pair: RealIdealPair) -> float:
        """Return the share of the variance of the others' columns that this view gives."""


def first_exchange(view: PartyView, pair: RealIdealPair) -> tuple[Rows, Floats, list[int]]:
    """Return what a worker learned first: rows, the others' phases in turns (n x M), and the blocks they are of."""
    first = view.phases[: kernel(pair).blocks]
    u = np.hstack([turns(total.phases, total.bits) for total in first])
    return first_rows(view), u, [total.k for total in first]


def kernel(pair: RealIdealPair) -> Kernel:
    """Return the model of the job, which is one with phases."""
    assert isinstance(pair.job.model, Kernel)
    return pair.job.model


def first_rows(view: PartyView) -> Rows:
    """Return the rows of the exchange that came first: the sample of a preconditioner, or the first batch visited."""
    return view.rows[0 if view.phases[0].visit < 0 else view.visits[0]]


def turns(phases: Phases, bits: int) -> Floats:
    """Residues modulo 2^bits as turns in [-1/2, 1/2)."""
    signed = (phases.astype(np.uint32) << np.uint32(32 - bits)).view(np.int32)
    return signed.astype(np.float64) / 2.0**32


def explained(found: Floats, truth: Floats) -> float:
    """Share of the variance of `truth` (n x d) that `found` explains as it stands; 0 if it does worse than the mean."""
    off, variance = ((found - truth) ** 2).sum(), ((truth - truth.mean(axis=0)) ** 2).sum()
    return float(max(0.0, 1.0 - off / variance))

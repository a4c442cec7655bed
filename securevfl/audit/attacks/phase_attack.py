"""Base of the attacks on summed phases of a kernel model.

A phase is x w modulo a turn, a party's columns x times its random frequencies w (`securevfl.families.fdskl`). A worker
is a party with labels; it learns the sum of all other parties' phases.
"""

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

PHASES: Requirement = (
    lambda job: isinstance(job.model, Kernel),
    "the model is not a kernel model, so no phases are summed",
)


class PhaseAttack(Attack):
    """An attack on the other parties' columns by a party that receives sums of phases.

    The score is the share of the variance of the columns that the attacker recovers.
    """

    requirements = (PHASES,)
    remedy = fixed_remedy("random frequencies that differ between parties; scale columns so that phases exceed 2 pi")

    def score(self, pair: RealIdealPair) -> Score:
        """Return the share of the columns that the active party recovers from its real and its ideal view."""
        views = pair.real(pair.active.name), pair.ideal(pair.active.name)
        real, simulated = (self.share_of_columns(view, pair) for view in views)
        return Score(real, simulated, 0.0)

    @abstractmethod
    def share_of_columns(self, view: PartyView, pair: RealIdealPair) -> float:
        """Return the share of the variance of the other parties' columns that the attacker recovers from this view."""


def first_exchange(view: PartyView, pair: RealIdealPair) -> tuple[Rows, Floats, list[int]]:
    """Return the first sums of phases that a worker learned.

    Args:
        view: everything that the worker received in a run.
        pair: the real and the ideal run of the job.

    Returns:
        The n rows, the sums of the others' M phases in turns (n, M), and the indices of the blocks of random features
        to which these phases belong.
    """
    first = view.phase_sums[: kernel(pair).blocks]
    u = np.hstack([turns(phase_sum.phases, phase_sum.bits) for phase_sum in first])
    return first_rows(view), u, [phase_sum.block for phase_sum in first]


def kernel(pair: RealIdealPair) -> Kernel:
    """Return the model of the job, which must be a kernel model."""
    assert isinstance(pair.job.model, Kernel)
    return pair.job.model


def first_rows(view: PartyView) -> Rows:
    """Return the rows of the first exchange: those from which a preconditioner is computed, or else the first batch."""
    return view.rows[0 if view.phase_sums[0].iteration < 0 else view.batches[0]]


def turns(phases: Phases, bits: int) -> Floats:
    """Return residues modulo 2^bits as turns in [-1/2, 1/2)."""
    signed = (phases.astype(np.uint32) << np.uint32(32 - bits)).view(np.int32)
    return signed.astype(np.float64) / 2.0**32


def explained_variance(guess: Floats, truth: Floats) -> float:
    """Return the share of the variance of `truth` (n, d) that the guess explains; 0 if the mean explains more."""
    error, variance = ((guess - truth) ** 2).sum(), ((truth - truth.mean(axis=0)) ** 2).sum()
    return float(max(0.0, 1.0 - error / variance))

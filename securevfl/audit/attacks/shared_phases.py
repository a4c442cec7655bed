"""Columns from summed phases, with the frequencies that a shared seed would give (against FDSKL, Gu et al. 2020).

The paper draws every party's frequencies from one seed. Then a worker that learns the sum of the others' phases
u = x w modulo 1 turn knows w, and has M linear equations about d columns in every row: where phases stay within half a
turn, least squares solves them. Here each party draws frequencies from a key of its own; the attacker tries the ones
that its own key would give. Masks do not enter: the sum is the worker's declared output.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from securevfl.audit.attacks.base import NO_PHASES, Attack, Score
from securevfl.audit.recording.views import View, Worlds, least_norm
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows
from securevfl.job import Job
from securevfl.methods.base import Known
from securevfl.models.kernel_model import Frequencies, Kernel
from securevfl.protocols.spaces import Phases


class PhaseAttack(Attack):
    """A party that is told sums of phases, after the others' columns. The score is how much of their variance it
    finds."""

    def why_not(self, job: Job) -> str:
        return "" if isinstance(job.model, Kernel) else NO_PHASES

    def remedy(self, job: Job, known: Known, attacker: str) -> str:
        return "frequencies of one's own; scale columns so that phases wrap"

    def score(self, worlds: Worlds) -> Score:
        views = worlds.real(worlds.active.name), worlds.ideal(worlds.active.name)
        real, simulated = (self.found(view, worlds) for view in views)
        return Score(real, simulated, 0.0)

    @abstractmethod
    def found(self, view: View, worlds: Worlds) -> float:
        """Return the share of the variance of the others' columns that this view gives."""


class SharedFrequencies(PhaseAttack):
    name: ClassVar[str] = "phases"
    paper = "Gu et al. 2020, federated doubly stochastic kernel learning for vertically partitioned data"
    measures = "share of the variance of the others' columns that is found"

    def found(self, view: View, worlds: Worlds) -> float:
        """Over the rows of the first exchange; the others' columns in the order of the parties."""
        model = worlds.job.model
        assert isinstance(model, Kernel)
        others = np.hstack([worlds.real(party.name).X for party in worlds.passives])
        rows, u, blocks = first_exchange(view, worlds)
        drawn = Frequencies(model, view.key, others.shape[1])
        w = np.hstack([drawn.w(view.name, k) for k in blocks])
        return explained(least_norm(w.T, u.T).T, others[rows])


def first_exchange(view: View, worlds: Worlds) -> tuple[Rows, Floats, list[int]]:
    """Return what a worker learned first: rows, the others' phases in turns (n x M), and the blocks they are of."""
    model = worlds.job.model
    assert isinstance(model, Kernel)
    first = view.phases[: model.blocks]
    u = np.hstack([turns(total.phases, total.bits) for total in first])
    return first_rows(view), u, [total.k for total in first]


def first_rows(view: View) -> Rows:
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

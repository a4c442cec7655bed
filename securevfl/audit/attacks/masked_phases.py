"""Columns from single messages of phases, by an attacker that is given the frequencies (FDSKL, Gu et al. 2020).

The worst case for masks alone: every receiver takes each message of phases as if it were x w of its sender, whose w it
is handed, and solves for the sender's columns. A direct sum falls to it; under a uniform mask on the circle what comes
out is unrelated to the columns. The ideal attacker gets random bytes in place of messages, but where a sum declares the
phases themselves.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from securevfl.audit.attacks.base import Attack, By, Need, Score, always
from securevfl.audit.recording.views import View, Worlds, fields, least_norm, noise_like
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows
from securevfl.families.fdskl.kernel_model import Frequencies, Kernel
from securevfl.families.fdskl.phase_sums import worker_of
from securevfl.protocols.declared import Phases
from securevfl.runtime.channel import Event
from securevfl.runtime.codec import Message

# Columns from summed phases, with the frequencies that a shared seed would give (against FDSKL, Gu et al. 2020).
#
# The paper draws every party's frequencies from one seed. Then a worker that learns the sum of the others' phases u = x
# w modulo 1 turn knows w, and has M linear equations about d columns in every row: where phases stay within half a
# turn, least squares solves them. Here each party draws frequencies from a key of its own; the attacker tries the ones
# that its own key would give. Masks do not enter: the sum is the worker's declared output.


PHASES: Need = (lambda job: isinstance(job.model, Kernel), "no phases are summed: the model is no kernel")


class PhaseAttack(Attack):
    """A party that is told sums of phases, after the others' columns. The score is how much of their variance it
    finds."""

    needs = (PHASES,)
    remedy = always("frequencies of one's own; scale columns so that phases wrap")

    def score(self, worlds: Worlds) -> Score:
        views = worlds.real(worlds.active.name), worlds.ideal(worlds.active.name)
        real, simulated = (self.share_of_columns(view, worlds) for view in views)
        return Score(real, simulated, 0.0)

    @abstractmethod
    def share_of_columns(self, view: View, worlds: Worlds) -> float:
        """Return the share of the variance of the others' columns that this view gives."""


class SharedFrequencies(PhaseAttack):
    name: ClassVar[str] = "phases"
    paper = "Gu et al. 2020, federated doubly stochastic kernel learning for vertically partitioned data"
    measures = "share of the variance of the others' columns that is found"

    def share_of_columns(self, view: View, worlds: Worlds) -> float:
        """Over the rows of the first exchange; the others' columns in the order of the parties."""
        others = np.hstack([worlds.real(party.name).X for party in worlds.passives])
        rows, u, blocks = first_exchange(view, worlds)
        drawn = Frequencies(kernel(worlds), view.key, others.shape[1])
        w = np.hstack([drawn.w(view.name, k) for k in blocks])
        return explained(least_norm(w.T, u.T).T, others[rows])


def first_exchange(view: View, worlds: Worlds) -> tuple[Rows, Floats, list[int]]:
    """Return what a worker learned first: rows, the others' phases in turns (n x M), and the blocks they are of."""
    first = view.phases[: kernel(worlds).blocks]
    u = np.hstack([turns(total.phases, total.bits) for total in first])
    return first_rows(view), u, [total.k for total in first]


def kernel(worlds: Worlds) -> Kernel:
    """Return the model of the job, which is one with phases."""
    assert isinstance(worlds.job.model, Kernel)
    return worlds.job.model


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


class MaskedPhases(Attack):
    name = "masked_phases"
    paper = "Gu et al. 2020, federated doubly stochastic kernel learning for vertically partitioned data, section 4"
    measures = "largest share of the variance of a sender's columns found from one of its messages, frequencies known"
    by = By.ANYONE
    needs = (PHASES,)
    remedy = always("a masked or encrypted sum among parties that do not pool what they hold")

    def score(self, worlds: Worlds) -> Score:
        firsts: dict[tuple[str, str, str, str], Event] = {}
        for event in (event for seen in list(worlds.real_run[1].values()) for event in seen.events):
            if event.direction == "recv" and worker_of(event.lane) not in (None, event.peer):
                firsts.setdefault((event.me, event.peer, event.lane, type(event.message).__name__), event)
        pairs = [
            [_share_found(event, message, worlds) for message in (event.message, noise_like(event.message))]
            for event in firsts.values()
        ]
        real, simulated = (max((pair[i] or 0.0 for pair in pairs if pair[0] is not None), default=0.0) for i in (0, 1))
        hides = worlds.job.protocol.sum_for(len(worlds.passives)).hides_parts
        return Score(real, simulated if hides else real, 0.0)


def _share_found(event: Event, message: Message, worlds: Worlds) -> float | None:
    """Share of the variance of the sender's columns; None if the message is not of the size of phases."""
    model, worker = kernel(worlds), worker_of(event.lane)
    assert worker is not None
    sender = worlds.real(event.peer)
    rows = first_rows(worlds.real(worlds.active.name))
    drawn = Frequencies(model, sender.key, sender.X.shape[1])
    w = np.hstack([drawn.w(worker, k) for k in range(model.blocks)])
    for value in fields(message):
        phases = _as_phases(value, (model.blocks, len(rows), model.block_size), model.bits)
        if phases is not None:
            u = np.hstack(list(turns(phases, model.bits)))
            return explained(np.linalg.lstsq(w.T, u.T)[0].T, sender.X[rows])
    return None


def _as_phases(value: object, shape: tuple[int, int, int], bits: int) -> Phases | None:
    if isinstance(value, bytes) and len(value) == int(np.prod(shape)) * bits // 8:
        return np.frombuffer(value, f"<u{bits // 8}").reshape(shape).astype(np.uint32)
    if isinstance(value, np.ndarray) and value.shape == shape:
        return value.astype(np.uint32)
    return None


# Columns from summed phases by a linear map learned on a few known rows (against random features; known plaintext).
#
# Private frequencies leave one thing: where phases stay within half a turn they are a linear image of the others'
# columns. An attacker that knows the columns of more rows than there are columns fits the map back and applies it to
# all rows. It is in the declared output of FDSKL, whatever the sum, and `explain` says so.


class PhaseMap(PhaseAttack):
    name = "phase_map"
    paper = "Turgay et al. 2008, disclosure risks of distance preserving data transformations (known samples)"
    measures = "share of the variance of the others' columns that is found, with a few rows known"

    def share_of_columns(self, view: View, worlds: Worlds) -> float:
        rows, u, _ = first_exchange(view, worlds)
        X = np.hstack([worlds.real(party.name).X for party in worlds.passives])[rows]
        known = min(len(rows) // 2, max(8, 3 * X.shape[1]))
        design = np.column_stack([u, np.ones(len(u))])
        back = np.linalg.lstsq(design[:known], X[:known])[0]
        return explained(design[known:] @ back, X[known:])

"""Columns from single messages of phases, by an attacker that is given the frequencies (FDSKL, Gu et al. 2020).

The worst case for masks alone: every receiver takes each message of phases as if it were x w of its sender, whose w it
is handed, and solves for the sender's columns. A direct sum falls to it; under a uniform mask on the circle what comes
out is unrelated to the columns. The ideal attacker gets random bytes in place of messages, but where a sum declares the
phases themselves.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import NO_PHASES, Attack, By, Score
from securevfl.audit.attacks.shared_phases import explained, first_rows, turns
from securevfl.audit.recording.views import Worlds, fields, noise_like
from securevfl.job import Job
from securevfl.methods.base import Known
from securevfl.models.kernel_model import Frequencies, Kernel
from securevfl.protocols.spaces import Phases
from securevfl.protocols.sums.phase_sums import worker_of
from securevfl.runtime.channel import Event
from securevfl.runtime.codec import Message


class MaskedPhases(Attack):
    name = "masked_phases"
    paper = "Gu et al. 2020, federated doubly stochastic kernel learning for vertically partitioned data, section 4"
    measures = "largest share of the variance of a sender's columns found from one of its messages, frequencies known"
    by = By.ANYONE

    def why_not(self, job: Job) -> str:
        return "" if isinstance(job.model, Kernel) else NO_PHASES

    def remedy(self, job: Job, known: Known, attacker: str) -> str:
        return "a masked or encrypted sum among parties that do not pool what they hold"

    def score(self, worlds: Worlds) -> Score:
        tape = worlds.real_run[1]
        firsts: dict[tuple[str, str, str, str], Event] = {}
        for events in list(tape.events.values()):
            for event in events:
                if event.direction == "recv" and worker_of(event.lane) not in (None, event.peer):
                    firsts.setdefault((event.me, event.peer, event.lane, type(event.message).__name__), event)
        found = [
            [_found(event, message, worlds) for message in (event.message, noise_like(event.message))]
            for event in firsts.values()
        ]
        scores = [pair for pair in found if pair[0] is not None]
        real, simulated = (max((score[i] or 0.0 for score in scores), default=0.0) for i in (0, 1))
        hides = worlds.job.protocol.sum_for(len(worlds.passives)).hides_parts
        return Score(real, simulated if hides else real, 0.0)


def _found(event: Event, message: Message, worlds: Worlds) -> float | None:
    """Share of the variance of the sender's columns; None if the message is not of the size of phases."""
    model, worker = worlds.job.model, worker_of(event.lane)
    assert isinstance(model, Kernel)
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

"""Columns from single messages of phases, by an attacker that is given the frequencies (FDSKL, Gu et al. 2020).

Phases are x w modulo a turn, a party's columns x times its random frequencies w. This is the worst case for masks
alone: every receiver treats each message as the phases of its sender, is given w, and solves for x. The attack succeeds
if summands are sent in the clear (a direct sum). Under a uniform mask the result is unrelated to the columns. The
attacker on the ideal view gets random bytes in place of messages, or the phases themselves if the sum does not hide its
summands.
"""

from __future__ import annotations

import numpy as np

from securevfl.audit.attacks.base import Attack, AttackerRole, Score, fixed_remedy
from securevfl.audit.attacks.phase_attack import PHASES, explained_variance, first_rows, kernel, turns
from securevfl.audit.recording.party_view import fields
from securevfl.audit.recording.real_ideal_pair import RealIdealPair, noise_like
from securevfl.families.fdskl.phase_sums import worker_of
from securevfl.families.fdskl.random_features import RandomFrequencies
from securevfl.protocols.number_spaces import Phases
from securevfl.runtime.codec import Message
from securevfl.runtime.observer import Event


class MaskedPhases(Attack):
    """Solves for the sender's columns from single messages, with known frequencies."""

    name = "masked_phases"
    paper = "Gu et al. 2020, federated doubly stochastic kernel learning for vertically partitioned data, section 4"
    measures = "largest share of the variance of a sender's columns recovered from one message, frequencies known"
    attacker_role = AttackerRole.ANY
    requirements = (PHASES,)
    remedy = fixed_remedy("a masked or encrypted sum among parties that do not collude")

    def score(self, pair: RealIdealPair) -> Score:
        """Return the share of variance that the best attack on one message recovers.

        The first message of each kind from each sender to each receiver is attacked.
        """
        firsts: dict[tuple[str, str, str, str], Event] = {}
        for event in (event for record in list(pair.real_run[1].values()) for event in record.events):
            if event.direction == "recv" and worker_of(event.subchannel) not in (None, event.peer):
                firsts.setdefault((event.me, event.peer, event.subchannel, type(event.message).__name__), event)
        pairs = [
            [_share_recovered(event, message, pair) for message in (event.message, noise_like(event.message))]
            for event in firsts.values()
        ]
        real, simulated = (
            max((shares[i] or 0.0 for shares in pairs if shares[0] is not None), default=0.0) for i in (0, 1)
        )
        hides = pair.job.protocol.sum_for(len(pair.passives)).hides_parts
        return Score(real, simulated if hides else real, 0.0)


def _share_recovered(event: Event, message: Message, pair: RealIdealPair) -> float | None:
    """Return the share of the variance of the sender's columns that a message reveals; None if it holds no phases."""
    model, worker = kernel(pair), worker_of(event.subchannel)
    assert worker is not None
    sender = pair.real(event.peer)
    rows = first_rows(pair.real(pair.active.name))
    frequencies = RandomFrequencies(model, sender.key, sender.X.shape[1])
    w = np.hstack([frequencies.w(worker, k) for k in range(model.blocks)])
    for value in fields(message):
        phases = _as_phases(value, (model.blocks, len(rows), model.block_size), model.bits)
        if phases is not None:
            u = np.hstack(list(turns(phases, model.bits)))
            return explained_variance(np.linalg.lstsq(w.T, u.T)[0].T, sender.X[rows])
    return None


def _as_phases(value: object, shape: tuple[int, int, int], bits: int) -> Phases | None:
    """Read a field of a message as phases of this shape; return None if the field has another size."""
    if isinstance(value, bytes) and len(value) == int(np.prod(shape)) * bits // 8:
        return np.frombuffer(value, f"<u{bits // 8}").reshape(shape).astype(np.uint32)
    if isinstance(value, np.ndarray) and value.shape == shape:
        return value.astype(np.uint32)
    return None

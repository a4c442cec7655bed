"""Disclosures of weights of evidence: counts of bins with enough rows, each once, and no more bins than recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
from builders import CKKS_JOB, cancer_parties, make_job

from securevfl.audit.recording.transcript_recording import record_transcript
from securevfl.audit.transcript_checks import Outcome, check_transcript
from securevfl.data.party import Party
from securevfl.data.preparation import Preparation
from securevfl.data.woe import Woe
from securevfl.errors import LeakageError
from securevfl.protocols.bin_classes import EVIDENCE_SUBCHANNEL, count_bits
from securevfl.protocols.engines import Ckks
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.residuals.sealed_residual import OpenedProduct
from securevfl.runtime.observer import Event
from securevfl.training.simulate import simulate

_TOLD = Woe(bins=2, rows=40)
_ENGINE = Ckks()
_HEAD = 64  # largest number of bytes of an opening that are not words


def _opened(event: Event) -> int:
    """Return the bytes of counts that a message opens."""
    return (
        len(event.message.values)
        if event.subchannel.startswith(EVIDENCE_SUBCHANNEL) and isinstance(event.message, OpenedProduct)
        else 0
    )


_ENCODED_JOB: dict[str, Any] = CKKS_JOB | {"batch_size": 90, "protocol": Protocol(residual=_ENGINE)}


def counts() -> Outcome:
    """Check that a passive party learns the positive class in bins of enough rows only, and everything else is as
    declared."""
    transcript, _ = record_transcript(
        make_job(_ENCODED_JOB, prepare=Preparation(woe=_TOLD), accepts=("columns", "rank")), cancer_parties(3, 180)
    )
    outcome = check_transcript(transcript)
    width = {party.name: party.X.shape[1] for party in cancer_parties(3, 180)}
    for name in transcript.roles.others(transcript.roles.lead):
        opened = sum(_opened(event) for event in transcript.received if event.me == name)
        bits = _ENGINE.scheme().opened_bits(
            len(cancer_parties(3, 180)[0]), _TOLD.counts(width[name]), count_bits(len(cancer_parties(3, 180)[0]))
        )
        if opened > 2 * bits / 8 + _HEAD:
            outcome.add("words", name, f"was sent more of its counts than the {bits} bits that words have")
        recorded = transcript.protocol_record.gradients[name]
        gradients = [gradient for gradient in recorded if gradient.subchannel == EVIDENCE_SUBCHANNEL]
        if len(gradients) != 1:
            outcome.add("output", name, f"received its bins {len(gradients)} times instead of once")
        for gradient in gradients:
            rows = gradient.J.dense.sum(axis=0)
            if (rows[rows > 0] < _TOLD.rows).any():
                outcome.add("bins", name, f"received the class counts of a bin of fewer than {_TOLD.rows} rows")
    return outcome


def guarded() -> Outcome:
    """Check that a job is refused if its bins disclose all bits of the labels, or if one of its bins has a single
    row."""
    outcome = Outcome()
    bank, *others = cancer_parties(3, 180)
    place = np.arange(len(bank))
    near = Party("near", np.column_stack([place, place > 90]), aligned=True)  # two halves, of 90 and of 91 rows
    alone = Party("bank", bank.X, bank.y, aligned=True)
    for what, parties, woe in (
        ("bins disclose all of the labels' information", [bank, *others], Woe(bins=9, rows=20)),
        ("bins differ by one row", [alone, near], _TOLD),
    ):
        try:
            simulate(make_job(_ENCODED_JOB, prepare=Preparation(woe=woe)), parties)
            outcome.add("count", parties[1].name, f"{what}, and the job runs")
        except LeakageError:
            pass
    return outcome


CHECKS = {"classes in bins": counts, "classes in bins guarded": guarded}
